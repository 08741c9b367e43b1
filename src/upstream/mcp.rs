//! MCP servers: started, listed, called, restarted and stopped.
//!
//! [`Servers`] is all that others see. Behind it each server has an `entry` (what is known about it) and a `supervisor`
//! (the task that keeps it running), which asks `connect` for a `session` over `stdio`, Streamable HTTP or HTTP+SSE.
//! rmcp does the protocol; `pending` gets the raw results around its models.

mod connect;
mod connection;
mod entry;
mod events;
mod faults;
mod follow;
mod legacy_sse;
mod lines;
mod pending;
mod pipe;
mod progress;
mod session;
mod stderr;
mod stdio;
mod streamable;
mod supervisor;
mod web;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use url::Url;

use self::entry::Entry;
pub use self::session::CallOptions;
use crate::{
    catalog::ServerTools,
    health::ServerHealth,
    secret::Secret,
    tool::{CallError, JsonObject, ServerId, ToolResult},
};

/// One MCP server, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name; the first half of its tools' names.
    pub server: ServerId,
    /// How it is reached.
    pub transport: Transport,
    /// Calls on it run one after another, in order. Default: false.
    pub stateful: bool,
    /// Longest start, from spawn or connect to the first tool list. Default: 60 s.
    pub start_timeout: Duration,
    /// Calls that run on it side by side; 1 when `stateful`. Default: 16.
    pub parallel_calls: usize,
    /// Longest message taken from it, in bytes. Default: 16 MiB.
    pub max_message_bytes: usize,
}

/// How an MCP server is reached.
#[derive(Clone, Debug)]
pub enum Transport {
    /// A child process that speaks over its standard input and output.
    Stdio {
        /// The program, looked up in `PATH`.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Added to the clean environment that children get.
        env: Vec<(String, Secret)>,
        /// Where it runs; absent: where toolway runs.
        cwd: Option<PathBuf>,
    },
    /// A URL.
    Http {
        /// The MCP endpoint, or the SSE endpoint of a legacy server.
        url: Url,
        /// Sent with every request.
        headers: Vec<(http::HeaderName, Secret)>,
        /// Which of the two protocols; absent: tried in this order.
        kind: Option<HttpKind>,
    },
}

/// The protocols an MCP server can speak at a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpKind {
    /// Streamable HTTP (MCP 2025-03-26 and later).
    Streamable,
    /// HTTP+SSE (MCP 2024-11-05).
    Sse,
}

/// Every configured MCP server, kept running.
///
/// Dropping it kills the child processes at once; [`Servers::shutdown`] ends them in order.
pub struct Servers {
    entries: Vec<Arc<Entry>>,
    tools: watch::Receiver<Arc<Vec<ServerTools>>>,
    stop: CancellationToken,
    supervisors: Mutex<JoinSet<()>>,
}

/// Longest shutdown. What still runs then is killed.
const SHUTDOWN: Duration = Duration::from_secs(10);

impl Servers {
    /// Starts all servers side by side and returns at once. A server that cannot be started is tried again later.
    ///
    /// Must be called within a Tokio runtime.
    pub fn start(configs: Vec<Config>) -> Servers {
        let (publisher, tools) = watch::channel(Arc::default());
        let entries: Vec<_> = configs
            .into_iter()
            .enumerate()
            .map(|(place, config)| Arc::new(Entry::new(config, place, publisher.clone())))
            .collect();
        publisher.send_replace(Arc::new(
            entries.iter().map(|entry| entry.no_tools()).collect(),
        ));
        let stop = CancellationToken::new();
        let mut supervisors = JoinSet::new();
        for entry in &entries {
            supervisors.spawn(supervisor::run(Arc::clone(entry), stop.clone()));
        }
        Servers {
            entries,
            tools,
            stop,
            supervisors: Mutex::new(supervisors),
        }
    }

    /// The tools of every server in the order of the configuration, now and whenever they change. A server
    /// that was not listed yet has no tools; one that died keeps those it had.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Vec<ServerTools>>> {
        self.tools.clone()
    }

    /// What is known about every server, in the order of the configuration.
    pub fn health(&self) -> Vec<ServerHealth> {
        self.entries.iter().map(|entry| entry.health()).collect()
    }

    /// Waits until every server is ready or has failed at least once. The caller sets the deadline.
    pub async fn settled(&self) {
        for entry in &self.entries {
            entry.settled().await;
        }
    }

    /// Calls a tool. A server that is being started is waited for, at most 5 s.
    ///
    /// Dropping the future cancels the call at the server.
    pub async fn call(
        &self,
        server: &ServerId,
        tool: &str,
        arguments: JsonObject,
        options: CallOptions,
    ) -> Result<ToolResult, CallError> {
        let entry = self
            .entries
            .iter()
            .find(|entry| entry.config.server == *server);
        let Some(entry) = entry else {
            return Err(CallError::UnknownTool {
                name: tool.to_owned(),
                did_you_mean: Vec::new(),
            });
        };
        entry.call(tool, arguments, &options).await
    }

    /// Ends every connection and every child process, grandchildren included, within 10 s.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let mut supervisors = {
            let mut owned = self
                .supervisors
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *owned)
        };
        let all = async { while supervisors.join_next().await.is_some() {} };
        if timeout(SHUTDOWN, all).await.is_err() {
            supervisors.shutdown().await;
        }
    }
}
