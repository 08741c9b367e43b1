//! Calls that share a request: the first waits a moment for others, and then all go out together.
//!
//! The calls of a group are bounded by its queue, and the requests with them.

use std::sync::Arc;

use futures::future::join_all;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::{Batch, EndpointResult, Post};
use toolway_core::translate::functions::webhook::WebhookCall;
use toolway_protocol::tool::{CallError, JsonObject};

/// The calls of one webhook, on their way into shared requests.
pub(super) struct Batches {
    calls: mpsc::Sender<BatchedCall>,
    /// The task ends with this, and with it every request that is under way.
    _collecting: AbortOnDropHandle<()>,
}

/// One call, and the channel for its result.
struct BatchedCall {
    id: String,
    function: String,
    arguments: JsonObject,
    answer: oneshot::Sender<EndpointResult>,
}

impl Batches {
    /// Must be called within a Tokio runtime.
    pub(super) fn new(post: Arc<Post>, batch: Batch) -> Batches {
        let (calls, waiting) = mpsc::channel(1);
        let collecting = tokio::spawn(collect(waiting, post, batch));
        Batches {
            calls,
            _collecting: AbortOnDropHandle::new(collecting),
        }
    }

    /// Sends a call with others. Dropping the future gives up the call; a request without waiting calls is given up,
    /// too.
    pub(super) async fn call(
        &self,
        id: String,
        function: &str,
        arguments: JsonObject,
    ) -> EndpointResult {
        let (answer, outcome) = oneshot::channel();
        let waiting = BatchedCall {
            id,
            function: function.to_owned(),
            arguments,
            answer,
        };
        let sent = self.calls.send(waiting).await;
        sent.map_err(|_| CallError::Cancelled)?;
        outcome.await.unwrap_or(Err(CallError::Cancelled))
    }
}

async fn collect(mut calls: mpsc::Receiver<BatchedCall>, post: Arc<Post>, batch: Batch) {
    let mut requests = JoinSet::new();
    loop {
        let first = tokio::select! {
            Some(_) = requests.join_next() => continue,
            call = calls.recv() => call,
        };
        let Some(first) = first else { return };
        let until = Instant::now() + batch.window;
        let mut together = vec![first];
        while together.len() < batch.max_calls
            && let Ok(Some(call)) = timeout_at(until, calls.recv()).await
        {
            together.push(call);
        }
        together.retain(|call| !call.answer.is_closed());
        if !together.is_empty() {
            requests.spawn(send(post.clone(), together));
        }
    }
}

/// Sends one request, unless all its calls are cancelled.
async fn send(post: Arc<Post>, together: Vec<BatchedCall>) {
    let mut bodies = Vec::with_capacity(together.len());
    let mut answers = Vec::with_capacity(together.len());
    for waiting in together {
        bodies.push((waiting.id, waiting.function, waiting.arguments));
        answers.push(waiting.answer);
    }
    let calls = bodies.iter().map(|(id, name, arguments)| WebhookCall {
        id,
        name,
        arguments,
    });
    let calls: Vec<WebhookCall<'_>> = calls.collect();
    let outcomes = {
        let all_gone = join_all(answers.iter_mut().map(oneshot::Sender::closed));
        tokio::select! {
            outcomes = post.send(&calls) => outcomes,
            _ = all_gone => return,
        }
    };
    for (answer, outcome) in answers.into_iter().zip(outcomes) {
        // A call that was cancelled meanwhile needs no answer.
        let _ = answer.send(outcome);
    }
}
