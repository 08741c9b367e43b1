//! The `id`, `created` and `model` of an answer: one of each, whatever the rounds bring.

use serde_json::Value;

use super::Settings;
use crate::translate::ids::Ids;
use toolway_protocol::tool::JsonObject;

/// What is settled so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Identity {
    pub id: Option<String>,
    pub created: Option<u64>,
    pub model: Option<String>,
}

impl Identity {
    /// Takes from a chunk what is not settled yet and is there.
    pub(super) fn pin(&mut self, chunk: &JsonObject) {
        if self.id.is_none() {
            self.id = chunk.get("id").and_then(text);
        }
        if self.created.is_none() {
            self.created = chunk.get("created").and_then(seconds).filter(|&at| at > 0);
        }
        if self.model.is_none() {
            self.model = chunk.get("model").and_then(text);
        }
    }

    /// Makes up what is still missing.
    pub(super) fn fill(&mut self, settings: &Settings, ids: &mut Ids) {
        self.id.get_or_insert_with(|| ids.completion());
        self.created.get_or_insert(settings.created);
        self.model.get_or_insert_with(|| settings.model.clone());
    }

    /// The first members of a chunk or a completion, and then those of `rest` that are not among them.
    pub(super) fn envelope(&self, object: &str, rest: JsonObject) -> JsonObject {
        let mut envelope = JsonObject::new();
        envelope.insert("id".to_owned(), self.id.clone().into());
        envelope.insert("object".to_owned(), object.into());
        envelope.insert("created".to_owned(), self.created.into());
        envelope.insert("model".to_owned(), self.model.clone().into());
        for (key, value) in rest {
            envelope.entry(key).or_insert(value);
        }
        envelope
    }
}

/// A text that says something, or a number in place of it.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => (!text.is_empty()).then(|| text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A time in whole seconds, from a number or a text.
pub(super) fn seconds(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number.as_f64().filter(|f| (0.0..1e15).contains(f));
            float.map(|f| f as u64)
        }),
        Value::String(text) => text
            .trim()
            .parse::<f64>()
            .ok()
            .filter(|f| (0.0..1e15).contains(f))
            .map(|f| f as u64),
        _ => None,
    }
}
