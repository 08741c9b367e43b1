//! The seam between the command line and the gateway: one function for each thing a command has done.
//!
//! Nothing is printed here but the start lines of `serve`; what comes back is put into words by others.

use anyhow::{Context, Result, bail};

use super::{announce, answer::Outcome, args::DemoArgs, survey::Survey};
use crate::config::Config;

/// Binds, logs the addresses, serves until Ctrl-C, and drains.
pub(super) async fn serve(config: Config) -> Result<()> {
    let listener = tokio::net::TcpListener::bind(config.server.bind)
        .await
        .with_context(|| format!("cannot listen on {}", config.server.bind))?;
    for line in announce::lines(&config, listener.local_addr()?) {
        tracing::info!("{line}");
    }
    bail!("`serve` is not wired yet")
}

/// Starts the servers, waits until each is ready or has failed, notes what they offer, and stops them.
pub(super) async fn survey(_config: &Config) -> Result<Survey> {
    bail!("`tools` and `check` are not wired yet; `check --offline` is")
}

/// One tool call, through the same path as the loop.
pub(super) async fn call(_config: &Config, _name: &str, _arguments: &str) -> Result<Outcome> {
    bail!("`call` is not wired yet")
}

/// The built-in model and server, one answer, and the lines that do the same.
pub(super) async fn demo(_asked: DemoArgs) -> Result<()> {
    bail!("`demo` is not wired yet")
}

/// The built-in MCP server, over standard input and output.
pub(super) async fn demo_server() -> Result<()> {
    bail!("`demo-server` is not wired yet")
}
