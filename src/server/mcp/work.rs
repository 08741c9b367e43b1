//! One running request: its progress and its cancellation.

use std::{
    collections::HashMap,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use super::outbox::{Outbox, notification};
use crate::gateway::{Gateway, mcp::RequestContext};
use toolway_protocol::{
    mcp::rpc::{RpcError, RpcId, code},
    tool::{JsonObject, Progress},
};

/// Progress that waits to be told.
const WAITING: usize = 16;

/// Lets the gateway answer a request. Progress goes to the outbox if the request asks for it.
///
/// # Errors Those of [`Gateway::request`], and one if toolway shuts down before the answer is there.
pub(in crate::server) async fn run(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    method: &str,
    params: JsonObject,
    outbox: Option<&Outbox>,
) -> Result<Value, RpcError> {
    unless_ending(gateway, answer(gateway, context, method, params, outbox)).await
}

/// Does the work on a request.
///
/// # Errors Its own, and one if toolway shuts down first.
pub(super) async fn unless_ending<T>(
    gateway: &Gateway,
    work: impl Future<Output = Result<T, RpcError>>,
) -> Result<T, RpcError> {
    let mut work = pin!(work);
    let outcome = gateway.ending().run_until_cancelled(&mut work).await;
    outcome.unwrap_or_else(|| {
        let why = "toolway is shutting down; the request may have been carried out";
        Err(RpcError::new(code::INTERNAL_ERROR, why))
    })
}

async fn answer(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    method: &str,
    params: JsonObject,
    outbox: Option<&Outbox>,
) -> Result<Value, RpcError> {
    let token = params
        .get("_meta")
        .and_then(|meta| meta.get("progressToken"))
        .filter(|token| RpcId::read(token).is_some())
        .cloned();
    let (Some(token), Some(outbox)) = (token, outbox) else {
        return gateway.request(context, method, params, None).await;
    };
    let (sender, mut progress) = mpsc::channel(WAITING);
    let mut work = pin!(gateway.request(context, method, params, Some(sender)));
    let outcome = loop {
        tokio::select! {
            biased;
            Some(step) = progress.recv() => tell(outbox, &token, step),
            outcome = &mut work => break outcome,
        }
    };
    while let Ok(step) = progress.try_recv() {
        tell(outbox, &token, step);
    }
    outcome
}

fn tell(outbox: &Outbox, token: &Value, step: Progress) {
    let mut params = Map::new();
    params.insert("progressToken".to_owned(), token.clone());
    params.insert("progress".to_owned(), number(step.progress));
    if let Some(total) = step.total {
        params.insert("total".to_owned(), number(total));
    }
    if let Some(message) = step.message {
        params.insert("message".to_owned(), message.into());
    }
    outbox.say(notification(
        "notifications/progress",
        Value::Object(params),
    ));
}

/// A whole number is written as one.
fn number(number: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and in range")]
        let whole = number as i64;
        return whole.into();
    }
    number.into()
}

/// The requests of one client that are at work.
#[derive(Debug, Default)]
pub(in crate::server) struct ActiveRequests {
    table: Mutex<HashMap<RpcId, (u64, oneshot::Sender<()>)>>,
    begun: AtomicU64,
    /// How many are at work. More than are in the table, where one has the id of another.
    places: AtomicUsize,
}

/// A request's place among those at work; dropping it gives the place back.
#[derive(Debug)]
pub(in crate::server) struct ActiveRequest {
    running: Arc<ActiveRequests>,
    id: RpcId,
    number: u64,
    cancelled: oneshot::Receiver<()>,
}

impl ActiveRequests {
    /// Most requests of one client that are at work side by side.
    pub(in crate::server) const MAX: usize = 256;

    /// A place for a request with this id. If another running request has the same id, which the specification forbids,
    /// that one continues but can no longer be cancelled.
    ///
    /// # Errors
    /// When too many are at work.
    pub(in crate::server) fn begin(self: &Arc<Self>, id: RpcId) -> Result<ActiveRequest, RpcError> {
        let (cancel, cancelled) = oneshot::channel();
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let mut table = self.table();
        // Only added to under the lock.
        if self.places.load(Ordering::Relaxed) >= ActiveRequests::MAX {
            let most = ActiveRequests::MAX;
            return Err(RpcError::new(
                code::INTERNAL_ERROR,
                format!("{most} requests of this client are at work; try again in a moment"),
            ));
        }
        self.places.fetch_add(1, Ordering::Relaxed);
        table.insert(id.clone(), (number, cancel));
        drop(table);
        Ok(ActiveRequest {
            running: Arc::clone(self),
            id,
            number,
            cancelled,
        })
    }

    /// Cancels the request that `notifications/cancelled` names, if it is running.
    pub(in crate::server) fn cancel(&self, params: &JsonObject) {
        let id = params.get("requestId").and_then(RpcId::read);
        let cancelled = id.and_then(|id| self.table().remove(&id));
        if let Some((_, cancel)) = cancelled {
            let _ = cancel.send(());
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<RpcId, (u64, oneshot::Sender<()>)>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveRequest {
    /// Does the work; `None` when it was cancelled.
    pub(in crate::server) async fn hold<T>(
        mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            done = &mut work => Some(done),
            told = &mut self.cancelled => match told {
                Ok(()) => None,
                // Another request took its id.
                Err(_) => Some(work.await),
            },
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.running.places.fetch_sub(1, Ordering::Relaxed);
        let mut table = self.running.table();
        if table
            .get(&self.id)
            .is_some_and(|(number, _)| *number == self.number)
        {
            table.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cancelling(id: Value) -> JsonObject {
        Map::from_iter([("requestId".to_owned(), id)])
    }

    #[tokio::test]
    async fn who_is_cancelled_has_no_result() {
        let running = Arc::new(ActiveRequests::default());
        let place = running.begin(1.into()).unwrap();
        running.cancel(&cancelling(json!("1")));
        running.cancel(&cancelling(json!(null)));
        running.cancel(&cancelling(json!(1)));
        assert_eq!(place.hold(pin!(std::future::pending::<()>())).await, None);
        assert!(running.table().is_empty());
    }

    #[tokio::test]
    async fn two_with_one_id_both_end() {
        let running = Arc::new(ActiveRequests::default());
        let (first, second) = (
            running.begin(1.into()).unwrap(),
            running.begin(1.into()).unwrap(),
        );
        assert_eq!(first.hold(pin!(async { 1 })).await, Some(1));
        running.cancel(&cancelling(json!(1)));
        assert_eq!(second.hold(pin!(std::future::pending::<()>())).await, None);
    }

    #[test]
    fn too_many_are_refused() {
        let running = Arc::new(ActiveRequests::default());
        let places: Vec<_> = (0..ActiveRequests::MAX as u64)
            .map(|id| running.begin(id.into()).unwrap())
            .collect();
        assert!(running.begin(RpcId::Text("x".to_owned())).is_err());
        drop(places);
        assert!(running.table().is_empty());
    }

    #[test]
    fn one_id_for_all_is_no_way_around_the_bound() {
        let running = Arc::new(ActiveRequests::default());
        let places: Vec<_> = (0..ActiveRequests::MAX)
            .map(|_| running.begin(1.into()).unwrap())
            .collect();
        assert!(running.begin(1.into()).is_err());
        drop(places);
        assert!(running.begin(1.into()).is_ok());
    }

    #[test]
    fn whole_numbers_are_written_whole() {
        assert_eq!(number(3.0).to_string(), "3");
        assert_eq!(number(0.5).to_string(), "0.5");
        assert_eq!(number(1e300).to_string(), "1e+300");
    }
}
