//! Answers for clients that speak Messages.

use serde::Serialize;
use serde_json::{Value, json};

use super::{original, write::REDACTED};
use crate::translate::dialect::{
    AnswerWriter, Delta, Head, Reasoning, Source, Usage, object, write_event, write_json,
};
use toolway_protocol::{
    openai::{ErrorBody, FinishReason},
    tool::JsonObject,
};

/// Writes an answer as the events of a stream: blocks with indices from 0, one open at a time, because clients keep them in
/// a list and read a delta as one of the block that is open.
#[derive(Debug, Default)]
pub struct MessageWriter {
    head: Head,
    has_begun: bool,
    is_over: bool,
    blocks: usize,
    open: Option<Open>,
    /// Calls that wait for their turn: (number, start of the block, arguments).
    waiting: Vec<(usize, Value, String)>,
    /// What was said while a call was open, whose arguments may still come.
    held: Vec<Delta>,
    finish: Option<FinishReason>,
    usage: Usage,
}

/// The block that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Text,
    Thought,
    /// With the call's number, and whether arguments came.
    Call(usize, bool),
}

impl AnswerWriter for MessageWriter {
    fn write(&mut self, delta: Delta, out: &mut Vec<u8>) {
        if self.is_over {
            return;
        }
        if let Delta::Failed(error) = delta {
            self.is_over = true;
            return event("error", &super::write_error(500, &error), out);
        }
        match delta {
            Delta::Begin(head) => self.head = head,
            Delta::Usage(usage) => self.usage = usage,
            Delta::Finish(reason) => self.finish = Some(reason),
            delta => {
                self.begin(out);
                self.write_block(delta, out);
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.begin(out);
        self.close(out);
        for (_, start, arguments) in std::mem::take(&mut self.waiting) {
            self.start(&start, out);
            let arguments = if arguments.is_empty() {
                "{}".to_owned()
            } else {
                arguments
            };
            self.delta(
                &json!({"type": "input_json_delta", "partial_json": arguments}),
                out,
            );
            self.stop(out);
        }
        for delta in std::mem::take(&mut self.held) {
            self.write_block(delta, out);
        }
        self.close(out);
        let delta = json!({"stop_reason": stop_reason(self.finish), "stop_sequence": null});
        let ended =
            json!({"type": "message_delta", "delta": delta, "usage": write_usage(self.usage)});
        event("message_delta", &ended, out);
        event("message_stop", &json!({"type": "message_stop"}), out);
    }
}

impl MessageWriter {
    fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let message = envelope(&self.head, Vec::new(), None, Usage::default());
        event(
            "message_start",
            &json!({"type": "message_start", "message": message}),
            out,
        );
    }

    fn write_block(&mut self, delta: Delta, out: &mut Vec<u8>) {
        let is_of_call = matches!(delta, Delta::Call(..) | Delta::Arguments(..));
        if matches!(self.open, Some(Open::Call(..))) && !is_of_call {
            return self.held.push(delta);
        }
        match delta {
            Delta::Text(text) | Delta::Refusal(text) => {
                self.open(Open::Text, || json!({"type": "text", "text": ""}), out);
                self.text_delta(&text, out);
            }
            Delta::Thought(text) => {
                self.open(Open::Thought, thinking, out);
                self.delta(&json!({"type": "thinking_delta", "thinking": text}), out);
            }
            // A block behind the text would hide it from clients that show the last one.
            Delta::Sealed(reasoning) if is_of_text(&reasoning) => {}
            Delta::Sealed(reasoning) if reasoning.raw(Source::Anthropic).is_some() => {
                self.close(out);
                let (start, input) =
                    original::begun(reasoning.raw(Source::Anthropic).unwrap_or_default());
                self.start(&start, out);
                if let Some(input) = input {
                    let input = input.to_string();
                    self.delta(
                        &json!({"type": "input_json_delta", "partial_json": input}),
                        out,
                    );
                }
                self.stop(out);
            }
            Delta::Sealed(reasoning) if is_redacted(&reasoning) => {
                self.close(out);
                self.start(&redacted(&reasoning), out);
                self.stop(out);
            }
            Delta::Sealed(reasoning) => {
                self.open(Open::Thought, thinking, out);
                let signature = signature(&reasoning);
                self.delta(
                    &json!({"type": "signature_delta", "signature": signature}),
                    out,
                );
                self.close(out);
            }
            Delta::Call(number, call) => {
                let start =
                    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
                if matches!(self.open, Some(Open::Call(..))) {
                    // The one before may not be complete.
                    self.waiting.push((number, start, call.arguments));
                    return;
                }
                self.open(Open::Call(number, false), || start, out);
                self.arguments(number, &call.arguments, out);
            }
            Delta::Arguments(number, text) => self.arguments(number, &text, out),
            Delta::Annotation(_)
            | Delta::GatewayCall(_)
            | Delta::GatewayResult(..)
            | Delta::Begin(_)
            | Delta::Usage(_)
            | Delta::Finish(_)
            | Delta::Failed(_) => {}
        }
    }

    fn arguments(&mut self, number: usize, text: &str, out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        match &mut self.open {
            Some(Open::Call(open, has_arguments)) if *open == number => {
                *has_arguments = true;
                self.delta(
                    &json!({"type": "input_json_delta", "partial_json": text}),
                    out,
                );
            }
            _ => {
                let waiting = self
                    .waiting
                    .iter_mut()
                    .find(|(waiting, ..)| *waiting == number);
                if let Some((_, _, arguments)) = waiting {
                    arguments.push_str(text);
                }
            }
        }
    }

    /// Opens a block of this kind, unless it is open.
    fn open(&mut self, block: Open, start: impl FnOnce() -> Value, out: &mut Vec<u8>) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        self.start(&start(), out);
        self.open = Some(block);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        match self.open.take() {
            None => return,
            Some(Open::Call(_, false)) => {
                self.delta(
                    &json!({"type": "input_json_delta", "partial_json": "{}"}),
                    out,
                );
            }
            Some(_) => {}
        }
        self.stop(out);
    }

