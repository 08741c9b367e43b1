//! What a request of Responses loses on its way through a chat: an upstream of the same API gets it back.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use super::client_tools::{SEARCH, offered};
use crate::translate::{
    dialect::{take, take_list, text},
    ids::{MARK, MISSING_NOTE},
};
use toolway_protocol::tool::JsonObject;

/// Members that are written from the chat, which the gateway may have changed, or that toolway answers for itself.
const TRANSLATED: [&str; 15] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_output_tokens",
    "temperature",
    "top_p",
    "stream",
    "store",
    "background",
    "previous_response_id",
    "conversation",
    "prompt",
];

/// Encrypted reasoning.
const SEALED: &str = "reasoning.encrypted_content";

/// Puts what the client wrote into a body that was written from its chat: members of the request, and each item and tool
/// that is still the client's. Whether reasoning comes back encrypted is for toolway to say, which knows the model.
pub fn restore(body: &mut JsonObject, mut original: JsonObject) {
    let instructions = take(&mut original, "instructions");
    let items = take_list(&mut original, "input");
    if let Some(Value::Array(input)) = body.get_mut("input") {
        restore_items(input, items);
        let is_first = |text: &Value| input.first().is_some_and(|it| is_instructions(it, text));
        if let Some(text) = instructions.filter(is_first) {
            input.remove(0);
            body.insert("instructions".to_owned(), text);
        }
    }
    let tools = take_list(&mut original, "tools");
    if let Some(Value::Array(written)) = body.get_mut("tools") {
        restore_tools(written, tools);
    }
    let wished = take_list(&mut original, "include");
    let mut include = take_list(body, "include");
    include.extend(wished.into_iter().filter(|it| *it != SEALED));
    if !include.is_empty() {
        body.insert("include".to_owned(), include.into());
    }
    if body.get("stream").is_none() {
        original.shift_remove("stream_options");
    }
    original.retain(|key, value| !TRANSLATED.contains(&key.as_str()) && !value.is_null());
    body.extend(original);
}

/// Marks these tools as ones that the model finds by searching, and offers the search.
pub fn defer(body: &mut JsonObject, names: &[String]) {
    let Some(Value::Array(tools)) = body.get_mut("tools") else {
        return;
    };
    let mut is_any = false;
    for tool in tools.iter_mut() {
        if names.iter().any(|name| tool["name"] == name.as_str()) {
            tool["defer_loading"] = true.into();
            is_any = true;
        }
    }
    let has_search = tools.iter().any(|tool| tool["type"] == SEARCH);
    if is_any && !has_search {
        tools.insert(0, json!({"type": SEARCH}));
    }
}

fn is_instructions(item: &Value, instructions: &Value) -> bool {
    let content = item["content"].as_array();
    item["role"] == "system"
        && content.is_some_and(|it| matches!(&it[..], [part] if part["text"] == *instructions))
}

/// Gives each item what the client's item said besides. Ids are toolway's, so they stay here.
fn restore_items(written: &mut [Value], original: Vec<Value>) {
    let mut own: HashMap<String, VecDeque<JsonObject>> = HashMap::new();
    for item in original {
        if let (Some(key), Value::Object(item)) = (key(&item), item) {
            own.entry(key).or_default().push_back(item);
        }
    }
    for item in written {
        let Some(mut found) = key(item).and_then(|key| own.get_mut(&key)?.pop_front()) else {
            continue;
        };
        let Value::Object(item) = item else {
            continue;
        };
        found.shift_remove("id");
        for key in ["content", "output"] {
            if let Some(Value::Array(parts)) = found.get_mut(key) {
                let written = item.shift_remove(key).unwrap_or_default();
                if key == "output" && said(&written).ends_with(MISSING_NOTE) {
                    parts.push(json!({"type": "input_text", "text": MISSING_NOTE}));
                }
            }
        }
        for (key, value) in found {
            item.entry(key).or_insert(value);
        }
    }
}

/// What is the same in an item and in what is written of it after it went through a chat; none for items that stay
/// translated.
fn key(item: &Value) -> Option<String> {
    let object = item.as_object()?;
    Some(match text(object, "type").unwrap_or("message") {
        "message" => format!("{} {}", text(object, "role")?, said(object.get("content")?)),
        // A tool of a namespace is another one for the upstream.
        kind @ ("function_call" | "function_call_output") if !object.contains_key("namespace") => {
            let id = text(object, "call_id")?;
            format!("{kind} {}", id.strip_suffix(MARK).unwrap_or(id))
        }
        _ => return None,
    })
}

/// The texts of a message.
fn said(content: &Value) -> String {
    let parts = content.as_array().into_iter().flatten();
    let texts = parts.filter_map(|part| part.get("text").or(part.get("refusal"))?.as_str());
    let texts: String = texts.collect();
    content.as_str().map_or(texts, str::to_owned)
}

/// What the client says of its tools, and the provider's own tools, in the client's order; the gateway's follow.
fn restore_tools(written: &mut Vec<Value>, original: Vec<Value>) {
    let mut rest = std::mem::take(written);
    for tool in original {
        restore_tool(tool, None, &mut rest, written);
    }
    written.append(&mut rest);
}

fn restore_tool(
    tool: Value,
    namespace: Option<&str>,
    rest: &mut Vec<Value>,
    written: &mut Vec<Value>,
) {
    let Value::Object(mut tool) = tool else {
        return;
    };
    match text(&tool, "type") {
        Some("namespace") => {
            let name = text(&tool, "name").map(str::to_owned);
            for tool in take_list(&mut tool, "tools") {
                restore_tool(tool, name.as_deref(), rest, written);
            }
        }
        kind @ Some("function" | "custom") => {
            let name = offered(namespace, text(&tool, "name").unwrap_or_default());
            let Some(at) = rest.iter().position(|it| it["name"] == name) else {
                return;
            };
            let mut kept = rest.remove(at);
            if let (Some("function"), Value::Object(kept)) = (kind, &mut kept) {
                for (key, value) in tool {
                    kept.entry(key).or_insert(value);
                }
            }
            written.push(kept);
        }
        Some("mcp") | None => {}
        Some(_) => written.push(tool.into()),
    }
}
