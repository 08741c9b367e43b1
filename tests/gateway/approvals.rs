//! Calls that a person approves: one list, whatever face they came through.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use toolway::gateway::{RequestClient, RestOutcome};
use toolway_protocol::tool::ServerId;

use crate::{
    functions::definitions,
    harness::{Toolway, toolway},
    model::{Model, PATIENCE, Reply, call, say},
    tools::{Does, tools},
};

const ASKS: &str = r#"
[[policy.rules]]
tools = ["files__*"]
action = "ask"
reason = "files need a yes"

"#;

/// A toolway with the tools `write` and `rm` of `files`, about which it asks.
async fn start(config: &str, replies: Vec<Reply>) -> Toolway {
    let files = tools()
        .tool("write", Does::Echoes)
        .tool("rm", Does::Echoes)
        .listed(
            json!({"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}}),
            Does::Echoes,
        );
    let config = format!("{config}\n{ASKS}");
    let gw = toolway(Model::start(replies).await).config(&config);
    gw.server("files", files).start().await
}

fn turn(arguments: Value) -> Reply {
    call(&[("call_1", "files__write", arguments)])
}

/// Sends a request as the client with this key, and gives the status and the JSON.
async fn ask(
    gw: &Toolway,
    method: Method,
    path: &str,
    key: &str,
    body: Option<Value>,
) -> (u16, Value) {
    let mut request = gw.http.request(method, format!("{}{path}", gw.base));
    if !key.is_empty() {
        request = request.bearer_auth(key);
    }
    if let Some(body) = body {
        request = request.json(&body);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

async fn decide(gw: &Toolway, id: &str, body: Value) -> (u16, Value) {
    ask(
        gw,
        Method::POST,
        &format!("/confirmations/{id}"),
        "",
        Some(body),
    )
    .await
}

/// Waits until one call is pending, and gives it.
async fn pending(gw: &Toolway) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (_, mut list) = ask(gw, Method::GET, "/confirmations?state=pending", "", None).await;
        if let Some(first) = list["confirmations"].as_array_mut().and_then(Vec::pop) {
            return first;
        }
        assert!(Instant::now() < deadline, "no call is pending");
        sleep(Duration::from_millis(5)).await;
    }
}

fn id(confirmation: &Value) -> String {
    confirmation["confirmation_id"].as_str().unwrap().to_owned()
}

/// What the model was told of its call in the last request.
fn told(gw: &Toolway) -> Value {
    let last = gw.model.messages(gw.model.asked().len() - 1);
    let content = last.last().unwrap()["content"].as_str().unwrap();
    serde_json::from_str(content).unwrap()
}

#[tokio::test]
async fn a_streamed_chat_waits_and_says_for_what_and_its_call_runs_once_after_the_yes() {
    let gw = start("", vec![turn(json!({"path": "/x"})), say("Done.")]).await;
    let mut live = gw.live(json!({}), &[("x-toolway-progress", "on")]).await;
    live.until("call_waiting_for_approval").await;
    let shown = pending(&gw).await;
    assert!(live.so_far().contains(&id(&shown)), "{}", live.so_far());
    assert_eq!(shown["name"], "files__write");
    assert_eq!(shown["arguments"], json!({"path": "/x"}));
    assert_eq!(shown["rule"], "policy.rules[0]");
    assert_eq!(shown["face"], "chat");
    assert!(gw.servers[0].calls().is_empty());
    let name = id(&shown);
    let confirm = || decide(&gw, &name, json!({"confirm": true}));
    let (first, second) = tokio::join!(confirm(), confirm());
    let mut statuses = [first.0, second.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 404], "one of two decisions counts");
    assert_eq!(live.end().await.text(), "Done.");
    assert_eq!(gw.servers[0].calls().len(), 1);
    let path = format!("/confirmations/{}", id(&shown));
    let (_, after) = ask(&gw, Method::GET, &path, "", None).await;
    assert_eq!(after["state"], "used");
    gw.join().await;
}

#[tokio::test]
async fn a_refusal_is_told_to_the_model_and_holds_for_the_same_call() {
    let again = || turn(json!({"path": "/x"}));
    let gw = start("", vec![again(), again(), say("Well.")]).await;
    let (answer, _) = tokio::join!(gw.plain(json!({})), async {
        let shown = pending(&gw).await;
        decide(&gw, &id(&shown), json!({})).await
    });
    assert_eq!(answer["choices"][0]["message"]["content"], "Well.");
    let error = told(&gw)["error"].clone();
    assert_eq!(error["type"], "denied");
    assert_eq!(error["message"], "a person has refused this call");
    assert!(gw.servers[0].calls().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn a_turn_that_ends_names_the_approval_and_the_same_call_goes_through_once() {
    let end_turn = "[approvals]\nchat = \"end_turn\"";
    // The order of members does not make it another call.
    let one = || turn(json!({"path": "/x", "text": "a"}));
    let same = || turn(json!({"text": "a", "path": "/x"}));
    let other = || turn(json!({"path": "/y", "text": "a"}));
    let script = [one(), other(), same(), same()];
    let script = script.into_iter().flat_map(|it| [it, say("Ok.")]);
    let gw = start(end_turn, script.collect()).await;
    gw.plain(json!({})).await;
    let error = told(&gw)["error"].clone();
    assert_eq!(error["type"], "denied");
    assert_eq!(error["waiting_for_approval"], true);
    let shown = pending(&gw).await;
    assert_eq!(error["confirmation_id"], shown["confirmation_id"]);
    let (status, said) = decide(&gw, &id(&shown), json!({"confirm": true})).await;
    assert_eq!((status, &said["status"]), (200, &json!("approved")));
    assert!(
        gw.servers[0].calls().is_empty(),
        "its client makes the call"
    );
    gw.plain(json!({})).await;
    assert!(
        gw.servers[0].calls().is_empty(),
        "another call is not approved"
    );
    gw.plain(json!({})).await;
    assert_eq!(gw.servers[0].calls().len(), 1);
    gw.plain(json!({})).await;
    assert_eq!(
        gw.servers[0].calls().len(),
        1,
        "an approval is for one call"
    );
    assert_eq!(told(&gw)["error"]["waiting_for_approval"], true);
    gw.join().await;
}

#[tokio::test]
async fn a_chat_waits_no_longer_than_configured() {
    let gw = start(
        "[approvals]\nwait = \"20ms\"",
        vec![turn(json!({})), say("Ok.")],
    )
    .await;
    gw.plain(json!({})).await;
    assert_eq!(told(&gw)["error"]["waiting_for_approval"], true);
    assert_eq!(pending(&gw).await["state"], "pending");
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_is_asked_about_does_not_begin_early() {
    let read = call(&[("call_1", "files__read", json!({}))]);
    let gw = start("[approvals]\nchat = \"end_turn\"", vec![read, say("Ok.")]).await;
    gw.streamed(json!({})).await;
    assert!(gw.servers[0].calls().is_empty());
    assert_eq!(told(&gw)["error"]["waiting_for_approval"], true);
    gw.join().await;
}

#[tokio::test]
async fn only_true_confirms_and_what_cannot_be_decided_says_why() {
    let config = "[approvals]\nchat = \"end_turn\"";
    let gw = start(config, vec![turn(json!({})), say("Ok.")]).await;
    gw.plain(json!({})).await;
    let shown = pending(&gw).await;
    for body in [
        json!({"confirm": "true"}),
        json!({"confirm": 1}),
        json!({"confirm": null}),
        json!({"confirm": true, "remember": "yes"}),
        json!({"confirm": true, "remember": {"what": "tool", "until": "session"}}),
        json!([]),
    ] {
        let (status, said) = decide(&gw, &id(&shown), body.clone()).await;
        assert_eq!(status, 400, "{body}");
        assert!(said["error"].is_string(), "{said}");
    }
    assert_eq!(pending(&gw).await["state"], "pending");
    let (status, said) = decide(&gw, "none", json!({"confirm": true})).await;
    let unknown = json!({"error": "Confirmation 'none' not found or expired"});
    assert_eq!((status, said), (404, unknown));
    let (status, said) = decide(&gw, &id(&shown), json!({"confirm": false})).await;
    let rejected = json!({"status": "rejected", "message": "Request was rejected by the user"});
    assert_eq!((status, said), (200, rejected));
    let (status, _) = decide(&gw, &id(&shown), json!({"confirm": true})).await;
    assert_eq!(status, 404, "it was decided on");
    gw.join().await;
}

#[tokio::test]
async fn a_decision_needs_the_token_where_there_is_one() {
    let config = "[approvals]\nchat = \"end_turn\"\ntoken = \"tok-1\"";
    let gw = start(config, vec![turn(json!({})), say("Ok.")]).await;
    gw.plain(json!({})).await;
    let shown = pending(&gw).await;
    let url = format!("{}/confirmations/{}", gw.base, id(&shown));
    for (token, expected) in [(None, 403), (Some("tok-2"), 403), (Some("tok-1"), 200)] {
        let mut request = gw.http.post(&url).json(&json!({"confirm": true}));
        if let Some(token) = token {
            request = request.header("x-toolway-approval-token", token);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), expected, "{token:?}");
        let said: Value = response.json().await.unwrap();
        assert_eq!(said["error"].is_string(), expected == 403, "{said}");
    }
    gw.join().await;
}

#[tokio::test]
async fn what_has_expired_is_gone() {
    let config = "[approvals]\nchat = \"end_turn\"\nexpires = \"1ms\"";
    let gw = start(config, vec![turn(json!({})), say("Ok.")]).await;
    gw.plain(json!({})).await;
    let id = told(&gw)["error"]["confirmation_id"]
        .as_str()
        .unwrap()
        .to_owned();
    sleep(Duration::from_millis(5)).await;
    let (_, list) = ask(&gw, Method::GET, "/confirmations", "", None).await;
    assert_eq!(list, json!({"confirmations": []}));
    let (status, said) = decide(&gw, &id, json!({"confirm": true})).await;
    let gone = json!({"error": format!("Confirmation '{id}' has expired")});
    assert_eq!((status, said), (410, gone));
    assert_eq!(decide(&gw, &id, json!({"confirm": true})).await.0, 404);
    gw.join().await;
}

#[tokio::test]
async fn a_client_sees_and_decides_on_its_own_calls() {
    let config = "api_keys = [\"sk-a\", \"sk-b\"]\n[approvals]\nchat = \"end_turn\"";
    let gw = start(config, vec![turn(json!({})), say("Ok.")]).await;
    gw.send(json!({}), &[("authorization", "Bearer sk-a")])
        .await
        .bytes()
        .await
        .unwrap();
    let id = told(&gw)["error"]["confirmation_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("/confirmations/{id}");
    let confirm = || Some(json!({"confirm": true}));
    let (_, list) = ask(&gw, Method::GET, "/confirmations", "sk-b", None).await;
    assert_eq!(list, json!({"confirmations": []}));
    assert_eq!(ask(&gw, Method::GET, &path, "sk-b", None).await.0, 404);
    assert_eq!(
        ask(&gw, Method::POST, &path, "sk-b", confirm()).await.0,
        404
    );
    assert_eq!(ask(&gw, Method::POST, &path, "", confirm()).await.0, 401);
    let (_, list) = ask(&gw, Method::GET, "/confirmations", "sk-a", None).await;
    assert_eq!(list["confirmations"][0]["key"], "api_keys[0]");
    assert_eq!(
        ask(&gw, Method::POST, &path, "sk-a", confirm()).await.0,
        200
    );
    gw.join().await;
}

#[tokio::test]
async fn what_is_remembered_runs_without_asking_until_it_is_revoked() {
    let replies = (0..6).flat_map(|n| [turn(json!({"n": n / 2})), say("Ok.")]);
    let gw = start("[approvals]\nchat = \"end_turn\"", replies.collect()).await;
    let session = |name: &'static str| [("x-toolway-session", name)];
    let send = async |name| {
        let headers = session(name);
        gw.send(json!({}), &headers).await.bytes().await.unwrap();
        gw.servers[0].calls().len()
    };
    assert_eq!(send("one").await, 0);
    let shown = pending(&gw).await;
    let remember = json!({"confirm": true, "remember": {"what": "tool", "until": "session"}});
    assert_eq!(decide(&gw, &id(&shown), remember).await.0, 200);
    assert_eq!(send("one").await, 1);
    assert_eq!(
        send("one").await,
        2,
        "every call of the tool in the session"
    );
    assert_eq!(send("two").await, 2, "another session");
    let shown = pending(&gw).await;
    assert_eq!(shown["arguments"], json!({"n": 1}));
    let remember = json!({"confirm": true, "remember": {"what": "call", "until": "forever"}});
    assert_eq!(decide(&gw, &id(&shown), remember).await.0, 200);
    let (_, list) = ask(&gw, Method::GET, "/grants", "", None).await;
    let grants = list["grants"].as_array().unwrap();
    let of = |what| grants.iter().find(|it| it["what"] == what).unwrap();
    assert_eq!(of("call")["arguments"], json!({"n": 1}));
    assert_eq!(of("call")["until"], "forever");
    assert_eq!(of("tool")["until"], "session");
    let path = format!("/grants/{}", of("tool")["id"].as_str().unwrap());
    assert_eq!(ask(&gw, Method::DELETE, &path, "", None).await.0, 200);
    assert_eq!(ask(&gw, Method::DELETE, &path, "", None).await.0, 404);
    assert_eq!(send("one").await, 2, "it was revoked");
    gw.join().await;
}

#[tokio::test]
async fn a_restart_keeps_what_waits_and_what_was_approved() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "data_dir = {:?}\n[approvals]\nchat = \"end_turn\"",
        folder.path()
    );
    let replies = || vec![turn(json!({"path": "/x"})), say("Ok.")];
    let gw = start(&config, replies()).await;
    gw.plain(json!({})).await;
    let shown = pending(&gw).await;
    gw.join().await;
    let gw = start(&config, Vec::new()).await;
    assert_eq!(pending(&gw).await, shown);
    assert_eq!(
        decide(&gw, &id(&shown), json!({"confirm": true})).await.0,
        200
    );
    gw.join().await;
    let gw = start(&config, replies()).await;
    gw.plain(json!({})).await;
    assert_eq!(gw.servers[0].calls().len(), 1);
    gw.join().await;
}

/// A `tools/call` of an MCP client that is asked nothing.
async fn over_mcp(gw: &Toolway, arguments: &Value) -> Value {
    let params = json!({"name": "files__write", "arguments": arguments});
    call_over_mcp(gw, params, json!({})).await
}

/// A `tools/call` of an MCP client without a handshake that has these capabilities.
async fn call_over_mcp(gw: &Toolway, mut params: Value, capabilities: Value) -> Value {
    params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities});
    let name = params["name"].as_str().unwrap().to_owned();
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = gw.http.post(format!("{}/mcp", gw.base)).json(&message);
    let request = request
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", name);
    let text = request.send().await.unwrap().text().await.unwrap();
    let data = text.lines().find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(data.unwrap_or(&text)).unwrap()
}

