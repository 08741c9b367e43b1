use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::mcp::{
    client::{Client, act, request},
    harness::{acting, scripted, tuned},
};

/// A call that tells how far it is.
fn progressing(id: i64, arguments: Value) -> Value {
    let mut call = act(id, arguments);
    call["params"]["_meta"] = json!({"progressToken": format!("p{id}")});
    call
}

#[tokio::test]
async fn what_comes_before_the_result_makes_the_answer_a_stream() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let mut stream = client
        .stream(progressing(1, json!({"do": "progress", "steps": 2})))
        .await;
    let first = stream.method("notifications/progress").await;
    assert_eq!(
        first,
        json!({"progressToken": "p1", "progress": 1, "total": 2, "message": "step 1"})
    );
    assert_eq!(
        (stream.primers, stream.retry),
        (1, Some(1000)),
        "the stream begins with a primer"
    );
    stream.method("notifications/progress").await;
    let answer = stream.next().await.unwrap();
    assert_eq!(
        (&answer["id"], &answer["result"]["content"][0]["text"]),
        (&json!(1), &json!("done"))
    );
    assert_eq!(stream.next().await, None);
    gw.join().await;
}

#[tokio::test]
async fn older_clients_get_no_primer() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-06-18", json!({})).await;
    let mut stream = client
        .stream(progressing(1, json!({"do": "progress"})))
        .await;
    assert_eq!(stream.rest().await.len(), 4);
    assert_eq!((stream.primers, stream.retry), (0, None));
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_reads_no_streams_gets_the_result_alone() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({"roots": {}})).await;
    let client = client.with("accept", "application/json");
    let result = client.call(progressing(1, json!({"do": "progress"}))).await;
    assert_eq!(result["content"][0]["text"], "done");
    let asked = client
        .call(act(2, json!({"do": "ask", "method": "roots/list"})))
        .await;
    assert!(
        asked["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("error"),
        "{asked}"
    );
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_reads_only_streams_gets_one() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let client = client.with("accept", "text/event-stream");
    let rest = client.stream(act(1, json!({}))).await.rest().await;
    assert_eq!((rest.len(), &rest[0]["id"]), (1, &json!(1)));
    gw.join().await;
}

#[tokio::test]
async fn an_answer_that_takes_its_time_is_a_stream_with_comments() {
    let gw = tuned(&scripted("s", json!({})), |config| {
        config.mcp.stream_after = Duration::from_millis(1);
        config.mcp.keepalive = Duration::from_millis(1);
    })
    .await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let call = act(1, json!({"do": "wait", "file": file}));
    let response = client
        .build(reqwest::Method::POST)
        .body(call.to_string())
        .send()
        .await
        .unwrap();
    let mut response = response;
    let mut text = String::new();
    while !text.contains(":\n\n:\n\n") {
        text.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
    }
    fs::write(file, "").unwrap();
    while let Some(chunk) = response.chunk().await.unwrap() {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.contains("waited"), "{text}");
    gw.join().await;
}

