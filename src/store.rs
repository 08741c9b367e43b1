//! What outlives a request: turns that wait for the client's own answers.
//!
//! In memory, bounded by number, bytes and age. Losing an entry loses what the gateway's tools said in one
//! turn, never the chat. A client that holds more than half loses its own oldest entries first.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::quota::Victim;
use toolway_core::agent::parked::{Found, Parked};

/// Most turns that are kept.
const MAX_ENTRIES: usize = 10_000;
/// Most bytes that are kept.
const MAX_BYTES: usize = 128 << 20;
/// How long a turn is kept; clients send their whole history again and again, so it is long.
const MAX_AGE: Duration = Duration::from_secs(6 * 60 * 60);

/// Whose conversation it is: a print of the client's credentials.
pub type Principal = u64;

/// Parked turns, found by the ids of the client's calls.
#[derive(Debug, Default)]
pub struct Store {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<String, Arc<Entry>>,
    /// Ids that clients were shown in answers that are not complete yet.
    claimed: HashSet<String>,
    /// The oldest first.
    order: VecDeque<Arc<Entry>>,
    bytes: usize,
    held: HashMap<Principal, Held>,
}

/// What one client holds.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    entries: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    principal: Principal,
    found: Found,
    bytes: usize,
    since: Instant,
}

impl Store {
    /// Parks a turn under the ids of the client's calls in it. An id that is there already points to the new turn.
    /// One that is bigger than everything together may be is not kept, rather than all the others lost for it.
    pub fn park(&self, principal: Principal, question: u64, parked: Parked) {
        let bytes = size(&parked);
        if bytes > MAX_BYTES {
            return;
        }
        let parked = Arc::new(parked);
        let entry = Arc::new(Entry {
            principal,
            found: Found { question, parked },
            bytes,
            since: Instant::now(),
        });
        let mut inner = self.lock();
        for call in &entry.found.parked.client_calls {
            inner.by_id.insert(call.id.clone(), entry.clone());
        }
        inner.bytes += bytes;
        let held = inner.held.entry(principal).or_default();
        held.entries += 1;
        held.bytes += bytes;
        inner.order.push_back(entry);
        inner.forget_old();
        inner.make_room(principal);
    }

    /// What was parked under the id of a call by the same client.
    pub fn find(&self, principal: Principal, id: &str) -> Option<Found> {
        let mut inner = self.lock();
        inner.forget_old();
        let entry = inner.by_id.get(id)?;
        (entry.principal == principal).then(|| entry.found.clone())
    }

    /// Ids for one answer. They stay its own as long as this is kept, and longer if the answer is parked.
    pub fn claims(&self) -> Claims<'_> {
        Claims {
            store: self,
            ids: Mutex::default(),
        }
    }

    /// Nothing is parked, so that no conversation needs to be looked through.
    pub fn is_empty(&self) -> bool {
        self.lock().order.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ids of calls that one answer shows its client.
#[derive(Debug)]
pub struct Claims<'s> {
    store: &'s Store,
    ids: Mutex<Vec<String>>,
}

impl Claims<'_> {
    /// Claims an id. False if a parked turn, or another answer that is on its way, has it: two conversations
    /// of one client that ask the same at the same time must not be given each other's results.
    pub fn claim(&self, id: &str) -> bool {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.iter().any(|own| own == id) {
            return true;
        }
        let mut inner = self.store.lock();
        let is_free = !inner.by_id.contains_key(id) && inner.claimed.insert(id.to_owned());
        if is_free {
            ids.push(id.to_owned());
        }
        is_free
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let ids = self.ids.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut inner = self.store.lock();
        for id in ids {
            inner.claimed.remove(id);
        }
    }
}

impl Inner {
    fn forget_old(&mut self) {
        let is_old = |entry: &Arc<Entry>| entry.since.elapsed() > MAX_AGE;
        while self.order.front().is_some_and(is_old) {
            self.remove(0);
        }
    }

    /// Keeps within the bounds, after this client has added an entry.
    fn make_room(&mut self, principal: Principal) {
        while self.order.len() > MAX_ENTRIES || self.bytes > MAX_BYTES {
            let held = self.held.get(&principal).copied().unwrap_or_default();
            let has_most = Victim::choose(held.entries, MAX_ENTRIES) == Victim::Own
                || Victim::choose(held.bytes, MAX_BYTES) == Victim::Own;
            let own = || self.order.iter().position(|it| it.principal == principal);
            let oldest = has_most.then(own).flatten().unwrap_or(0);
            self.remove(oldest);
        }
    }

