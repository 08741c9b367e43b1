//! Results that serve again in later requests.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, Reply, call, say},
    tools::{Does, tools},
};

fn listed(name: &str, annotations: Value) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}, "annotations": annotations})
}

fn result(more: Value) -> Does {
    let mut result = json!({"content": [{"type": "text", "text": "4 °C"}]});
    let more = more.as_object().unwrap().clone();
    result.as_object_mut().unwrap().extend(more);
    Does::Answers(result)
}

/// Server `s`: read-only tools whose results serve again for one client, for all, for 50 ms and not at all; `get` does
/// not say what it does; `write` changes things. Server `t` has a `write` as well.
async fn start(replies: Vec<Reply>, config: &str) -> Toolway {
    let read_only = || json!({"readOnlyHint": true});
    let hour = 3_600_000;
    let s = tools()
        .listed(listed("own", read_only()), result(json!({"ttlMs": hour})))
        .listed(
            listed("public", read_only()),
            result(json!({"ttlMs": hour, "cacheScope": "public"})),
        )
        .listed(listed("short", read_only()), result(json!({"ttlMs": 50})))
        .listed(listed("look", read_only()), result(json!({})))
        .listed(
            listed("failing", read_only()),
            result(json!({"isError": true, "ttlMs": hour})),
        )
        .listed(listed("get", json!({})), result(json!({"ttlMs": hour})))
        .listed(
            listed("write", json!({"readOnlyHint": false})),
            result(json!({"ttlMs": hour})),
        );
    let t = tools().listed(
        listed("write", json!({"destructiveHint": true})),
        Does::Echoes,
    );
    let gw = toolway(Model::start(replies).await).config(config);
    gw.server("s", s).server("t", t).start().await
}

/// Runs a tool as the client with this key.
async fn run(gw: &Toolway, tool: &str, key: &str, arguments: &str) -> String {
    let request = gw.http.post(format!("{}/tools/{tool}", gw.base));
    let request = request.bearer_auth(key).body(arguments.to_owned());
    request.send().await.unwrap().text().await.unwrap()
}

/// How many of these two calls reach the server.
async fn reach(gw: &Toolway, tool: &str, calls: [(&str, &str); 2]) -> usize {
    let before = gw.servers[0].calls().len();
    let mut results = Vec::new();
    for (key, arguments) in calls {
        results.push(run(gw, tool, key, arguments).await);
    }
    assert_eq!(results[0], results[1]);
    assert!(results[0].contains("4 °C"), "{}", results[0]);
    gw.servers[0].calls().len() - before
}

