//! Answers of Messages, streamed and whole, as an upstream sends them.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::Value;

use super::write::REDACTED;
use crate::translate::{
    dialect::{
        AnswerReader, Call, Delta, DeltaText, Head, Reasoning, Sealed, Source, Usage, count,
        no_answer, take, take_list, take_text, text,
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
    usage: Counts,
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

/// Counts of tokens, each of which may come early or late.
#[derive(Debug, Default, Deserialize)]
struct Counts {
    input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<OutputCounts>,
}

#[derive(Debug, Deserialize)]
struct OutputCounts {
    thinking_tokens: Option<u64>,
}

/// An event, as far as most events are read: those that have more to say are read whole.
#[derive(Deserialize)]
struct QuickEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    index: Option<u64>,
    #[serde(borrow)]
    delta: Option<QuickDelta<'a>>,
    #[serde(borrow)]
    content_block: Option<QuickBlock<'a>>,
    message: Option<BegunMessage>,
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct QuickDelta<'a> {
    #[serde(rename = "type")]
    kind: Option<&'a str>,
    #[serde(borrow)]
    text: Option<DeltaText<'a>>,
    stop_reason: Option<&'a str>,
}

#[derive(Deserialize)]
struct QuickBlock<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    text: Option<&'a str>,
}

#[derive(Deserialize)]
struct BegunMessage {
    id: String,
    model: String,
    usage: Counts,
}

impl AnswerReader for EventReader {
    fn read_quickly(&mut self, event: &SseEvent) -> Option<Vec<Delta>> {
        let data = event.data()?;
        let read: QuickEvent<'_> = serde_json::from_str(&data).ok()?;
        let is_text = |index| matches!(self.blocks.get(&index), Some(Block::Text));
        match read.kind {
            "content_block_delta" if is_text(read.index?) => {
                let delta = read.delta?;
                let (Some("text_delta"), DeltaText(text)) = (delta.kind, delta.text?) else {
                    return None;
                };
                if let Cow::Borrowed(text) = &text {
                    self.alike.learn(|| EventPattern::of(event, text, &[]));
                }
                Some(vec![Delta::Text(text.into_owned())])
            }
            "message_start" => {
                let BegunMessage { id, model, usage } = read.message?;
                self.usage.update(usage);
                Some(vec![Delta::Begin(Head {
                    id,
                    model,
                    created: 0,
                })])
            }
            "content_block_start" => {
                let block = read.content_block?;
                if block.kind != "text" || !block.text?.is_empty() {
                    return None;
                }
                self.blocks.insert(read.index?, Block::Text);
                Some(Vec::new())
            }
            "content_block_stop" if is_text(read.index?) => {
                self.alike = AlikeEvents::default();
                Some(self.stop(read.index?))
            }
            "message_delta" => {
                let reason = read.delta?.stop_reason?;
                self.usage.update(read.usage.unwrap_or_default());
                Some(self.finish(reason))
            }
            "ping" | "message_stop" => Some(Vec::new()),
            _ => None,
        }
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
                let message = part("message");
                self.usage.update(Counts::of(&message));
                vec![head(&message)]
            }
            "content_block_start" => self.start(at, &part("content_block")),
            "content_block_delta" => self.more(at, &part("delta")),
            "content_block_stop" => {
                self.alike = AlikeEvents::default();
                self.stop(at)
            }
            "message_delta" => {
                let delta = part("delta");
                self.usage.update(Counts::of(&event));
                self.ended(&delta)
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
        self.usage.update(Counts::of(&message));
        let mut deltas = vec![head(&message)];
        for (at, block) in (0..).zip(take_list(&mut message, "content")) {
            if let Value::Object(block) = block {
                deltas.extend(self.start(at, &block));
                deltas.extend(self.stop(at));
            }
        }
        deltas.extend(self.ended(&message));
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

    /// The end, if the message or delta has one.
    fn ended(&self, ended: &JsonObject) -> Vec<Delta> {
        text(ended, "stop_reason").map_or_else(Vec::new, |reason| self.finish(reason))
    }

    /// The end of a message, which came for this reason.
    fn finish(&self, reason: &str) -> Vec<Delta> {
        let finish = match reason {
            "tool_use" => FinishReason::ToolCalls,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "refusal" => FinishReason::ContentFilter,
            _ => FinishReason::Stop,
        };
        let counts = &self.usage;
        let cached = counts.cache_read_input_tokens.unwrap_or_default();
        let written = counts.cache_creation_input_tokens.unwrap_or_default();
        let details = counts.output_tokens_details.as_ref();
        let usage = Usage {
            input: (counts.input_tokens.unwrap_or_default())
                .saturating_add(cached)
                .saturating_add(written),
            cached,
            cache_written: written,
            output: counts.output_tokens.unwrap_or_default(),
            reasoning: details
                .and_then(|it| it.thinking_tokens)
                .unwrap_or_default(),
        };
        vec![Delta::Finish(finish), Delta::Usage(usage)]
    }
}

impl Counts {
    /// The counts that a message or event has.
    fn of(message: &JsonObject) -> Counts {
        let usage = message.get("usage");
        let count = |key| usage.and_then(|usage| usage.get(key)?.as_u64());
        let details = usage.and_then(|usage| usage.get("output_tokens_details"));
        Counts {
            input_tokens: count("input_tokens"),
            cache_read_input_tokens: count("cache_read_input_tokens"),
            cache_creation_input_tokens: count("cache_creation_input_tokens"),
            output_tokens: count("output_tokens"),
            output_tokens_details: details.map(|details| OutputCounts {
                thinking_tokens: details.get("thinking_tokens").and_then(Value::as_u64),
            }),
        }
    }

    /// Takes over what is newer.
    fn update(&mut self, newer: Counts) {
        fn take<T>(older: &mut Option<T>, newer: Option<T>) {
            *older = newer.or(older.take());
        }
        take(&mut self.input_tokens, newer.input_tokens);
        take(
            &mut self.cache_read_input_tokens,
            newer.cache_read_input_tokens,
        );
        take(
            &mut self.cache_creation_input_tokens,
            newer.cache_creation_input_tokens,
        );
        take(&mut self.output_tokens, newer.output_tokens);
        take(&mut self.output_tokens_details, newer.output_tokens_details);
    }
}

fn head(message: &JsonObject) -> Delta {
    Delta::Begin(Head {
        id: text(message, "id").unwrap_or_default().to_owned(),
        model: text(message, "model").unwrap_or_default().to_owned(),
        created: 0,
    })
}
