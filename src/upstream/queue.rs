//! The calls that wait for one server, or one group of functions: so many run, so many wait in their order, the
//! rest are turned away. A call that waits for a person gives its place back for that time.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use toolway_protocol::tool::CallError;

/// Most calls that wait for one server, if the configuration does not say otherwise.
pub const MAX_WAITING: usize = 256;

/// Most calls on one server that give up their place while they wait for a person. Further ones keep their place.
const MAX_SUSPENDED: usize = 256;

/// The queue before one server.
#[derive(Debug)]
pub(super) struct Queue {
    /// The free places.
    free: Semaphore,
    /// Most calls that wait.
    longest: usize,
    waiting: AtomicUsize,
    suspended: AtomicUsize,
    /// Calls that run beyond the number of places, because they continued after a person's answer.
    excess: AtomicUsize,
}

/// The place of a call that runs, given back when dropped.
#[derive(Debug)]
pub(super) struct QueueSlot {
    queue: Arc<Queue>,
    state: Mutex<PlaceState>,
}

#[derive(Debug, Default)]
struct PlaceState {
    /// Questions to a person that are open.
    questions: usize,
    /// The place was given back because of them.
    is_suspended: bool,
    is_over: bool,
}

impl Queue {
    /// A queue that lets so many calls run at once, at least one, and so many wait.
    pub(super) fn new(parallel_calls: usize, longest: usize) -> Arc<Queue> {
        let places = parallel_calls.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Queue {
            free: Semaphore::new(places),
            longest,
            waiting: AtomicUsize::new(0),
            suspended: AtomicUsize::new(0),
            excess: AtomicUsize::new(0),
        })
    }

    /// Waits for a place until the deadline, first come first served. Cancel safe: dropping the future leaves the
    /// queue.
    ///
    /// # Errors
    /// `Busy`: too many wait already, or the time is over.
    pub(super) async fn enter(self: &Arc<Self>, until: Instant) -> Result<QueueSlot, CallError> {
        if !self.try_take() {
            let _waiting = WaitingPlace::begin(&self.waiting, self.longest)?;
            let free = timeout_at(until, self.free.acquire()).await;
            let free = free.map_err(|_| CallError::Busy)?;
            free.map_err(|_| CallError::Busy)?.forget();
        }
        Ok(QueueSlot {
            queue: Arc::clone(self),
            state: Mutex::default(),
        })
    }

    fn try_take(&self) -> bool {
        let free = self.free.try_acquire();
        free.map(tokio::sync::SemaphorePermit::forget).is_ok()
    }

    /// A call has ended, or waits for a person.
    fn leave(&self) {
        if !decrement(&self.excess) {
            self.free.add_permits(1);
        }
    }

    /// A call continues. It must not wait for a place: a server that runs one call at a time would never finish the
    /// call that holds the place.
    fn rejoin(&self) {
        if !self.try_take() {
            self.excess.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl QueueSlot {
    /// The call waits for a person: others may run meanwhile.
    pub(super) fn suspend(&self) {
        let mut state = self.state();
        state.questions += 1;
        let is_first = state.questions == 1 && !state.is_over;
        if is_first && increment(&self.queue.suspended, MAX_SUSPENDED) {
            state.is_suspended = true;
            self.queue.leave();
        }
    }

    /// The person has answered. The call continues at once and counts again.
    pub(super) fn resume(&self) {
        let mut state = self.state();
        state.questions = state.questions.saturating_sub(1);
        if state.questions == 0 && !state.is_over && std::mem::take(&mut state.is_suspended) {
            decrement(&self.queue.suspended);
            self.queue.rejoin();
        }
    }

    /// The call is over.
    pub(super) fn end(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        match state.is_suspended {
            true => {
                decrement(&self.queue.suspended);
            }
            false => self.queue.leave(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PlaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.end();
    }
}

/// One less, unless there is none.
fn decrement(count: &AtomicUsize) -> bool {
    let less = |count: usize| count.checked_sub(1);
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

/// One more, unless there are so many.
fn increment(count: &AtomicUsize, most: usize) -> bool {
    let more = |count: usize| (count < most).then_some(count + 1);
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        .is_ok()
}

/// A place among the waiting, given back when dropped.
struct WaitingPlace<'a>(&'a AtomicUsize);

impl WaitingPlace<'_> {
    fn begin(waiting: &AtomicUsize, most: usize) -> Result<WaitingPlace<'_>, CallError> {
        match increment(waiting, most) {
            true => Ok(WaitingPlace(waiting)),
            false => Err(CallError::Busy),
        }
    }
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        decrement(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{FutureExt, future::join_all};

    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    fn is_free(queue: &Arc<Queue>) -> bool {
        queue.enter(later()).now_or_never().is_some()
    }

    #[tokio::test]
    async fn one_more_than_the_queue_holds_is_turned_away() {
        let queue = Queue::new(1, MAX_WAITING);
        let running = queue.enter(later()).await.unwrap();
        let mut waiting: Vec<_> = (0..MAX_WAITING)
            .map(|_| Box::pin(queue.enter(later())))
            .collect();
        assert!(waiting.iter_mut().all(|call| call.now_or_never().is_none()));
        assert_eq!(queue.enter(later()).await.unwrap_err(), CallError::Busy);

        waiting.pop();
        let mut late = Box::pin(queue.enter(later()));
        assert!(
            (&mut late).now_or_never().is_none(),
            "a place that was given up is free again"
        );

        drop((running, late));
        let done = join_all(waiting.into_iter().map(|call| async { call.await.is_ok() })).await;
        assert!(done.into_iter().all(|ok| ok));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_too_long_for_a_place_is_busy() {
        let queue = Queue::new(1, MAX_WAITING);
        let _running = queue.enter(later()).await.unwrap();
        let begun = Instant::now();
        let waited = queue.enter(begun + Duration::from_secs(7)).await;
        assert_eq!(waited.unwrap_err(), CallError::Busy);
        assert_eq!(begun.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test]
    async fn a_call_that_waits_for_a_person_lets_others_run() {
        let queue = Queue::new(1, MAX_WAITING);
        let asking = queue.enter(later()).await.unwrap();
        asking.suspend();
        asking.suspend();
        let other = queue.enter(later()).await.unwrap();
        asking.resume();
        assert!(!is_free(&queue));
        asking.resume();
        drop(other);
        assert!(!is_free(&queue), "the first runs again and counts");
        drop(asking);
        assert!(is_free(&queue));
    }

    #[tokio::test]
    async fn a_call_that_ends_while_it_waits_gives_its_place_back_once() {
        let queue = Queue::new(1, MAX_WAITING);
        let asking = queue.enter(later()).await.unwrap();
        asking.suspend();
        asking.end();
        asking.resume();
        drop(asking);
        let first = queue.enter(later()).now_or_never().unwrap();
        assert!(first.is_ok() && !is_free(&queue));
    }

    #[tokio::test]
    async fn too_many_calls_that_wait_for_a_person_keep_their_places() {
        let queue = Queue::new(MAX_SUSPENDED + 1, MAX_WAITING);
        let mut asking = Vec::new();
        for _ in 0..=MAX_SUSPENDED {
            let place = queue.enter(later()).await.unwrap();
            place.suspend();
            asking.push(place);
        }
        assert_eq!(queue.free.available_permits(), MAX_SUSPENDED);
        asking.clear();
        assert_eq!(queue.free.available_permits(), MAX_SUSPENDED + 1);
    }
}
