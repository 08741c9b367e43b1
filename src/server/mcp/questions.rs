//! Requests that go to the client: asked on a stream, answered by a message of its own.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{sync::oneshot, time::timeout};

use super::outbox::{Outbox, notification};
use toolway_protocol::mcp::rpc::{self, RpcError, RpcId, RpcResponse, code};

/// Longest wait for a client's answer, which a person may have to give.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(600);

/// Most questions that wait for answers of one client.
const MAX_OPEN: usize = 64;

type QuestionResult = Result<Value, RpcError>;

/// The questions that one client has not answered yet.
#[derive(Debug, Default)]
pub(super) struct ClientQuestions {
    open: Mutex<HashMap<RpcId, oneshot::Sender<QuestionResult>>>,
    asked: AtomicU64,
}

/// Cancels a question when it is dropped before the answer arrived.
struct PendingQuestion<'q> {
    questions: &'q ClientQuestions,
    outbox: &'q Outbox,
    id: RpcId,
}

impl ClientQuestions {
    /// Asks, and waits for the answer. Dropping the future cancels the question.
    ///
    /// # Errors The client's error; or the client did not answer in time, or has too many open questions.
    pub(super) async fn ask(&self, outbox: &Outbox, method: &str, params: Value) -> QuestionResult {
        let id = RpcId::from(self.asked.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = oneshot::channel();
        {
            let mut open = self.open();
            if open.len() >= MAX_OPEN {
                return Err(failed("the client has too much to answer"));
            }
            open.insert(id.clone(), answer);
        }
        let asked = PendingQuestion {
            questions: self,
            outbox,
            id,
        };
        let question = rpc::request(&asked.id, method, params).to_string();
        outbox.must_say(Bytes::from(question));
        match timeout(QUESTION_TIMEOUT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(failed("the client is gone")),
            Err(_) => Err(failed("the client did not answer in time")),
        }
    }

    /// Takes an answer; one without a waiting question is dropped.
    pub(super) fn answered(&self, response: RpcResponse) {
        let waiting = self.open().remove(&response.id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(response.outcome);
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<RpcId, oneshot::Sender<QuestionResult>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        if self.questions.open().remove(&self.id).is_some() {
            let params = json!({"requestId": self.id.to_value(), "reason": "no longer needed"});
            self.outbox
                .say(notification("notifications/cancelled", params));
        }
    }
}

fn failed(why: &str) -> RpcError {
    RpcError::new(code::INTERNAL_ERROR, why)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::poll;

    use super::*;
    use crate::server::mcp::outbox::Next;

    fn said(outbox: &Arc<Outbox>) -> Vec<Value> {
        let mut reader = outbox.reader(0);
        let mut said = Vec::new();
        while let Next::Message(_, message) = reader.take() {
            said.push(serde_json::from_slice(&message).unwrap());
        }
        said
    }

    #[tokio::test]
    async fn an_answer_finds_its_question_by_the_id() {
        let (questions, outbox) = (ClientQuestions::default(), Arc::new(Outbox::default()));
        let mut first = Box::pin(questions.ask(&outbox, "roots/list", json!({})));
        let mut second = Box::pin(questions.ask(&outbox, "roots/list", json!({})));
        assert!(poll!(first.as_mut()).is_pending() && poll!(second.as_mut()).is_pending());
        let ids: Vec<Value> = said(&outbox).iter().map(|it| it["id"].clone()).collect();
        let id = RpcId::read(&ids[1]).unwrap();
        let outcome = Ok(json!({"roots": []}));
        questions.answered(RpcResponse { id, outcome });
        questions.answered(RpcResponse {
            id: 99.into(),
            outcome: Ok(json!(null)),
        });
        assert_eq!(second.await, Ok(json!({"roots": []})));
        assert!(poll!(first.as_mut()).is_pending());
    }

    #[tokio::test]
    async fn a_question_that_is_dropped_is_taken_back() {
        let (questions, outbox) = (ClientQuestions::default(), Arc::new(Outbox::default()));
        let mut question = Box::pin(questions.ask(&outbox, "elicitation/create", json!({})));
        assert!(poll!(question.as_mut()).is_pending());
        drop(question);
        let said = said(&outbox);
        assert_eq!(said[1]["method"], "notifications/cancelled");
        assert_eq!(said[1]["params"]["requestId"], said[0]["id"]);
        assert!(questions.open().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_answer_is_not_waited_for_for_ever() {
        let (questions, outbox) = (ClientQuestions::default(), Arc::new(Outbox::default()));
        let answer = questions.ask(&outbox, "roots/list", json!({})).await;
        assert_eq!(answer, Err(failed("the client did not answer in time")));
        assert!(questions.open().is_empty());
    }
}
