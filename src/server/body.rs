//! Reading a request's body: bounded in bytes and in time.

use std::{future::poll_fn, io, iter, task::Poll, time::Duration};

use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::{HeaderMap, header},
};
use futures::{
    FutureExt, StreamExt,
    stream::{self, BoxStream},
};
use tokio::time::{Instant, timeout};

use crate::gateway::failure::Failure;
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    tool::JsonObject,
};

use super::{App, connections::NoPlace, error::Refusal};
use crate::body_buffer::BodyBuffer;
use crate::byte_budget::{ByteBudget, Reservation};

/// Longest wait for the next [`LEAST`] bytes of a body, or for its end.
pub(super) const WINDOW: Duration = Duration::from_secs(30);

/// At least this many bytes must arrive within [`WINDOW`]. A body on a slow line passes; one that is sent byte by byte
/// does not.
pub(super) const LEAST: usize = 30 * 1024;

/// Bodies up to this length, in bytes, are copied out of the buffer they were read into.
pub(super) const SHORT: usize = 4096;

/// Why a body did not arrive completely.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body of the request did not arrive")]
pub(super) struct Incomplete(pub(super) Refusal);

/// A body as it arrives.
pub(super) type BodyStream = BoxStream<'static, Result<Bytes, Incomplete>>;

/// Reads a whole body as a JSON object.
///
/// # Errors
/// When it is none, or has more than [`MAX_VALUES`] values.
pub(super) fn read_object(body: &[u8]) -> Result<JsonObject, Failure> {
    check_values(body, MAX_VALUES).map_err(|error| invalid(format!("the body has {error}")))?;
    serde_json::from_slice(body)
        .map_err(|error| invalid(format!("the body is not a JSON object: {error}")))
}

/// The failure for an invalid body.
pub(super) fn invalid(message: String) -> Failure {
    Failure::Request {
        message,
        param: None,
        code: "invalid_body",
    }
}

/// The pieces of a body of any length; a failure is the last of them.
pub(super) fn pieces(body: Body) -> BodyStream {
    let arriving = Some((body.into_data_stream(), BodyPace::default()));
    let pieces = stream::unfold(arriving, |arriving| async {
        let (mut arriving, mut pace) = arriving?;
        Some(match pace.next(&mut arriving).await? {
            Ok(piece) => (Ok(piece), Some((arriving, pace))),
            Err(refusal) => (Err(Incomplete(refusal)), None),
        })
    });
    // Whoever looked at the beginning of a body may have seen its end.
    pieces.fuse().boxed()
}

/// How fast a body arrives. The reader's own work between two pieces is not counted.
#[derive(Clone, Copy, Debug, Default)]
struct BodyPace {
    /// The time waited in the current window, and the bytes that arrived in it.
    waited: Duration,
    came: usize,
}

impl BodyPace {
    /// The next piece, if it comes in time.
    async fn next(&mut self, arriving: &mut BodyDataStream) -> Option<Result<Bytes, Refusal>> {
        let mut next = arriving.next();
        let piece = match poll_fn(|cx| Poll::Ready(next.poll_unpin(cx))).await {
            Poll::Ready(piece) => piece,
            Poll::Pending => {
                let begun = Instant::now();
                let in_time = timeout(WINDOW.saturating_sub(self.waited), next).await;
                self.waited += begun.elapsed();
                let Ok(piece) = in_time else {
                    return Some(Err(Refusal::BodyIncomplete));
                };
                piece
            }
        };
        let piece = piece?.map_err(|error| {
            let error = error.into_inner();
            match error.downcast::<NoPlace>() {
                Ok(no_place) => no_place.0,
                Err(error) if is_malformed(&*error) => Refusal::BodyIncomplete,
                Err(_) => Refusal::ClientLeft,
            }
        });
        self.came += piece.as_ref().map_or(0, Bytes::len);
        if self.came >= LEAST {
            *self = BodyPace::default();
        }
        Some(piece)
    }
}

/// The framing of a body is broken, for example the length of a chunk. If any other body breaks off, the client has
/// left.
fn is_malformed(error: &(dyn std::error::Error + 'static)) -> bool {
    let of_framing = [io::ErrorKind::InvalidInput, io::ErrorKind::InvalidData];
    let causes = iter::successors(Some(error), |error| error.source());
    let mut faults = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    faults.any(|fault| of_framing.contains(&fault.kind()))
}

/// The whole body of a request to `app`, as [`read`] has it.
///
/// # Errors
/// Also [`Refusal::ShuttingDown`] when toolway ends before the body is complete.
pub(super) async fn receive(
    app: &App,
    headers: &HeaderMap,
    body: Body,
    max: usize,
) -> Result<Bytes, Refusal> {
    let reading = read(headers, body, max, &app.bodies);
    let received = app.gateway.ending().run_until_cancelled(reading).await;
    received.unwrap_or(Err(Refusal::ShuttingDown))
}

/// Reads the whole body, at most `max` bytes. A body that is not short reserves its bytes from `budget` as they arrive.
async fn read(
    headers: &HeaderMap,
    body: Body,
    max: usize,
    budget: &ByteBudget,
) -> Result<Bytes, Refusal> {
    let declared = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > max) {
        return Err(Refusal::BodyTooLarge(max));
    }
    let is_encoded = |value: &http::HeaderValue| value.as_bytes() != b"identity";
    if headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(is_encoded)
    {
        return Err(Refusal::BodyEncoded);
    }
    let mut arriving = body.into_data_stream();
    let mut whole = BodyBuffer::expecting(declared.unwrap_or_default());
    let mut reservation = budget.take_nothing();
    let mut pace = BodyPace::default();
    while let Some(piece) = pace.next(&mut arriving).await {
        whole.push(piece?);
        if whole.len() > max {
            return Err(Refusal::BodyTooLarge(max));
        }
        if whole.len() > SHORT && !reservation.grow_to(whole.len()) {
            return Err(Refusal::OverBudget);
        }
    }
    let whole = whole.into_bytes();
    // A short body lies in the connection's buffer, which should not be kept until the request ends.
    Ok(match whole.len() <= SHORT {
        true => Bytes::copy_from_slice(&whole),
        false => held(whole, reservation),
    })
}

