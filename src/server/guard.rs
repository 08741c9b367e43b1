//! Who may come in: the bound on requests, the `Host` and `Origin` checks, the key.
//!
//! On loopback without keys anybody on the machine may call, but no web page: a page that got a name of its
//! own to point to 127.0.0.1 (DNS rebinding) shows itself by its `Host`, any other page by its `Origin`.

use std::sync::atomic::Ordering;

use axum::{
    extract::Request,
    http::{HeaderMap, Uri, header},
};

use crate::secret::Secret;

use super::{App, Config, connections::Holder, error::Refusal, mcp_sessions};

/// Who takes a place for the request, if it needs one.
pub(super) fn admit(app: &App, request: &Request) -> Result<Option<Holder>, Refusal> {
    host(&app.config, request.headers(), request.uri())?;
    if is_open(request.uri().path()) {
        return Ok(None);
    }
    if app.is_stopping.load(Ordering::Relaxed) {
        return Err(Refusal::ShuttingDown);
    }
    match mcp_sessions::token(request.uri().path()) {
        // The token is the key. Who has none that is known gets no further, and takes no place.
        Some(token) => {
            let known = app.gateway.handed().find(token);
            known.ok_or(Refusal::NoSession)?;
            Ok(Some(Holder::Borrower))
        }
        None => holder(&app.config, request.headers()).map(Some),
    }
}

/// `/health` answers without a key, so that whatever watches the process can ask; it says less then. It takes
/// no place either: one that is busy is not ill, and must not be restarted for it.
fn is_open(path: &str) -> bool {
    path == "/health"
}

/// A valid key was shown, or none is needed.
pub(super) fn key(config: &Config, headers: &HeaderMap) -> Result<(), Refusal> {
    holder(config, headers).map(|_| ())
}

/// Which of the keys was shown.
fn holder(config: &Config, headers: &HeaderMap) -> Result<Holder, Refusal> {
    if config.api_keys.is_empty() {
        return Ok(Holder::Anyone);
    }
    let shown = shown(headers).map(Secret::new);
    let known = shown.and_then(|shown| {
        let keys = config.api_keys.iter().enumerate();
        // All are compared, so that the time tells nothing.
        keys.fold(None, |known, (i, key)| match *key == shown {
            true => Some(i),
            false => known,
        })
    });
    known.map(Holder::Key).ok_or(Refusal::Unauthorized)
}

/// The key that was shown, right or wrong.
pub(super) fn shown(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

fn host(config: &Config, headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    let named = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let named = named
        .or_else(|| uri.authority().map(|authority| authority.as_str()))
        .unwrap_or_default();
    let own = without_port(named);
    if config.bind.ip().is_loopback() && config.api_keys.is_empty() && !is_allowed(config, own) {
        return Err(Refusal::ForeignHost(own.to_owned()));
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or_default();
    let page = without_port(origin.split_once("://").map_or(origin, |(_, rest)| rest));
    if page == own || is_allowed(config, page) {
        Ok(())
    } else {
        Err(Refusal::ForeignHost(origin.to_owned()))
    }
}

fn is_allowed(config: &Config, host: &str) -> bool {
    let is_loopback = host.eq_ignore_ascii_case("localhost")
        || host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback());
    is_loopback
        || config
            .allowed_hosts
            .iter()
            .any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(host))
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
    use super::*;

    #[track_caller]
    fn check(config: &Config, host_header: &str, origin: Option<&str>, passes: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host_header.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        assert_eq!(
            host(config, &headers, &Uri::from_static("/")).is_ok(),
            passes,
            "{host_header} {origin:?}"
        );
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
            check(&config, own, None, true);
        }
    }

    #[test]
    fn a_name_that_was_made_to_point_here_is_refused() {
        check(&Config::default(), "evil.example:4242", None, false);
        let allowed = Config {
            allowed_hosts: vec!["evil.example".into()],
            ..Config::default()
        };
        check(&allowed, "evil.example:4242", None, true);
    }

    #[test]
    fn a_page_from_elsewhere_is_refused() {
        check(
            &Config::default(),
            "localhost:4242",
            Some("https://evil.example"),
            false,
        );
        check(&Config::default(), "localhost:4242", Some("null"), false);
        check(
            &Config::default(),
            "localhost:4242",
            Some("http://localhost:3000"),
            true,
        );
    }

    #[test]
    fn a_key_is_asked_for_where_there_are_keys() {
        let config = Config {
            api_keys: vec![Secret::new("one"), Secret::new("two")],
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
