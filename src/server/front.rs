//! What every request passes through: its id, its place, and the handling of panics. `request_log` writes its log line.

use std::{
    borrow::Cow,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, HeaderValue, Uri, header},
    response::{IntoResponse, Response},
};
use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use http_body::{Frame, SizeHint};
use tracing::{Instrument, Span};

use super::{
    App, REQUEST_ID, chat,
    connections::Ticket,
    cors,
    error::{self, Refusal},
    guard, mcp, mcp_sessions,
    request_log::{Lasting, RequestLog},
};
use crate::upstream::model::is_credential;
use toolway_core::{policy::KeyId, translate::paths};

/// Longest id that a client can give its request, in bytes: it goes into every line of the log about it.
const LONGEST_ID: usize = 256;

/// Prefixes of the paths whose bodies are read completely before any work, besides chats and MCP.
const READ_WHOLE: [&str; 7] = [
    "/confirmations/",
    "/v1/responses",
    "/v1/conversations",
    "/v1/messages",
    "/v1/tool_calls",
    "/tools/",
    "/servers",
];

/// Answers a request with `work`, if it is admitted.
pub(super) fn answer(
    app: Arc<App>,
    mut request: Request,
    ticket: Arc<Ticket>,
    work: impl FnOnce(&Arc<App>, Request, &Ticket) -> BoxFuture<'static, Response> + Send,
) -> impl Future<Output = Response> + Send {
    hide_credentials(request.headers_mut());
    let is_clear = normalize_path(&mut request);
    let id = name(&app, &mut request);
    let span = span(&id, &request, is_clear);
    let key = guard::position(&app.config, request.headers());
    let is_messages = paths::is_messages(request.uri().path());
    let log = RequestLog::new(Arc::clone(&app), &request, key, span.clone());
    request.extensions_mut().insert(log.record());
    let answering = async move {
        let answered = async {
            let work = admitted(&app, work, request, is_clear, key, &ticket);
            work.await
        };
        let answered = AssertUnwindSafe(answered).catch_unwind().await;
        // The panic itself is in the log.
        let mut response = answered.unwrap_or_else(|_| Refusal::Internal.into_response());
        let headers = response.headers_mut();
        if is_messages {
            // Where Anthropic's SDKs read it; an upstream's own stays.
            headers.entry("request-id").or_insert(id.clone());
        }
        headers.entry(REQUEST_ID).or_insert(id);
        held(response, ticket, log)
    };
    answering.instrument(span)
}

/// Keeps headers that are credentials out of every `Debug` of the headers.
fn hide_credentials(headers: &mut HeaderMap) {
    for (name, value) in headers {
        if is_credential(name) || *name == header::COOKIE {
            value.set_sensitive(true);
        }
    }
}

/// The work on a request, with CORS headers on the answer if the page's origin is listed.
fn admitted(
    app: &Arc<App>,
    work: impl FnOnce(&Arc<App>, Request, &Ticket) -> BoxFuture<'static, Response>,
    request: Request,
    is_clear: bool,
    key: Option<KeyId>,
    ticket: &Ticket,
) -> BoxFuture<'static, Response> {
    let origin = cors::reader(&app.config, request.headers());
    let work = checked(app, work, request, is_clear, key, ticket);
    let Some(origin) = origin else {
        return work;
    };
    Box::pin(work.map(|response| cors::readable(response, origin)))
}

/// The work on a request that has a place or will get one, or the answer to a request that is refused.
fn checked(
    app: &Arc<App>,
    work: impl FnOnce(&Arc<App>, Request, &Ticket) -> BoxFuture<'static, Response>,
    request: Request,
    is_clear: bool,
    key: Option<KeyId>,
    ticket: &Ticket,
) -> BoxFuture<'static, Response> {
    if !is_clear {
        let path = request.uri().path();
        let form = error::form_of(path);
        let refused = Refusal::NotFound(path.to_owned()).into_response_in(form);
        return Box::pin(ready(refused));
    }
    if cors::is_preflight(&request) {
        let answer = match guard::source(&app.config, &request) {
            Ok(()) => cors::preflight(&app.config, request.headers()),
            Err(refusal) => refusal.into_response(),
        };
        return Box::pin(ready(answer));
    }
    let admitted = guard::admit(app, &request, key).and_then(|holder| match holder {
        Some(holder) => ticket.take_place(holder, is_read_whole(&request)),
        None => Ok(()),
    });
    let refused = match admitted {
        Ok(()) => return work(app, request, ticket),
        Err(refusal) if paths::is_mcp(request.uri().path()) => mcp::reply::refusal(refusal),
        Err(refusal) => refusal.into_response_in(error::form_of(request.uri().path())),
    };
    Box::pin(ready(refused))
}

