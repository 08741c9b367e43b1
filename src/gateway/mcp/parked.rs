//! Calls whose `input_required` result waits for the client's answer (2026-07-28).
//!
//! The call at the server is still under way. If the client does not continue in time, the call is cancelled at the
//! server.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

use crate::gateway::random::unguessable;
use crate::quota::Victim;
use toolway_protocol::{
    mcp::rpc::RpcError,
    tool::{CallError, Progress, ServerId},
};

/// Most calls that wait.
const MAX_PARKED: usize = 1000;

/// How long a parked call waits for its client.
const PARKED_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a parked call may keep others from a server that cannot serve two clients at once.
const COURTESY: Duration = Duration::from_secs(60);

/// The prefix of toolway's own `requestState`.
const PREFIX: &str = "toolway-parked:";

/// A question of a server, and where its answer goes.
pub(super) struct ParkedQuestion {
    pub method: String,
    pub params: Value,
    pub answer: oneshot::Sender<Result<Value, RpcError>>,
}

/// What a server sends while it works.
pub(super) enum FromServer {
    Question(ParkedQuestion),
    BackendEvent(String, Value),
}

/// A call that waits for its client.
pub(super) struct ParkedCall {
    /// The client that may continue it.
    pub owner: String,
    /// What was asked for.
    pub method: &'static str,
    /// Of whom.
    pub server: ServerId,
    /// The subject of the request; set when the call is parked.
    pub subject: Value,
    /// The running call.
    pub work: BoxFuture<'static, Result<Value, CallError>>,
    /// Messages of the server.
    pub events: mpsc::Receiver<FromServer>,
    /// Progress.
    pub reports: Option<mpsc::Receiver<Progress>>,
    /// The question that it waits for.
    pub question: Option<ParkedQuestion>,
}

impl ParkedCall {
    /// The `requestState` is toolway's, not a server's.
    pub(super) fn is_key(state: &str) -> bool {
        state.starts_with(PREFIX)
    }
}

/// A call and its deadline.
struct WaitingCall {
    until: Instant,
    parked: ParkedCall,
    /// Gives it up; ends with this.
    _minder: AbortOnDropHandle<()>,
}

/// Every call that waits for its client.
#[derive(Default)]
pub(in crate::gateway) struct ParkedCalls(Arc<Mutex<HashMap<String, WaitingCall>>>);

impl ParkedCalls {
    /// Keeps a call for at most ten minutes. If too many wait, the oldest is cancelled, or the oldest of the same owner
    /// if that owner has more than half of them.
    ///
    /// # Errors When the system has no randomness for a key; the call is then cancelled.
    pub(super) fn keep(&self, parked: ParkedCall) -> Result<String, CallError> {
        let secret = unguessable().map_err(|_| CallError::Busy)?;
        let key = format!("{PREFIX}{secret}");
        let until = Instant::now() + PARKED_TIMEOUT;
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
            .then(|| makes_room(&calls, &parked.owner))
            .flatten();
        let given_up = oldest.and_then(|key| calls.remove(&key));
        let kept = WaitingCall {
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

    /// Cancels calls on this server that have waited for more than a minute, because other clients need it. The call
    /// that is being resumed is kept.
    pub(super) fn make_way(&self, server: &ServerId, resumed: Option<&str>) {
        let late = Instant::now() + PARKED_TIMEOUT - COURTESY;
        let mut calls = lock(&self.0);
        let stays = |kept: &WaitingCall| kept.parked.server != *server || kept.until >= late;
        let given_up: Vec<WaitingCall> = calls
            .extract_if(|key, kept| resumed != Some(key.as_str()) && !stays(kept))
            .map(|(_, kept)| kept)
            .collect();
        drop(calls);
        drop(given_up);
    }

    /// The call of this key, if `may` allows it.
    pub(super) fn take(&self, key: &str, may: impl Fn(&ParkedCall) -> bool) -> Option<ParkedCall> {
        let mut calls = lock(&self.0);
        if !calls.get(key).is_some_and(|kept| may(&kept.parked)) {
            return None;
        }
        calls.remove(key).map(|kept| kept.parked)
    }
}

/// The call that is cancelled to make room for one more of this owner.
fn makes_room(calls: &HashMap<String, WaitingCall>, owner: &str) -> Option<String> {
    let is_own = |kept: &WaitingCall| kept.parked.owner == owner;
    let own = calls.values().filter(|kept| is_own(kept)).count();
    let victim = Victim::choose(own, MAX_PARKED);
    let candidates = calls
        .iter()
        .filter(|(_, kept)| victim == Victim::Oldest || is_own(kept));
    let oldest = candidates.min_by_key(|(_, kept)| kept.until);
    oldest.map(|(key, _)| key.clone())
}

fn lock(
    calls: &Mutex<HashMap<String, WaitingCall>>,
) -> MutexGuard<'_, HashMap<String, WaitingCall>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn call(server: &str) -> ParkedCall {
        ParkedCall {
            owner: "me".to_owned(),
            method: "tools/call",
            server: ServerId::parse(server).unwrap(),
            subject: Value::Null,
            work: Box::pin(std::future::pending()),
            events: mpsc::channel(1).1,
            reports: None,
            question: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_nobody_comes_back_to_makes_way_for_others_after_a_minute() {
        let parked = ParkedCalls::default();
        let (here, elsewhere) = (
            ServerId::parse("a").unwrap(),
            parked.keep(call("b")).unwrap(),
        );
        let key = parked.keep(call("a")).unwrap();
        advance(COURTESY / 2).await;
        parked.make_way(&here, None);
        let taken = parked
            .take(&key, |_| true)
            .expect("half a minute is not long");
        let key = parked.keep(taken).unwrap();
        advance(COURTESY * 2).await;
        parked.make_way(&here, None);
        assert!(parked.take(&key, |_| true).is_none());
        assert!(
            parked.take(&elsewhere, |_| true).is_some(),
            "another server is not in the way"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_back_after_more_than_a_minute_still_finds_its_call() {
        let parked = ParkedCalls::default();
        let here = ServerId::parse("a").unwrap();
        let (mine, other) = (
            parked.keep(call("a")).unwrap(),
            parked.keep(call("a")).unwrap(),
        );
        advance(COURTESY * 2).await;
        parked.make_way(&here, Some(&mine));
        assert!(parked.take(&other, |_| true).is_none());
        assert!(parked.take(&mine, |_| true).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_with_most_of_the_calls_pushes_out_its_own() {
        let parked = ParkedCalls::default();
        let other = ParkedCall {
            owner: "you".to_owned(),
            ..call("a")
        };
        let other = parked.keep(other).unwrap();
        advance(Duration::from_millis(1)).await;
        for _ in 0..MAX_PARKED {
            parked.keep(call("a")).unwrap();
        }
        assert!(parked.take(&other, |_| true).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_parked_call_is_given_up_in_the_end_and_too_many_push_out_the_oldest() {
        let parked = ParkedCalls::default();
        let oldest = parked.keep(call("a")).unwrap();
        advance(Duration::from_millis(1)).await;
        let keys: Vec<String> = (0..MAX_PARKED)
            .map(|_| parked.keep(call("a")).unwrap())
            .collect();
        assert!(parked.take(&oldest, |_| true).is_none());
        assert!(
            parked
                .take(&keys[1], |parked| parked.owner == "you")
                .is_none()
        );
        assert!(parked.take(&keys[1], |_| true).is_some());
        tokio::time::sleep(PARKED_TIMEOUT * 2).await;
        assert!(lock(&parked.0).is_empty());
    }
}
