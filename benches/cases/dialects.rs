//! Streams of 100 pieces of text in the other APIs: what a client of one costs, and what a model of one costs.

use bytes::Bytes;
use serde_json::{Value, json};
use toolway_core::translate::{
    dialect::{
        AnswerReader, AnswerWriter, Delta, anthropic,
        chat::{ChunkReader, ChunkWriter},
        gemini,
        responses::{self, ResponseWriter},
    },
    ids::Ids,
};
use toolway_protocol::sse::Framer;

use super::{Body, Table, body, streams};

pub(super) const CASES: Table = &[
    ("dialect/responses_for_a_client", 50, || {
        write(|| {
            let id = "0123456789abcdef".to_owned();
            let resource = json!({"instructions": null, "tools": [], "tool_choice": "auto"});
            let resource = resource.as_object().cloned().unwrap_or_default();
            let names = responses::ToolNames::default();
            ResponseWriter::new(resource, names, id, 1_760_000_000)
        })
    }),
    ("dialect/messages_for_a_client", 50, || {
        write(anthropic::MessageWriter::default)
    }),
    ("dialect/responses_of_a_model", 50, || {
        read(&responses(), responses::EventReader::default)
    }),
    ("dialect/messages_of_a_model", 50, || {
        read(&messages(), anthropic::EventReader::default)
    }),
    ("dialect/gemini_of_a_model", 50, || {
        read(&gemini(), || gemini::EventReader::new(Ids::new(1)))
    }),
];

/// The stream of a chat is written for a client.
fn write<W: AnswerWriter>(writer: impl Fn() -> W + 'static) -> Body {
    let pieces: Vec<Bytes> = streams::text().into_iter().map(Bytes::from).collect();
    body(move || {
        let (mut reader, mut writer, mut out) = (ChunkReader::default(), writer(), Vec::new());
        let mut framer = Framer::new(1 << 20);
        for piece in &pieces {
            framer.push(piece.clone());
            if let Some((raw, text)) = reader.alike().peek(&mut framer) {
                let (length, text) = (raw.len(), text.into_owned());
                framer.skip(length);
                writer.write(Delta::Text(text), &mut out);
                continue;
            }
            while let Some(Ok(event)) = framer.next() {
                for delta in reader.read_event(&event).into_iter().flatten() {
                    writer.write(delta, &mut out);
                }
            }
        }
        writer.finish(&mut out);
        out
    })
}

/// A stream of a model's becomes that of a chat.
fn read<R: AnswerReader>(events: &[Value], reader: impl Fn() -> R + 'static) -> Body {
    let written = |event: &Value| match event["type"].as_str() {
        Some(kind) => format!("event: {kind}\ndata: {event}\n\n"),
        None => format!("data: {event}\n\n"),
    };
    let pieces: Vec<Bytes> = events.iter().map(|event| written(event).into()).collect();
    body(move || {
        let (mut reader, mut writer) = (reader(), ChunkWriter::new(true, 1_760_000_000));
        let (mut framer, mut out) = (Framer::new(1 << 20), Vec::new());
        for piece in &pieces {
            framer.push(piece.clone());
            let alike = reader.alike().and_then(|alike| alike.peek(&mut framer));
            if let Some((raw, text)) = alike {
                let (length, text) = (raw.len(), text.into_owned());
                framer.skip(length);
                writer.write(Delta::Text(text), &mut out);
                continue;
            }
            while let Some(Ok(event)) = framer.next() {
                let deltas = match reader.read_quickly(&event) {
                    Some(deltas) => deltas,
                    None => {
                        let data = event.data().expect("data");
                        reader.read(serde_json::from_str(&data).expect("an event"))
                    }
                };
                for delta in deltas {
                    writer.write(delta, &mut out);
                }
            }
        }
        for delta in reader.end() {
            writer.write(delta, &mut out);
        }
        writer.finish(&mut out);
        out
    })
}

fn pieces() -> impl Iterator<Item = &'static str> {
    streams::WORDS.into_iter().cycle().take(100)
}

fn responses() -> Vec<Value> {
    let text: String = pieces().collect();
    let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
    let id = "msg_0123456789abcdef";
    let item = |status: &str, content: Value| json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content});
    let response = |status: &str, output: Value, usage: Value| {
        json!({"id": "resp_0123456789abcdef", "object": "response", "created_at": 1_760_000_000, "status": status,
            "model": "gpt-5-mini-2025-08-07", "output": output, "usage": usage, "error": null})
    };
    let mut events = vec![
        json!({"type": "response.created", "response": response("in_progress", json!([]), Value::Null)}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": item("in_progress", json!([]))}),
    ];
    events.extend(pieces().map(|piece| {
        json!({"type": "response.output_text.delta", "item_id": id, "output_index": 0, "content_index": 0,
            "delta": piece, "logprobs": [], "sequence_number": 7})
    }));
    let item = item("completed", json!([part]));
    let usage = json!({"input_tokens": 412, "output_tokens": 131, "total_tokens": 543});
    events.push(
        json!({"type": "response.output_item.done", "output_index": 0, "item": item.clone()}),
    );
    events.push(json!({"type": "response.completed", "response": response("completed", json!([item]), usage)}));
    events
}

fn messages() -> Vec<Value> {
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": "msg_0123456789abcdef", "type": "message", "role": "assistant",
            "model": "claude-sonnet-4-5", "content": [], "stop_reason": null, "usage": {"input_tokens": 412}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    ];
    events.extend(pieces().map(|piece| {
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}})
    }));
    events.extend([
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 131}}),
        json!({"type": "message_stop"}),
    ]);
    events
}

fn gemini() -> Vec<Value> {
    let event = |piece: &str, finish: Option<&str>| {
        json!({"candidates": [{"content": {"parts": [{"text": piece}], "role": "model"}, "index": 0, "finishReason": finish}],
            "usageMetadata": {"promptTokenCount": 412, "candidatesTokenCount": 131, "totalTokenCount": 543},
            "modelVersion": "gemini-2.5-flash", "responseId": "0123456789abcdef"})
    };
    let mut events: Vec<Value> = pieces().map(|piece| event(piece, None)).collect();
    events.push(event("", Some("STOP")));
    events
}
