//! What every request goes through: its id, its place, its line in the log, and what a panic costs.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderValue, header, header::Entry},
    response::{IntoResponse, Response},
};
use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;
use tower::ServiceExt;
use tracing::{Instrument, Span};

use super::{App, REQUEST_ID, chat, connections::Ticket, error::Refusal, guard, mcp, mcp_sessions};
use crate::tool::millis;

/// Longest id that a client can give its request, in bytes: it goes into every line of the log about it.
const LONGEST_ID: usize = 256;

/// Answers a request, and puts the answer into the log.
pub(super) fn answer(
    app: Arc<App>,
    routes: Router,
    mut request: Request,
    ticket: Arc<Ticket>,
) -> impl Future<Output = Response> + Send {
    let begun = Instant::now();
    for name in [header::AUTHORIZATION, header::COOKIE] {
        if let Entry::Occupied(mut values) = request.headers_mut().entry(name) {
            values
                .iter_mut()
                .for_each(|value| value.set_sensitive(true));
        }
    }
    let id = name(&app, &mut request);
    let span = span(&id, &request);
    let within = span.clone();
    let answering = async move {
        let answered = async {
            let work = admitted(&app, routes, request, &ticket);
            held(work.await, ticket, within)
        };
        let answered = AssertUnwindSafe(answered).catch_unwind().await;
        let mut response = answered.unwrap_or_else(|panic| panicked(&*panic));
        response.headers_mut().entry(REQUEST_ID).or_insert(id);
        let status = response.status().as_u16();
        let duration_ms = millis(begun.elapsed());
        tracing::info!(status, duration_ms, "Answered {status}");
        response
    };
    answering.instrument(span)
}

/// The work on a request that has its place, or will have it; or the answer to one that may not come in.
fn admitted(
    app: &Arc<App>,
    routes: Router,
    request: Request,
    ticket: &Ticket,
) -> BoxFuture<'static, Response> {
    let admitted = guard::admit(app, &request).and_then(|holder| match holder {
        Some(holder) => ticket.take_place(holder, is_read_whole(&request)),
        None => Ok(()),
    });
    let refused = match admitted {
        Ok(()) => return work(app, routes, request),
        Err(refusal) if mcp::is_here(request.uri().path()) => mcp::reply::refusal(refusal),
        Err(refusal) => refusal.into_response(),
    };
    Box::pin(ready(refused))
}

/// Nothing is done before the body is complete. Other bodies are passed on as they come, which takes a connection to
/// an upstream.
fn is_read_whole(request: &Request) -> bool {
    let path = request.uri().path();
    chat::is_meant(request) || mcp::is_here(path) || mcp_sessions::is_below(path)
}

/// The place of a request is free again when its response has been sent, or at once if that lasts.
fn held(response: Response, ticket: Arc<Ticket>, span: Span) -> Response {
    if response.extensions().get::<mcp::reply::Lasting>().is_some() {
        ticket.leave_place();
    }
    response.map(|body| Body::new(Tracked { body, span, ticket }))
}

/// What is asked all the time goes past the router, which costs more than reading the request does.
fn work(app: &Arc<App>, routes: Router, request: Request) -> BoxFuture<'static, Response> {
    if chat::is_meant(&request) {
        return Box::pin(chat::complete(State(Arc::clone(app)), request));
    }
    if mcp::is_meant(&request) {
        return Box::pin(mcp::everything(State(Arc::clone(app)), request));
    }
    Box::pin(routes.oneshot(request).map(|answered| match answered {
        Ok(response) => response,
        Err(never) => match never {},
    }))
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
    let id = format!("req_{:016x}", app.gateway.seed());
    let id = HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("req"));
    request.headers_mut().insert(REQUEST_ID, id.clone());
    id
}

fn span(id: &HeaderValue, request: &Request) -> Span {
    let id = id.to_str().unwrap_or_default();
    let path = mcp_sessions::without_secrets(request.uri().path());
    tracing::info_span!(
        "request",
        id,
        method = request.method().as_str(),
        path = &*path
    )
}

fn panicked(panic: &(dyn Any + Send)) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    tracing::error!(panic = text, "A handler panicked");
    Refusal::Internal.into_response()
}

/// A body that holds its request's ticket, and whose work is logged as the request's.
struct Tracked {
    body: Body,
    span: Span,
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
        let Tracked { body, span, .. } = self.get_mut();
        span.in_scope(|| Pin::new(body).poll_frame(cx))
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

    #[tokio::test]
    async fn a_panic_is_an_internal_error() {
        let response = panicked(&"oh");
        assert_eq!(response.status(), 500);
        let body = axum::body::to_bytes(response.into_body(), 1000)
            .await
            .unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["type"], "server_error");
        assert_eq!(body["error"]["code"], "internal_error");
        assert!(
            !body.to_string().contains("oh"),
            "what it says is for the log"
        );
    }
}
