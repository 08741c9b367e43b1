//! What both HTTP transports share: the client, its headers, and what a failed request is called.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use reqwest::redirect::Policy;

use crate::{secret::Secret, upstream::reason};

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
    /// The answer is of a type that MCP does not know.
    #[error("the server answered with something that is not MCP ({0})")]
    NotMcp(String),
}

impl From<reqwest::Error> for WebFault {
    fn from(error: reqwest::Error) -> WebFault {
        match error.is_connect() {
            true => WebFault::Unreachable(reason(error)),
            false => WebFault::Broken(reason(error)),
        }
    }
}

/// A client for one server. Its headers go with every request, and with redirects within the same origin only.
pub(super) fn client(headers: &[(HeaderName, Secret)]) -> Result<reqwest::Client, String> {
    crate::upstream::install_tls();
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("the value of header `{name}` cannot be sent"))?;
        value.set_sensitive(true);
        map.append(name, value);
    }
    reqwest::Client::builder()
        .default_headers(map)
        .user_agent(concat!("toolway/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
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
        .map_err(|error| format!("no HTTP client: {error}"))
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
pub(super) fn is_events(response: &reqwest::Response) -> bool {
    written_type(response).eq_ignore_ascii_case("text/event-stream")
}

/// The body is JSON.
pub(super) fn is_json(response: &reqwest::Response) -> bool {
    written_type(response).eq_ignore_ascii_case("application/json")
}

/// The media type, without its parameters, in lower case.
pub(super) fn media_type(response: &reqwest::Response) -> String {
    written_type(response).to_ascii_lowercase()
}

fn written_type(response: &reqwest::Response) -> &str {
    let header = response.headers().get(http::header::CONTENT_TYPE);
    let text = header
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim()
}
