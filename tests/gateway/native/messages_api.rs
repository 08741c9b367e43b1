//! Anthropic's Messages API: what it refuses, and how it answers.

use axum::{body::Bytes, http::HeaderMap};
use serde_json::{Value, json};

/// What the API does not take, as (status, body).
pub fn refusal(headers: &HeaderMap, body: &Value) -> Option<(u16, Value)> {
    if headers.get("x-api-key").is_none() || headers.contains_key("authorization") {
        return Some(error(
            401,
            "authentication_error",
            "x-api-key header is required",
        ));
    }
    if headers.get("anthropic-version").is_none() {
        return Some(error(
            400,
            "invalid_request_error",
            "anthropic-version: header is required",
        ));
    }
    let message = fault(body)?;
    Some(error(400, "invalid_request_error", &message))
}

fn error(status: u16, kind: &str, message: &str) -> (u16, Value) {
    (
        status,
        json!({"type": "error", "error": {"type": kind, "message": message}}),
    )
}

fn fault(body: &Value) -> Option<String> {
    const KNOWN: [&str; 19] = [
        "model",
        "max_tokens",
        "messages",
        "system",
        "stop_sequences",
        "stream",
        "metadata",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "cache_control",
        "temperature",
        "top_p",
        "top_k",
        "container",
        "context_management",
        "inference_geo",
        "service_tier",
    ];
    let model = body["model"].as_str()?;
    for key in body.as_object()?.keys() {
        if !KNOWN.contains(&key.as_str()) {
            return Some(format!("{key}: Extra inputs are not permitted"));
        }
    }
    if body["max_tokens"].as_u64().is_none() {
        return Some("max_tokens: Field required".to_owned());
    }
    let is_new = ["claude-opus-4-7", "claude-opus-4-8", "claude-opus-5"]
        .iter()
        .any(|new| model.starts_with(new));
    if is_new && body.get("temperature").is_some() {
        return Some("`temperature` is deprecated for this model.".to_owned());
    }
    if is_new && body["thinking"]["type"] == "enabled" {
        return Some("thinking: `enabled` is not supported".to_owned());
    }
    let tools = body["tools"].as_array().into_iter().flatten();
    for tool in tools.filter(|tool| tool.get("type").is_none()) {
        if tool["input_schema"]["type"] != "object" {
            return Some("tools.0.custom.input_schema.type: Field required".to_owned());
        }
        if ["oneOf", "anyOf", "allOf"]
            .iter()
            .any(|key| tool["input_schema"].get(key).is_some())
        {
            return Some(
                "input_schema does not support oneOf, allOf, or anyOf at the top level".to_owned(),
            );
        }
    }
    let messages = body["messages"].as_array()?;
    if messages.is_empty() {
        return Some("messages: at least one message is required".to_owned());
    }
    for (at, message) in messages.iter().enumerate() {
        let blocks = match &message["content"] {
            Value::Array(blocks) => blocks.clone(),
            Value::String(text) => vec![json!({"type": "text", "text": text})],
            _ => return Some(format!("messages.{at}.content: Field required")),
        };
        if blocks
            .iter()
            .any(|block| block["type"] == "text" && block["text"] == "")
        {
            return Some("messages: text content blocks must be non-empty".to_owned());
        }
        let calls: Vec<&Value> = ids(&blocks, "tool_use", "id");
        let answered: Vec<Value> = match messages.get(at + 1) {
            Some(next) => next["content"].as_array().cloned().unwrap_or_default(),
            None => Vec::new(),
        };
        let results = ids(&answered, "tool_result", "tool_use_id");
        if calls.iter().any(|id| !results.contains(id)) {
            return Some(format!(
                "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after"
            ));
        }
        let has_thought = blocks
            .first()
            .is_some_and(|block| block["type"] == "thinking");
        if !calls.is_empty() && !has_thought {
            return Some(
                "Expected `thinking` or `redacted_thinking`, but found `tool_use`".to_owned(),
            );
        }
        if !calls.is_empty() && has_moved_thoughts(&blocks) {
            return Some(
                "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response."
                    .to_owned(),
            );
        }
        for block in &blocks {
            if block["type"] == "thinking" && !block["signature"].as_str()?.starts_with("signed ") {
                return Some("Invalid `signature` in `thinking` block".to_owned());
            }
        }
    }
    None
}

