//! The calls that wait for one server, or one group of functions: so many run, so many wait in their order, the
//! rest are turned away.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::tool::CallError;

/// Most calls that wait for one server.
pub(super) const MAX_WAITING: usize = 256;

/// The queue before one server.
#[derive(Debug)]
pub(super) struct Queue {
    running: Semaphore,
    waiting: AtomicUsize,
}

impl Queue {
    /// A queue that lets so many calls run at once; at least one.
    pub(super) fn new(parallel_calls: usize) -> Queue {
        let permits = parallel_calls.clamp(1, Semaphore::MAX_PERMITS);
        Queue {
            running: Semaphore::new(permits),
            waiting: AtomicUsize::new(0),
        }
    }

    /// A place, if one is free.
    pub(super) fn try_enter(&self) -> Option<SemaphorePermit<'_>> {
        self.running.try_acquire().ok()
    }

    /// Waits for a place, first come first served. Cancel safe: giving up gives the place in the queue up.
    pub(super) async fn enter(&self) -> Result<SemaphorePermit<'_>, CallError> {
        if let Some(permit) = self.try_enter() {
            return Ok(permit);
        }
        let _place = Place::take(&self.waiting)?;
        self.running.acquire().await.map_err(|_| CallError::Busy)
    }
}

/// A place among the waiting, given back when dropped.
struct Place<'a>(&'a AtomicUsize);

impl Place<'_> {
    fn take(waiting: &AtomicUsize) -> Result<Place<'_>, CallError> {
        let place = Place(waiting);
        match waiting.fetch_add(1, Ordering::Relaxed) {
            MAX_WAITING.. => Err(CallError::Busy),
            _ => Ok(place),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::join_all};

    use super::*;

    #[tokio::test]
    async fn one_more_than_the_queue_holds_is_turned_away() {
        let queue = Queue::new(1);
        let running = queue.enter().await.unwrap();
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(queue.enter())).collect();
        assert!(waiting.iter_mut().all(|call| call.now_or_never().is_none()));
        assert_eq!(queue.enter().await.unwrap_err(), CallError::Busy);

        waiting.pop();
        let mut late = Box::pin(queue.enter());
        assert!(
            (&mut late).now_or_never().is_none(),
            "a place that was given up is free again"
        );

        drop((running, late));
        let done = join_all(waiting.into_iter().map(|call| async { call.await.is_ok() })).await;
        assert!(done.into_iter().all(|ok| ok));
    }
}
