//! A live connection: made by a handshake, ended as a whole.
//!
//! `connect` decides which handshake is tried on which transport.

mod connect;
mod session;

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

pub(super) use self::{
    connect::connect,
    session::{ListFault, ServerSession, read_answer},
};
use super::{
    faults::Outage,
    legacy_sse::SseLink,
    lifecycle::Watching,
    raw_messages::{ClientHandler, Pending, PipeFault},
    stdio::ChildLink,
    streamable::Poster,
};
use toolway_protocol::tool::ServerId;

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
pub(super) struct ServerConnection {
    pub(super) session: ServerSession,
    /// The changes of its tools that were counted before the handshake, so that no later one is missed.
    pub(super) changes_seen: watch::Receiver<u64>,
    running: JoinHandle<()>,
    stop: DropGuard,
    link: Link,
}

/// The transport of a connection.
pub(super) enum Link {
    Child(ChildLink),
    EventStream(SseLink),
    /// rmcp owns it, and this posts for it.
    Streamable(Poster),
}

impl Link {
    /// The transport's name in the health report.
    fn transport(&self) -> &'static str {
        match self {
            Link::Child(_) => "stdio",
            Link::EventStream(_) => "sse",
            Link::Streamable(_) => "http",
        }
    }

    /// Whether the server can be replaced without the connection being lost.
    fn watching(&self) -> Watching {
        match self {
            Link::Child(_) | Link::EventStream(_) => Watching::Announced,
            Link::Streamable(_) => Watching::Unseen,
        }
    }

    /// Makes calls without rmcp, where the transport supports it.
    fn poster(&self) -> Option<Poster> {
        match self {
            Link::Child(_) | Link::EventStream(_) => None,
            Link::Streamable(poster) => Some(poster.clone()),
        }
    }

    /// Ends the transport. Returns how the server exited, if the connection had ended by itself.
    async fn close(self, ended_by_itself: bool) -> Option<String> {
        match self {
            Link::Child(child) => {
                let ending = if ended_by_itself {
                    child.ending().await
                } else {
                    None
                };
                child.close().await;
                ending
            }
            Link::EventStream(stream) => {
                drop(stream);
                None
            }
            Link::Streamable(_) => None,
        }
    }
}

/// A connection on which both sides agreed on a version.
pub(super) struct NegotiatedConnection {
    running: RunningService<RoleClient, ClientHandler>,
    pending: Pending,
    changes_seen: watch::Receiver<u64>,
    stop: CancellationToken,
}

/// Why the handshake failed.
pub(super) struct HandshakeFault {
    /// What happened, for the person who configured the server.
    pub(super) outage: Outage,
    /// The connection ended before the server had answered.
    pub(super) was_cut_off: bool,
}

/// Agrees with a server on a version, before the deadline. `pending` is the transport's.
pub(super) async fn handshake<T>(
    transport: T,
    server: &ServerId,
    pending: Pending,
    era: Era,
    deadline: Instant,
) -> Result<NegotiatedConnection, HandshakeFault>
where
    T: RmcpTransport<RoleClient> + 'static,
{
    let ears = ClientHandler {
        server: server.clone(),
        pending: pending.clone(),
    };
    let (changes_seen, stop) = (
        pending.changes().tools.subscribe(),
        CancellationToken::new(),
    );
    let lifecycle = match era {
        Era::Handshake | Era::EventStream => ClientLifecycleMode::Initialize,
        // Limited by the deadline only; rmcp alone would fall back to the older handshake after 10 s.
        Era::Discover => ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::LATEST],
        },
        Era::Unknown => ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::LATEST],
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        },
    };
    let serving = serve_client_with_lifecycle_and_ct(ears, transport, lifecycle, stop.clone());
    match timeout_at(deadline, serving).await {
        Ok(Ok(running)) => Ok(NegotiatedConnection {
            running,
            pending,
            changes_seen,
            stop,
        }),
        Ok(Err(error)) => Err(explain(&error)),
        Err(_) => Err(HandshakeFault {
            outage: "the server did not get ready in time".to_owned().into(),
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
            let outage = Outage {
                what: format!("the server refused the connection ({code})"),
                said: Some(error.message.to_string()),
            };
            return HandshakeFault {
                outage,
                was_cut_off: false,
            };
        }
        error => (error.to_string(), false),
    };
    HandshakeFault {
        outage: message.into(),
        was_cut_off,
    }
}

impl NegotiatedConnection {
    /// The connection, with what lies under it.
    pub(super) fn into_connection(self, link: Link) -> ServerConnection {
        let session = ServerSession {
            peer: self.running.peer().clone(),
            pending: self.pending,
            absence: Arc::default(),
            poster: link.poster(),
        };
        let changes_seen = self.changes_seen;
        let running = tokio::spawn(async move {
            let _ = self.running.waiting().await;
        });
        ServerConnection {
            session,
            changes_seen,
            running,
            stop: self.stop.drop_guard(),
            link,
        }
    }
}

impl ServerConnection {
    /// The version both sides agreed on.
    pub(super) fn protocol_version(&self) -> Option<String> {
        self.session
            .peer
            .peer_info()
            .map(|info| info.protocol_version.as_str().to_owned())
    }

    /// Whether the list of tools may change without a notification.
    pub(super) fn watching(&self) -> Watching {
        self.link.watching()
    }

    /// The transport's name in the health report.
    pub(super) fn transport(&self) -> &'static str {
        self.link.transport()
    }

    /// Waits until the connection has ended by itself. Cancel safe.
    pub(super) async fn ended(&mut self) {
        let _ = (&mut self.running).await;
    }

    /// Ends the connection and everything under it; returns how the server exited, if it did so without a signal of
    /// ours.
    pub(super) async fn close(mut self) -> Option<String> {
        let ended_by_itself = self.running.is_finished();
        self.stop.disarm().cancel();
        if !ended_by_itself {
            let _ = timeout(CLOSING, &mut self.running).await;
            self.running.abort();
        }
        self.link.close(ended_by_itself).await
    }

    /// The id of the server's process, if it is a child.
    pub(super) fn pid(&self) -> Option<u32> {
        match &self.link {
            Link::Child(child) => child.pid,
            Link::EventStream(_) | Link::Streamable(_) => None,
        }
    }

    /// What the handshake says about the server.
    pub(super) fn era(&self) -> Era {
        let info: Option<Arc<_>> = self.session.peer.peer_info();
        match info {
            Some(info) if !info.protocol_version.has_initialize() => Era::Discover,
            _ => Era::Handshake,
        }
    }
}
