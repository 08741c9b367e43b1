//! Which headers go on to an upstream, and which come back.

use std::hash::Hasher;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use siphasher::sip::SipHasher13;

use crate::{
    gateway::{RequestSource, failure::Failure},
    store::{Principal, sessions::SessionName},
    upstream::model::{ClientHeaders, is_credential},
};

use super::{Config, REQUEST_ID};

/// Headers of one connection only (RFC 9110, 7.6.1), and those that this hop sets anew.
const OF_THIS_HOP: [HeaderName; 11] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::HOST,
    header::CONTENT_LENGTH,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
];

/// Headers in which a browser describes itself and its user; no upstream needs them.
const OF_THE_BROWSER: [HeaderName; 3] = [header::COOKIE, header::ORIGIN, header::REFERER];

/// Headers that identify the owner of a conversation.
const OF_THE_PRINCIPAL: [HeaderName; 3] = [
    header::AUTHORIZATION,
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-api-key"),
];

/// The client's headers for an upstream. The upstream knows which of them only one upstream may see.
pub(super) fn to_upstream(client: &HeaderMap, config: &Config) -> HeaderMap {
    filtered(client, goes_on(client, config))
}

/// Which of the client's headers go on.
fn goes_on(client: &HeaderMap, config: &Config) -> impl Fn(&HeaderName) -> bool {
    let has_keys = !config.api_keys.is_empty();
    let is_ours = move |name: &HeaderName| {
        name.as_str().starts_with("x-toolway-")
            // If toolway has `api_keys`, the client's key is meant for toolway.
            || (has_keys && is_credential(name))
    };
    let named = named_by_connection(client);
    move |name| {
        !OF_THIS_HOP.contains(name)
            && !OF_THE_BROWSER.contains(name)
            && !is_ours(name)
            && !named.contains(name)
    }
}

/// The headers for a chat, whose body toolway writes itself. They are copied, because the client's lie in the buffer of
/// its connection, which should not be kept until the answer ends.
pub(super) fn to_model(client: &HeaderMap, config: &Config) -> ClientHeaders {
    let goes_on = goes_on(client, config);
    let kept = client.iter().filter(|(name, _)| {
        goes_on(name)
            && **name != header::ACCEPT_ENCODING
            && **name != header::CONTENT_TYPE
            && **name != header::CONTENT_ENCODING
    });
    let copied = |value: &HeaderValue| {
        let mut copy = HeaderValue::from_bytes(value.as_bytes()).ok()?;
        copy.set_sensitive(value.is_sensitive());
        Some(copy)
    };
    kept.filter_map(|(name, value)| Some((name.clone(), copied(value)?)))
        .collect()
}

/// Moves a key from Anthropic's header to the header that other providers read. An Anthropic upstream gets it back in
/// Anthropic's header.
pub(super) fn move_key(client: &mut HeaderMap) {
    if client.contains_key(header::AUTHORIZATION) {
        return;
    }
    let key = client.remove("x-api-key");
    let bearer = key.and_then(|key| {
        let value = [b"Bearer ", key.as_bytes()].concat();
        HeaderValue::from_bytes(&value).ok()
    });
    if let Some(mut bearer) = bearer {
        bearer.set_sensitive(true);
        client.insert(header::AUTHORIZATION, bearer);
    }
}

/// The upstream's headers that come back. Its own request id keeps a place beside toolway's. Cookies are dropped, since
/// none are sent, and so are the upstream's CORS headers: `cors_origins` decides.
pub(super) fn to_client(upstream: &HeaderMap) -> HeaderMap {
    let named = named_by_connection(upstream);
    // The length stays: the body goes through as it is.
    let comes_back = |name: &HeaderName| {
        (*name == header::CONTENT_LENGTH || !OF_THIS_HOP.contains(name))
            && !named.contains(name)
            && *name != header::SET_COOKIE
            && !name.as_str().starts_with("access-control-")
    };
    let mut headers = filtered(upstream, comes_back);
    if let Some(id) = headers.remove(REQUEST_ID) {
        headers.insert(HeaderName::from_static("x-upstream-request-id"), id);
    }
    headers
}

/// The session that `X-Toolway-Session` names.
pub(super) fn session(headers: &HeaderMap) -> Result<Option<SessionName>, Failure> {
    let Some(name) = headers.get("x-toolway-session") else {
        return Ok(None);
    };
    let name = name.to_str().ok().and_then(SessionName::parse);
    let invalid = || Failure::Request {
        message: "X-Toolway-Session has 1 to 128 visible ASCII characters".to_owned(),
        param: None,
        code: "invalid_value",
    };
    name.map(Some).ok_or_else(invalid)
}