#[tokio::test]
async fn a_call_waits_on_every_face_and_goes_through_on_each_once_after_the_yes() {
    let gw = start("[approvals]\nchat = \"end_turn\"", Vec::new()).await;
    let faces = ["tool_calls", "events", "tools", "mcp"];
    let call_on = async |face: &str| {
        let arguments = json!({"face": face});
        let text = arguments.to_string();
        let call = json!({"id": "c", "function": {"name": "files__write", "arguments": text}});
        let event = json!({"type": "tool_use_requested", "tool_call_id": "c", "tool": "files__write", "args": arguments});
        let post = async |path: &str, body| ask(&gw, Method::POST, path, "", Some(body)).await.1;
        let answer = match face {
            "tool_calls" => post("/v1/tool_calls", json!({"tool_calls": [call]})).await,
            "events" => post("/v1/events", event).await,
            "tools" => post("/tools/files__write", arguments).await,
            _ => over_mcp(&gw, &arguments).await,
        };
        answer.to_string()
    };
    for (n, face) in faces.into_iter().enumerate() {
        let waiting = call_on(face).await;
        let shown = pending(&gw).await;
        assert!(waiting.contains(&id(&shown)), "{face}: {waiting}");
        assert_eq!(gw.servers[0].calls().len(), n, "{face}");
        assert_eq!(
            decide(&gw, &id(&shown), json!({"confirm": true})).await.0,
            200
        );
        let made = call_on(face).await;
        assert_eq!(gw.servers[0].calls().len(), n + 1, "{face}: {made}");
        let again = call_on(face).await;
        assert_eq!(gw.servers[0].calls().len(), n + 1, "{face}: {again}");
        let shown = pending(&gw).await;
        assert_eq!(decide(&gw, &id(&shown), json!({})).await.0, 200);
    }
    gw.join().await;
}

