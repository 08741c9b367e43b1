//! `/v1/mcp_sessions`: a caller lends its own functions to other agents for a limited time.
//!
//! This is the caller's side: open, look, read the calls, answer them, end. The agents' side is an MCP server
//! at `/mcp/s/TOKEN`. What a session is and does stands in `gateway::mcp_sessions`.

use std::{borrow::Cow, sync::Arc, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::Authority},
    response::{IntoResponse, Response},
};
use futures::{Stream, stream};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::gateway::{
    failure::Failure,
    mcp_sessions::{
        OpenSessionError, answers,
        events::{SessionEvent, SessionEvents},
        session::LendingSession,
    },
};
use toolway_core::translate::paths::{self, LENT_FUNCTIONS};

use super::{
    App, body,
    error::{self, Refusal},
    guard,
    request_log::OpenEnded,
    values,
};

/// Where the sessions are.
const PATH: &str = "/v1/mcp_sessions";

/// `POST /v1/mcp_sessions`.
pub(super) async fn open(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let base = match base(&parts.headers, &parts.uri) {
        Ok(base) => base,
        Err(failure) => return error::response(failure.into()),
    };
    let body = match body::receive(&app, &parts.headers, body, app.config.max_body_bytes).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    let owner = guard::owner(&app, &parts.headers);
    match app.gateway.mcp_sessions().open(body, owner).await {
        Ok(session) => {
            let answer = Json(described(&session, &base));
            let mut response = (StatusCode::CREATED, answer).into_response();
            keep_secret(response.headers_mut());
            response
        }
        Err(error) => refused(error),
    }
}

/// `GET /v1/mcp_sessions/ID`.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let Some(session) = find(&app, &id, &headers) else {
        return Refusal::NoSession.into_response();
    };
    let base = match base(&headers, &uri) {
        Ok(base) => base,
        Err(failure) => return error::response(failure.into()),
    };
    let mut answer = described(&session, &base);
    let open = session.open_calls();
    let call = |(id, name): (String, String)| json!({"id": id, "name": name});
    answer["open_calls"] = open.into_iter().map(call).collect();
    answer["has_reader"] = json!(session.has_reader());
    let mut response = Json(answer).into_response();
    keep_secret(response.headers_mut());
    response
}

/// `DELETE /v1/mcp_sessions/ID`.
pub(super) async fn end(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    if !app
        .gateway
        .mcp_sessions()
        .end(&id, guard::owner(&app, &headers))
    {
        return Refusal::NoSession.into_response();
    }
    Json(json!({"id": id, "object": "mcp_session.deleted", "deleted": true})).into_response()
}

/// `GET /v1/mcp_sessions/ID/events`.
pub(super) async fn events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Some(session) = find(&app, &id, &headers) else {
        return Refusal::NoSession.into_response();
    };
    let last = headers
        .get("last-event-id")
        .and_then(|last| last.to_str().ok()?.trim().parse().ok());
    let body = stream(session.events(last), app.gateway.keepalive());
    let mut response = Response::new(Body::from_stream(body));
    response.extensions_mut().insert(OpenEnded);
    let own = response.headers_mut();
    own.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    own.insert("x-accel-buffering", HeaderValue::from_static("no"));
    keep_secret(own);
    response
}

/// `POST /v1/mcp_sessions/ID/tool_responses`.
pub(super) async fn respond(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let Some(session) = find(&app, &id, &parts.headers) else {
        return Refusal::NoSession.into_response();
    };
    let body = match body::receive(&app, &parts.headers, body, app.config.max_body_bytes).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    let (read, _taken) = match values::read(&app, body, answers::read).await {
        Ok(read) => read,
        Err(refusal) => return refusal.into_response(),
    };
    match read {
        Ok(answers) => {
            let receipt = session.respond(answers);
            Json(json!({
                "accepted": receipt.accepted,
                "unknown": receipt.unknown,
                "answered_already": receipt.answered_already,
            }))
            .into_response()
        }
        Err(failure) => error::response(failure.into()),
    }
}

/// The path is below the sessions' paths, or an upstream may read it so. Such a path is never forwarded.
pub(super) fn is_below(path: &str) -> bool {
    paths::may_begin_with(path, &["v1", "mcp_sessions"])
}

/// A path as it may be logged: without ids and tokens, which give the access of keys.
pub(super) fn without_secrets(path: &str) -> Cow<'_, str> {
    let mut named = parts(path);
    let is_secret = matches!(
        (named.next(), named.next()),
        (Some("mcp"), Some("s")) | (Some("v1"), Some("mcp_sessions"))
    );
    if !is_secret || named.next().is_none() {
        return path.into();
    }
    let mut place = 0;
    let shown = path.split('/').map(|part| {
        place += usize::from(!part.is_empty());
        match place == 3 && !part.is_empty() {
            true => "[redacted]",
            false => part,
        }
    });
    shown.collect::<Vec<_>>().join("/").into()
}

/// What stands between the slashes of a path.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

fn find(app: &App, id: &str, headers: &HeaderMap) -> Option<Arc<LendingSession>> {
    app.gateway
        .mcp_sessions()
        .find_own(id, guard::owner(app, headers))
}