    fn remove(&mut self, place: usize) {
        let Some(removed) = self.order.remove(place) else {
            return;
        };
        self.bytes -= removed.bytes;
        if let Some(held) = self.held.get_mut(&removed.principal) {
            held.entries -= 1;
            held.bytes -= removed.bytes;
            if held.entries == 0 {
                self.held.remove(&removed.principal);
            }
        }
        for call in &removed.found.parked.client_calls {
            let entry = self.by_id.get(&call.id);
            if entry.is_some_and(|entry| Arc::ptr_eq(entry, &removed)) {
                self.by_id.remove(&call.id);
            }
        }
    }
}

fn size(parked: &Parked) -> usize {
    // The transcript holds the client's calls too, and stands for what they take beside it.
    parked.transcript.messages().len() + parked.cut_results.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolway_core::agent::{cut_results::CutResults, transcript::Transcript};
    use toolway_protocol::tool::ToolCall;

    fn parked(ids: &[&str], bytes: usize) -> Parked {
        let call = |id: &&str| ToolCall {
            id: (*id).to_owned(),
            name: "own".into(),
            arguments: "{}".into(),
        };
        let mut cut_results = CutResults::default();
        for n in 0..bytes / MEBIBYTE {
            cut_results.keep(n.to_string(), "x".repeat(MEBIBYTE));
        }
        Parked {
            transcript: Transcript::default(),
            cut_results,
            client_calls: ids.iter().map(call).collect(),
        }
    }

    const MEBIBYTE: usize = 1 << 20;

    #[tokio::test]
    async fn a_turn_is_found_by_its_client_under_each_of_its_ids() {
        let store = Store::default();
        store.park(1, 7, parked(&["a", "b"], 0));
        for id in ["a", "b"] {
            assert_eq!(store.find(1, id).unwrap().question, 7);
        }
        assert!(store.find(2, "a").is_none());
        assert!(store.find(1, "c").is_none());
    }

    #[tokio::test]
    async fn an_id_belongs_to_one_answer_at_a_time() {
        let store = Store::default();
        let (one, other) = (store.claims(), store.claims());
        assert!(one.claim("a"));
        assert!(one.claim("a"), "it has it already");
        assert!(!other.claim("a"));
        assert!(other.claim("b"));
        store.park(1, 7, parked(&["b"], 0));
        drop((one, other));
        let next = store.claims();
        assert!(next.claim("a"), "it was given back");
        assert!(!next.claim("b"), "it is parked");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_forgotten_when_it_is_too_old() {
        let store = Store::default();
        store.park(1, 7, parked(&["a"], 0));
        tokio::time::advance(MAX_AGE).await;
        assert!(store.find(1, "a").is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(store.find(1, "a").is_none());
        assert!(store.is_empty());
    }

    #[tokio::test]
    async fn the_oldest_turn_goes_when_there_are_too_many() {
        let store = Store::default();
        for n in 0..=MAX_ENTRIES {
            store.park(1, 7, parked(&[&n.to_string()], 0));
        }
        assert!(store.find(1, "0").is_none());
        assert!(store.find(1, "1").is_some());
        assert!(store.find(1, &MAX_ENTRIES.to_string()).is_some());
    }

    #[tokio::test]
    async fn the_oldest_turns_go_when_they_are_too_big_together() {
        let store = Store::default();
        for id in ["a", "b", "c", "d", "e"] {
            store.park(1, 7, parked(&[id], 30 * MEBIBYTE));
        }
        assert!(store.find(1, "a").is_none());
        assert!(store.find(1, "b").is_some());
    }

    #[tokio::test]
    async fn a_client_with_most_of_the_turns_loses_its_own_and_no_other_clients() {
        let store = Store::default();
        store.park(2, 7, parked(&["other"], 0));
        for n in 0..MAX_ENTRIES {
            store.park(1, 7, parked(&[&n.to_string()], 0));
        }
        assert!(store.find(2, "other").is_some());
        assert!(store.find(1, "0").is_none());
        assert!(store.find(1, "1").is_some());

        let store = Store::default();
        store.park(2, 7, parked(&["other"], MEBIBYTE));
        for id in ["a", "b", "c", "d", "e"] {
            store.park(1, 7, parked(&[id], 30 * MEBIBYTE));
        }
        assert!(store.find(2, "other").is_some());
        assert!(store.find(1, "a").is_none());
    }

    #[tokio::test]
    async fn an_id_that_is_used_again_points_to_the_later_turn_until_that_goes() {
        let store = Store::default();
        store.park(1, 7, parked(&["a"], 30 * MEBIBYTE));
        store.park(1, 8, parked(&["a"], 0));
        assert_eq!(store.find(1, "a").unwrap().question, 8);
        for _ in 0..4 {
            store.park(1, 9, parked(&["b"], 30 * MEBIBYTE));
        }
        assert_eq!(
            store.find(1, "a").unwrap().question,
            8,
            "the end of the first does not take the second with it"
        );
    }
}
