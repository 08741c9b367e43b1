//! A live connection: made by a handshake, ended as a whole.
//!
//! Which handshake is tried on what is decided in `connect`.

use std::{sync::Arc, time::Duration};

use rmcp::{
    RoleClient,
    model::ProtocolVersion,
    service::{
        ClientInitializeError, ClientLifecycleMode, RunningService,
        serve_client_with_lifecycle_and_ct,
    },
    transport::Transport as RmcpTransport,
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    follow::Watching,
    legacy_sse::SseLink,
    pipe::PipeFault,
    progress::ProgressTable,
    session::{Ears, Session},
    stdio::ChildLink,
};

/// Longest orderly end of a connection; what still runs then is dropped.
const CLOSING: Duration = Duration::from_secs(3);

/// What was learned about a server when it was last started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Era {
    /// Nothing yet.
    Unknown,
    /// It wants the `initialize` handshake (2024-11-05 to 2025-11-25).
    Handshake,
    /// It answers `server/discover` (2026-07-28), though perhaps not quickly.
    Discover,
    /// It speaks HTTP+SSE (2024-11-05).
    EventStream,
}

/// A live connection and all that belongs to it. Dropping it ends everything at once.
pub(super) struct Connection {
    pub(super) session: Session,
    /// Counts the times the server said that its tools changed.
    pub(super) changes: watch::Sender<u64>,
    /// The count at the handshake, so that no later change is missed.
    pub(super) changes_seen: watch::Receiver<u64>,
    /// How it is reached, in a word.
    pub(super) transport: &'static str,
    running: JoinHandle<()>,
    stop: DropGuard,
    link: Link,
}

/// What lies under a connection.
pub(super) enum Link {
    Child(ChildLink),
    EventStream(SseLink),
    /// rmcp owns it.
    Streamable,
}

/// A connection on which both sides agreed on a version.
pub(super) struct Shaken {
    running: RunningService<RoleClient, Ears>,
    ears: Ears,
    progress: ProgressTable,
    changes_seen: watch::Receiver<u64>,
    stop: CancellationToken,
}

/// Why both sides did not agree.
pub(super) struct HandshakeFault {
    /// What happened, for the person who configured the server.
    pub(super) message: String,
    /// The connection ended before the server had answered.
    pub(super) was_cut_off: bool,
}

/// Agrees with a server on a version, before the deadline. `progress` is where the transport delivers it.
pub(super) async fn handshake<T>(
    transport: T,
    progress: ProgressTable,
    era: Era,
    deadline: Instant,
) -> Result<Shaken, HandshakeFault>
where
    T: RmcpTransport<RoleClient> + 'static,
{
    let (changes, changes_seen) = watch::channel(0);
    let ears = Ears { changes };
    let stop = CancellationToken::new();
    let lifecycle = match era {
        Era::Handshake | Era::EventStream => ClientLifecycleMode::Initialize,
        // No limit but the deadline, where rmcp would turn to the older handshake after 10 s.
        Era::Discover => ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::LATEST],
        },
        Era::Unknown => ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::LATEST],
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        },
    };
    let serving =
        serve_client_with_lifecycle_and_ct(ears.clone(), transport, lifecycle, stop.clone());
    match timeout_at(deadline, serving).await {
        Ok(Ok(running)) => Ok(Shaken {
            running,
            ears,
            progress,
            changes_seen,
            stop,
        }),
        Ok(Err(error)) => Err(explain(&error)),
        Err(_) => Err(HandshakeFault {
            message: "the server did not get ready in time".to_owned(),
            was_cut_off: false,
        }),
    }
}

/// A handshake that failed, for the person who configured the server.
fn explain(error: &ClientInitializeError) -> HandshakeFault {
    let (message, was_cut_off) = match error {
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => return explain(fallback),
        ClientInitializeError::TransportError { error, .. }
            if matches!(error.error.downcast_ref(), Some(PipeFault::Web(_))) =>
        {
            (error.error.to_string(), false)
        }
        ClientInitializeError::ConnectionClosed(_)
        | ClientInitializeError::TransportError { .. } => (
            "the server closed the connection instead of answering".to_owned(),
            true,
        ),
        ClientInitializeError::JsonRpcError(error) => {
            let code = error.code.0;
            (
                format!(
                    "the server refused the connection: {} ({code})",
                    error.message
                ),
                false,
            )
        }
        error => (error.to_string(), false),
    };
    HandshakeFault {
        message,
        was_cut_off,
    }
}

impl Shaken {
    /// The connection, with what lies under it.
    pub(super) fn into_connection(self, transport: &'static str, link: Link) -> Connection {
        let session = Session {
            peer: self.running.peer().clone(),
            progress: self.progress,
            absence: Arc::default(),
        };
        let changes_seen = self.changes_seen;
        let running = tokio::spawn(async move {
            let _ = self.running.waiting().await;
        });
        Connection {
            session,
            changes_seen,
            changes: self.ears.changes,
            transport,
            running,
            stop: self.stop.drop_guard(),
            link,
        }
    }
}

impl Connection {
    /// The version both sides agreed on.
    pub(super) fn protocol_version(&self) -> Option<String> {
        self.session
            .peer
            .peer_info()
            .map(|info| info.protocol_version.as_str().to_owned())
    }

    /// The server tells of changes only to those who subscribed (2026-07-28), and says that it does.
    pub(super) fn announces_changes_by_subscription(&self) -> bool {
        self.session.peer.peer_info().is_some_and(|info| {
            let tools = info.capabilities.tools.as_ref();
            !info.protocol_version.has_initialize()
                && tools.and_then(|tools| tools.list_changed) == Some(true)
        })
    }

    /// Whether the list of tools may change without a word.
    pub(super) fn watching(&self) -> Watching {
        match self.link {
            Link::Child(_) | Link::EventStream(_) => Watching::Announced,
            Link::Streamable => Watching::Unseen,
        }
    }

    /// Waits until the connection has ended by itself. Cancel safe.
    pub(super) async fn ended(&mut self) {
        let _ = (&mut self.running).await;
    }

    /// Ends the connection and everything under it, and says how the server ended if it did so by itself.
    pub(super) async fn close(mut self) -> Option<String> {
        let ended_by_itself = self.running.is_finished();
        self.stop.disarm().cancel();
        if !ended_by_itself {
            let _ = timeout(CLOSING, &mut self.running).await;
            self.running.abort();
        }
        match self.link {
            Link::Child(link) => {
                let ending = if ended_by_itself {
                    link.ending().await
                } else {
                    None
                };
                link.close().await;
                ending
            }
            Link::EventStream(link) => {
                drop(link);
                None
            }
            Link::Streamable => None,
        }
    }

    /// What the handshake tells about the server.
    pub(super) fn era(&self) -> Era {
        let info: Option<Arc<_>> = self.session.peer.peer_info();
        match info {
            Some(info) if !info.protocol_version.has_initialize() => Era::Discover,
            _ => Era::Handshake,
        }
    }
}