#[tokio::test]
async fn a_result_serves_again_as_its_server_says() {
    let gw = start(Vec::new(), "").await;
    let same = [("one", r#"{"a":1,"b":2}"#), ("one", r#"{"b":2,"a":1}"#)];
    let others = [("one", r#"{"a":1}"#), ("two", r#"{"a":1}"#)];
    let different = [("one", r#"{"a":2}"#), ("one", r#"{"a":3}"#)];
    for (tool, calls, expected) in [
        ("s__own", same, 1),
        ("s__own", others, 2),
        ("s__own", different, 2),
        ("s__public", same, 1),
        ("s__public", others, 1),
        // Its server says nothing, it failed, or it does not say that it changes nothing.
        ("s__look", same, 2),
        ("s__failing", same, 2),
        ("s__get", same, 2),
        ("s__write", same, 2),
    ] {
        assert_eq!(reach(&gw, tool, calls).await, expected, "{tool} {calls:?}");
    }
    gw.join().await;
}

#[tokio::test]
async fn the_configuration_decides_before_the_server_does() {
    let config = "[servers.s.cache]\n\"*\" = \"1h\"\nown = \"0s\"\n";
    let gw = start(Vec::new(), config).await;
    let same = [("one", "{}"), ("one", "{}")];
    let others = [("three", "{}"), ("four", "{}")];
    for (tool, calls, expected) in [
        ("s__look", same, 1),
        ("s__get", same, 1),
        ("s__get", others, 2),
        ("s__own", same, 2),
        ("s__failing", same, 2),
        ("s__write", same, 2),
    ] {
        assert_eq!(reach(&gw, tool, calls).await, expected, "{tool} {calls:?}");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_result_serves_no_longer_than_it_may() {
    let gw = start(Vec::new(), "").await;
    run(&gw, "s__short", "one", "{}").await;
    let mut requests = 0;
    while gw.servers[0].calls().len() < 2 {
        run(&gw, "s__short", "one", "{}").await;
        requests += 1;
        assert!(requests < 100_000, "the result does not expire");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_may_change_something_ends_the_results_of_its_server() {
    let gw = start(Vec::new(), "").await;
    let calls = async || {
        run(&gw, "s__public", "one", "{}").await;
        gw.servers[0].calls().len()
    };
    assert_eq!(calls().await, 1);
    run(&gw, "t__write", "two", "{}").await;
    run(&gw, "s__look", "two", "{}").await;
    assert_eq!(
        calls().await,
        2,
        "neither another server nor a read changes it"
    );
    run(&gw, "s__write", "two", "{}").await;
    assert_eq!(calls().await, 4);
    gw.join().await;
}

/// The same as an MCP client.
async fn run_over_mcp(gw: &Toolway, tool: &str) {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}});
    let params = json!({"name": tool, "arguments": {}, "_meta": meta});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = gw.http.post(format!("{}/mcp", gw.base)).json(&message);
    let request = request
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", tool);
    let answer = request.send().await.unwrap().text().await.unwrap();
    assert!(answer.contains("4 °C"), "{answer}");
}

#[tokio::test]
async fn a_read_during_which_something_changed_is_not_kept() {
    let read_only = json!({"readOnlyHint": true});
    let s = tools()
        .listed(listed("look", read_only), Does::Holds)
        .listed(listed("write", json!({})), Does::Echoes);
    let config = "[servers.s.cache]\nlook = \"1h\"\n";
    let gw = toolway(Model::start(Vec::new()).await).config(config);
    let gw = gw.server("s", s).start().await;
    let first = async {
        let _ = run(&gw, "s__look", "one", "{}").await;
    };
    let change = async {
        gw.servers[0].was_called(1).await;
        run(&gw, "s__write", "two", "{}").await;
        gw.servers[0].let_go();
    };
    tokio::join!(first, change);
    for _ in 0..2 {
        run(&gw, "s__look", "one", "{}").await;
    }
    assert_eq!(gw.servers[0].calls().len(), 3, "the last was kept");
    gw.join().await;
}

#[tokio::test]
async fn a_chat_gets_kept_results() {
    let read = || call(&[("call_1", "s__public", json!({}))]);
    let replies = vec![read(), say("Cold."), read(), say("Still cold.")];
    let gw = start(replies, "").await;
    assert_eq!(gw.streamed(json!({})).await.text(), "Cold.");
    assert_eq!(gw.streamed(json!({})).await.text(), "Still cold.");
    assert_eq!(gw.servers[0].calls().len(), 1);
    let told = gw.model.messages(3);
    assert_eq!(told.last().unwrap()["content"], "4 °C");
    gw.join().await;
}

#[tokio::test]
async fn calls_of_mcp_clients_reach_their_server_and_their_changes_count() {
    let gw = start(Vec::new(), "").await;
    let read = async || run(&gw, "s__public", "one", "{}").await;
    let calls = || gw.servers[0].calls().len();
    read().await;
    run_over_mcp(&gw, "s__public").await;
    assert_eq!(calls(), 2);
    read().await;
    assert_eq!(calls(), 2);
    run_over_mcp(&gw, "s__write").await;
    read().await;
    assert_eq!(calls(), 4);
    gw.join().await;
}
