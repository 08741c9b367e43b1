//! Follows the changes of a server's list of tools while it is connected.

use std::{sync::Arc, time::Duration};

use rmcp::model::SubscriptionFilter;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{entry::Entry, session::Session};
use crate::health::Restarts;

/// How long further changes are waited for before a list is read again.
const BURST: Duration = Duration::from_millis(100);

/// Shortest time between two readings, for servers that announce a change whenever they are asked.
const SPACING: Duration = Duration::from_millis(400);

/// Longest wait for a list that is read again.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a list is read again that may have changed without a word.
const REREAD: Duration = Duration::from_secs(300);

/// Whether a server's list has to be looked at without being asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watching {
    /// Changes are announced on a connection that cannot be lost unseen.
    Announced,
    /// The server may be replaced by another between two requests (Streamable HTTP).
    Unseen,
}

/// Reads the list again after each burst of changes. If that fails, the old list stays.
///
/// `changes` counts them; what it counted before the first reading ended is read again.
pub(super) async fn follow_changes(
    entry: Arc<Entry>,
    session: Session,
    mut changes: watch::Receiver<u64>,
    watching: Watching,
) {
    loop {
        let is_over = tokio::select! {
            changed = changes.changed() => changed.is_err(),
            () = sleep(REREAD), if watching == Watching::Unseen => false,
        };
        if is_over {
            return;
        }
        sleep(BURST).await;
        changes.mark_unchanged();
        refresh(&entry, &session).await;
        sleep(SPACING).await;
    }
}

async fn refresh(entry: &Entry, session: &Session) {
    let server = &entry.config.server;
    match timeout(REFRESH_TIMEOUT, session.list_tools()).await {
        Ok(Ok(listing)) => {
            let tools = listing.tools.len();
            if entry.set_tools(listing) {
                info!(server.id = %server, tools, "Server `{server}` changed its tools");
            }
        }
        Ok(Err(error)) => {
            warn!(server.id = %server, %error, "Server `{server}` did not list its tools again");
        }
        Err(_) => {
            warn!(server.id = %server, "Server `{server}` did not list its tools again in time");
        }
    }
}

/// Asks a 2026-07-28 server to tell of changes, again whenever it stops doing so.
pub(super) async fn subscribe(session: Session, changes: watch::Sender<u64>) {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let mut restarts = Restarts::default();
    while let Ok(mut subscription) = session.peer.listen(filter.clone()).await {
        let since = Instant::now();
        // What changed before was told to nobody.
        changes.send_modify(|count| *count += 1);
        while let Ok(Some(_)) = subscription.next().await {
            changes.send_modify(|count| *count += 1);
        }
        sleep(restarts.pause_after(since.elapsed())).await;
    }
}
