//! The requests that run on one connection, and which of their callers a server addresses with a request of its own.
//!
//! **Invariant:** nothing that a server says or asks in the course of one caller's request reaches another caller.
//! Where the transport does not tell which request is meant, it is for all of them or for none.

use std::{
    collections::VecDeque,
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use rmcp::model::ErrorData;
use serde_json::Value;
use tokio::sync::Notify;

use crate::upstream::{mcp::Caller, queue::QueueSlot};
use toolway_protocol::tool::Progress;

/// Progress that may wait to be seen, per request; more is left out.
const WAITING: usize = 16;

/// A running request that was made for a caller or a chat.
pub(in crate::upstream::mcp) struct Running {
    caller: Option<Arc<dyn Caller>>,
    /// Its place in the server's queue; absent for requests of toolway's own.
    place: Option<QueueSlot>,
    /// Questions of the server that wait for the caller's answer.
    questions: AtomicUsize,
    /// Questions that were given to this very request.
    turns: AtomicUsize,
    inbox: Mutex<Inbox>,
    /// Notified when a question is asked or answered, and when the inbox has an entry.
    bell: Notify,
    over: AtomicBool,
    ended: Notify,
}

/// What arrived for a request by another path than its own.
#[derive(Debug, Default)]
struct Inbox {
    progress: VecDeque<Progress>,
    answer: Option<Result<Value, ErrorData>>,
}

/// Ties a message on its way through rmcp to the request it stands for; never on the wire.
#[derive(Clone, Debug)]
pub(in crate::upstream::mcp) struct RequestTag(pub(in crate::upstream::mcp) Weak<Running>);

/// Which client a server addresses with a message of its own.
#[derive(Debug)]
pub(super) enum Recipient {
    /// The client of these requests.
    Client(CandidateRequests),
    /// A request that was made for a chat, or for toolway itself.
    NoCaller,
    /// No request runs.
    Idle,
    /// One of several; the transport does not say which.
    OneOfSeveral,
}

/// Requests of one client; one of them is assumed to be the one that the server means.
#[derive(Debug)]
pub(super) struct CandidateRequests {
    /// All that it may be; never empty.
    pub(in crate::upstream::mcp) all: Vec<Arc<Running>>,
    turn: QuestionTurn,
}

impl CandidateRequests {
    /// The client that receives the message.
    pub(in crate::upstream::mcp) fn caller(&self) -> Option<&Arc<dyn Caller>> {
        self.turn.0.caller.as_ref()
    }

    /// Marks that a person is being asked, until this is dropped. Meanwhile others may use the request's place in the
    /// queue.
    pub(super) fn suspend(&self) -> Suspended {
        let running = Arc::clone(&self.turn.0);
        if let Some(place) = &running.place {
            place.suspend();
        }
        Suspended(running)
    }
}

/// A question that was given to a request, until it is answered.
#[derive(Debug)]
struct QuestionTurn(Arc<Running>);

impl QuestionTurn {
    fn take(running: &Arc<Running>) -> QuestionTurn {
        running.turns.fetch_add(1, Ordering::Relaxed);
        QuestionTurn(Arc::clone(running))
    }
}

impl Drop for QuestionTurn {
    fn drop(&mut self) {
        self.0.turns.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Running {
    /// A request that begins.
    pub(in crate::upstream::mcp) fn new(
        caller: Option<Arc<dyn Caller>>,
        place: Option<QueueSlot>,
    ) -> Arc<Running> {
        Arc::new(Running {
            caller,
            place,
            questions: AtomicUsize::new(0),
            turns: AtomicUsize::new(0),
            inbox: Mutex::default(),
            bell: Notify::new(),
            over: AtomicBool::new(false),
            ended: Notify::new(),
        })
    }

    /// The request is over when this is dropped.
    pub(in crate::upstream::mcp) fn until_dropped(self: &Arc<Self>) -> InFlightGuard {
        InFlightGuard(Arc::clone(self))
    }

    /// Tells clients apart; `None` where there is none.
    fn client(&self) -> Option<(bool, usize)> {
        let caller = self.caller.as_ref()?;
        let address = || (false, Arc::as_ptr(caller).cast::<()>().addr());
        Some(
            caller
                .client()
                .map_or_else(address, |client| (true, client)),
        )
    }

    /// How many questions wait for the caller's answer.
    pub(in crate::upstream::mcp) fn open_questions(&self) -> usize {
        self.questions.load(Ordering::Acquire)
    }

    /// Counts a question as waiting until this is dropped.
    pub(super) fn open_question(self: &Arc<Self>) -> OpenQuestion {
        self.questions.fetch_add(1, Ordering::AcqRel);
        self.bell.notify_one();
        OpenQuestion(Arc::clone(self))
    }

    /// Reports the request's progress.
    pub(super) fn report(&self, progress: Progress) {
        let mut inbox = self.inbox();
        if inbox.progress.len() < WAITING {
            inbox.progress.push_back(progress);
        }
        drop(inbox);
        self.bell.notify_one();
    }

    /// Delivers an answer that arrived by another path.
    pub(super) fn hand_in(&self, answer: Result<Value, ErrorData>) {
        self.inbox().answer = Some(answer);
        self.bell.notify_one();
    }

    /// Waits for the next event: progress, an answer, a question or the end of one. For one waiting task at a time.
    /// Cancel safe.
    pub(in crate::upstream::mcp) async fn stirs(&self) {
        self.bell.notified().await;
    }

    /// The oldest progress that was not seen.
    pub(in crate::upstream::mcp) fn next_progress(&self) -> Option<Progress> {
        self.inbox().progress.pop_front()
    }

    /// The answer that was handed in.
    pub(in crate::upstream::mcp) fn take_answer(&self) -> Option<Result<Value, ErrorData>> {
        self.inbox().answer.take()
    }

    /// Waits for the end of the request. Cancel safe.
    pub(super) async fn over(&self) {
        let mut ended = pin!(self.ended.notified());
        ended.as_mut().enable();
        if !self.is_over() {
            ended.await;
        }
    }

    pub(in crate::upstream::mcp) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exists while a request is running.
pub(in crate::upstream::mcp) struct InFlightGuard(Arc<Running>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
        if let Some(place) = &self.0.place {
            place.end();
        }
        self.0.ended.notify_waiters();
    }
}

/// A question that waits for its answer.
pub(super) struct OpenQuestion(Arc<Running>);

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        self.0.questions.fetch_sub(1, Ordering::AcqRel);
        self.0.bell.notify_one();
    }
}

/// Exists while a request does not count as running.
pub(super) struct Suspended(Arc<Running>);

impl Drop for Suspended {
    fn drop(&mut self) {
        if let Some(place) = &self.0.place {
            place.resume();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("caller", &self.caller.is_some())
            .finish_non_exhaustive()
    }
}

/// The client that a server addresses, given the requests that it may mean, oldest first.
///
/// A request without a caller counts too: its questions concern no client. Among several requests of one client, the
/// oldest that does not already wait for an answer is chosen, because most servers process requests in order.
pub(super) fn meant(running: Vec<Arc<Running>>) -> Recipient {
    let turns = |it: &&Arc<Running>| it.turns.load(Ordering::Relaxed);
    let Some(next) = running.iter().min_by_key(turns) else {
        return Recipient::Idle;
    };
    let client = next.client();
    if running.iter().any(|it| it.client() != client) {
        return Recipient::OneOfSeveral;
    }
    if client.is_none() {
        return Recipient::NoCaller;
    }
    let turn = QuestionTurn::take(next);
    Recipient::Client(CandidateRequests { all: running, turn })
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;

    use super::*;
    use toolway_protocol::mcp::rpc::RpcError;

    struct Silent(Option<usize>);

    impl Caller for Silent {
        fn capabilities(&self) -> &Value {
            &Value::Null
        }

        fn client(&self) -> Option<usize> {
            self.0
        }

        fn ask<'a>(&'a self, _: &'a str, _: Value) -> BoxFuture<'a, Result<Value, RpcError>> {
            Box::pin(std::future::pending())
        }

        fn tell(&self, _: &str, _: Value) {}
    }

    fn caller() -> Arc<dyn Caller> {
        Arc::new(Silent(None))
    }

    fn running(caller: Option<&Arc<dyn Caller>>) -> Arc<Running> {
        Running::new(caller.cloned(), None)
    }

    #[test]
    fn requests_of_one_caller_mean_that_caller() {
        let one = caller();
        let both = vec![running(Some(&one)), running(Some(&one))];
        assert!(matches!(meant(both), Recipient::Client(both) if both.all.len() == 2));
    }

    #[test]
    fn requests_of_one_client_mean_one_after_another() {
        let callers = [Some(7), Some(7)].map(|client| Arc::new(Silent(client)) as Arc<dyn Caller>);
        let both = [running(Some(&callers[0])), running(Some(&callers[1]))];
        let asked = |meant: &Recipient| match meant {
            Recipient::Client(requests) => callers
                .iter()
                .position(|it| Arc::ptr_eq(it, requests.caller().unwrap())),
            _ => None,
        };
        let first = meant(both.to_vec());
        let second = meant(both.to_vec());
        assert_eq!((asked(&first), asked(&second)), (Some(0), Some(1)));
        drop(first);
        assert_eq!(asked(&meant(both.to_vec())), Some(0));
    }

    #[test]
    fn requests_of_two_clients_mean_nobody_for_sure() {
        let callers = [Some(7), Some(8)].map(|client| Arc::new(Silent(client)) as Arc<dyn Caller>);
        let both = callers.iter().map(|it| running(Some(it))).collect();
        assert!(matches!(meant(both), Recipient::OneOfSeveral));
    }

    #[test]
    fn requests_of_several_mean_nobody_for_sure() {
        let (one, other) = (caller(), caller());
        for both in [[Some(&one), Some(&other)], [Some(&one), None]] {
            let both = both.map(running).to_vec();
            assert!(matches!(meant(both), Recipient::OneOfSeveral));
        }
    }

    #[test]
    fn a_request_without_a_caller_means_no_caller() {
        assert!(matches!(meant(vec![running(None)]), Recipient::NoCaller));
        assert!(matches!(meant(Vec::new()), Recipient::Idle));
    }

    #[test]
    fn a_question_counts_until_it_is_answered() {
        let running = running(Some(&caller()));
        let open = running.open_question();
        assert_eq!(running.open_questions(), 1);
        drop(open);
        assert_eq!(running.open_questions(), 0);
    }

    #[tokio::test]
    async fn a_request_is_over_when_nobody_is_under_it_any_more() {
        let running = running(None);
        let under = running.until_dropped();
        let mut over = pin!(running.over());
        assert!(futures::poll!(&mut over).is_pending() && !running.is_over());
        drop(under);
        over.await;
        running.over().await;
    }

    #[tokio::test]
    async fn progress_waits_to_be_seen_but_not_too_much_of_it() {
        let running = running(None);
        for step in 0..100 {
            running.report(Progress {
                progress: f64::from(step),
                total: None,
                message: None,
            });
        }
        running.stirs().await;
        let seen = std::iter::from_fn(|| running.next_progress());
        let seen: Vec<f64> = seen.map(|it| it.progress).collect();
        assert_eq!((seen.len(), seen[0]), (WAITING, 0.0));
    }
}
