//! Calls that wait for an answer of a client which is asked with a result (2026-07-28), kept until it comes back.
//!
//! The call at the server is still under way. A client that does not come back loses it after a while, and the
//! server is told.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::ask::{FromServer, PATIENCE, Question};
use crate::{
    gateway::random::unguessable,
    tool::{CallError, Progress, ServerId},
};

/// Most calls that wait.
const MAX_PARKED: usize = 1000;

/// What a `requestState` of ours begins with.
const PREFIX: &str = "toolway-parked:";

/// A call that waits for its client.
pub(super) struct Parked {
    /// Who may come back to it.
    pub owner: String,
    /// What was asked for.
    pub method: &'static str,
    /// Of whom.
    pub server: ServerId,
    /// And about what.
    pub name: Value,
    /// The call, not at its end.
    pub work: BoxFuture<'static, Result<Value, CallError>>,
    /// What the server says.
    pub events: mpsc::Receiver<FromServer>,
    /// How far it is.
    pub reports: Option<mpsc::Receiver<Progress>>,
    /// What it is waiting for.
    pub question: Option<Question>,
}

impl Parked {
    /// A `requestState` is one of ours and not a server's.
    pub(super) fn is_key(state: &str) -> bool {
        state.starts_with(PREFIX)
    }
}

/// A call, and when it is given up.
struct Kept {
    until: Instant,
    parked: Parked,
    /// Gives it up; ends with this.
    _minder: AbortOnDropHandle<()>,
}

/// Every call that waits for its client.
#[derive(Default)]
pub(in crate::gateway) struct ParkedCalls(Arc<Mutex<HashMap<String, Kept>>>);

impl ParkedCalls {
    /// Keeps a call, for ten minutes at most. Where too many wait, the oldest is given up.
    ///
    /// # Errors
    /// When the system has no randomness to make a key of; the call is given up then.
    pub(super) fn keep(&self, parked: Parked) -> Result<String, CallError> {
        let secret = unguessable().map_err(|_| CallError::Busy)?;
        let key = format!("{PREFIX}{secret}");
        let until = Instant::now() + PATIENCE;
        let (calls, overdue) = (Arc::downgrade(&self.0), key.clone());
        let minder = tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            if let Some(calls) = calls.upgrade() {
                let late = lock(&calls).remove(&overdue);
                drop(late);
            }
        });
        let mut calls = lock(&self.0);
        let oldest = (calls.len() >= MAX_PARKED)
            .then(|| calls.iter().min_by_key(|(_, kept)| kept.until))
            .flatten()
            .map(|(key, _)| key.clone());
        let given_up = oldest.and_then(|key| calls.remove(&key));
        let kept = Kept {
            until,
            parked,
            _minder: AbortOnDropHandle::new(minder),
        };
        calls.insert(key.clone(), kept);
        drop(calls);
        // Outside the lock: dropping a call tells its server.
        drop(given_up);
        Ok(key)
    }

    /// The call of this key, if whoever asks may have it.
    pub(super) fn take(&self, key: &str, may: impl Fn(&Parked) -> bool) -> Option<Parked> {
        let mut calls = lock(&self.0);
        if !calls.get(key).is_some_and(|kept| may(&kept.parked)) {
            return None;
        }
        calls.remove(key).map(|kept| kept.parked)
    }
}

fn lock(calls: &Mutex<HashMap<String, Kept>>) -> MutexGuard<'_, HashMap<String, Kept>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}
