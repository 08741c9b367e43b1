//! What both HTTP transports share: the client, its headers, the names of failures, and event streams (`events`).

mod events;

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use reqwest::redirect::Policy;
use url::Url;

pub(super) use self::events::{Events, Framed, events, fields, length};
use crate::secret::Secret;
use crate::upstream::{
    reason, retry_after,
    wire::{self, HttpError},
};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Most redirects that are followed.
const REDIRECTS: usize = 5;

/// Why a request to a server failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum WebFault {
    /// No connection could be made; nothing was sent.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The server answered with this status and no JSON-RPC.
    #[error("the server answered with HTTP {0}")]
    Status(StatusCode),
    /// The same, and it asks for a pause.
    #[error("the server answered with HTTP {0}")]
    Busy(StatusCode, Duration),
    /// The server does not know the session of a message that is not sent again.
    #[error("the server does not know the session")]
    LostSession,
    /// The answer is of a type that MCP does not know.
    #[error("the server answered with something that is not MCP ({0})")]
    NotMcp(String),
}

impl WebFault {
    /// An HTTP error, as far as its head says what it is.
    pub(super) fn of_status(status: StatusCode, headers: &HeaderMap) -> WebFault {
        match retry_after(headers) {
            Some(pause) => WebFault::Busy(status, pause),
            None => WebFault::Status(status),
        }
    }
}

impl From<reqwest::Error> for WebFault {
    fn from(error: reqwest::Error) -> WebFault {
        match error.is_connect() {
            true => WebFault::Unreachable(reason(error)),
            false => WebFault::Broken(reason(error)),
        }
    }
}

impl From<HttpError> for WebFault {
    fn from(error: HttpError) -> WebFault {
        match error {
            HttpError::Connect(reason) => WebFault::Unreachable(reason),
            HttpError::Broken(reason) => WebFault::Broken(reason),
        }
    }
}

/// The clients for one server.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    /// For all requests but calls.
    pub(super) client: reqwest::Client,
    /// For calls. It follows no redirect and adds no header.
    pub(super) quick: wire::Client,
    /// The headers that the first client sends with every request.
    pub(super) headers: HeaderMap,
}

/// The clients for one server. Its headers go with every request, and with redirects within the same origin only.
pub(super) fn clients(url: &Url, headers: &[(HeaderName, Secret)]) -> Result<Clients, String> {
    crate::upstream::install_tls();
    let setup = |error: wire::SetupError| format!("no HTTP client: {error}");
    let uri = Uri::try_from(url.as_str()).map_err(|error| format!("is no URL: {error}"))?;
    let agent = HeaderValue::from_static(concat!("toolway/", env!("CARGO_PKG_VERSION")));
    let mut map = HeaderMap::new();
    map.insert(http::header::USER_AGENT, agent);
    for (name, value) in headers {
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("the value of header `{name}` cannot be sent"))?;
        value.set_sensitive(true);
        if name == http::header::USER_AGENT {
            map.remove(name);
        }
        map.append(name, value);
    }
    let client = wire::reqwest(CONNECT)
        .map_err(setup)?
        .default_headers(map.clone())
        .redirect(Policy::custom(|attempt| {
            let keeps_method = matches!(
                attempt.status(),
                StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
            );
            let is_same_origin = attempt
                .previous()
                .first()
                .is_some_and(|first| first.origin() == attempt.url().origin());
            if keeps_method && is_same_origin && attempt.previous().len() <= REDIRECTS {
                attempt.follow()
            } else {
                attempt.stop()
            }
        }))
        .build()
        .map_err(|error| format!("no HTTP client: {error}"))?;
    Ok(Clients {
        client,
        quick: wire::Client::new(&uri, CONNECT).map_err(setup)?,
        headers: map,
    })
}

/// The body as far as it is not longer than `limit`; `None` if it is.
pub(super) async fn read_body(
    mut response: reqwest::Response,
    limit: usize,
) -> Result<Option<Vec<u8>>, WebFault> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > limit {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

/// The body is an event stream.
pub(super) fn is_events(headers: &HeaderMap) -> bool {
    written_type(headers).eq_ignore_ascii_case("text/event-stream")
}

/// The body is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    written_type(headers).eq_ignore_ascii_case("application/json")
}

/// The media type, without its parameters, in lower case.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    written_type(headers).to_ascii_lowercase()
}

fn written_type(headers: &HeaderMap) -> &str {
    let header = headers.get(http::header::CONTENT_TYPE);
    let text = header
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim()
}
