//! Every failure's status, code and words, in one place. The table in `docs/errors.md` is this file's.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::Value;

use super::request_log::Failing;
use crate::{
    gateway::failure::{Failed, Failure, Outcome},
    upstream::model::ModelError,
};
use toolway_core::translate::{dialect::anthropic, paths};
use toolway_protocol::openai::ErrorBody;

/// Why the HTTP face refused a request before the gateway saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No key, or a wrong one.
    Unauthorized,
    /// The `Host` header names a host that toolway is not.
    ForeignHost(String),
    /// A page of this origin sent it, which may not.
    ForeignOrigin(String),
    /// There are two `Host` headers, or the target names another host.
    AmbiguousHost,
    /// Nothing is at this path.
    NotFound(String),
    /// There is no MCP session of this id or token, or no more.
    NoSession,
    /// No more MCP sessions can be opened now.
    TooManySessions,
    /// The key has its share of the MCP sessions.
    TooManySessionsOfKey,
    /// The path does not know the method.
    MethodNotAllowed,
    /// The body is longer than the bound, in bytes.
    BodyTooLarge(usize),
    /// The body came too slowly, or its framing is broken.
    BodyIncomplete,
    /// The client closed the connection before the end of the body.
    ClientLeft,
    /// The body is compressed.
    BodyEncoded,
    /// Too many requests are being served.
    Overloaded,
    /// The bodies of all requests together are longer than `max_inflight_bytes`.
    OverBudget,
    /// Too many requests of this key, or of all borrowed sessions, are being served.
    KeyOverloaded,
    /// toolway is shutting down.
    ShuttingDown,
    /// A handler panicked.
    Internal,
}

impl Refusal {
    /// How a request ends that is refused so, and the word for it in the log.
    pub(super) fn failing(&self) -> Failing {
        let (_, _, code, _) = self.clone().parts();
        Failing {
            outcome: match self {
                Refusal::Internal => Outcome::Failed,
                Refusal::ClientLeft => Outcome::ClientLeft,
                _ => Outcome::Refused,
            },
            error: code.to_owned(),
        }
    }

    /// Status and words, for a face that does not speak OpenAI's.
    pub(super) fn status_and_message(self) -> (StatusCode, String) {
        let (status, _, _, message) = self.parts();
        (status, message)
    }

    /// Status, OpenAI's `type` and `code`, and words.
    fn parts(self) -> (StatusCode, &'static str, &'static str, String) {
        match self {
            Refusal::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "invalid_request_error",
                "invalid_api_key",
                "a valid key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`, with a key from `api_keys` or \
                 `[keys.NAME]`"
                    .to_owned(),
            ),
            Refusal::ForeignHost(host) => (
                StatusCode::FORBIDDEN,
                "invalid_request_error",
                "host_not_allowed",
                format!(
                    "requests for `{host}` are not served here; add it to `allowed_hosts` if they should be"
                ),
            ),
            Refusal::ForeignOrigin(origin) => (
                StatusCode::FORBIDDEN,
                "invalid_request_error",
                "host_not_allowed",
                format!(
                    "pages of `{origin}` may not send requests here; add the origin to `cors_origins` if they should"
                ),
            ),
            Refusal::AmbiguousHost => (
                StatusCode::BAD_REQUEST,
                "invalid_request_error",
                "ambiguous_host",
                "a request has one `Host` header, and its target names the same host".to_owned(),
            ),
            Refusal::NotFound(path) => (
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                "unknown_url",
                match path.trim_end_matches('/') {
                    path if path.starts_with("/v1/v1/") => "`/v1` is there twice: this client adds it to its base_url \
                                                            by itself"
                        .to_owned(),
                    "/v1" => "`/v1` is the base_url; clients add a path such as \
                              `/chat/completions` to it"
                        .to_owned(),
                    _ => format!(
                        "nothing is at `{path}`; the OpenAI API is below `/v1`, so a base_url ends in `/v1`"
                    ),
                },
            ),
            Refusal::NoSession => (
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                "mcp_session_not_found",
                "there is no such MCP session; it may have expired. POST /v1/mcp_sessions opens one"
                    .to_owned(),
            ),
            Refusal::TooManySessions => (
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
                "too_many_mcp_sessions",
                "too many MCP sessions are open; DELETE those that are done, or try again later"
                    .to_owned(),
            ),
            Refusal::TooManySessionsOfKey => (
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                "too_many_mcp_sessions",
                "this key has half of all MCP sessions, which is its share; DELETE those that are done"
                    .to_owned(),
            ),
            Refusal::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "invalid_request_error",
                "method_not_allowed",
                "this path does not know that method; the header `Allow` names those that it knows".to_owned(),
            ),
            Refusal::BodyTooLarge(max) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "invalid_request_error",
                "body_too_large",
                format!("the body is longer than {max} bytes; `max_body_bytes` sets the bound"),
            ),
            Refusal::BodyIncomplete | Refusal::ClientLeft => (
                StatusCode::REQUEST_TIMEOUT,
                "invalid_request_error",
                "body_incomplete",
                "the body did not arrive".to_owned(),
            ),
            Refusal::BodyEncoded => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "invalid_request_error",
                "unsupported_encoding",
                "a compressed body is not read here; send it without Content-Encoding".to_owned(),
            ),
            Refusal::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
                "overloaded",
                "too many requests are being served; try again in a moment".to_owned(),
            ),
            Refusal::OverBudget => (
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
                "overloaded",
                "the requests that are being served have too many bytes together; try again in a moment"
                    .to_owned(),
            ),
            Refusal::KeyOverloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
                "overloaded",
                "too many requests with this key, or with lent sessions, are being served; try again in a moment".to_owned(),
            ),
            Refusal::ShuttingDown => (
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
                "shutting_down",
                "toolway is shutting down; try again in a moment".to_owned(),
            ),
            Refusal::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "server_error",
                "internal_error",
                "toolway failed; its log says more under this request's id".to_owned(),
            ),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.into_response_in(|_, error| error.to_value())
    }
}

