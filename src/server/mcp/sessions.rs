//! The sessions of handshake clients over HTTP: made by `initialize`, ended by DELETE, by idleness, or by newer ones
//! when there are too many. Where there are several keys, each may have half of them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{client_session::ClientSession, outbox::Outbox};
use crate::{
    quota::{Sharing, Victim},
    store::Principal,
};
use toolway_core::translate::paths;

/// Streams of one session that can be taken up again.
const MAX_STREAMS: usize = 8;

/// Largest stream that is kept after its client has read all of it, in bytes.
const MAX_READ: usize = 32 << 10;

/// Most bytes of a stream that are kept for a client that lost its connection. A larger answer is not kept, so that
/// clients cannot fill the memory by requesting large answers and leaving.
const MAX_LEFT: usize = 1 << 20;

/// The number of the stream that GET opens.
pub(super) const UNASKED: u64 = 0;

/// All sessions.
pub(super) struct Sessions {
    table: Mutex<HashMap<String, Arc<Session>>>,
    max: usize,
    idle: Duration,
    sharing: Sharing,
}

/// Why a session was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionsFull {
    /// All sessions of the key are at work, and it may have no more.
    OfKey,
    /// All sessions are at work.
    AtAll,
}

/// The key and endpoint of a session; other keys and endpoints cannot use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) struct SessionOwner {
    /// The path that leads to the endpoint.
    pub(in crate::server) endpoint: String,
    /// A hash of the key.
    pub(in crate::server) principal: Principal,
    /// The key that the session counts for: for lent functions the lender's; 0 without keys.
    pub(in crate::server) account: Principal,
}

/// One session.
pub(super) struct Session {
    pub(super) id: String,
    owner: SessionOwner,
    pub(super) client: Arc<ClientSession>,
    /// What is said unasked.
    pub(super) unasked: Arc<Outbox>,
    streams: Mutex<VecDeque<(u64, Arc<Outbox>)>>,
    counted: AtomicU64,
    used: Mutex<Instant>,
    /// Cancelled when the session ends, so that all its work stops.
    pub(super) gone: CancellationToken,
}

impl Sessions {
    /// None yet.
    pub(super) fn new(max: usize, idle: Duration, sharing: Sharing) -> Sessions {
        Sessions {
            table: Mutex::default(),
            max,
            idle,
            sharing,
        }
    }

    /// How many keys share the sessions.
    pub(super) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Adds a session. If there are too many, or its key has reached its share, the session that was idle for longest
    /// is closed. At lent functions that is one of the same endpoint, so that a client that knows the URL ends no other
    /// sessions.
    ///
    /// # Errors
    /// All that could make room are at work.
    pub(super) fn add(
        &self,
        id: String,
        owner: SessionOwner,
        client: ClientSession,
    ) -> Result<(), SessionsFull> {
        let mut table = self.table();
        let is_own = |session: &Session| session.owner.account == owner.account;
        let own = table.values().filter(|it| is_own(it)).count();
        let has_share = self.sharing == Sharing::Several && own >= self.sharing.share(self.max);
        if has_share || table.len() >= self.max {
            let only_own = has_share || Victim::choose(own, self.max) == Victim::Own;
            let makes_room = |it: &Session| match paths::lent_token(&owner.endpoint) {
                Some(_) => it.owner.endpoint == owner.endpoint,
                None => !only_own || is_own(it),
            };
            let idle = table
                .values()
                .filter(|it| !it.is_at_work() && makes_room(it));
            let oldest = idle.min_by_key(|it| it.used()).map(|it| it.id.clone());
            let oldest = oldest.and_then(|id| table.remove(&id));
            let full = if has_share {
                SessionsFull::OfKey
            } else {
                SessionsFull::AtAll
            };
            oldest.ok_or(full)?.gone.cancel();
        }
        let session = Arc::new(Session {
            id: id.clone(),
            owner,
            client: Arc::new(client),
            unasked: Arc::default(),
            streams: Mutex::default(),
            counted: AtomicU64::new(UNASKED + 1),
            used: Mutex::new(Instant::now()),
            gone: CancellationToken::new(),
        });
        table.insert(id, session);
        Ok(())
    }

    /// The session of this id, if it is this owner's.
    pub(super) fn find(&self, id: &str, owner: &SessionOwner) -> Option<Arc<Session>> {
        let session = self
            .table()
            .get(id)
            .filter(|it| it.owner == *owner)
            .cloned()?;
        session.touch();
        Some(session)
    }

    /// Ends a session. False: there is none.
    pub(super) fn end(&self, id: &str, owner: &SessionOwner) -> bool {
        let mut table = self.table();
        let is_there = table.get(id).is_some_and(|it| it.owner == *owner);
        if is_there && let Some(session) = table.remove(id) {
            session.gone.cancel();
        }
        is_there
    }

    /// Ends sessions that were idle for too long, and those at an endpoint that has ended, for ever. `ends` changes
    /// when an endpoint ends.
    pub(super) async fn sweep(&self, mut ends: watch::Receiver<u64>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.idle / 4) => {}
                Ok(()) = ends.changed() => {}
            }
            self.table().retain(|_, session| {
                let is_used = session.is_at_work() || session.used().elapsed() < self.idle;
                let stays = is_used && !session.client.view().is_over();
                if !stays {
                    session.gone.cancel();
                }
                stays
            });
        }
    }

    /// The number of sessions.
    pub(super) fn count(&self) -> usize {
        self.table().len()
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// The part of its id that may be logged.
    pub(super) fn short(&self) -> &str {
        self.id.get(..8).unwrap_or_default()
    }

    /// Keeps a stream so that it can be resumed; returns its number.
    pub(super) fn keep(&self, outbox: Arc<Outbox>) -> u64 {
        let number = self.counted.fetch_add(1, Ordering::Relaxed);
        let mut streams = self.streams();
        streams.push_back((number, outbox));
        if streams.len() > MAX_STREAMS {
            streams.pop_front();
        }
        number
    }

    /// The kept stream of this number.
    pub(super) fn stream(&self, number: u64) -> Option<Arc<Outbox>> {
        if number == UNASKED {
            return Some(Arc::clone(&self.unasked));
        }
        let streams = self.streams();
        let found = streams.iter().find(|(it, _)| *it == number);
        found.map(|(_, outbox)| Arc::clone(outbox))
    }

    /// A client has read a stream to its end. Unless it is large, it is kept, in case the client did not receive all of
    /// it.
    pub(super) fn was_read(&self, number: u64, outbox: &Outbox) {
        if outbox.bytes() > MAX_READ {
            outbox.forget_all_read();
            self.streams().retain(|(it, _)| *it != number);
        }
    }

    /// A client has left a stream, or a message was added to one without a reader.
    pub(super) fn was_left(&self, outbox: &Arc<Outbox>) {
        if !outbox.is_read() && outbox.bytes() > MAX_LEFT {
            self.streams().retain(|(_, it)| !Arc::ptr_eq(it, outbox));
        }
    }

    /// A request or a stream holds it besides the table.
    fn is_at_work(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn streams(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Outbox>)>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
