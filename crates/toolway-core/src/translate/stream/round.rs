//! What was read of one round.

use serde_json::Value;

use super::{
    Fragment, Known, MAX_ROUND_BYTES, MessageContent, Round, Settings, StreamError, TextFilter,
    calls::{Calls, ShownCalls},
    text::TextPiece,
};
use crate::translate::ids::Ids;
use toolway_protocol::{
    openai::{self, FinishReason, error::ErrorBody},
    tool::JsonObject,
};

/// Names under which upstreams send thoughts.
pub(crate) const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// One round while it is read.
#[derive(Debug)]
pub(crate) struct RoundReader {
    pub content: Option<String>,
    pub reasoning: Option<(String, String)>,
    pub refusal: Option<String>,
    pub calls: Calls,
    pub finish: Option<FinishReason>,
    pub usage: Option<JsonObject>,
    pub extra: JsonObject,
    pub filter: TextFilter,
    /// The upstream said `[DONE]`.
    pub done: bool,
    /// Bytes of text, reasoning and refusal.
    bytes: usize,
}

/// Text and thoughts for the client.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub text: Option<String>,
    pub reasoning: Option<String>,
}

impl RoundReader {
    pub(crate) fn new(settings: &Settings) -> RoundReader {
        RoundReader {
            content: None,
            reasoning: None,
            refusal: None,
            calls: Calls::default(),
            finish: None,
            usage: None,
            extra: JsonObject::new(),
            filter: TextFilter::new(settings),
            done: false,
            bytes: 0,
        }
    }

    /// Adds text that is known to be text.
    pub(crate) fn add_content(&mut self, text: &str) -> Result<(), StreamError> {
        self.content.get_or_insert_default().push_str(text);
        self.count(text.len())
    }

    /// Adds thoughts that came in `field`.
    pub(crate) fn add_reasoning(&mut self, field: &str, text: &str) -> Result<(), StreamError> {
        match &mut self.reasoning {
            Some((_, known)) => known.push_str(text),
            None if text.is_empty() => {}
            None => self.reasoning = Some((field.to_owned(), text.to_owned())),
        }
        self.count(text.len())
    }

    /// Adds a refusal.
    pub(crate) fn add_refusal(&mut self, text: &str) -> Result<(), StreamError> {
        self.refusal.get_or_insert_default().push_str(text);
        self.count(text.len())
    }

    fn count(&mut self, bytes: usize) -> Result<(), StreamError> {
        self.bytes += bytes;
        if self.bytes + self.calls.len() + self.filter.len() > MAX_ROUND_BYTES {
            return Err(StreamError::TooLarge);
        }
        Ok(())
    }

    /// Reads what `content` says, and tells what of it is text for the client.
    pub(crate) fn read_content(
        &mut self,
        content: MessageContent,
        known: &dyn Known,
    ) -> Result<Said, StreamError> {
        let Some(text) = content.text else {
            return Ok(Said::default());
        };
        let mut said = if self.filter.is_off() {
            self.add_content(&text)?;
            Said {
                text: Some(text),
                reasoning: None,
            }
        } else {
            self.count(0)?;
            let pieces = self.filter.push(&text, known);
            let mut said = self.take(pieces, known)?;
            if text.is_empty() {
                said.text.get_or_insert_default();
            }
            said
        };
        if !content.reasoning.is_empty() {
            self.add_reasoning(REASONING[0], &content.reasoning)?;
            said.reasoning
                .get_or_insert_default()
                .push_str(&content.reasoning);
        }
        Ok(said)
    }

    /// Ends the text: what was held back because it could have been a call is now one, or text.
    pub(crate) fn finish_text(&mut self, known: &dyn Known) -> Result<Said, StreamError> {
        let pieces = self.filter.finish(known);
        self.take(pieces, known)
    }

    fn take(&mut self, pieces: Vec<TextPiece>, known: &dyn Known) -> Result<Said, StreamError> {
        let mut said = Said::default();
        for piece in pieces {
            match piece {
                TextPiece::Text(text) => {
                    self.add_content(&text)?;
                    said.text.get_or_insert_default().push_str(&text);
                }
                TextPiece::Reasoning(text) => {
                    self.add_reasoning(REASONING[0], &text)?;
                    said.reasoning.get_or_insert_default().push_str(&text);
                }
                TextPiece::Call { name, arguments } => {
                    self.read_calls(vec![Fragment::whole(name, arguments)], known)?;
                }
            }
        }
        Ok(said)
    }

