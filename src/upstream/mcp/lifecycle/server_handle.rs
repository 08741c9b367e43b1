//! One server's record, written by its supervisor and read by all others.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::{Notify, broadcast, watch},
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::watched::Watched;
use crate::{
    health::{ServerHealth, ServerState, StateObserver},
    upstream::{
        mcp::{
            CallOptions, Config, HttpKind, ServerEvent, Transport,
            connection::ServerSession,
            faults,
            raw_messages::{Changes, ServerNotifications},
            stdio::StderrTail,
        },
        queue::Queue,
    },
};
use toolway_core::catalog::{DroppedTool, ServerFeatures, ServerTools};
use toolway_protocol::{
    mcp::tools::Listing,
    tool::{CallError, JsonObject, ServerId},
};

/// How long a call waits for a server that is being started.
const WAIT_FOR_READY: Duration = Duration::from_secs(5);

/// Everything that is known about one server.
#[derive(Debug)]
pub(in crate::upstream::mcp) struct ServerHandle {
    pub(in crate::upstream::mcp) config: Config,
    pub(in crate::upstream::mcp) stderr: Arc<StderrTail>,
    /// Receives the notifications of the server.
    pub(in crate::upstream::mcp) events: broadcast::Sender<ServerEvent>,
    /// The most verbose log level that a client asks for.
    pub(in crate::upstream::mcp) log_level: watch::Receiver<Option<String>>,
    pub(super) watched: Watched,
    /// Cancelled when the server is to be stopped for good.
    pub(in crate::upstream::mcp) stop: CancellationToken,
    /// Notified when it is to be started again.
    pub(in crate::upstream::mcp) restart: Notify,
    /// Requests that are made or wait for the server, and when the last one ended.
    use_of: Mutex<Use>,
    /// Notified when a request waits for the server, and when one ends.
    used: Notify,
    offer: OfferPublisher,
    access: watch::Sender<Access>,
    was_ready: AtomicBool,
    settled: watch::Sender<bool>,
    acquainted: watch::Sender<bool>,
    queue: Arc<Queue>,
    observer: StateObserver,
    facts: Mutex<Facts>,
}

/// Publishes what a server offers.
#[derive(Debug)]
pub(in crate::upstream::mcp) struct OfferPublisher {
    pub(in crate::upstream::mcp) tools: watch::Sender<Arc<Vec<ServerTools>>>,
    pub(in crate::upstream::mcp) features: watch::Sender<Arc<Vec<ServerFeatures>>>,
    pub(in crate::upstream::mcp) later: Arc<Later>,
    /// Servers that were never ready.
    pub(in crate::upstream::mcp) missing: Arc<AtomicUsize>,
}

/// Counts for each server how often it changed what it had offered before. The first lists after its start are not a
/// change.
#[derive(Debug, Default)]
pub struct Later {
    tools: Mutex<HashMap<ServerId, u64>>,
    features: Mutex<HashMap<ServerId, u64>>,
}

impl Later {
    /// How often the tools of each server have changed; servers without a change are left out.
    pub fn tools(&self) -> HashMap<ServerId, u64> {
        counts(&self.tools).clone()
    }

    /// How often the prompts and resources of each server have changed, likewise.
    pub fn features(&self) -> HashMap<ServerId, u64> {
        counts(&self.features).clone()
    }
}

fn counts(of: &Mutex<HashMap<ServerId, u64>>) -> MutexGuard<'_, HashMap<ServerId, u64>> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether calls can be made.
#[derive(Debug)]
enum Access {
    /// The server is being started.
    Later,
    /// Through this session.
    Now(Arc<ServerSession>),
    /// The server was stopped for good.
    Never,
}

/// How a server is used.
#[derive(Debug)]
struct Use {
    requests: usize,
    last: Instant,
}

/// A request that uses the server, until it is dropped.
struct InUse<'a>(&'a ServerHandle);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let mut use_of = self.0.use_of();
        use_of.requests -= 1;
        use_of.last = Instant::now();
        if use_of.requests == 0 && self.0.config.idle_stop.is_some() {
            self.0.used.notify_one();
        }
    }
}

/// The part of the health that changes.
#[derive(Debug)]
struct Facts {
    state: ServerState,
    /// What the observer knows.
    told: ServerState,
    transport: &'static str,
    protocol_version: Option<String>,
    pid: Option<u32>,
    restarts: u32,
    last_error: Option<String>,
    unmatched_patterns: Vec<String>,
}

