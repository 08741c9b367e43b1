//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, header},
    response::{IntoResponse, Response},
};

use crate::gateway::{
    chat::{Answer, Input},
    failure::Failure,
    record::Record,
    watch::Watch,
};

use super::{App, body, error, headers};

/// It is a chat request.
pub(super) fn is_meant(request: &Request) -> bool {
    request.method() == Method::POST && request.uri().path() == "/v1/chat/completions"
}

/// Answers a chat request, streamed or whole.
pub(super) async fn complete(State(app): State<Arc<App>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let record = parts.extensions.remove::<Arc<Record>>();
    let body = match body::read(&parts.headers, body, app.config.max_body_bytes, &app.bodies).await
    {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    let watch = match watch(&parts.headers) {
        Ok(watch) => watch,
        Err(failure) => return error::response(failure.into()),
    };
    let input = Input {
        headers: headers::to_model(&parts.headers, &app.config),
        body,
        max_depth: app.config.max_body_depth,
        bodies: app.bodies.clone(),
        tools: joined(&parts.headers, "x-toolway-tools").map(Into::into),
        servers: joined(&parts.headers, "x-toolway-servers").map(Into::into),
        watch,
        principal: headers::principal(&parts.headers),
        tell: error::in_band,
        record: record.unwrap_or_default(),
    };
    // With it goes the buffer that the head of the request was read into.
    drop(parts);
    match app.gateway.chat(input).await {
        Ok(answer) => respond(answer),
        Err(failed) => error::response(failed),
    }
}

fn respond(answer: Answer) -> Response {
    let (headers, content_type, body) = match answer {
        Answer::Plain { headers, body } => (headers, "application/json", Body::from(body)),
        Answer::Stream { headers, body } => (headers, "text/event-stream", Body::from_stream(body)),
    };
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    let own = response.headers_mut();
    own.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if content_type == "text/event-stream" {
        own.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        own.insert("x-accel-buffering", HeaderValue::from_static("no"));
    }
    response
}

/// All values of a header that may come several times.
fn joined(headers: &HeaderMap, name: &str) -> Option<String> {
    let values: Vec<&str> = headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    headers.contains_key(name).then(|| values.join(","))
}

fn watch(headers: &HeaderMap) -> Result<Option<Watch>, Failure> {
    let Some(text) = joined(headers, "x-toolway-progress") else {
        return Ok(None);
    };
    Watch::parse(&text)
        .map(Some)
        .ok_or_else(|| Failure::Request {
            message: "X-Toolway-Progress is `on`, `open-webui` or `off`".to_owned(),
            param: None,
            code: "invalid_value",
        })
}