    /// Reads the elements of `tool_calls`.
    pub(crate) fn read_calls(
        &mut self,
        fragments: Vec<Fragment>,
        known: &dyn Known,
    ) -> Result<(), StreamError> {
        self.calls.push(fragments, known)?;
        self.count(0)
    }

    /// Reads `finish_reason`; the first that says something counts.
    pub(crate) fn read_finish(&mut self, value: &Value) -> Result<(), StreamError> {
        let Some(text) = value.as_str().filter(|text| !openai::is_no_reason(text)) else {
            return Ok(());
        };
        if openai::is_failure(text) {
            return Err(failed(text));
        }
        self.finish
            .get_or_insert_with(|| FinishReason::from_foreign(text));
        Ok(())
    }

    /// Reads `usage`; the last that says something counts.
    pub(crate) fn read_usage(&mut self, value: Option<Value>) {
        if let Some(Value::Object(usage)) = value {
            self.usage = Some(usage);
        }
    }

    /// Keeps a member of the message that is not known here. Lists are joined, otherwise the last counts.
    pub(crate) fn read_extra(&mut self, key: &str, value: &Value) {
        match (self.extra.get_mut(key), value) {
            (_, Value::Null) => {}
            (Some(Value::Array(known)), Value::Array(more)) => known.extend(more.iter().cloned()),
            (Some(known), value) => *known = value.clone(),
            (None, value) => {
                self.extra.insert(key.to_owned(), value.clone());
            }
        }
    }

    /// The round came to an end, and nothing of it was cut off.
    pub(crate) fn is_whole(&self) -> bool {
        match self.finish {
            Some(FinishReason::Length | FinishReason::ContentFilter) => false,
            Some(_) => true,
            None => self.calls.are_whole(),
        }
    }

    /// There is an answer, and not only thoughts.
    fn says_something(&self) -> bool {
        let is_text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        is_text(&self.content) || is_text(&self.refusal) || says_something(&self.extra)
    }

    /// The round of a message that came whole, where the client is shown nothing before its end.
    pub(crate) fn into_whole_round(
        mut self,
        known: &dyn Known,
        ids: &mut Ids,
    ) -> Result<Round, StreamError> {
        self.finish_text(known)?;
        if self.is_whole() {
            let mut shown = ShownCalls::new(ids.clone());
            self.calls.close(known, &mut shown);
            *ids = shown.ids;
        }
        self.into_round(ids)
    }

    /// The round as it is, now that nothing more comes; the calls were closed.
    pub(crate) fn into_round(self, ids: &mut Ids) -> Result<Round, StreamError> {
        let finish = match self.finish {
            Some(finish) => finish,
            None if self.calls.are_whole() => FinishReason::ToolCalls,
            None if self.done && self.says_something() && self.calls.is_empty() => {
                FinishReason::Stop
            }
            None => return Err(StreamError::Ended),
        };
        let cut_off = matches!(finish, FinishReason::Length | FinishReason::ContentFilter);
        let calls = if cut_off {
            Vec::new()
        } else {
            self.calls.into_calls(ids)?
        };
        let finish = match finish {
            FinishReason::Length | FinishReason::ContentFilter => finish,
            _ if calls.is_empty() => FinishReason::Stop,
            _ => FinishReason::ToolCalls,
        };
        Ok(Round {
            content: self.content.filter(|text| !text.is_empty()),
            reasoning: self.reasoning,
            refusal: self.refusal.filter(|text| !text.is_empty()),
            calls,
            finish,
            usage: self.usage,
            extra: self.extra,
        })
    }
}

/// A message or a delta holds something of an answer, and not only its role and thoughts.
pub(super) fn says_something(message: &JsonObject) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    message.iter().any(|(key, value)| {
        let is_beside = key == "role" || key == "thinking" || key.starts_with("reasoning");
        !is_beside && !is_empty(value)
    })
}

/// A finish reason that says that the answer failed.
pub(super) fn failed(reason: &str) -> StreamError {
    let message = format!("the upstream ended its answer with `{}`", reason.trim());
    let body = ErrorBody::new("server_error", "upstream_error", message);
    StreamError::Upstream(body.into(), None)
}
