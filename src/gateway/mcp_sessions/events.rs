//! The events of a session for its reader.

use std::{collections::VecDeque, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    ledger::{ReaderPosition, What},
    session::{LendingSession, SessionEnd},
};
use toolway_protocol::tool::ToolCall;

/// The events of a session, for the reader that holds this. When it is dropped there is no reader.
///
/// Nothing is queued for a reader that is slow or gone: each event is made from the state at the time of reading.
pub struct SessionEvents {
    session: Arc<LendingSession>,
    /// Which reading this is.
    reading: u64,
    changes: watch::Receiver<u64>,
    knows: ReaderPosition,
    /// Told next; at most one event for each open and each closed call that is remembered.
    ready: VecDeque<SessionEvent>,
    is_over: bool,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionEvent {
    /// Its id in the stream, which a reader that reconnects sends as `Last-Event-ID`.
    pub id: u64,
    /// Its data.
    pub data: Value,
}

impl LendingSession {
    /// The events for the caller from now on. There is one reader at a time: this one replaces the one before.
    ///
    /// `last_event_id` is that of the last event which an earlier reader of the same caller got.
    pub fn events(self: &Arc<Self>, last_event_id: Option<u64>) -> SessionEvents {
        let reading = {
            let mut state = self.lock();
            state.reading += 1;
            state.has_reader = true;
            state.reading
        };
        self.notify();
        SessionEvents::new(self.clone(), reading, last_event_id.unwrap_or(0))
    }
}

impl SessionEvents {
    pub(super) fn new(
        session: Arc<LendingSession>,
        reading: u64,
        last_event_id: u64,
    ) -> SessionEvents {
        SessionEvents {
            changes: session.changes(),
            session,
            reading,
            knows: ReaderPosition::Begins(last_event_id),
            ready: VecDeque::new(),
            is_over: false,
        }
    }

    /// Waits for the next event; `None` after the last one. Cancel safe.
    pub async fn next(&mut self) -> Option<SessionEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            // What changes from here on is seen by `changed`.
            self.changes.borrow_and_update();
            self.look();
            if self.ready.is_empty() && self.changes.changed().await.is_err() {
                return None;
            }
        }
    }

    /// Takes up what has happened.
    fn look(&mut self) {
        let mut state = self.session.lock();
        let (ReaderPosition::Begins(mut number) | ReaderPosition::Goes(mut number)) = self.knows;
        if state.reading != self.reading {
            self.is_over = true;
            let data = json!({"type": "reader.replaced"});
            return self.ready.push_back(SessionEvent { id: number, data });
        }
        for told in state.ledger.since(self.knows) {
            number = told.number;
            let data = match told.what {
                What::Opened(calls) => opened(&calls),
                What::TakenBack(id) => json!({"type": "tool_call.cancelled", "tool_call_id": id}),
            };
            self.ready.push_back(SessionEvent { id: number, data });
        }
        if let Some(ended) = state.ended {
            self.is_over = true;
            let kind = match ended {
                SessionEnd::Expired => "session.expired",
                SessionEnd::Deleted => "session.deleted",
                SessionEnd::Stopped => "session.stopped",
            };
            let data = json!({"type": kind});
            self.ready.push_back(SessionEvent { id: number, data });
        }
        self.knows = ReaderPosition::Goes(state.ledger.last());
    }
}

impl Drop for SessionEvents {
    fn drop(&mut self) {
        let mut state = self.session.lock();
        if state.reading == self.reading {
            state.has_reader = false;
        }
    }
}

fn opened(calls: &[Arc<ToolCall>]) -> Value {
    let entry = |call: &Arc<ToolCall>| {
        json!({
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        })
    };
    let calls: Vec<Value> = calls.iter().map(entry).collect();
    json!({"type": "tool_calls", "tool_calls": calls})
}