/// A turn that says something before its calls thinks again between the two.
fn has_moved_thoughts(blocks: &[Value]) -> bool {
    let kinds: Vec<&str> = blocks
        .iter()
        .filter_map(|block| block["type"].as_str())
        .collect();
    let says = kinds.contains(&"text");
    says && !kinds.starts_with(&["thinking", "text", "thinking", "tool_use"])
}

fn ids<'b>(blocks: &'b [Value], kind: &str, key: &str) -> Vec<&'b Value> {
    let blocks = blocks.iter().filter(|block| block["type"] == kind);
    blocks.map(|block| &block[key]).collect()
}

/// A turn that begins with a thought, and thinks again between its text and its calls.
pub fn answer(
    n: usize,
    text: &[String],
    calls: &[(String, String, String)],
    is_streamed: bool,
) -> (&'static str, Vec<Bytes>) {
    let (thought, signature) = (format!("thinking {n}"), format!("signed {n}"));
    let thinks_again = !text.is_empty() && !calls.is_empty();
    let stop = if calls.is_empty() {
        "end_turn"
    } else {
        "tool_use"
    };
    let usage = json!({"input_tokens": 10 * n, "cache_read_input_tokens": n, "cache_creation_input_tokens": null, "output_tokens": 1});
    let message = json!({"id": format!("msg_{n}"), "type": "message", "role": "assistant", "model": "claude",
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage});
    if !is_streamed {
        let mut message = message;
        let mut content =
            vec![json!({"type": "thinking", "thinking": thought, "signature": signature})];
        if !text.is_empty() {
            content.push(json!({"type": "text", "text": text.concat()}));
        }
        if thinks_again {
            content.push(
                json!({"type": "thinking", "thinking": "again", "signature": "signed again"}),
            );
        }
        for (id, name, arguments) in calls {
            let input: Value = serde_json::from_str(arguments).unwrap_or_default();
            content.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
        }
        message["content"] = content.into();
        message["stop_reason"] = stop.into();
        return ("application/json", vec![message.to_string().into()]);
    }
    let mut events = vec![
        json!({"type": "message_start", "message": message}),
        json!({"type": "ping"}),
    ];
    let mut index = 0;
    let mut block = |start: Value, deltas: Vec<Value>| {
        events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
        for delta in deltas {
            events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        events.push(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    };
    block(
        json!({"type": "thinking", "thinking": "", "signature": ""}),
        vec![
            json!({"type": "thinking_delta", "thinking": thought}),
            json!({"type": "signature_delta", "signature": signature}),
        ],
    );
    if !text.is_empty() {
        let deltas = text
            .iter()
            .map(|text| json!({"type": "text_delta", "text": text}));
        block(json!({"type": "text", "text": ""}), deltas.collect());
    }
    if thinks_again {
        block(
            json!({"type": "thinking", "thinking": "", "signature": ""}),
            vec![
                json!({"type": "thinking_delta", "thinking": "again"}),
                json!({"type": "signature_delta", "signature": "signed again"}),
            ],
        );
    }
    for (id, name, arguments) in calls {
        let mut deltas = vec![json!({"type": "input_json_delta", "partial_json": ""})];
        if arguments != "{}" {
            deltas.push(json!({"type": "input_json_delta", "partial_json": arguments}));
        }
        block(
            json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
            deltas,
        );
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null}, "usage": {"output_tokens": 1}}));
    events.push(json!({"type": "message_stop"}));
    let pieces = events.iter().map(|event| {
        let kind = event["type"].as_str().unwrap_or_default();
        Bytes::from(format!("event: {kind}\ndata: {event}\n\n"))
    });
    ("text/event-stream", pieces.collect())
}
