//! What came of calls that a client has approved, so that the same request, sent again, makes none.

use super::{EntryKind, Principal, StoreEntries, StoreEntry, StoredContent};

impl StoreEntries {
    /// Keeps what came of the call that the request for approval of this name was about.
    pub async fn keep_outcome(&self, principal: Principal, id: &str, outcome: String) {
        self.keep(StoreEntry {
            kind: EntryKind::Outcome,
            principal,
            keys: vec![id.to_owned()],
            content: StoredContent::Json(outcome.into()),
        })
        .await;
    }

    /// What came of it, if that is known.
    pub async fn outcome(&self, principal: Principal, id: &str) -> Option<String> {
        let keys = [id.to_owned()];
        // Outcomes are short, so that no room is reserved for them.
        let mut any = |_| true;
        let found = self.find(EntryKind::Outcome, principal, &keys, &mut any);
        match found.await.ok()?.pop()?.content {
            StoredContent::Json(text) => Some(text.to_string()),
            StoredContent::Turn(_) => None,
        }
    }
}