    fn start(&self, block: &Value, out: &mut Vec<u8>) {
        let start =
            json!({"type": "content_block_start", "index": self.blocks, "content_block": block});
        event("content_block_start", &start, out);
    }

    fn delta(&self, delta: &impl Serialize, out: &mut Vec<u8>) {
        let kind = "content_block_delta";
        let index = self.blocks;
        event(kind, &WrittenBlockDelta { kind, index, delta }, out);
    }

    /// Most events of a stream are like this one, so it is written without a serializer.
    fn text_delta(&self, text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(
            b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":",
        );
        write_json(&self.blocks, out);
        out.extend_from_slice(b",\"delta\":{\"type\":\"text_delta\",\"text\":");
        write_json(&text, out);
        out.extend_from_slice(b"}}\n\n");
    }

    fn stop(&mut self, out: &mut Vec<u8>) {
        let stop = json!({"type": "content_block_stop", "index": self.blocks});
        event("content_block_stop", &stop, out);
        self.blocks += 1;
    }
}

fn event(name: &str, data: &impl Serialize, out: &mut Vec<u8>) {
    write_event(Some(name), data, out);
}

#[derive(Serialize)]
struct WrittenBlockDelta<'a, D> {
    #[serde(rename = "type")]
    kind: &'static str,
    index: usize,
    delta: &'a D,
}

/// It is a thinking block that waits for its signature.
fn is_unsigned(block: &Value) -> bool {
    block["type"] == "thinking" && block["signature"] == ""
}

fn thinking() -> Value {
    json!({"type": "thinking", "thinking": "", "signature": ""})
}

/// Anthropic encrypted the thought as a whole.
fn is_redacted(reasoning: &Reasoning) -> bool {
    let sealed = reasoning.sealed.as_ref();
    sealed.is_some_and(|it| it.source == Source::Anthropic && it.id.as_deref() == Some(REDACTED))
}

/// It is the signature of a text, which has none here.
fn is_of_text(reasoning: &Reasoning) -> bool {
    let sealed = reasoning.sealed.as_ref();
    sealed.is_some_and(|it| it.signed_text().is_some())
}

fn redacted(reasoning: &Reasoning) -> Value {
    json!({"type": "redacted_thinking", "data": signature(reasoning)})
}

