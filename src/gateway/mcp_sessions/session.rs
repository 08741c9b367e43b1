//! One session: a caller's functions, the answers to the calls of agents, and its end. `call` has the calls.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use super::{
    answers::FunctionOutput,
    ledger::{Answered, Ledger},
    session_request::SessionRequest,
};
use crate::{
    byte_budget::{ByteBudget, Reservation},
    secret::Secret,
};
use crate::{
    gateway::{confirmations::Confirmations, random::unguessable},
    store::Principal,
};
use toolway_core::{
    catalog::{Catalog, DroppedTool, Offered, ServerRisk, ServerTools},
    policy::ClientPolicy,
};
use toolway_protocol::tool::{CallError, ServerId, ToolCall, ToolResult};

/// The server that a session's functions are of, in the log and in [`Offered::server`].
const SERVER: &str = "caller";

/// What a caller's functions are offered as for a limited time.
///
/// Agents know it by its token, the caller by its id; neither leads to the other.
pub struct LendingSession {
    /// The caller's name for it.
    pub(super) id: Secret,
    /// The agents' name for it.
    pub(super) token: Secret,
    /// Whose it is.
    pub(super) owner: Principal,
    /// Tells agents apart from those of other sessions, in what is kept and logged; not secret.
    pub(super) number: u64,
    about: SessionInfo,
    catalog: Arc<Catalog>,
    tools: Vec<Arc<Offered>>,
    /// Where the arguments of open calls find place.
    pub(super) arguments: ByteBudget,
    /// The place of the definitions.
    _reservation: Reservation,
    /// The length of the definitions, as they came.
    pub(super) bytes: usize,
    pub(super) state: Mutex<LentSessionState>,
    /// Grows with every change that a reader of the events, or a task that waits for the end, has to look at.
    changed: watch::Sender<u64>,
    pub(super) policy: ClientPolicy,
    pub(super) confirmations: Arc<Confirmations>,
}

/// What is fixed when a session begins.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// What it calls itself.
    pub name: Option<String>,
    /// For the models of agents.
    pub instructions: Option<String>,
    /// When it began, in seconds since 1970.
    pub created: u64,
    /// When it ends, in seconds since 1970.
    pub expires_at: u64,
    /// The same on the clock that counts.
    pub expires: Instant,
    /// Longest wait of a call for its answer.
    pub call_timeout: Duration,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Its time was up.
    Expired,
    /// Its caller ended it.
    Deleted,
    /// toolway is shutting down.
    Stopped,
}

#[derive(Default)]
pub(super) struct LentSessionState {
    pub(super) ledger: Ledger<oneshot::Sender<Result<ToolResult, CallError>>>,
    /// Which reading of the events is the one that counts; each new one takes over.
    pub(super) reading: u64,
    pub(super) has_reader: bool,
    pub(super) ended: Option<SessionEnd>,
}

/// What became of answers, by the ids of their calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Handed to the waiting calls.
    pub accepted: Vec<String>,
    /// No such call is open: it never was, it was cancelled, or it took too long.
    pub unknown: Vec<String>,
    /// The call had its answer before; the first one counts.
    pub answered_already: Vec<String>,
}

impl SessionEnd {
    /// For agents whose calls end with it.
    fn reason(self) -> &'static str {
        match self {
            SessionEnd::Expired => "the session that lent this tool has expired",
            SessionEnd::Deleted => "the session that lent this tool was ended by its owner",
            SessionEnd::Stopped => "the gateway is stopping",
        }
    }
}

/// How a session is put together.
pub(super) struct SessionParts {
    pub(super) number: u64,
    pub(super) owner: Principal,
    pub(super) order: SessionRequest,
    pub(super) about: SessionInfo,
    /// Where the arguments of open calls find place.
    pub(super) arguments: ByteBudget,
    /// The place of the definitions.
    pub(super) reservation: Reservation,
    /// How many bytes that are.
    pub(super) bytes: usize,
    /// What decides on calls; borrowers have no key.
    pub(super) policy: ClientPolicy,
    pub(super) confirmations: Arc<Confirmations>,
}

