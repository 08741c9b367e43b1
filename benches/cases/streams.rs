//! A model's stream: cut into events, told apart into text and calls, and written for the client.

use bytes::Bytes;
use serde_json::{Value, json};
use toolway_core::translate::stream::{ChatStream, Mode, Settings, TextCalls};
use toolway_protocol::{openai::FinishReason, sse::Framer};

use super::{Body, Table, body, tools::OneOwner};

pub(super) const CASES: Table = &[
    ("framing/100_chunks_one_by_one", 100, || framing(1)),
    ("framing/100_chunks_in_4_reads", 100, || framing(25)),
    ("stream/text_in_the_loop", 50, || read(&text(), Mode::Loop)),
    ("stream/text_passed_through", 50, || {
        read(&text(), Mode::PassThrough)
    }),
    ("stream/calls_in_the_loop", 50, || {
        read(&calls(), Mode::Loop)
    }),
    ("stream/calls_passed_through", 50, || {
        read(&calls(), Mode::PassThrough)
    }),
];

/// As `gateway` has it.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// A stream of 100 text chunks arrives, so many at a time.
fn framing(at_a_time: usize) -> Body {
    let text = text();
    let reads = text.chunks(at_a_time);
    let reads: Vec<Bytes> = reads.map(|events| events.concat().into()).collect();
    body(move || {
        let mut framer = Framer::new(MAX_EVENT_BYTES);
        let mut events = 0;
        for read in &reads {
            framer.push(read.clone());
            while let Some(event) = framer.next() {
                event.expect("a good event");
                events += 1;
            }
        }
        assert_eq!(events, 103, "the role, 100 pieces, the end and [DONE]");
    })
}

/// A whole answer in one round, from its events to what the client reads.
fn read(stream: &[String], mode: Mode) -> Body {
    let pieces: Vec<Bytes> = stream.iter().cloned().map(Bytes::from).collect();
    body(move || {
        let known = OneOwner::of(mode);
        let mut stream = ChatStream::new(settings(mode));
        let mut framer = Framer::new(MAX_EVENT_BYTES);
        let mut out = Vec::new();
        for piece in &pieces {
            framer.push(piece.clone());
            while let Some(pushed) = stream.push_next(&mut framer, &known, &mut out) {
                pushed.expect("a good event");
            }
        }
        let round = stream.end_round(&known, &mut out).expect("a whole round");
        stream.finish(FinishReason::Stop, round.usage.as_ref(), &mut out);
        (round, out)
    })
}

/// What an upstream has by default.
pub(super) fn settings(mode: Mode) -> Settings {
    Settings {
        mode,
        text_calls: TextCalls::default(),
        think_tags: false,
        skip_invalid_events: false,
        include_usage: true,
        seed: 1,
        created: 1_760_000_000,
        model: "gpt-5-mini".to_owned(),
    }
}

pub(super) const WORDS: [&str; 5] = [" the", " weather", " in", " Zürich", " \"today\""];

/// 100 pieces of text.
pub(super) fn text() -> Vec<String> {
    let pieces = WORDS.iter().cycle().take(100);
    answer(pieces.map(|word| json!({"content": word})), "stop")
}

/// Two calls, one after the other, with their arguments in 20 pieces each.
fn calls() -> Vec<String> {
    let call = |index: usize| {
        let function = json!({"name": "weather__forecast", "arguments": ""});
        let head = json!({
            "index": index, "id": format!("call_Zk3vQ9x{index}"), "type": "function", "function": function,
        });
        let arguments = super::tools::ARGUMENTS.as_bytes();
        let pieces = arguments.chunks(arguments.len().div_ceil(20));
        let pieces = pieces.map(move |piece| {
            let piece = String::from_utf8_lossy(piece);
            json!({"index": index, "function": {"arguments": piece}})
        });
        std::iter::once(head).chain(pieces)
    };
    let deltas = (0..2).flat_map(call);
    answer(
        deltas.map(|delta| json!({"tool_calls": [delta]})),
        "tool_calls",
    )
}

/// The events of an answer of these deltas.
fn answer(deltas: impl Iterator<Item = Value>, finish: &str) -> Vec<String> {
    let role = json!({"role": "assistant", "content": "", "refusal": null});
    let mut events = vec![event(&role, &Value::Null)];
    events.extend(deltas.map(|delta| event(&delta, &Value::Null)));
    events.push(event(&json!({}), &finish.into()));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn event(delta: &Value, finish: &Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish});
    let chunk = json!({
        "id": "chatcmpl-CQ2x8vUuGfXyZ1aB3cD4eF5gH6iJ7",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "gpt-5-mini-2025-08-07",
        "service_tier": "default",
        "system_fingerprint": null,
        "choices": [choice],
    });
    format!("data: {chunk}\n\n")
}
