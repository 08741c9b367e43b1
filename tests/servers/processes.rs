//! Child processes: what they get, what they say, and that nothing of them is left.

#[cfg(target_os = "linux")]
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::Instant;
use toolway::secret::Secret;
use toolway::upstream::mcp::Transport;

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

/// Children of this process that start a server each.
#[cfg(target_os = "linux")]
fn reapers() -> Vec<String> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().map(str::to_owned));
    }
    found.retain(|pid| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        command.is_ok_and(|it| it.contains("\0__child\0"))
    });
    found
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_whose_reaper_is_killed_is_started_again_and_leaves_nothing() {
    let (rig, pid) = with_grandchild(json!({"ignore_eof": true})).await;
    for reaper in reapers() {
        kill(&reaper, Signal::SIGKILL);
    }
    rig.until("the old grandchild is gone", |_| !is_running(&pid))
        .await;
    rig.until("the server is back", |rig| {
        rig.health().restarts == 1 && rig.health().state == toolway::health::ServerState::Ready
    })
    .await;
    assert_eq!(text(rig.act(json!({})).await), "{}");
}

#[cfg(target_os = "linux")]
fn kill(pid: &str, signal: Signal) {
    let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
    nix::sys::signal::kill(pid, signal).unwrap();
}

/// A toolway with a server that continues when its input is closed. It ignores SIGTERM, and so do a helper of its own and
/// one that has called `setsid` and lost its parent.
#[cfg(target_os = "linux")]
struct Stubborn {
    folder: tempfile::TempDir,
    toolway: std::process::Child,
}

#[cfg(target_os = "linux")]
impl Stubborn {
    const FILES: [&str; 3] = ["hidden", "helper", "server"];

    /// `before` is done in the shell that becomes toolway.
    fn start(before: &str) -> Stubborn {
        let folder = tempfile::tempdir().unwrap();
        let toolway = env!("CARGO_BIN_EXE_toolway");
        let script = format!(
            "trap '' TERM HUP; \
             (setsid sh -c 'sleep 1000 & echo $! > hidden.half; mv hidden.half hidden' &); \
             sleep 1000 & echo $! > helper.half; mv helper.half helper; \
             echo $$ > server.half; mv server.half server; {toolway} demo-server; sleep 1000"
        );
        let config = format!("[servers.x]\ncommand = 'sh'\nargs = ['-c', \"\"\"{script}\"\"\"]\n");
        std::fs::write(folder.path().join("toolway.toml"), config).unwrap();
        let toolway = std::process::Command::new("sh")
            .args([
                "-c",
                &format!("{before} exec {toolway} serve --bind 127.0.0.1:0 --data-dir data"),
            ])
            .current_dir(&folder)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut stubborn = Stubborn { folder, toolway };
        stubborn.until_logged("A server is ready");
        for file in Stubborn::FILES {
            let path = stubborn.folder.path().join(file);
            while !path.exists() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        stubborn
    }

    fn until_logged(&mut self, text: &str) {
        use std::io::BufRead;
        let stderr = self.toolway.stderr.take().unwrap();
        let mut log = std::io::BufReader::with_capacity(1, stderr);
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(
                log.read_line(&mut line).unwrap(),
                0,
                "`{text}` was not logged"
            );
        }
        self.toolway.stderr = Some(log.into_inner());
    }

    fn signal(&self, signal: Signal) {
        kill(&self.toolway.id().to_string(), signal);
    }

    /// How toolway has ended, once nothing of the server is left.
    #[track_caller]
    fn ended(mut self) -> std::process::ExitStatus {
        let status = self.toolway.wait().unwrap();
        let begun = Instant::now();
        for file in Stubborn::FILES {
            let pid = std::fs::read_to_string(self.folder.path().join(file)).unwrap();
            while is_running(pid.trim()) {
                assert!(
                    begun.elapsed() < crate::harness::PATIENCE,
                    "`{file}` was left running"
                );
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        status
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_toolway_that_is_killed_leaves_nothing_running() {
    for _ in 0..3 {
        let stubborn = Stubborn::start("");
        stubborn.signal(Signal::SIGKILL);
        assert_eq!(stubborn.ended().code(), None);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn every_signal_to_stop_leaves_nothing_running() {
    let signals = [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGHUP,
    ];
    std::thread::scope(|scope| {
        for signal in signals {
            scope.spawn(move || {
                let stubborn = Stubborn::start("");
                stubborn.signal(signal);
                assert_eq!(stubborn.ended().code(), Some(0), "{signal}");
            });
        }
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_that_is_closed_may_say_so_twice() {
    let mut stubborn = Stubborn::start("");
    stubborn.signal(Signal::SIGHUP);
    stubborn.until_logged("Stopping");
    stubborn.signal(Signal::SIGHUP);
    assert_eq!(stubborn.ended().code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn a_hangup_that_was_ignored_at_the_start_stays_ignored() {
    let stubborn = Stubborn::start("trap '' HUP;");
    stubborn.signal(Signal::SIGHUP);
    // Had the first one counted, this would be the second, which ends toolway at once with 130.
    stubborn.signal(Signal::SIGTERM);
    assert_eq!(stubborn.ended().code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_function_leaves_behind_goes_with_its_call() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let tool =
        json!({"type": "function", "function": {"name": "x", "parameters": {"type": "object"}}});
    write("f.json", &json!({"tools": [tool]}).to_string());
    let script = "setsid sh -c 'exec >&- 2>&-; sleep 1000 & echo $! > pid; mv pid helper' & \
        while [ ! -e helper ]; do sleep 0.01; done; cat helper; exit 3";
    write(
        "toolway.toml",
        &format!(
            "[functions.f]\ndefinitions = 'f.json'\ncommand = 'sh'\nargs = ['-c', \"{script}\"]\n"
        ),
    );
    let called = std::process::Command::new(env!("CARGO_BIN_EXE_toolway"))
        .args(["call", "f__x", "{}"])
        .current_dir(&folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&called.stdout) + String::from_utf8_lossy(&called.stderr);
    assert!(said.contains("exit status: 3"), "{said}");
    let pid = std::fs::read_to_string(folder.path().join("helper")).unwrap();
    let begun = Instant::now();
    while is_running(pid.trim()) {
        assert!(
            begun.elapsed() < crate::harness::PATIENCE,
            "it was left running"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
