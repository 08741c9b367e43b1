//! An answer of a model provider while its body is coming: bounded in silence, and in bytes where it is read whole.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, StatusCode};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::{Body, HttpError, ModelError, Refused};
use crate::body_buffer::BodyBuffer;
use toolway_protocol::{
    openai::ErrorBody,
    sse::{self, FrameError, Framer, SseEvent},
};

/// Longest wait for the body of an error whose status is known.
const ERROR_PATIENCE: Duration = Duration::from_secs(5);

/// Longest first event that is looked into for an error, in bytes.
const MAX_FIRST_EVENT_BYTES: usize = 64 << 10;

/// An answer whose head is there and whose body is coming.
pub struct Incoming {
    pub(super) upstream: Arc<str>,
    /// Its content type is an event stream.
    pub is_stream: bool,
    /// For a chat the headers that clients act on; for a forwarded request all of them.
    pub headers: HeaderMap,
    /// Warnings for the client about how the request was sent.
    pub warnings: Vec<String>,
    pub(super) silence: Duration,
    pub(super) body: Body,
    /// The timer of the silence; created by the first wait.
    pub(super) timer: Option<Pin<Box<Sleep>>>,
}

/// Nothing came for too long.
struct Silent;

/// The first event that is not merely a comment or a sign of life.
fn first_event(framer: &mut Framer) -> Option<Result<SseEvent, FrameError>> {
    std::iter::from_fn(|| framer.next()).find(|event| {
        let is_silent = |event: &SseEvent| event.data().is_none_or(|data| data.trim().is_empty());
        !event.as_ref().is_ok_and(is_silent)
    })
}

fn error_in(event: &SseEvent) -> Option<(ErrorBody, Option<u16>)> {
    let data = event.data()?;
    match event.name() {
        Some("error") => Some(ErrorBody::in_error_event(data.as_bytes())),
        _ => ErrorBody::in_ok_body(data.as_bytes()),
    }
}

