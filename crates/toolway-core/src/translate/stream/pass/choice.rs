//! One choice of an answer that passes through, its deltas mended.

use serde_json::{Value, json};

use crate::translate::{
    ids::Ids,
    stream::{
        Fragment, Known, MAX_ROUND_BYTES, MessageContent, REASONING, Settings, StreamError,
        TextFilter,
        calls::Calls,
        chunk::add_text,
        elements, identity, mend_name,
        round::{failed, says_something},
        text::TextPiece,
    },
};
use toolway_protocol::{
    openai::{self, FinishReason},
    tool::JsonObject,
};

/// One of the choices of an answer.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) calls: Calls,
    /// The id of each call as the client knows it.
    pub(super) ids: Vec<String>,
    pub(super) filter: TextFilter,
    pub(super) finish: Option<FinishReason>,
    /// The finish reason went out.
    pub(super) finished: bool,
    /// It says something, and not only thoughts.
    pub(super) says_something: bool,
}

impl Choice {
    pub(super) fn new(settings: &Settings) -> Choice {
        Choice {
            calls: Calls::default(),
            ids: Vec::new(),
            filter: TextFilter::new(settings),
            finish: None,
            finished: false,
            says_something: false,
        }
    }

    pub(super) fn mend_delta(
        &mut self,
        delta: &mut JsonObject,
        ids: &mut Ids,
        known: &dyn Known,
    ) -> Result<(), StreamError> {
        if delta.get("role").is_some_and(Value::is_null) {
            delta.shift_remove("role");
        }
        let written = self.mend_content(delta, ids, known)?;
        if let Some(list) = delta.get_mut("tool_calls").filter(|list| !list.is_null()) {
            let elements = elements(list.take()).collect();
            *list = self.mend_calls(elements, ids, known)?.into();
        }
        add_calls(delta, written);
        self.says_something |= says_something(delta);
        Ok(())
    }

    /// Makes a text of the content, and takes calls and thoughts out of it. The calls are given back.
    fn mend_content(
        &mut self,
        delta: &mut JsonObject,
        ids: &mut Ids,
        known: &dyn Known,
    ) -> Result<Vec<Value>, StreamError> {
        let Some(member) = delta
            .get_mut("content")
            .filter(|content| !content.is_null())
        else {
            return Ok(Vec::new());
        };
        let content = MessageContent::read(member.take());
        let text = content.text.unwrap_or_default();
        let pieces = if self.filter.is_off() || text.is_empty() {
            vec![TextPiece::Text(text)]
        } else {
            let pieces = self.filter.push(&text, known);
            if self.filter.len() > MAX_ROUND_BYTES {
                return Err(StreamError::TooLarge);
            }
            pieces
        };
        let swallowed = !pieces
            .iter()
            .any(|piece| matches!(piece, TextPiece::Text(_)));
        if swallowed {
            delta.shift_remove("content");
        } else {
            *member = "".into();
        }
        if !content.reasoning.is_empty() {
            add_text(delta, REASONING[0], &content.reasoning);
        }
        self.add_pieces(pieces, delta, ids, known)
    }

    fn add_pieces(
        &mut self,
        pieces: Vec<TextPiece>,
        delta: &mut JsonObject,
        ids: &mut Ids,
        known: &dyn Known,
    ) -> Result<Vec<Value>, StreamError> {
        let mut elements = Vec::new();
        for piece in pieces {
            match piece {
                TextPiece::Text(text) => add_text(delta, "content", &text),
                TextPiece::Reasoning(text) => add_text(delta, REASONING[0], &text),
                TextPiece::Call { name, arguments } => {
                    elements.push(json!({"function": {"name": name, "arguments": arguments}}));
                }
            }
        }
        self.mend_calls(elements, ids, known)
    }

