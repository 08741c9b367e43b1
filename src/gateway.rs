//! Drives `agent` with `upstream`: deadlines, retries, concurrency, cancellation.
//!
//! [`Gateway`] owns the upstreams, the servers, the catalog and the store. Read next: [`chat`], the life of a
//! chat completion, then `rounds`, the loop, and `stream` and `plain`, the two forms of its answer.

pub mod approvals;
mod backends;
mod calls;
pub mod chat;
mod claims;
mod completions;
pub mod confirmations;
pub mod events;
mod executor;
pub mod explain;
pub mod failure;
pub mod listing;
mod live_catalog;
pub mod mcp;
pub mod mcp_sessions;
mod plain;
pub mod progress_mode;
pub(crate) mod random;
pub mod record;
mod request_options;
mod rounds;
pub mod servers;
pub mod sink;
mod source;
mod stream;

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::health::{ServerHealth, ServerState, StateObserver};
use crate::{
    audit::Audit,
    store::{Principal, StoreEntries, StoreHealth, sessions::SessionStates},
    upstream::{
        self,
        function::{self, Functions, GroupHealth},
        mcp::Servers,
        model::{self, Models},
    },
};
use toolway_core::{
    agent::{Job, RefusedCall, admit::admit},
    audit::{AuditEvent, AuditRecord, AuditVerdict},
    catalog::{Catalog, Selected, Selection},
    policy::{Action, CallRequest, ClientPolicy, KeyId, Policy, Step},
    route::Retries,
    translate::calls::parse_arguments,
};
use toolway_protocol::tool::{CallError, JsonObject, ServerId, ToolResult};

use self::{
    backends::Backends,
    calls::{CallEvent, CallLimits, CallsOf, KeptResults, RunningCalls, Unsent},
    claims::ClaimedIds,
    confirmations::{CallOrigin, Confirmations},
    live_catalog::{CatalogViews, LiveCatalog},
    mcp_sessions::McpSessions,
};
pub use self::{
    mcp::{RestOutcome, risk_description},
    source::RequestSource,
};

/// The bounds of the tool loop (`[loop]` in the configuration).
#[derive(Clone, Debug)]
pub struct Config {
    /// Most model calls of one request. Default: 10.
    pub max_rounds: u32,
    /// Longest silence of a running tool; progress resets it. Default: 30 s.
    pub tool_timeout: Duration,
    /// Longest time for a whole request. Default: 10 min.
    pub request_timeout: Duration,
    /// How often an SSE comment goes out while nothing else does. Default: 5 s.
    pub keepalive: Duration,
    /// Longest text of one result that goes to the model, in bytes. Default: 65536.
    pub max_result_bytes: usize,
    /// Calls of one request that run side by side. Default: 8.
    pub parallel_calls: usize,
    /// Most calls of one turn; the rest get an error. Default: 64.
    pub max_calls: usize,
    /// How long after the start chats and lists wait for servers that are still starting. Default: 1.5 s.
    pub start_wait: Duration,
    /// How approvals are asked for.
    pub approvals: confirmations::Config,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_rounds: 10,
            tool_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(600),
            keepalive: Duration::from_secs(5),
            max_result_bytes: 65536,
            parallel_calls: 8,
            max_calls: 64,
            start_wait: Duration::from_millis(1500),
            approvals: confirmations::Config::default(),
        }
    }
}

/// The parts of a gateway.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The bounds of the loop.
    pub config: Config,
    /// Model providers; the first one that serves a model takes its requests.
    pub upstreams: Vec<model::Config>,
    /// Models under names of one's own; each name once, with models of these upstreams.
    pub models: Vec<model::NamedModel>,
    /// MCP servers.
    pub servers: Vec<upstream::mcp::Config>,
    /// Groups of OpenAI-style functions; no name of one is that of a server.
    pub functions: Vec<function::Config>,
    /// What is behind `/mcp/NAME`; each name once.
    pub profiles: Vec<mcp::Profile>,
    /// What clients may call.
    pub policy: Policy,
    /// Checks servers that are added while it runs.
    pub server_reader: servers::ServerReader,
    /// What outlives requests.
    pub entries: Arc<StoreEntries>,
    /// What is recorded of calls.
    pub audit: Audit,
}