impl ServerHandle {
    /// A server that was not started yet.
    pub(in crate::upstream::mcp) fn new(
        config: Config,
        offer: OfferPublisher,
        events: broadcast::Sender<ServerEvent>,
        log_level: watch::Receiver<Option<String>>,
        stop: CancellationToken,
        observer: StateObserver,
    ) -> ServerHandle {
        let (transport, secrets) = match &config.transport {
            Transport::Stdio { env, .. } => (
                "stdio",
                env.iter().map(|(_, value)| value.clone()).collect(),
            ),
            Transport::Http {
                kind: Some(HttpKind::Sse),
                ..
            } => ("sse", Vec::new()),
            Transport::Http { .. } => ("http", Vec::new()),
            Transport::Unavailable { kind, .. } => (*kind, Vec::new()),
        };
        let parallel = if config.stateful {
            1
        } else {
            config.parallel_calls
        };
        ServerHandle {
            stderr: Arc::new(StderrTail::new(secrets)),
            events,
            log_level,
            watched: Watched::default(),
            stop,
            restart: Notify::new(),
            use_of: Mutex::new(Use {
                requests: 0,
                last: Instant::now(),
            }),
            used: Notify::new(),
            offer,
            access: watch::Sender::new(Access::Later),
            was_ready: AtomicBool::new(false),
            settled: watch::Sender::new(false),
            acquainted: watch::Sender::new(false),
            queue: Queue::new(parallel, config.queue),
            observer,
            facts: Mutex::new(Facts {
                state: ServerState::Starting,
                told: ServerState::Starting,
                transport,
                protocol_version: None,
                pid: None,
                restarts: 0,
                last_error: None,
                unmatched_patterns: Vec::new(),
            }),
            config,
        }
    }

    /// Where the notifications of a new connection go.
    pub(in crate::upstream::mcp) fn notifications(&self) -> ServerNotifications {
        ServerNotifications {
            server: self.config.server.clone(),
            changes: Changes::default(),
            events: self.events.clone(),
        }
    }

    /// Makes a request, after waiting for a place and for the server. The wait for a place counts as silence.
    pub(in crate::upstream::mcp) async fn request(
        &self,
        method: &str,
        params: &JsonObject,
        options: &CallOptions,
    ) -> Result<Value, CallError> {
        let _use = self.begin_use();
        let begun = Instant::now();
        let mut until = options.deadline.min(begun + options.silence);
        if let Some(wait) = self.config.queue_wait {
            until = until.min(begun + wait);
        }
        let place = self.queue.enter(until).await?;
        let session = self.ready_session(options.deadline).await?;
        session.request(method, params, options, begun, place).await
    }

    /// The session, after waiting for it at most 5 s, and not beyond the deadline.
    pub(super) async fn ready_session(
        &self,
        deadline: Instant,
    ) -> Result<Arc<ServerSession>, CallError> {
        if let Access::Now(session) = &*self.access.borrow() {
            return Ok(Arc::clone(session));
        }
        let _use = self.begin_use();
        let longest = match self.config.idle_stop {
            // The start that this request causes.
            Some(_) => self.config.start_timeout.max(WAIT_FOR_READY),
            None => WAIT_FOR_READY,
        };
        self.used.notify_one();
        let deadline = deadline.min(Instant::now() + longest);
        let mut access = self.access.subscribe();
        let known = access.wait_for(|access| !matches!(access, Access::Later));
        match timeout_at(deadline, known).await {
            Ok(Ok(access)) => match &*access {
                Access::Now(session) => Ok(Arc::clone(session)),
                Access::Later | Access::Never => Err(faults::gone(true)),
            },
            Ok(Err(_)) | Err(_) => Err(faults::gone(true)),
        }
    }

