//! Responses of the Responses API, so that a later request can name one instead of sending its items again. In memory: they
//! end with the process.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use super::Principal;
use toolway_core::translate::dialect::responses::Earlier;
use toolway_protocol::tool::JsonObject;

/// Longest life of a response.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Most responses.
const MAX_RESPONSES: usize = 10_000;
/// Most bytes of all responses and their input, as JSON.
const MAX_BYTES: usize = 64 << 20;
/// Longest conversation, in responses.
const MAX_CHAIN: usize = 1000;

/// A response and what it answered.
#[derive(Clone, Debug)]
pub struct KeptResponse {
    /// The response before it in the conversation.
    pub previous: Option<String>,
    /// The items of its request.
    pub input: Vec<Value>,
    /// The response.
    pub response: JsonObject,
}

/// The same as JSON, which takes a fraction of the memory.
#[derive(Clone, Debug)]
struct Entry {
    previous: Option<String>,
    input: Box<str>,
    response: Box<str>,
}

impl Entry {
    fn new(kept: KeptResponse) -> Entry {
        Entry {
            previous: kept.previous,
            input: Value::Array(kept.input).to_string().into(),
            response: Value::Object(kept.response).to_string().into(),
        }
    }

    fn read(&self) -> KeptResponse {
        KeptResponse {
            previous: self.previous.clone(),
            input: serde_json::from_str(&self.input).unwrap_or_default(),
            response: serde_json::from_str(&self.response).unwrap_or_default(),
        }
    }

    fn len(&self) -> usize {
        self.input.len() + self.response.len()
    }
}

/// The responses of all clients; the oldest go first where there is no room.
#[derive(Debug, Default)]
pub struct Responses(Mutex<Inner>);

type Id = (Principal, String);

#[derive(Debug, Default)]
struct Inner {
    kept: HashMap<Id, Entry>,
    /// Where an item of an output or input is.
    items: HashMap<Id, String>,
    /// The oldest first, with their bytes.
    order: VecDeque<(Id, usize, Instant)>,
    bytes: usize,
}

impl Responses {
    /// Keeps a response, unless it alone is larger than [`MAX_BYTES`].
    pub fn keep(&self, principal: Principal, kept: KeptResponse) {
        let Some(id) = kept.response.get("id").and_then(Value::as_str) else {
            return;
        };
        let id = (principal, id.to_owned());
        let items: Vec<String> = kept.item_ids().collect();
        let entry = Entry::new(kept);
        let bytes = entry.len();
        if bytes > MAX_BYTES {
            return;
        }
        let mut inner = self.lock();
        for item in items {
            inner.items.insert((principal, item), id.1.clone());
        }
        inner.bytes += bytes;
        inner.order.push_back((id.clone(), bytes, Instant::now()));
        inner.kept.insert(id, entry);
        inner.make_room();
    }

    /// The response of this client under this id.
    pub fn find(&self, principal: Principal, id: &str) -> Option<KeptResponse> {
        let mut inner = self.lock();
        inner.make_room();
        let entry = inner.kept.get(&(principal, id.to_owned())).cloned();
        drop(inner);
        entry.map(|entry| entry.read())
    }

    /// Removes a response. Returns false if it was not kept.
    pub fn remove(&self, principal: Principal, id: &str) -> bool {
        self.lock()
            .kept
            .remove(&(principal, id.to_owned()))
            .is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A thread that panicked with it has written whole entries.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptResponse {
    /// The items of its request and of its output.
    fn items(&self) -> impl Iterator<Item = &Value> {
        let output = self.response.get("output").and_then(Value::as_array);
        self.input.iter().chain(output.into_iter().flatten())
    }

    fn item_ids(&self) -> impl Iterator<Item = String> {
        self.items()
            .filter_map(|item| Some(item.get("id")?.as_str()?.to_owned()))
    }
}

impl Inner {
    fn make_room(&mut self) {
        while let Some((_, _, since)) = self.order.front() {
            let is_full = self.bytes > MAX_BYTES || self.order.len() > MAX_RESPONSES;
            if !is_full && since.elapsed() < MAX_AGE {
                break;
            }
            let Some((id, bytes, _)) = self.order.pop_front() else {
                break;
            };
            self.bytes -= bytes;
            if let Some(entry) = self.kept.remove(&id) {
                for item in entry.read().item_ids() {
                    // A later response may have the item as well.
                    let item = (id.0, item);
                    if self
                        .items
                        .get(&item)
                        .is_some_and(|response| *response == id.1)
                    {
                        self.items.remove(&item);
                    }
                }
            }
        }
    }
}

/// What one client's requests can refer to.
pub struct OfClient<'a>(pub &'a Responses, pub Principal);

impl Earlier for OfClient<'_> {
    fn conversation(&self, id: &str) -> Option<Vec<Value>> {
        let mut chain = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next {
            if chain.len() == MAX_CHAIN {
                return None;
            }
            let kept = self.0.find(self.1, &id)?;
            next = kept.previous.clone();
            chain.push(kept);
        }
        let chain = chain.iter().rev();
        Some(chain.flat_map(KeptResponse::items).cloned().collect())
    }

    fn item(&self, id: &str) -> Option<Value> {
        let inner = self.0.lock();
        let response = inner.items.get(&(self.1, id.to_owned()))?.clone();
        let entry = inner.kept.get(&(self.1, response))?.clone();
        drop(inner);
        let kept = entry.read();
        let found = kept.items().find(|item| item["id"] == id);
        found.cloned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(id: &str, previous: Option<&str>, text: &str) -> KeptResponse {
        let response = json!({"id": id, "output": [{"id": format!("msg_{id}"), "text": text}]});
        KeptResponse {
            previous: previous.map(str::to_owned),
            input: vec![json!({"role": "user", "content": text})],
            response: response.as_object().unwrap().clone(),
        }
    }

    #[test]
    fn a_conversation_is_what_was_said_in_its_order_and_only_its_clients() {
        let responses = Responses::default();
        responses.keep(1, kept("a", None, "one"));
        responses.keep(1, kept("b", Some("a"), "two"));
        let items = OfClient(&responses, 1).conversation("b").unwrap();
        let texts: Vec<&Value> = items
            .iter()
            .map(|item| item.get("text").unwrap_or(&item["content"]))
            .collect();
        assert_eq!(texts, ["one", "one", "two", "two"]);
        assert!(OfClient(&responses, 2).conversation("b").is_none());
        assert!(OfClient(&responses, 2).item("msg_a").is_none());
        assert_eq!(
            OfClient(&responses, 1).item("msg_a").unwrap()["text"],
            "one"
        );
        assert!(responses.remove(1, "a"));
        assert!(
            OfClient(&responses, 1).conversation("b").is_none(),
            "its beginning is gone"
        );
    }

    #[test]
    fn the_oldest_go_where_there_is_no_room() {
        let responses = Responses::default();
        let text = "x".repeat(MAX_BYTES / 5);
        for id in ["a", "b", "c"] {
            responses.keep(1, kept(id, None, &text));
        }
        assert!(responses.find(1, "a").is_none());
        assert!(OfClient(&responses, 1).item("msg_a").is_none());
        assert!(responses.find(1, "c").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_lives_for_a_day() {
        let responses = Responses::default();
        responses.keep(1, kept("a", None, "one"));
        tokio::time::advance(MAX_AGE).await;
        assert!(responses.find(1, "a").is_none());
    }
}
