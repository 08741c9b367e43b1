//! MCP servers: started, listed, called, restarted and stopped.
//!
//! [`Servers`] is the whole interface. Behind it:
//!
//! - `lifecycle`: one supervisor per server starts it, keeps its lists and subscriptions current, and restarts it.
//! - `connection`: the handshake for either era of the protocol, and the session on which requests are made.
//! - `stdio`, `streamable` (Streamable HTTP), `legacy_sse` (HTTP+SSE): the transports. `web` is what the two over HTTP
//!   share, `pace` limits how fast a server's unsolicited messages are read.
//! - `raw_messages`: rmcp does the protocol, but results, questions and notifications go around its models.
//! - `caller` is the client behind a request, `faults` what a model reads when a call fails.

mod caller;
mod connection;
mod faults;
mod legacy_sse;
mod lifecycle;
mod pace;
mod raw_messages;
mod stdio;
mod streamable;
mod web;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::{
    sync::{broadcast, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use url::Url;

use self::lifecycle::{OfferPublisher, ServerHandle};
pub use self::{
    caller::{CallOptions, Caller, Sends},
    lifecycle::{Later, ResourceWatch},
    raw_messages::ServerEvent,
};
use crate::{
    health::{ServerHealth, StateObserver},
    secret::Secret,
};
use toolway_core::{
    catalog::{ServerFeatures, ServerRisk, ServerTools, ToolFilter},
    policy::isolation::Isolation,
    route::cache::CacheRules,
};
use toolway_protocol::tool::{CallError, JsonObject, ServerId, ToolResult};

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
    /// It is stopped when nothing has used it for so long, and the next call starts it. Default: `None`, it runs always.
    pub idle_stop: Option<Duration>,
    /// How many of it run, each with its own connection; calls go to the one with the fewest. Default: 1.
    pub instances: usize,
    /// Calls that run on each of it side by side; 1 when `stateful`. Default: 16.
    pub parallel_calls: usize,
    /// Calls that wait for it. Further ones are turned away. Default: 256.
    pub queue: usize,
    /// Longest wait of a call for its turn, within the silence that it may have. Default: none of its own.
    pub queue_wait: Option<Duration>,
    /// Longest message taken from it, in bytes. Default: 16 MiB.
    pub max_message_bytes: usize,
    /// toolway is ready only when this server is. Default: false.
    pub required: bool,
    /// Which of its tools are offered. Default: all.
    pub tools: ToolFilter,
    /// How dangerous its tools are. Default: nothing is said of them.
    pub risk: ServerRisk,
    /// How long results of its tools serve again. Default: as it says itself.
    pub cache: CacheRules,
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
        /// Its working directory. Default: toolway's own.
        cwd: Option<PathBuf>,
        /// What keeps it apart from the machine.
        isolation: Option<Box<Isolation>>,
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
    /// It cannot be reached: a required value is missing. It counts as failed.
    Unavailable {
        /// How it would be reached: `stdio`, `http` or `sse`.
        kind: &'static str,
        /// The missing value.
        reason: String,
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
    handles: ArcSwap<Vec<Arc<ServerHandle>>>,
    /// Held while the list of servers changes.
    changing: Mutex<()>,
    tools: watch::Sender<Arc<Vec<ServerTools>>>,
    features: watch::Sender<Arc<Vec<ServerFeatures>>>,
    later: Arc<Later>,
    missing: Arc<AtomicUsize>,
    events: broadcast::Sender<ServerEvent>,
    log_level: watch::Sender<Option<String>>,
    stop: CancellationToken,
    supervisors: Mutex<JoinSet<()>>,
    observer: StateObserver,
}

/// Events that wait for a slow listener.
const EVENTS: usize = 256;

/// Longest shutdown. What still runs then is killed.
const SHUTDOWN: Duration = Duration::from_secs(10);

impl Servers {
    /// Starts all servers side by side and returns at once. A server that cannot be started is tried again later.
    ///
    /// Must be called within a Tokio runtime.
    pub fn start(configs: Vec<Config>) -> Servers {
        Servers::observed(configs, StateObserver::default())
    }

    /// The same, and `observer` hears of their states.
    pub fn observed(configs: Vec<Config>, observer: StateObserver) -> Servers {
        let servers = Servers {
            handles: ArcSwap::default(),
            changing: Mutex::default(),
            tools: watch::Sender::default(),
            features: watch::Sender::default(),
            later: Arc::default(),
            missing: Arc::default(),
            events: broadcast::Sender::new(EVENTS),
            log_level: watch::Sender::new(None),
            stop: CancellationToken::new(),
            supervisors: Mutex::default(),
            observer,
        };
        servers.start_all(configs);
        servers
    }

    /// Starts one more server and returns at once. False if its name is taken.
    ///
    /// Must be called within a Tokio runtime.
    pub fn add(&self, config: Config) -> bool {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = self.handle(&config.server).is_err();
        if is_free {
            self.start_all(vec![config]);
        }
        is_free
    }

    /// Stops a server; nothing of it is left then, and nothing of it is offered. Its calls that are running fail. False if
    /// there is no such server.
    pub async fn remove(&self, server: &ServerId) -> bool {
        let instances = self.instances(server);
        for handle in &instances {
            handle.stop.cancel();
        }
        for handle in &instances {
            handle.stopped().await;
        }
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut handles = Vec::clone(&self.handles.load());
        let before = handles.len();
        handles.retain(|it| !instances.iter().any(|mine| Arc::ptr_eq(it, mine)));
        if handles.len() == before {
            return false;
        }
        self.handles.store(Arc::new(handles));
        let missing = instances.iter().filter(|it| it.is_missing()).count();
        self.missing.fetch_sub(missing, Ordering::AcqRel);
        self.tools
            .send_modify(|all| Arc::make_mut(all).retain(|it| it.server != *server));
        self.features
            .send_modify(|all| Arc::make_mut(all).retain(|it| it.server != *server));
        true
    }

    /// Ends a server's connection, or its process, and starts it again at once. False if there is no such server.
    pub fn restart(&self, server: &ServerId) -> bool {
        let instances = self.instances(server);
        for handle in &instances {
            handle.restart.notify_one();
        }
        !instances.is_empty()
    }

    fn start_all(&self, configs: Vec<Config>) {
        let instances = configs
            .into_iter()
            .flat_map(|config| std::iter::repeat_n(config.clone(), config.instances.max(1)));
        let started = instances.map(|config| {
            let offer = OfferPublisher {
                tools: self.tools.clone(),
                features: self.features.clone(),
                later: Arc::clone(&self.later),
                missing: Arc::clone(&self.missing),
            };
            Arc::new(ServerHandle::new(
                config,
                offer,
                self.events.clone(),
                self.log_level.subscribe(),
                self.stop.child_token(),
                self.observer.clone(),
            ))
        });
        let started: Vec<_> = started.collect();
        self.missing.fetch_add(started.len(), Ordering::AcqRel);
        // All instances of a server offer the same, which is kept once.
        let mut servers = started.clone();
        servers.dedup_by(|a, b| a.config.server == b.config.server);
        self.tools
            .send_modify(|all| Arc::make_mut(all).extend(servers.iter().map(|it| it.no_tools())));
        self.features.send_modify(|all| {
            Arc::make_mut(all).extend(servers.iter().map(|it| it.no_features()));
        });
        let mut handles = Vec::clone(&self.handles.load());
        handles.extend(started.iter().cloned());
        self.handles.store(Arc::new(handles));
        let mut supervisors = self
            .supervisors
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Those of removed servers have ended.
        while supervisors.try_join_next().is_some() {}
        for handle in started {
            supervisors.spawn(lifecycle::run(handle));
        }
    }

    /// The tools of every server in the order of the configuration, now and whenever they change. A server
    /// that was not listed yet has no tools; one that died keeps those it had.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Vec<ServerTools>>> {
        self.tools.subscribe()
    }

    /// What every server has besides tools, in the order of the configuration, now and whenever it changes. A server
    /// that was never ready has nothing; one that died keeps what it had.
    pub fn features(&self) -> watch::Receiver<Arc<Vec<ServerFeatures>>> {
        self.features.subscribe()
    }

    /// Separates later changes from what servers list at the start.
    pub fn later(&self) -> Arc<Later> {
        Arc::clone(&self.later)
    }

    /// The notifications of all servers, from now on. Bounded: a slow receiver misses the oldest.
    pub fn events(&self) -> broadcast::Receiver<ServerEvent> {
        self.events.subscribe()
    }

    /// Sets the most verbose level that a client asks for (`debug` … `emergency`). Servers of the versions with a
    /// handshake that have a log receive `logging/setLevel`, now and after each connect; for 2026-07-28 the level
    /// travels with each request, in its `_meta`.
    pub fn set_log_level(&self, level: Option<&str>) {
        self.log_level.send_if_modified(|known| {
            let is_new = known.as_deref() != level;
            *known = level.map(str::to_owned);
            is_new
        });
    }

    /// Keeps a resource subscribed to while the guard lives, across restarts of the server. Its changes arrive as
    /// [`ServerEvent::ResourceUpdated`].
    ///
    /// # Errors
    /// The server refuses, is not there, or does not answer within 30 s.
    pub async fn watch_resource(
        &self,
        server: &ServerId,
        uri: &str,
    ) -> Result<ResourceWatch, CallError> {
        let instances = self.instances(server);
        // Always the same one, which also ends the subscription.
        let Some(first) = instances.first() else {
            self.handle(server)?;
            return Err(CallError::Busy);
        };
        lifecycle::watch(first, uri).await
    }

    /// What is known about every server, in the order of the configuration.
    pub fn health(&self) -> Vec<ServerHealth> {
        let handles = self.handles.load();
        let of_servers = handles.chunk_by(|a, b| a.config.server == b.config.server);
        let best = |instances: &[Arc<ServerHandle>]| {
            let all = instances.iter().map(|handle| handle.health());
            // A server is as good as its best instance.
            all.min_by_key(|it| it.state.rank())
        };
        of_servers.filter_map(best).collect()
    }

    /// Waits until every server is ready or has failed at least once. The caller sets the deadline.
    pub async fn settled(&self) {
        for handle in self.handles.load_full().iter() {
            handle.settled().await;
        }
    }

    /// Whether some server was never ready. Cheap enough to call for every chat.
    pub fn are_any_missing(&self) -> bool {
        self.missing.load(Ordering::Acquire) > 0
    }

    /// The servers that were never ready, in the order of the configuration.
    pub fn missing(&self) -> Vec<ServerId> {
        let handles = self.handles.load();
        let missing = handles.iter().filter(|handle| handle.is_missing());
        let mut missing: Vec<_> = missing.map(|it| it.config.server.clone()).collect();
        missing.dedup();
        missing
    }

    /// Waits until each of these servers is ready or has failed at least once. The caller sets the deadline.
    pub async fn settled_of(&self, servers: &[ServerId]) {
        for handle in servers.iter().flat_map(|server| self.instances(server)) {
            handle.settled().await;
        }
    }

    /// Waits until every server's prompts and resources are known, too, or it has failed at least once. The caller
    /// sets the deadline.
    pub async fn acquainted(&self) {
        for handle in self.handles.load_full().iter() {
            handle.acquainted().await;
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
        if self.handle(server).is_err() {
            return Err(CallError::UnknownTool {
                name: tool.to_owned(),
                did_you_mean: Vec::new(),
            });
        }
        let mut params = JsonObject::new();
        params.insert("name".to_owned(), tool.into());
        params.insert("arguments".to_owned(), arguments.into());
        let raw = self.request(server, "tools/call", &params, options).await?;
        connection::read_answer(raw)
    }

    /// Makes any request that a client may make of a server: `tools/call`, `prompts/get`, `resources/read`,
    /// `completion/complete` and so on, with its params as they are to arrive. Gives the result as it came, also one
    /// that is `input_required` (2026-07-28). Waits for a server that is being started, at most 5 s.
    ///
    /// toolway replaces the members of `_meta` that concern the connection: the version, the client's name, the
    /// capabilities (the caller's) and the progress token. All others are sent unchanged.
    ///
    /// Dropping the future cancels the request at the server.
    pub async fn request(
        &self,
        server: &ServerId,
        method: &str,
        params: &JsonObject,
        options: CallOptions,
    ) -> Result<Value, CallError> {
        self.handle(server)?.request(method, params, &options).await
    }

    /// A request on this server may keep other clients waiting: calls run one after another, or all share a pipe, on
    /// which a question does not say which request it belongs to.
    pub fn is_shared(&self, server: &ServerId) -> bool {
        self.handle(server).is_ok_and(|handle| {
            let is_pipe = matches!(handle.config.transport, Transport::Stdio { .. });
            handle.config.stateful || is_pipe
        })
    }

    /// All that runs of a server; none if there is no such server.
    fn instances(&self, server: &ServerId) -> Vec<Arc<ServerHandle>> {
        let handles = self.handles.load();
        let instances = handles.iter().filter(|it| it.config.server == *server);
        instances.cloned().collect()
    }

    /// The instance of a server with the fewest calls, the first of several.
    fn handle(&self, server: &ServerId) -> Result<Arc<ServerHandle>, CallError> {
        let handles = self.handles.load();
        let instances = handles.iter().filter(|it| it.config.server == *server);
        instances
            .min_by_key(|handle| handle.load())
            .cloned()
            .ok_or_else(|| CallError::UpstreamUnavailable {
                message: format!("there is no server `{server}`"),
                unsent: true,
            })
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
