//! Every other `/v1/*` path: forwarded, with long bodies streamed in both directions.
//!
//! The path that the upstream receives is the normalized one that the request was routed by.

mod model_name;
mod named;

use std::{
    sync::{Arc, OnceLock},
    task::{Poll, ready},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use self::named::NamedForward;
use crate::body_buffer::BodyBuffer;
use crate::byte_budget::{ByteBudget, Reservation};
use crate::{
    gateway::{failure::Failure, record::Record},
    upstream::{
        model::{Incoming, ModelError, Upstream},
        read_text,
    },
};
use toolway_core::translate::paths;

use super::{
    App,
    body::{self, BodyStream, Incomplete},
    error::{self, Refusal},
    headers, mcp_sessions,
    request_log::Failing,
};

/// Forwards a request and returns its answer.
pub(super) async fn forward(State(app): State<Arc<App>>, request: Request) -> Response {
    // CONNECT is for proxies, and TRACE would show the upstream's key to the client.
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        let allowed = [(
            header::ALLOW,
            "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
        )];
        return (allowed, Refusal::MethodNotAllowed).into_response();
    }
    let path = request.uri().path();
    if is_own(path) {
        return Refusal::NotFound(request.uri().path().to_owned()).into_response();
    }
    let form = error::form_of(path);
    let after = app.gateway.request_timeout();
    let deadline = Instant::now() + after;
    let passed = timeout_at(deadline, pass(&app, request, deadline)).await;
    match passed.unwrap_or_else(|_| Err(Failure::TimeIsUp { after }.into())) {
        Ok(response) => response,
        Err(Unsent::Refused(refusal)) => refusal.into_response_in(form),
        Err(Unsent::Failed(failure)) => error::response_in(failure.into(), form),
    }
}

/// Why a request was not forwarded.
enum Unsent {
    Refused(Refusal),
    Failed(Failure),
}

impl<F: Into<Failure>> From<F> for Unsent {
    fn from(failure: F) -> Unsent {
        Unsent::Failed(failure.into())
    }
}

async fn pass(app: &App, request: Request, deadline: Instant) -> Result<Response, Unsent> {
    let (parts, body) = request.into_parts();
    let has_body = !http_body::Body::is_end_stream(&body);
    let ending = app.gateway.ending();
    let choosing = choose(app, &parts.method, &parts.headers, body);
    let chosen = ending.run_until_cancelled(choosing).await;
    let chosen = chosen.unwrap_or_else(|| Err(Failure::ShuttingDown.into()))?;
    let record = parts.extensions.get::<Arc<Record>>().cloned();
    let record = record.unwrap_or_default();
    // Why the body was not complete; then the upstream is not at fault.
    let cut = Arc::new(OnceLock::new());
    let noted = Arc::clone(&cut);
    let forwarding = async {
        let (upstream, body) = match chosen {
            ChosenUpstream::One(upstream, body) => (upstream, body),
            ChosenUpstream::Named(named) => return named.send(app, &parts, &record).await,
        };
        record.note(|details| details.upstream = Some(upstream.config.name.clone()));
        let body = has_body.then_some(body.inspect_err(move |Incomplete(refusal)| {
            let _ = noted.set(refusal.clone());
        }));
        let length = parts.headers.get(header::CONTENT_LENGTH).cloned();
        send(app, &parts, upstream, length, body).await
    };
    let forwarded = ending.run_until_cancelled(forwarding).await;
    let forwarded = forwarded.ok_or(Failure::ShuttingDown)?;
    let (status, incoming) = forwarded.map_err(|error| match cut.get() {
        Some(refusal) => Unsent::Refused(refusal.clone()),
        None => error.into(),
    })?;
    let headers = headers::to_client(&incoming.headers);
    let after = app.gateway.request_timeout();
    let noting = Arc::clone(&record);
    // The client only sees that its answer breaks off.
    let pieces =
        until(deadline, after, incoming.into_stream()).inspect_err(move |failure| {
            match cut.get() {
                Some(refusal) => {
                    let Failing { outcome, error } = refusal.failing();
                    noting.note(|details| details.failure = Some((outcome, error)));
                }
                None => noting.fail(failure),
            }
        });
    let pieces = until_ending(pieces.map_err(Into::into), ending.clone(), &headers, record);
    let mut response = (status, Body::from_stream(pieces)).into_response();
    *response.headers_mut() = headers;
    Ok(response)
}