/// A client of this gateway.
#[derive(Clone, Debug, Default)]
pub struct RequestClient {
    /// Whose results and conversations are its own.
    pub principal: Principal,
    /// Its key, if keys are configured.
    pub key: Option<KeyId>,
    /// It has approved the calls that it makes.
    pub has_approved: bool,
    /// The face that it came through.
    pub face: &'static str,
    /// Where its request comes from.
    pub source: RequestSource,
}

/// Everything between the faces and the outside world.
pub struct Gateway {
    config: Config,
    models: Arc<Models>,
    servers: Arc<Servers>,
    added: servers::AddedServers,
    backends: Backends,
    current: Arc<LiveCatalog>,
    policy: Arc<Policy>,
    /// What clients see where the policy hides tools.
    views: CatalogViews,
    entries: Arc<StoreEntries>,
    confirmations: Arc<Confirmations>,
    audit: Audit,
    claimed: ClaimedIds,
    kept_results: KeptResults,
    /// What tools and clients keep of sessions.
    sessions: SessionStates,
    /// What `/mcp` shows, and `/mcp/NAME`.
    everything: Arc<mcp::View>,
    profiles: HashMap<String, Arc<mcp::View>>,
    notifications: mcp::notification_hub::NotificationHub,
    log_interests: Arc<mcp::notification_hub::LogInterests>,
    parked: mcp::parked::ParkedCalls,
    /// Until then chats and lists wait for servers that are still starting.
    start_ends: Instant,
    /// The task ends with this.
    _start: AbortOnDropHandle<()>,
    mcp_sessions: McpSessions,
    /// Cancelled when requests that still run have to end.
    ending: CancellationToken,
    /// Randomness of this process, and how often it was used.
    random: RandomState,
    used: AtomicU64,
}

impl Gateway {
    /// Starts every server at once and is ready at once; tools come as their servers do.
    ///
    /// # Errors
    /// When the TLS setup of the machine cannot be used.
    pub fn start(setup: Setup) -> Result<Arc<Gateway>, upstream::SetupError> {
        upstream::install_tls();
        let models = Arc::new(Models::new(setup.upstreams, setup.models)?);
        let rules = setup.servers.iter();
        let rules = rules.map(|it| (it.server.clone(), it.cache.clone()));
        let policy = Arc::new(setup.policy);
        let approvals = setup.config.approvals.clone();
        let confirmations =
            Confirmations::new(approvals, Arc::clone(&setup.entries), setup.audit.clone());
        let confirmations = Arc::new(confirmations);
        let mcp_sessions = McpSessions::start(Arc::clone(&policy), Arc::clone(&confirmations));
        let kept_results = KeptResults::new(rules);
        let servers = Arc::new(Servers::observed(
            setup.servers,
            recorded_states(setup.audit.clone()),
        ));
        let functions = Functions::start(setup.functions, &models)?;
        let backends = Backends::new(servers.clone(), functions);
        let current = LiveCatalog::follow(servers.clone(), backends.functions(), models.clone());
        let current = Arc::new(current);
        let start_ends = Instant::now() + setup.config.start_wait;
        let notifications =
            mcp::notification_hub::NotificationHub::listen(&servers, &current, start_ends);
        let start = tokio::spawn(name_missing(servers.clone(), setup.config.start_wait));
        let profiles = setup.profiles.into_iter();
        let profiles = profiles.map(|it| (it.name, Arc::new(mcp::View::profile(it.shows))));
        Ok(Arc::new(Gateway {
            config: setup.config,
            models,
            servers,
            added: servers::AddedServers::new(setup.server_reader),
            backends,
            current,
            views: CatalogViews::new(&policy),
            policy,
            entries: setup.entries,
            confirmations,
            audit: setup.audit,
            claimed: ClaimedIds::default(),
            kept_results,
            sessions: SessionStates::default(),
            everything: Arc::new(mcp::View::everything()),
            profiles: profiles.collect(),
            notifications,
            log_interests: Arc::default(),
            parked: mcp::parked::ParkedCalls::default(),
            start_ends,
            _start: AbortOnDropHandle::new(start),
            mcp_sessions,
            ending: CancellationToken::new(),
            random: RandomState::new(),
            used: AtomicU64::new(0),
        }))
    }

