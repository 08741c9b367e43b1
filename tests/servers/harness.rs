//! What every test here needs: servers started from a script, and calls on them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};
use toolway::health::{ServerHealth, ServerState};
use toolway::upstream::mcp::{CallOptions, Config, Servers, Transport};
use toolway_core::catalog::ServerTools;
use toolway_protocol::tool::{CallError, Content, ServerId, ToolResult};

/// Longer than anything here takes on a machine that is busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Servers under test, and a folder for their files.
pub(crate) struct Rig {
    pub(crate) servers: Arc<Servers>,
    pub(crate) dir: TempDir,
}

/// The configuration of a scripted server named `s`.
pub(crate) fn scripted(script: Value) -> Config {
    // As the program itself does it.
    #[cfg(unix)]
    toolway::upstream::reaper::enable(env!("CARGO_BIN_EXE_toolway"));
    Config {
        server: id("s"),
        transport: Transport::Stdio {
            command: scripted_server().display().to_string(),
            args: vec![script.to_string()],
            env: Vec::new(),
            cwd: None,
            isolation: None,
        },
        stateful: false,
        start_timeout: PATIENCE,
        idle_stop: None,
        instances: 1,
        parallel_calls: 16,
        queue: toolway::upstream::MAX_WAITING,
        queue_wait: None,
        max_message_bytes: 16 << 20,
        risk: Default::default(),
        cache: toolway_core::route::cache::CacheRules::default(),
        required: false,
        tools: Default::default(),
    }
}

/// The scripted server that cargo built beside this test.
pub(crate) fn scripted_server() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let path = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in deps")
        .join("examples");
    let path = path.join(format!("scripted_server{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "{} is not there; `cargo test` builds it, `cargo build --example scripted_server` too",
        path.display()
    );
    path
}

pub(crate) fn id(name: &str) -> ServerId {
    ServerId::parse(name).expect("the name is a server's name")
}

impl Rig {
    /// Starts these servers and waits until each is ready or has failed.
    pub(crate) async fn start(configs: Vec<Config>) -> Rig {
        let rig = Rig::start_without_waiting(configs);
        timeout(PATIENCE, rig.servers.settled())
            .await
            .expect("the servers settle");
        rig
    }

    pub(crate) fn start_without_waiting(configs: Vec<Config>) -> Rig {
        Rig {
            servers: Arc::new(Servers::start(configs)),
            dir: folder(),
        }
    }

    /// Starts one scripted server and waits until it is ready.
    pub(crate) async fn scripted(script: Value) -> Rig {
        let rig = Rig::start(vec![scripted(script)]).await;
        rig.until("the server is ready", |rig| {
            rig.health().state == ServerState::Ready
        })
        .await;
        rig
    }

    /// Starts one scripted server that records what it gets in a file of the rig's folder.
    pub(crate) async fn recording(mut script: Value) -> Rig {
        let dir = folder();
        script["record"] = json!(dir.path().join("record"));
        let rig = Rig {
            servers: Arc::new(Servers::start(vec![scripted(script)])),
            dir,
        };
        timeout(PATIENCE, rig.servers.settled())
            .await
            .expect("the server settles");
        rig
    }

    /// Everything the recording server got so far.
    pub(crate) fn record(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("record")).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// How many messages with this method the recording server got.
    pub(crate) fn recorded(&self, method: &str) -> usize {
        self.record()
            .iter()
            .filter(|message| message["method"] == method)
            .count()
    }

    pub(crate) fn health(&self) -> ServerHealth {
        self.servers.health().remove(0)
    }

    pub(crate) fn listed(&self) -> ServerTools {
        self.servers.subscribe().borrow()[0].clone()
    }

    pub(crate) fn tool_names(&self) -> Vec<String> {
        self.listed()
            .tools
            .into_iter()
            .map(|tool| tool.name)
            .collect()
    }

    /// Calls the scripted server's tool.
    pub(crate) async fn act(&self, arguments: Value) -> Result<ToolResult, CallError> {
        self.act_with(arguments, options()).await
    }

    pub(crate) async fn act_with(
        &self,
        arguments: Value,
        options: CallOptions,
    ) -> Result<ToolResult, CallError> {
        let arguments = arguments
            .as_object()
            .cloned()
            .expect("arguments are an object");
        let server = id("s");
        let call = self.servers.call(&server, "act", arguments, options);
        timeout(PATIENCE, call).await.expect("the call ends")
    }

    /// Calls in the background.
    pub(crate) fn act_beside(
        &self,
        arguments: Value,
    ) -> tokio::task::JoinHandle<Result<ToolResult, CallError>> {
        let servers = Arc::clone(&self.servers);
        let arguments = arguments
            .as_object()
            .cloned()
            .expect("arguments are an object");
        tokio::spawn(async move { servers.call(&id("s"), "act", arguments, options()).await })
    }

    /// Waits until this holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Rig) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(
                Instant::now() < deadline,
                "never: {what}; {:?}",
                self.servers.health()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder can be made")
}

/// Options under which only a broken test ends.
pub(crate) fn options() -> CallOptions {
    CallOptions::new(PATIENCE, Instant::now() + PATIENCE)
}

/// The text of a result that is one text.
#[track_caller]
pub(crate) fn text(result: Result<ToolResult, CallError>) -> String {
    match result.as_ref().map(|result| result.content.as_slice()) {
        Ok([Content::Text(text)]) => text.clone(),
        other => panic!("not one text: {other:?}"),
    }
}
