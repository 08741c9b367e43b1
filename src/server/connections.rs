//! The open connections and their requests: what each waits for, and which connections are closed for that.
//!
//! A request of a chat or of MCP takes its place of `max_requests` when its body is complete, so that unfinished
//! bodies keep no other request out. Read next: `admission`, the rules.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{BoxError, body::Bytes};
use futures::future::BoxFuture;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::{task::AbortHandle, time::Instant};

use super::{
    admission::{self, Awaiting, Peer, Snapshot},
    error::Refusal,
    places::{Holder, Places},
};

/// Nothing of a request has come.
const IDLE: u8 = 0;
/// A part of a head has come.
const HEAD: u8 = 1;
/// HTTP/2, which reads heads and other frames alike.
const HTTP_2: u8 = 2;
/// No longer HTTP.
const UPGRADED: u8 = 3;

/// An HTTP/2 client may send up to this many bytes without a request, such as PING frames and their answers.
const PROBE: usize = 128;

/// When an HTTP/2 client cancels this many requests in a row, its connection is closed: each one costs toolway work,
/// and the client almost nothing.
const MAX_GIVEN_UP: u32 = 1000;

/// The bounds of all connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    /// Most connections.
    pub(super) max: usize,
    /// Most requests that are served side by side.
    pub(super) max_requests: usize,
    /// The number of API keys.
    pub(super) keys: usize,
    /// Longest time for which a client reads nothing of what is ready for it.
    pub(super) stall: Duration,
}

/// Every open connection, and the places of their requests.
pub(super) struct Connections {
    /// Most connections.
    max: usize,
    stall: Duration,
    places: Places,
    /// Seconds since the start, as the last call of [`Connections::sweep`] had them.
    begun: Instant,
    now: AtomicU32,
    table: Mutex<ConnectionTable>,
}

#[derive(Default)]
struct ConnectionTable {
    /// The number of connections accepted so far.
    accepted: u64,
    open: HashMap<u64, OpenConnection>,
    /// The number of connections per address.
    by_peer: HashMap<Peer, usize>,
    /// The connections of addresses that have reached their share, collected since the last sweep.
    crowds: HashMap<Peer, Crowd>,
}

/// The connections of one address. The clock advances only with a sweep, so no further connection becomes old enough to
/// be closed before the next sweep, and the table is not scanned for each new connection.
struct Crowd {
    /// Unfinished requests; those that finished since are not subtracted.
    unfinished: usize,
    /// Connections that could be closed, the oldest last.
    closable: Vec<u64>,
}

struct OpenConnection {
    connection: Arc<Connection>,
    /// Known as soon as its task is.
    task: Option<AbortHandle>,
}

/// One connection.
pub(super) struct Connection {
    all: Arc<Connections>,
    id: u64,
    peer: Peer,
    /// Requests on it.
    requests: AtomicU32,
    /// Those whose bodies are complete.
    complete: AtomicU32,
    /// When it began to wait, in seconds since the start.
    since: AtomicU32,
    stage: AtomicU8,
    /// Requests in a row that were given up before their answers were complete.
    given_up: AtomicU32,
    /// What the connection does when it is no longer HTTP.
    upgraded: Mutex<Option<BoxFuture<'static, ()>>>,
}

/// A connection's entry in the table; dropping it removes the entry.
pub(super) struct RegisteredConnection(pub(super) Arc<Connection>);

impl Connections {
    pub(super) fn new(config: Config) -> Arc<Connections> {
        Arc::new(Connections {
            max: config.max,
            stall: config.stall,
            places: Places::new(config.max_requests, config.keys),
            begun: Instant::now(),
            now: AtomicU32::new(0),
            table: Mutex::default(),
        })
    }