/// Sends a request with these headers to an upstream, and gives what that answers.
async fn send(
    app: &App,
    parts: &Parts,
    upstream: &Upstream,
    length: Option<HeaderValue>,
    body: Option<impl Stream<Item = Result<Bytes, Incomplete>> + Send + 'static>,
) -> Result<(StatusCode, Incoming), ModelError> {
    let path = parts.uri.path().strip_prefix("/v1/").unwrap_or_default();
    let url = upstream.url(path, parts.uri.query());
    let mut outgoing = headers::to_upstream(&parts.headers, &app.config);
    if let Some(length) = length {
        outgoing.insert(header::CONTENT_LENGTH, length);
    }
    let method = parts.method.clone();
    upstream.forward(method, url, &outgoing, body).await
}

/// The pieces that arrive before the deadline. After it, the answer ends with an error.
fn until(
    deadline: Instant,
    after: Duration,
    pieces: impl Stream<Item = Result<Bytes, ModelError>> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, Failure>> + Send {
    let (mut alarm, mut pieces) = (Box::pin(sleep_until(deadline)), pieces.boxed());
    stream::poll_fn(move |cx| match alarm.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Some(Err(Failure::TimeIsUp { after }))),
        Poll::Pending => pieces.poll_next_unpin(cx).map_err(Failure::from),
    })
}

/// The pieces of an answer. If toolway shuts down first, an event stream ends with an error event, and any other body
/// breaks off.
fn until_ending(
    pieces: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
    ending: CancellationToken,
    headers: &HeaderMap,
    record: Arc<Record>,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
    let content_type = headers.get(header::CONTENT_TYPE);
    let is_events = content_type.is_some_and(|it| it.as_bytes().starts_with(b"text/event-stream"));
    let mut ended = Box::pin(ending.cancelled_owned());
    let mut pieces = Some(Box::pin(pieces));
    // The last piece ended an event.
    let mut is_between = is_events;
    stream::poll_fn(move |cx| {
        let Some(arriving) = &mut pieces else {
            return Poll::Ready(None);
        };
        if ended.as_mut().poll(cx).is_ready() {
            pieces = None;
            record.fail(&Failure::ShuttingDown);
            return Poll::Ready(Some(match is_between {
                true => {
                    let error = error::in_band(Failure::ShuttingDown).to_value();
                    Ok(format!("data: {error}\n\n").into())
                }
                false => Err(Failure::ShuttingDown.into()),
            }));
        }
        let piece = ready!(arriving.poll_next_unpin(cx));
        if let Some(Ok(piece)) = &piece {
            is_between = is_events && (piece.ends_with(b"\n\n") || piece.ends_with(b"\n\r\n"));
        }
        Poll::Ready(piece)
    })
}

/// The path is toolway's own, or the upstream may read it as such a path. Forwarding it would bypass the tools or show
/// the id of a session.
fn is_own(path: &str) -> bool {
    let is_chat_misspelt = || paths::may_mean(path, &["v1", "chat", "completions"]);
    let is_doubled = path.starts_with("/v1/v1/");
    is_doubled
        || mcp_sessions::is_below(path)
        || (path != "/v1/chat/completions" && is_chat_misspelt())
}

