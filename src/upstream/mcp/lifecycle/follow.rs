//! Follows the changes of a server's lists while it is connected: its tools, prompts and resources.

use std::{sync::Arc, time::Duration};

use rmcp::model::SubscriptionFilter;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::server_handle::ServerHandle;
use crate::{
    health::Restarts,
    upstream::mcp::{
        connection::{ListFault, ServerSession},
        faults::Outage,
    },
};
use toolway_protocol::mcp::features::FeatureKind;

/// How long to wait for further changes before a list is read again.
const BURST: Duration = Duration::from_millis(100);

/// Shortest time between two readings, for servers that announce a change whenever they are asked.
const SPACING: Duration = Duration::from_millis(400);

/// Longest wait for a list that is read again.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(60);

/// How often to re-read a list that may have changed without a notification, or that could not be read.
const REREAD: Duration = Duration::from_secs(300);

/// Whether a server's list has to be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream::mcp) enum Watching {
    /// Changes are announced, on a connection whose loss is always noticed.
    Announced,
    /// The server may be replaced by another between two requests (Streamable HTTP).
    Unseen,
}

/// A list that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Tools,
    Prompts,
    /// With the templates.
    Resources,
}

impl Subject {
    /// The capability of servers that have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Subject::Tools => "tools",
            Subject::Prompts => "prompts",
            Subject::Resources => "resources",
        }
    }
}

/// Reads the list again after each burst of changes. If that fails, the old list stays. The tools were read before;
/// the other lists are read at once.
///
/// `changes` counts them; what it counted before the first reading ended is read again. `first` is dropped after it.
pub(super) async fn follow_changes(
    handle: Arc<ServerHandle>,
    session: ServerSession,
    subject: Subject,
    mut changes: watch::Receiver<u64>,
    watching: Watching,
    first: mpsc::Sender<()>,
) {
    let mut is_read = subject == Subject::Tools || refresh(&handle, &session, subject).await;
    drop(first);
    loop {
        let rereads = watching == Watching::Unseen || !is_read;
        let is_over = tokio::select! {
            changed = changes.changed() => changed.is_err(),
            () = sleep(REREAD), if rereads => false,
        };
        if is_over {
            return;
        }
        sleep(BURST).await;
        changes.mark_unchanged();
        is_read = refresh(&handle, &session, subject).await;
        sleep(SPACING).await;
    }
}

/// Reads a list again; false if that failed.
async fn refresh(handle: &ServerHandle, session: &ServerSession, subject: Subject) -> bool {
    let server = &handle.config.server;
    let reading = async {
        match subject {
            Subject::Tools => {
                let listing = session.list_tools().await?;
                Ok(handle.set_tools(listing))
            }
            Subject::Prompts => read_features(handle, session, &[FeatureKind::Prompts]).await,
            Subject::Resources => {
                read_features(
                    handle,
                    session,
                    &[FeatureKind::Resources, FeatureKind::Templates],
                )
                .await
            }
        }
    };
    let what = subject.name();
    let outcome: Result<Result<bool, ListFault>, _> = timeout(REFRESH_TIMEOUT, reading).await;
    match outcome {
        Ok(Ok(is_new)) => {
            if is_new {
                info!(server.id = %server, "A server has new {what}");
            }
            true
        }
        Ok(Err(error)) => {
            let error = Outage::from(error).what;
            warn!(server.id = %server, error, "A server did not list its {what}");
            false
        }
        Err(_) => {
            warn!(server.id = %server, "A server did not list its {what} in time");
            false
        }
    }
}

/// Lists these features; true if any of them changed.
async fn read_features(
    handle: &ServerHandle,
    session: &ServerSession,
    kinds: &[FeatureKind],
) -> Result<bool, ListFault> {
    let server = &handle.config.server;
    let mut is_new = false;
    for &kind in kinds {
        let listed = session.list_features(kind).await?;
        if listed.broken > 0 {
            let (method, broken) = (kind.method(), listed.broken);
            warn!(server.id = %server, method, broken, "A server lists entries that cannot be used");
        }
        is_new |= handle.change_features(|features| match kind {
            FeatureKind::Prompts => features.prompts = listed.entries,
            FeatureKind::Resources => features.resources = listed.entries,
            FeatureKind::Templates => features.templates = listed.entries,
        });
    }
    Ok(is_new)
}

/// The notifications to request from a 2026-07-28 server, by its capabilities.
pub(super) fn announcements(session: &ServerSession) -> Option<SubscriptionFilter> {
    let hello = session.pending.hello();
    let announces = |subject: Subject| {
        session.is_modern() && hello["capabilities"][subject.name()]["listChanged"] == true
    };
    let mut filter = SubscriptionFilter::builder();
    if announces(Subject::Tools) {
        filter = filter.tools_list_changed();
    }
    if announces(Subject::Prompts) {
        filter = filter.prompts_list_changed();
    }
    if announces(Subject::Resources) {
        filter = filter.resources_list_changed();
    }
    let filter = filter.build();
    (filter != SubscriptionFilter::new()).then_some(filter)
}

/// Subscribes to changes at a 2026-07-28 server, and again whenever the subscription ends.
pub(super) async fn subscribe(session: ServerSession, filter: SubscriptionFilter) {
    let mut restarts = Restarts::default();
    while let Ok(mut subscription) = session.peer.listen(filter.clone()).await {
        let since = Instant::now();
        // Changes before that were missed.
        session.pending.changes().everything();
        // `pending` counts the changes; what is waited for here is the end.
        while let Ok(Some(_)) = subscription.next().await {}
        sleep(restarts.pause_after(since.elapsed())).await;
    }
}

/// Sets a server's log level to the most verbose one that a client asks for, also after its session was renewed. Before
/// 2026-07-28 only; since then the level travels with each request.
pub(super) async fn keep_log_level(handle: Arc<ServerHandle>, session: ServerSession) {
    let mut wanted = handle.log_level.clone();
    let mut handshakes = session.pending.handshakes();
    handshakes.mark_unchanged();
    let mut is_set = false;
    loop {
        let level = wanted.borrow_and_update().clone();
        // A level cannot be unset; most servers start with `info`.
        let level = level.or_else(|| is_set.then(|| "info".to_owned()));
        if let Some(level) = level {
            is_set = true;
            let params = [("level".to_owned(), level.into())].into_iter().collect();
            let sending = timeout(REFRESH_TIMEOUT, session.send("logging/setLevel", params));
            if !matches!(sending.await, Ok(Ok(_))) {
                let server = &handle.config.server;
                warn!(server.id = %server, "A server did not take its log level");
            }
        }
        let is_over = tokio::select! {
            changed = wanted.changed() => changed.is_err(),
            changed = handshakes.changed() => changed.is_err(),
        };
        if is_over {
            return;
        }
    }
}
