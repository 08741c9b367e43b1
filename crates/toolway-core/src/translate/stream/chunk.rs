//! A chunk in a loop, taken apart and put together again: the way for everything that `fast_path` does not
//! know to be clean.

use serde_json::{Value, json};

use super::{
    ChatStream, Fragment, Known, MessageContent, StreamError, elements,
    round::{REASONING, Said},
    write_event,
};
use crate::translate::usage;
use toolway_protocol::{openai::FinishReason, tool::JsonObject};

/// Members of a chunk that say nothing to a client if they stand alone.
const SILENT: [&str; 9] = [
    "id",
    "object",
    "created",
    "model",
    "choices",
    "usage",
    "system_fingerprint",
    "service_tier",
    "obfuscation",
];

/// Most chunks without choices that wait for the identity of the answer.
const MAX_EARLY: usize = 16;

impl ChatStream {
    /// Reads one chunk and writes what the client is to see of it, if anything.
    pub(super) fn push_chunk(
        &mut self,
        mut chunk: JsonObject,
        known: &dyn Known,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamError> {
        self.identity.pin(&chunk);
        self.round.read_usage(chunk.shift_remove("usage"));
        let Some(mut choice) = first_choice(chunk.shift_remove("choices")) else {
            let waits = self.identity.id.is_none() && self.early.len() < MAX_EARLY;
            match chunk_tells(&chunk) {
                true if waits => self.early.push(chunk),
                true => self.write_chunk(chunk, Vec::new(), out),
                false => {}
            }
            return Ok(());
        };
        for early in std::mem::take(&mut self.early) {
            self.write_chunk(early, Vec::new(), out);
        }
        let said = take_delta(&mut choice);
        let told = said.len();
        let mut delta = self.read_delta(said, known)?;
        if let Some(reason) = choice.shift_remove("finish_reason") {
            self.round.read_finish(&reason)?;
        }
        let calls = self.round.calls.show(known, &mut self.shown);
        if !calls.is_empty() {
            delta.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        let is_first = !self.role_shown && told > 0;
        let is_whole = told > 0 && delta.len() == told;
        let tells = delta.values().any(|value| !value.is_null() && *value != "")
            || choice
                .iter()
                .any(|(key, value)| key != "index" && !value.is_null())
            || chunk_tells(&chunk);
        if !(is_first || is_whole || tells) {
            return Ok(());
        }
        choice.insert("finish_reason".to_owned(), Value::Null);
        let choice = self.choice(delta, choice);
        self.write_chunk(chunk, vec![choice], out);
        Ok(())
    }

    /// Reads a delta. What stays of it is for the client; the calls are not among it.
    fn read_delta(
        &mut self,
        delta: JsonObject,
        known: &dyn Known,
    ) -> Result<JsonObject, StreamError> {
        let mut shown = JsonObject::new();
        let mut thoughts = None;
        let mut fragments = Vec::new();
        for (key, value) in delta {
            match key.as_str() {
                "role" => {}
                "content" => {
                    let null = value.is_null();
                    let said = self
                        .round
                        .read_content(MessageContent::read(value), known)?;
                    if null {
                        shown.insert(key, Value::Null);
                    } else if let Some(text) = said.text {
                        shown.insert(key, text.into());
                    }
                    thoughts = said.reasoning;
                }
                "tool_calls" => fragments.extend(elements(value).filter_map(Fragment::read)),
                "function_call" => fragments.extend(Fragment::read_legacy(value)),
                "refusal" => {
                    if let Some(text) = value.as_str() {
                        self.round.add_refusal(text)?;
                    }
                    shown.insert(key, value);
                }
                name if REASONING.contains(&name) => {
                    let text = MessageContent::read(value).text.unwrap_or_default();
                    // Both names at once say the same thing twice.
                    if self
                        .round
                        .reasoning
                        .as_ref()
                        .is_none_or(|(field, _)| field == name)
                    {
                        self.round.add_reasoning(name, &text)?;
                    }
                    shown.insert(key, text.into());
                }
                _ => {
                    self.round.read_extra(&key, &value);
                    shown.insert(key, value);
                }
            }
        }
        self.round.read_calls(fragments, known)?;
        if let Some(thoughts) = thoughts {
            add_text(&mut shown, REASONING[0], &thoughts);
        }
        Ok(shown)
    }

    /// A choice with this delta, `role` in front if it is the first.
    fn choice(&mut self, delta: JsonObject, rest: JsonObject) -> Value {
        let mut choice = JsonObject::new();
        choice.insert("index".to_owned(), 0.into());
        choice.insert("delta".to_owned(), Value::Object(self.with_role(delta)));
        for (key, value) in rest {
            choice.entry(key).or_insert(value);
        }
        choice.entry("finish_reason").or_insert(Value::Null);
        Value::Object(choice)
    }

    fn with_role(&mut self, delta: JsonObject) -> JsonObject {
        if std::mem::replace(&mut self.role_shown, true) {
            return delta;
        }
        let role = std::iter::once(("role".to_owned(), Value::from("assistant")));
        role.chain(delta).collect()
    }

    /// Text and thoughts that were held back.
    pub(super) fn show_text(&mut self, said: Said, out: &mut Vec<u8>) {
        let mut delta = JsonObject::new();
        let text = said.text.filter(|text| !text.is_empty());
        let reasoning = said.reasoning.filter(|text| !text.is_empty());
        delta.extend(text.map(|text| ("content".to_owned(), text.into())));
        delta.extend(reasoning.map(|text| (REASONING[0].to_owned(), text.into())));
        self.show_delta(delta, out);
    }

    /// Deltas of the client's own calls that were held back.
    pub(super) fn show_calls(&mut self, calls: Vec<Value>, out: &mut Vec<u8>) {
        if !calls.is_empty() {
            let delta = std::iter::once(("tool_calls".to_owned(), Value::Array(calls)));
            self.show_delta(delta.collect(), out);
        }
    }

    fn show_delta(&mut self, delta: JsonObject, out: &mut Vec<u8>) {
        if !delta.is_empty() {
            let choice = self.choice(delta, JsonObject::new());
            self.write_chunk(JsonObject::new(), vec![choice], out);
        }
    }

    /// The one chunk with a finish reason.
    pub(super) fn show_finish(&mut self, reason: FinishReason, out: &mut Vec<u8>) {
        let mut delta = JsonObject::new();
        if !self.role_shown {
            delta.insert("content".to_owned(), "".into());
        }
        let mut rest = JsonObject::new();
        rest.insert("logprobs".to_owned(), Value::Null);
        rest.insert("finish_reason".to_owned(), reason.as_str().into());
        let choice = self.choice(delta, rest);
        self.write_chunk(JsonObject::new(), vec![choice], out);
    }

    /// The one chunk with the token counts.
    pub(super) fn show_usage(&mut self, counts: &JsonObject, out: &mut Vec<u8>) {
        let mut counts = counts.clone();
        usage::complete(&mut counts);
        let mut chunk = self.envelope(JsonObject::new());
        chunk.insert("choices".to_owned(), json!([]));
        chunk.insert("usage".to_owned(), Value::Object(counts));
        write_event(&Value::Object(chunk), out);
    }

    fn write_chunk(&mut self, rest: JsonObject, choices: Vec<Value>, out: &mut Vec<u8>) {
        let mut chunk = self.envelope(rest);
        chunk.insert("choices".to_owned(), Value::Array(choices));
        if self.settings.include_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        write_event(&Value::Object(chunk), out);
    }

    /// The pinned identity, and then `rest`.
    pub(super) fn envelope(&mut self, rest: JsonObject) -> JsonObject {
        self.identity.fill(&self.settings, &mut self.shown.ids);
        self.identity.envelope("chat.completion.chunk", rest)
    }
}

/// A chunk has members that say something without a choice.
fn chunk_tells(chunk: &JsonObject) -> bool {
    chunk
        .iter()
        .any(|(key, value)| !SILENT.contains(&key.as_str()) && !value.is_null())
}

/// The choice that an answer of one choice has.
pub(crate) fn first_choice(choices: Option<Value>) -> Option<JsonObject> {
    let is_first = |choice: &JsonObject| {
        choice
            .get("index")
            .is_none_or(|at| !at.is_u64() || *at == 0)
    };
    let choices = match choices? {
        Value::Array(choices) => choices,
        choice @ Value::Object(_) => vec![choice],
        _ => return None,
    };
    choices.into_iter().find_map(|choice| match choice {
        Value::Object(choice) if is_first(&choice) => Some(choice),
        _ => None,
    })
}

/// The delta of a choice; an upstream that does not stream sends the whole `message`, an older one `text`.
pub(crate) fn take_delta(choice: &mut JsonObject) -> JsonObject {
    let (delta, message) = (choice.shift_remove("delta"), choice.shift_remove("message"));
    match (delta, message) {
        (Some(Value::Object(delta)), _) | (_, Some(Value::Object(delta))) => delta,
        _ => JsonObject::new(),
    }
}

/// Adds to a text member that may be there.
pub(super) fn add_text(object: &mut JsonObject, key: &str, text: &str) {
    match object.get_mut(key) {
        Some(Value::String(known)) => known.push_str(text),
        _ => {
            object.insert(key.to_owned(), text.into());
        }
    }
}
