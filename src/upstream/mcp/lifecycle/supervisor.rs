//! Keeps one server running: starts it, lists its tools, follows their changes, and restarts it when it dies.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    follow::{self, Subject},
    server_handle::ServerHandle,
    subscriptions,
};
use crate::{
    health::Restarts,
    upstream::mcp::{
        Transport,
        connection::{Era, ServerConnection, connect},
        faults::Outage,
    },
};
use toolway_protocol::tool::millis;

/// Why a running server is not used any more.
enum ServerEnd {
    Stopped,
    /// It is to be started again at once.
    Restarted,
    /// Nothing uses it.
    Unused,
    Lost(Outage),
}

/// Runs until the server is to be stopped. Nothing of it is left running then.
pub(in crate::upstream::mcp) async fn run(handle: Arc<ServerHandle>) {
    let (server, stop) = (&handle.config.server, &handle.stop);
    if let Transport::Unavailable { reason, .. } = &handle.config.transport {
        warn!(server.id = %server, reason, "A server is not started");
        handle.set_failed(reason.clone());
        stop.cancelled().await;
        return handle.set_stopped();
    }
    let mut restarts = Restarts::default();
    let mut era = Era::Unknown;
    loop {
        let Some(started) = stop.run_until_cancelled(start(&handle, &mut era)).await else {
            break;
        };
        let (up, error, what) = match started {
            Ok(connection) => {
                let since = Instant::now();
                match serve(&handle, connection, stop).await {
                    ServerEnd::Stopped => break,
                    ServerEnd::Restarted => {
                        info!(server.id = %server, "A server is started again, as asked");
                        handle.count_restart();
                        continue;
                    }
                    ServerEnd::Unused => {
                        info!(server.id = %server, "A server is stopped until it is used again");
                        tokio::select! {
                            () = stop.cancelled() => break,
                            () = handle.wanted() => {}
                            () = handle.restart.notified() => {}
                        }
                        continue;
                    }
                    ServerEnd::Lost(error) => (since.elapsed(), error, "is gone"),
                }
            }
            Err(error) => (Duration::ZERO, error, "did not start"),
        };
        let pause = restarts.pause_after(up);
        let pause_ms = (!pause.is_zero()).then(|| millis(pause));
        let stderr = handle.stderr.lines().join("\n");
        let stderr = (!stderr.is_empty()).then_some(stderr);
        warn!(server.id = %server, error = error.what, pause_ms, stderr, "A server {what}; starting it again");
        handle.set_failed(error.to_string());
        tokio::select! {
            () = stop.cancelled() => break,
            () = sleep(pause) => {}
            () = handle.restart.notified() => {}
        }
        handle.count_restart();
    }
    handle.set_stopped();
}

/// Connects and reads the tools, within the server's start timeout.
async fn start(handle: &ServerHandle, era: &mut Era) -> Result<ServerConnection, Outage> {
    let begun = Instant::now();
    let deadline = begun + handle.config.start_timeout;
    let late = |what: &str| {
        let seconds = handle.config.start_timeout.as_secs_f64();
        format!("the server did not {what} in {seconds} s")
    };
    let connection = connect(handle, era, deadline).await;
    let connection = connection.map_err(|error| match Instant::now() >= deadline {
        true => late("answer").into(),
        false => error,
    })?;
    let listing = tokio::time::timeout_at(deadline, connection.session.list_tools()).await;
    let listing = match listing {
        Ok(Ok(listing)) => listing,
        Ok(Err(error)) => {
            let how = connection.close().await;
            return Err(how.map_or_else(|| error.into(), Outage::from));
        }
        Err(_) => {
            connection.close().await;
            return Err(late("list its tools").into());
        }
    };
    let server = &handle.config.server;
    for tool in &listing.broken {
        warn!(server.id = %server, tool.name = %tool.name, reason = %tool.reason, "A server offers a tool that cannot be used");
    }
    let usable = listing.tools.len();
    handle.set_tools(listing);
    let tools = handle.health().tools;
    let hidden = Some(usable.saturating_sub(tools)).filter(|it| *it > 0);
    let duration_ms = millis(begun.elapsed());
    info!(server.id = %server, tools, hidden, duration_ms, "A server is ready");
    Ok(connection)
}

/// Lets calls through and follows the list of tools, until the connection ends.
async fn serve(
    handle: &Arc<ServerHandle>,
    mut connection: ServerConnection,
    stop: &CancellationToken,
) -> ServerEnd {
    let mut followers = JoinSet::new();
    let session = connection.session.clone();
    let (pending, version) = (&session.pending, connection.protocol_version());
    handle.change_features(|features| features.introduce(version, &pending.hello()));
    let changes = pending.changes();
    // Closed when each of the others has read its list once.
    let (first, mut read) = mpsc::channel(1);
    for (subject, changed) in [
        (Subject::Tools, &connection.changes_seen),
        (Subject::Prompts, &changes.prompts.subscribe()),
        (Subject::Resources, &changes.resources.subscribe()),
    ] {
        if subject == Subject::Tools || session.declares(subject.name()) {
            followers.spawn(follow::follow_changes(
                Arc::clone(handle),
                session.clone(),
                subject,
                changed.clone(),
                connection.watching(),
                first.clone(),
            ));
        }
    }
    drop(first);
    let acquaintance = Arc::clone(handle);
    followers.spawn(async move {
        let _closed: Option<()> = read.recv().await;
        acquaintance.set_acquainted();
    });
    if let Some(filter) = follow::announcements(&session) {
        followers.spawn(follow::subscribe(session.clone(), filter));
    }
    if session.declares("logging") && !session.is_modern() {
        followers.spawn(follow::keep_log_level(Arc::clone(handle), session.clone()));
    }
    followers.spawn(subscriptions::keep(Arc::clone(handle), session.clone()));
    let absence = Arc::clone(&session.absence);
    handle.set_ready(
        session,
        connection.transport(),
        connection.protocol_version(),
        connection.pid(),
    );
    let end = tokio::select! {
        () = stop.cancelled() => ServerEnd::Stopped,
        () = handle.restart.notified() => ServerEnd::Restarted,
        () = handle.unused() => ServerEnd::Unused,
        () = connection.ended() => ServerEnd::Lost("the connection ended".to_owned().into()),
        () = absence.notified() => ServerEnd::Lost("the server cannot be reached".to_owned().into()),
    };
    handle.set_closing();
    followers.shutdown().await;
    let how = connection.close().await;
    match (end, how) {
        (ServerEnd::Lost(_), Some(how)) => ServerEnd::Lost(how.into()),
        (end, _) => end,
    }
}
