//! What is known about each MCP server, and when a dead one is started again.
//!
//! Time is passed in. Nothing here starts or asks a server; `upstream::mcp` does and keeps the record.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Serialize, Serializer};

use toolway_protocol::tool::ServerId;

/// The state of one MCP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It is being started for the first time.
    Starting,
    /// It can be called.
    Ready,
    /// It was ready once and is being started again; its last known tools stay offered.
    Restarting,
    /// It was ready, nothing has used it for a while, and the next call starts it (`start = "on_demand"`).
    Idle,
    /// It never got ready; it is tried again in growing intervals.
    Failed,
    /// toolway is shutting down.
    Stopped,
}

impl ServerState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            ServerState::Starting => "starting",
            ServerState::Ready => "ready",
            ServerState::Restarting => "restarting",
            ServerState::Idle => "idle",
            ServerState::Failed => "failed",
            ServerState::Stopped => "stopped",
        }
    }
}

impl ServerState {
    /// Calls can be made: at once, or after the start that they cause.
    pub fn is_up(self) -> bool {
        matches!(self, ServerState::Ready | ServerState::Idle)
    }

    /// The best state has the lowest number.
    pub fn rank(self) -> u8 {
        match self {
            ServerState::Ready => 0,
            ServerState::Idle => 1,
            ServerState::Restarting => 2,
            ServerState::Starting => 3,
            ServerState::Failed => 4,
            ServerState::Stopped => 5,
        }
    }
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A change of a server's state: which server, its state, and why, where it failed.
type OnState = dyn Fn(&ServerId, ServerState, Option<&str>) + Send + Sync;

/// Hears of every change of a server's state.
#[derive(Clone, Default)]
pub struct StateObserver(Option<Arc<OnState>>);

impl StateObserver {
    /// Calls this, which must not wait.
    pub fn new(
        on_state: impl Fn(&ServerId, ServerState, Option<&str>) + Send + Sync + 'static,
    ) -> StateObserver {
        StateObserver(Some(Arc::new(on_state)))
    }

    /// Tells of a change.
    pub fn tell(&self, server: &ServerId, state: ServerState, error: Option<&str>) {
        if let Some(on_state) = &self.0 {
            on_state(server, state, error);
        }
    }
}

impl fmt::Debug for StateObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateObserver")
    }
}

/// What is known about one MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerHealth {
    /// Which server.
    #[serde(rename = "name", serialize_with = "as_text")]
    pub server: ServerId,
    /// toolway counts as ready only when it is.
    pub required: bool,
    /// Its state.
    pub state: ServerState,
    /// `stdio`, `http` (Streamable HTTP) or `sse` (HTTP+SSE of 2024-11-05).
    pub transport: &'static str,
    /// The protocol version it speaks with us; absent until it was ready once.
    pub protocol_version: Option<String>,
    /// The id of its process, where it is a child that runs.
    pub pid: Option<u32>,
    /// How many tools it offers.
    pub tools: usize,
    /// How often it was started again.
    pub restarts: u32,
    /// Why it last failed, for the person who configured it.
    pub last_error: Option<String>,
    /// The last lines of its standard error, the oldest first; at most 20 lines of at most 500 bytes.
    pub stderr_tail: Vec<String>,
    /// Patterns in its `tools` and `cache` that match none of its tools.
    pub unmatched_patterns: Vec<String>,
    /// Its risk, 1 to 3, where one is configured (`risk`).
    #[serde(rename = "risk_level", skip_serializing_if = "Option::is_none")]
    pub risk: Option<u8>,
}

fn as_text<S: Serializer>(server: &ServerId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(server.as_str())
}

/// When a server that stayed up this long dies, it counts as its first failure again.
pub const STEADY: Duration = Duration::from_secs(60);

/// The longest pause between two starts.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The pauses between the restarts of one server: none, then 1 s, 2 s, 4 s … [`LONGEST_PAUSE`].
#[derive(Clone, Debug, Default)]
pub struct Restarts {
    failures: u32,
}

impl Restarts {
    /// How long to wait before the next start, after a run that was ready for `up`; zero if it never was.
    pub fn pause_after(&mut self, up: Duration) -> Duration {
        if up >= STEADY {
            self.failures = 0;
        }
        let pause = match self.failures {
            0 => Duration::ZERO,
            n => Duration::from_secs(1 << (n - 1).min(6)).min(LONGEST_PAUSE),
        };
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_nothing_to_a_minute() {
        let mut restarts = Restarts::default();
        let pauses: Vec<_> = (0..9)
            .map(|_| restarts.pause_after(Duration::ZERO).as_secs())
            .collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn a_server_that_stayed_up_is_restarted_at_once() {
        let mut restarts = Restarts::default();
        for _ in 0..5 {
            restarts.pause_after(Duration::from_secs(59));
        }
        assert_eq!(restarts.pause_after(STEADY), Duration::ZERO);
        assert_eq!(restarts.pause_after(Duration::ZERO), Duration::from_secs(1));
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let mut restarts = Restarts { failures: u32::MAX };
        assert_eq!(restarts.pause_after(Duration::ZERO), LONGEST_PAUSE);
        assert_eq!(restarts.pause_after(Duration::ZERO), LONGEST_PAUSE);
    }

    #[test]
    fn health_is_written_with_plain_names() {
        let health = ServerHealth {
            server: ServerId::parse("files").unwrap(),
            required: false,
            state: ServerState::Restarting,
            transport: "stdio",
            protocol_version: Some("2025-11-25".to_owned()),
            pid: None,
            tools: 3,
            restarts: 1,
            last_error: None,
            stderr_tail: vec!["boom".to_owned()],
            unmatched_patterns: Vec::new(),
            risk: None,
        };
        assert_eq!(
            serde_json::to_value(health).unwrap(),
            serde_json::json!({
                "name": "files", "required": false, "state": "restarting", "transport": "stdio",
                "protocol_version": "2025-11-25", "pid": null, "tools": 3, "restarts": 1, "last_error": null,
                "stderr_tail": ["boom"], "unmatched_patterns": [],
            })
        );
    }
}
