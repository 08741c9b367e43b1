//! Answers of Messages, streamed and whole, as an upstream sends them.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::Value;

use super::write::REDACTED;
use crate::translate::{
    dialect::{
        AnswerReader, Call, Delta, Head, Reasoning, Sealed, Source, Usage, count, no_answer, take,
        take_list, take_text, text,
    },
    stream::CallKind,
};
use toolway_protocol::{
    openai::{ErrorBody, FinishReason},
    sse::{AlikeEvents, EventPattern, SseEvent},
    tool::JsonObject,
};

/// Reads one answer.
#[derive(Debug, Default)]
pub struct EventReader {
    /// By the index of the block.
    blocks: BTreeMap<u64, Block>,
    calls: usize,
    /// The counts of the start, which later ones replace one by one.
    usage: JsonObject,
    /// What the deltas of the running text look like.
    alike: AlikeEvents,
}

/// A block that is open.
#[derive(Debug)]
enum Block {
    /// Its deltas say everything.
    Text,
    Thought(Reasoning),
    /// The call's number, and what its arguments are if no delta comes.
    Call(usize, Option<String>),
    /// One of the provider's own, and what its input is if deltas come.
    Raw(JsonObject, String),
}

/// An event with a piece of text.
#[derive(Deserialize)]
struct BlockTextEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    index: u64,
    #[serde(borrow)]
    delta: BlockText<'a>,
}

#[derive(Deserialize)]
struct BlockText<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    text: Cow<'a, str>,
}

impl AnswerReader for EventReader {
    fn read_quickly(&mut self, event: &SseEvent) -> Option<Vec<Delta>> {
        let data = event.data()?;
        let BlockTextEvent { kind, index, delta } = serde_json::from_str(&data).ok()?;
        let is_text = kind == "content_block_delta"
            && delta.kind == "text_delta"
            && matches!(self.blocks.get(&index), Some(Block::Text));
        if let (true, Cow::Borrowed(text)) = (is_text, &delta.text) {
            self.alike.learn(|| EventPattern::of(event, text, &[]));
        }
        is_text.then(|| vec![Delta::Text(delta.text.into_owned())])
    }

    fn alike(&mut self) -> Option<&mut AlikeEvents> {
        Some(&mut self.alike)
    }

