//! `toolway mcp`: one MCP client on standard input and output, which started it.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio_util::sync::CancellationToken;

use super::serve;
use crate::{config::Config, server::stdio};

/// Serves the client until it closes its end, or until toolway is told to stop; leaves nothing running.
pub(super) async fn run(
    config: Config,
    profile: Option<String>,
    stop: CancellationToken,
) -> Result<()> {
    let gateway = serve::gateway(&config)?;
    let view = gateway.view(profile.as_deref());
    let view = view.context("there is no such profile")?;
    let bounds = stdio::Config {
        max_line_bytes: config.server.max_body_bytes,
        max_depth: config.server.max_body_depth,
        ..stdio::Config::default()
    };
    let pipes = (tokio::io::stdin(), tokio::io::stdout());
    let stopped = stop.cancelled_owned();
    let served = stdio::serve(Arc::clone(&gateway), view, bounds, pipes, stopped).await;
    gateway.shutdown().await;
    served.context("standard input cannot be read")
}

/// The profile that is asked for, if the configuration has none of that name.
pub(super) fn missing_profile<'p>(config: &Config, profile: Option<&'p str>) -> Option<&'p str> {
    profile.filter(|name| !config.profiles.iter().any(|it| it.name == *name))
}
