//! The client behind a request, as far as a server may ask it while the request runs.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

use toolway_protocol::{mcp::rpc::RpcError, tool::Progress};

/// The client behind a request, as far as a server may ask it while the request runs.
pub trait Caller: Send + Sync + 'static {
    /// The client's MCP `ClientCapabilities` (`{}`: none).
    fn capabilities(&self) -> &Value;

    /// Which client this is, where one client is behind several callers at once: a number that no other client has
    /// while this one lives. Absent: each caller is a client of its own.
    fn client(&self) -> Option<usize> {
        None
    }

    /// Sends the client `sampling/createMessage`, `elicitation/create` or `roots/list`, with unchanged params.
    ///
    /// Dropping the future cancels the question.
    fn ask<'a>(&'a self, method: &'a str, params: Value) -> BoxFuture<'a, Result<Value, RpcError>>;

    /// Sends the client a notification that belongs to the request, such as `notifications/message`. Never waits;
    /// notifications that do not fit are dropped.
    fn tell(&self, method: &str, params: Value);
}

/// How long a request may take, where its progress goes, and for which client it is made.
#[derive(Clone)]
pub struct CallOptions {
    /// Longest silence. Progress resets it, and it is paused while the server waits for the caller's answer.
    pub silence: Duration,
    /// The deadline of the request.
    pub deadline: Instant,
    /// The receiver of progress. Reports that do not fit are dropped; the request never waits.
    pub progress: Option<mpsc::Sender<Progress>>,
    /// The client that the server may ask while the request runs, if there is one.
    pub caller: Option<Arc<dyn Caller>>,
    /// Number of sends of the request so far; its repetitions share the counter.
    pub sends: Sends,
}

/// How often a request was sent over Streamable HTTP, by any layer. Clones share the counter.
#[derive(Clone, Debug, Default)]
pub struct Sends(Arc<AtomicU32>);

impl Sends {
    /// Number of sends so far.
    pub fn so_far(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one send.
    pub(super) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl CallOptions {
    /// A request without progress and without a client that can be asked.
    pub fn new(silence: Duration, deadline: Instant) -> CallOptions {
        CallOptions {
            silence,
            deadline,
            progress: None,
            caller: None,
            sends: Sends::default(),
        }
    }
}

impl fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOptions")
            .field("silence", &self.silence)
            .field("deadline", &self.deadline)
            .field("progress", &self.progress.is_some())
            .field("caller", &self.caller.is_some())
            .finish()
    }
}
