//! Functions that a caller lends for the time of one job: they become an MCP server under a secret URL, and
//! the calls of its agents are handed to the caller.
//!
//! Read next: [`session`], one such loan; `ledger`, which decides which events a reader gets;
//! `server::mcp_sessions`, the caller's side over HTTP. The agents' side is that of all MCP clients.
//!
//! Everything is in memory and bounded: sessions, their age, their functions, their open calls, and the bytes
//! of all of it together.

pub mod answers;
mod call;
pub mod events;
mod ledger;
pub mod session;
pub mod session_request;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;

use self::{
    session::{LendingSession, SessionEnd, SessionInfo, SessionParts},
    session_request::SessionRequest,
};
use super::confirmations::Confirmations;
use super::failure::Failure;
use crate::store::Principal;
use crate::{byte_budget::ByteBudget, quota::Sharing};
use toolway_core::policy::{ClientPolicy, Policy};

/// Most sessions at one time.
pub const MAX_SESSIONS: usize = 1000;

/// Most bytes of all definitions together, as they came; in memory they are several times as long.
const MAX_DEFINITIONS: usize = 32 << 20;

/// Most bytes of the arguments of all open calls together.
const MAX_ARGUMENTS: usize = 64 << 20;

/// Every session there is.
pub struct McpSessions {
    inner: Arc<SessionTable>,
    /// Ends sessions whose time is up. The task ends with this.
    _sweeping: AbortOnDropHandle<()>,
}

struct SessionTable {
    policy: Arc<Policy>,
    confirmations: Arc<Confirmations>,
    sessions: Mutex<SessionIndex>,
    definitions: ByteBudget,
    arguments: ByteBudget,
    /// When the next session ends may have changed.
    changed: Arc<Notify>,
    /// How many have ended.
    ended: watch::Sender<u64>,
    opened: AtomicU64,
    /// There are several keys, each of which may have half.
    is_shared: AtomicBool,
}

/// Three ways to the same sessions.
#[derive(Default)]
struct SessionIndex {
    by_token: HashMap<String, Arc<LendingSession>>,
    by_id: HashMap<String, Arc<LendingSession>>,
    by_end: BTreeMap<(Instant, u64), Arc<LendingSession>>,
    /// Nothing is opened any more.
    is_closed: bool,
}

/// Why a session was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenSessionError {
    /// The request is at fault.
    #[error(transparent)]
    SessionRequest(#[from] Failure),
    /// There are [`MAX_SESSIONS`], or they hold too much together.
    #[error("too many MCP sessions are open; end those that are done, or try again later")]
    Full,
    /// The key has its share, which is half of them if there are several keys.
    #[error("this key has half of all MCP sessions, which is its share; end those that are done")]
    Share,
    /// A function cannot be offered.
    #[error("`{name}`: {reason}")]
    Tool {
        /// Which.
        name: String,
        /// Why.
        reason: String,
    },
    /// The operating system gave no random bytes.
    #[error("there is no randomness to make a secret of")]
    NoRandomness,
    /// Compiling panicked.
    #[error("the functions could not be compiled")]
    Broken,
    /// toolway is shutting down.
    #[error("the gateway is stopping")]
    Stopping,
}

impl McpSessions {
    /// No sessions yet. Must be called within a Tokio runtime.
    pub(super) fn start(policy: Arc<Policy>, confirmations: Arc<Confirmations>) -> McpSessions {
        let changed = Arc::new(Notify::new());
        let inner = Arc::new(SessionTable {
            sessions: Mutex::default(),
            definitions: ByteBudget::new(MAX_DEFINITIONS),
            arguments: ByteBudget::new(MAX_ARGUMENTS),
            changed: changed.clone(),
            ended: watch::Sender::new(0),
            opened: AtomicU64::new(0),
            is_shared: AtomicBool::new(false),
            policy,
            confirmations,
        });
        let sweeping = tokio::spawn(sweep(Arc::downgrade(&inner), changed));
        McpSessions {
            inner,
            _sweeping: AbortOnDropHandle::new(sweeping),
        }
    }

    /// Sets the number of keys that can open sessions.
    pub fn share_among(&self, keys: usize) {
        let is_shared = Sharing::among(keys) == Sharing::Several;
        self.inner.is_shared.store(is_shared, Ordering::Relaxed);
    }

    /// Opens a session as the body of the request describes it (see [`session_request::read`]). Schemas are compiled on
    /// a thread of their own. Dropping the future opens none.
    ///
    /// # Errors
    /// See [`OpenSessionError`].
    pub async fn open(
        &self,
        body: Bytes,
        owner: Principal,
    ) -> Result<Arc<LendingSession>, OpenSessionError> {
        // What is longer is about to be refused.
        let bytes = body.len().min(session_request::MAX_BYTES);
        // Looked at before the work is done, and again when it is.
        let sharing = self.inner.sharing();
        self.inner.lock().has_place(owner, bytes, sharing)?;
        let reservation = self.inner.definitions.take(bytes);
        let reservation = reservation.ok_or(OpenSessionError::Full)?;
        let parts = (self.inner.number(), self.inner.arguments.clone());
        let policy = Arc::clone(&self.inner.policy);
        let confirmations = Arc::clone(&self.inner.confirmations);
        let compiling = tokio::task::spawn_blocking(move || {
            let (number, arguments) = parts;
            let order = session_request::read(&body)?;
            LendingSession::new(SessionParts {
                number,
                owner,
                about: about(&order),
                order,
                arguments,
                reservation,
                bytes,
                policy: ClientPolicy { policy, key: None },
                confirmations,
            })
        });
        let session = compiling.await.map_err(|_| OpenSessionError::Broken)??;
        let session = Arc::new(session);
        self.inner.lock().add(&session, sharing)?;
        self.inner.changed.notify_one();
        let (number, tools) = (session.number(), session.tools().len());
        tracing::info!(session = number, tools, "Opened an MCP session");
        Ok(session)
    }

