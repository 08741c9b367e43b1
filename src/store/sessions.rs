//! The state of sessions: what tools and clients changed by `state_delta` (D-26 of issue 12). In memory: it ends with the
//! process.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::Principal;
use toolway_core::translate::state;

/// Longest life of a state after its last change.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Most sessions.
const MAX_SESSIONS: usize = if cfg!(test) { 10 } else { 10_000 };
/// Most bytes of one state, as JSON.
const MAX_STATE_BYTES: usize = 64 << 10;
/// Most bytes of all states.
const MAX_BYTES: usize = if cfg!(test) { 256 << 10 } else { 64 << 20 };
/// Longest name of a session, in bytes.
const MAX_NAME: usize = 128;

/// The name of a session: 1–128 visible ASCII characters. A client's sessions are its own, whatever their names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionName(Box<str>);

impl SessionName {
    /// The name, if it can be one.
    pub fn parse(name: &str) -> Option<SessionName> {
        let fits =
            (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| SessionName(name.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A state at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionState {
    /// How often it was changed.
    pub version: u64,
    /// A JSON object.
    pub state: Value,
}

/// A change that was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// The state would have more bytes than one may have.
    #[error("the state of a session has at most {MAX_STATE_BYTES} bytes")]
    TooLarge,
    /// The state would be no JSON object.
    #[error("the state of a session is a JSON object")]
    NoObject,
}

/// The states of all clients; those that were not changed for longest go first where there is no room.
#[derive(Debug, Default)]
pub struct SessionStates(Mutex<SessionTable>);

type SessionKey = (Principal, SessionName);

#[derive(Debug, Default)]
struct SessionTable {
    states: HashMap<SessionKey, SessionEntry>,
    /// The keys by the number of their last change.
    order: BTreeMap<u64, SessionKey>,
    changes: u64,
    bytes: usize,
}

#[derive(Debug)]
struct SessionEntry {
    state: Box<str>,
    version: u64,
    change: u64,
    changed: Instant,
}

impl SessionStates {
    /// Merges a patch (RFC 7396) into the state of a session, and gives its new version.
    ///
    /// # Errors
    /// See [`NotChanged`]; the state stays as it was.
    pub fn merge(
        &self,
        principal: Principal,
        session: &SessionName,
        patch: &Value,
    ) -> Result<u64, NotChanged> {
        let key = (principal, session.clone());
        let mut inner = self.lock();
        inner.make_room();
        let before = inner.states.get(&key);
        let version = before.map_or(0, |entry| entry.version) + 1;
        let mut merged = before.map_or_else(|| json!({}), SessionEntry::read);
        state::merge(&mut merged, patch);
        if !merged.is_object() {
            return Err(NotChanged::NoObject);
        }
        let text: Box<str> = merged.to_string().into();
        if text.len() > MAX_STATE_BYTES {
            return Err(NotChanged::TooLarge);
        }
        inner.remove(&key);
        inner.changes += 1;
        inner.bytes += text.len();
        let entry = SessionEntry {
            state: text,
            version,
            change: inner.changes,
            changed: Instant::now(),
        };
        inner.order.insert(entry.change, key.clone());
        inner.states.insert(key, entry);
        inner.make_room();
        Ok(version)
    }

    /// The state of a session of this client.
    pub fn find(&self, principal: Principal, session: &SessionName) -> Option<SessionState> {
        let mut inner = self.lock();
        inner.make_room();
        let entry = inner.states.get(&(principal, session.clone()))?;
        Some(SessionState {
            version: entry.version,
            state: entry.read(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        // A thread that panicked with it has written whole entries.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionEntry {
    fn read(&self) -> Value {
        serde_json::from_str(&self.state).unwrap_or_default()
    }
}

impl SessionTable {
    fn remove(&mut self, key: &SessionKey) {
        if let Some(entry) = self.states.remove(key) {
            self.order.remove(&entry.change);
            self.bytes -= entry.state.len();
        }
    }

    fn make_room(&mut self) {
        while let Some((_, key)) = self.order.first_key_value() {
            let is_full = self.bytes > MAX_BYTES || self.states.len() > MAX_SESSIONS;
            let is_old = self
                .states
                .get(key)
                .is_none_or(|entry| entry.changed.elapsed() >= MAX_AGE);
            if !is_full && !is_old {
                break;
            }
            let key = key.clone();
            self.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> SessionName {
        SessionName::parse(name).unwrap()
    }

    fn found(states: &SessionStates, principal: Principal, session: &str) -> Option<(u64, Value)> {
        let found = states.find(principal, &name(session));
        found.map(|it| (it.version, it.state))
    }

    #[test]
    fn a_state_has_versions_and_is_its_clients_and_sessions_alone_d_26() {
        let states = SessionStates::default();
        let patch = |patch: Value| states.merge(1, &name("a"), &patch);
        assert_eq!(patch(json!({"cart": {"items": 3}, "x": 1})), Ok(1));
        assert_eq!(patch(json!({"x": null})), Ok(2));
        let expected = json!({"cart": {"items": 3}});
        assert_eq!(found(&states, 1, "a"), Some((2, expected)));
        assert_eq!(found(&states, 1, "b"), None);
        assert_eq!(found(&states, 2, "a"), None);
    }

    #[test]
    fn a_state_is_a_bounded_object() {
        let states = SessionStates::default();
        let merge = |patch: Value| states.merge(1, &name("a"), &patch);
        assert_eq!(merge(json!([1])), Err(NotChanged::NoObject));
        let long = json!({"x": "y".repeat(MAX_STATE_BYTES)});
        assert_eq!(merge(long), Err(NotChanged::TooLarge));
        assert_eq!(found(&states, 1, "a"), None);
    }

    #[test]
    fn the_state_that_was_not_changed_for_longest_goes_first() {
        let states = SessionStates::default();
        for at in 0..MAX_SESSIONS {
            states.merge(1, &name(&at.to_string()), &json!({})).unwrap();
        }
        states.merge(1, &name("0"), &json!({"x": 1})).unwrap();
        states.merge(1, &name("new"), &json!({})).unwrap();
        assert_eq!(found(&states, 1, "1"), None);
        assert!(found(&states, 1, "0").is_some());
        let long = json!({"x": "y".repeat(MAX_STATE_BYTES - 100)});
        for at in ["l1", "l2", "l3", "l4", "l5"] {
            states.merge(1, &name(at), &long).unwrap();
        }
        assert_eq!(found(&states, 1, "l1"), None);
        assert!(found(&states, 1, "l5").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_lives_for_a_day_after_its_last_change() {
        let states = SessionStates::default();
        states.merge(1, &name("a"), &json!({})).unwrap();
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(found(&states, 1, "a"), None);
    }

    #[test]
    fn a_name_is_short_and_visible() {
        for bad in ["", " ", "a b", "ä", &"x".repeat(MAX_NAME + 1)] {
            assert_eq!(SessionName::parse(bad), None, "{bad}");
        }
    }
}
