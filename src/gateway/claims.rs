//! Ids of the client's calls that answers of this process show: each belongs to one answer at a time.
//!
//! Some upstreams count their ids from `call_1`. Two conversations of one client that ask the same at the same time
//! must not get each other's results, so the second one's call gets another id.

use std::{
    collections::{HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Most ids of parked turns that are remembered.
const MAX_PARKED: usize = 20_000;

/// The hashes of the ids in use. A call whose id merely has the same hash as another also gets a new id.
#[derive(Debug, Default)]
pub(super) struct ClaimedIds {
    hasher: RandomState,
    inner: Mutex<ClaimTable>,
}

#[derive(Debug, Default)]
struct ClaimTable {
    claimed: HashSet<u64>,
    /// Those of parked turns, the oldest first.
    parked: VecDeque<u64>,
}

impl ClaimedIds {
    /// Ids for one answer. They stay its own as long as this is kept, and longer if the answer is parked.
    pub(super) fn claims(&self) -> Claims<'_> {
        Claims {
            all: self,
            own: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClaimTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ids of calls that one answer shows its client.
#[derive(Debug)]
pub(super) struct Claims<'a> {
    all: &'a ClaimedIds,
    own: Mutex<Vec<u64>>,
}

impl Claims<'_> {
    /// Claims an id. Returns false if a parked turn or another running answer has it.
    pub(super) fn claim(&self, id: &str) -> bool {
        let id = self.all.hasher.hash_one(id);
        let mut own = self.own();
        if own.contains(&id) {
            return true;
        }
        let is_free = self.all.lock().claimed.insert(id);
        if is_free {
            own.push(id);
        }
        is_free
    }

    /// The answer is parked: its ids stay claimed.
    pub(super) fn park(&self) {
        let mut all = self.all.lock();
        all.parked.extend(self.own().drain(..));
        while all.parked.len() > MAX_PARKED {
            let oldest = all.parked.pop_front();
            oldest.map(|oldest| all.claimed.remove(&oldest));
        }
    }

    fn own(&self) -> MutexGuard<'_, Vec<u64>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let own = self.own.get_mut().unwrap_or_else(PoisonError::into_inner);
        if own.is_empty() {
            return;
        }
        let mut all = self.all.lock();
        for id in own {
            all.claimed.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_one_answer_at_a_time() {
        let ids = ClaimedIds::default();
        let (one, other) = (ids.claims(), ids.claims());
        assert!(one.claim("a"));
        assert!(one.claim("a"), "it has it already");
        assert!(!other.claim("a"));
        assert!(other.claim("b"));
        other.park();
        drop((one, other));
        let next = ids.claims();
        assert!(next.claim("a"), "it was given back");
        assert!(!next.claim("b"), "it is parked");
    }

    #[test]
    fn ids_of_old_turns_are_free_again() {
        let ids = ClaimedIds::default();
        for n in 0..=MAX_PARKED {
            let claims = ids.claims();
            assert!(claims.claim(&n.to_string()));
            claims.park();
        }
        assert!(ids.claims().claim("0"));
        assert!(!ids.claims().claim("1"));
    }
}