#[tokio::test]
async fn a_server_asks_the_client_on_the_stream_of_its_request() {
    let both = scripted("s", json!({})) + &scripted("t", json!({}));
    let gw = crate::mcp::harness::toolway(&both).await;
    let client = Client::begin(
        &gw,
        "2025-11-25",
        json!({"elicitation": {}, "sampling": {}, "roots": {}}),
    )
    .await;
    let params = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}, "x-new": 1});
    let ask = |id, method: &str| act(id, json!({"do": "ask", "method": method, "params": params}));
    let mut of_the_other = ask(2, "roots/list");
    of_the_other["params"]["name"] = "t__act".into();
    let (mut one, mut other) = tokio::join!(
        client.stream(ask(1, "elicitation/create")),
        client.stream(of_the_other),
    );
    let (asked, also_asked) = (one.next().await.unwrap(), other.next().await.unwrap());
    assert_eq!(
        (&asked["method"], &asked["params"]),
        (&json!("elicitation/create"), &params)
    );
    assert_eq!(also_asked["method"], "roots/list");
    let elsewhere = Client::begin(&gw, "2025-11-25", json!({})).await;
    for (client, id, result) in [
        (&elsewhere, &asked["id"], "stolen"),
        (&client, &also_asked["id"], "roots"),
        (&client, &asked["id"], "me"),
        (&client, &asked["id"], "again"),
    ] {
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"action": result}});
        assert_eq!(client.post(answer).await.status, 202);
    }
    for (stream, expected) in [(&mut one, "me"), (&mut other, "roots")] {
        let answer = stream.next().await.unwrap();
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(
            text.contains(&format!(r#""action":"{expected}""#)),
            "{answer}"
        );
    }
    gw.join().await;
}

#[tokio::test]
async fn who_cannot_be_asked_is_not() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({"roots": {}})).await;
    let ask = act(
        1,
        json!({"do": "ask", "method": "sampling/createMessage", "params": {}}),
    );
    let result = client.call(ask).await;
    assert!(
        result["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("error"),
        "{result}"
    );
    gw.join().await;
}

#[tokio::test]
async fn a_cancelled_request_has_no_answer_and_its_tool_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let gw = crate::mcp::harness::toolway(&scripted("s", json!({"record": record}))).await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let mut stream = client
        .stream(progressing(1, json!({"do": "progress", "and_hang": true})))
        .await;
    stream.method("notifications/progress").await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "enough"}});
    assert_eq!(client.post(cancel).await.status, 202);
    let rest = stream.rest().await;
    assert!(
        rest.iter()
            .all(|it| it["method"] == "notifications/progress"),
        "{rest:?}"
    );
    let deadline = tokio::time::Instant::now() + crate::mcp::harness::PATIENCE;
    while !fs::read_to_string(&record)
        .unwrap()
        .contains("notifications/cancelled")
    {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gw.join().await;
}

#[tokio::test]
async fn a_stream_that_was_lost_is_taken_up_again_and_nothing_is_said_twice() {
    let gw = acting().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let told = json!({"method": "notifications/message", "params": {"level": "info", "data": "x"}});
    let mut lost = client
        .stream(progressing(1, json!({"do": "progress", "steps": 3})))
        .await;
    lost.method("notifications/progress").await;
    let last = lost.last_id.clone().unwrap();
    drop((lost, told, file));
    let mut again = client.with("last-event-id", &last).listen().await;
    let rest = again.rest().await;
    let steps: Vec<_> = rest
        .iter()
        .filter_map(|it| it["params"]["progress"].as_u64())
        .collect();
    assert_eq!(steps, [2, 3]);
    assert_eq!(rest.last().unwrap()["result"]["content"][0]["text"], "done");
    // And once more from the start: it is kept for a while.
    let start = format!("{}-0", last.split_once('-').unwrap().0);
    assert_eq!(
        client
            .with("last-event-id", &start)
            .listen()
            .await
            .rest()
            .await
            .len(),
        4
    );
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_cancels_nothing_in_a_session() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let gw = crate::mcp::harness::toolway(&scripted("s", json!({"record": record}))).await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let go = folder.path().join("go");
    let call = act(1, json!({"do": "wait", "file": go}));
    let sending = tokio::spawn(
        client
            .build(reqwest::Method::POST)
            .body(call.to_string())
            .send(),
    );
    until(&record, "tools/call").await;
    sending.abort();
    let _ = sending.await;
    assert_eq!(client.post(request(2, "ping", json!({}))).await.status, 200);
    fs::write(go, "").unwrap();
    client.call(act(3, json!({}))).await;
    assert!(
        !fs::read_to_string(&record)
            .unwrap()
            .contains("notifications/cancelled")
    );
    gw.join().await;
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

/// One more tool, and the list says so.
fn change(id: i64) -> Value {
    let tools = json!([{"name": "act", "inputSchema": {"type": "object"}}, {"name": format!("act{id}"), "inputSchema": {"type": "object"}}]);
    act(id, json!({"do": "change", "tools": tools}))
}

#[tokio::test]
async fn what_happens_is_told_on_get_and_what_was_missed_is_told_later() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let mut unasked = client.listen().await;
    client.call(change(1)).await;
    unasked.method("notifications/tools/list_changed").await;
    let last = unasked.last_id.clone().unwrap();
    drop(unasked);
    gw.until_open(1, 0).await;
    client.call(change(2)).await;
    let mut again = client.with("last-event-id", &last).listen().await;
    again.method("notifications/tools/list_changed").await;
    let tools = client.call(request(3, "tools/list", json!({}))).await;
    assert_eq!(tools["tools"][1]["name"], "s__act2");
    gw.join().await;
}

