//! Delivers a server's progress notifications to the task that waits for the call.
//!
//! Notifications are removed from the stream before rmcp sees them: rmcp runs each in a task of its own, so the last
//! progress could arrive after the result.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use rmcp::model::{NumberOrString, ProgressToken};
use serde_json::Value;

use super::running::Running;
use toolway_protocol::{mcp::progress::read_progress, tool::Progress};

/// Messages with a token that no call has claimed yet, which are kept for a moment.
const EARLY: usize = 64;

/// The calls that rmcp made on one connection and that want progress, by token.
#[derive(Clone, Debug, Default)]
pub(in crate::upstream::mcp) struct ProgressTable(Arc<Mutex<ProgressState>>);

#[derive(Debug, Default)]
struct ProgressState {
    claimed: HashMap<i64, Weak<Running>>,
    early: HashMap<i64, Progress>,
}

/// One call's progress. Dropping it ends the delivery.
pub(in crate::upstream::mcp) struct Claim {
    table: ProgressTable,
    token: i64,
}

impl ProgressTable {
    /// Delivers to a call what comes with a token of rmcp's, which are numbers. rmcp tells the token only after the
    /// request is on its way, so the first message may already be here.
    pub(in crate::upstream::mcp) fn claim(
        &self,
        token: &ProgressToken,
        running: &Arc<Running>,
    ) -> Claim {
        let token = match &token.0 {
            NumberOrString::Number(number) => *number,
            NumberOrString::String(_) => i64::MIN,
        };
        let mut table = self.table();
        if let Some(early) = table.early.remove(&token) {
            running.report(early);
        }
        table.claimed.insert(token, Arc::downgrade(running));
        drop(table);
        Claim {
            table: self.clone(),
            token,
        }
    }

    /// Delivers what came with a token.
    pub(super) fn deliver(&self, token: i64, progress: Progress) {
        let mut table = self.table();
        if let Some(call) = table.claimed.get(&token) {
            if let Some(running) = call.upgrade() {
                running.report(progress);
            }
            return;
        }
        if table.early.len() >= EARLY {
            table.early.clear();
        }
        table.early.insert(token, progress);
    }

    fn table(&self) -> MutexGuard<'_, ProgressState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the `params` of one notification: the token, a number that some servers return as a string, and the progress.
pub(super) fn read(params: &Value) -> Option<(i64, Progress)> {
    let token = &params["progressToken"];
    let number = token.as_i64().or_else(|| token.as_str()?.parse().ok())?;
    Some((number, read_progress(params)?))
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.table.table().claimed.remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(table: &ProgressTable, n: i64) -> (Claim, Arc<Running>) {
        let running = Running::new(None, None);
        let token = ProgressToken(NumberOrString::Number(n));
        (table.claim(&token, &running), running)
    }

    fn deliver(table: &ProgressTable, params: &Value) {
        let (token, progress) = read(params).unwrap();
        table.deliver(token, progress);
    }

    fn next(running: &Running) -> Option<f64> {
        running.next_progress().map(|progress| progress.progress)
    }

    #[test]
    fn progress_that_comes_before_its_claim_is_not_lost() {
        let table = ProgressTable::default();
        deliver(&table, &json!({"progressToken": 1, "progress": 0.5}));
        let (_claim, running) = claim(&table, 1);
        deliver(&table, &json!({"progressToken": "1", "progress": 0.7}));
        deliver(&table, &json!({"progressToken": 2, "progress": 0.9}));
        let all = (next(&running), next(&running), next(&running));
        assert_eq!(all, (Some(0.5), Some(0.7), None));
    }

    #[test]
    fn what_is_no_progress_of_a_call_is_not_read() {
        assert!(read(&json!({"progressToken": [1], "progress": 1})).is_none());
        assert!(read(&json!({"progress": 1})).is_none());
        assert!(read(&Value::Null).is_none());
    }

    #[test]
    fn strangers_do_not_pile_up() {
        let table = ProgressTable::default();
        for n in 0..1000 {
            deliver(&table, &json!({"progressToken": n, "progress": 0}));
        }
        assert!(table.table().early.len() <= EARLY);
    }

    #[test]
    fn a_call_that_is_over_hears_nothing_more() {
        let table = ProgressTable::default();
        drop(claim(&table, 1));
        assert!(table.table().claimed.is_empty());
    }
}