/// Bytes that hold their reservation until they are dropped.
pub(super) fn held(bytes: Bytes, reservation: Reservation) -> Bytes {
    struct HeldBytes {
        bytes: Bytes,
        _reservation: Reservation,
    }
    impl AsRef<[u8]> for HeldBytes {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    Bytes::from_owner(HeldBytes {
        bytes,
        _reservation: reservation,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arriving(pieces: &[&'static str], then_silence: bool) -> Body {
        let pieces: Vec<_> = pieces
            .iter()
            .map(|piece| Ok::<_, axum::Error>(*piece))
            .collect();
        let silence = stream::pending().take(usize::from(then_silence));
        Body::from_stream(stream::iter(pieces).chain(silence))
    }

    #[track_caller]
    fn declared(bytes: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_LENGTH, bytes.parse().unwrap())])
    }

    #[tokio::test]
    async fn the_pieces_are_put_together() {
        for pieces in [&[][..], &["abc"], &["", "a", "", "bc"]] {
            let expected = pieces.concat();
            for headers in [HeaderMap::new(), declared("3")] {
                let read = read(&headers, arriving(pieces, false), 3, &ByteBudget::new(0)).await;
                assert_eq!(read.unwrap(), expected);
            }
        }
    }

    #[tokio::test]
    async fn a_body_over_the_bound_is_refused_at_once_or_when_it_shows() {
        let refused = Err(Refusal::BodyTooLarge(3));
        let budget = ByteBudget::new(0);
        assert_eq!(
            read(&declared("4"), arriving(&[], true), 3, &budget).await,
            refused
        );
        assert_eq!(
            read(&HeaderMap::new(), arriving(&["abcd"], true), 3, &budget).await,
            refused
        );
        assert_eq!(
            read(&HeaderMap::new(), arriving(&["ab", "cd"], true), 3, &budget).await,
            refused
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_falls_silent_is_not_waited_for() {
        let read = read(
            &HeaderMap::new(),
            arriving(&["ab"], true),
            3,
            &ByteBudget::new(0),
        )
        .await;
        assert_eq!(read, Err(Refusal::BodyIncomplete));
    }

    #[tokio::test]
    async fn a_body_takes_of_the_budget_what_has_arrived_until_it_is_dropped() {
        let budget = ByteBudget::new(10_000);
        let long: &'static str = "x".repeat(6000).leak();
        // The length that it declares counts for nothing.
        let headers = declared("9000");
        let first = read(&headers, arriving(&[long], false), 9000, &budget).await;
        assert_eq!(budget.free(), 4000);
        let second = read(&headers, arriving(&[long], true), 9000, &budget).await;
        assert_eq!(second, Err(Refusal::OverBudget));
        let copy = first.unwrap().slice(..10);
        assert_eq!(budget.free(), 4000);
        drop(copy);
        assert_eq!(budget.free(), 10_000);
    }

    /// A body of pieces of one length, each after a pause; and then it ends.
    fn dripping(pieces: usize, bytes: usize, pause: Duration) -> Body {
        let drops = stream::iter(0..pieces).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, axum::Error>(Bytes::from(vec![b'x'; bytes]))
        });
        Body::from_stream(drops)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_is_given_up_and_a_slow_one_is_not() {
        let second = Duration::from_secs(1);
        for (pieces, bytes, pause, is_read) in [
            (100_000, 1, second / 500, false),
            (100_000, 1, second * 2, false),
            (1000, 512, second, false),
            (1000, 1100, second, true),
            (10, LEAST, second * 29, true),
            (10, 1, second * 2, true),
        ] {
            let begun = Instant::now();
            let read = read(
                &HeaderMap::new(),
                dripping(pieces, bytes, pause),
                1 << 30,
                &ByteBudget::new(1 << 30),
            )
            .await;
            assert_eq!(read.is_ok(), is_read, "{bytes} bytes every {pause:?}");
            assert!(is_read || begun.elapsed() <= Duration::from_secs(45));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_after_a_burst_is_given_up_too() {
        let burst = stream::once(async { Ok(Bytes::from(vec![b'x'; 10 << 20])) });
        let rest = dripping(1000, 1, Duration::from_secs(1)).into_data_stream();
        let begun = Instant::now();
        let body = Body::from_stream(burst.chain(rest));
        let read = read(&HeaderMap::new(), body, 1 << 30, &ByteBudget::new(1 << 30)).await;
        assert_eq!(read, Err(Refusal::BodyIncomplete));
        assert!(begun.elapsed() <= Duration::from_secs(45));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_upstream_is_not_the_fault_of_the_client() {
        let mut pieces = pieces(dripping(100, 1, Duration::from_millis(100)));
        while let Some(piece) = pieces.next().await {
            assert_eq!(piece, Ok(Bytes::from("x")));
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    }
}
