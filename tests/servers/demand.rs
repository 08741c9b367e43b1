//! Servers that run while they are used, servers of several instances, and the queue before a server.

use std::time::Duration;

use serde_json::json;
use toolway::{health::ServerState, upstream::mcp::Config};
use toolway_protocol::tool::CallError;

use crate::harness::{PATIENCE, Rig, id, scripted, text};

fn on_demand(idle_stop: Duration) -> Config {
    Config {
        idle_stop: Some(idle_stop),
        ..scripted(json!({}))
    }
}

async fn until_idle(rig: &Rig) {
    rig.until("the server is stopped", |rig| {
        rig.health().state == ServerState::Idle
    })
    .await;
}

#[tokio::test]
async fn a_server_that_nothing_uses_is_stopped_and_the_next_call_starts_it() {
    let rig = Rig::start(vec![on_demand(Duration::from_millis(50))]).await;
    let tools = rig.tool_names();
    assert!(!tools.is_empty());
    until_idle(&rig).await;
    let health = rig.health();
    assert_eq!((health.pid, health.last_error), (None, None));
    assert_eq!(rig.tool_names(), tools, "its tools stay offered");
    assert_eq!(text(rig.act(json!({"x": 1})).await), "{\"x\":1}");
    until_idle(&rig).await;
    let calls: Vec<_> = (0..8).map(|n| rig.act_beside(json!({"n": n}))).collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(text(call.await.unwrap()), format!("{{\"n\":{n}}}"));
    }
    until_idle(&rig).await;
    assert_eq!(rig.health().restarts, 0, "that is no failure");
    rig.servers.shutdown().await;
}

#[tokio::test]
async fn a_server_that_is_busy_is_not_stopped() {
    let rig = Rig::start(vec![on_demand(Duration::from_millis(30))]).await;
    let flag = rig.dir.path().join("flag");
    let call = rig.act_beside(json!({"do": "wait", "file": flag}));
    rig.until("the call has begun", |rig| {
        rig.health().state == ServerState::Ready
    })
    .await;
    let pid = rig.health().pid;
    // Longer than it may be unused.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rig.health().pid, pid);
    std::fs::write(&flag, "").unwrap();
    assert!(call.await.unwrap().is_ok());
    until_idle(&rig).await;
    rig.servers.shutdown().await;
}

#[tokio::test]
async fn an_idle_server_is_started_by_a_restart_and_ends_with_toolway() {
    let rig = Rig::start(vec![on_demand(Duration::from_millis(500))]).await;
    until_idle(&rig).await;
    assert!(rig.servers.restart(&id("s")));
    rig.until("it runs again", |rig| rig.health().pid.is_some())
        .await;
    until_idle(&rig).await;
    tokio::time::timeout(PATIENCE, rig.servers.shutdown())
        .await
        .unwrap();
    assert_eq!(rig.health().state, ServerState::Stopped);
}

#[tokio::test]
async fn calls_go_to_the_instance_with_the_fewest() {
    let config = Config {
        instances: 3,
        parallel_calls: 1,
        ..scripted(json!({}))
    };
    let rig = Rig::start(vec![config]).await;
    assert_eq!(rig.servers.health().len(), 1, "it is one server");
    assert_eq!(
        rig.servers.subscribe().borrow().len(),
        1,
        "its tools are offered once"
    );
    let flag = rig.dir.path().join("flag");
    let waiting: Vec<_> = (0..2)
        .map(|_| rig.act_beside(json!({"do": "wait", "file": flag})))
        .collect();
    // Each instance runs one call at a time, so this one finds the third.
    assert_eq!(text(rig.act(json!({"x": 1})).await), "{\"x\":1}");
    std::fs::write(&flag, "").unwrap();
    for call in waiting {
        assert!(call.await.unwrap().is_ok());
    }
    assert!(rig.servers.remove(&id("s")).await);
    assert!(rig.servers.health().is_empty() && rig.servers.missing().is_empty());
    rig.servers.shutdown().await;
}

#[tokio::test]
async fn a_call_that_finds_no_place_in_the_queue_or_waits_too_long_is_busy() {
    for (queue, queue_wait) in [(0, None), (9, Some(Duration::from_millis(30)))] {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("record");
        let config = Config {
            parallel_calls: 1,
            queue,
            queue_wait,
            ..scripted(json!({"record": record}))
        };
        let rig = Rig::start(vec![config]).await;
        let flag = rig.dir.path().join("flag");
        let first = rig.act_beside(json!({"do": "wait", "file": flag}));
        let has_begun = |_: &Rig| {
            std::fs::read_to_string(&record).is_ok_and(|text| text.contains("tools/call"))
        };
        rig.until("the call has begun", has_begun).await;
        assert_eq!(rig.act(json!({})).await, Err(CallError::Busy));
        std::fs::write(&flag, "").unwrap();
        assert!(first.await.unwrap().is_ok());
        assert!(rig.act(json!({})).await.is_ok());
        rig.servers.shutdown().await;
    }
}
