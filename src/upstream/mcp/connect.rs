//! Makes a connection to a server, whatever the protocol version it speaks.
//!
//! The newest version is tried first, with `server/discover`. A server that answers it with an error, or is silent,
//! gets the handshake of the older versions on the same connection. One that breaks on it is started afresh and gets
//! the handshake at once.

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
use tokio_util::sync::CancellationToken;

use super::{
    Transport,
    entry::Entry,
    progress::ProgressTable,
    session::{Ears, Session},
    stdio::{self, ChildLink, Program},
};

/// How long a server of unknown age may be silent on `server/discover`.
const PROBE: Duration = Duration::from_millis(1500);

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
}

/// A live connection and all that belongs to it. Dropping it ends everything at once.
pub(super) struct Connection {
    pub(super) session: Session,
    /// Counts the times the server said that its tools changed.
    pub(super) changes: watch::Sender<u64>,
    /// How it is reached, in a word.
    pub(super) transport: &'static str,
    running: JoinHandle<()>,
    stop: CancellationToken,
    link: Link,
}

/// What lies under a connection.
enum Link {
    Child(ChildLink),
}

/// Connects before the deadline. `era` is what is known about the server, and learns from the attempt.
pub(super) async fn connect(
    entry: &Entry,
    era: &mut Era,
    deadline: Instant,
) -> Result<Connection, String> {
    let first = match attempt(entry, *era, deadline).await {
        Err(Fault {
            next: Some(next), ..
        }) => {
            *era = next;
            attempt(entry, next, deadline).await
        }
        first => first,
    };
    match first {
        Ok(connection) => {
            *era = connection.era();
            Ok(connection)
        }
        Err(fault) => {
            *era = Era::Unknown;
            Err(fault.message)
        }
    }
}

/// Why an attempt failed, and what may be tried at once instead.
struct Fault {
    message: String,
    next: Option<Era>,
}

async fn attempt(entry: &Entry, era: Era, deadline: Instant) -> Result<Connection, Fault> {
    match &entry.config.transport {
        Transport::Stdio {
            command,
            args,
            env,
            cwd,
        } => {
            let program = Program {
                command: command.clone(),
                args: args.clone(),
                env: env.clone(),
                cwd: cwd.clone(),
            };
            attempt_child(entry, &program, era, deadline).await
        }
        Transport::Http { .. } => Err(Fault {
            message: "not built yet".to_owned(),
            next: None,
        }),
    }
}

async fn attempt_child(
    entry: &Entry,
    program: &Program,
    era: Era,
    deadline: Instant,
) -> Result<Connection, Fault> {
    let patience = if era == Era::Discover {
        entry.config.start_timeout
    } else {
        PROBE
    };
    let limit = entry.config.max_message_bytes;
    let (pipe, link) = stdio::start(
        &entry.config.server,
        program,
        limit,
        patience,
        &entry.stderr,
    )
    .map_err(|error| Fault {
        message: format!("`{}` cannot be started: {error}", program.command),
        next: None,
    })?;
    match handshake(pipe, era, deadline).await {
        Ok(shaken) => Ok(shaken.into_connection("stdio", Link::Child(link))),
        Err(failed) => {
            let next = match era {
                _ if link.was_discovered_late() => Some(Era::Discover),
                Era::Unknown => Some(Era::Handshake),
                Era::Handshake | Era::Discover => None,
            };
            let ending = if failed.was_cut_off {
                link.ending().await
            } else {
                None
            };
            link.close().await;
            Err(Fault {
                message: ending.unwrap_or(failed.message),
                next,
            })
        }
    }
}

/// A connection on which both sides agreed on a version.
struct Shaken {
    running: RunningService<RoleClient, Ears>,
    ears: Ears,
    stop: CancellationToken,
}

/// Why both sides did not agree.
struct HandshakeFault {
    message: String,
    /// The connection ended before the server had answered.
    was_cut_off: bool,
}

async fn handshake<T>(transport: T, era: Era, deadline: Instant) -> Result<Shaken, HandshakeFault>
where
    T: RmcpTransport<RoleClient> + 'static,
{
    let ears = Ears {
        changes: watch::Sender::new(0),
        progress: ProgressTable::default(),
    };
    let stop = CancellationToken::new();
    let lifecycle = match era {
        Era::Handshake => ClientLifecycleMode::Initialize,
        Era::Unknown | Era::Discover => ClientLifecycleMode::Auto {
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
    fn into_connection(self, transport: &'static str, link: Link) -> Connection {
        let session = Session {
            peer: self.running.peer().clone(),
            progress: self.ears.progress.clone(),
        };
        let running = tokio::spawn(async move {
            let _ = self.running.waiting().await;
        });
        Connection {
            session,
            changes: self.ears.changes,
            transport,
            running,
            stop: self.stop,
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

    /// Waits until the connection has ended by itself. Cancel safe.
    pub(super) async fn ended(&mut self) {
        let _ = (&mut self.running).await;
    }

    /// Ends the connection and everything under it, and says how the server ended if it did so by itself.
    pub(super) async fn close(mut self) -> Option<String> {
        let ended_by_itself = self.running.is_finished();
        self.stop.cancel();
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
        }
    }

    fn era(&self) -> Era {
        let info: Option<Arc<_>> = self.session.peer.peer_info();
        match info {
            Some(info) if !info.protocol_version.has_initialize() => Era::Discover,
            _ => Era::Handshake,
        }
    }
}
