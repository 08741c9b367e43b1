//! `toolway demo`: a whole gateway with a built-in model and a built-in MCP server, asked one question.
//!
//! Nothing is faked between them: the question goes over HTTP to the gateway's own port, the model is behind
//! another port, and the tools are in a child process that speaks MCP over its pipes.

mod client;
mod model;
pub(super) mod server;

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use tokio::{net::TcpListener, time::Instant};
use tokio_util::sync::CancellationToken;

use super::serve;
use crate::{
    audit::Audit,
    config::{Config, Environment, RawConfig},
    server as http_face,
    store::StoreEntries,
};

/// Longest wait for the built-in MCP server.
const SETTLING: Duration = Duration::from_secs(20);

/// Runs the demo until `stop`; with `once` it ends after the first answer.
pub(super) async fn run(bind: SocketAddr, once: bool, stop: CancellationToken) -> Result<()> {
    let model = TcpListener::bind("127.0.0.1:0").await?;
    let model_address = model.local_addr()?;
    tokio::spawn(async move { axum::serve(model, model::router()).await });

    let listener = free(bind).await?;
    let address = listener.local_addr()?;
    let config = config(model_address, address)?;
    let gateway = serve::gateway(&config, StoreEntries::default(), Audit::default())?;
    gateway.settled(Instant::now() + SETTLING).await;

    let serving = tokio::spawn(http_face::serve(
        listener,
        gateway.clone(),
        config.server,
        stop.clone().cancelled_owned(),
    ));
    // A task of its own, so that a terminal that stalls does not keep signals from being handled.
    let showing = tokio::spawn(show(address, once));
    let asked = tokio::select! {
        asked = showing => asked?,
        () = stop.cancelled() => Ok(()),
    };
    stop.cancel();
    serving.await?;
    gateway.shutdown().await;
    asked
}

/// Asks, and shows how; then, unless `once`, serves until it is stopped.
async fn show(address: SocketAddr, once: bool) -> Result<()> {
    client::ask(address).await?;
    client::say_how(address, once)?;
    if !once {
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// The address that was asked for, or, when it is taken, any other one.
async fn free(bind: SocketAddr) -> Result<TcpListener> {
    match TcpListener::bind(bind).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let taken = format!("{bind} is taken; the demo takes another port\n");
            super::show(String::new(), taken).await?;
            serve::bind(SocketAddr::new(bind.ip(), 0))
        }
        Err(_) => serve::bind(bind),
    }
}

/// The demo's configuration, as a file would have it.
fn config(model: SocketAddr, bind: SocketAddr) -> Result<Config> {
    let this = std::env::current_exe().context("cannot find the program itself")?;
    let this = toml::Value::from(this.to_string_lossy().into_owned());
    let text = format!(
        "bind = \"{bind}\"\n\
         [[upstreams]]\nname = \"demo\"\nbase_url = \"http://{model}/v1\"\n\
         [servers.demo]\ncommand = {this}\nargs = [\"demo-server\"]\n"
    );
    let raw: RawConfig = toml::from_str(&text)?;
    Config::from_raw(raw, &Environment::real())
        .map_err(|problems| anyhow::anyhow!("the demo cannot be configured: {problems:?}"))
}