#[tokio::test]
async fn a_call_over_rest_is_made_once_by_the_request_that_confirms_it() {
    let gw = start("", Vec::new()).await;
    let client = RequestClient {
        principal: 1,
        ..RequestClient::default()
    };
    let arguments = json!({"path": "/x"}).as_object().cloned().unwrap();
    let server = ServerId::parse("files").unwrap();
    let context = gw.gateway.rest_context(&server, client);
    let called = gw
        .gateway
        .call_over_rest(&context, "write", arguments)
        .await;
    let answer = called.map(RestOutcome::into_json).unwrap();
    assert_eq!(answer["requires_confirmation"], true);
    assert_eq!(
        (&answer["server_id"], &answer["tool_name"]),
        (&json!("files"), &json!("write"))
    );
    let waiting = id(&answer);
    let confirm = || decide(&gw, &waiting, json!({"confirm": true}));
    let (a, b, c) = tokio::join!(confirm(), confirm(), confirm());
    let made: Vec<_> = [a, b, c].into_iter().filter(|it| it.0 == 200).collect();
    assert_eq!(made.len(), 1);
    assert_eq!(made[0].1["content"][0]["text"], "{\"path\":\"/x\"}");
    assert_eq!(gw.servers[0].calls().len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn the_terminal_lists_approves_and_denies() {
    let replies = (0..3).flat_map(|n| [turn(json!({"n": n})), say("Ok.")]);
    let gw = start("[approvals]\nchat = \"end_turn\"", replies.collect()).await;
    let folder = tempfile::tempdir().unwrap();
    let run = async |args: &[&str]| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_toolway"));
        command
            .args(args)
            .args(["--url", &gw.base])
            .current_dir(folder.path());
        command.env_remove("TOOLWAY_CONFIG");
        let output = command.output().await.unwrap();
        let out = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(out).unwrap())
    };
    let nothing = (Some(0), "no call waits for approval\n".to_owned());
    assert_eq!(run(&["approvals"]).await, nothing);
    gw.plain(json!({})).await;
    let first = id(&pending(&gw).await);
    let (code, list) = run(&["approvals"]).await;
    assert_eq!(code, Some(0));
    assert!(
        list.contains(&first) && list.contains("{\"n\":0}"),
        "{list}"
    );
    assert!(list.contains("files need a yes"), "{list}");
    let (code, said) = run(&["approve", &first[..12], "--remember", "call"]).await;
    assert_eq!(
        (code, &*said),
        (Some(0), "approved: one call of files__write\n")
    );
    let (_, grants) = run(&["approvals", "--remembered"]).await;
    assert!(
        grants.trim_start().starts_with("grant_") && grants.contains("forever"),
        "{grants}"
    );
    let grant = grants.split_whitespace().next().unwrap();
    assert_eq!(run(&["approvals", "--revoke", grant]).await.0, Some(0));
    gw.plain(json!({})).await;
    let second = id(&pending(&gw).await);
    let (code, said) = run(&["deny", &second]).await;
    assert_eq!((code, &*said), (Some(0), "denied: files__write\n"));
    let (code, said) = run(&["approve", &second]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no call waits for approval as"), "{said}");
    gw.plain(json!({})).await;
    let (_, json) = run(&["approvals", "--json"]).await;
    let list: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(list["confirmations"][0]["arguments"], json!({"n": 2}));
    gw.join().await;
}

#[tokio::test]
async fn an_mcp_client_with_elicitation_is_asked_with_a_result_and_each_yes_is_for_one_call() {
    let gw = start("", Vec::new()).await;
    let begin = || json!({"name": "files__write", "arguments": {"path": "/x"}});
    let call = async |params| {
        let answer = call_over_mcp(&gw, params, json!({"elicitation": {}})).await;
        answer["result"].clone()
    };
    let again = |asked: &Value, answer: Value| {
        let mut params = begin();
        params["requestState"] = asked["requestState"].clone();
        params["inputResponses"] = json!({"approval": answer});
        params
    };
    let accept = |approve: Value| json!({"action": "accept", "content": {"approve": approve}});
    let asked = call(begin()).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let question = &asked["inputRequests"]["approval"];
    assert_eq!(question["method"], "elicitation/create");
    let message = question["params"]["message"].as_str().unwrap();
    assert!(
        message.contains("files__write") && message.contains("/x"),
        "{message}"
    );
    let put_off = call(again(&asked, json!({"action": "cancel"}))).await;
    assert_eq!(put_off["isError"], true, "{put_off}");
    let mut other = again(&asked, accept(json!(true)));
    other["arguments"] = json!({"path": "/y"});
    assert_eq!(call(other).await["isError"], true, "it is for another call");
    assert!(gw.servers[0].calls().is_empty());
    let made = call(again(&asked, accept(json!(true)))).await;
    assert_eq!(made["content"][0]["text"], "{\"path\":\"/x\"}", "{made}");
    let twice = call(again(&asked, accept(json!(true)))).await;
    assert_eq!(twice["isError"], true, "{twice}");
    assert_eq!(gw.servers[0].calls().len(), 1);
    let asked = call(begin()).await;
    let refused = call(again(&asked, accept(json!("true")))).await;
    assert_eq!(refused["isError"], true, "only true approves: {refused}");
    assert_eq!(gw.servers[0].calls().len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn a_state_that_toolway_never_gave_approves_nothing() {
    let (_folder, definitions) = definitions(&["weather"]);
    let config = format!(
        "[functions.town]\n{definitions}endpoint = \"http://127.0.0.1:9\"\n\
         [[policy.rules]]\ntools = [\"town__*\"]\naction = \"ask\"\n"
    );
    let gw = start(&config, Vec::new()).await;
    for state in ["toolway-parked:x", "toolway-approval:x"] {
        let call = async |name: &str| {
            let params = json!({"name": name, "arguments": {"city": "Bonn"}, "requestState": state,
                "inputResponses": {"approval": {"action": "accept", "content": {"approve": true}}}});
            call_over_mcp(&gw, params, json!({})).await.to_string()
        };
        call("files__write").await;
        assert!(gw.servers[0].calls().is_empty(), "{state}");
        let answer = call("town__weather").await;
        assert!(answer.contains("toolway approve"), "{state}: {answer}");
    }
    gw.join().await;
}