/// Who answers a request, and its body.
enum ChosenUpstream<'a> {
    One(&'a Upstream, BodyStream),
    Named(NamedForward<'a>),
}

/// The upstream for a request: the one that `X-Toolway-Upstream` names, the one that has the model which the
/// body names, or the first. With one upstream and no name of one's own nothing is looked at.
async fn choose<'a>(
    app: &'a App,
    method: &Method,
    headers: &HeaderMap,
    body: Body,
) -> Result<ChosenUpstream<'a>, Unsent> {
    let models = app.gateway.models();
    let pieces = body::pieces(body);
    if let Some(name) = headers.get("x-toolway-upstream") {
        let name = String::from_utf8_lossy(name.as_bytes());
        let upstream = models.named(&name).ok_or_else(|| unknown(&name))?;
        return Ok(ChosenUpstream::One(upstream, pieces));
    }
    let first = models.all().first().ok_or_else(|| unknown("default"))?;
    let is_only = models.all().len() == 1 && models.names().next().is_none();
    if is_only || *method == Method::GET {
        return Ok(ChosenUpstream::One(first, pieces));
    }
    let max = app.config.max_body_bytes;
    let peeked = peek(pieces, max, &app.bodies).await;
    let (model, pieces) = peeked.map_err(Unsent::Refused)?;
    match model {
        Some(model) if models.is_name(&model) => {
            let body = gather(pieces, max, &app.bodies).await;
            let body = body.map_err(Unsent::Refused)?;
            let place = read_text(body.len(), || model_name::place(&body));
            let route = models.route(&model, || app.gateway.seed());
            match route.zip(place) {
                Some((route, name)) => {
                    Ok(ChosenUpstream::Named(NamedForward { route, body, name }))
                }
                None => Err(Failure::ModelNotFound { model }.into()),
            }
        }
        Some(model) => match models.choose(&model) {
            Some(upstream) => Ok(ChosenUpstream::One(upstream, pieces)),
            None => Err(Failure::ModelNotFound { model }.into()),
        },
        None => Ok(ChosenUpstream::One(first, pieces)),
    }
}

/// The whole body, at most `max` bytes, which may have to be sent more than once.
async fn gather(mut pieces: BodyStream, max: usize, budget: &ByteBudget) -> Result<Bytes, Refusal> {
    let mut reservation = budget.take_nothing();
    let mut whole = BodyBuffer::default();
    while let Some(piece) = pieces.next().await {
        whole.push(piece.map_err(|Incomplete(refusal)| refusal)?);
        if whole.len() > max {
            return Err(Refusal::BodyTooLarge(max));
        }
        if !reservation.grow_to(whole.len()) {
            return Err(Refusal::OverBudget);
        }
    }
    Ok(body::held(whole.into_bytes(), reservation))
}

/// The model that a body names, and the complete body. At most `max` bytes are held, reserved from `budget`: SDKs write
/// `model` after an `input` of any length, and in a form a file often comes before it.
async fn peek(
    mut pieces: BodyStream,
    max: usize,
    budget: &ByteBudget,
) -> Result<(Option<String>, BodyStream), Refusal> {
    let mut reservation = budget.take_nothing();
    let mut start = BytesMut::new();
    // Searched only when the length has doubled, so that many small pieces cost no more than a few large ones.
    let mut enough = 1;
    while start.len() < max && model_name::may_be_there(&start) {
        match pieces.next().await {
            Some(Ok(piece)) => start.extend_from_slice(&piece),
            Some(Err(Incomplete(refusal))) => return Err(refusal),
            None => break,
        }
        if !reservation.grow_to(start.len()) {
            return Err(Refusal::OverBudget);
        }
        if start.len() >= enough {
            if let Some(model) = read_text(start.len(), || model_name::find(&start)) {
                return Ok((Some(model), with_start(start, reservation, pieces).boxed()));
            }
            enough = 2 * start.len();
        }
    }
    let model = read_text(start.len(), || model_name::find(&start));
    Ok((model, with_start(start, reservation, pieces).boxed()))
}

fn with_start(
    start: BytesMut,
    reservation: Reservation,
    rest: BodyStream,
) -> impl Stream<Item = Result<Bytes, Incomplete>> {
    let start = body::held(start.freeze(), reservation);
    stream::iter((!start.is_empty()).then_some(Ok(start))).chain(rest)
}

fn unknown(name: &str) -> Failure {
    Failure::Request {
        message: format!("there is no upstream named `{name}`"),
        param: None,
        code: "upstream_not_found",
    }
}