    /// Most connections.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Adds a connection. If its address has reached its share, the oldest unfinished connection of that address is
    /// closed. Returns whether one was closed.
    pub(super) fn add(self: &Arc<Self>, address: IpAddr) -> (RegisteredConnection, bool) {
        let peer = Peer::of(address);
        let mut table = self.table();
        let share = admission::share_of_peer(self.max);
        let connections = table.by_peer.get(&peer);
        let has_made_room = connections.is_some_and(|count| *count >= share)
            && table.make_room_of(peer, share, self.now());
        table.accepted += 1;
        let id = table.accepted;
        *table.by_peer.entry(peer).or_default() += 1;
        let connection = Arc::new(Connection {
            all: Arc::clone(self),
            id,
            peer,
            requests: AtomicU32::new(0),
            complete: AtomicU32::new(0),
            since: AtomicU32::new(self.now()),
            stage: AtomicU8::new(IDLE),
            given_up: AtomicU32::new(0),
            upgraded: Mutex::default(),
        });
        let open = OpenConnection {
            connection: Arc::clone(&connection),
            task: None,
        };
        table.open.insert(id, open);
        (RegisteredConnection(connection), has_made_room)
    }

    /// Sets the task of a connection, which is aborted to close the connection.
    pub(super) fn runs_in(&self, id: u64, task: AbortHandle) {
        if let Some(open) = self.table().open.get_mut(&id) {
            open.task = Some(task);
        }
    }

    /// Closes the connection that makes room first, if it is at least `young` seconds old. Returns false if there is
    /// none.
    pub(super) fn make_room(&self, young: u32) -> bool {
        let mut table = self.table();
        let all: Vec<_> = table.snapshots().collect();
        match admission::oldest_of_largest(&all, self.now(), young) {
            Some(oldest) => table.close(oldest.id),
            None => false,
        }
    }

    /// Closes what is overdue or too much for one address.
    pub(super) fn sweep(&self) {
        let now = u32::try_from(self.begun.elapsed().as_secs()).unwrap_or(u32::MAX);
        let mut table = self.table();
        self.now.store(now, Relaxed);
        table.crowds.clear();
        let all = table.snapshots().collect();
        let closed = admission::to_close(all, now, admission::share_of_peer(self.max));
        for id in &closed {
            table.close(*id);
        }
        drop(table);
        if !closed.is_empty() {
            let connections = closed.len();
            tracing::debug!(connections, "Closed connections without a complete request");
        }
    }

    /// Closes all of them, whatever they do.
    pub(super) fn close_all(&self) {
        for open in self.table().open.values() {
            if let Some(task) = &open.task {
                task.abort();
            }
        }
    }

    /// Some connection has no request in progress and could make room.
    pub(super) fn has_unfinished(&self) -> bool {
        let table = self.table();
        table.snapshots().any(|it| it.awaiting != Awaiting::Nothing)
    }

    fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    /// The connections that can be closed: not the new one, and none that is closed already.
    fn snapshots(&self) -> impl Iterator<Item = Snapshot> {
        let running = self.open.values().filter(|open| open.task.is_some());
        running.map(|open| open.connection.snapshot())
    }

    /// Closes the oldest unfinished connection of an address that has reached its share of unfinished requests, to make
    /// room for a new connection of that address.
    fn make_room_of(&mut self, peer: Peer, share: usize, now: u32) -> bool {
        let mut crowd = self.crowds.remove(&peer).unwrap_or_else(|| {
            let own: Vec<_> = self.snapshots().filter(|it| it.peer == peer).collect();
            Crowd {
                unfinished: own.iter().map(|it| it.unfinished).sum(),
                closable: admission::by_age(own, now),
            }
        });
        let mut has_made_room = false;
        while crowd.unfinished >= share
            && !has_made_room
            && let Some(id) = crowd.closable.pop()
        {
            let open = self.open.get(&id);
            let oldest = open.map(|open| open.connection.snapshot());
            if let Some(oldest) = oldest.filter(|it| it.can_be_closed(now, admission::YOUNG)) {
                crowd.unfinished = crowd.unfinished.saturating_sub(oldest.unfinished);
                has_made_room = self.close(id);
            }
        }
        crowd.unfinished += 1;
        self.crowds.insert(peer, crowd);
        has_made_room
    }

