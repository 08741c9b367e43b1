//! One server's record: what its supervisor writes and everybody else reads.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{CallOptions, Config, Transport, faults, session::Session, stderr::StderrTail};
use crate::{
    catalog::{DroppedTool, ServerTools},
    health::{ServerHealth, State},
    mcp::tools::Listing,
    tool::{CallError, JsonObject, ToolResult},
    upstream::queue::Queue,
};

/// How long a call waits for a server that is being started.
const WAIT_FOR_READY: Duration = Duration::from_secs(5);

/// Everything that is known about one server.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) config: Config,
    pub(super) stderr: Arc<StderrTail>,
    place: usize,
    tools: watch::Sender<Arc<Vec<ServerTools>>>,
    access: watch::Sender<Access>,
    settled: watch::Sender<bool>,
    queue: Queue,
    facts: Mutex<Facts>,
}

/// Whether calls can be made.
#[derive(Debug)]
enum Access {
    /// The server is being started.
    Later,
    /// Through this session.
    Now(Session),
    /// The server was stopped for good.
    Never,
}

/// The part of the health that changes.
#[derive(Debug)]
struct Facts {
    state: State,
    transport: &'static str,
    protocol_version: Option<String>,
    restarts: u32,
    last_error: Option<String>,
}

impl Entry {
    /// A server that was not started yet; its tools are the ones at `place`.
    pub(super) fn new(
        config: Config,
        place: usize,
        tools: watch::Sender<Arc<Vec<ServerTools>>>,
    ) -> Entry {
        let (transport, secrets) = match &config.transport {
            Transport::Stdio { env, .. } => (
                "stdio",
                env.iter().map(|(_, value)| value.clone()).collect(),
            ),
            Transport::Http {
                kind: Some(super::HttpKind::Sse),
                ..
            } => ("sse", Vec::new()),
            Transport::Http { .. } => ("http", Vec::new()),
        };
        let parallel = if config.stateful {
            1
        } else {
            config.parallel_calls
        };
        Entry {
            stderr: Arc::new(StderrTail::new(secrets)),
            place,
            tools,
            access: watch::Sender::new(Access::Later),
            settled: watch::Sender::new(false),
            queue: Queue::new(parallel),
            facts: Mutex::new(Facts {
                state: State::Starting,
                transport,
                protocol_version: None,
                restarts: 0,
                last_error: None,
            }),
            config,
        }
    }

    /// Calls a tool, after waiting for a place and for the server.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: JsonObject,
        options: &CallOptions,
    ) -> Result<ToolResult, CallError> {
        let _place = timeout_at(options.deadline, self.queue.enter())
            .await
            .map_err(|_| CallError::Busy)??;
        let session = self.ready_session(options.deadline).await?;
        session.call(tool, arguments, options).await
    }

    async fn ready_session(&self, deadline: Instant) -> Result<Session, CallError> {
        let deadline = deadline.min(Instant::now() + WAIT_FOR_READY);
        let mut access = self.access.subscribe();
        let known = access.wait_for(|access| !matches!(access, Access::Later));
        match timeout_at(deadline, known).await {
            Ok(Ok(access)) => match &*access {
                Access::Now(session) => Ok(session.clone()),
                Access::Later | Access::Never => Err(faults::gone(true)),
            },
            Ok(Err(_)) | Err(_) => Err(faults::gone(true)),
        }
    }

    /// The server got ready: its tools are offered and calls go to this session.
    pub(super) fn set_ready(
        &self,
        session: Session,
        transport: &'static str,
        version: Option<String>,
    ) {
        {
            let mut facts = self.facts();
            facts.state = State::Ready;
            facts.transport = transport;
            facts.protocol_version = version;
        }
        self.access.send_replace(Access::Now(session));
        self.settled.send_replace(true);
    }

    /// The connection is about to be closed; calls wait from now on.
    pub(super) fn set_closing(&self) {
        self.access.send_replace(Access::Later);
        let mut facts = self.facts();
        if facts.state == State::Ready {
            facts.state = State::Restarting;
        }
    }

    /// The server is gone, or did not get ready; calls wait from now on.
    pub(super) fn set_failed(&self, error: String) {
        self.access.send_replace(Access::Later);
        {
            let mut facts = self.facts();
            let was_ready = matches!(facts.state, State::Ready | State::Restarting);
            facts.state = if was_ready {
                State::Restarting
            } else {
                State::Failed
            };
            facts.last_error = Some(error);
        }
        self.settled.send_replace(true);
    }

    /// The server is about to be started again.
    pub(super) fn count_restart(&self) {
        self.facts().restarts += 1;
    }

    /// The server is not started again.
    pub(super) fn set_stopped(&self) {
        self.access.send_replace(Access::Never);
        self.facts().state = State::Stopped;
        self.settled.send_replace(true);
    }

    /// Offers these tools from now on. Nobody is woken, and false returned, if nothing changed.
    pub(super) fn set_tools(&self, listing: Listing) -> bool {
        let dropped = listing
            .broken
            .into_iter()
            .map(|tool| DroppedTool {
                name: tool.name,
                reason: tool.reason,
            })
            .collect();
        let offered = ServerTools {
            tools: listing.tools,
            dropped,
            ..self.no_tools()
        };
        self.tools
            .send_if_modified(|all| match Arc::make_mut(all).get_mut(self.place) {
                Some(mine) if *mine != offered => {
                    *mine = offered;
                    true
                }
                _ => false,
            })
    }

    /// What the server offers before it was listed.
    pub(super) fn no_tools(&self) -> ServerTools {
        ServerTools {
            server: self.config.server.clone(),
            stateful: self.config.stateful,
            tools: Vec::new(),
            dropped: Vec::new(),
        }
    }

    /// The server is ready, has failed at least once, or was stopped.
    pub(super) async fn settled(&self) {
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    /// What is known about the server now.
    pub(super) fn health(&self) -> ServerHealth {
        let tools = self
            .tools
            .borrow()
            .get(self.place)
            .map_or(0, |mine| mine.tools.len());
        let facts = self.facts();
        ServerHealth {
            server: self.config.server.clone(),
            state: facts.state,
            transport: facts.transport,
            protocol_version: facts.protocol_version.clone(),
            tools,
            restarts: facts.restarts,
            last_error: facts.last_error.clone(),
            stderr_tail: self.stderr.lines(),
        }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
