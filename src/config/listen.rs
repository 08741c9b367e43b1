//! The listen address and its clients, the bounds of the loop, and the log.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use url::Url;

use super::{
    check::Check,
    keys::unknown,
    raw::{RawConfig, RawLoop},
};
use crate::{
    gateway,
    server::{self, ApiKey},
    telemetry,
    upstream::model,
};

const GIB: i64 = 1 << 30;

impl Check<'_> {
    /// The listen address, and which clients are admitted.
    pub(super) fn listen(&mut self, raw: &RawConfig, api_keys: Vec<ApiKey>) -> server::Config {
        let default = server::Config::default();
        let bind = self.bind(raw.bind.as_deref(), default.bind);
        let allow_anonymous = raw.allow_anonymous.unwrap_or(false);
        let closed = raw.api_keys.as_ref().is_some_and(|keys| !keys.is_empty())
            || !raw.client_keys.is_empty();
        if !bind.ip().to_canonical().is_loopback() && !closed && !allow_anonymous {
            self.problem(
                "bind",
                format_args!(
                    "{bind} can be reached by others, who could use your keys and tools; \
                     set `api_keys` or `[keys.NAME]`, or `allow_anonymous = true` if that is meant"
                ),
            );
        }
        if closed && allow_anonymous {
            self.warn(
                "allow_anonymous",
                "has no effect beside `api_keys`: every client needs a key",
            );
        }
        let max_body_bytes = self.number(
            "max_body_bytes",
            raw.max_body_bytes,
            1024..=GIB,
            default.max_body_bytes,
        );
        let token = raw.approvals.token.as_deref();
        let approval_token = token.and_then(|token| self.key("approvals.token", token));
        server::Config {
            approval_token,
            bind,
            api_keys,
            allow_anonymous,
            allowed_hosts: self.allowed_hosts(raw),
            cors_origins: self.cors_origins(raw, closed),
            max_body_bytes,
            max_inflight_bytes: self.number(
                "max_inflight_bytes",
                raw.max_inflight_bytes,
                i64::try_from(max_body_bytes).unwrap_or(GIB)..=1024 * GIB,
                default.max_inflight_bytes.max(max_body_bytes),
            ),
            max_body_depth: self.number(
                "max_body_depth",
                raw.max_body_depth,
                8..=1000,
                default.max_body_depth,
            ),
            max_requests: self.number(
                "max_requests",
                raw.max_requests,
                1..=1_000_000,
                default.max_requests,
            ),
            max_idle: default.max_idle,
            shutdown_grace: self.time("shutdown_grace", raw.shutdown_grace, default.shutdown_grace),
            mcp: default.mcp,
        }
    }

    fn bind(&mut self, written: Option<&str>, default: SocketAddr) -> SocketAddr {
        let Some(written) = written else {
            return default;
        };
        if let Some(port) = written.strip_prefix("localhost:")
            && let Ok(port) = port.parse()
        {
            return SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        }
        written.trim().parse().unwrap_or_else(|_| {
            self.problem(
                "bind",
                format_args!(
                    "`{written}` is no address with a port; write for example `127.0.0.1:4242`"
                ),
            );
            default
        })
    }

    fn allowed_hosts(&mut self, raw: &RawConfig) -> Vec<String> {
        let hosts = raw.allowed_hosts.clone().unwrap_or_default();
        for (i, host) in hosts.iter().enumerate() {
            if let Some(why) = what_is_no_host(host) {
                self.problem(
                    format_args!("allowed_hosts[{i}]"),
                    format_args!("`{host}` {why}"),
                );
            }
        }
        hosts
    }

    fn cors_origins(&mut self, raw: &RawConfig, closed: bool) -> Vec<String> {
        let origins = raw.cors_origins.clone().unwrap_or_default();
        for (i, origin) in origins.iter().enumerate() {
            let at = format!("cors_origins[{i}]");
            if origin == "*" && !closed {
                self.problem(
                    at,
                    "any page could use your tools; list the origins, or set `api_keys`",
                );
            } else if origin != "*" && origin.contains('*') {
                let advice = "stands for any origin alone, and for nothing within one";
                self.problem(at, format_args!("`*` {advice}; list each origin"));
            } else if origin != "*" && !is_origin(origin) {
                self.problem(
                    at,
                    format_args!(
                        "`{origin}` is no origin as browsers write it; write for example \
                         `https://app.example` or `http://localhost:3000`, with nothing behind it"
                    ),
                );
            }
        }
        origins
    }

    /// The bounds of the tool loop.
    pub(super) fn bounds(&mut self, raw: &RawLoop) -> gateway::Config {
        let default = gateway::Config::default();
        let bounds = gateway::Config {
            max_rounds: self.number(
                "loop.max_rounds",
                raw.max_rounds,
                1..=1000,
                default.max_rounds,
            ),
            tool_timeout: self.time("loop.tool_timeout", raw.tool_timeout, default.tool_timeout),
            request_timeout: self.time(
                "loop.request_timeout",
                raw.request_timeout,
                default.request_timeout,
            ),
            keepalive: self.time("loop.keepalive", raw.keepalive, default.keepalive),
            max_result_bytes: self.number(
                "loop.max_result_bytes",
                raw.max_result_bytes,
                256..=GIB / 16,
                default.max_result_bytes,
            ),
            parallel_calls: self.number(
                "loop.parallel_calls",
                raw.parallel_calls,
                1..=1000,
                default.parallel_calls,
            ),
            max_calls: self.number(
                "loop.max_calls",
                raw.max_calls,
                1..=10_000,
                default.max_calls,
            ),
            ..default
        };
        if bounds.tool_timeout > bounds.request_timeout {
            self.warn(
                "loop.tool_timeout",
                "is longer than `request_timeout`, which ends the request first",
            );
        }
        bounds
    }

    /// What is logged, and how.
    pub(super) fn telemetry(&mut self, raw: &RawConfig) -> telemetry::Config {
        let mut config = telemetry::Config::default();
        if let Some(filter) = &raw.log {
            match telemetry::LogFilter::parse(filter) {
                Ok(filter) => config.filter = filter,
                Err(error) => self.problem("log", error),
            }
        }
        match raw.log_format.as_deref() {
            None | Some("text") => {}
            Some("json") => config.format = telemetry::Format::Json,
            Some(other) => self.problem("log_format", unknown("format", other, &["text", "json"])),
        }
        config
    }

    /// Conflicts between the gateway's keys and those of the upstreams.
    pub(super) fn compare_keys(&mut self, server: &server::Config, upstreams: &[model::Config]) {
        let is_open = server.api_keys.is_empty() && !server.bind.ip().to_canonical().is_loopback();
        for (i, upstream) in upstreams.iter().enumerate() {
            let has_key = upstream.has_own_key();
            let is_far = upstream.base_url.scheme() == "https";
            if is_open && has_key {
                self.warn(
                    "allow_anonymous",
                    format_args!(
                        "everybody who reaches {} spends the key of upstream `{}`",
                        server.bind, upstream.name
                    ),
                );
            } else if !server.api_keys.is_empty() && !has_key && is_far {
                self.warn(
                    format_args!("upstreams[{i}].api_key"),
                    format_args!(
                        "`{}` gets no key at all: with `api_keys` the clients' header holds a key \
                         of this gateway, which is not passed on",
                        upstream.name
                    ),
                );
            } else if !has_key && is_far && !upstream.client_key {
                self.warn(
                    format_args!("upstreams[{i}].api_key"),
                    format_args!(
                        "`{}` gets no key at all; set its `api_key`, or `client_key = true` if the \
                         clients' own key is for this upstream",
                        upstream.name
                    ),
                );
            }
        }
    }
}

/// Why a `Host` header never has this value, and what to write instead. The port of the header is ignored.
fn what_is_no_host(text: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:[]*".contains(c);
    if text.is_empty() || !text.chars().all(fits) {
        Some("is no host name; write it without `https://` and without a path".to_owned())
    } else if text != "*" && text.contains('*') {
        Some("matches nothing: `*` stands for any host alone; list each name".to_owned())
    } else if text.parse::<Ipv6Addr>().is_ok() {
        Some(format!("matches nothing: write it as `[{text}]`"))
    } else {
        let (name, port) = text.rsplit_once(':')?;
        (!port.contains(']')).then(|| {
            format!("matches nothing: write it without its port, as `{name}`, which holds for every port")
        })
    }
}

/// Scheme, host and port as a browser writes them: no path, and no default port.
fn is_origin(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else {
        return false;
    };
    match url.scheme() {
        "http" | "https" => url.origin().ascii_serialization() == text,
        // Of an extension, for instance.
        scheme => {
            url.has_host()
                && text.strip_prefix(scheme)
                    == Some(&format!("://{}", url.host_str().unwrap_or_default()))
        }
    }
}
