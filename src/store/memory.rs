//! Turns in memory. They end with the process.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{FutureExt, future::BoxFuture};
use tokio::time::Instant;

use super::{
    FoundUnder, MAX_AGE, MAX_BYTES, MAX_TURNS, NewTurn, Principal, Reserve, Store, StoreError,
};
use toolway_core::agent::parked::{Found, Key, Parked};

/// Parked turns, found by the ids of the client's calls. An id that is used again leads to the later turn.
#[derive(Debug, Default)]
pub struct Memory {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<String, Arc<MemoryEntry>>,
    /// The oldest first.
    order: VecDeque<Arc<MemoryEntry>>,
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
struct MemoryEntry {
    turn: Arc<NewTurn>,
    bytes: usize,
    since: Instant,
}

impl Memory {
    /// Keeps a turn. A turn that is larger than the bound of the whole store is not kept, so that the others are not
    /// lost for it.
    pub(super) fn keep(&self, turn: &Arc<NewTurn>) {
        let bytes = size(&turn.parked);
        if bytes > MAX_BYTES {
            return;
        }
        let entry = Arc::new(MemoryEntry {
            turn: Arc::clone(turn),
            bytes,
            since: Instant::now(),
        });
        let mut inner = self.lock();
        for call in &turn.parked.client_calls {
            inner.by_id.insert(call.id.clone(), entry.clone());
        }
        inner.bytes += bytes;
        let held = inner.held.entry(turn.principal).or_default();
        held.entries += 1;
        held.bytes += bytes;
        inner.order.push_back(entry);
        inner.forget_old();
        inner.make_room();
    }

    /// What this client parked under these keys.
    pub(super) fn lookup(&self, principal: Principal, keys: &[Key]) -> Vec<FoundUnder> {
        let mut inner = self.lock();
        inner.forget_old();
        let found = |key: &Key| {
            let turn = &inner.by_id.get(&key.id)?.turn;
            let is_it = turn.principal == principal && turn.question == key.question;
            is_it.then(|| FoundUnder {
                id: key.id.clone(),
                found: Found {
                    question: turn.question,
                    parked: Arc::clone(&turn.parked),
                },
            })
        };
        keys.iter().filter_map(found).collect()
    }

    /// The turn that was parked first.
    pub(super) fn oldest(&self) -> Option<Arc<NewTurn>> {
        let inner = self.lock();
        inner.order.front().map(|entry| Arc::clone(&entry.turn))
    }

    /// Forgets a turn.
    pub(super) fn remove(&self, turn: &Arc<NewTurn>) {
        let mut inner = self.lock();
        let place = inner
            .order
            .iter()
            .position(|it| Arc::ptr_eq(&it.turn, turn));
        if let Some(place) = place {
            inner.remove(place);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn park<'a>(&'a self, turn: &'a Arc<NewTurn>) -> BoxFuture<'a, Result<(), StoreError>> {
        async {
            self.keep(turn);
            Ok(())
        }
        .boxed()
    }

    fn find<'a>(
        &'a self,
        principal: Principal,
        keys: &'a [Key],
        _: &'a mut Reserve<'_>,
    ) -> BoxFuture<'a, Result<Vec<FoundUnder>, StoreError>> {
        async move { Ok(self.lookup(principal, keys)) }.boxed()
    }

    fn is_empty(&self) -> bool {
        self.lock().order.is_empty()
    }

    fn kind(&self) -> &'static str {
        "memory"
    }
}

impl Inner {
    fn forget_old(&mut self) {
        let is_old = |entry: &Arc<MemoryEntry>| entry.since.elapsed() > MAX_AGE;
        while self.order.front().is_some_and(is_old) {
            self.remove(0);
        }
    }

    /// Keeps within the bounds: the oldest turn goes, that of a client with more than half if there is one.
    fn make_room(&mut self) {
        while self.order.len() > MAX_TURNS || self.bytes > MAX_BYTES {
            let has_most = |held: &Held| held.entries > MAX_TURNS / 2 || held.bytes > MAX_BYTES / 2;
            let greedy = self.held.iter().find(|(_, held)| has_most(held));
            let greedy = greedy.map(|(principal, _)| *principal);
            let is_victim =
                |it: &Arc<MemoryEntry>| greedy.is_none_or(|greedy| it.turn.principal == greedy);
            let oldest = self.order.iter().position(is_victim).unwrap_or(0);
            self.remove(oldest);
        }
    }

    fn remove(&mut self, place: usize) {
        let Some(removed) = self.order.remove(place) else {
            return;
        };
        self.bytes -= removed.bytes;
        if let Some(held) = self.held.get_mut(&removed.turn.principal) {
            held.entries -= 1;
            held.bytes -= removed.bytes;
            if held.entries == 0 {
                self.held.remove(&removed.turn.principal);
            }
        }
        for call in &removed.turn.parked.client_calls {
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
