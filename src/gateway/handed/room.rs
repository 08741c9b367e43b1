//! How many bytes all sessions together may hold.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes that can be taken, and come back by themselves.
#[derive(Clone, Debug)]
pub(super) struct Room {
    free: Arc<AtomicUsize>,
}

/// Bytes that are taken as long as this lives.
#[derive(Debug)]
pub(super) struct Taken {
    free: Arc<AtomicUsize>,
    bytes: usize,
}

impl Room {
    /// Room for so many bytes.
    pub(super) fn new(bytes: usize) -> Room {
        Room {
            free: Arc::new(AtomicUsize::new(bytes)),
        }
    }

    /// Takes bytes; `None` if there are not so many.
    pub(super) fn take(&self, bytes: usize) -> Option<Taken> {
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(bytes)
            })
            .ok()?;
        Some(Taken {
            free: self.free.clone(),
            bytes,
        })
    }

    /// How many are free.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.free.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let room = Room::new(10);
        let six = room.take(6).unwrap();
        assert!(room.take(5).is_none());
        let four = room.take(4).unwrap();
        assert!(room.take(1).is_none());
        drop(six);
        assert_eq!(room.free(), 6);
        drop(four);
        assert_eq!(room.free(), 10);
    }
}