impl Incoming {
    /// The next piece of the body; `None` at its end.
    ///
    /// Cancel safe: nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ModelError> {
        let piece = self.piece().await;
        let upstream = || self.upstream.to_string();
        match piece {
            Err(Silent) => Err(ModelError::Timeout {
                upstream: upstream(),
                phase: "within its answer",
                after: self.silence,
            }),
            Ok(Some(Err(HttpError::Connect(reason) | HttpError::Broken(reason)))) => {
                Err(ModelError::Broken {
                    upstream: upstream(),
                    reason,
                })
            }
            Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
            Ok(None) => Ok(None),
        }
    }

    async fn piece(&mut self) -> Result<Option<Result<Bytes, HttpError>>, Silent> {
        let due = Instant::now() + self.silence;
        poll_fn(|cx| {
            if let Poll::Ready(piece) = self.body.poll_next_unpin(cx) {
                return Poll::Ready(Ok(piece));
            }
            let timer = &mut self.timer;
            let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            // It is reset only when it has expired, not for every piece.
            while timer.as_mut().poll(cx).is_ready() {
                if due <= Instant::now() {
                    return Poll::Ready(Err(Silent));
                }
                timer.as_mut().reset(due);
            }
            Poll::Pending
        })
        .await
    }

    /// The same answer once its first event is there, or its first bytes where it is no event stream.
    ///
    /// # Errors
    /// When nothing comes, or what comes is an error.
    pub(super) async fn begun(mut self) -> Result<Incoming, ModelError> {
        let mut framer = Framer::new(MAX_FIRST_EVENT_BYTES);
        let mut begun: Vec<Bytes> = Vec::new();
        let failed = loop {
            let piece = match self.next().await? {
                Some(piece) => piece,
                None if begun.is_empty() => {
                    return Err(ModelError::Broken {
                        upstream: self.upstream.to_string(),
                        reason: "the answer is empty".to_owned(),
                    });
                }
                None => break None,
            };
            framer.push(piece.clone());
            begun.push(piece);
            if !begun.first().is_some_and(|first| sse::is_begun_by(first)) {
                break begun.first().and_then(|first| ErrorBody::in_ok_body(first));
            }
            match first_event(&mut framer) {
                Some(Ok(event)) => break error_in(&event),
                Some(Err(_)) => break None,
                None => {}
            }
        };
        if let Some((error, status)) = failed {
            let status = status.and_then(|status| StatusCode::from_u16(status).ok());
            return Err(ModelError::Refused(Box::new(Refused {
                upstream: self.upstream.to_string(),
                status: status.unwrap_or(StatusCode::BAD_GATEWAY),
                error,
                headers: std::mem::take(&mut self.headers),
            })));
        }
        let rest = std::mem::replace(&mut self.body, Body::Other(stream::empty().boxed()));
        let begun = stream::iter(begun.into_iter().map(Ok));
        self.body = Body::Other(begun.chain(rest).boxed());
        Ok(self)
    }

    /// The whole body, at most `max` bytes.
    pub async fn read_all(mut self, max: usize) -> Result<Bytes, ModelError> {
        let mut whole = BodyBuffer::default();
        while let Some(piece) = self.next().await? {
            whole.push(piece);
            if whole.len() > max {
                let what = format!("with more than {} MiB", max >> 20);
                return Err(ModelError::Invalid {
                    upstream: self.upstream.to_string(),
                    what,
                });
            }
        }
        Ok(whole.into_bytes())
    }

    /// The part of an error's body that arrives within a few seconds, at most `max` bytes; an incomplete body is
    /// accepted. The error itself is already known and must not wait for its whole body.
    pub(super) async fn read_start(mut self, max: usize) -> Bytes {
        let mut start = BytesMut::new();
        let reading = async {
            while start.len() < max
                && let Ok(Some(piece)) = self.next().await
            {
                start.extend_from_slice(&piece);
            }
        };
        let _ = timeout(ERROR_PATIENCE, reading).await;
        start.truncate(max);
        start.freeze()
    }

    /// The pieces as they come; a failure is the last of them.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, ModelError>> + Send {
        stream::unfold(Some(self), |incoming| async {
            let mut incoming = incoming?;
            match incoming.next().await {
                Ok(Some(piece)) => Some((Ok(piece), Some(incoming))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(120);

    fn incoming(body: impl Stream<Item = Bytes> + Send + 'static) -> Incoming {
        Incoming {
            upstream: "u".into(),
            is_stream: false,
            headers: HeaderMap::new(),
            warnings: Vec::new(),
            silence: SILENCE,
            body: Body::Other(body.map(Ok).boxed()),
            timer: None,
        }
    }

    /// One byte at a time, for ever.
    fn trickling(pause: Duration) -> impl Stream<Item = Bytes> + Send {
        stream::repeat(Bytes::from_static(b"x")).then(move |piece| async move {
            sleep(pause).await;
            piece
        })
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_the_answer_and_every_piece_ends_the_silence() {
        let pieces = trickling(SILENCE / 2).take(5).chain(stream::pending());
        let mut pieces = Box::pin(incoming(pieces).into_stream());
        for _ in 0..5 {
            assert!(pieces.next().await.unwrap().is_ok());
        }
        let error = pieces.next().await.unwrap().unwrap_err();
        assert!(matches!(error, ModelError::Timeout { after: SILENCE, .. }));
        assert!(pieces.next().await.is_none(), "nothing follows a failure");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_trickles_is_told_with_what_came_of_it() {
        let begun = Instant::now();
        let start = incoming(trickling(Duration::from_secs(1)))
            .read_start(1000)
            .await;
        assert!((1..10).contains(&start.len()));
        assert_eq!(begun.elapsed(), ERROR_PATIENCE);
    }

    #[tokio::test]
    async fn of_a_long_error_the_start_is_read() {
        let endless = stream::repeat(Bytes::from_static(b"abc"));
        assert_eq!(incoming(endless).read_start(7).await, "abcabca");
    }

    #[tokio::test]
    async fn a_body_over_the_bound_is_refused() {
        let body = |pieces| incoming(stream::repeat(Bytes::from_static(b"ab")).take(pieces));
        assert_eq!(body(2).read_all(4).await.unwrap(), "abab");
        assert!(matches!(
            body(3).read_all(4).await,
            Err(ModelError::Invalid { .. })
        ));
    }
}