/// The owner of a conversation: a hash of the credentials, so that no client gets another's conversation. One key is one
/// owner, as a bearer token, in `x-api-key` or in both.
pub(super) fn principal(client: &HeaderMap) -> Principal {
    let [authorization, azure_key, anthropic_key] =
        OF_THE_PRINCIPAL.map(|name| client.get(name).map_or(&b""[..], HeaderValue::as_bytes));
    let token = bearer(client).map(str::as_bytes);
    let (token, other_key) = match token {
        None if authorization.is_empty() && !anthropic_key.is_empty() => {
            (Some(anthropic_key), &b""[..])
        }
        Some(token) if token == anthropic_key => (Some(token), &b""[..]),
        token => (token, anthropic_key),
    };
    let (scheme, credentials) = match token {
        Some(token) => (&b"Bearer "[..], token),
        None => (&b""[..], authorization),
    };
    let mut hasher = SipHasher13::new();
    // No header contains the byte 0, so two different lists of values never give the same bytes.
    for part in [scheme, credentials, &[0], azure_key, &[0], other_key, &[0]] {
        hasher.write(part);
    }
    hasher.finish()
}

/// The request's key, valid or not: as a bearer token, or in the header that Anthropic's SDKs use.
pub(super) fn shown_key(headers: &HeaderMap) -> Option<&str> {
    bearer(headers).or_else(|| headers.get("x-api-key")?.to_str().ok())
}

/// Where a request comes from.
pub(super) fn source_of(headers: &HeaderMap) -> RequestSource {
    RequestSource {
        request: headers.get(&REQUEST_ID).cloned(),
        client: headers.get(header::USER_AGENT).cloned(),
    }
}

/// The request's bearer token.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

fn filtered(headers: &HeaderMap, stays: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| stays(name));
    kept.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        list.iter().map(pair).collect()
    }

    #[test]
    fn headers_of_the_connection_stay_behind() {
        let client = headers(&[
            ("connection", "x-hop, keep-alive"),
            ("x-hop", "1"),
            ("openai-beta", "a"),
            ("host", "h"),
        ]);
        assert_eq!(
            to_upstream(&client, &Config::default()),
            headers(&[("openai-beta", "a")])
        );
    }

    #[test]
    fn the_client_key_goes_on_only_where_toolway_has_no_keys_of_its_own() {
        let client = headers(&[("authorization", "Bearer k"), ("x-api-key", "k")]);
        assert_eq!(to_upstream(&client, &Config::default()), client);
        let keyed = Config {
            api_keys: vec![crate::server::ApiKey {
                name: "k".to_owned(),
                secret: crate::secret::Secret::new("k"),
                admin: false,
            }],
            ..Config::default()
        };
        assert_eq!(to_upstream(&client, &keyed), HeaderMap::new());
    }

    #[test]
    fn a_key_has_one_owner_in_whatever_header_it_comes() {
        let of = |list| principal(&headers(list));
        let owner = of(&[("authorization", "Bearer k")]);
        assert_eq!(of(&[("x-api-key", "k")]), owner);
        assert_eq!(
            of(&[("authorization", "bearer k"), ("x-api-key", "k")]),
            owner
        );
        let others: [&[(&str, &str)]; 7] = [
            &[],
            &[("authorization", "Bearer other")],
            &[("authorization", "Basic k")],
            &[("authorization", "k")],
            &[("api-key", "k")],
            &[("authorization", "Bearer k"), ("x-api-key", "other")],
            &[("authorization", "Bearer other"), ("x-api-key", "k")],
        ];
        let mut owners: Vec<_> = others.iter().map(|list| of(list)).collect();
        owners.push(owner);
        owners.sort_unstable();
        owners.dedup();
        assert_eq!(owners.len(), 8, "a client got another's conversation");
    }

    #[test]
    fn the_upstream_request_id_keeps_a_place() {
        let upstream = headers(&[
            ("x-request-id", "theirs"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("set-cookie", "a=b"),
            ("access-control-allow-origin", "*"),
        ]);
        let expected = headers(&[("content-length", "3"), ("x-upstream-request-id", "theirs")]);
        assert_eq!(to_client(&upstream), expected);
    }
}
