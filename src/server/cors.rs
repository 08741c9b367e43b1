//! CORS: pages of the origins in `cors_origins` may call and read the answers. Default: none.
//!
//! The protocol is the Fetch standard's (<https://fetch.spec.whatwg.org/#http-cors-protocol>). Keys travel in a header
//! that the page sets itself, so answers never allow what the standard calls credentials.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::{Config, error::Refusal};

/// What a page may send.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");

/// What a page may read. The names are for browsers that do not know the `*`.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("x-request-id, mcp-session-id, mcp-protocol-version, retry-after, *");

/// How long a browser may remember the answer to a preflight, in seconds; the longest that Chrome takes.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// The page's origin, if it may read the answer.
pub(super) fn reader(config: &Config, headers: &HeaderMap) -> Option<HeaderValue> {
    if config.cors_origins.is_empty() {
        return None;
    }
    let origin = headers.get(header::ORIGIN)?;
    allows(config, origin.to_str().ok()?).then(|| origin.clone())
}

/// The configuration lists the origin.
pub(super) fn allows(config: &Config, origin: &str) -> bool {
    let mut listed = config.cors_origins.iter();
    listed.any(|listed| listed == "*" || listed.eq_ignore_ascii_case(origin))
}

/// The request is a CORS preflight. It carries no key and reaches no upstream.
pub(super) fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a preflight; [`readable`] adds the rest.
pub(super) fn preflight(config: &Config, asked: &HeaderMap) -> Response {
    if reader(config, asked).is_none() {
        let origin = asked.get(header::ORIGIN).and_then(|it| it.to_str().ok());
        return Refusal::ForeignOrigin(origin.unwrap_or_default().to_owned()).into_response();
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    if let Some(names) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    if asked.contains_key("access-control-request-private-network") {
        let name = HeaderName::from_static("access-control-allow-private-network");
        headers.insert(name, HeaderValue::from_static("true"));
    }
    response
}

/// Lets pages of this origin read a response.
pub(super) fn readable(mut response: Response, origin: HeaderValue) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.append(
        header::VARY,
        HeaderValue::from_static("Origin, Access-Control-Request-Headers"),
    );
    response
}
