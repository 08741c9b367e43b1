//! Every other `/v1/*` path: passed on, bodies streamed in both directions.
//!
//! The path that the upstream receives is the normalized one that the request was routed by.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, header},
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use serde::Deserialize;

use crate::{gateway::failure::Failure, translate::paths, upstream::model::Upstream};

use super::{
    App,
    body::{self, Pieces},
    error::{self, Refusal},
    headers, mcp_sessions,
};

/// Passes a request on and its answer back.
pub(super) async fn forward(State(app): State<Arc<App>>, request: Request) -> Response {
    // CONNECT is for proxies, and TRACE would show the upstream's key to whoever asks.
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
    match pass(&app, request).await {
        Ok(response) => response,
        Err(failure) => {
            tracing::warn!(error = %failure, "A forwarded request failed");
            error::response(failure.into())
        }
    }
}

async fn pass(app: &App, request: Request) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let has_body = !http_body::Body::is_end_stream(&body);
    let (upstream, body) = choose(app, &parts.method, &parts.headers, body).await?;
    let path = parts.uri.path().strip_prefix("/v1/").unwrap_or_default();
    let url = upstream.url(path, parts.uri.query());
    let mut outgoing = headers::to_upstream(&parts.headers, &app.config);
    if let Some(length) = parts.headers.get(header::CONTENT_LENGTH) {
        outgoing.insert(header::CONTENT_LENGTH, length.clone());
    }
    let body = if has_body {
        reqwest::Body::wrap_stream(body)
    } else {
        reqwest::Body::default()
    };
    let (status, incoming) = upstream.forward(parts.method, url, &outgoing, body).await?;
    let headers = headers::to_client(&incoming.headers);
    let pieces = incoming.into_stream().inspect_err(
        // The client sees no more of it than that its answer breaks off.
        |error| tracing::warn!(%error, "The answer to a forwarded request broke off"),
    );
    let mut response = (status, Body::from_stream(pieces)).into_response();
    *response.headers_mut() = headers;
    Ok(response)
}

/// The path is toolway's own, or may mean one to the upstream, where it would go past the tools, or show the id of a
/// session.
fn is_own(path: &str) -> bool {
    let is_chat_misspelt = || paths::may_mean(path, &["v1", "chat", "completions"]);
    mcp_sessions::is_below(path) || (path != "/v1/chat/completions" && is_chat_misspelt())
}

/// The upstream for a request: the one that `X-Toolway-Upstream` names, the one that has the model which the
/// body names, or the first. With one upstream nothing is looked at.
async fn choose<'a>(
    app: &'a App,
    method: &Method,
    headers: &HeaderMap,
    body: Body,
) -> Result<(&'a Upstream, Pieces), Failure> {
    let models = app.gateway.models();
    let pieces = body::pieces(body);
    if let Some(name) = headers
        .get("x-toolway-upstream")
        .and_then(|name| name.to_str().ok())
    {
        let upstream = models.named(name).ok_or_else(|| unknown(name))?;
        return Ok((upstream, pieces));
    }
    let first = models.all().first().ok_or_else(|| unknown("default"))?;
    if models.all().len() == 1 || *method == Method::GET {
        return Ok((first, pieces));
    }
    let (model, pieces) = peek(pieces, app.config.max_body_bytes).await;
    match model {
        Some(model) => match models.choose(&model) {
            Some(upstream) => Ok((upstream, pieces)),
            None => Err(Failure::ModelNotFound { model }),
        },
        None => Ok((first, pieces)),
    }
}

/// The model that a body names, and the body with what was read of it put back. At most `max` bytes are held:
/// SDKs write `model` behind an `input` of any length, and a form's file stands before it as often as not.
async fn peek(mut pieces: Pieces, max: usize) -> (Option<String>, Pieces) {
    let mut start = BytesMut::new();
    // Looked through whenever it has doubled, so that many small pieces cost no more than a few large ones.
    let mut enough = 1;
    while start.len() < max && may_name_model(&start) {
        match pieces.next().await {
            Some(Ok(piece)) => start.extend_from_slice(&piece),
            Some(Err(error)) => {
                let failed: Pieces = stream::iter([Err(error)]).boxed();
                return (model_in(&start), with_start(start.freeze(), failed).boxed());
            }
            None => break,
        }
        if start.len() >= enough {
            if let Some(model) = model_in(&start) {
                return (Some(model), with_start(start.freeze(), pieces).boxed());
            }
            enough = 2 * start.len();
        }
    }
    (model_in(&start), with_start(start.freeze(), pieces).boxed())
}

/// It begins like a JSON object or a form; of anything else nobody can tell the model.
fn may_name_model(start: &[u8]) -> bool {
    matches!(start.trim_ascii_start().first(), None | Some(b'{' | b'-'))
}

fn with_start(start: Bytes, rest: Pieces) -> impl Stream<Item = Result<Bytes, body::Incomplete>> {
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
    struct Body {
        model: String,
    }
    if let Ok(body) = serde_json::from_str::<Body>(text) {
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
