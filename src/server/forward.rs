//! Every other `/v1/*` path: forwarded, with long bodies streamed in both directions.
//!
//! The path that the upstream receives is the normalized one that the request was routed by.

use std::{
    sync::{Arc, OnceLock},
    task::{Poll, ready},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, header},
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::byte_budget::{ByteBudget, Reservation};
use crate::{
    gateway::{failure::Failure, record::Record},
    upstream::{
        model::{ModelError, Upstream},
        read_text,
    },
};
use toolway_core::translate::{dialect::anthropic, paths};

use super::{
    App,
    body::{self, BodyStream, Incomplete},
    dialects,
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
    let form: error::ErrorForm = match dialects::is_messages(path) {
        true => anthropic::write_error,
        false => |_, error| error.to_value(),
    };
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
    let (upstream, body) = chosen.unwrap_or_else(|| Err(Failure::ShuttingDown.into()))?;
    let record = parts.extensions.get::<Arc<Record>>().cloned();
    let record = record.unwrap_or_default();
    record.note(|details| details.upstream = Some(upstream.config.name.clone()));
    let path = parts.uri.path().strip_prefix("/v1/").unwrap_or_default();
    let url = upstream.url(path, parts.uri.query());
    let mut outgoing = headers::to_upstream(&parts.headers, &app.config);
    if let Some(length) = parts.headers.get(header::CONTENT_LENGTH) {
        outgoing.insert(header::CONTENT_LENGTH, length.clone());
    }
    // Why the body was not complete; then the upstream is not at fault.
    let cut = Arc::new(OnceLock::new());
    let noted = Arc::clone(&cut);
    let body = has_body.then_some(body.inspect_err(move |Incomplete(refusal)| {
        let _ = noted.set(refusal.clone());
    }));
    let forwarding = upstream.forward(parts.method, url, &outgoing, body);
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
    mcp_sessions::is_below(path) || (path != "/v1/chat/completions" && is_chat_misspelt())
}

/// The upstream for a request: the one that `X-Toolway-Upstream` names, else the one that serves the body's model, else
/// the first. With a single upstream the request is not inspected.
async fn choose<'a>(
    app: &'a App,
    method: &Method,
    headers: &HeaderMap,
    body: Body,
) -> Result<(&'a Upstream, BodyStream), Unsent> {
    let models = app.gateway.models();
    let pieces = body::pieces(body);
    if let Some(name) = headers.get("x-toolway-upstream") {
        let name = String::from_utf8_lossy(name.as_bytes());
        let upstream = models.named(&name).ok_or_else(|| unknown(&name))?;
        return Ok((upstream, pieces));
    }
    let first = models.all().first().ok_or_else(|| unknown("default"))?;
    if models.all().len() == 1 || *method == Method::GET {
        return Ok((first, pieces));
    }
    let peeked = peek(pieces, app.config.max_body_bytes, &app.bodies).await;
    let (model, pieces) = peeked.map_err(Unsent::Refused)?;
    match model {
        Some(model) => match models.choose(&model) {
            Some(upstream) => Ok((upstream, pieces)),
            None => Err(Failure::ModelNotFound { model }.into()),
        },
        None => Ok((first, pieces)),
    }
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
    while start.len() < max && may_name_model(&start) {
        match pieces.next().await {
            Some(Ok(piece)) => start.extend_from_slice(&piece),
            Some(Err(Incomplete(refusal))) => return Err(refusal),
            None => break,
        }
        if !reservation.grow_to(start.len()) {
            return Err(Refusal::OverBudget);
        }
        if start.len() >= enough {
            if let Some(model) = read_text(start.len(), || model_in(&start)) {
                return Ok((Some(model), with_start(start, reservation, pieces).boxed()));
            }
            enough = 2 * start.len();
        }
    }
    let model = read_text(start.len(), || model_in(&start));
    Ok((model, with_start(start, reservation, pieces).boxed()))
}

/// The body begins like a JSON object or a form; the model cannot be found in anything else.
fn may_name_model(start: &[u8]) -> bool {
    matches!(start.trim_ascii_start().first(), None | Some(b'{' | b'-'))
}

fn with_start(
    start: BytesMut,
    reservation: Reservation,
    rest: BodyStream,
) -> impl Stream<Item = Result<Bytes, Incomplete>> {
    let start = body::held(start.freeze(), reservation);
    stream::iter((!start.is_empty()).then_some(Ok(start))).chain(rest)
}

/// The model's name, from the start of a JSON object or of a multipart form.
fn model_in(start: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(start);
    if text.trim_start().starts_with('{') {
        return model_in_json(&text);
    }
    model_in_form(&text)
}

fn model_in_form(text: &str) -> Option<String> {
    let (boundary, _) = text.trim_start().split_once("\r\n")?;
    let boundary = Some(boundary).filter(|boundary| boundary.len() > 2)?;
    let mut parts = text
        .split(boundary)
        .filter_map(|part| part.split_once("\r\n\r\n"));
    let is_model = |head: &str| {
        head.split(['\r', ';'])
            .any(|one| matches!(one.trim(), "name=\"model\"" | "name=model"))
    };
    let (_, value) = parts.find(|(head, _)| is_model(head))?;
    let (value, _) = value.split_once("\r\n")?;
    Some(value.trim().to_owned())
}

/// The member `model` at the top of an object, whole or cut off behind it.
fn model_in_json(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct ModelMember {
        model: String,
    }
    if let Ok(body) = serde_json::from_str::<ModelMember>(text) {
        return Some(body.model);
    }
    let mut depth = 0;
    let mut rest = text.char_indices();
    while let Some((at, c)) = rest.next() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            '"' => {
                let mut strings =
                    serde_json::Deserializer::from_str(text.get(at..)?).into_iter::<String>();
                let string = strings.next()?.ok()?;
                let end = at + strings.byte_offset();
                let after = text.get(end..)?.trim_start();
                if depth == 1 && string == "model" && after.starts_with(':') {
                    let value = after.get(1..)?;
                    return serde_json::Deserializer::from_str(value)
                        .into_iter::<String>()
                        .next()?
                        .ok();
                }
                while rest.clone().next().is_some_and(|(next, _)| next < end) {
                    rest.next();
                }
            }
            _ => {}
        }
    }
    None
}

fn unknown(name: &str) -> Failure {
    Failure::Request {
        message: format!("there is no upstream named `{name}`"),
        param: None,
        code: "upstream_not_found",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(start: &str, expected: Option<&str>) {
        assert_eq!(model_in(start.as_bytes()).as_deref(), expected);
    }

    #[test]
    fn the_model_is_found_in_a_whole_object() {
        check(r#"{"input": {"model": "no"}, "model": "m"}"#, Some("m"));
        check(r#"{"input": "x"}"#, None);
    }

    #[test]
    fn the_model_is_found_in_an_object_that_goes_on() {
        check(
            r#"{"a": [{"model": "no"}], "model": "m", "input": "lo"#,
            Some("m"),
        );
        check(r#"{"a": "model", "mod"#, None);
        check(r#"{"model": "m"#, None);
    }

    #[test]
    fn the_model_is_found_in_a_form() {
        let form = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--b";
        check(form, Some("whisper-1"));
        let behind = "--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\nname=\"model\"\r\n\r\nno\r\n\
            --b\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b--";
        check(behind, Some("m"));
        check(
            "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhis",
            None,
        );
    }
}
