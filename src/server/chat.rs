//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    response::{IntoResponse, Response},
};

use crate::gateway::{
    chat::{Answer, Input},
    failure::Failure,
    progress_mode::ProgressMode,
    record::Record,
};

use super::{App, body, error, headers};

const PROGRESS: HeaderName = HeaderName::from_static("x-toolway-progress");
const SERVERS: HeaderName = HeaderName::from_static("x-toolway-servers");
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
    let chosen = match Chosen::read(&parts.headers) {
        Ok(chosen) => chosen,
        Err(failure) => return error::response(failure.into()),
    };
    let input = Input {
        headers: headers::to_model(&parts.headers, &app.config),
        body,
        max_depth: app.config.max_body_depth,
        bodies: app.bodies.clone(),
        tools: chosen.tools.map(Into::into),
        servers: chosen.servers.map(Into::into),
        progress: chosen.progress,
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

/// What the headers of a chat choose.
struct Chosen {
    tools: Option<String>,
    servers: Option<String>,
    progress: Option<ProgressMode>,
}

impl Chosen {
    fn read(headers: &HeaderMap) -> Result<Chosen, Failure> {
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

/// All values of a header that may come several times.
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