impl Refusal {
    /// The response in the form of another API.
    pub(super) fn into_response_in(self, form: ErrorForm) -> Response {
        let failing = self.failing();
        let (status, kind, code, message) = self.parts();
        let error = body(kind, message, None, code);
        let mut response = respond(status, &form(status.as_u16(), &error));
        response.extensions_mut().insert(failing);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// How a face writes an error that has this status.
pub(super) type ErrorForm = fn(u16, &ErrorBody) -> Value;

/// How errors are written below this path.
pub(super) fn form_of(path: &str) -> ErrorForm {
    let is_rest = ["/servers", "/confirmations", "/grants", "/policy"]
        .iter()
        .any(|it| {
            let rest = path.strip_prefix(it);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
    match paths::is_messages(path) {
        true => anthropic::write_error,
        false if is_rest => |_, error| serde_json::json!({"error": error.message}),
        false => |_, error| error.to_value(),
    }
}

/// A failure as an HTTP response. Once a tool has run, no SDK is to send the whole request again.
pub fn response(failed: Failed) -> Response {
    response_in(failed, |_, error| error.to_value())
}

/// The same in the form of another API.
pub(super) fn response_in(failed: Failed, form: ErrorForm) -> Response {
    let failing = Failing {
        outcome: failed.failure.outcome(),
        error: failed.failure.to_string(),
    };
    let is_ending = matches!(failed.failure, Failure::ShuttingDown);
    let (status, error, headers) = parts(failed.failure);
    let mut response = respond(status, &form(status.as_u16(), &error));
    response.extensions_mut().insert(failing);
    response.headers_mut().extend(headers);
    if failed.tools_ran {
        let headers = response.headers_mut();
        headers.insert("x-should-retry", HeaderValue::from_static("false"));
        if is_ending {
            headers.remove(header::RETRY_AFTER);
        }
    }
    response
}

/// A failure as it is sent within a stream that has begun.
pub fn in_band(failure: Failure) -> ErrorBody {
    parts(failure).1
}

fn parts(failure: Failure) -> (StatusCode, ErrorBody, HeaderMap) {
    let none = HeaderMap::new();
    let message = failure.to_string();
    match failure {
        Failure::Request { param, code, .. } => (
            StatusCode::BAD_REQUEST,
            body("invalid_request_error", message, param, code),
            none,
        ),
        Failure::ModelNotFound { .. } => {
            let param = Some("model".to_owned());
            (
                StatusCode::NOT_FOUND,
                body("invalid_request_error", message, param, "model_not_found"),
                none,
            )
        }
        Failure::TimeIsUp { .. } => (
            StatusCode::GATEWAY_TIMEOUT,
            body("server_error", message, None, "request_timeout"),
            none,
        ),
        Failure::OverBudget => unavailable(message, "overloaded"),
        Failure::ShuttingDown => unavailable(message, "shutting_down"),
        Failure::Answer { error, .. } => (error_status(Some(error.status())), error.body(), none),
        Failure::Model(error) => model(error, message),
    }
}

/// It may be repeated in a second.
fn unavailable(message: String, code: &str) -> (StatusCode, ErrorBody, HeaderMap) {
    let retry = (header::RETRY_AFTER, HeaderValue::from_static("1"));
    (
        StatusCode::SERVICE_UNAVAILABLE,
        body("server_error", message, None, code),
        HeaderMap::from_iter([retry]),
    )
}

fn model(error: ModelError, message: String) -> (StatusCode, ErrorBody, HeaderMap) {
    let none = HeaderMap::new();
    match error {
        // Where the upstream is and why it cannot be reached is for the log.
        ModelError::Unreachable { upstream, .. } => {
            let message = format!("the upstream `{upstream}` cannot be reached");
            (
                StatusCode::BAD_GATEWAY,
                body("server_error", message, None, "upstream_unreachable"),
                none,
            )
        }
        ModelError::Timeout { .. } => (
            StatusCode::GATEWAY_TIMEOUT,
            body("server_error", message, None, "upstream_timeout"),
            none,
        ),
        ModelError::Broken { upstream, .. } => {
            let message = format!(
                "the connection to the upstream `{upstream}` broke before its answer was complete"
            );
            (
                StatusCode::BAD_GATEWAY,
                body("server_error", message, None, "upstream_broken"),
                none,
            )
        }
        ModelError::Refused(refused) => (
            error_status(Some(refused.status.as_u16())),
            refused.error,
            refused.headers,
        ),
        ModelError::Invalid { .. } => (
            StatusCode::BAD_GATEWAY,
            body("server_error", message, None, "upstream_invalid_response"),
            none,
        ),
    }
}

fn error_status(status: Option<u16>) -> StatusCode {
    let status = status.filter(|status| (400..600).contains(status));
    status
        .and_then(|status| StatusCode::from_u16(status).ok())
        .unwrap_or(StatusCode::BAD_GATEWAY)
}

fn body(kind: &str, message: String, param: Option<String>, code: &str) -> ErrorBody {
    ErrorBody {
        message,
        kind: kind.to_owned(),
        param,
        code: Some(Value::from(code)),
    }
}

fn respond(status: StatusCode, error: &Value) -> Response {
    let mut response = Response::new(Body::from(error.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
