//! The requests that run on one connection, and whom of their callers a server means when it turns to somebody.
//!
//! **Invariant:** nothing that a server says or asks in the course of one caller's request reaches another caller.
//! Where the transport does not tell which request is meant, it is everybody's or nobody's.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Caller;

/// A request under way that was made for somebody, be it a caller or a chat.
pub(super) struct Running {
    caller: Option<Arc<dyn Caller>>,
    /// Questions of the server that wait for the caller's answer.
    questions: watch::Sender<usize>,
    over: CancellationToken,
}

/// Ties a message on its way through rmcp to the request it stands for; never on the wire.
#[derive(Clone, Debug)]
pub(super) struct Errand(pub(super) Weak<Running>);

/// Whom a server means.
#[derive(Debug)]
pub(super) enum Meant {
    /// The caller of these requests; never empty.
    Caller(Vec<Arc<Running>>),
    /// A request that was made for a chat, or for toolway itself.
    NoCaller,
    /// No request that runs.
    Nobody,
    /// One of several, and it cannot be told which.
    OneOfSeveral,
}

impl Running {
    /// A request that begins; it is over when this token is cancelled.
    pub(super) fn new(caller: Option<Arc<dyn Caller>>, over: CancellationToken) -> Arc<Running> {
        Arc::new(Running {
            caller,
            questions: watch::Sender::new(0),
            over,
        })
    }

    pub(super) fn caller(&self) -> Option<&Arc<dyn Caller>> {
        self.caller.as_ref()
    }

    /// How many questions wait for the caller's answer, now and whenever that changes.
    pub(super) fn questions(&self) -> watch::Receiver<usize> {
        self.questions.subscribe()
    }

    /// Counts a question as waiting until this is dropped.
    pub(super) fn open_question(self: &Arc<Self>) -> OpenQuestion {
        self.questions.send_modify(|count| *count += 1);
        OpenQuestion(Arc::clone(self))
    }

    /// Waits for the end of the request. Cancel safe.
    pub(super) async fn over(&self) {
        self.over.cancelled().await;
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }
}

/// A question that waits for its answer.
pub(super) struct OpenQuestion(Arc<Running>);

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        self.0.questions.send_modify(|count| *count -= 1);
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("caller", &self.caller.is_some())
            .finish_non_exhaustive()
    }
}

/// Whom a server means that may speak of any of these requests.
///
/// A request without a caller counts: what is asked for its sake is no caller's business.
pub(super) fn meant(running: Vec<Arc<Running>>) -> Meant {
    let Some(first) = running.first() else {
        return Meant::Nobody;
    };
    let address = |it: &Arc<Running>| it.caller.as_ref().map(|it| Arc::as_ptr(it).cast::<()>());
    let same = address(first);
    match same {
        _ if running.iter().any(|it| address(it) != same) => Meant::OneOfSeveral,
        None => Meant::NoCaller,
        Some(_) => Meant::Caller(running),
    }
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use serde_json::Value;

    use super::*;
    use crate::mcp::rpc::RpcError;

    struct Silent(Value);

    impl Caller for Silent {
        fn capabilities(&self) -> &Value {
            &self.0
        }

        fn ask<'a>(&'a self, _: &'a str, _: Value) -> BoxFuture<'a, Result<Value, RpcError>> {
            Box::pin(std::future::pending())
        }

        fn tell(&self, _: &str, _: Value) {}
    }

    fn caller() -> Arc<dyn Caller> {
        Arc::new(Silent(Value::Null))
    }

    fn running(caller: Option<&Arc<dyn Caller>>) -> Arc<Running> {
        Running::new(caller.cloned(), CancellationToken::new())
    }

    #[test]
    fn requests_of_one_caller_mean_that_caller() {
        let one = caller();
        let both = vec![running(Some(&one)), running(Some(&one))];
        assert!(matches!(meant(both), Meant::Caller(both) if both.len() == 2));
    }

    #[test]
    fn requests_of_several_mean_nobody_for_sure() {
        let (one, other) = (caller(), caller());
        for both in [[Some(&one), Some(&other)], [Some(&one), None]] {
            let both = both.map(running).to_vec();
            assert!(matches!(meant(both), Meant::OneOfSeveral));
        }
    }

    #[test]
    fn a_request_without_a_caller_means_no_caller() {
        assert!(matches!(meant(vec![running(None)]), Meant::NoCaller));
        assert!(matches!(meant(Vec::new()), Meant::Nobody));
    }

    #[test]
    fn a_question_counts_until_it_is_answered() {
        let running = running(Some(&caller()));
        let questions = running.questions();
        let open = running.open_question();
        assert_eq!(*questions.borrow(), 1);
        drop(open);
        assert_eq!(*questions.borrow(), 0);
    }
}
