//! Conversations of the Responses API. One is one entry, so that it is there whole or not at all.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{EntryKind, Principal, Reserve, StoreEntries, StoreEntry, StoredContent};
use toolway_core::agent::parked::NoRoom;
use toolway_protocol::tool::JsonObject;

/// A conversation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeptConversation {
    /// Its id.
    pub id: String,
    /// When it was created, in seconds since 1970.
    pub created_at: u64,
    /// What the client noted with it.
    pub metadata: JsonObject,
    /// Its items, the first one first. Each has an id.
    pub items: Vec<Value>,
}

impl KeptConversation {
    /// As clients see it, without the items.
    pub fn resource(&self) -> Value {
        json!({"id": self.id, "object": "conversation", "created_at": self.created_at, "metadata": self.metadata})
    }
}

impl StoreEntries {
    /// Keeps a conversation, in place of one with the same id.
    pub async fn keep_conversation(&self, principal: Principal, kept: &KeptConversation) {
        if let Ok(text) = serde_json::to_string(kept) {
            self.keep(StoreEntry {
                kind: EntryKind::Conversation,
                principal,
                keys: vec![kept.id.clone()],
                content: StoredContent::Json(text.into()),
            })
            .await;
        }
    }

    /// The conversation of this client under this id.
    ///
    /// # Errors
    /// [`NoRoom`] when `reserve` refuses.
    pub async fn find_conversation(
        &self,
        principal: Principal,
        id: &str,
        reserve: &mut Reserve<'_>,
    ) -> Result<Option<KeptConversation>, NoRoom> {
        let keys = [id.to_owned()];
        let kind = EntryKind::Conversation;
        let found = self.find(kind, principal, &keys, reserve).await?;
        Ok(found.first().and_then(|entry| match &entry.content {
            StoredContent::Json(text) => serde_json::from_str(text).ok(),
            StoredContent::Turn(_) => None,
        }))
    }

    /// Removes a conversation. False if it was not kept.
    pub async fn remove_conversation(&self, principal: Principal, id: &str) -> bool {
        self.remove(EntryKind::Conversation, principal, id).await
    }
}
