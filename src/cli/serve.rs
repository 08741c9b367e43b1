//! `toolway serve`: bind, say where, serve, drain.

use std::{io::ErrorKind, net::SocketAddr, pin::pin, sync::Arc};

use anyhow::{Context, Result};
use futures::poll;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{announce, open_files};
use crate::{
    config::Config,
    gateway::{Gateway, Setup},
    server,
};

/// Serves until it is told to stop, and leaves nothing running.
pub(super) async fn run(mut config: Config, stop: CancellationToken) -> Result<()> {
    open_files::fit(&mut config);
    let listener = bind(config.server.bind)?;
    let gateway = gateway(&config)?;
    say_where(&config, &listener).await?;
    let stopped = stop.cancelled_owned();
    server::serve(listener, gateway.clone(), config.server, stopped).await;
    tracing::info!("Stopping the servers");
    gateway.shutdown().await;
    Ok(())
}

/// Binds an address, with a word on what to do when it is taken.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener> {
    server::bind(address).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => {
                "; something listens there already, choose another with `--bind`"
            }
            ErrorKind::PermissionDenied => {
                "; ports below 1024 need more rights, choose another with `--bind`"
            }
            _ => "",
        };
        anyhow::anyhow!("cannot listen on {address}: {error}{hint}")
    })
}

/// Starts a gateway as configured.
pub(super) fn gateway(config: &Config) -> Result<Arc<Gateway>> {
    Gateway::start(Setup {
        config: config.gateway.clone(),
        upstreams: config.upstreams.clone(),
        servers: config.servers.clone(),
        functions: config.functions.clone(),
        profiles: config.profiles.clone(),
    })
    .context("cannot set up TLS")
}

/// The one line on standard output, for people and for scripts that wait for it; the log says more.
async fn say_where(config: &Config, listener: &TcpListener) -> Result<()> {
    let address = listener.local_addr()?;
    super::show(
        format!("toolway listens on http://{address}\n"),
        String::new(),
    )
    .await?;
    for line in announce::lines(config, address) {
        tracing::info!("{line}");
    }
    Ok(())
}

/// Passes the first Ctrl-C or SIGTERM on to `stop`, and ends with the second.
pub(super) async fn told_twice(stop: CancellationToken) {
    signalled().await;
    let mut again = pin!(signalled());
    // It listens from here on, before anybody is told that a second one is heard.
    if poll!(again.as_mut()).is_pending() {
        tracing::info!("Stopping; once more to stop at once");
        stop.cancel();
        again.await;
    }
}

/// Ends with the next Ctrl-C or SIGTERM.
pub(super) async fn signalled() {
    let interrupted = async {
        // Without a handler the process ends by the signal itself, which is as good.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let terminated = async {
            match signal(SignalKind::terminate()) {
                Ok(mut signals) => {
                    signals.recv().await;
                }
                Err(_) => std::future::pending::<()>().await,
            }
        };
        tokio::select! {
            () = interrupted => {}
            () = terminated => {}
        }
    }
    #[cfg(not(unix))]
    interrupted.await;
}
