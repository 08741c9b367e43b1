//! Servers of every age start, are listed, and never keep each other waiting.

use serde_json::{Value, json};
use toolway::health::ServerState;

use crate::harness::{Rig, scripted, text};

fn named(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}})
}

#[tokio::test]
async fn a_server_is_started_listed_and_called() {
    let rig = Rig::scripted(json!({})).await;
    assert_eq!(rig.tool_names(), ["act"]);
    assert_eq!(
        text(rig.act(json!({"do": "echo", "a": 1})).await),
        r#"{"do":"echo","a":1}"#
    );
    let health = rig.health();
    assert_eq!(
        (health.transport, health.tools, health.restarts),
        ("stdio", 1, 0)
    );
    rig.servers.shutdown().await;
    assert_eq!(rig.health().state, ServerState::Stopped);
}

#[tokio::test]
async fn every_handshake_version_is_spoken() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let rig = Rig::scripted(json!({"versions": [version]})).await;
        assert_eq!(rig.health().protocol_version.as_deref(), Some(version));
        assert_eq!(text(rig.act(json!({})).await), "{}");
    }
}

#[tokio::test]
async fn a_server_that_speaks_both_is_spoken_to_in_the_newest() {
    let rig = Rig::scripted(json!({"modern": true})).await;
    assert_eq!(rig.health().protocol_version.as_deref(), Some("2026-07-28"));
    assert_eq!(text(rig.act(json!({})).await), "{}");
}

#[tokio::test]
async fn a_modern_server_that_starts_slowly_is_still_spoken_to_in_the_newest() {
    let script = json!({"modern": true, "versions": [], "start_delay_ms": 3000});
    let rig = Rig::scripted(script).await;
    assert_eq!(rig.health().protocol_version.as_deref(), Some("2026-07-28"));
}

#[tokio::test]
async fn an_old_server_that_is_silent_on_unknown_methods_does_not_stall() {
    let started = tokio::time::Instant::now();
    let rig = Rig::scripted(json!({"unknown": "silent"})).await;
    assert_eq!(text(rig.act(json!({})).await), "{}");
    assert!(
        started.elapsed().as_secs() < 8,
        "rmcp alone would take 10 s"
    );
}

#[tokio::test]
async fn an_old_server_that_dies_of_unknown_methods_is_reached() {
    let rig = Rig::scripted(json!({"unknown": "exit"})).await;
    assert_eq!(text(rig.act(json!({})).await), "{}");
    assert_eq!(rig.health().restarts, 0);
}

#[tokio::test]
async fn a_broken_tool_costs_only_itself() {
    let tools = json!([named("a"), {"name": "b"}, {"name": "c", "inputSchema": true}, named("d")]);
    let rig = Rig::scripted(json!({"tools": tools})).await;
    assert_eq!(rig.tool_names(), ["a", "d"]);
    let dropped = rig.listed().dropped;
    let dropped: Vec<_> = dropped.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(dropped, ["b", "c"]);
}

#[tokio::test]
async fn a_list_is_read_to_its_last_page() {
    let tools: Vec<_> = (0..7).map(|n| named(&format!("t{n}"))).collect();
    let rig = Rig::scripted(json!({"tools": tools, "page": 3})).await;
    assert_eq!(rig.tool_names().len(), 7);
}

#[tokio::test]
async fn a_list_that_runs_in_a_circle_is_a_failure() {
    let rig = Rig::start(vec![scripted(json!({"circle": true}))]).await;
    let health = rig.health();
    assert_eq!(health.state, ServerState::Failed);
    assert!(
        health
            .last_error
            .is_some_and(|error| error.contains("circle"))
    );
}

#[tokio::test]
async fn a_server_without_tools_is_ready() {
    let rig = Rig::scripted(json!({"no_tools": true})).await;
    assert_eq!(rig.health().state, ServerState::Ready);
    assert!(rig.tool_names().is_empty());
}

#[tokio::test]
async fn a_careless_handshake_is_enough() {
    let rig = Rig::scripted(json!({"initialize": "careless"})).await;
    assert_eq!(rig.tool_names(), ["act"]);
}

#[tokio::test]
async fn a_tool_that_is_nested_too_deep_costs_only_itself() {
    let rig = Rig::scripted(json!({"deep": 240})).await;
    assert_eq!(rig.tool_names(), ["act"]);
    let dropped = rig.listed().dropped.remove(0);
    assert_eq!(dropped.name, "deep");
    assert_eq!(dropped.reason, "it is nested more than 100 levels deep");
}
