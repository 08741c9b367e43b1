//! Makes a connection to a server, whatever the protocol version it speaks.
//!
//! The newest version is tried first, with `server/discover`. A server that answers it with an error, or is silent,
//! gets the handshake of the older versions on the same connection. One that breaks on it is started afresh and gets
//! the handshake at once.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
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
use url::Url;

use super::{
    HttpKind, Transport,
    entry::Entry,
    follow::Watching,
    legacy_sse::{self, SseLink},
    pipe::PipeFault,
    progress::ProgressTable,
    session::{Ears, Session},
    stdio::{self, ChildLink, Program},
    streamable,
    web::{self, WebFault},
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
enum Link {
    Child(ChildLink),
    EventStream(SseLink),
    /// rmcp owns it.
    Streamable,
}

/// Connects before the deadline. `era` is what is known about the server, and learns from the attempt.
pub(super) async fn connect(
    entry: &Entry,
    era: &mut Era,
    deadline: Instant,
) -> Result<Connection, String> {
    let mut trying = *era;
    loop {
        match attempt(entry, trying, deadline).await {
            Ok(connection) => {
                *era = if trying == Era::EventStream {
                    trying
                } else {
                    connection.era()
                };
                return Ok(connection);
            }
            Err(Fault {
                next: Some(next), ..
            }) => trying = next,
            Err(Fault {
                message,
                next: None,
            }) => {
                *era = Era::Unknown;
                return Err(message);
            }
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
        Transport::Http { url, headers, kind } => {
            let client = web::client(headers).map_err(|message| Fault {
                message,
                next: None,
            })?;
            let wants_sse = *kind == Some(HttpKind::Sse) || era == Era::EventStream;
            if wants_sse {
                attempt_event_stream(entry, client, url, deadline).await
            } else {
                attempt_streamable(entry, client, url, *kind, era, deadline).await
            }
        }
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
                Era::Handshake | Era::Discover | Era::EventStream => None,
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
    changes_seen: watch::Receiver<u64>,
    stop: CancellationToken,
}

async fn attempt_streamable(
    entry: &Entry,
    client: reqwest::Client,
    url: &Url,
    kind: Option<HttpKind>,
    era: Era,
    deadline: Instant,
) -> Result<Connection, Fault> {
    let patience = if era == Era::Discover {
        entry.config.start_timeout
    } else {
        PROBE
    };
    let (limit, parallel) = (entry.config.max_message_bytes, entry.config.parallel_calls);
    let (transport, refusal) = streamable::transport(client, url, limit, parallel, patience);
    let failed = match handshake(transport, era, deadline).await {
        Ok(shaken) => return Ok(shaken.into_connection("http", Link::Streamable)),
        Err(failed) => failed,
    };
    let next = match (refusal.fault(), era) {
        (Some(WebFault::Unreachable(_)), _) => None,
        (Some(WebFault::Status(status)), _) if is_for_another_transport(status) => {
            kind.is_none().then_some(Era::EventStream)
        }
        (Some(WebFault::Status(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)), _) => None,
        (_, Era::Unknown) => Some(Era::Handshake),
        (_, Era::Handshake | Era::Discover | Era::EventStream) => None,
    };
    let message = refusal
        .fault()
        .map_or(failed.message, |fault| fault.to_string());
    Err(Fault { message, next })
}

/// What an HTTP+SSE server answers to a message posted where its stream is
/// (2025-11-25, "Transports", "Backwards Compatibility").
fn is_for_another_transport(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
    )
}

async fn attempt_event_stream(
    entry: &Entry,
    client: reqwest::Client,
    url: &Url,
    deadline: Instant,
) -> Result<Connection, Fault> {
    let fault = |message| Fault {
        message,
        next: None,
    };
    let opening = legacy_sse::open(client, url, entry.config.max_message_bytes);
    let (pipe, link) = match timeout_at(deadline, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return Err(fault(error.to_string())),
        Err(_) => return Err(fault("the server did not get ready in time".to_owned())),
    };
    match handshake(pipe, Era::EventStream, deadline).await {
        Ok(shaken) => Ok(shaken.into_connection("sse", Link::EventStream(link))),
        Err(failed) => Err(fault(failed.message)),
    }
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
    let (changes, changes_seen) = watch::channel(0);
    let ears = Ears {
        changes,
        progress: ProgressTable::default(),
    };
    let stop = CancellationToken::new();
    let lifecycle = match era {
        Era::Handshake | Era::EventStream => ClientLifecycleMode::Initialize,
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
    fn into_connection(self, transport: &'static str, link: Link) -> Connection {
        let session = Session {
            peer: self.running.peer().clone(),
            progress: self.ears.progress.clone(),
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

    fn era(&self) -> Era {
        let info: Option<Arc<_>> = self.session.peer.peer_info();
        match info {
            Some(info) if !info.protocol_version.has_initialize() => Era::Discover,
            _ => Era::Handshake,
        }
    }
}