impl LendingSession {
    /// Compiles the order's functions; with thousands of them this takes a while.
    pub(super) fn new(parts: SessionParts) -> Result<LendingSession, super::OpenSessionError> {
        let server = ServerId::parse(SERVER).expect("it is made of letters");
        let order = parts.order;
        let listed = ServerTools {
            server,
            stateful: false,
            risk: ServerRisk::default(),
            tools: order.tools,
            dropped: Vec::new(),
        };
        let catalog = Arc::new(Catalog::build(std::slice::from_ref(&listed)));
        if let Some((_, DroppedTool { name, reason })) = catalog.dropped().first() {
            return Err(super::OpenSessionError::Tool {
                name: name.clone(),
                reason: reason.clone(),
            });
        }
        let tools = in_order(&catalog, &listed);
        let unguessable = |prefix: &str| -> Result<Secret, super::OpenSessionError> {
            let text = unguessable().map_err(|_| super::OpenSessionError::NoRandomness)?;
            Ok(Secret::new(format!("{prefix}{text}")))
        };
        Ok(LendingSession {
            id: unguessable("mcps_")?,
            token: unguessable("")?,
            owner: parts.owner,
            number: parts.number,
            about: parts.about,
            catalog,
            tools,
            arguments: parts.arguments,
            _reservation: parts.reservation,
            bytes: parts.bytes,
            policy: parts.policy,
            confirmations: parts.confirmations,
            state: Mutex::default(),
            changed: watch::Sender::new(0),
        })
    }

    /// The caller's name for it. A client that has it can read calls and answer them.
    pub fn id(&self) -> &str {
        self.id.expose()
    }

    /// The agents' name for it. A client that has it can call the functions.
    pub fn token(&self) -> &str {
        self.token.expose()
    }

    /// Tells this session from all others of the process. Not secret, and of no use for getting in.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What is fixed about it.
    pub fn about(&self) -> &SessionInfo {
        &self.about
    }

    /// The functions, in the order the caller gave them. Agents call each by `tool.name`, its own name; the
    /// prefixed `name` means nothing here.
    pub fn tools(&self) -> &[Arc<Offered>] {
        &self.tools
    }

    /// The function that is called by this name.
    pub fn tool(&self, name: &str) -> Option<&Arc<Offered>> {
        let server = &self.tools.first()?.server;
        self.catalog.find_own(server, name)
    }

    /// The same as a catalog, under prefixed names.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Hands answers to the calls that wait for them. All of them are looked at, whatever becomes of one.
    pub fn respond(&self, answers: Vec<FunctionOutput>) -> Receipt {
        let mut receipt = Receipt::default();
        let mut state = self.lock();
        for FunctionOutput { id, result } in answers {
            let list = match state.ledger.answer(&id) {
                // The waiter may have gone at this moment.
                Answered::Open(waiter) => match waiter.send(Ok(result)) {
                    Ok(()) => &mut receipt.accepted,
                    Err(_) => &mut receipt.unknown,
                },
                Answered::Before => &mut receipt.answered_already,
                Answered::Nothing => &mut receipt.unknown,
            };
            list.push(id);
        }
        receipt
    }

    /// The calls that wait for an answer, as (id, function), the oldest first.
    pub fn open_calls(&self) -> Vec<(String, String)> {
        let state = self.lock();
        let pair = |call: &ToolCall| (call.id.clone(), call.name.clone());
        state.ledger.calls().map(pair).collect()
    }

    /// The events have a reader.
    pub fn has_reader(&self) -> bool {
        self.lock().has_reader
    }

    /// Why it is over, if it is.
    pub fn ended(&self) -> Option<SessionEnd> {
        self.lock().ended
    }

    /// Waits for its end. Cancel safe.
    pub async fn over(&self) -> SessionEnd {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            if let Some(ended) = self.ended() {
                return ended;
            }
            if changes.changed().await.is_err() {
                return SessionEnd::Stopped;
            }
        }
    }

    /// Whose it is.
    pub fn owner(&self) -> Principal {
        self.owner
    }

    /// Ends it: open calls fail, and the reader gets an event. Does nothing if it has ended.
    pub(super) fn end(&self, why: SessionEnd) {
        let waiters = {
            let mut state = self.lock();
            if state.ended.is_some() {
                return;
            }
            state.ended = Some(why);
            state.ledger.end()
        };
        for waiter in waiters {
            // A receiver that is gone has been cancelled, which is as good.
            let _ = waiter.send(Err(gone(why, false)));
        }
        self.notify();
        tracing::info!(session = self.number, why = ?why, "An MCP session has ended");
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LentSessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.changed.send_modify(|changes| *changes += 1);
    }
}

/// Names and functions are private and never logged.
impl fmt::Debug for LendingSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.number)
    }
}

/// What a call gets from a session that is over.
pub(super) fn gone(why: SessionEnd, unsent: bool) -> CallError {
    CallError::UpstreamUnavailable {
        message: why.reason().to_owned(),
        unsent,
    }
}

/// The functions in the order of their list, which the catalog does not keep.
fn in_order(catalog: &Catalog, listed: &ServerTools) -> Vec<Arc<Offered>> {
    let by_name: std::collections::HashMap<&str, &Arc<Offered>> = catalog
        .offered()
        .iter()
        .map(|offered| (offered.tool.name.as_str(), offered))
        .collect();
    let tools = listed.tools.iter();
    tools
        .filter_map(|tool| by_name.get(tool.name.as_str()).map(|it| (*it).clone()))
        .collect()
}