    /// The task ends a little later and removes the entry.
    fn close(&mut self, id: u64) -> bool {
        let task = self.open.get_mut(&id).and_then(|open| open.task.take());
        task.as_ref().map(AbortHandle::abort).is_some()
    }
}

impl Connection {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Longest time for which its client reads nothing of what is ready for it.
    pub(super) fn stall(&self) -> Duration {
        self.all.stall
    }

    /// Bytes came from the client.
    pub(super) fn received(&self) {
        if self.stage.load(Relaxed) == UPGRADED {
            self.touch();
        }
        if self.stage.load(Relaxed) == IDLE && self.requests.load(Relaxed) == 0 {
            self.stage.store(HEAD, Relaxed);
            self.touch();
        }
    }

    /// The client read this many bytes. In HTTP/2 and after an upgrade they may be only a probe, which keeps nothing
    /// alive.
    pub(super) fn sent(&self, bytes: usize) {
        if bytes > PROBE || !matches!(self.stage.load(Relaxed), HTTP_2 | UPGRADED) {
            self.touch();
        }
    }

    /// It speaks HTTP/2.
    pub(super) fn is_http_2(&self) {
        self.stage.store(HTTP_2, Relaxed);
    }

    /// A request has begun.
    pub(super) fn begin(self: &Arc<Self>) -> Arc<Ticket> {
        self.requests.fetch_add(1, Relaxed);
        if self.stage.load(Relaxed) == HEAD {
            self.stage.store(IDLE, Relaxed);
        }
        self.touch();
        Arc::new(Ticket {
            connection: Arc::clone(self),
            state: Mutex::default(),
        })
    }

    /// A request has come whole, in a message of a connection that is no longer HTTP.
    pub(super) fn begin_whole(self: &Arc<Self>) -> Arc<Ticket> {
        let ticket = self.begin();
        // No place is wanted yet.
        let _ = ticket.body_is_complete();
        ticket
    }

    /// When HTTP ends on it, it does this. Its client has to send something from time to time.
    pub(super) fn upgrade(&self, work: BoxFuture<'static, ()>) {
        self.stage.store(UPGRADED, Relaxed);
        *self.upgraded() = Some(work);
    }

