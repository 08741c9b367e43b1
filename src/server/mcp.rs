//! The face for MCP clients over Streamable HTTP, in both eras; the client's first request decides which.
//!
//! It does not use rmcp's server side, because a gateway passes results on unchanged. The pure rules are in
//! `toolway_protocol::mcp`; `gateway::mcp` executes the requests.
//!
//! Read next: `legacy_sse` (HTTP+SSE, at `/sse`), `handshake` (2024-11-05 to 2025-11-25, with `sessions` and
//! `client_session`), `stateless` (2026-07-28, with `stateless_request` and `listen`), `outbox` and `events` for what is
//! sent besides results.

pub(super) mod client_session;
mod events;
mod handshake;
pub(super) mod legacy_sse;
pub(super) mod listen;
pub(super) mod outbox;
mod questions;
pub(super) mod reply;
mod sessions;
mod stateless;
pub(super) mod stateless_request;
pub(super) mod work;

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode},
    response::Response,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::{
    legacy_sse::LegacySessions,
    sessions::{SessionOwner, Sessions},
};
use super::{
    App, body,
    error::Refusal,
    guard,
    headers::principal,
    places::{HeldPlace, Places},
    values,
};
use crate::gateway::{Gateway, mcp::View, record::Record};
use crate::{byte_budget::Reservation, quota::Sharing};
use toolway_protocol::{
    json_size::JsonSize,
    mcp::{
        headers::{self, Accepts},
        rpc::{self, MalformedMessage, MessageOrBatch, RpcMessage},
        version::Version,
    },
    tool::JsonObject,
};

/// Longest word of a client that is logged, in bytes.
const MAX_WORD: usize = 128;

/// Longest message to lent functions, in bytes.
const LONGEST_LENT: usize = 1 << 20;

/// Most JSON values of a message to lent functions.
const MOST_LENT_VALUES: usize = 50_000;

/// The bounds of this face.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most sessions of clients that begin with `initialize`; the one that was idle for longest makes room. With
    /// several keys each may have half of them. Default: 1024.
    pub max_sessions: usize,
    /// How long a session may be idle. Default: 1 h.
    pub session_idle: Duration,
    /// Most streams of notifications (GET, `subscriptions/listen`). Default: 1024.
    pub max_streams: usize,
    /// How long an answer may take before it becomes a stream instead of one JSON message. Default: 5 s.
    pub stream_after: Duration,
    /// How often an SSE comment goes out while nothing else does. Default: 15 s.
    pub keepalive: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_sessions: 1024,
            session_idle: Duration::from_secs(3600),
            max_streams: 1024,
            stream_after: Duration::from_secs(5),
            keepalive: Duration::from_secs(15),
        }
    }
}

/// The state of this face.
pub(super) struct McpFace {
    gateway: Arc<Gateway>,
    config: Config,
    sessions: Sessions,
    /// Those at `/sse`.
    legacy: Arc<LegacySessions>,
    /// Free places for lasting streams.
    streams: Arc<Places>,
    /// Cancelled when toolway stops, so that lasting streams end.
    stopping: CancellationToken,
}

/// What is known of an HTTP request before its body is read.
struct RequestHead {
    view: Arc<View>,
    owner: SessionOwner,
    headers: HeaderMap,
    accepts: Accepts,
    /// What is noted of it for the log.
    record: Option<Arc<Record>>,
}

impl McpFace {
    /// For this many keys.
    pub(super) fn new(gateway: Arc<Gateway>, config: Config, keys: usize) -> McpFace {
        let sharing = Sharing::among(keys);
        McpFace {
            gateway,
            sessions: Sessions::new(config.max_sessions, config.session_idle, sharing),
            legacy: Arc::default(),
            streams: Arc::new(Places::new(config.max_streams, keys)),
            stopping: CancellationToken::new(),
            config,
        }
    }

    /// Ends the lasting streams.
    pub(super) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Free places for lasting streams.
    pub(super) fn streams(&self) -> &Arc<Places> {
        &self.streams
    }

    /// Cancelled when lasting streams have to end.
    pub(super) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// toolway is shutting down.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Ends idle sessions, and sessions of lent functions that have ended, for ever.
    pub(super) async fn sweep(&self) {
        self.sessions
            .sweep(self.gateway.mcp_sessions().ends())
            .await;
    }

    /// The number of sessions and of lasting streams.
    pub(super) fn counts(&self) -> (usize, usize) {
        let sessions = self.sessions.count() + self.legacy.count();
        (sessions, self.streams.taken())
    }
}

/// The request is a message for `/mcp`.
pub(super) fn is_meant(request: &Request) -> bool {
    request.uri().path() == "/mcp" && request.method() == Method::POST
}

/// `/mcp`.
pub(super) async fn everything(State(app): State<Arc<App>>, request: Request) -> Response {
    match app.gateway.view(None) {
        Some(view) => answer(&app, view, request).await,
        None => no_profile(&app, request).await,
    }
}

