//! Functions that are a program. The programs are scripts of `sh`, started without a shell between.

#![cfg(unix)]

use std::{fs, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;
use toolway_protocol::tool::{CallError, ToolResult};

use super::{check_failed, definitions};
use crate::{
    harness::{Toolway, eventually, toolway},
    model::{Model, PATIENCE},
};

/// A toolway whose functions `weather` and `mayor` are this script.
async fn town(script: &str, keys: &str) -> (Toolway, TempDir) {
    let (folder, file) = definitions(&["weather", "mayor"]);
    fs::write(folder.path().join("run.sh"), script).unwrap();
    let cwd = folder.path().display();
    let gw = toolway(Model::start([]).await)
        .config(&format!(
            "[functions.town]\n{file}command = 'sh'\nargs = ['run.sh', '{{function}}', '{{x}}']\ncwd = {:?}\n{keys}",
            cwd.to_string()
        ))
        .start()
        .await;
    (gw, folder)
}

async fn weather(gw: &Toolway) -> Result<ToolResult, CallError> {
    gw.gateway
        .call_tool("town__weather", r#"{"city": "Köln"}"#)
        .await
}

async fn outcome(script: &str, keys: &str) -> Result<ToolResult, CallError> {
    let (gw, _folder) = town(script, keys).await;
    let outcome = weather(&gw).await;
    gw.join().await;
    outcome
}

/// The process is gone, or a zombie whose parent has not looked yet.
fn is_gone(pid: &str) -> bool {
    let pid: i32 = pid.trim().parse().unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

#[tokio::test]
async fn arguments_come_on_standard_input_and_the_result_goes_to_standard_output() {
    let script = r#"printf '{"in": %s, "args": "%s %s", "var": "%s", "key": "%s"}\n' "$(cat)" "$1" "$2" "$TOOLWAY_FUNCTION" "$KEY""#;
    let result = outcome(script, "env = {KEY = 'k'}").await.unwrap();
    let said = json!({"in": {"city": "Köln"}, "args": "weather {x}", "var": "weather", "key": "k"});
    assert_eq!(result.structured_content, Some(said));
    assert!(!result.is_error);
    assert_eq!(
        outcome("echo sunny", "").await.unwrap(),
        ToolResult::text("sunny")
    );
}

#[tokio::test]
async fn the_environment_is_clean() {
    let result = outcome("env", "").await.unwrap();
    let text = format!("{:?}", result.content);
    assert!(text.contains("TOOLWAY_FUNCTION=weather"), "{text}");
    assert!(!text.contains("CARGO"), "{text}");
}

#[tokio::test]
async fn an_exit_code_and_standard_error_make_the_error() {
    let keys = "env = {KEY = 'secret-key'}";
    let script = "echo partial; echo \"no such city, $KEY\" >&2; echo more >&2; exit 3";
    check_failed(
        outcome(script, keys).await,
        "the command failed (exit status: 3): no such city, [redacted]",
    );
    check_failed(
        outcome("exit 1", "").await,
        "the command failed (exit status: 1)",
    );
    check_failed(
        outcome("kill -9 $$", "").await,
        "the command failed (signal: 9 (SIGKILL))",
    );
}

#[tokio::test]
async fn a_command_that_floods_is_stopped() {
    let keys = "max_response_bytes = 65536";
    let begun = Instant::now();
    check_failed(
        outcome("echo $$ > pid; yes", keys).await,
        "the result is larger than 65536 bytes, and the command was stopped",
    );
    assert!(begun.elapsed() < PATIENCE);
    let flood = outcome("yes nonsense >&2 & sleep 0.2; kill $!; echo fine", keys).await;
    assert_eq!(
        flood.unwrap(),
        ToolResult::text("fine"),
        "standard error has room"
    );
}

#[tokio::test]
async fn a_command_that_hangs_is_killed_with_all_that_it_started() {
    let script = "sleep 1000 & echo $! > child; echo $$ > pid; wait";
    let (gw, folder) = town(script, "timeout = '500ms'").await;
    let after = Duration::from_millis(500);
    assert_eq!(
        weather(&gw).await.unwrap_err(),
        CallError::Timeout { after }
    );
    for file in ["pid", "child"] {
        let pid = fs::read_to_string(folder.path().join(file)).unwrap();
        eventually("the end of the process", || is_gone(&pid)).await;
    }
    gw.join().await;
}

#[tokio::test]
async fn a_grandchild_that_holds_the_pipe_open_is_not_waited_for() {
    let script = "sleep 1000 & echo $! > child; echo done";
    let (gw, folder) = town(script, "timeout = '20s'").await;
    let begun = Instant::now();
    assert_eq!(weather(&gw).await.unwrap(), ToolResult::text("done"));
    assert!(begun.elapsed() < Duration::from_secs(10));
    let pid = fs::read_to_string(folder.path().join("child")).unwrap();
    eventually("the end of the grandchild", || is_gone(&pid)).await;
    gw.join().await;
}

#[tokio::test]
async fn a_command_that_ignores_its_input_is_fine() {
    let (gw, _folder) = town("exec 0<&-; echo sunny", "").await;
    let long = json!({"city": "x".repeat(1 << 20)}).to_string();
    let result = gw.gateway.call_tool("town__weather", &long).await.unwrap();
    assert_eq!(result, ToolResult::text("sunny"));
    gw.join().await;
}

#[tokio::test]
async fn a_long_input_and_a_long_output_do_not_wait_for_each_other() {
    let (gw, _folder) = town("cat", "").await;
    let long: Value = json!({"city": "x".repeat(1 << 20)});
    let result = gw
        .gateway
        .call_tool("town__weather", &long.to_string())
        .await
        .unwrap();
    assert_eq!(result.structured_content, Some(long));
    gw.join().await;
}

#[tokio::test]
async fn a_command_that_is_not_there_is_an_error_without_its_name() {
    let (_folder, file) = definitions(&["weather"]);
    let gw = toolway(Model::start([]).await)
        .config(&format!(
            "[functions.town]\n{file}command = '/no/such/program'"
        ))
        .start()
        .await;
    let error = weather(&gw).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the function's command cannot be started"
    );
    gw.join().await;
}
