//! What the ways that use HTTP share: the client, headers, a bounded answer, and what a failed request is called.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use reqwest::redirect::Policy;

use crate::{
    secret::Secret,
    tool::{CallError, ServerId, ToolResult},
    translate::functions::output,
    upstream::reason,
};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Most redirects that are followed.
const REDIRECTS: usize = 5;

/// A client that every group can use. A redirect is followed within its origin, and only one that asks for
/// the same request again; any other is an answer with an error status.
pub(super) fn client() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .user_agent(concat!("toolway/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .redirect(Policy::custom(|attempt| {
            let keeps_method = matches!(
                attempt.status(),
                StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
            );
            let first = attempt.previous().first();
            let is_same_origin = first.is_some_and(|it| it.origin() == attempt.url().origin());
            if keeps_method && is_same_origin && attempt.previous().len() <= REDIRECTS {
                attempt.follow()
            } else {
                attempt.stop()
            }
        }))
        .build()
}

/// Configured headers as they are sent. The configuration has checked that they can be.
pub(super) fn headers(configured: &[(HeaderName, Secret)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in configured {
        if let Ok(mut value) = HeaderValue::from_str(value.expose()) {
            value.set_sensitive(true);
            headers.append(name.clone(), value);
        }
    }
    headers
}

/// An answer, read to its end.
pub(super) struct Reply {
    pub(super) status: u16,
    /// As it came; empty where there is none.
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum WebFault {
    /// No connection could be made; nothing was sent.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The answer is longer than it may be.
    #[error("its answer is longer than {0} bytes")]
    TooLong(usize),
}

impl From<reqwest::Error> for WebFault {
    fn from(error: reqwest::Error) -> WebFault {
        match error.is_connect() {
            true => WebFault::Unreachable(reason(error)),
            false => WebFault::Broken(reason(error)),
        }
    }
}

impl WebFault {
    /// What a call comes to by it, in words for a model; the reason goes to the log.
    pub(super) fn outcome(&self, group: &ServerId) -> Result<ToolResult, CallError> {
        tracing::warn!(functions.group = %group, reason = %self, "Functions `{group}`: {self}");
        let unavailable = |message: &str, unsent| {
            Err(CallError::UpstreamUnavailable {
                message: message.to_owned(),
                unsent,
            })
        };
        match self {
            WebFault::Unreachable(_) => unavailable(
                "the function's service cannot be reached right now; try again later",
                true,
            ),
            WebFault::Broken(_) => unavailable(
                "the connection to the function's service was lost during the call; it may have been carried out",
                false,
            ),
            WebFault::TooLong(limit) => Ok(output::failure(too_long(*limit))),
        }
    }
}

/// How a limit on answers is spoken of: `16 MiB`, or bytes where that would be less than one.
pub(super) fn too_long(limit: usize) -> String {
    match limit >> 20 {
        0 => format!("the result is larger than {limit} bytes"),
        mebibytes => format!("the result is larger than {mebibytes} MiB"),
    }
}

/// Sends a request and reads its answer, of at most `limit` bytes. Dropping the future gives it up.
pub(super) async fn fetch(
    request: reqwest::RequestBuilder,
    limit: usize,
) -> Result<Reply, WebFault> {
    let mut response = request.send().await?;
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let content_type = content_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > limit {
            return Err(WebFault::TooLong(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Reply {
        status: response.status().as_u16(),
        content_type,
        body,
    })
}
