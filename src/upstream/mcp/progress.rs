//! Progress of running calls: from the server's notifications to whoever waits for the call.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use tokio::sync::mpsc;

use crate::tool::Progress;

/// Progress that may wait to be seen, per call; more is left out.
const WAITING: usize = 16;

/// Messages with a token that no call has claimed yet, which are kept for a moment.
const EARLY: usize = 64;

/// The calls that want to hear of progress, by token.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgressTable(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    claimed: HashMap<ProgressToken, mpsc::Sender<Progress>>,
    early: HashMap<ProgressToken, Progress>,
}

/// One call's progress. Dropping it ends the delivery.
pub(super) struct Claim {
    table: ProgressTable,
    token: ProgressToken,
    progress: mpsc::Receiver<Progress>,
    latest: f64,
}

impl ProgressTable {
    /// Takes what comes with a token. rmcp tells the token only after the request is on its way, so the
    /// first message may already be here.
    pub(super) fn claim(&self, token: ProgressToken) -> Claim {
        let (sender, progress) = mpsc::channel(WAITING);
        let mut table = self.table();
        if let Some(early) = table.early.remove(&token) {
            let _ = sender.try_send(early);
        }
        table.claimed.insert(token.clone(), sender);
        drop(table);
        Claim {
            table: self.clone(),
            token,
            progress,
            latest: f64::NEG_INFINITY,
        }
    }

    /// Delivers one notification.
    pub(super) fn deliver(&self, params: ProgressNotificationParam) {
        let progress = Progress {
            progress: params.progress,
            total: params.total,
            message: params.message,
        };
        let mut table = self.table();
        if let Some(call) = table.claimed.get(&params.progress_token) {
            let _ = call.try_send(progress);
            return;
        }
        if table.early.len() >= EARLY {
            table.early.clear();
        }
        table.early.insert(params.progress_token, progress);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// The next progress; never ends. What came out of order is left out. Cancel safe.
    pub(super) async fn next(&mut self) -> Progress {
        loop {
            match self.progress.recv().await {
                Some(progress) if progress.progress >= self.latest => {
                    self.latest = progress.progress;
                    return progress;
                }
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.table.table().claimed.remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use rmcp::model::NumberOrString;

    use super::*;

    fn token(n: i64) -> ProgressToken {
        ProgressToken(NumberOrString::Number(n))
    }

    fn deliver(table: &ProgressTable, n: i64, progress: f64) {
        table.deliver(ProgressNotificationParam::new(token(n), progress));
    }

    fn next(claim: &mut Claim) -> Option<f64> {
        claim
            .next()
            .now_or_never()
            .map(|progress| progress.progress)
    }

    #[tokio::test]
    async fn progress_that_comes_before_its_claim_is_not_lost() {
        let table = ProgressTable::default();
        deliver(&table, 1, 0.5);
        let mut claim = table.claim(token(1));
        deliver(&table, 1, 0.7);
        deliver(&table, 2, 0.9);
        assert_eq!(
            (next(&mut claim), next(&mut claim), next(&mut claim)),
            (Some(0.5), Some(0.7), None)
        );
    }

    #[tokio::test]
    async fn progress_never_goes_back() {
        let table = ProgressTable::default();
        let mut claim = table.claim(token(1));
        for step in [1.0, 3.0, 2.0, 3.0] {
            deliver(&table, 1, step);
        }
        assert_eq!(
            (next(&mut claim), next(&mut claim), next(&mut claim)),
            (Some(1.0), Some(3.0), Some(3.0))
        );
    }

    #[tokio::test]
    async fn strangers_do_not_pile_up() {
        let table = ProgressTable::default();
        for n in 0..1000 {
            deliver(&table, n, 0.0);
        }
        assert!(table.table().early.len() <= EARLY);
    }
}
