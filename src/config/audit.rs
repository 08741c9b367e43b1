//! What is recorded of calls, and where.

use std::time::Duration;

use super::{Config, check::Check, raw::RawAudit};
use crate::{
    audit,
    secret::Secret,
    upstream::{function::BackendKind, mcp::Transport},
};

/// Shorter values of the configuration are ordinary words rather than secrets.
const SHORTEST_SECRET: usize = 8;

const MIB: i64 = 1 << 20;

impl Check<'_> {
    /// The audit, without the secrets that it leaves out.
    pub(super) fn audit(&mut self, raw: &RawAudit) -> audit::Config {
        let usual = audit::Config::default();
        let days = self.number("audit.keep_days", raw.keep_days, 1..=3650, 30);
        let folder = raw.folder.as_deref().filter(|it| !it.is_empty());
        if folder.is_none() && raw.folder.is_some() {
            self.problem("audit.folder", "must name a folder");
        }
        let mut redaction = usual.redaction;
        redaction.max_bytes = self.number(
            "audit.max_value_bytes",
            raw.max_value_bytes,
            16..=MIB,
            redaction.max_bytes,
        );
        audit::Config {
            enabled: raw.enabled.unwrap_or(usual.enabled),
            folder: folder.map(|it| self.base.join(it)),
            max_bytes: self.number(
                "audit.max_bytes",
                raw.max_bytes,
                MIB..=MIB << 20,
                usual.max_bytes,
            ),
            max_age: Duration::from_secs(days * 24 * 60 * 60),
            arguments: raw.arguments.unwrap_or(usual.arguments),
            results: raw.results.unwrap_or(usual.results),
            redaction,
        }
    }
}

impl Config {
    /// Every secret value that is long enough to be recognized.
    pub(super) fn secrets(&self) -> Vec<String> {
        let keys = self.server.api_keys.iter().map(|it| &it.secret);
        let keys = keys.chain(&self.server.approval_token);
        let upstreams = self.upstreams.iter().flat_map(|it| {
            let headers = it.headers.iter().map(|(_, value)| value);
            it.api_key.iter().chain(headers)
        });
        let servers = self.servers.iter().flat_map(|it| match &it.transport {
            Transport::Stdio { env, .. } => env.iter().map(|(_, value)| value).collect(),
            Transport::Http { headers, .. } => values(headers),
            Transport::Unavailable { .. } => Vec::new(),
        });
        let functions = self.functions.iter().flat_map(|it| match &it.kind {
            BackendKind::Endpoint(it) => values(&it.headers),
            BackendKind::Url(it) => values(&it.headers),
            BackendKind::OpenApi(it) => values(&it.headers),
            BackendKind::Command(it) => it.env.iter().map(|(_, value)| value).collect(),
            BackendKind::Model(_) | BackendKind::Unavailable { .. } => Vec::new(),
        });
        let all = keys.chain(upstreams).chain(servers).chain(functions);
        // A header is often `Bearer` and a key.
        let words = all.flat_map(|it| it.expose().split_whitespace());
        let mut words: Vec<String> = words
            .filter(|it| it.len() >= SHORTEST_SECRET)
            .map(str::to_owned)
            .collect();
        // A secret may be a part of another.
        words.sort_unstable_by_key(|it| std::cmp::Reverse(it.len()));
        words.dedup();
        words
    }
}

fn values(headers: &[(http::HeaderName, Secret)]) -> Vec<&Secret> {
    headers.iter().map(|(_, value)| value).collect()
}
