//! Answers over HTTP/2 that the client does not read.
//!
//! An HTTP/1 client that does not read is noticed at its socket (`listener::Bounded`). In HTTP/2 one stream can wait
//! for its window (RFC 9113, 5.2) for ever while its connection is alive, and its body, with the model call and the
//! tools behind it, is not polled: no deadline within the body would be noticed. So the stream's task has one.

use std::{
    cell::Cell,
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::connections::Ticket;

/// What a poll of a stream's task came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollOutcome {
    /// It did not get to the answer: the client has to open its window first.
    Blocked,
    /// The answer gave something.
    Progress,
    /// The answer waits for a model or a tool.
    Waiting,
}

thread_local! {
    /// The outcome so far of the task that is polled on this thread.
    static STEP: Cell<PollOutcome> = const { Cell::new(PollOutcome::Blocked) };
}

/// Runs the tasks of one connection: one for each stream, with a limit on the wait for the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams(pub(super) Duration);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        tokio::spawn(unless_stalled(stream, self.0));
    }
}

/// Runs a stream's task, and drops it when the client has taken nothing for `limit`. hyper resets the stream then.
async fn unless_stalled(stream: impl Future<Output = ()>, limit: Duration) {
    let mut stream = pin!(stream);
    let mut stalled: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        STEP.set(PollOutcome::Blocked);
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match STEP.get() {
            PollOutcome::Waiting => {
                stalled = None;
                return Poll::Pending;
            }
            PollOutcome::Progress => stalled = None,
            PollOutcome::Blocked => {}
        }
        let timer = stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer.as_mut().poll(cx)
    })
    .await;
}

/// Answers a request so that its task knows what it waits for.
pub(super) async fn watched(
    answering: impl Future<Output = Response>,
    ticket: Arc<Ticket>,
) -> Result<Response<WatchedBody>, Infallible> {
    let mut answering = pin!(answering);
    let response = poll_fn(|cx| {
        STEP.set(PollOutcome::Waiting);
        answering.as_mut().poll(cx)
    })
    .await;
    // hyper does not poll a body that is empty.
    if http_body::Body::is_end_stream(response.body()) {
        ticket.is_answered();
    }
    Ok(response.map(|body| WatchedBody { body, ticket }))
}

/// The body of such an answer.
pub(super) struct WatchedBody {
    body: Body,
    ticket: Arc<Ticket>,
}

impl http_body::Body for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let WatchedBody { body, ticket } = self.get_mut();
        let polled = Pin::new(&mut *body).poll_frame(cx);
        STEP.set(match polled {
            Poll::Ready(_) => PollOutcome::Progress,
            Poll::Pending => PollOutcome::Waiting,
        });
        if matches!(polled, Poll::Ready(None)) || body.is_end_stream() {
            ticket.is_answered();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::Instant;

    use super::*;

    const STALL: Duration = Duration::from_secs(60);

    async fn runs_for(step: Option<PollOutcome>) -> Option<Duration> {
        let begun = Instant::now();
        let stream = async move {
            if let Some(step) = step {
                STEP.set(step);
            }
            pending::<()>().await;
        };
        let ended = tokio::time::timeout(STALL * 10, unless_stalled(stream, STALL)).await;
        ended.ok().map(|()| begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stream_that_waits_for_its_client_is_dropped() {
        assert_eq!(runs_for(None).await, Some(STALL));
        assert_eq!(runs_for(Some(PollOutcome::Progress)).await, Some(STALL));
        assert_eq!(runs_for(Some(PollOutcome::Waiting)).await, None);
    }
}
