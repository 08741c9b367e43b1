//! Reading a request's body: bounded in bytes and in silence.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
};
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::time::timeout;

use super::error::Refusal;
use crate::{
    gathered::Gathered,
    room::{Room, Taken},
};

/// Longest silence of a client that is sending its body.
const SILENCE: Duration = Duration::from_secs(30);

/// Up to this length a body is copied out of the buffer it was read into, in bytes.
pub(super) const SHORT: usize = 4096;

/// A body did not arrive whole: its client was silent for too long, or went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body of the request did not arrive")]
pub(super) struct Incomplete;

/// A body as it arrives.
pub(super) type Pieces = BoxStream<'static, Result<Bytes, Incomplete>>;

/// The pieces of a body; a failure is the last of them.
pub(super) fn pieces(body: Body) -> Pieces {
    let arriving = Some(body.into_data_stream());
    let pieces = stream::unfold(arriving, |arriving| async {
        let mut arriving = arriving?;
        match timeout(SILENCE, arriving.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some(arriving))),
            Ok(Some(Err(_))) | Err(_) => Some((Err(Incomplete), None)),
        }
    });
    pieces.boxed()
}

/// The whole body, at most `max` bytes. Unless it is short it takes them of `room` as they arrive, until it is dropped.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    max: usize,
    room: &Room,
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
    let mut whole = Gathered::expecting(declared.unwrap_or_default());
    let mut taken = room.take_nothing();
    loop {
        match timeout(SILENCE, arriving.next()).await {
            Ok(None) => break,
            Ok(Some(Ok(piece))) => whole.push(piece),
            Ok(Some(Err(_))) | Err(_) => return Err(Refusal::BodyIncomplete),
        }
        if whole.len() > max {
            return Err(Refusal::BodyTooLarge(max));
        }
        if whole.len() > SHORT && !taken.grow_to(whole.len()) {
            return Err(Refusal::OverBudget);
        }
    }
    let whole = whole.into_bytes();
    // A short body lies in the connection's buffer, which is not to be kept for as long as the request takes.
    Ok(match whole.len() <= SHORT {
        true => Bytes::copy_from_slice(&whole),
        false => held(whole, taken),
    })
}

/// Bytes that give back what they have taken when they are dropped.
pub(super) fn held(bytes: Bytes, taken: Taken) -> Bytes {
    struct Held {
        bytes: Bytes,
        _taken: Taken,
    }
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    Bytes::from_owner(Held {
        bytes,
        _taken: taken,
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
                let read = read(&headers, arriving(pieces, false), 3, &Room::new(0)).await;
                assert_eq!(read.unwrap(), expected);
            }
        }
    }

    #[tokio::test]
    async fn a_body_over_the_bound_is_refused_at_once_or_when_it_shows() {
        let refused = Err(Refusal::BodyTooLarge(3));
        let room = Room::new(0);
        assert_eq!(
            read(&declared("4"), arriving(&[], true), 3, &room).await,
            refused
        );
        assert_eq!(
            read(&HeaderMap::new(), arriving(&["abcd"], true), 3, &room).await,
            refused
        );
        assert_eq!(
            read(&HeaderMap::new(), arriving(&["ab", "cd"], true), 3, &room).await,
            refused
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_falls_silent_is_not_waited_for() {
        let read = read(&HeaderMap::new(), arriving(&["ab"], true), 3, &Room::new(0)).await;
        assert_eq!(read, Err(Refusal::BodyIncomplete));
    }

    #[tokio::test]
    async fn a_body_takes_of_the_budget_what_has_arrived_until_it_is_dropped() {
        let room = Room::new(10_000);
        let long: &'static str = "x".repeat(6000).leak();
        // The length that it declares counts for nothing.
        let headers = declared("9000");
        let first = read(&headers, arriving(&[long], false), 9000, &room).await;
        assert_eq!(room.free(), 4000);
        let second = read(&headers, arriving(&[long], true), 9000, &room).await;
        assert_eq!(second, Err(Refusal::OverBudget));
        let copy = first.unwrap().slice(..10);
        assert_eq!(room.free(), 4000);
        drop(copy);
        assert_eq!(room.free(), 10_000);
    }
}
