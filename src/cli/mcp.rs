//! `toolway mcp`: one MCP client on standard input and output, which started it.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio_util::sync::CancellationToken;

use super::serve;
use crate::{audit::Audit, config::Config, server::stdio, store::StoreEntries};
use toolway_protocol::tool::ServerId;

/// Serves the client until it closes its end or toolway gets a stop signal; leaves nothing running.
pub(super) async fn run(config: Config, show: Show, stop: CancellationToken) -> Result<()> {
    let audit = Audit::open(&config.audit, &config.data)?;
    let gateway = serve::gateway(&config, StoreEntries::default(), audit)?;
    let view = match (&show, lone_group(&config)) {
        (Show::Profile(name), _) => gateway.view(Some(name)),
        (Show::Functions, Some(group)) => Some(gateway.view_of(group)),
        (Show::Functions | Show::Everything, _) => gateway.view(None),
    };
    let view = view.context("there is no such profile")?;
    let bounds = stdio::Config {
        max_line_bytes: config.server.max_body_bytes,
        max_depth: config.server.max_body_depth,
        shutdown_grace: config.server.shutdown_grace,
    };
    let pipes = (tokio::io::stdin(), tokio::io::stdout());
    let stopped = stop.cancelled_owned();
    let served = stdio::serve(Arc::clone(&gateway), view, bounds, pipes, stopped).await;
    gateway.shutdown().await;
    served.context("standard input cannot be read")
}

/// Printed when `toolway mcp` is started on a terminal.
pub(super) const FOR_PEOPLE: &str = "\
toolway mcp is an MCP server on standard input and output: a client such as Claude, Cursor or VS Code starts it.
`toolway mcp --print-config claude` (or claude-code, cursor, vscode) prints what to paste into the client's settings.
It now waits for JSON-RPC messages, one a line; Ctrl-D ends it.
";

/// What the client is to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Show {
    /// All that is there, each name with its server in front.
    Everything,
    /// What `[profiles.NAME]` says.
    Profile(String),
    /// The functions of the command line; under their own names where nothing else is there.
    Functions,
}

/// The one group of functions that is there, and no server beside it.
fn lone_group(config: &Config) -> Option<&ServerId> {
    match &config.functions[..] {
        [group] if config.servers.is_empty() => Some(&group.group),
        _ => None,
    }
}

/// What is wrong with the profile that is asked for, if the configuration has none of that name.
pub(super) fn missing_profile(config: &Config, profile: Option<&str>) -> Option<String> {
    let name = profile.filter(|name| !config.profiles.iter().any(|it| it.name == *name))?;
    let known: Vec<&str> = config.profiles.iter().map(|it| it.name.as_str()).collect();
    Some(match known.is_empty() {
        true => format!("there is no profile `{name}`; `[profiles.{name}]` makes one"),
        false => format!(
            "there is no profile `{name}`; there are: {}",
            known.join(", ")
        ),
    })
}
