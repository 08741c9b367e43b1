//! HTTP answers for MCP clients, in the forms that they understand.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;

use super::events::SseResponse;
use crate::{
    gateway::failure::Outcome,
    server::{
        error::Refusal,
        request_log::{Failing, Lasting},
    },
};
use toolway_protocol::mcp::rpc::{self, RpcError, RpcId, code};

/// There is no such session (by custom; the specification names no code).
const NO_SESSION: i64 = -32001;

/// One message.
pub(super) fn json(status: StatusCode, message: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(message.into()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// An answer that is an error. Its words may be a server's, so the log has its code alone.
pub(super) fn error(status: StatusCode, id: Option<&RpcId>, error: RpcError) -> Response {
    let logged = format!("JSON-RPC error {}", error.code);
    let response = json(status, rpc::write_answer(id, &Err(error)));
    match status {
        StatusCode::OK => response,
        _ => failing(response, logged),
    }
}

/// The request is refused before its id and method are known.
pub(super) fn refused(status: StatusCode, why: impl Into<String>) -> Response {
    let why = why.into();
    let error = RpcError::new(code::INVALID_REQUEST, why.as_str());
    failing(json(status, rpc::write_answer(None, &Err(error))), why)
}

/// The path allows these methods only; no HEAD, because a stream has no length.
pub(super) fn unknown_method(known: &'static str) -> Response {
    ([(header::ALLOW, known)], Refusal::MethodNotAllowed).into_response()
}

/// Notes the reason of the refusal for the log.
fn failing(mut response: Response, error: String) -> Response {
    let outcome = match response.status() {
        StatusCode::INTERNAL_SERVER_ERROR => Outcome::Failed,
        _ => Outcome::Refused,
    };
    let failing = Failing { outcome, error };
    response.extensions_mut().insert(failing);
    response
}

/// 202 without a body.
pub(super) fn accepted() -> Response {
    empty(StatusCode::ACCEPTED)
}

/// Nothing but a status.
pub(super) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// The session does not exist or has ended.
pub(super) fn no_session(id: Option<&RpcId>) -> Response {
    let why = "Session not found; begin a new one with `initialize`";
    error(StatusCode::NOT_FOUND, id, RpcError::new(NO_SESSION, why))
}

/// A stream.
pub(super) fn events(events: SseResponse) -> Response {
    let is_lasting = events.place.is_some();
    let mut response = streaming(events.into_body());
    if is_lasting {
        response.extensions_mut().insert(Lasting);
    }
    response
}

/// A stream with nothing in it: the request was cancelled, and a cancelled request has no answer.
pub(super) fn cancelled() -> Response {
    streaming(Body::empty())
}

fn streaming(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let stream = HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, stream);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A refusal by the checks in front of every face, before the request's id is known.
///
/// Only where clients look at the status first is it a JSON-RPC error. One without an id would answer nothing: rmcp
/// 3.8 (2026-07-28, without a session) then waits for ever. To any other body every client says that the request
/// failed.
pub(in crate::server) fn refusal(refusal: Refusal) -> Response {
    let is_read_by_status = matches!(
        refusal,
        Refusal::Unauthorized | Refusal::ForeignHost(_) | Refusal::ForeignOrigin(_)
    );
    if !is_read_by_status {
        return refusal.into_response();
    }
    let failing = refusal.failing();
    let (status, why) = refusal.status_and_message();
    let mut response = refused(status, why);
    response.extensions_mut().insert(failing);
    if status == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        let headers = response.headers_mut();
        headers.insert(header::WWW_AUTHENTICATE, bearer);
    }
    response
}