    /// Every tool that is offered now.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.current.load()
    }

    /// The tools that clients with this key are offered now.
    pub fn catalog_of(&self, key: Option<KeyId>) -> Arc<Catalog> {
        self.views.of(self.current.load(), &self.policy, key)
    }

    /// What decides on the calls of clients with this key.
    fn policy_of(&self, key: Option<KeyId>) -> ClientPolicy {
        ClientPolicy {
            policy: Arc::clone(&self.policy),
            key,
        }
    }

    /// The model providers.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// The functions that callers lend to agents.
    pub fn mcp_sessions(&self) -> &McpSessions {
        &self.mcp_sessions
    }

    /// The states of sessions.
    pub fn sessions(&self) -> &SessionStates {
        &self.sessions
    }

    /// How often a comment goes out in a stream in which nothing else does.
    pub fn keepalive(&self) -> Duration {
        self.config.keepalive
    }

    /// Longest time for a whole request.
    pub fn request_timeout(&self) -> Duration {
        self.config.request_timeout
    }

    /// The health of each server.
    pub fn health(&self) -> Vec<ServerHealth> {
        self.servers.health()
    }

    /// What is known about each group of functions.
    pub fn functions(&self) -> Vec<GroupHealth> {
        self.backends.functions().health()
    }

    /// What outlives requests.
    pub fn entries(&self) -> &StoreEntries {
        &self.entries
    }

    /// The calls that wait for a person.
    pub fn confirmations(&self) -> &Confirmations {
        &self.confirmations
    }

    /// What is recorded of calls.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// A client, as the list of confirmations and the audit name it.
    pub fn origin_of(&self, client: &RequestClient) -> CallOrigin {
        CallOrigin {
            principal: client.principal,
            key: self.policy.key_name(client.key).map(str::to_owned),
            face: client.face,
            session: None,
            when_asked: self.confirmations.of_chats(),
            source: client.source.clone(),
        }
    }

    /// Records a call that was not sent.
    fn record_refused(
        &self,
        origin: &CallOrigin,
        refused: &RefusedCall,
        selected: &Selected,
        catalog: &Catalog,
    ) {
        let arguments = parse_arguments(&refused.arguments).ok();
        let meant = selected.meant(&refused.name, catalog);
        let rule = meant.and_then(|(tool, is_shown)| {
            let nothing = JsonObject::new();
            let request = CallRequest {
                tool,
                is_shown,
                key: self.policy.key_of(origin.key.as_deref()),
                arguments: arguments.as_ref().unwrap_or(&nothing),
            };
            self.policy.explain(&request).pop()
        });
        let is_denied = meant.is_none() || refused.status == "denied";
        let decides = |step: &Step<'_>| is_denied == (step.action == Some(Action::Deny));
        let unsent = Unsent {
            name: meant.map_or(&*refused.name, |(tool, _)| tool.name.as_str()),
            tool: meant.map(|(tool, _)| &**tool),
            arguments: arguments.as_ref(),
            verdict: match is_denied {
                true => AuditVerdict::Denied,
                false => AuditVerdict::Allowed,
            },
            rule: rule.as_ref().filter(|it| decides(it)).map(|it| &*it.rule),
            outcome: refused.status,
            error: &refused.error,
        };
        unsent.record(&self.audit, origin);
    }

    /// Whose the calls of a request without a chat are.
    fn calls_of(&self, client: &RequestClient) -> CallsOf {
        let origin = Arc::new(self.origin_of(client));
        match client.has_approved {
            true => CallsOf::Approver(origin),
            false => CallsOf::Client(origin),
        }
    }

    /// The health of the store.
    pub fn store(&self) -> StoreHealth {
        self.entries.health()
    }

    /// The start is over, every server that is `required` is ready, and the catalog has all tools.
    pub fn is_ready(&self) -> bool {
        let health = self.servers.health();
        let has_settled = health.iter().all(|it| it.state != ServerState::Starting);
        let is_up = |it: &ServerHealth| !it.required || it.state == ServerState::Ready;
        (has_settled || Instant::now() >= self.start_ends)
            && health.iter().all(is_up)
            && !self.current.is_behind()
    }

    /// Waits until every server is ready or has failed once, and its tools are in the catalog.
    /// False when `deadline` came first.
    pub async fn settled(&self, deadline: Instant) -> bool {
        let settled = timeout_at(deadline, self.servers.settled()).await.is_ok();
        self.current.renew().await;
        settled
    }

    /// Right after the start, waits for servers that are still starting, as long as chats wait for them.
    pub async fn wait_for_start(&self) {
        if self.servers.are_any_missing() && Instant::now() < self.start_ends {
            self.settled(self.start_ends).await;
        }
    }

    /// Runs one tool, on the same path as a model's call: policy, arguments, schema, deadline, repetition.
    pub async fn call_tool(&self, name: &str, arguments: &str) -> Result<ToolResult, CallError> {
        let catalog = self.catalog();
        let everything = catalog.select(&Selection::everything(), &[], usize::MAX);
        let origin = Arc::new(self.origin_of(&RequestClient {
            face: "cli",
            ..RequestClient::default()
        }));
        let policy = self.policy_of(None);
        let admitted = admit(name, arguments, &everything, &catalog, &policy);
        let (offered, arguments) = admitted.inspect_err(|error| {
            let refused = RefusedCall::new(name, arguments, error);
            self.record_refused(&origin, &refused, &everything, &catalog);
        })?;
        let job = Job {
            place: 0,
            id: String::new(),
            offered,
            arguments,
            retries: Retries::default(),
            is_early: false,
        };
        let limits = CallLimits {
            silence: self.config.tool_timeout,
            deadline: Instant::now() + self.config.request_timeout,
        };
        let mut running =
            RunningCalls::new(self, CallsOf::Command(origin), vec![vec![job]], limits, 1);
        while let Some(event) = running.next().await {
            if let CallEvent::Finished { outcome, .. } = event {
                return outcome;
            }
        }
        Err(CallError::Cancelled)
    }

    /// Ends every request that is running, each with an error to its client.
    pub fn end_requests(&self) {
        self.ending.cancel();
    }

    /// Cancelled when requests that still run have to end.
    pub fn ending(&self) -> &CancellationToken {
        &self.ending
    }

    /// Stops every server; nothing that toolway started is left running.
    pub async fn shutdown(&self) {
        self.mcp_sessions.close();
        self.servers.shutdown().await;
        self.audit.flush().await;
    }

    /// A number that is very unlikely to repeat, within this process or another.
    pub fn seed(&self) -> u64 {
        self.random
            .hash_one(self.used.fetch_add(1, Ordering::Relaxed))
    }

    /// Seconds since 1970, for `created`.
    fn now(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map(|since| since.as_secs())
            .unwrap_or_default()
    }
}

/// Records the states of servers.
fn recorded_states(audit: Audit) -> StateObserver {
    StateObserver::new(move |server, state, error| {
        audit.record(|| AuditRecord {
            event: AuditEvent::Server,
            server: Some(server.to_string()),
            outcome: Some(state.as_str().into()),
            error: error.map(str::to_owned),
            ..AuditRecord::default()
        });
    })
}

/// Logs one line with the servers that were not ready within `start_wait`.
async fn name_missing(servers: Arc<Servers>, start_wait: Duration) {
    let _ = timeout(start_wait, servers.settled()).await;
    let missing = servers.missing();
    let missing: Vec<&str> = missing.iter().map(ServerId::as_str).collect();
    if !missing.is_empty() {
        tracing::warn!(
            servers = missing.join(", "),
            "Some servers are not ready yet; their tools are added once they are; \
             a longer `start_wait` makes clients wait for them"
        );
    }
}
