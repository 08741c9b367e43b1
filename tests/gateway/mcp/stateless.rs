use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::mcp::{
    client::{Client, act},
    harness::{Toolway, acting, scripted, toolway},
};

const VERSION: &str = "2026-07-28";
const MISMATCH: (u16, i64) = (400, -32020);

/// A message that stands for itself.
fn whole(mut message: Value, capabilities: Value) -> Value {
    let meta = &mut message["params"]["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = VERSION.into();
    meta["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    message
}

fn request(id: i64, method: &str, params: Value) -> Value {
    whole(crate::mcp::client::request(id, method, params), json!({}))
}

/// A client whose headers fit the message.
fn client(gw: &Toolway, message: &Value) -> Client {
    let client = Client::at(gw, "/mcp").with("mcp-protocol-version", VERSION);
    let client = client.with("mcp-method", message["method"].as_str().unwrap());
    let named = message["params"]["name"]
        .as_str()
        .or(message["params"]["uri"].as_str());
    client.with("mcp-name", named.unwrap_or("-"))
}

async fn call(gw: &Toolway, message: Value) -> Value {
    client(gw, &message).call(message).await
}

#[tokio::test]
async fn a_server_is_discovered_and_used_without_a_session() {
    let gw = acting().await;
    let about = call(&gw, request(1, "server/discover", json!({}))).await;
    assert_eq!(about["supportedVersions"][0], VERSION);
    assert_eq!(about["capabilities"]["tools"]["listChanged"], true);
    assert_eq!(
        about["_meta"]["io.modelcontextprotocol/serverInfo"]["name"],
        "toolway"
    );
    assert_eq!(
        (&about["resultType"], &about["cacheScope"]),
        (&json!("complete"), &json!("private"))
    );
    let tools = call(&gw, request(2, "tools/list", json!({}))).await;
    assert_eq!(
        (&tools["tools"][0]["name"], &tools["resultType"]),
        (&json!("s__act"), &json!("complete"))
    );
    let message = whole(act(3, json!({"x": 1})), json!({}));
    let got = client(&gw, &message).post(message).await;
    assert!(!got.headers.contains_key("mcp-session-id"));
    assert_eq!(got.json()["result"]["content"][0]["text"], r#"{"x":1}"#);
    assert_eq!(gw.open().await, (0, 0));
    gw.join().await;
}

#[tokio::test]
async fn headers_repeat_the_body_or_the_request_is_refused() {
    let gw = acting().await;
    let message = whole(act(7, json!({})), json!({}));
    let fitting = client(&gw, &message);
    for (name, value) in [
        ("mcp-protocol-version", "-"),
        ("mcp-protocol-version", "2025-11-25"),
        ("mcp-method", "-"),
        ("mcp-method", "TOOLS/CALL"),
        ("mcp-name", "-"),
        ("mcp-name", "other"),
        ("mcp-name", "=?base64?!?="),
    ] {
        let got = fitting.with(name, value).post(message.clone()).await;
        assert_eq!(
            (got.refusal(), &got.json()["id"]),
            (MISMATCH, &json!(7)),
            "{name}: {value}"
        );
    }
    for (name, value) in [
        ("mcp-name", "  s__act  "),
        ("mcp-name", "=?base64?c19fYWN0?="),
    ] {
        assert_eq!(
            fitting.with(name, value).post(message.clone()).await.status,
            200,
            "{value}"
        );
    }
    gw.join().await;
}

#[tokio::test]
async fn arguments_that_a_schema_marks_are_in_headers() {
    let properties = json!({"where": {"type": "string", "x-mcp-header": "Where"}});
    let tool = json!({"name": "act", "inputSchema": {"type": "object", "properties": properties}});
    let gw = toolway(&scripted("s", json!({"tools": [tool]}))).await;
    let message = whole(act(1, json!({"where": "Hello"})), json!({}));
    let client = client(&gw, &message);
    assert_eq!(client.post(message.clone()).await.refusal(), MISMATCH);
    assert_eq!(
        client
            .with("mcp-param-where", "there")
            .post(message.clone())
            .await
            .refusal(),
        MISMATCH
    );
    let fitting = client.with("Mcp-Param-Where", "=?base64?SGVsbG8=?=");
    assert_eq!(fitting.post(message).await.status, 200);
    gw.join().await;
}

#[tokio::test]
async fn a_request_that_does_not_say_what_it_must_is_refused() {
    let gw = acting().await;
    let (version, able) = (
        "io.modelcontextprotocol/protocolVersion",
        "io.modelcontextprotocol/clientCapabilities",
    );
    for (header, meta, refusal) in [
        (VERSION, Value::Null, (400, -32602)),
        (VERSION, json!({able: {}}), (400, -32602)),
        (VERSION, json!({version: VERSION}), (400, -32602)),
        (VERSION, json!({version: "v999", able: {}}), MISMATCH),
        ("v999", json!({version: "v999", able: {}}), (400, -32022)),
        ("-", json!({version: VERSION, able: {}}), MISMATCH),
    ] {
        let message = crate::mcp::client::request(5, "server/discover", json!({"_meta": meta}));
        let got = client(&gw, &message)
            .with("mcp-protocol-version", header)
            .post(message)
            .await;
        assert_eq!(
            (got.refusal(), &got.json()["id"]),
            (refusal, &json!(5)),
            "{header} {meta}"
        );
    }
    gw.join().await;
}

#[tokio::test]
async fn what_only_handshake_versions_have_is_not_there() {
    let gw = acting().await;
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "no/such",
    ] {
        let message = request(5, method, json!({}));
        assert_eq!(
            client(&gw, &message).post(message).await.refusal(),
            (404, -32601),
            "{method}"
        );
    }
    let client = Client::at(&gw, "/mcp").with("mcp-protocol-version", VERSION);
    assert_eq!(
        client.send(reqwest::Method::GET).await.refusal(),
        (405, -32600)
    );
    assert_eq!(
        client.send(reqwest::Method::DELETE).await.refusal(),
        (405, -32600)
    );
    let told =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(client.post(told).await.status, 202);
    let answered = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    assert_eq!(client.post(answered).await.refusal(), (400, -32600));
    assert_eq!(
        client
            .post(json!([request(1, "tools/list", json!({}))]))
            .await
            .refusal(),
        (400, -32600)
    );
    gw.join().await;
}

#[tokio::test]
async fn progress_and_logs_come_before_the_result_if_they_are_wanted() {
    let gw = acting().await;
    let mut message = whole(act(1, json!({"do": "progress", "steps": 2})), json!({}));
    message["params"]["_meta"]["progressToken"] = 9.into();
    let mut stream = client(&gw, &message).stream(message).await;
    assert_eq!(
        stream.method("notifications/progress").await["progressToken"],
        9
    );
    let rest = stream.rest().await;
    assert_eq!(rest.last().unwrap()["result"]["resultType"], "complete");
    assert_eq!(
        (stream.last_id, stream.primers),
        (None, 0),
        "nothing can be taken up again"
    );
    gw.join().await;
}

#[tokio::test]
async fn what_a_server_asks_is_a_result_and_the_answer_comes_with_the_next_request() {
    let gw = acting().await;
    let params =
        json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    let ask = act(
        1,
        json!({"do": "ask", "method": "elicitation/create", "params": params}),
    );
    let message = whole(ask.clone(), json!({"elicitation": {}}));
    let asked = call(&gw, message).await;
    assert_eq!(asked["resultType"], "input_required");
    let (key, input) = asked["inputRequests"]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    assert_eq!(input["method"], "elicitation/create");
    let mut again = whole(ask, json!({"elicitation": {}}));
    again["id"] = 2.into();
    again["params"]["inputResponses"] =
        json!({key: {"action": "accept", "content": {"name": "me"}}});
    again["params"]["requestState"] = asked["requestState"].clone();
    let result = call(&gw, again).await;
    assert_eq!(result["resultType"], "complete");
    assert!(
        result["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains(r#""name":"me""#),
        "{result}"
    );
    gw.join().await;
}

#[tokio::test]
async fn closing_the_response_cancels_the_request() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        json!({"do": "progress", "and_hang": true}),
        json!({"do": "hang"}),
    ] {
        let record = folder.path().join(arguments["do"].as_str().unwrap());
        let gw = toolway(&scripted("s", json!({"record": record}))).await;
        let mut message = whole(act(1, arguments), json!({}));
        message["params"]["_meta"]["progressToken"] = 9.into();
        let client = client(&gw, &message);
        let sending = tokio::spawn(
            client
                .build(reqwest::Method::POST)
                .body(message.to_string())
                .send(),
        );
        until(&record, "tools/call").await;
        sending.abort();
        drop(sending.await);
        drop(client);
        until(&record, "notifications/cancelled").await;
        gw.join().await;
    }
}

async fn until(record: &std::path::Path, word: &str) {
    let deadline = tokio::time::Instant::now() + crate::mcp::harness::PATIENCE;
    while !fs::read_to_string(record)
        .unwrap_or_default()
        .contains(word)
    {
        assert!(tokio::time::Instant::now() < deadline, "never {word}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_subscription_tells_what_was_asked_for_and_ends_with_a_result() {
    let mut gw = acting().await;
    let asked =
        json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": ["no:such"]}});
    let listen = request(4, "subscriptions/listen", asked);
    let mut tools = client(&gw, &listen).stream(listen).await;
    let listen = request(
        5,
        "subscriptions/listen",
        json!({"notifications": {"promptsListChanged": true}}),
    );
    let mut prompts = client(&gw, &listen).stream(listen).await;
    let of = |id: i64| json!({"io.modelcontextprotocol/subscriptionId": id});
    let acknowledged = tools
        .method("notifications/subscriptions/acknowledged")
        .await;
    assert_eq!(
        acknowledged,
        json!({"notifications": {"toolsListChanged": true}, "_meta": of(4)})
    );
    prompts
        .method("notifications/subscriptions/acknowledged")
        .await;
    gw.until_open(0, 2).await;
    let new = json!([{"name": "other", "inputSchema": {"type": "object"}}]);
    call(
        &gw,
        whole(act(1, json!({"do": "change", "tools": new})), json!({})),
    )
    .await;
    let changed = tools.method("notifications/tools/list_changed").await;
    assert_eq!(changed["_meta"], of(4));
    gw.stop();
    for (stream, id) in [(&mut tools, 4), (&mut prompts, 5)] {
        let ended = stream.next().await.unwrap();
        let result = json!({"resultType": "complete", "_meta": of(id)});
        assert_eq!(ended, json!({"jsonrpc": "2.0", "id": id, "result": result}));
        assert_eq!(stream.next().await, None);
    }
    gw.join().await;
}

#[tokio::test]
async fn a_subscription_that_is_dropped_leaves_nothing_behind() {
    let gw = acting().await;
    for wrong in [
        json!({}),
        json!({"notifications": {"toolsListChanged": "yes"}}),
    ] {
        let listen = request(1, "subscriptions/listen", wrong);
        assert_eq!(
            client(&gw, &listen).post(listen).await.refusal(),
            (200, -32602)
        );
    }
    let listen = request(1, "subscriptions/listen", json!({"notifications": {}}));
    let mut stream = client(&gw, &listen).stream(listen).await;
    stream
        .method("notifications/subscriptions/acknowledged")
        .await;
    gw.until_open(0, 1).await;
    drop(stream);
    gw.until_open(0, 0).await;
    gw.join().await;
}

#[tokio::test]
async fn a_tool_that_an_endpoint_hides_is_refused_there_in_both_eras() {
    let profile = "\n[profiles.alone]\nserver = \"a\"\n[profiles.some]\ntools = [\"a__*\"]\n";
    let two = scripted("a", json!({})) + &scripted("b", json!({})) + profile;
    let gw = toolway(&two).await;
    for (path, hidden) in [
        ("/mcp", "act"),
        ("/mcp/alone", "b__act"),
        ("/mcp/some", "b__act"),
    ] {
        let params = json!({"name": hidden, "arguments": {}});
        let with_session = Client::at(&gw, path).initialized("2025-11-25", json!({}));
        let asked = crate::mcp::client::request(1, "tools/call", params.clone());
        let got = with_session.await.post(asked).await.json();
        assert_eq!(got["error"]["code"], -32602, "{path}: {got}");
        let asked = request(2, "tools/call", params);
        let without = Client::at(&gw, path)
            .with("mcp-protocol-version", VERSION)
            .with("mcp-method", "tools/call")
            .with("mcp-name", hidden);
        let got = without.post(asked).await.json();
        assert_eq!(got["error"]["code"], -32602, "{path}: {got}");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_subscription_holds_no_bytes_of_the_budget() {
    let bounds = "max_body_bytes = 100000\nmax_inflight_bytes = 600000\n";
    let gw = toolway(&format!("{bounds}{}", scripted("s", json!({})))).await;
    let padding = vec![0; 1000];
    let asked = json!({"notifications": {}, "padding": padding, "text": "x".repeat(80_000)});
    let mut streams = Vec::new();
    for id in 0..5 {
        let listen = request(id, "subscriptions/listen", asked.clone());
        let mut stream = client(&gw, &listen).stream(listen).await;
        stream
            .method("notifications/subscriptions/acknowledged")
            .await;
        streams.push(stream);
    }
    gw.join().await;
}