/// The body is read completely before any work. Other bodies are streamed, which takes a connection to an upstream.
fn is_read_whole(request: &Request) -> bool {
    let path = request.uri().path();
    let is_read = READ_WHOLE.iter().any(|start| path.starts_with(start));
    is_read || chat::is_meant(request) || paths::is_mcp(path) || mcp_sessions::is_below(path)
}

/// The place of a request is free again when its response has been sent, or at once if that lasts.
fn held(mut response: Response, ticket: Arc<Ticket>, mut log: RequestLog) -> Response {
    if response.extensions().get::<Lasting>().is_some() {
        ticket.leave_place();
    }
    let left = log.answered(&mut response);
    response.map(|body| {
        Body::new(Tracked {
            body,
            left,
            log,
            ticket,
        })
    })
}

/// Normalizes the request's path, so that every decision uses the path that an upstream would receive. Returns false if
/// the path cannot be normalized.
fn normalize_path(request: &mut Request) -> bool {
    let uri = request.uri();
    let path = match paths::normalize(uri.path()) {
        Some(Cow::Borrowed(_)) => return true,
        Some(Cow::Owned(path)) => path,
        None => return false,
    };
    let whole = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = whole.parse().ok();
    let Ok(uri) = Uri::from_parts(parts) else {
        return false;
    };
    *request.uri_mut() = uri;
    true
}

/// The request's id: the client's, or a new one where it has none that the log can show in a line.
fn name(app: &App, request: &mut Request) -> HeaderValue {
    let theirs = request.headers().get(&REQUEST_ID);
    let is_shown = |id: &&HeaderValue| {
        let id = id.to_str().unwrap_or_default();
        (1..=LONGEST_ID).contains(&id.len())
    };
    if let Some(id) = theirs.filter(is_shown) {
        return id.clone();
    }
    let id = own_id(app.gateway.seed());
    request.headers_mut().insert(REQUEST_ID, id.clone());
    id
}

/// `req_` and 16 hexadecimal digits.
fn own_id(seed: u64) -> HeaderValue {
    let mut id = *b"req_0000000000000000";
    let places = (0..16).rev().map(|place| 4 * place);
    for (digit, shift) in id[4..].iter_mut().zip(places) {
        *digit = b"0123456789abcdef"[(seed >> shift) as usize % 16];
    }
    HeaderValue::from_bytes(&id).unwrap_or_else(|_| HeaderValue::from_static("req"))
}

fn span(id: &HeaderValue, request: &Request, is_clear: bool) -> Span {
    let id = id.to_str().unwrap_or_default();
    // In a path that cannot be normalized, the position of a secret is unknown.
    let path = match is_clear {
        true => mcp_sessions::without_secrets(request.uri().path()),
        false => Cow::Borrowed("[refused]"),
    };
    tracing::info_span!(
        "request",
        id,
        method = request.method().as_str(),
        path = &*path
    )
}

/// A body that holds its request's ticket, and whose work is logged as the request's.
struct Tracked {
    // First, so that everything that its drop notes is there before `log` is dropped.
    body: Body,
    /// Bytes until the body is complete, where that is known; hyper asks for nothing after them.
    left: Option<u64>,
    log: RequestLog,
    #[expect(dead_code, reason = "held")]
    ticket: Arc<Ticket>,
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Tracked {
            body, left, log, ..
        } = self.get_mut();
        let polled = log.span().in_scope(|| Pin::new(&mut *body).poll_frame(cx));
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                *left = left.map(|left| left.saturating_sub(length));
                if *left == Some(0) || body.is_end_stream() {
                    log.complete();
                }
            }
            Poll::Ready(None) => log.complete(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
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
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        let names = [
            "authorization",
            "api-key",
            "x-api-key",
            "x-goog-api-key",
            "cookie",
        ];
        for name in names {
            let mut headers = HeaderMap::new();
            headers.append(name, HeaderValue::from_static("secret"));
            headers.append(name, HeaderValue::from_static("secret"));
            hide_credentials(&mut headers);
            assert!(!format!("{headers:?}").contains("secret"), "{name}");
        }
    }
}
