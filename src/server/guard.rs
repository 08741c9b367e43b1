//! Which requests are admitted: the limit of requests, the `Host` and `Origin` checks, the key.
//!
//! Without keys every client that reaches toolway may call, but no web page. A page that uses DNS rebinding is
//! recognized by its `Host`, any other page by its `Origin` or `Sec-Fetch-Site`. `cors_origins` lists the pages that
//! may call and read the answers (`cors`).

use std::{net::IpAddr, sync::atomic::Ordering};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Version, header, uri::Authority},
};

use crate::{
    gateway::{RequestClient, confirmations::Scope},
    secret::Secret,
    store::Principal,
};

use super::{
    App, Config, cors,
    error::Refusal,
    headers::{principal, shown_key, source_of},
    places::Holder,
};
use toolway_core::{policy::KeyId, translate::paths};

/// The header in which a browser says where a request comes from.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The holder of the request's place, if it needs one. `key` is the [`position`] of the key in the request.
pub(super) fn admit(
    app: &App,
    request: &Request,
    key: Option<KeyId>,
) -> Result<Option<Holder>, Refusal> {
    source(&app.config, request)?;
    if paths::is_probe(request.uri().path()) {
        return Ok(None);
    }
    if app.is_stopping.load(Ordering::Relaxed) {
        return Err(Refusal::ShuttingDown);
    }
    match paths::lent_token(request.uri().path()) {
        // The token is the key. Without a known token the request is refused and takes no place.
        Some(token) => {
            let known = app.gateway.mcp_sessions().find(token);
            known.ok_or(Refusal::NoSession)?;
            Ok(Some(Holder::Borrower))
        }
        None => holder(&app.config, key).map(Some),
    }
}

/// The request has a valid key, or none is needed.
pub(super) fn key(config: &Config, headers: &HeaderMap) -> Result<(), Refusal> {
    holder(config, position(config, headers)).map(|_| ())
}

/// The request may change servers and decide on the calls of all clients: it has a key that may, or there are no keys and only this machine reaches toolway;
/// and it does not come from a page of another origin, not even from one on this machine.
pub(super) fn administers(config: &Config, headers: &HeaderMap) -> bool {
    let own = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let is_fine = |origin: &HeaderValue| {
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin.split_once("://").map(|(_, rest)| rest);
        cors::allows(config, origin) || (own.is_some() && authority == own)
    };
    if !headers.get_all(header::ORIGIN).iter().all(is_fine) {
        return false;
    }
    if config.api_keys.is_empty() {
        return config.bind.ip().to_canonical().is_loopback();
    }
    let key = position(config, headers).and_then(|KeyId(at)| config.api_keys.get(usize::from(at)));
    key.is_some_and(|key| key.admin)
}

/// The holder for a client with this key.
fn holder(config: &Config, key: Option<KeyId>) -> Result<Holder, Refusal> {
    if config.api_keys.is_empty() {
        return Ok(Holder::Anyone);
    }
    let key = key.ok_or(Refusal::Unauthorized)?;
    Ok(Holder::Key(usize::from(key.0)))
}

/// The holder for an admitted request, by its path and headers.
pub(super) fn holder_of(config: &Config, path: &str, headers: &HeaderMap) -> Holder {
    match paths::lent_token(path) {
        Some(_) => Holder::Borrower,
        None => holder(config, position(config, headers)).unwrap_or(Holder::Anyone),
    }
}

/// The client of a request.
pub(super) fn client(config: &Config, headers: &HeaderMap, face: &'static str) -> RequestClient {
    RequestClient {
        principal: principal(headers),
        key: position(config, headers),
        has_approved: false,
        face,
        source: source_of(headers),
    }
}

/// The confirmations that a client may see and decide on: all for who may change servers, else its own.
pub(super) fn scope(config: &Config, headers: &HeaderMap) -> Scope {
    match administers(config, headers) {
        true => Scope::All,
        false => Scope::Own(principal(headers)),
    }
}

/// The place of the request's key among those of the configuration. All keys are compared, so that the time does not
/// reveal which one matched.
pub(super) fn position(config: &Config, headers: &HeaderMap) -> Option<KeyId> {
    if config.api_keys.is_empty() {
        return None;
    }
    let shown = Secret::new(shown_key(headers)?);
    let keys = config.api_keys.iter().zip(0..);
    keys.fold(None, |known, (key, at)| match key.secret == shown {
        true => Some(KeyId(at)),
        false => known,
    })
}

/// The owner whose sessions a request may see: its key. Without keys clients cannot be told apart, and only the secret
/// id protects a session.
pub(super) fn owner(app: &App, headers: &HeaderMap) -> Principal {
    match position(&app.config, headers) {
        Some(KeyId(position)) => 1 + u64::from(position),
        None => 0,
    }
}

