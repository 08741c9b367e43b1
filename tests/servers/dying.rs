//! Servers that die, never start, or take their time.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use toolway::health::ServerState;
use toolway::upstream::mcp::{CallOptions, Transport};
use toolway_protocol::tool::CallError;

use crate::harness::{PATIENCE, Rig, id, options, scripted, text};

#[tokio::test]
async fn a_server_killed_in_the_middle_of_a_call_costs_that_call_only() {
    let rig = Rig::recording(json!({})).await;
    let hanging = rig.act_beside(json!({"do": "hang"}));
    rig.until("the call arrives", |rig| rig.recorded("tools/call") == 1)
        .await;
    let deadly = rig.act(json!({"do": "exit"})).await.unwrap_err();
    for error in [deadly, hanging.await.unwrap().unwrap_err()] {
        assert!(
            matches!(error, CallError::UpstreamUnavailable { unsent: false, .. }),
            "{error:?}"
        );
    }
    assert_eq!(
        rig.tool_names(),
        ["act"],
        "the last known tools stay offered"
    );
    // A call waits for the server to come back.
    assert_eq!(text(rig.act(json!({})).await), "{}");
    let health = rig.health();
    assert_eq!((health.state, health.restarts), (ServerState::Ready, 1));
    assert!(
        health
            .last_error
            .is_some_and(|error| error.contains("exit status: 7"))
    );
}

#[tokio::test]
async fn a_server_that_dies_again_and_again_comes_back_each_time() {
    let rig = Rig::scripted(json!({})).await;
    for restarts in 1..4 {
        rig.act(json!({"do": "exit"})).await.unwrap_err();
        rig.until("it is back", |rig| {
            let health = rig.health();
            health.state == ServerState::Ready && health.restarts == restarts
        })
        .await;
    }
}

#[tokio::test]
async fn a_missing_program_is_a_failure_that_holds_nobody_up() {
    let mut missing = scripted(json!({}));
    missing.server = id("missing");
    missing.transport = Transport::Stdio {
        command: "/no/such/program".to_owned(),
        args: Vec::new(),
        env: Vec::new(),
        cwd: None,
        isolation: None,
    };
    let rig = Rig::start(vec![missing, scripted(json!({}))]).await;
    let health = rig.health();
    assert_eq!(health.state, ServerState::Failed);
    assert!(
        health
            .last_error
            .is_some_and(|error| error.contains("cannot be started"))
    );
    assert_eq!(text(rig.act(json!({})).await), "{}");

    let soon = Instant::now() + Duration::from_millis(200);
    let options = CallOptions {
        deadline: soon,
        ..options()
    };
    let server = id("missing");
    let error = rig
        .servers
        .call(&server, "x", Default::default(), options)
        .await
        .unwrap_err();
    assert!(
        matches!(error, CallError::UpstreamUnavailable { unsent: true, .. }),
        "{error:?}"
    );
    assert!(
        !error.to_string().contains("/no/such"),
        "the model does not hear of programs"
    );
}

#[tokio::test]
async fn a_slow_server_holds_nobody_up() {
    let mut slow = scripted(json!({"start_delay_ms": 600_000}));
    slow.server = id("slow");
    let rig = Rig::start_without_waiting(vec![slow, scripted(json!({}))]);
    assert_eq!(text(rig.act(json!({})).await), "{}");
    assert_eq!(rig.health().state, ServerState::Starting);
    rig.servers.shutdown().await;
}

#[tokio::test]
async fn a_server_that_never_gets_ready_has_failed_after_its_time() {
    let mut config = scripted(json!({"initialize": "silent", "unknown": "silent"}));
    config.start_timeout = Duration::from_secs(3);
    let rig = Rig::start(vec![config]).await;
    let error = rig.health().last_error.unwrap_or_default();
    assert_eq!(error, "the server did not answer in 3 s");
}

#[tokio::test]
async fn a_server_that_refuses_says_why() {
    let rig = Rig::start(vec![scripted(json!({"versions": []}))]).await;
    let error = rig.health().last_error.unwrap_or_default();
    assert!(error.contains("no handshake here"), "{error}");
}

#[tokio::test]
async fn an_unknown_server_is_an_unknown_tool() {
    let rig = Rig::scripted(json!({})).await;
    let nobody = id("nobody");
    let error = rig
        .servers
        .call(&nobody, "x", Default::default(), options())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "unknown_tool");
}

#[tokio::test]
async fn after_the_shutdown_calls_fail_at_once() {
    let rig = Rig::scripted(json!({})).await;
    let hanging = rig.act_beside(json!({"do": "hang"}));
    tokio::task::yield_now().await;
    rig.servers.shutdown().await;
    hanging.await.unwrap().unwrap_err();
    let before = Instant::now();
    let error = rig.act(json!({})).await.unwrap_err();
    assert_eq!(error.kind(), "upstream_unavailable");
    assert!(
        before.elapsed() < Duration::from_secs(4),
        "nobody waits for a stopped server"
    );
    assert!(before.elapsed() < PATIENCE);
}
