//! `toolway serve`: bind, print the address, serve, drain.

#[cfg(unix)]
use std::{future::poll_fn, task::Poll};
use std::{io::ErrorKind, net::SocketAddr, pin::pin, sync::Arc};

use anyhow::{Context, Result};
use futures::poll;
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{announce, open_files};
use crate::{
    audit::Audit,
    config::{Config, Environment},
    gateway::{Gateway, Setup, servers::ServerReader},
    server,
    store::StoreEntries,
};

/// Serves until a stop signal, and leaves nothing running.
pub(super) async fn run(mut config: Config, stop: CancellationToken) -> Result<()> {
    open_files::fit(&mut config);
    let listener = bind(config.server.bind)?;
    let entries = StoreEntries::open(&config.data)?;
    let audit = Audit::open(&config.audit, &config.data)?;
    let gateway = gateway(&config, entries, audit)?;
    gateway.restore_servers().await;
    say_where(&config, &listener).await?;
    let stopped = stop.cancelled_owned();
    server::serve(listener, gateway.clone(), config.server, stopped).await;
    tracing::info!("Stopping the servers");
    gateway.shutdown().await;
    Ok(())
}

/// Binds an address; the error for a used one has advice.
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

/// Starts a gateway as configured, with this store and this audit.
pub(super) fn gateway(
    config: &Config,
    entries: StoreEntries,
    audit: Audit,
) -> Result<Arc<Gateway>> {
    Gateway::start(Setup {
        config: config.gateway.clone(),
        upstreams: config.upstreams.clone(),
        models: config.models.clone(),
        servers: config.servers.clone(),
        functions: config.functions.clone(),
        profiles: config.profiles.clone(),
        policy: config.policy.clone(),
        server_reader: ServerReader::new(|name, definition| {
            Config::server(name, definition, &Environment::real())
        }),
        entries: Arc::new(entries),
        audit,
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

/// Passes the first signal to stop on to `stop`, and ends with the second. SIGHUP is never the second: a terminal that
/// is closed may send it twice.
pub(super) async fn told_twice(stop: CancellationToken) {
    signalled().await;
    let mut again = pin!(any_of(&[]));
    // The handler is installed before the message that announces it.
    if poll!(again.as_mut()).is_pending() {
        tracing::info!("Stopping; a second signal ends toolway at once");
        stop.cancel();
        again.await;
    }
}

/// Waits for the next Ctrl-C, SIGTERM, SIGQUIT or SIGHUP.
pub(super) async fn signalled() {
    #[cfg(unix)]
    let hangup: &[SignalKind] = match ignores_hangup() {
        true => &[],
        false => &[SignalKind::hangup()],
    };
    #[cfg(not(unix))]
    let hangup: &[()] = &[];
    any_of(hangup).await;
}

/// Waits for the next Ctrl-C, SIGTERM or SIGQUIT, or for one of these signals.
#[cfg(unix)]
async fn any_of(others: &[SignalKind]) {
    let usual = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::quit(),
    ];
    // Without a handler the signal itself ends the process.
    let kinds = usual.iter().chain(others);
    let mut signals: Vec<_> = kinds.filter_map(|kind| signal(*kind).ok()).collect();
    poll_fn(|cx| {
        let has_come = signals.iter_mut().any(|it| it.poll_recv(cx).is_ready());
        match has_come {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

#[cfg(not(unix))]
async fn any_of(_: &[()]) {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// SIGHUP was ignored when the process was started, as `nohup` does it, and then stays so. If that is unknown, the
/// signal's disposition is left unchanged.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The mask has signal 1 first.
    ignored.is_none_or(|mask| mask & 1 == 1)
}