/// `/mcp/{profile}`.
pub(super) async fn profile(
    State(app): State<Arc<App>>,
    Path(profile): Path<String>,
    request: Request,
) -> Response {
    match app.gateway.view(Some(&profile)) {
        Some(view) => answer(&app, view, request).await,
        None => no_profile(&app, request).await,
    }
}

/// `/mcp/s/{token}`: functions that a caller lends.
pub(super) async fn lent(
    State(app): State<Arc<App>>,
    Path(token): Path<String>,
    request: Request,
) -> Response {
    match app.gateway.view_of_session(&token) {
        Some(view) => answer(&app, view, request).await,
        None => reply::refusal(Refusal::NoSession),
    }
}

/// Refuses a request for an unknown profile in answer to its id, so that the client can report the wrong URL.
async fn no_profile(app: &App, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let max = app.config.max_body_bytes.min(LONGEST_LENT);
    let most = JsonSize::up_to_depth(app.config.max_body_depth);
    let id = match body::receive(app, &parts.headers, body, max).await {
        Ok(body) => match rpc::read_within(&body, most) {
            Ok(MessageOrBatch::One(RpcMessage::Request(request))) => Some(request.id),
            _ => None,
        },
        Err(refusal) => return reply::refusal(refusal),
    };
    let why = "Nothing is here; `[profiles.NAME]` in the configuration makes `/mcp/NAME`";
    let error = rpc::RpcError::new(rpc::code::INVALID_REQUEST, why);
    reply::error(StatusCode::NOT_FOUND, id.as_ref(), error)
}

/// Answers a request at an endpoint that shows this.
pub(super) async fn answer(app: &App, view: Arc<View>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let view = view.for_key(guard::position(&app.config, &parts.headers));
    let account = match view.session() {
        Some(session) => session.owner(),
        None => guard::owner(app, &parts.headers),
    };
    let head = RequestHead {
        view,
        owner: SessionOwner {
            endpoint: parts.uri.path().to_owned(),
            principal: principal(&parts.headers),
            account,
        },
        accepts: Accepts::read(&parts.headers),
        record: parts.extensions.get().cloned(),
        headers: parts.headers,
    };
    match parts.method {
        Method::GET | Method::DELETE if is_stateless_version(&head.headers) => {
            let why = "2026-07-28 knows nothing but POST here";
            let mut response = reply::refused(StatusCode::METHOD_NOT_ALLOWED, why);
            let allowed = axum::http::HeaderValue::from_static("POST");
            response
                .headers_mut()
                .insert(axum::http::header::ALLOW, allowed);
            response
        }
        Method::GET if !head.accepts.events => {
            let why = "what is here is read as text/event-stream";
            reply::refused(StatusCode::NOT_ACCEPTABLE, why)
        }
        Method::GET => handshake::get(app, &head),
        Method::DELETE => handshake::delete(&app.mcp, &head),
        Method::POST => post(app, &head, body).await,
        _ => reply::unknown_method("POST, GET, DELETE"),
    }
}

async fn post(app: &App, head: &RequestHead, body: axum::body::Body) -> Response {
    if !head.accepts.json && !head.accepts.events {
        let why = "Accept must name application/json and text/event-stream";
        return reply::refused(StatusCode::NOT_ACCEPTABLE, why);
    }
    match read(app, &head.view, &head.headers, body).await {
        Ok((incoming, reservation)) => dispatch(app, head, incoming, reservation).await,
        Err(response) => response,
    }
}