/// Checks that the request names this host and does not come from a page that may not send it.
///
/// A browser sends the host name that it resolved, even one that an attacker made resolve to this address (DNS
/// rebinding). Without keys such a page could do everything that a client can, so only hosts that an attacker cannot
/// own are allowed.
pub(super) fn source(config: &Config, request: &Request) -> Result<(), Refusal> {
    let host = host(request)?;
    // HTTP/1.0 has no `Host`. Browsers no longer speak it, but load balancers probe with it.
    let is_old_probe = host.is_empty()
        && request.version() == Version::HTTP_10
        && paths::is_probe(request.uri().path());
    let own = without_port(host);
    // Only clients of a proxy send the whole URL in an HTTP/1 request, and toolway is not a proxy.
    let is_for_proxy = request.version() < Version::HTTP_2 && request.uri().authority().is_some();
    let is_checked = config.api_keys.is_empty() || is_for_proxy;
    if is_checked && !is_old_probe && !is_own(config, own) {
        return Err(Refusal::ForeignHost(own.to_owned()));
    }
    let headers = request.headers();
    if !headers.contains_key(header::ORIGIN) {
        // Requests without CORS, such as for an image, have no `Origin`.
        let sites = headers.get_all(&SITE).iter();
        let mut sites = sites.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        let is_cross = |site: &[u8]| site.trim_ascii().eq_ignore_ascii_case(b"cross-site");
        return match sites.any(is_cross) {
            true => Err(Refusal::ForeignOrigin("another site".to_owned())),
            false => Ok(()),
        };
    }
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let page = without_port(origin.split_once("://").map_or(origin, |(_, rest)| rest));
        let is_near = page == own || is_loopback(page) || is_listed(config, page);
        if !is_near && !cors::allows(config, origin) {
            return Err(Refusal::ForeignOrigin(origin.to_owned()));
        }
    }
    Ok(())
}

/// The host that a request names, in its target and in its one `Host` header.
fn host(request: &Request) -> Result<&str, Refusal> {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let header = headers.next().map(|host| host.to_str().unwrap_or_default());
    let target = request.uri().authority().map(Authority::as_str);
    let is_contradicted = match (header, target) {
        (Some(header), Some(target)) => !header.eq_ignore_ascii_case(target),
        _ => false,
    };
    // RFC 9112, 3.2.
    let is_missing = header.is_none() && request.version() == Version::HTTP_11;
    if is_contradicted || is_missing || headers.next().is_some() {
        return Err(Refusal::AmbiguousHost);
    }
    Ok(target.or(header).unwrap_or_default())
}

/// No foreign page can have this host: loopback, a listed name, or, if toolway is reachable by others, an IP address,
/// because DNS rebinding needs a host name.
fn is_own(config: &Config, host: &str) -> bool {
    let is_far = !config.bind.ip().to_canonical().is_loopback();
    is_loopback(host) || (is_far && ip(host).is_some()) || is_listed(config, host)
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || ip(host).is_some_and(|ip| ip.is_loopback())
}

fn ip(host: &str) -> Option<IpAddr> {
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    host.parse().ok()
}