    /// What it does after HTTP.
    pub(super) fn take_upgraded(&self) -> Option<BoxFuture<'static, ()>> {
        self.upgraded().take()
    }

    fn upgraded(&self) -> MutexGuard<'_, Option<BoxFuture<'static, ()>>> {
        self.upgraded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        self.since.store(self.all.now(), Relaxed);
    }

    fn snapshot(&self) -> Snapshot {
        let requests = self.requests.load(Relaxed);
        let complete = self.complete.load(Relaxed);
        let awaiting = match (requests, complete) {
            (0, _) if self.stage.load(Relaxed) == HEAD => Awaiting::Head,
            (0, _) => Awaiting::Request,
            (_, 0) => Awaiting::Bodies,
            _ => Awaiting::Nothing,
        };
        let unfinished = match requests {
            0 => 1,
            _ => requests.saturating_sub(complete) as usize,
        };
        Snapshot {
            id: self.id,
            peer: self.peer,
            awaiting,
            since: self.since.load(Relaxed),
            unfinished,
        }
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        let Connection { all, id, peer, .. } = &*self.0;
        // It holds the connection.
        drop(self.0.take_upgraded());
        let mut table = all.table();
        table.open.remove(id);
        if let Entry::Occupied(mut count) = table.by_peer.entry(*peer) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// One request, from its head until its response was sent. It holds the request's place. Its connection is not idle
/// while it exists.
pub(super) struct Ticket {
    connection: Arc<Connection>,
    state: Mutex<TicketState>,
}

#[derive(Default)]
struct TicketState {
    /// The body of the request has come.
    is_complete: bool,
    /// The answer was sent completely. Known for HTTP/2 only, where a connection outlives a cancelled request.
    is_answered: bool,
    place: TicketPlace,
}

#[derive(Clone, Copy, Default)]
enum TicketPlace {
    #[default]
    None,
    /// Taken when the body is complete.
    Wanted(Holder),
    Reservation(Holder),
}

impl Ticket {
    /// The connection of the request.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Takes a place for the request: at once, or when its body is complete if `after_body`. Where all places are
    /// taken it is refused at once.
    pub(super) fn take_place(&self, holder: Holder, after_body: bool) -> Result<(), Refusal> {
        let places = &self.connection.all.places;
        let mut state = self.state();
        if after_body && !state.is_complete {
            if places.is_full() {
                return Err(Refusal::Overloaded);
            }
            state.place = TicketPlace::Wanted(holder);
            return Ok(());
        }
        places.take(holder)?;
        state.place = TicketPlace::Reservation(holder);
        Ok(())
    }

    /// Gives the place back before the end.
    pub(super) fn leave_place(&self) {
        let mut state = self.state();
        if let TicketPlace::Reservation(holder) = state.place {
            self.connection.all.places.give_back(holder);
        }
        state.place = TicketPlace::None;
    }

    /// The answer was given whole.
    pub(super) fn is_answered(&self) {
        self.connection.given_up.store(0, Relaxed);
        self.state().is_answered = true;
    }

    /// The body of the request is complete.
    fn body_is_complete(&self) -> Result<(), Refusal> {
        let mut state = self.state();
        if !state.is_complete {
            state.is_complete = true;
            self.connection.complete.fetch_add(1, Relaxed);
        }
        if let TicketPlace::Wanted(holder) = state.place {
            state.place = TicketPlace::None;
            self.connection.all.places.take(holder)?;
            state.place = TicketPlace::Reservation(holder);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave_place();
        let connection = &self.connection;
        let (is_complete, is_answered) = {
            let state = self.state();
            (state.is_complete, state.is_answered)
        };
        if is_complete {
            connection.complete.fetch_sub(1, Relaxed);
        }
        if !is_answered && connection.stage.load(Relaxed) == HTTP_2 {
            let in_a_row = connection.given_up.fetch_add(1, Relaxed) + 1;
            if in_a_row == MAX_GIVEN_UP {
                connection.all.table().close(connection.id);
            }
        }
        connection.touch();
        connection.requests.fetch_sub(1, Relaxed);
    }
}

/// The body of a request on its way in.
pub(super) struct Arriving {
    body: Incoming,
    ticket: Arc<Ticket>,
}

impl Arriving {
    pub(super) fn new(body: Incoming, ticket: Arc<Ticket>) -> Arriving {
        if body.is_end_stream() {
            // No place is wanted yet.
            let _ = ticket.body_is_complete();
        }
        Arriving { body, ticket }
    }
}

impl http_body::Body for Arriving {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Arriving { body, ticket } = self.get_mut();
        Poll::Ready(match ready!(Pin::new(body).poll_frame(cx)) {
            Some(frame) => Some(frame.map_err(Into::into)),
            None => match ticket.body_is_complete() {
                Ok(()) => None,
                Err(refusal) => Some(Err(Box::new(NoPlace(refusal)))),
            },
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        // A reader that knows the length does not poll for the end.
        if self.body.is_end_stream() {
            let _ = self.ticket.body_is_complete();
        }
    }
}

/// The body is complete, but there is no place for its request.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no place for the request")]
pub(super) struct NoPlace(pub(super) Refusal);

#[cfg(test)]
mod tests {
    use tokio::{task::JoinHandle, time::advance};

    use super::*;

    fn some(max: usize, max_requests: usize) -> Arc<Connections> {
        Connections::new(Config {
            max,
            max_requests,
            keys: 0,
            stall: Duration::from_secs(60),
        })
    }

    fn connection(all: &Arc<Connections>) -> RegisteredConnection {
        all.add("192.0.2.1".parse().unwrap()).0
    }

    #[test]
    fn a_request_takes_its_place_when_its_body_is_complete() {
        let all = some(9, 1);
        let open = connection(&all);
        let (first, second) = (open.0.begin(), open.0.begin());
        first.take_place(Holder::Anyone, true).unwrap();
        second.take_place(Holder::Anyone, true).unwrap();
        second.body_is_complete().unwrap();
        assert_eq!(first.body_is_complete(), Err(Refusal::Overloaded));
        let third = open.0.begin();
        let refused = Err(Refusal::Overloaded);
        assert_eq!(third.take_place(Holder::Anyone, true), refused);
        drop(second);
        third.take_place(Holder::Anyone, false).unwrap();
        assert_eq!(first.take_place(Holder::Anyone, false), refused);
        third.leave_place();
        first.take_place(Holder::Anyone, false).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_upgraded_connection_is_kept_by_what_its_client_sends() {
        let all = some(9, 9);
        let open = connection(&all);
        open.0.upgrade(Box::pin(async {}));
        for sent in [0, PROBE, PROBE + 1] {
            let since = open.0.snapshot().since;
            advance(Duration::from_secs(5)).await;
            all.sweep();
            open.0.sent(sent);
            let is_kept = open.0.snapshot().since > since;
            assert_eq!(is_kept, sent > PROBE, "{sent}");
        }
        advance(Duration::from_secs(5)).await;
        all.sweep();
        open.0.received();
        let snapshot = open.0.snapshot();
        assert_eq!((snapshot.awaiting, snapshot.since), (Awaiting::Request, 20));
        let ticket = open.0.begin_whole();
        assert_eq!(open.0.snapshot().awaiting, Awaiting::Nothing);
        drop(ticket);
        drop(open);
        assert_eq!(Arc::strong_count(&all), 1, "nothing holds the connection");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_connection_waits_for_is_known() {
        let all = some(9, 9);
        let open = connection(&all);
        let awaiting = || open.0.snapshot().awaiting;
        assert_eq!(awaiting(), Awaiting::Request);
        advance(Duration::from_secs(3)).await;
        all.sweep();
        open.0.received();
        assert_eq!(awaiting(), Awaiting::Head);
        advance(Duration::from_secs(2)).await;
        all.sweep();
        open.0.received();
        assert_eq!(open.0.snapshot().since, 3, "the head began then");
        let ticket = open.0.begin();
        assert_eq!(awaiting(), Awaiting::Bodies);
        ticket.body_is_complete().unwrap();
        assert_eq!(awaiting(), Awaiting::Nothing);
        assert_eq!(open.0.snapshot().unfinished, 0);
        drop(ticket);
        assert_eq!(awaiting(), Awaiting::Request);
        assert_eq!(open.0.snapshot().since, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_its_share_makes_room_with_its_oldest() {
        let all = some(8, 9);
        let mut open: Vec<(RegisteredConnection, JoinHandle<()>)> = Vec::new();
        let come = |open: &mut Vec<_>| {
            let (registered, has_made_room) = all.add("192.0.2.1".parse().unwrap());
            let task = tokio::spawn(std::future::pending::<()>());
            all.runs_in(registered.0.id(), task.abort_handle());
            open.push((registered, task));
            has_made_room
        };
        let second = async || {
            advance(Duration::from_secs(1)).await;
            all.sweep();
        };
        assert!((0..3).all(|_| !come(&mut open)), "it has not its share");
        second().await;
        come(&mut open);
        second().await;
        assert!(come(&mut open));
        // A request in progress keeps its place, although the connection was idle at the sweep.
        let ticket = open[1].0.0.begin();
        ticket.body_is_complete().unwrap();
        assert!(come(&mut open));
        assert!(!come(&mut open), "the rest is young");
        second().await;
        assert!(come(&mut open));
        tokio::task::yield_now().await;
        let closed = open.iter().map(|(_, task)| task.is_finished());
        let closed: Vec<_> = closed
            .enumerate()
            .filter_map(|(at, is)| is.then_some(at))
            .collect();
        assert_eq!(closed, [0, 2, 3]);
    }

    #[test]
    fn a_connection_that_is_gone_is_counted_no_more() {
        let all = some(9, 9);
        let open = connection(&all);
        assert_eq!(all.table().by_peer.len(), 1);
        drop(open);
        assert!(all.table().by_peer.is_empty());
        assert!(all.table().open.is_empty());
    }
}