    fn begin_use(&self) -> InUse<'_> {
        self.use_of().requests += 1;
        InUse(self)
    }

    fn use_of(&self) -> MutexGuard<'_, Use> {
        self.use_of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many requests are made of it or wait for it.
    pub(in crate::upstream::mcp) fn load(&self) -> usize {
        self.use_of().requests
    }

    /// Returns when nothing has used the server for as long as it is kept then, and no request finds it any more. Never for
    /// a server that runs always.
    pub(super) async fn unused(&self) {
        let Some(idle_stop) = self.config.idle_stop else {
            return std::future::pending().await;
        };
        loop {
            let due = {
                let use_of = self.use_of();
                let is_free = use_of.requests == 0 && self.watched.is_empty();
                is_free.then(|| use_of.last + idle_stop)
            };
            match due {
                Some(due) if due <= Instant::now() => {
                    // A request counts itself before it looks for the session.
                    let is_closed = self.access.send_if_modified(|access| {
                        let is_free = self.use_of().requests == 0;
                        if is_free {
                            *access = Access::Later;
                        }
                        is_free
                    });
                    if is_closed {
                        return;
                    }
                }
                Some(due) => {
                    tokio::select! {
                        () = sleep_until(due) => {}
                        () = self.used.notified() => {}
                    }
                }
                // The subscriptions to resources are looked at now and then.
                None => {
                    let _ = timeout_at(Instant::now() + idle_stop, self.used.notified()).await;
                }
            }
        }
    }

    /// The server was stopped because nothing used it; returns when something does.
    pub(super) async fn wanted(&self) {
        {
            let mut facts = self.facts();
            facts.state = ServerState::Idle;
            facts.pid = None;
            self.tell(&mut facts);
        }
        while self.load() == 0 {
            self.used.notified().await;
        }
    }

    /// The server is ready: its tools are offered and calls go to this session.
    pub(super) fn set_ready(
        &self,
        session: ServerSession,
        transport: &'static str,
        version: Option<String>,
        pid: Option<u32>,
    ) {
        {
            let mut facts = self.facts();
            facts.state = ServerState::Ready;
            facts.transport = transport;
            facts.protocol_version = version;
            facts.pid = pid;
            self.tell(&mut facts);
        }
        self.use_of().last = Instant::now();
        self.access.send_replace(Access::Now(Arc::new(session)));
        if !self.was_ready.swap(true, Ordering::AcqRel) {
            self.offer.missing.fetch_sub(1, Ordering::AcqRel);
        }
        self.settled.send_replace(true);
    }

    /// The connection is about to be closed; calls wait from now on.
    pub(super) fn set_closing(&self) {
        self.access.send_replace(Access::Later);
        let mut facts = self.facts();
        if facts.state == ServerState::Ready {
            facts.state = ServerState::Restarting;
        }
    }

    /// The server is gone or did not become ready; calls wait from now on.
    pub(super) fn set_failed(&self, error: String) {
        self.access.send_replace(Access::Later);
        {
            let mut facts = self.facts();
            let was_ready = matches!(facts.state, ServerState::Ready | ServerState::Restarting);
            facts.state = if was_ready {
                ServerState::Restarting
            } else {
                ServerState::Failed
            };
            facts.last_error = Some(error);
            facts.pid = None;
            self.tell(&mut facts);
        }
        self.settled.send_replace(true);
        self.acquainted.send_replace(true);
    }

    /// The server is about to be started again.
    pub(super) fn count_restart(&self) {
        let mut facts = self.facts();
        facts.restarts += 1;
        self.tell(&mut facts);
    }

    /// Tells the observer of a new state.
    fn tell(&self, facts: &mut Facts) {
        if facts.told != facts.state {
            facts.told = facts.state;
            let is_fault = matches!(facts.state, ServerState::Restarting | ServerState::Failed);
            let error = facts.last_error.as_deref().filter(|_| is_fault);
            self.observer.tell(&self.config.server, facts.state, error);
        }
    }

    /// The server is not started again.
    pub(super) fn set_stopped(&self) {
        self.access.send_replace(Access::Never);
        {
            let mut facts = self.facts();
            facts.state = ServerState::Stopped;
            facts.pid = None;
            self.tell(&mut facts);
        }
        self.settled.send_replace(true);
        self.acquainted.send_replace(true);
    }

    /// Offers these tools from now on. If nothing changed, wakes no task and returns false.
    pub(super) fn set_tools(&self, listing: Listing) -> bool {
        self.note_unmatched(&listing);
        let filter = &self.config.tools;
        let broken = listing.broken.into_iter();
        let dropped = broken
            .filter(|tool| filter.shows(&tool.name))
            .map(|tool| DroppedTool {
                name: tool.name,
                reason: tool.reason,
            })
            .collect();
        let offered = ServerTools {
            tools: {
                let mut tools = listing.tools;
                tools.retain(|tool| filter.shows(&tool.name));
                tools
            },
            dropped,
            ..self.no_tools()
        };
        self.offer.tools.send_if_modified(|all| {
            let mut all = Arc::make_mut(all).iter_mut();
            match all.find(|it| it.server == offered.server) {
                Some(mine) if *mine != offered => {
                    *mine = offered;
                    if *self.settled.borrow() {
                        self.count(&self.offer.later.tools);
                    }
                    true
                }
                _ => false,
            }
        })
    }

    /// Notes which patterns of the configuration match none of these tools, and logs a change once.
    fn note_unmatched(&self, listing: &Listing) {
        let usable = listing.tools.iter().map(|it| &*it.name);
        let broken = listing.broken.iter().map(|it| &*it.name);
        let names: Vec<&str> = usable.chain(broken).collect();
        let mut unmatched = self.config.tools.unmatched(&names);
        unmatched.extend(self.config.cache.unmatched(&names));
        let mut facts = self.facts();
        if !unmatched.is_empty() && unmatched != facts.unmatched_patterns {
            let patterns = unmatched.join(", ");
            tracing::warn!(server.id = %self.config.server, patterns, "Patterns in a server's `tools` or `cache` match none of its tools");
        }
        facts.unmatched_patterns = unmatched;
    }

    /// Changes what is known of the server's features. If nothing changed, it wakes no task and returns false.
    pub(super) fn change_features(&self, change: impl FnOnce(&mut ServerFeatures)) -> bool {
        self.offer.features.send_if_modified(|all| {
            let mut all = Arc::make_mut(all).iter_mut();
            match all.find(|it| it.server == self.config.server) {
                Some(mine) => {
                    let before = mine.clone();
                    change(mine);
                    let is_changed = *mine != before;
                    if is_changed && *self.acquainted.borrow() {
                        self.count(&self.offer.later.features);
                    }
                    is_changed
                }
                None => false,
            }
        })
    }

    fn count(&self, changes: &Mutex<HashMap<ServerId, u64>>) {
        *counts(changes)
            .entry(self.config.server.clone())
            .or_default() += 1;
    }

    /// Nothing of the server is left.
    pub(in crate::upstream::mcp) async fn stopped(&self) {
        let mut access = self.access.subscribe();
        let _ = access
            .wait_for(|access| matches!(access, Access::Never))
            .await;
    }

    /// What is known of the server's features before it was ready.
    pub(in crate::upstream::mcp) fn no_features(&self) -> ServerFeatures {
        ServerFeatures::unknown(self.config.server.clone())
    }

    /// What the server offers before it was listed.
    pub(in crate::upstream::mcp) fn no_tools(&self) -> ServerTools {
        ServerTools {
            server: self.config.server.clone(),
            stateful: self.config.stateful,
            risk: self.config.risk.clone(),
            tools: Vec::new(),
            dropped: Vec::new(),
        }
    }

    /// The server was never ready, so nothing of it is offered yet.
    pub(in crate::upstream::mcp) fn is_missing(&self) -> bool {
        !self.was_ready.load(Ordering::Acquire)
    }

    /// The server is ready, has failed at least once, or was stopped.
    pub(in crate::upstream::mcp) async fn settled(&self) {
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    /// Every list of the server was read once, or could not be.
    pub(super) fn set_acquainted(&self) {
        self.acquainted.send_replace(true);
    }

    /// What the server has besides tools is known, too; or it has failed at least once, or was stopped.
    pub(in crate::upstream::mcp) async fn acquainted(&self) {
        let mut acquainted = self.acquainted.subscribe();
        let _ = acquainted.wait_for(|acquainted| *acquainted).await;
    }

    /// What is known about the server now.
    pub(in crate::upstream::mcp) fn health(&self) -> ServerHealth {
        let tools = {
            let all = self.offer.tools.borrow();
            let mine = all.iter().find(|it| it.server == self.config.server);
            mine.map_or(0, |mine| mine.tools.len())
        };
        let facts = self.facts();
        ServerHealth {
            server: self.config.server.clone(),
            required: self.config.required,
            state: facts.state,
            transport: facts.transport,
            protocol_version: facts.protocol_version.clone(),
            pid: facts.pid,
            tools,
            restarts: facts.restarts,
            last_error: facts.last_error.clone(),
            stderr_tail: self.stderr.lines(),
            unmatched_patterns: facts.unmatched_patterns.clone(),
            risk: self.config.risk.server.map(|risk| risk.number()),
        }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
