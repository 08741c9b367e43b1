//! Child processes: what they get, what they say, and that nothing of them is left.

use serde_json::json;
use tokio::time::Instant;
use toolway::{secret::Secret, upstream::mcp::Transport};

use crate::harness::{Rig, scripted, text};

/// A process runs: it is there, and not merely waiting to be reaped.
#[cfg(target_os = "linux")]
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

#[cfg(target_os = "linux")]
async fn with_grandchild(script: serde_json::Value) -> (Rig, String) {
    let mut rig = Rig::start(Vec::new()).await;
    let file = rig.dir.path().join("grandchild");
    let mut script = script;
    script["grandchild"] = json!(file);
    rig.servers = toolway::upstream::mcp::Servers::start(vec![scripted(script)]).into();
    rig.servers.settled().await;
    let pid = std::fs::read_to_string(file).expect("the grandchild was started");
    assert!(is_running(&pid));
    (rig, pid)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_grandchild_is_gone_after_the_shutdown() {
    let (rig, pid) = with_grandchild(json!({})).await;
    rig.servers.shutdown().await;
    rig.until("the grandchild is gone", |_| !is_running(&pid))
        .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_grandchild_is_gone_when_the_servers_are_dropped() {
    let (mut rig, pid) = with_grandchild(json!({})).await;
    rig.servers = toolway::upstream::mcp::Servers::start(Vec::new()).into();
    rig.until("the grandchild is gone", |_| !is_running(&pid))
        .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_grandchild_is_gone_before_its_server_is_started_again() {
    let (rig, pid) = with_grandchild(json!({})).await;
    rig.act(json!({"do": "exit"})).await.unwrap_err();
    assert_eq!(text(rig.act(json!({})).await), "{}");
    rig.until("the old grandchild is gone", |_| !is_running(&pid))
        .await;
}

#[tokio::test]
async fn a_server_that_ignores_the_end_of_its_input_is_stopped_all_the_same() {
    let rig = Rig::scripted(json!({"ignore_eof": true})).await;
    let before = Instant::now();
    rig.servers.shutdown().await;
    assert!(before.elapsed().as_secs() < 10);
}

#[tokio::test]
async fn a_child_gets_a_clean_environment() {
    let mut config = scripted(json!({}));
    let Transport::Stdio { env, .. } = &mut config.transport else {
        unreachable!()
    };
    env.push(("TOOLWAY_TEST".to_owned(), Secret::new("1")));
    let rig = Rig::start(vec![config]).await;
    let names = text(rig.act(json!({"do": "env"})).await);
    assert!(
        names.contains("TOOLWAY_TEST") && names.contains("PATH"),
        "{names}"
    );
    // Cargo sets this for the test itself.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert!(!names.contains("CARGO"), "{names}");
}

#[tokio::test]
async fn the_last_lines_of_standard_error_are_known_and_hold_no_secret() {
    let lines: Vec<_> = (0..30).map(|n| format!("line {n} s3cret-token")).collect();
    let mut config = scripted(json!({"stderr": lines}));
    let Transport::Stdio { env, .. } = &mut config.transport else {
        unreachable!()
    };
    env.push(("TOKEN".to_owned(), Secret::new("s3cret-token")));
    let rig = Rig::start(vec![config]).await;
    rig.until("all was read", |rig| {
        rig.health()
            .stderr_tail
            .last()
            .is_some_and(|line| line == "line 29 [redacted]")
    })
    .await;
    assert_eq!(rig.health().stderr_tail.len(), 20);
}

#[tokio::test]
async fn the_last_words_of_a_dying_server_are_known() {
    let rig = Rig::scripted(json!({})).await;
    let words = "x".repeat(400);
    for n in 0..3 {
        let last = format!("{words} {n}");
        rig.act(json!({"do": "exit", "stderr": last}))
            .await
            .unwrap_err();
        rig.until("the server is back", |rig| rig.health().restarts == n + 1)
            .await;
        assert_eq!(rig.health().stderr_tail.last(), Some(&last));
    }
}
