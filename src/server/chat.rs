//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    response::{IntoResponse, Response},
};

use crate::gateway::{
    chat::{ChatInput, ChatResponse},
    failure::Failure,
    progress_mode::ProgressMode,
    record::Record,
};

use super::{App, body, error, guard, headers};

const PROGRESS: HeaderName = HeaderName::from_static("x-toolway-progress");
const SERVERS: HeaderName = HeaderName::from_static("x-toolway-servers");
const STATE: HeaderName = HeaderName::from_static("x-toolway-state");
const TOOLS: HeaderName = HeaderName::from_static("x-toolway-tools");

/// It is a chat request.
pub(super) fn is_meant(request: &Request) -> bool {
    request.method() == Method::POST && request.uri().path() == "/v1/chat/completions"
}

/// Answers a chat request, streamed or whole.
pub(super) async fn complete(State(app): State<Arc<App>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let record = parts.extensions.remove::<Arc<Record>>();
    let body = match body::receive(&app, &parts.headers, body, app.config.max_body_bytes).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    let input = match input(&app, &parts.headers, body, record) {
        Ok(input) => input,
        Err(failure) => return error::response(failure.into()),
    };
    // This also drops the buffer that the head of the request was read into.
    drop(parts);
    match app.gateway.chat(input).await {
        Ok(ChatResponse::Plain { headers, body }) => {
            respond(Body::from(body), headers, "application/json")
        }
        Ok(ChatResponse::Stream { headers, body }) => {
            respond(Body::from_stream(body), headers, "text/event-stream")
        }
        Err(failed) => error::response(failed),
    }
}

/// A chat request with this body, and what its headers choose.
///
/// # Errors
/// When a header is not valid.
pub(super) fn input(
    app: &App,
    headers: &HeaderMap,
    body: Bytes,
    record: Option<Arc<Record>>,
) -> Result<ChatInput, Failure> {
    let chosen = Chosen::read(headers)?;
    let principal = headers::principal(headers);
    Ok(ChatInput {
        headers: headers::to_model(headers, &app.config).with_client(principal),
        body,
        max_depth: app.config.max_body_depth,
        bodies: app.bodies.clone(),
        tools: chosen.tools.map(Into::into),
        servers: chosen.servers.map(Into::into),
        session: headers::session(headers)?,
        shows_state: headers.get(STATE).is_some_and(|value| value == "show"),
        progress: chosen.progress,
        can_ask: false,
        is_whole: false,
        max_tool_calls: None,
        principal,
        key: guard::position(&app.config, headers),
        face: "chat",
        source: headers::source_of(headers),
        tell: error::in_band,
        record: record.unwrap_or_default(),
    })
}

/// The response with this body and these headers of the upstream.
pub(super) fn respond(body: Body, headers: HeaderMap, content_type: &'static str) -> Response {
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

/// What the headers of a chat choose.
pub(super) struct Chosen {
    pub(super) tools: Option<String>,
    pub(super) servers: Option<String>,
    progress: Option<ProgressMode>,
}

impl Chosen {
    pub(super) fn read(headers: &HeaderMap) -> Result<Chosen, Failure> {
        let progress = joined(headers, &PROGRESS)?;
        let progress = progress.map(|text| {
            let progress = ProgressMode::parse(&text);
            progress
                .ok_or_else(|| invalid("X-Toolway-Progress is `on`, `open-webui` or `off`".into()))
        });
        Ok(Chosen {
            tools: joined(headers, &TOOLS)?,
            servers: joined(headers, &SERVERS)?,
            progress: progress.transpose()?,
        })
    }
}

/// All values of a header that may occur several times.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Failure> {
    let values = headers.get_all(name).iter();
    let values: Result<Vec<&str>, _> = values
        .map(|value| std::str::from_utf8(value.as_bytes()))
        .collect();
    let values = values.map_err(|_| invalid(format!("the header {name} is not UTF-8")))?;
    Ok((!values.is_empty()).then(|| values.join(",")))
}

fn invalid(message: String) -> Failure {
    Failure::Request {
        message,
        param: None,
        code: "invalid_value",
    }
}
