//! Places with a share per key: those of running requests, and those of lasting streams.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::{admission, error::Refusal};

/// Places that are counted as a whole and for each key.
pub(super) struct Places {
    max: usize,
    taken: AtomicUsize,
    /// How many each key has; the last are those of borrowed sessions.
    by_key: Box<[AtomicUsize]>,
}

/// The holder of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A client that needs no key.
    Anyone,
    /// A client with this one of `api_keys`.
    Key(usize),
    /// One that has the URL of a session with another client's functions.
    Borrower,
}

impl Places {
    /// `max` places for this many keys.
    pub(super) fn new(max: usize, keys: usize) -> Places {
        Places {
            max,
            taken: AtomicUsize::new(0),
            by_key: (0..=keys).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// How many places are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// No place is free.
    pub(super) fn is_full(&self) -> bool {
        self.taken() >= self.max
    }

    /// Takes a place.
    ///
    /// # Errors
    /// All places are taken, or this client has its share.
    pub(super) fn take(&self, holder: Holder) -> Result<(), Refusal> {
        if !add_up_to(&self.taken, self.max) {
            return Err(Refusal::Overloaded);
        }
        if let Some(count) = self.counted(holder)
            && !add_up_to(count, self.share(holder))
        {
            self.taken.fetch_sub(1, Relaxed);
            return Err(Refusal::KeyOverloaded);
        }
        Ok(())
    }

    /// Gives a place back.
    pub(super) fn give_back(&self, holder: Holder) {
        self.taken.fetch_sub(1, Relaxed);
        if let Some(count) = self.counted(holder) {
            count.fetch_sub(1, Relaxed);
        }
    }

    fn share(&self, holder: Holder) -> usize {
        match holder {
            Holder::Anyone => self.max,
            Holder::Key(_) => admission::share_of_key(self.max),
            Holder::Borrower => admission::share_of_lent(self.max),
        }
    }

    /// The counter of this client. A single key may take every place.
    fn counted(&self, holder: Holder) -> Option<&AtomicUsize> {
        let keys = self.by_key.len() - 1;
        match holder {
            Holder::Key(key) if keys > 1 => self.by_key.get(key),
            Holder::Borrower => self.by_key.last(),
            Holder::Key(_) | Holder::Anyone => None,
        }
    }
}

/// A place, which is given back when this is dropped.
pub(super) struct HeldPlace {
    places: Arc<Places>,
    holder: Holder,
}

impl HeldPlace {
    /// Takes a place.
    ///
    /// # Errors
    /// Those of [`Places::take`].
    pub(super) fn of(places: &Arc<Places>, holder: Holder) -> Result<HeldPlace, Refusal> {
        places.take(holder)?;
        Ok(HeldPlace {
            places: Arc::clone(places),
            holder,
        })
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.places.give_back(self.holder);
    }
}

fn add_up_to(count: &AtomicUsize, max: usize) -> bool {
    if count.fetch_add(1, Relaxed) < max {
        return true;
    }
    count.fetch_sub(1, Relaxed);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_of_several_leaves_places_for_the_others() {
        #[track_caller]
        fn check(keys: usize, holder: Holder, expected: usize, then: Refusal) {
            let places = Places::new(8, keys);
            let taken = (0..8).take_while(|_| places.take(holder).is_ok()).count();
            assert_eq!(taken, expected);
            assert_eq!(places.take(holder), Err(then));
        }
        check(0, Holder::Anyone, 8, Refusal::Overloaded);
        check(1, Holder::Key(0), 8, Refusal::Overloaded);
        check(2, Holder::Key(1), 5, Refusal::KeyOverloaded);
        check(2, Holder::Anyone, 8, Refusal::Overloaded);
        check(0, Holder::Borrower, 2, Refusal::KeyOverloaded);
    }
}