fn described(session: &LendingSession, base: &str) -> Value {
    let (id, token, about) = (session.id(), session.token(), session.about());
    let tools: Vec<&str> = session
        .tools()
        .iter()
        .map(|offered| offered.tool.name.as_str())
        .collect();
    json!({
        "id": id,
        "object": "mcp_session",
        "url": format!("{base}{LENT_FUNCTIONS}{token}"),
        "events_url": format!("{base}{PATH}/{id}/events"),
        "responses_url": format!("{base}{PATH}/{id}/tool_responses"),
        "created": about.created,
        "expires_at": about.expires_at,
        "name": about.name,
        "tools": tools,
    })
}

/// The base URL for the caller and its agents: the `Host` of the request, and the scheme that a proxy names.
///
/// Both come from the caller and are shown to no other client, so a wrong one harms only its sender.
fn base(headers: &HeaderMap, uri: &Uri) -> Result<String, Failure> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let host = text("host").or_else(|| uri.authority().map(Authority::as_str));
    let host = host
        .and_then(|host| host.parse::<Authority>().ok())
        .filter(|host| !host.as_str().contains('@'))
        .ok_or_else(|| Failure::Request {
            message: "the `Host` header is missing or names no host, so there is no URL to give"
                .to_owned(),
            param: None,
            code: "invalid_request",
        })?;
    let is_https = text("x-forwarded-proto")
        .and_then(|list| list.split(',').next())
        .is_some_and(|scheme| scheme.trim().eq_ignore_ascii_case("https"));
    let scheme = if is_https { "https" } else { "http" };
    Ok(format!("{scheme}://{host}"))
}

/// Neither a proxy nor a browser may cache ids and tokens, which grant access like a key.
fn keep_secret(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

fn refused(error: OpenSessionError) -> Response {
    match error {
        OpenSessionError::Full => Refusal::TooManySessions.into_response(),
        OpenSessionError::Share => Refusal::TooManySessionsOfKey.into_response(),
        OpenSessionError::Stopping => Refusal::Overloaded.into_response(),
        OpenSessionError::SessionRequest(failure) => error::response(failure.into()),
        OpenSessionError::NoRandomness | OpenSessionError::Broken => {
            tracing::error!(%error, "A session could not be opened");
            Refusal::Internal.into_response()
        }
        OpenSessionError::Tool { .. } => {
            let failure = Failure::Request {
                message: error.to_string(),
                param: Some("tools".to_owned()),
                code: "invalid_value",
            };
            error::response(failure.into())
        }
    }
}

/// The events as server-sent events, with a comment at the start and during silence.
fn stream(
    events: SessionEvents,
    keepalive: Duration,
) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
    let comment = |text: &'static str| Bytes::from_static(text.as_bytes());
    stream::unfold((events, true), move |(mut events, begins)| async move {
        if begins {
            return Some((Ok(comment(": connected\n\n")), (events, false)));
        }
        let piece = match timeout(keepalive, events.next()).await {
            Ok(event) => written(&event?),
            Err(_) => comment(": keep-alive\n\n"),
        };
        Some((Ok(piece), (events, false)))
    })
}

fn written(event: &SessionEvent) -> Bytes {
    // JSON has no line breaks of its own.
    Bytes::from(format!("id: {}\ndata: {}\n\n", event.id, event.data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_base(given: &[(&'static str, &'static str)], expected: Option<&str>) {
        let pair = |(name, value): &(&'static str, &'static str)| {
            let name = axum::http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        };
        let headers: HeaderMap = given.iter().map(pair).collect();
        let base = base(&headers, &Uri::from_static("/v1/mcp_sessions"));
        assert_eq!(base.ok().as_deref(), expected, "{given:?}");
    }

    #[test]
    fn urls_begin_where_the_caller_came_in() {
        check_base(&[("host", "localhost:4242")], Some("http://localhost:4242"));
        check_base(&[("host", "[::1]:80")], Some("http://[::1]:80"));
        let https = ("x-forwarded-proto", "https, http");
        check_base(&[("host", "t.example"), https], Some("https://t.example"));
        let odd = ("x-forwarded-proto", "javascript:");
        check_base(&[("host", "t.example"), odd], Some("http://t.example"));
        check_base(&[("host", "a/b?c")], None);
        check_base(&[("host", "user@evil.example")], None);
        check_base(&[("host", "")], None);
        check_base(&[], None);
    }

    #[test]
    fn a_logged_path_says_nothing_that_opens_a_door() {
        let check = |path: &str, shown: &str| assert_eq!(without_secrets(path), shown);
        check("/mcp/s/abc", "/mcp/s/[redacted]");
        check("/mcp/s/abc/x", "/mcp/s/[redacted]/x");
        check("//mcp/s//s/s/", "//mcp/s//[redacted]/s/");
        check("/v1//mcp_sessions/abc", "/v1//mcp_sessions/[redacted]");
        check("/v1/mcp_sessions/abc", "/v1/mcp_sessions/[redacted]");
        check(
            "/v1/mcp_sessions/abc/events",
            "/v1/mcp_sessions/[redacted]/events",
        );
        check("/v1/mcp_sessions", "/v1/mcp_sessions");
        check("/mcp", "/mcp");
    }

    #[test]
    fn the_token_is_the_first_part_after_its_place() {
        assert_eq!(paths::lent_token("/mcp/s/abc"), Some("abc"));
        assert_eq!(paths::lent_token("/mcp/s/abc/"), Some("abc"));
        assert_eq!(paths::lent_token("/mcp/s/"), Some(""));
        assert_eq!(paths::lent_token("/mcp/server"), None);
        assert_eq!(paths::lent_token("/mcp/s"), None);
    }
}