fn signature(reasoning: &Reasoning) -> String {
    let sealed = reasoning.sealed.as_ref();
    sealed.map_or_else(String::new, |it| it.wrapped(Source::Anthropic))
}

fn stop_reason(finish: Option<FinishReason>) -> &'static str {
    match finish {
        Some(FinishReason::ToolCalls | FinishReason::FunctionCall) => "tool_use",
        Some(FinishReason::Length) => "max_tokens",
        Some(FinishReason::ContentFilter) => "refusal",
        Some(FinishReason::Stop) | None => "end_turn",
    }
}

/// Tokens as the API counts them: those of a cache on their own.
fn write_usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input.saturating_sub(usage.cached).saturating_sub(usage.cache_written),
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    })
}

fn envelope(
    head: &Head,
    content: Vec<Value>,
    finish: Option<FinishReason>,
    usage: Usage,
) -> JsonObject {
    object([
        (
            "id",
            Some(format!("msg_{}", head.id.trim_start_matches("msg_")).into()),
        ),
        ("type", Some("message".into())),
        ("role", Some("assistant".into())),
        ("model", Some(head.model.as_str().into())),
        ("content", Some(content.into())),
        (
            "stop_reason",
            Some(finish.map_or(Value::Null, |it| stop_reason(Some(it)).into())),
        ),
        ("stop_sequence", Some(Value::Null)),
        ("usage", Some(write_usage(usage))),
    ])
}

/// Writes a whole answer, which its deltas make up.
///
/// # Errors
/// When the answer failed.
pub fn write_message(deltas: Vec<Delta>) -> Result<JsonObject, Box<ErrorBody>> {
    let mut head = Head::default();
    let mut content: Vec<Value> = Vec::new();
    let mut arguments: Vec<(usize, String)> = Vec::new();
    let mut finish = FinishReason::Stop;
    let mut usage = Usage::default();
    for delta in deltas {
        match delta {
            Delta::Begin(begun) => head = begun,
            Delta::Usage(counted) => usage = counted,
            Delta::Finish(reason) => finish = reason,
            Delta::Failed(error) => return Err(error.into()),
            Delta::Text(text) | Delta::Refusal(text) => {
                match content.last_mut().and_then(|last| last.get_mut("text")) {
                    Some(Value::String(begun)) => begun.push_str(&text),
                    _ => content.push(json!({"type": "text", "text": text})),
                }
            }
            Delta::Thought(text) => {
                let last = content.last_mut().filter(|last| is_unsigned(last));
                match last.and_then(|last| last.get_mut("thinking")) {
                    Some(Value::String(begun)) => begun.push_str(&text),
                    _ => {
                        content
                            .push(json!({"type": "thinking", "thinking": text, "signature": ""}));
                    }
                }
            }
            Delta::Sealed(reasoning) if is_of_text(&reasoning) => {}
            Delta::Sealed(reasoning) if reasoning.raw(Source::Anthropic).is_some() => {
                content.extend(reasoning.raw(Source::Anthropic).map(Value::from));
            }
            Delta::Sealed(reasoning) if is_redacted(&reasoning) => {
                content.push(redacted(&reasoning));
            }
            Delta::Sealed(reasoning) => {
                let signature = signature(&reasoning);
                match content.last_mut().filter(|last| is_unsigned(last)) {
                    Some(last) => last["signature"] = signature.into(),
                    None => content.push(json!({"type": "thinking", "thinking": reasoning.text, "signature": signature})),
                }
            }
            Delta::Call(_, call) => {
                arguments.push((content.len(), call.arguments));
                content.push(
                    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}),
                );
            }
            Delta::Arguments(number, text) => {
                if let Some((_, arguments)) = arguments.get_mut(number) {
                    arguments.push_str(&text);
                }
            }
            Delta::Annotation(_) | Delta::GatewayCall(_) | Delta::GatewayResult(..) => {}
        }
    }
    for (at, arguments) in arguments {
        let input = serde_json::from_str::<JsonObject>(&arguments).unwrap_or_default();
        content[at]["input"] = input.into();
    }
    Ok(envelope(&head, content, Some(finish), usage))
}
