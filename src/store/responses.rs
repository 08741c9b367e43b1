//! Responses of the Responses API, so that a later request can name one instead of sending its items again.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{EntryKind, FoundEntry, Principal, Reserve, StoreEntries, StoreEntry, StoredContent};
use toolway_core::{
    agent::parked::NoRoom,
    translate::dialect::responses::{Earlier, References, conversation_id, is_unfinished},
};
use toolway_protocol::tool::JsonObject;

/// Longest conversation, in responses.
const MAX_CHAIN: usize = 1000;

/// A response and what it answered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeptResponse {
    /// The ids of the responses before it in the conversation, the first one first.
    pub ancestors: Vec<String>,
    /// The items of its request.
    pub input: Vec<Value>,
    /// The response.
    pub response: JsonObject,
}

impl KeptResponse {
    /// The response's id.
    pub fn id(&self) -> &str {
        let id = self.response.get("id");
        id.and_then(Value::as_str).unwrap_or_default()
    }

    /// The items of its request and of its output.
    pub fn items(&self) -> impl Iterator<Item = &Value> {
        let output = self.response.get("output").and_then(Value::as_array);
        self.input.iter().chain(output.into_iter().flatten())
    }

    fn read(entry: &FoundEntry) -> Option<KeptResponse> {
        match &entry.content {
            StoredContent::Json(text) => serde_json::from_str(text).ok(),
            StoredContent::Turn(_) => None,
        }
    }
}

/// The key of an item. No id of a response begins so.
fn key_of_item(id: &str) -> String {
    format!("item {id}")
}

impl StoreEntries {
    /// Keeps a response, in place of one with the same id.
    pub async fn keep_response(&self, principal: Principal, kept: &KeptResponse) {
        let ids = kept.items().filter_map(|item| item["id"].as_str());
        let mut keys = vec![kept.id().to_owned()];
        keys.extend(ids.map(key_of_item));
        if let Ok(text) = serde_json::to_string(kept) {
            let content = StoredContent::Json(text.into());
            let kind = EntryKind::Response;
            self.keep(StoreEntry {
                kind,
                principal,
                keys,
                content,
            })
            .await;
        }
    }

    /// The response of this client under this id.
    ///
    /// # Errors
    /// [`NoRoom`] when `reserve` refuses.
    pub async fn find_response(
        &self,
        principal: Principal,
        id: &str,
        reserve: &mut Reserve<'_>,
    ) -> Result<Option<KeptResponse>, NoRoom> {
        let keys = [id.to_owned()];
        let found = self
            .find(EntryKind::Response, principal, &keys, reserve)
            .await?;
        Ok(found.first().and_then(KeptResponse::read))
    }

    /// Removes a response. False if it was not kept.
    pub async fn remove_response(&self, principal: Principal, id: &str) -> bool {
        self.remove(EntryKind::Response, principal, id).await
    }

    /// What a request of this client refers to, and the ids of the responses that it continues.
    ///
    /// # Errors
    /// [`NoRoom`] when `reserve` refuses.
    pub async fn find_earlier(
        &self,
        principal: Principal,
        references: References,
        reserve: &mut Reserve<'_>,
    ) -> Result<(Earlier, Vec<String>), NoRoom> {
        let mut earlier = Earlier::default();
        let mut chain = Vec::new();
        if let Some(previous) = references.previous
            && let Some(last) = self.find_response(principal, &previous, reserve).await?
            && last.ancestors.len() < MAX_CHAIN
        {
            earlier.is_unfinished = is_unfinished(&last.response);
            let before = self.find_chain(principal, &last.ancestors, reserve).await?;
            if let Some(before) = before {
                let first = before.first().unwrap_or(&last);
                let base = self.find_base(principal, first, reserve).await?;
                earlier.conversation = base.map(|mut items| {
                    let all = before.iter().chain([&last]);
                    items.extend(all.flat_map(KeptResponse::items).cloned());
                    items
                });
            }
            chain = last.ancestors;
            chain.push(previous);
        }
        if let Some(id) = references.conversation {
            let kept = self.find_conversation(principal, &id, reserve).await?;
            earlier.conversation = kept.map(|kept| kept.items);
        }
        if !references.items.is_empty() {
            let keys = references.items.iter().map(|id| key_of_item(id));
            let keys: Vec<String> = keys.collect();
            let found = self
                .find(EntryKind::Response, principal, &keys, reserve)
                .await?;
            for entry in found {
                let is_known = |id: &str| earlier.items.contains_key(id);
                if entry.key.strip_prefix("item ").is_some_and(is_known) {
                    // It came with another item of its response.
                    continue;
                }
                let kept = KeptResponse::read(&entry).unwrap_or_default();
                for item in kept.items() {
                    let id = item["id"].as_str().unwrap_or_default();
                    if references.items.contains(id) && !earlier.items.contains_key(id) {
                        earlier.items.insert(id.to_owned(), item.clone());
                    }
                }
            }
        }
        Ok((earlier, chain))
    }

    /// What a response continues besides other responses: the items before it in its conversation. None if they are not
    /// there.
    async fn find_base(
        &self,
        principal: Principal,
        kept: &KeptResponse,
        reserve: &mut Reserve<'_>,
    ) -> Result<Option<Vec<Value>>, NoRoom> {
        let Some(id) = conversation_id(&kept.response) else {
            return Ok(Some(Vec::new()));
        };
        let conversation = self.find_conversation(principal, id, reserve).await?;
        let first = kept.items().next().map(|item| &item["id"]);
        Ok(conversation.and_then(|conversation| {
            let mut items = conversation.items;
            let at = items.iter().position(|item| Some(&item["id"]) == first)?;
            items.truncate(at);
            Some(items)
        }))
    }

    /// The responses of these ids, in their order; none if one is not there.
    async fn find_chain(
        &self,
        principal: Principal,
        ids: &[String],
        reserve: &mut Reserve<'_>,
    ) -> Result<Option<Vec<KeptResponse>>, NoRoom> {
        if ids.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let found = self
            .find(EntryKind::Response, principal, ids, reserve)
            .await?;
        let find = |id: &String| found.iter().find(|entry| entry.key == *id);
        let chain = ids.iter().map(|id| KeptResponse::read(find(id)?));
        Ok(chain.collect())
    }
}