#[tokio::test]
async fn a_second_get_takes_the_place_of_the_first() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let mut first = client.listen().await;
    let mut second = client.listen().await;
    assert_eq!(first.next().await, None);
    client.call(change(1)).await;
    second.method("notifications/tools/list_changed").await;
    gw.join().await;
}

#[tokio::test]
async fn changes_of_a_resource_are_told_to_those_who_subscribed() {
    let script = json!({"results": {"resources/list": {"resources": [{"uri": "a:b", "name": "b"}]}, "resources/subscribe": {}, "resources/unsubscribe": {}},
        "capabilities": {"tools": {}, "resources": {"subscribe": true}}});
    let gw = crate::mcp::harness::toolway(&scripted("s", script)).await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let other = Client::begin(&gw, "2025-11-25", json!({})).await;
    let (mut told, mut not_told) = (client.listen().await, other.listen().await);
    let uri = client.resource().await;
    client
        .call(request(2, "resources/subscribe", json!({"uri": uri})))
        .await;
    let update = json!({"do": "notify", "method": "notifications/resources/updated", "params": {"uri": "a:b"}});
    client.call(act(3, update)).await;
    assert_eq!(
        told.method("notifications/resources/updated").await["uri"],
        uri
    );
    client.call(change(4)).await;
    not_told.method("notifications/tools/list_changed").await;
    told.method("notifications/tools/list_changed").await;
    let unknown = client
        .post(request(
            5,
            "resources/subscribe",
            json!({"uri": "toolway://nobody/x"}),
        ))
        .await;
    assert_eq!(unknown.refusal().0, 200);
    gw.join().await;
}

#[tokio::test]
async fn streams_end_when_toolway_stops() {
    let mut gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let mut unasked = client.listen().await;
    let begun = tokio::time::Instant::now();
    gw.stop();
    assert_eq!(unasked.next().await, None);
    gw.join().await;
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "nothing was waited for"
    );
}

#[tokio::test]
async fn a_session_that_is_ended_ends_its_streams() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let mut unasked = client.listen().await;
    let mut working = client
        .stream(progressing(1, json!({"do": "progress", "and_hang": true})))
        .await;
    working.next().await;
    assert_eq!(client.send(reqwest::Method::DELETE).await.status, 204);
    assert_eq!(unasked.next().await, None);
    assert!(working.rest().await.iter().all(|it| it["result"].is_null()));
    gw.until_open(0, 0).await;
    gw.join().await;
}

#[tokio::test]
async fn a_session_that_is_ended_ends_a_call_that_is_no_stream_yet() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let toml = format!(
        "[loop]\ntool_timeout = \"2s\"\n{}",
        scripted("s", json!({"record": record}))
    );
    let gw =
        crate::mcp::harness::tuned(&toml, |it| it.mcp.stream_after = Duration::from_secs(60)).await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.post(act(1, json!({"do": "hang"}))).await }
    });
    until(&record, "tools/call").await;
    assert_eq!(client.send(reqwest::Method::DELETE).await.status, 204);
    assert_eq!(call.await.unwrap().refusal(), (404, -32001));
    until(&record, "notifications/cancelled").await;
    gw.join().await;
}
