//! Shared by the backends that use HTTP: the client, headers, a bounded answer, and the errors of a failed request.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use url::Url;

use crate::body_buffer::BodyBuffer;
use crate::secret::Secret;
use crate::upstream::{
    SetupError, reason, too_long,
    wire::{self, Client, Headers, HttpError, Outgoing},
};
use toolway_core::translate::functions::output;
use toolway_protocol::{
    segmented_body::SegmentedBody,
    tool::{CallError, ServerId, ToolResult},
};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Most redirects that are followed.
const REDIRECTS: usize = 5;

/// A client for the host of this address.
///
/// # Errors
/// When the TLS setup of the machine cannot be used.
pub(super) fn client(address: &str) -> Result<Client, SetupError> {
    let uri = Uri::try_from(address).unwrap_or_default();
    Client::new(&uri, CONNECT)
}

/// Longest wait for the answer to a probe.
const PROBE: Duration = Duration::from_secs(5);

/// Finds out whether an address can be reached, with a request that runs nothing.
pub(super) async fn probe(url: &Url) -> Result<(), String> {
    let client = wire::reqwest(PROBE).map_err(|error| error.to_string())?;
    let client = client.timeout(PROBE).build();
    let client = client.map_err(|error| error.to_string())?;
    match client.request(Method::OPTIONS, url.clone()).send().await {
        Ok(_) => Ok(()),
        Err(error) if error.is_timeout() => Err(format!("no answer within {PROBE:?}")),
        Err(error) => Err(reason(error)),
    }
}

/// The configured headers and those that every request has. The configuration has checked that they are valid.
pub(super) fn headers(configured: &[(HeaderName, Secret)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in configured {
        if let Ok(mut value) = HeaderValue::from_str(value.expose()) {
            value.set_sensitive(true);
            headers.append(name.clone(), value);
        }
    }
    let agent = HeaderValue::from_static(concat!("toolway/", env!("CARGO_PKG_VERSION")));
    headers.entry(header::USER_AGENT).or_insert(agent);
    let encoding = HeaderValue::from_static("gzip");
    headers.entry(header::ACCEPT_ENCODING).or_insert(encoding);
    headers
}

/// The address of a request: as a URL, to compare redirects with, and as it is sent.
#[derive(Clone)]
pub(super) struct Address {
    url: Url,
    /// `None` for what the client cannot send to.
    uri: Option<Uri>,
}

impl From<Url> for Address {
    fn from(url: Url) -> Address {
        let uri = Uri::try_from(url.as_str()).ok();
        Address { url, uri }
    }
}

/// A request, which may be sent several times.
pub(super) struct WebRequest<'a> {
    pub(super) method: Method,
    pub(super) address: Cow<'a, Address>,
    pub(super) headers: Cow<'a, HeaderMap>,
    pub(super) body: Bytes,
}

/// An answer, read to its end.
pub(super) struct WebResponse {
    pub(super) status: u16,
    /// As it came; empty where there is none.
    pub(super) content_type: String,
    pub(super) body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum WebRequestError {
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

impl From<HttpError> for WebRequestError {
    fn from(error: HttpError) -> WebRequestError {
        match error {
            HttpError::Connect(reason) => WebRequestError::Unreachable(reason),
            HttpError::Broken(reason) => WebRequestError::Broken(reason),
        }
    }
}

impl WebRequestError {
    /// The error of the call, in words for a model; the reason goes to the log.
    pub(super) fn outcome(&self, group: &ServerId) -> Result<ToolResult, CallError> {
        tracing::warn!(functions.group = %group, reason = %self, "The service of a function gave no answer");
        let unavailable = |message: &str, unsent| {
            Err(CallError::UpstreamUnavailable {
                message: message.to_owned(),
                unsent,
            })
        };
        match self {
            WebRequestError::Unreachable(_) => unavailable(
                "the function's service cannot be reached right now; try again later",
                true,
            ),
            WebRequestError::Broken(_) => unavailable(
                "the connection to the function's service was lost during the call; it may have been carried out",
                false,
            ),
            WebRequestError::TooLong(limit) => Ok(output::failure(too_long(*limit))),
        }
    }
}

/// Sends a request and reads its answer, of at most `limit` bytes. Dropping the future gives it up.
///
/// A redirect is followed within its origin, and only one that asks for the same request again; any other is an
/// answer with an error status.
pub(super) async fn fetch(
    client: &Client,
    mut request: WebRequest<'_>,
    limit: usize,
) -> Result<WebResponse, WebRequestError> {
    let mut redirects = 0;
    let response = loop {
        let outgoing = Outgoing {
            method: request.method.clone(),
            uri: request.uri()?,
            headers: Headers::Map(&request.headers),
            own: &[],
            body: &SegmentedBody::of(&request.body),
            upload: None,
        };
        let response = client.send(outgoing).await?;
        match request.redirected(&response) {
            Some(url) if redirects < REDIRECTS => request.address = Cow::Owned(url.into()),
            _ => break response,
        }
        redirects += 1;
    };
    let (head, mut pieces) = response.into_parts();
    let content_type = head.headers.get(header::CONTENT_TYPE);
    let content_type = content_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let mut body = BodyBuffer::default();
    while let Some(piece) = pieces.next().await {
        body.push(piece?);
        if body.len() > limit {
            return Err(WebRequestError::TooLong(limit));
        }
    }
    Ok(WebResponse {
        status: head.status.as_u16(),
        content_type,
        body: body.into_bytes(),
    })
}

impl WebRequest<'_> {
    fn uri(&self) -> Result<&Uri, WebRequestError> {
        let none = || WebRequestError::Unreachable("the address is none".to_owned());
        self.address.uri.as_ref().ok_or_else(none)
    }

    /// The address to which the answer redirects the same request.
    fn redirected<B>(&self, response: &http::Response<B>) -> Option<Url> {
        let keeps_method = matches!(
            response.status(),
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
        );
        let location = response.headers().get(header::LOCATION);
        let location = location.filter(|_| keeps_method)?.to_str().ok()?;
        let asked = &self.address.url;
        let url = asked.join(location).ok()?;
        (url.origin() == asked.origin()).then_some(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u16, location: &str, expected: Option<&str>) {
        let url = Url::parse("http://here.example/a/b?c").unwrap();
        let request = WebRequest {
            method: Method::POST,
            address: Cow::Owned(url.into()),
            headers: Cow::Owned(HeaderMap::new()),
            body: Bytes::new(),
        };
        let response = http::Response::builder().status(status);
        let response = response.header(header::LOCATION, location).body(());
        let redirected = request.redirected(&response.unwrap());
        assert_eq!(redirected.as_ref().map(Url::as_str), expected);
    }

    #[test]
    fn only_the_same_request_is_made_again_and_only_at_the_same_origin() {
        check(307, "/d", Some("http://here.example/d"));
        check(
            308,
            "http://here.example/d?e",
            Some("http://here.example/d?e"),
        );
        check(307, "http://there.example/d", None);
        check(307, "https://here.example/d", None);
        check(302, "/d", None);
        check(200, "/d", None);
    }
}
