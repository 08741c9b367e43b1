//! OpenAI's Responses API: what it refuses, and how it answers.

use axum::body::Bytes;
use serde_json::{Value, json};

/// `refuses`: `no responses` (the upstream has no such route), `seals` (the model does not think).
pub fn refusal(body: &Value, refuses: &[&str]) -> Option<(u16, Value)> {
    if refuses.contains(&"no responses") {
        return Some((404, json!({"detail": "Not Found"})));
    }
    let (param, message) = fault(body, refuses)?;
    let error =
        json!({"message": message, "type": "invalid_request_error", "param": param, "code": null});
    Some((400, json!({"error": error})))
}

fn fault(body: &Value, refuses: &[&str]) -> Option<(String, String)> {
    let fault = |param: &str, message: &str| Some((param.to_owned(), message.to_owned()));
    for unknown in [
        "messages",
        "n",
        "stop",
        "seed",
        "logit_bias",
        "max_tokens",
        "max_completion_tokens",
        "response_format",
        "reasoning_effort",
        "stream_options_",
        "verbosity",
    ] {
        if body.get(unknown).is_some() {
            return fault(unknown, &format!("Unknown parameter: '{unknown}'."));
        }
    }
    if refuses.contains(&"seals") && body.get("include").is_some() {
        return fault(
            "include",
            "Encrypted content is not supported with this model.",
        );
    }
    if body["max_output_tokens"]
        .as_u64()
        .is_some_and(|tokens| tokens < 16)
    {
        return fault(
            "max_output_tokens",
            "Invalid 'max_output_tokens': integer below minimum value.",
        );
    }
    for (at, tool) in body["tools"].as_array().into_iter().flatten().enumerate() {
        let has_name = matches!(tool["type"].as_str(), Some("function" | "custom"));
        if has_name && tool["name"].as_str().is_none() {
            return fault(
                &format!("tools[{at}].name"),
                "Missing required parameter: 'tools[0].name'.",
            );
        }
        if tool["type"] == "function" && tool["strict"] != false {
            return fault(
                "tools",
                "Invalid schema for function: 'additionalProperties' is required to be supplied and to be false.",
            );
        }
    }
    let input = body["input"].as_array().cloned().unwrap_or_default();
    let mut open: Vec<String> = Vec::new();
    for (at, item) in input.iter().enumerate() {
        match item["type"].as_str() {
            Some("function_call") => {
                let follows = at
                    .checked_sub(1)
                    .and_then(|before| input[before]["type"].as_str());
                if !matches!(
                    follows,
                    Some("reasoning" | "function_call" | "message" | "tool_search_output")
                ) {
                    return fault(
                        "input",
                        "Item 'fc' of type 'function_call' was provided without its required 'reasoning' item.",
                    );
                }
                open.push(item["call_id"].as_str()?.to_owned());
            }
            Some("function_call_output") => {
                let Some(found) = open.iter().position(|id| *id == item["call_id"]) else {
                    return fault("input", "No tool call found for function call output.");
                };
                open.remove(found);
                if !(item["output"].is_string() || item["output"].is_array()) {
                    return fault("input", "Invalid type for 'output'.");
                }
            }
            Some("reasoning")
                if item["summary"].is_array() && item["encrypted_content"].is_string() => {}
            Some("message") if item["content"].is_array() => {}
            Some("tool_search_call" | "tool_search_output" | "web_search_call")
                if item["id"].is_string() => {}
            other => return fault("input", &format!("Invalid value: {other:?}")),
        }
    }
    if let Some(id) = open.first() {
        return fault(
            "input",
            &format!("No tool output found for function call {id}."),
        );
    }
    None
}

/// A turn that begins with a thought.
pub fn answer(
    n: usize,
    text: &[String],
    calls: &[(String, String, String)],
    is_streamed: bool,
) -> (&'static str, Vec<Bytes>) {
    let thought = format!("thinking {n}");
    let mut output = vec![
        json!({"type": "reasoning", "id": format!("rs_{n}"), "encrypted_content": format!("sealed {n}"),
        "summary": [{"type": "summary_text", "text": thought}]}),
    ];
    if !text.is_empty() {
        output.push(json!({"type": "message", "id": format!("msg_{n}"), "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text.concat(), "annotations": []}]}));
    }
    for (id, name, arguments) in calls {
        output.push(
            json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name,
            "arguments": arguments, "status": "completed"}),
        );
    }
    let usage = json!({"input_tokens": 10 * n, "input_tokens_details": {"cached_tokens": n}, "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 10 * n + 1});
    let mut response = json!({"id": format!("resp_{n}"), "object": "response", "created_at": 1000 + n, "model": "m",
        "status": "in_progress", "output": []});
    let begun = response.clone();
    response["status"] = "completed".into();
    response["output"] = output.clone().into();
    response["usage"] = usage;
    if !is_streamed {
        return ("application/json", vec![response.to_string().into()]);
    }
    let mut events = vec![json!({"type": "response.created", "response": begun})];
    for (at, item) in output.iter().enumerate() {
        let mut added = item.clone();
        let (deltas, field): (Vec<&str>, &str) = match item["type"].as_str() {
            Some("reasoning") => {
                added["summary"] = json!([]);
                events.push(json!({"type": "response.output_item.added", "output_index": at, "item": added}));
                events.push(
                    json!({"type": "response.reasoning_summary_part.added", "output_index": at}),
                );
                (vec![thought.as_str()], "reasoning_summary_text")
            }
            Some("message") => {
                added["content"] = json!([]);
                events.push(json!({"type": "response.output_item.added", "output_index": at, "item": added}));
                (text.iter().map(String::as_str).collect(), "output_text")
            }
            _ => {
                added["arguments"] = "".into();
                events.push(json!({"type": "response.output_item.added", "output_index": at, "item": added}));
                let arguments = item["arguments"].as_str().unwrap_or_default();
                (
                    vec![arguments.split_at(1).0, arguments.split_at(1).1],
                    "function_call_arguments",
                )
            }
        };
        for delta in deltas {
            events.push(json!({"type": format!("response.{field}.delta"), "output_index": at, "delta": delta}));
        }
        events.push(json!({"type": format!("response.{field}.done"), "output_index": at}));
        events.push(json!({"type": "response.output_item.done", "output_index": at, "item": item}));
    }
    events.push(json!({"type": "response.completed", "response": response}));
    let pieces = events.iter().enumerate().map(|(number, event)| {
        let mut event = event.clone();
        event["sequence_number"] = number.into();
        let kind = event["type"].as_str().unwrap_or_default();
        Bytes::from(format!("event: {kind}\ndata: {event}\n\n"))
    });
    ("text/event-stream", pieces.collect())
}
