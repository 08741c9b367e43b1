//! Requests that a server makes while it works on a client's request, such as `elicitation/create`. They are forwarded
//! to the client and answered with its raw answer.
//!
//! rmcp's models would lose parts of them. rmcp receives a substitute with a number instead, and `client_handler` uses
//! the number to find the original.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::future::join_all;
use rmcp::model::{CustomRequest, ServerRequest};
use serde_json::{Value, json};

use super::running::{Recipient, Running};
use toolway_protocol::mcp::{
    asks,
    rpc::{RpcError, code},
};

/// The method under which rmcp is handed a question.
const METHOD: &str = "toolway/question";

/// Most questions of one connection that may wait to be taken up, and most of one request that may be open.
const MAX_OPEN: usize = 64;

/// What a server asks, and of whom.
#[derive(Debug)]
pub(super) struct Question {
    pub(in crate::upstream::mcp) method: String,
    /// As they came; `null` if there are none.
    pub(in crate::upstream::mcp) params: Value,
    pub(super) meant: Recipient,
}

/// The questions of one connection that were read and not yet taken up.
#[derive(Debug, Default)]
pub(super) struct Questions {
    kept: Mutex<HashMap<u64, Question>>,
    next: AtomicU64,
}

impl Questions {
    /// Keeps a question; what is returned stands for it.
    pub(super) fn keep(&self, question: Question) -> ServerRequest {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut kept = self.kept();
        if kept.len() < MAX_OPEN {
            kept.insert(number, question);
        }
        let params = json!({"number": number});
        ServerRequest::CustomRequest(CustomRequest::new(METHOD, Some(params)))
    }

    /// Takes up the question that this request stands for.
    ///
    /// # Errors
    /// It is none, or there were too many at once.
    pub(super) fn take(&self, request: &CustomRequest) -> Result<Question, RpcError> {
        let number = request.params.as_ref().and_then(|it| it["number"].as_u64());
        let number = number
            .filter(|_| request.method == METHOD)
            .ok_or_else(|| RpcError::method_not_found(&request.method))?;
        self.kept().remove(&number).ok_or_else(too_many)
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<u64, Question>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Question {
    /// It is meant for one client, but the transport does not say which.
    pub(super) fn is_ambiguous(&self) -> bool {
        matches!(self.meant, Recipient::OneOfSeveral) && asks::is_question(&self.method)
    }

    /// Forwards the question to its client. It is cancelled when the client's request ends, and when the future is
    /// dropped.
    pub(in crate::upstream::mcp) async fn answer(self) -> Result<Value, RpcError> {
        let Question {
            method,
            params,
            meant,
        } = self;
        if !asks::is_question(&method) {
            return Err(RpcError::method_not_found(&method));
        }
        let requests = match meant {
            Recipient::Client(requests) => requests,
            Recipient::NoCaller | Recipient::Idle => return Err(no_client_for(&method, &params)),
            Recipient::OneOfSeveral => return Err(cannot_be_told(&method)),
        };
        let running = &requests.all;
        let Some(caller) = requests.caller() else {
            return Err(no_client_for(&method, &params));
        };
        if let Some(refusal) = asks::refusal(caller.capabilities(), &method, &params) {
            return Err(refusal);
        }
        if running.iter().any(|it| it.open_questions() >= MAX_OPEN) {
            return Err(too_many());
        }
        let _open: Vec<_> = running.iter().map(Running::open_question).collect();
        let _suspended = requests.suspend();
        tokio::select! {
            biased;
            answer = caller.ask(&method, params) => answer,
            _ = join_all(running.iter().map(|it| it.over())) => Err(RpcError::new(
                code::INTERNAL_ERROR,
                format!("{method}: the request that this was asked for is over"),
            )),
        }
    }
}

/// There is no client behind the request, or no request.
fn no_client_for(method: &str, params: &Value) -> RpcError {
    asks::refusal(&json!({}), method, params).unwrap_or_else(|| RpcError::method_not_found(method))
}

fn cannot_be_told(method: &str) -> RpcError {
    RpcError::new(
        code::INVALID_REQUEST,
        format!(
            "{method}: requests of several clients run on this connection, or wait for their clients' answers, and it \
             cannot be told whom this is for; `stateful = true` in toolway's configuration runs them one after \
             another"
        ),
    )
}

fn too_many() -> RpcError {
    RpcError::new(code::INVALID_REQUEST, "too many requests at once")
}
