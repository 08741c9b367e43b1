//! The one line that the log gets for each request, when the request ends: what was asked, and how it ended.

use std::sync::Arc;

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, Method, header},
    response::Response,
};
use tokio::time::Instant;
use tracing::{Level, Span};

use super::App;
use crate::gateway::{
    failure::Outcome,
    record::{Details, Record},
};
use toolway_core::{policy::KeyId, translate::paths};
use toolway_protocol::tool::millis;

/// Longest text from a client or an upstream in the line, in bytes.
const MAX_TEXT: usize = 500;

/// A warning for the client about a request that is answered.
const WARNING: HeaderName = HeaderName::from_static("x-toolway-warning");

/// An extension of an error response: the failure.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    pub(super) outcome: Outcome,
    /// For the log.
    pub(super) error: String,
}

/// An extension of a lasting stream, which does not count as a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lasting;

/// Goes with a response that ends only when toolway stops, what it tells of ends, or the client goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenEnded;

/// The log line of a request, written when this is dropped.
pub(super) struct RequestLog {
    app: Arc<App>,
    record: Arc<Record>,
    span: Span,
    begun: Instant,
    /// The status of the response, once there is one.
    status: Option<u16>,
    /// Which of `api_keys` came with the request.
    key: Option<KeyId>,
    /// A probe of a monitor, which comes again and again: its line is for debugging.
    is_probe: bool,
    is_head: bool,
    is_complete: bool,
    /// Its answer is one of MCP, which ends with an error if toolway stops.
    is_mcp: bool,
    /// See [`OpenEnded`].
    is_lasting: bool,
}

impl RequestLog {
    /// A request that has just begun.
    pub(super) fn new(
        app: Arc<App>,
        request: &Request,
        key: Option<KeyId>,
        span: Span,
    ) -> RequestLog {
        let path = request.uri().path();
        RequestLog {
            record: Arc::default(),
            span,
            begun: Instant::now(),
            status: None,
            key,
            is_probe: paths::is_probe(path),
            is_mcp: paths::is_mcp(path),
            is_head: request.method() == Method::HEAD,
            is_complete: false,
            is_lasting: false,
            app,
        }
    }

    /// A response that runs in the background, on behalf of the request that is answered now.
    pub(super) fn of_background(app: Arc<App>, key: Option<KeyId>) -> RequestLog {
        RequestLog {
            record: Arc::default(),
            span: tracing::info_span!("background"),
            begun: Instant::now(),
            status: None,
            key,
            is_probe: false,
            is_mcp: false,
            is_head: false,
            is_complete: false,
            is_lasting: false,
            app,
        }
    }

    /// The span of all log lines of the request.
    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// The record that the gateway fills.
    pub(super) fn record(&self) -> Arc<Record> {
        Arc::clone(&self.record)
    }

    /// Notes the head of the response; returns the length of its body, if known.
    pub(super) fn answered(&mut self, response: &mut Response) -> Option<u64> {
        self.status = Some(response.status().as_u16());
        let marks = response.extensions();
        self.is_lasting = marks.get::<Lasting>().is_some() || marks.get::<OpenEnded>().is_some();
        if let Some(Failing { outcome, error }) = response.extensions_mut().remove() {
            self.record
                .note(|details| details.failure = Some((outcome, error)));
        }
        for warning in self.record.warnings() {
            if let Ok(warning) = HeaderValue::try_from(warning) {
                response.headers_mut().append(WARNING, warning);
            }
        }
        let length = response.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let is_empty = self.is_head || http_body::Body::is_end_stream(response.body());
        self.is_complete = is_empty || length == Some(0);
        length
    }

    /// The whole response was handed to the connection.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    fn outcome(&self, details: &Details) -> Outcome {
        match (&details.failure, self.status) {
            (Some((outcome, _)), _) => *outcome,
            _ if std::thread::panicking() => Outcome::Failed,
            _ if self.was_stopped() => Outcome::Stopped,
            _ if !self.is_complete => Outcome::ClientLeft,
            // A status of the upstream's.
            _ if details.upstream.is_some() => Outcome::Completed,
            (_, Some(400..500)) => Outcome::Refused,
            (_, Some(500..)) => Outcome::Failed,
            _ => Outcome::Completed,
        }
    }

    /// toolway stopped, and the request ended for it.
    fn was_stopped(&self) -> bool {
        match self.is_lasting || !self.is_complete {
            true => self.app.mcp.is_stopping(),
            false => self.is_mcp && self.app.gateway.ending().is_cancelled(),
        }
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let details = self.record.take();
        let keys = &self.app.config.api_keys;
        let key = self.key.and_then(|key| keys.get(usize::from(key.0)));
        let key = key.map(|key| key.name.as_str());
        let outcome = self.outcome(&details);
        let error = details.failure.as_ref();
        let error = error.map(|(_, error)| without(error, details.upstream.as_deref()));
        let warning = (!details.warnings.is_empty()).then(|| details.warnings.join("; "));
        // One call for each level, since a level is a part of the code.
        macro_rules! log {
            ($level:expr) => {
                tracing::event!(
                    $level,
                    outcome = outcome.as_str(),
                    status = self.status,
                    duration_ms = millis(self.begun.elapsed()),
                    key,
                    model = details.model.as_deref().map(head),
                    upstream = details.upstream,
                    rpc_method = details.method.as_deref().map(head),
                    rounds = details.rounds,
                    calls = details.calls,
                    prompt_tokens = details.usage.prompt_tokens,
                    completion_tokens = details.usage.completion_tokens,
                    warning = warning.as_deref(),
                    error = error.as_deref().map(head),
                    "Ended"
                )
            };
        }
        let _span = self.span.enter();
        match outcome.is_failure() {
            _ if self.is_probe => log!(Level::DEBUG),
            true => log!(Level::WARN),
            false => log!(Level::INFO),
        }
    }
}

/// An error without the name of the upstream, which has a field of its own.
fn without(error: &str, upstream: Option<&str>) -> String {
    let Some(name) = upstream else {
        return error.to_owned();
    };
    let error = error.replace(&format!(" (upstream `{name}`)"), "");
    error.replace(&format!(" `{name}`"), "")
}

/// As much of a text as the line takes.
fn head(text: &str) -> &str {
    let mut ends = (0..=text.len().min(MAX_TEXT)).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}
