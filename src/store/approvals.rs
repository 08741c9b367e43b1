//! Calls that wait for the approval of a client, and what came of those that were made.

use super::{EntryKind, Principal, StoreEntries, StoreEntry, StoredContent};
use toolway_core::agent::parked::NoRoom;

/// What a request for approval stands for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approval {
    /// It waited, and is used up with this answer: the call is to be made now.
    Used,
    /// The call was made, and this came of it.
    Made(String),
    /// It is for another call.
    Different,
    /// It does not exist, has expired, or its call was made and what came of it is lost.
    Unknown,
}

impl StoreEntries {
    /// Has a call wait for the approval of this client. `call` says which call it is.
    pub async fn keep_approval(&self, principal: Principal, id: &str, call: String) {
        self.keep_under(principal, key_of_call(id), call).await;
    }

    /// Uses a request for approval up: of all processes on one store, one gets [`Approval::Used`], once.
    ///
    /// # Errors
    /// [`NoRoom`] is not given: entries of this kind are small.
    pub async fn use_approval(
        &self,
        principal: Principal,
        id: &str,
        call: &str,
    ) -> Result<Approval, NoRoom> {
        let (waiting, made) = (key_of_call(id), key_of_outcome(id));
        let keys = [waiting, made];
        let found = self
            .find(EntryKind::Approval, principal, &keys, &mut |_| true)
            .await?;
        let [waiting, made] = keys;
        let text = |key: &str| {
            let entry = found.iter().find(|entry| entry.key == key)?;
            match &entry.content {
                StoredContent::Json(text) => Some(text.to_string()),
                StoredContent::Turn(_) => None,
            }
        };
        if let Some(outcome) = text(&made) {
            return Ok(Approval::Made(outcome));
        }
        Ok(match text(&waiting) {
            None => Approval::Unknown,
            Some(other) if other != call => Approval::Different,
            Some(_) => match self.remove(EntryKind::Approval, principal, &waiting).await {
                true => Approval::Used,
                false => Approval::Unknown,
            },
        })
    }

    /// Keeps what came of a call that was approved, so that the same request, sent again, gets it and makes no call.
    pub async fn keep_outcome(&self, principal: Principal, id: &str, outcome: String) {
        self.keep_under(principal, key_of_outcome(id), outcome)
            .await;
    }

    async fn keep_under(&self, principal: Principal, key: String, text: String) {
        self.keep(StoreEntry {
            kind: EntryKind::Approval,
            principal,
            keys: vec![key],
            content: StoredContent::Json(text.into()),
        })
        .await;
    }
}

fn key_of_call(id: &str) -> String {
    format!("call {id}")
}

fn key_of_outcome(id: &str) -> String {
    format!("outcome {id}")
}