    fn read(&mut self, mut event: JsonObject) -> Vec<Delta> {
        let at = count(&event, &["index"]);
        let kind = take_text(&mut event, "type").unwrap_or_default();
        let mut part = |key| match take(&mut event, key) {
            Some(Value::Object(part)) => part,
            _ => JsonObject::new(),
        };
        match kind.as_str() {
            "message_start" => {
                let mut message = part("message");
                self.count(take(&mut message, "usage"));
                vec![head(&message)]
            }
            "content_block_start" => self.start(at, &part("content_block")),
            "content_block_delta" => self.more(at, &part("delta")),
            "content_block_stop" => {
                self.alike = AlikeEvents::default();
                self.stop(at)
            }
            "message_delta" => {
                self.count(Some(part("usage").into()));
                self.finish(&part("delta"))
            }
            "error" => {
                let error = serde_json::json!({"error": part("error")});
                let error = ErrorBody::in_ok_value(&error).map(|(error, _)| Delta::Failed(error));
                error.into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn read_whole(&mut self, mut message: JsonObject) -> Vec<Delta> {
        if let Some(failed) = no_answer(&message, "content") {
            return vec![failed];
        }
        self.count(take(&mut message, "usage"));
        let mut deltas = vec![head(&message)];
        for (at, block) in (0..).zip(take_list(&mut message, "content")) {
            if let Value::Object(block) = block {
                deltas.extend(self.start(at, &block));
                deltas.extend(self.stop(at));
            }
        }
        deltas.extend(self.finish(&message));
        deltas
    }
}

impl EventReader {
    fn start(&mut self, at: u64, block: &JsonObject) -> Vec<Delta> {
        let owned = |key| text(block, key).unwrap_or_default().to_owned();
        let some = |text: String, delta: fn(String) -> Delta| match text.is_empty() {
            true => Vec::new(),
            false => vec![delta(text)],
        };
        let sealed = |id: Option<&str>, data| Sealed {
            source: Source::Anthropic,
            id: id.map(str::to_owned),
            data,
        };
        let (block, deltas) = match text(block, "type") {
            Some("text") => (Block::Text, some(owned("text"), Delta::Text)),
            Some("thinking") => {
                let reasoning = Reasoning {
                    text: owned("thinking"),
                    sealed: Some(sealed(None, owned("signature"))),
                };
                let said = some(reasoning.text.clone(), Delta::Thought);
                (Block::Thought(reasoning), said)
            }
            Some("redacted_thinking") => {
                let reasoning = Reasoning {
                    text: String::new(),
                    sealed: Some(sealed(Some(REDACTED), owned("data"))),
                };
                (Block::Thought(reasoning), Vec::new())
            }
            Some("tool_use") => {
                let number = self.calls;
                self.calls += 1;
                let input = block.get("input").filter(|input| input.is_object());
                let input = input.map_or_else(|| "{}".to_owned(), Value::to_string);
                let call = Call {
                    id: owned("id"),
                    name: owned("name"),
                    arguments: String::new(),
                    kind: CallKind::Function,
                    sealed: None,
                };
                (
                    Block::Call(number, Some(input)),
                    vec![Delta::Call(number, call)],
                )
            }
            Some(_) => (Block::Raw(block.clone(), String::new()), Vec::new()),
            None => return Vec::new(),
        };
        self.blocks.insert(at, block);
        deltas
    }

    fn more(&mut self, at: u64, delta: &JsonObject) -> Vec<Delta> {
        let piece = |key| text(delta, key).unwrap_or_default().to_owned();
        let Some(block) = self.blocks.get_mut(&at) else {
            return Vec::new();
        };
        match (text(delta, "type"), block) {
            (Some("text_delta"), Block::Text) => vec![Delta::Text(piece("text"))],
            (Some("thinking_delta"), Block::Thought(reasoning)) => {
                let piece = piece("thinking");
                reasoning.text.push_str(&piece);
                vec![Delta::Thought(piece)]
            }
            (Some("signature_delta"), Block::Thought(reasoning)) => {
                if let Some(sealed) = &mut reasoning.sealed {
                    sealed.data.push_str(&piece("signature"));
                }
                Vec::new()
            }
            (Some("input_json_delta"), Block::Call(number, otherwise)) => {
                let piece = piece("partial_json");
                if piece.is_empty() {
                    return Vec::new();
                }
                *otherwise = None;
                vec![Delta::Arguments(*number, piece)]
            }
            (Some("input_json_delta"), Block::Raw(_, input)) => {
                input.push_str(&piece("partial_json"));
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn stop(&mut self, at: u64) -> Vec<Delta> {
        match self.blocks.remove(&at) {
            Some(Block::Thought(reasoning)) => vec![Delta::Sealed(reasoning)],
            Some(Block::Call(number, Some(input))) => vec![Delta::Arguments(number, input)],
            Some(Block::Raw(mut block, input)) => {
                if let Ok(input) = serde_json::from_str::<Value>(&input) {
                    block.insert("input".to_owned(), input);
                }
                vec![Delta::Sealed(Sealed::raw(Source::Anthropic, block))]
            }
            Some(Block::Text | Block::Call(_, None)) | None => Vec::new(),
        }
    }

    fn count(&mut self, usage: Option<Value>) {
        if let Some(Value::Object(usage)) = usage {
            let counted = usage.into_iter().filter(|(_, count)| !count.is_null());
            self.usage.extend(counted);
        }
    }

    /// The end, if the message or delta has one.
    fn finish(&self, ended: &JsonObject) -> Vec<Delta> {
        let Some(reason) = text(ended, "stop_reason") else {
            return Vec::new();
        };
        let finish = match reason {
            "tool_use" => FinishReason::ToolCalls,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "refusal" => FinishReason::ContentFilter,
            _ => FinishReason::Stop,
        };
        let cached = count(&self.usage, &["cache_read_input_tokens"]);
        let written = count(&self.usage, &["cache_creation_input_tokens"]);
        let usage = Usage {
            input: count(&self.usage, &["input_tokens"]) + cached + written,
            cached,
            cache_written: written,
            output: count(&self.usage, &["output_tokens"]),
            reasoning: count(&self.usage, &["output_tokens_details", "thinking_tokens"]),
        };
        vec![Delta::Finish(finish), Delta::Usage(usage)]
    }
}

fn head(message: &JsonObject) -> Delta {
    Delta::Begin(Head {
        id: text(message, "id").unwrap_or_default().to_owned(),
        model: text(message, "model").unwrap_or_default().to_owned(),
        created: 0,
    })
}
