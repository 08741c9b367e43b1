//! Reading a request's body: bounded in bytes and in silence.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
};
use bytes::BytesMut;
use futures::StreamExt;
use tokio::time::timeout;

use super::error::Refusal;

/// Longest silence of a client that is sending its body.
const SILENCE: Duration = Duration::from_secs(30);

/// The whole body, at most `max` bytes.
pub(super) async fn read(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, Refusal> {
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
    let mut pieces = body.into_data_stream();
    let mut whole = BytesMut::new();
    let mut only = Bytes::new();
    while let Some(piece) = timeout(SILENCE, pieces.next())
        .await
        .map_err(|_| Refusal::BodyIncomplete)?
    {
        let piece = piece.map_err(|_| Refusal::BodyIncomplete)?;
        if only.is_empty() && whole.is_empty() {
            only = piece;
        } else {
            if whole.is_empty() {
                whole.reserve(declared.unwrap_or(only.len() + piece.len()));
                whole.extend_from_slice(&only);
            }
            whole.extend_from_slice(&piece);
        }
        if whole.len().max(only.len()) > max {
            return Err(Refusal::BodyTooLarge(max));
        }
    }
    // A body that came in one piece is not copied.
    Ok(if whole.is_empty() {
        only
    } else {
        whole.freeze()
    })
}