    /// The session that agents know by this token.
    pub fn find(&self, token: &str) -> Option<Arc<LendingSession>> {
        let session = self.inner.lock().by_token.get(token).cloned()?;
        self.inner.if_alive(session)
    }

    /// The session that its caller knows by this id, if it is this owner's.
    pub fn find_own(&self, id: &str, owner: Principal) -> Option<Arc<LendingSession>> {
        let session = self.inner.lock().by_id.get(id).cloned()?;
        let session = Some(session).filter(|session| session.owner == owner)?;
        self.inner.if_alive(session)
    }

    /// Ends a caller's session. False if there is none.
    pub fn end(&self, id: &str, owner: Principal) -> bool {
        let session = self.find_own(id, owner);
        if let Some(session) = &session {
            self.inner.remove(session, SessionEnd::Deleted);
        }
        session.is_some()
    }

    /// Ends every session, and opens no more.
    pub fn close(&self) {
        let all = {
            let mut sessions = self.inner.lock();
            sessions.is_closed = true;
            std::mem::take(&mut sessions.by_end)
        };
        for session in all.into_values() {
            self.inner.remove(&session, SessionEnd::Stopped);
        }
    }

    /// Changes whenever a session has ended, for tasks that keep something that belongs to one.
    pub fn ends(&self) -> watch::Receiver<u64> {
        self.inner.ended.subscribe()
    }

    /// The number of sessions.
    pub fn len(&self) -> usize {
        self.inner.lock().by_id.len()
    }

    /// There are no sessions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl SessionTable {
    fn number(&self) -> u64 {
        self.opened.fetch_add(1, Ordering::Relaxed)
    }

    fn sharing(&self) -> Sharing {
        match self.is_shared.load(Ordering::Relaxed) {
            true => Sharing::Several,
            false => Sharing::Alone,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SessionIndex> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, unless it has expired and was not removed yet.
    fn if_alive(&self, session: Arc<LendingSession>) -> Option<Arc<LendingSession>> {
        if Instant::now() < session.about().expires {
            return Some(session);
        }
        self.remove(&session, SessionEnd::Expired);
        None
    }

    fn remove(&self, session: &LendingSession, why: SessionEnd) {
        self.lock().remove(session);
        self.changed.notify_one();
        session.end(why);
        self.ended.send_modify(|ended| *ended += 1);
    }

    /// Ends expired sessions and returns when the next one expires.
    fn sweep(&self) -> Option<Instant> {
        loop {
            let (end, session) = {
                let sessions = self.lock();
                let ((end, _), session) = sessions.by_end.first_key_value()?;
                (*end, session.clone())
            };
            if Instant::now() < end {
                return Some(end);
            }
            self.remove(&session, SessionEnd::Expired);
        }
    }
}

impl SessionIndex {
    /// Checks that there is room for one more session of this owner, with definitions of `bytes` bytes.
    fn has_place(
        &self,
        owner: Principal,
        bytes: usize,
        sharing: Sharing,
    ) -> Result<(), OpenSessionError> {
        if self.is_closed {
            return Err(OpenSessionError::Stopping);
        }
        let own = self.by_id.values().filter(|it| it.owner == owner);
        let (sessions, held) = own.fold((0, 0), |(sessions, held), it| {
            (sessions + 1, held + it.bytes)
        });
        let has_share = sharing == Sharing::Several
            && (sessions >= sharing.share(MAX_SESSIONS)
                || held + bytes > sharing.share(MAX_DEFINITIONS));
        match self.by_id.len() {
            _ if has_share => Err(OpenSessionError::Share),
            MAX_SESSIONS.. => Err(OpenSessionError::Full),
            _ => Ok(()),
        }
    }

    fn add(
        &mut self,
        session: &Arc<LendingSession>,
        sharing: Sharing,
    ) -> Result<(), OpenSessionError> {
        self.has_place(session.owner, session.bytes, sharing)?;
        self.by_token
            .insert(session.token().to_owned(), session.clone());
        self.by_id.insert(session.id().to_owned(), session.clone());
        let end = (session.about().expires, session.number());
        self.by_end.insert(end, session.clone());
        Ok(())
    }

    fn remove(&mut self, session: &LendingSession) {
        self.by_token.remove(session.token());
        self.by_id.remove(session.id());
        self.by_end
            .remove(&(session.about().expires, session.number()));
    }
}

/// The unchanging facts of a session that begins now.
fn about(order: &SessionRequest) -> SessionInfo {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_secs())
        .unwrap_or_default();
    SessionInfo {
        name: order.name.clone(),
        instructions: order.instructions.clone(),
        created,
        expires_at: created + order.life.as_secs(),
        expires: Instant::now() + order.life,
        call_timeout: order.call_timeout,
    }
}

/// Ends sessions as their time comes.
async fn sweep(inner: Weak<SessionTable>, changed: Arc<Notify>) {
    loop {
        let next = match inner.upgrade() {
            Some(inner) => inner.sweep(),
            None => return,
        };
        match next {
            Some(end) => tokio::select! {
                () = sleep_until(end) => {}
                () = changed.notified() => {}
            },
            None => changed.notified().await,
        }
    }
}

#[cfg(test)]
mod tests;