fn is_listed(config: &Config, host: &str) -> bool {
    let mut listed = config.allowed_hosts.iter();
    listed.any(|listed| listed == "*" || listed.eq_ignore_ascii_case(host))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') && port.bytes().all(|b| b.is_ascii_digit()) => {
            name
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::server::ApiKey;

    fn api_key(key: &str) -> ApiKey {
        ApiKey {
            name: key.to_owned(),
            secret: Secret::new(key),
            admin: key == "two",
        }
    }

    /// Whether a request for `/` with these headers is let in.
    #[track_caller]
    fn check(config: &Config, headers: &[(&'static str, &str)], expected: Result<(), &str>) {
        check_target(config, "/", headers, expected);
    }

    #[track_caller]
    fn check_target(
        config: &Config,
        target: &str,
        headers: &[(&'static str, &str)],
        expected: Result<(), &str>,
    ) {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let found = source(config, &request.body(Body::empty()).unwrap());
        let found = found.map_err(|refusal| match refusal {
            Refusal::ForeignHost(_) => "host",
            Refusal::ForeignOrigin(_) => "origin",
            Refusal::AmbiguousHost => "ambiguous",
            other => panic!("{other:?}"),
        });
        assert_eq!(found, expected, "{target} {headers:?}");
    }

    fn far() -> Config {
        Config {
            bind: "0.0.0.0:4242".parse().unwrap(),
            allow_anonymous: true,
            allowed_hosts: vec!["gateway.example".into()],
            ..Config::default()
        }
    }

    #[test]
    fn loopback_is_served_under_its_own_names() {
        let config = Config::default();
        for own in [
            "127.0.0.1:4242",
            "localhost",
            "LOCALHOST:80",
            "[::1]:4242",
            "127.0.0.2",
        ] {
            check(&config, &[("host", own)], Ok(()));
        }
        check(&config, &[("host", "192.0.2.1")], Err("host"));
    }

    #[test]
    fn a_name_that_was_made_to_point_here_is_refused() {
        let evil = [("host", "evil.example:4242")];
        check(&Config::default(), &evil, Err("host"));
        let allowed = Config {
            allowed_hosts: vec!["evil.example".into()],
            ..Config::default()
        };
        check(&allowed, &evil, Ok(()));
        check(&far(), &evil, Err("host"));
        check(&far(), &[("host", "gateway.example:4242")], Ok(()));
        check(&far(), &[("host", "192.0.2.1:4242")], Ok(()));
        check(&far(), &[("host", "[2001:db8::1]:4242")], Ok(()));
        check(&far(), &[("host", "localhost:4242")], Ok(()));
        let keyed = Config {
            api_keys: vec![api_key("k")],
            ..far()
        };
        check(&keyed, &evil, Ok(()));
        let page = ("origin", "https://gateway.example");
        check(&keyed, &[("host", "127.0.0.1:4242"), page], Ok(()));
    }

    #[test]
    fn a_request_names_one_host() {
        let config = Config::default();
        let two = [("host", "localhost"), ("host", "localhost")];
        check(&config, &two, Err("ambiguous"));
        check(&config, &[], Err("ambiguous"));
        let local = [("host", "localhost:1")];
        check_target(&config, "http://localhost:1/x", &local, Ok(()));
        check_target(&config, "http://localhost:2/x", &local, Err("ambiguous"));
        check_target(&config, "http://evil.example/x", &local, Err("ambiguous"));
        let evil = [("host", "evil.example")];
        check_target(&config, "http://evil.example/x", &evil, Err("host"));
        let keyed = Config {
            api_keys: vec![api_key("k")],
            ..far()
        };
        check_target(&keyed, "http://evil.example/x", &evil, Err("host"));
        let listed = [("host", "gateway.example")];
        check_target(&keyed, "http://gateway.example/x", &listed, Ok(()));
    }

    #[test]
    fn a_page_from_elsewhere_is_refused() {
        let from = |origin| [("host", "localhost:4242"), ("origin", origin)];
        let config = Config::default();
        check(&config, &from("https://evil.example"), Err("origin"));
        check(&config, &from("null"), Err("origin"));
        check(&config, &from("http://localhost:3000"), Ok(()));
        check(&config, &from("http://192.0.2.1"), Err("origin"));
        check(&far(), &from("http://192.0.2.1"), Err("origin"));
        check(&far(), &from("https://gateway.example"), Ok(()));
        let same = [
            ("host", "192.0.2.1:4242"),
            ("origin", "http://192.0.2.1:4242"),
        ];
        check(&far(), &same, Ok(()));
        let listed = Config {
            cors_origins: vec!["https://app.example".into()],
            ..Config::default()
        };
        check(&listed, &from("https://app.example"), Ok(()));
        check(&listed, &from("http://app.example"), Err("origin"));
        check(&listed, &from("https://app.example:8443"), Err("origin"));
        let two = [
            ("host", "localhost"),
            ("origin", "https://app.example"),
            ("origin", "https://evil.example"),
        ];
        check(&listed, &two, Err("origin"));
    }

    #[test]
    fn what_a_foreign_page_loads_is_refused() {
        let config = Config::default();
        let loaded = |site| [("host", "localhost"), ("sec-fetch-site", site)];
        for site in ["cross-site", "Cross-Site", "none, cross-site"] {
            check(&config, &loaded(site), Err("origin"));
        }
        let twice = [
            ("host", "localhost"),
            ("sec-fetch-site", "none"),
            ("sec-fetch-site", "cross-site"),
        ];
        check(&config, &twice, Err("origin"));
        for site in ["none", "same-origin", "same-site"] {
            check(&config, &loaded(site), Ok(()));
        }
        let allowed = [
            ("host", "localhost"),
            ("origin", "http://localhost:3000"),
            ("sec-fetch-site", "cross-site"),
        ];
        check(&config, &allowed, Ok(()));
    }

    #[test]
    fn a_key_is_asked_for_where_there_are_keys() {
        let config = Config {
            api_keys: vec![api_key("one"), api_key("two")],
            ..Config::default()
        };
        let shown =
            |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(key(&config, &HeaderMap::new()), Err(Refusal::Unauthorized));
        assert_eq!(
            key(&config, &shown("Bearer three")),
            Err(Refusal::Unauthorized)
        );
        assert_eq!(key(&config, &shown("bearer two")), Ok(()));
        assert_eq!(key(&Config::default(), &HeaderMap::new()), Ok(()));
    }
}
