//! The start message of `serve`: where to point a client, and where its requests go.

use std::net::SocketAddr;

use super::{inventory, terminal};
use crate::{
    config::Config,
    upstream::mcp::{self, Transport},
};

/// The lines, in order. `address` is the bound address, which is known only then if the port is 0.
pub(super) fn lines(config: &Config, address: SocketAddr) -> Vec<String> {
    let mut lines: Vec<String> = config
        .files
        .iter()
        .map(|file| format!("Read {}", file.display()))
        .collect();
    for [name, url, models, key] in inventory::upstreams_in_words(config) {
        lines.push(format!(
            "Requests for {models} go to `{name}` at {url}, {key}"
        ));
    }
    let is_started = |it: &&mcp::Config| !matches!(it.transport, Transport::Unavailable { .. });
    let started = config.servers.iter().filter(is_started).count();
    match (config.servers.len(), config.functions.len()) {
        (0, 0) => {
            let alone = "No MCP server is configured: requests pass through as they are";
            lines.push(alone.to_owned());
        }
        _ if started == 0 => {}
        _ => lines.push(format!(
            "Starting {}",
            terminal::count(started, "MCP server")
        )),
    }
    let functions: usize = config.functions.iter().map(|group| group.tools.len()).sum();
    if functions > 0 {
        lines.push(format!(
            "Offering {}",
            terminal::count(functions, "function")
        ));
    }
    lines.push(format!(
        "Listening on http://{address} ({})",
        inventory::access(config)
    ));
    lines.push(format!(
        "Point an OpenAI client at http://{}/v1",
        reachable(address)
    ));
    lines
}

/// An address that a client on this machine can use: `0.0.0.0` is none.
fn reachable(address: SocketAddr) -> SocketAddr {
    match (address.ip().is_unspecified(), address) {
        (false, _) => address,
        (true, SocketAddr::V4(_)) => SocketAddr::from(([127, 0, 0, 1], address.port())),
        (true, SocketAddr::V6(_)) => SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], address.port())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, RawConfig, RawFunctions, RawServer, RawUpstream};

    #[track_caller]
    fn check(raw: RawConfig, address: &str, expected: &[&str]) {
        let environment = Environment {
            env: &|_| None,
            read: &|_| Err(std::io::ErrorKind::NotFound.into()),
            folder: "/w".into(),
        };
        let config = Config::from_raw(raw, &environment).unwrap();
        assert_eq!(lines(&config, address.parse().unwrap()), expected);
    }

    #[test]
    fn without_any_configuration_it_says_whose_key_is_used() {
        check(
            RawConfig::default(),
            "127.0.0.1:4242",
            &[
                "Requests for every model go to `api.openai.com` at https://api.openai.com/v1, with the client's key",
                "No MCP server is configured: requests pass through as they are",
                "Listening on http://127.0.0.1:4242 (no API keys, this machine only)",
                "Point an OpenAI client at http://127.0.0.1:4242/v1",
            ],
        );
    }

    #[test]
    fn functions_alone_are_offered_and_nothing_is_started() {
        let upstream = RawUpstream {
            base_url: Some("http://u/v1".into()),
            ..RawUpstream::default()
        };
        let brief = RawFunctions {
            model: Some("m".into()),
            prompt: Some("{input}".into()),
            ..RawFunctions::default()
        };
        let raw = RawConfig {
            upstreams: vec![upstream],
            functions: [("brief".to_owned(), brief)].into(),
            ..RawConfig::default()
        };
        check(
            raw,
            "127.0.0.1:4242",
            &[
                "Requests for every model go to `u` at http://u/v1, with the client's key",
                "Offering 1 function",
                "Listening on http://127.0.0.1:4242 (no API keys, this machine only)",
                "Point an OpenAI client at http://127.0.0.1:4242/v1",
            ],
        );
    }

    #[test]
    fn a_server_that_is_not_started_is_not_counted() {
        let server = |command: &str, enabled| RawServer {
            command: Some(command.into()),
            enabled: Some(enabled),
            ..RawServer::default()
        };
        let servers = [
            ("a", server("x", true)),
            ("b", server("${NOT_SET}", true)),
            ("c", server("x", false)),
        ];
        let raw = RawConfig {
            servers: servers.map(|(name, it)| (name.to_owned(), it)).into(),
            ..RawConfig::default()
        };
        check(
            raw,
            "127.0.0.1:4242",
            &[
                "Requests for every model go to `api.openai.com` at https://api.openai.com/v1, with the client's key",
                "Starting 1 MCP server",
                "Listening on http://127.0.0.1:4242 (no API keys, this machine only)",
                "Point an OpenAI client at http://127.0.0.1:4242/v1",
            ],
        );
    }

    #[test]
    fn an_address_that_nobody_can_connect_to_is_not_recommended() {
        let server = RawServer {
            command: Some("x".into()),
            ..RawServer::default()
        };
        let raw = RawConfig {
            allow_anonymous: Some(true),
            servers: [("a".to_owned(), server)].into(),
            ..RawConfig::default()
        };
        check(
            raw,
            "0.0.0.0:80",
            &[
                "Requests for every model go to `api.openai.com` at https://api.openai.com/v1, with the client's key",
                "Starting 1 MCP server",
                "Listening on http://0.0.0.0:80 (no API keys, open to every client)",
                "Point an OpenAI client at http://127.0.0.1:80/v1",
            ],
        );
    }
}
