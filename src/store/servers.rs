//! The servers that were added while toolway ran.

use super::{EntryKind, StoreEntries, StoreEntry, StoredContent};

/// There is one list, of no client.
const KEY: &str = "servers";

impl StoreEntries {
    /// Keeps the list, in place of the one before.
    pub async fn keep_servers(&self, list: String) {
        self.keep(StoreEntry {
            kind: EntryKind::Servers,
            principal: 0,
            keys: vec![KEY.to_owned()],
            content: StoredContent::Json(list.into()),
        })
        .await;
    }

    /// The list, if one was kept.
    pub async fn find_servers(&self) -> Option<String> {
        let keys = [KEY.to_owned()];
        let found = self
            .find(EntryKind::Servers, 0, &keys, &mut |_| true)
            .await
            .ok()?;
        found.first().and_then(|entry| match &entry.content {
            StoredContent::Json(text) => Some(text.to_string()),
            StoredContent::Turn(_) => None,
        })
    }
}
