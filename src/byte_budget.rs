//! A budget of bytes that several holders share.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A number of bytes that can be reserved. A reservation returns its bytes when it is dropped.
#[derive(Clone, Debug)]
pub(crate) struct ByteBudget {
    free: Arc<AtomicUsize>,
}

/// Bytes that are reserved for as long as this lives.
#[derive(Debug)]
pub(crate) struct Reservation {
    free: Arc<AtomicUsize>,
    bytes: usize,
}

impl ByteBudget {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: usize) -> ByteBudget {
        ByteBudget {
            free: Arc::new(AtomicUsize::new(bytes)),
        }
    }

    /// Takes bytes; `None` if there are not so many.
    pub(crate) fn take(&self, bytes: usize) -> Option<Reservation> {
        let mut reservation = self.take_nothing();
        reservation.grow_to(bytes).then_some(reservation)
    }

    /// Nothing is taken yet; see [`Reservation::grow_to`].
    pub(crate) fn take_nothing(&self) -> Reservation {
        Reservation {
            free: self.free.clone(),
            bytes: 0,
        }
    }

    /// How many are free.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }
}

impl Reservation {
    /// Takes more bytes, up to this many. False if there are not so many; nothing changes then.
    #[must_use]
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let taken = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(more)
            });
        if taken.is_ok() {
            self.bytes += more;
        }
        taken.is_ok()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.free.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let budget = ByteBudget::new(10);
        let six = budget.take(6).unwrap();
        assert!(budget.take(5).is_none());
        let four = budget.take(4).unwrap();
        assert!(budget.take(1).is_none());
        drop(six);
        assert_eq!(budget.free(), 6);
        drop(four);
        assert_eq!(budget.free(), 10);
    }

    #[test]
    fn what_grows_takes_only_the_difference() {
        let budget = ByteBudget::new(10);
        let mut reservation = budget.take_nothing();
        assert!(reservation.grow_to(4) && reservation.grow_to(9) && reservation.grow_to(2));
        assert_eq!(budget.free(), 1);
        assert!(!reservation.grow_to(11));
        assert_eq!(budget.free(), 1);
        drop(reservation);
        assert_eq!(budget.free(), 10);
    }
}