    fn mend_calls(
        &mut self,
        elements: Vec<Value>,
        ids: &mut Ids,
        known: &dyn Known,
    ) -> Result<Vec<Value>, StreamError> {
        let mut touched = Vec::new();
        let mut mended = Vec::new();
        for mut element in elements {
            text_for_object(&mut element);
            let Some(fragment) = Fragment::read(element.clone()) else {
                continue;
            };
            let Some(pushed) = self.calls.push_one(fragment, &mut touched, known)? else {
                continue;
            };
            if self.calls.len() > MAX_ROUND_BYTES {
                return Err(StreamError::TooLarge);
            }
            let Value::Object(mut element) = element else {
                continue;
            };
            let first = pushed.place >= self.ids.len();
            element.insert("index".to_owned(), pushed.place.into());
            mend_body(&mut element, &pushed.name, known);
            if first {
                let id = element
                    .get("id")
                    .and_then(identity::text)
                    .filter(|id| !self.ids.contains(id));
                let id = id.unwrap_or_else(|| ids.call());
                element.insert("id".to_owned(), id.clone().into());
                self.ids.push(id);
                let kind = if element.contains_key("custom") {
                    "custom"
                } else {
                    "function"
                };
                if element
                    .get("type")
                    .and_then(Value::as_str)
                    .is_none_or(str::is_empty)
                {
                    element.insert("type".to_owned(), kind.into());
                }
            } else {
                let own = &self.ids[pushed.place];
                if element
                    .get("id")
                    .is_some_and(|id| !id.is_null() && id != own)
                {
                    element.shift_remove("id");
                }
                if element
                    .get("type")
                    .is_some_and(|kind| kind == "" || kind.is_null())
                {
                    element.shift_remove("type");
                }
            }
            mended.push(Value::Object(element));
        }
        Ok(mended)
    }

    /// Sets the finish reason right. True: it was given before, and is taken away.
    pub(super) fn mend_finish(
        &mut self,
        choice: &mut JsonObject,
        delta: &mut JsonObject,
        ids: &mut Ids,
        known: &dyn Known,
    ) -> Result<bool, StreamError> {
        let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) else {
            return Ok(false);
        };
        if openai::is_failure(reason) {
            return Err(failed(reason));
        }
        let mended = if openai::is_no_reason(reason) || self.finished {
            Value::Null
        } else {
            self.flush(delta, ids, known)?;
            let finish = match FinishReason::from_foreign(reason) {
                FinishReason::Stop if !self.calls.is_empty() => FinishReason::ToolCalls,
                FinishReason::ToolCalls if self.calls.is_empty() => FinishReason::Stop,
                other => other,
            };
            (self.finish, self.finished) = (Some(finish), true);
            finish.as_str().into()
        };
        let again = self.finished && mended.is_null();
        choice.insert("finish_reason".to_owned(), mended);
        Ok(again)
    }

    /// Adds to a delta what was held back because it could have been a call.
    pub(super) fn flush(
        &mut self,
        delta: &mut JsonObject,
        ids: &mut Ids,
        known: &dyn Known,
    ) -> Result<(), StreamError> {
        let pieces = self.filter.finish(known);
        let calls = self.add_pieces(pieces, delta, ids, known)?;
        add_calls(delta, calls);
        self.says_something |= says_something(delta);
        Ok(())
    }
}

/// Adds to the calls of a delta. A list that stays empty goes: it is not a call.
fn add_calls(delta: &mut JsonObject, calls: Vec<Value>) {
    match delta.get_mut("tool_calls") {
        Some(Value::Array(list)) => list.extend(calls),
        _ if calls.is_empty() => {}
        _ => {
            delta.insert("tool_calls".to_owned(), Value::Array(calls));
        }
    }
    if delta
        .get("tool_calls")
        .and_then(Value::as_array)
        .is_some_and(Vec::is_empty)
    {
        delta.shift_remove("tool_calls");
    }
}

/// Sets name and arguments of a delta right; `added` is what it adds to the name.
fn mend_body(element: &mut JsonObject, added: &str, known: &dyn Known) {
    let nested = ["function", "custom"]
        .iter()
        .any(|key| element.get(*key).is_some_and(Value::is_object));
    let outside: Vec<&str> = ["name", "arguments"]
        .into_iter()
        .filter(|key| !nested && element.contains_key(*key))
        .collect();
    if !outside.is_empty() {
        let moved = outside
            .iter()
            .filter_map(|key| element.shift_remove_entry(*key))
            .collect();
        element.insert("function".to_owned(), Value::Object(moved));
    }
    let Some(Value::Object(body)) = element.get_mut("function") else {
        return;
    };
    if let Some(Value::String(name)) = body.get_mut("name") {
        let mended = mend_name(added);
        let exact = known.is_offered(added) || !known.is_offered(mended);
        let right = if exact { added } else { mended };
        if right.is_empty() {
            body.shift_remove("name");
        } else if name != right {
            right.clone_into(name);
        }
    }
}

/// Makes a text of arguments that are none.
fn text_for_object(element: &mut Value) {
    let nested = element.get("function").is_some_and(Value::is_object);
    let body = if nested {
        element.get_mut("function")
    } else {
        Some(element)
    };
    if let Some(arguments) = body.and_then(|body| body.get_mut("arguments"))
        && !arguments.is_string()
        && !arguments.is_null()
    {
        *arguments = arguments.to_string().into();
    }
}
