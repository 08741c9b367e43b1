//! Progress of running calls: from the server's notifications to whoever waits for the call.
//!
//! Notifications are taken out of the stream of messages before rmcp sees them: it hands each to a task of its
//! own, so that the last step could arrive after the answer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rmcp::model::{NumberOrString, ProgressToken};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{mcp::progress::read_progress, tool::Progress};

/// Progress that may wait to be seen, per call; more is left out.
const WAITING: usize = 16;

/// Messages with a token that no call has claimed yet, which are kept for a moment.
const EARLY: usize = 64;

/// The calls of one connection that want to hear of progress, by token.
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
        }
    }

    /// Delivers the `params` of one notification; what makes no sense is left out.
    pub(super) fn deliver(&self, params: &Value) {
        let Some((token, progress)) = token(params).zip(read_progress(params)) else {
            return;
        };
        let mut table = self.table();
        if let Some(call) = table.claimed.get(&token) {
            let _ = call.try_send(progress);
            return;
        }
        if table.early.len() >= EARLY {
            table.early.clear();
        }
        table.early.insert(token, progress);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The token, which rmcp makes of numbers and which may come back as their digits.
fn token(params: &Value) -> Option<ProgressToken> {
    let token = &params["progressToken"];
    let number = token.as_i64().or_else(|| token.as_str()?.parse().ok())?;
    Some(ProgressToken(NumberOrString::Number(number)))
}

impl Claim {
    /// The next progress; never ends. Cancel safe.
    pub(super) async fn next(&mut self) -> Progress {
        match self.progress.recv().await {
            Some(progress) => progress,
            None => std::future::pending().await,
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
    use serde_json::json;

    use super::*;

    fn claim(table: &ProgressTable, n: i64) -> Claim {
        table.claim(ProgressToken(NumberOrString::Number(n)))
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
        table.deliver(&json!({"progressToken": 1, "progress": 0.5}));
        let mut claim = claim(&table, 1);
        table.deliver(&json!({"progressToken": "1", "progress": 0.7}));
        table.deliver(&json!({"progressToken": 2, "progress": 0.9}));
        let all = (next(&mut claim), next(&mut claim), next(&mut claim));
        assert_eq!(all, (Some(0.5), Some(0.7), None));
    }

    #[tokio::test]
    async fn strangers_do_not_pile_up() {
        let table = ProgressTable::default();
        for n in 0..1000 {
            table.deliver(&json!({"progressToken": n, "progress": 0}));
        }
        assert!(table.table().early.len() <= EARLY);
    }

    #[tokio::test]
    async fn a_call_that_is_over_hears_nothing_more() {
        let table = ProgressTable::default();
        drop(claim(&table, 1));
        assert!(table.table().claimed.is_empty());
    }
}
