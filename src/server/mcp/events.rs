//! A feed as the body of a response: an event stream.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures::{future::BoxFuture, stream};
use tokio::time::{Instant, sleep_until};

use super::{
    outbox::{Next, OutboxReader},
    sessions::Session,
};
use crate::server::places::HeldPlace;

/// How long a client is to wait before it connects again, in milliseconds.
const RETRY: u32 = 1000;

/// An event stream, before it is a body.
pub(super) struct SseResponse {
    /// What is sent.
    pub(super) reader: OutboxReader,
    /// The stream's number, for the ids of its events; without it they have none.
    pub(super) number: Option<u64>,
    /// Begins with an event that says where to go on when the connection is lost (2025-11-25).
    pub(super) is_primed: bool,
    /// The future that fills the outbox while the stream is read. Without it another task fills the outbox until it is
    /// closed.
    pub(super) drive: Option<BoxFuture<'static, ()>>,
    /// How often a comment goes out while nothing else does.
    pub(super) keepalive: Duration,
    /// Kept while the stream lasts.
    pub(super) session: Option<Arc<Session>>,
    /// The stream's place among the lasting ones.
    pub(super) place: Option<HeldPlace>,
}

struct SseState {
    events: SseResponse,
    is_driven: bool,
    next_comment: Instant,
}

impl SseResponse {
    /// The body. Dropping it drops what drives it.
    pub(super) fn into_body(self) -> Body {
        let state = SseState {
            is_driven: self.drive.is_some(),
            next_comment: Instant::now() + self.keepalive,
            events: self,
        };
        Body::from_stream(stream::unfold(state, |mut state| async {
            let bytes = state.next().await?;
            state.next_comment = Instant::now() + state.events.keepalive;
            Some((Ok::<_, Infallible>(bytes), state))
        }))
    }
}

impl SseState {
    async fn next(&mut self) -> Option<Bytes> {
        let events = &mut self.events;
        if std::mem::take(&mut events.is_primed) {
            let number = events.number.unwrap_or_default();
            let after = events.reader.at();
            return Some(format!("id: {number}-{after}\nretry: {RETRY}\ndata: \n\n").into());
        }
        loop {
            match events.reader.take() {
                Next::Message(place, message) => {
                    return Some(event(events.number, place, &message));
                }
                Next::Over => {
                    self.events.leave();
                    return None;
                }
                Next::Nothing if self.is_driven && events.drive.is_none() => return None,
                Next::Nothing => {}
            }
            let driven = async {
                match &mut events.drive {
                    Some(drive) => drive.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = driven => events.drive = None,
                () = events.reader.changed() => {}
                () = sleep_until(self.next_comment) => return Some(Bytes::from_static(b":\n\n")),
            }
        }
    }
}

impl SseResponse {
    /// The client was handed everything.
    fn leave(&mut self) {
        if let (Some(session), Some(number)) = (&self.session, self.number)
            && self.reader.is_current()
        {
            session.was_read(number, self.reader.outbox());
        }
    }
}

impl Drop for SseState {
    fn drop(&mut self) {
        let outbox = Arc::clone(self.events.reader.outbox());
        let session = self.events.session.take();
        // It has no reader now, unless another stream has resumed it.
        self.events.reader.leave();
        if let Some(session) = session {
            session.was_left(&outbox);
        }
    }
}

fn event(stream: Option<u64>, place: u64, message: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(message.len() + 64);
    event.extend_from_slice(b"event: message\n");
    if let Some(stream) = stream {
        event.extend_from_slice(format!("id: {stream}-{place}\n").as_bytes());
    }
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(message);
    event.extend_from_slice(b"\n\n");
    event.into()
}