/// Reads a client's message and reserves its bytes, or returns the error answer.
async fn read(
    app: &App,
    view: &View,
    headers: &HeaderMap,
    body: axum::body::Body,
) -> Result<(MessageOrBatch, Option<Arc<Reservation>>), Response> {
    if !headers::is_json(headers) {
        let why = "the Content-Type must be application/json";
        return Err(reply::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    let (max, most) = bounds(&app.config, view);
    let body = match body::receive(app, headers, body, max).await {
        Ok(body) => body,
        Err(Refusal::BodyTooLarge(LONGEST_LENT)) if view.is_lent() => {
            let why = format!("a message to lent functions has at most {LONGEST_LENT} bytes");
            return Err(reply::refused(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        Err(refusal) => return Err(reply::refusal(refusal)),
    };
    let read = values::read(app, body, move |body| {
        rpc::read_within(body, most).map_err(Box::new)
    });
    let (incoming, reservation) = read.await.map_err(reply::refusal)?;
    let malformed = |malformed: Box<MalformedMessage>| {
        reply::error(
            StatusCode::BAD_REQUEST,
            malformed.id.as_ref(),
            malformed.error,
        )
    };
    Ok((incoming.map_err(malformed)?, reservation.map(Arc::new)))
}

/// Longest message to an endpoint, in bytes, and its largest size. Clients of lent functions have no key, so their
/// limits are smaller.
fn bounds(config: &super::Config, view: &View) -> (usize, JsonSize) {
    let most = JsonSize::up_to_depth(config.max_body_depth);
    match view.is_lent() {
        false => (config.max_body_bytes, most),
        true => {
            let values = MOST_LENT_VALUES;
            let most = JsonSize { values, ..most };
            (config.max_body_bytes.min(LONGEST_LENT), most)
        }
    }
}

async fn dispatch(
    app: &App,
    head: &RequestHead,
    incoming: MessageOrBatch,
    reservation: Option<Arc<Reservation>>,
) -> Response {
    if let Some(record) = &head.record {
        note_request(record, &incoming);
    }
    match incoming {
        MessageOrBatch::One(RpcMessage::Request(request))
            if is_stateless(&head.headers, &request) =>
        {
            stateless::request(app, head, request, reservation).await
        }
        MessageOrBatch::One(RpcMessage::Request(request)) if request.method == "initialize" => {
            handshake::initialize(&app.mcp, head, request)
        }
        MessageOrBatch::One(RpcMessage::Notification(_)) if is_stateless_version(&head.headers) => {
            reply::accepted()
        }
        MessageOrBatch::One(RpcMessage::Response(_)) | MessageOrBatch::Batch(_)
            if is_stateless_version(&head.headers) =>
        {
            let why = "Invalid request: 2026-07-28 takes one request or notification";
            reply::refused(StatusCode::BAD_REQUEST, why)
        }
        incoming => handshake::post(&app.mcp, head, incoming, reservation).await,
    }
}

/// The request is of the stateless era, which its body or header says.
pub(super) fn is_stateless(headers: &HeaderMap, request: &rpc::RpcRequest) -> bool {
    match toolway_protocol::mcp::stateless::protocol_version(&request.params) {
        Some(version) => !Version::parse(version).is_some_and(Version::has_handshake),
        None => {
            request.method == "server/discover"
                || (request.method != "initialize" && is_stateless_version(headers))
        }
    }
}

fn is_stateless_version(headers: &HeaderMap) -> bool {
    let version = headers.get(headers::PROTOCOL_VERSION);
    let version = version.and_then(|it| Version::parse(it.to_str().ok()?));
    version.is_some_and(|it| !it.has_handshake())
}

/// Notes the method of a request, and how many tools it calls.
fn note_request(record: &Record, incoming: &MessageOrBatch) {
    let method = |message: &RpcMessage| match message {
        RpcMessage::Request(request) => Some(head(&request.method).to_owned()),
        RpcMessage::Notification(notification) => Some(head(&notification.method).to_owned()),
        RpcMessage::Response(_) => None,
    };
    let is_call = |message: &RpcMessage| matches!(message, RpcMessage::Request(it) if it.method == "tools/call");
    let (method, calls) = match incoming {
        MessageOrBatch::One(message) => (method(message), usize::from(is_call(message))),
        MessageOrBatch::Batch(batch) => {
            let calls = batch.iter().flatten().filter(|it| is_call(it)).count();
            (Some("batch".to_owned()), calls)
        }
    };
    record.note(|details| details.method = method);
    if calls > 0 {
        record.add_calls(calls);
    }
}

/// A place for a lasting stream, or the refusal if there is none.
#[expect(clippy::result_large_err, reason = "the error is what is sent")]
fn place_of_stream(app: &App, path: &str, headers: &HeaderMap) -> Result<HeldPlace, Response> {
    let holder = guard::holder_of(&app.config, path, headers);
    HeldPlace::of(&app.mcp.streams, holder).map_err(reply::refusal)
}

/// What a client calls itself in `initialize`.
pub(super) fn client_name(params: &JsonObject) -> &str {
    let name = params.get("clientInfo").and_then(|it| it.get("name"));
    head(name.and_then(Value::as_str).unwrap_or_default())
}

/// What the client of a request of 2026-07-28 calls itself in it.
pub(super) fn client_of_request(params: &JsonObject) -> Option<HeaderValue> {
    let meta = params.get("_meta")?;
    client_info(meta.get("io.modelcontextprotocol/clientInfo"))
}

/// The name and version of `Implementation`.
fn client_info(info: Option<&Value>) -> Option<HeaderValue> {
    let word = |name: &str| info?.get(name)?.as_str();
    let name = head(word("name")?);
    let text = match word("version") {
        Some(version) => format!("{name}/{}", head(version)),
        None => name.to_owned(),
    };
    HeaderValue::try_from(text).ok()
}

/// A client's word, shortened for the log.
fn head(word: &str) -> &str {
    if word.len() <= MAX_WORD {
        return word;
    }
    let whole = (0..=MAX_WORD).rev().find(|end| word.is_char_boundary(*end));
    &word[..whole.unwrap_or(0)]
}

/// Logs one line with the method and the tool; never the arguments.
pub(super) fn note(request: &rpc::RpcRequest, session: &str) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let name = request.params.get("name").and_then(Value::as_str);
    let name = name.filter(|_| request.method == "tools/call");
    let (method, tool) = (head(&request.method), head(name.unwrap_or_default()));
    tracing::debug!(method, tool, session, "An MCP request");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_calls_itself_takes_little_of_the_log() {
        let name = "\u{e9}".repeat(1 << 20);
        let params = serde_json::json!({"clientInfo": {"name": name}});
        assert_eq!(client_name(params.as_object().unwrap()).len(), MAX_WORD);
        assert_eq!(head("ping"), "ping");
    }
}
