//! What a request of Messages loses on its way through a chat: an upstream of the same API gets it back.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use super::{
    read::{instructions, is_search, read_text},
    write::plain_id,
};
use crate::translate::{
    dialect::{object, take, take_list, text},
    ids::{MARK, MISSING_NOTE},
};
use toolway_protocol::tool::JsonObject;

/// Members that are written from the chat, which the gateway may have changed, or that need a store of the upstream's.
const TRANSLATED: [&str; 11] = [
    "model",
    "max_tokens",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "stop_sequences",
    "temperature",
    "top_p",
    "thread",
];

/// What the provider's search for tools is called, as a tool.
const SEARCH: (&str, &str) = ("tool_search_tool_bm25_20251119", "tool_search_tool_bm25");

/// Puts what the client wrote into a body that was written from its chat: members of the request, and each block and tool
/// that is still the client's.
pub fn restore(body: &mut JsonObject, mut original: JsonObject) {
    let system = take(&mut original, "system");
    restore_system(body, system.as_ref());
    let messages = take_list(&mut original, "messages");
    if let Some(Value::Array(written)) = body.get_mut("messages") {
        *written = restore_messages(std::mem::take(written), messages);
    }
    let tools = take_list(&mut original, "tools");
    if let Some(Value::Array(written)) = body.get_mut("tools") {
        restore_tools(written, tools);
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
    let has_search = tools.iter().any(is_search);
    if is_any && !has_search {
        tools.insert(0, json!({"type": SEARCH.0, "name": SEARCH.1}));
    }
}

/// The blocks of the instructions, which are one text in a chat.
fn restore_system(body: &mut JsonObject, system: Option<&Value>) {
    let Some(Value::Array(blocks)) = system else {
        return;
    };
    let joined = instructions(read_text(blocks));
    let Some(Value::Array(written)) = body.get_mut("system") else {
        return;
    };
    let at = written.iter().position(|block| block["text"] == *joined);
    if let Some(at) = at {
        let is_text = |block: &&Value| block["text"].as_str().is_some_and(|it| !it.is_empty());
        written.splice(at..=at, blocks.iter().filter(is_text).cloned());
    }
}

/// The role of a message, and a block of it.
type RoleBlock = (String, Value);

fn restore_messages(written: Vec<Value>, original: Vec<Value>) -> Vec<Value> {
    let mut own = OwnBlocks::read(original);
    let written = written.into_iter().map(split);
    let found: Vec<(String, Vec<FoundBlock>)> = written
        .map(|(role, blocks)| (role, blocks.into_iter().map(|it| own.find(it)).collect()))
        .collect();
    let (mut blocks, mut after) = own.unsaid();
    for (role, found) in found {
        for FoundBlock { block, place } in found {
            blocks.push((role.clone(), block));
            let unsaid = place.and_then(|place| after.remove(&place));
            blocks.extend(unsaid.into_iter().flatten());
        }
    }
    let mut messages: Vec<(String, Vec<Value>)> = Vec::new();
    for (role, block) in blocks {
        match messages.last_mut() {
            Some((last, content)) if *last == role => content.push(block),
            _ => messages.push((role, vec![block])),
        }
    }
    let message = |(role, content)| json!({"role": role, "content": content});
    messages.into_iter().map(message).collect()
}

fn split(message: Value) -> (String, Vec<Value>) {
    let Value::Object(mut message) = message else {
        return (String::new(), Vec::new());
    };
    let role = text(&message, "role").unwrap_or_default().to_owned();
    let content = match take(&mut message, "content") {
        Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
        Some(Value::Array(blocks)) => blocks,
        _ => Vec::new(),
    };
    (role, content)
}

/// A block of a message that was written, or the client's of which it was made.
struct FoundBlock {
    block: Value,
    /// Its place among the client's.
    place: Option<usize>,
}

/// The blocks of the client's messages.
struct OwnBlocks {
    /// Those that were not found yet.
    blocks: Vec<Option<RoleBlock>>,
    /// Where the blocks with this key are, in their order.
    places: HashMap<String, VecDeque<usize>>,
}

impl OwnBlocks {
    fn read(messages: Vec<Value>) -> OwnBlocks {
        let mut blocks = Vec::new();
        let mut places: HashMap<String, VecDeque<usize>> = HashMap::new();
        for (role, content) in messages.into_iter().map(split) {
            for block in content {
                let places = places.entry(key(&block)).or_default();
                places.push_back(blocks.len());
                blocks.push(Some((role.clone(), block)));
            }
        }
        OwnBlocks { blocks, places }
    }

    /// The client's block of which this one was made, if one was.
    fn find(&mut self, written: Value) -> FoundBlock {
        let places = self.places.get_mut(&key(&written));
        let place = places.and_then(VecDeque::pop_front);
        let Some((_, mut block)) = place.and_then(|place| self.blocks[place].take()) else {
            return FoundBlock {
                block: written,
                place: None,
            };
        };
        for id in ["id", "tool_use_id"] {
            if let Some(written) = written.get(id) {
                block[id] = written.clone();
            }
        }
        if has_note(&written["content"]) {
            let note = json!({"type": "text", "text": MISSING_NOTE});
            let content = match block["content"].take() {
                Value::Array(parts) => parts,
                Value::String(text) => vec![json!({"type": "text", "text": text})],
                _ => Vec::new(),
            };
            block["content"] = content.into_iter().chain([note]).collect();
        }
        FoundBlock { block, place }
    }

    /// The blocks that a chat has no word for: those before everything else, and those that follow a block that was
    /// found, by its place.
    fn unsaid(self) -> (Vec<RoleBlock>, HashMap<usize, Vec<RoleBlock>>) {
        let mut first = Vec::new();
        let mut after: HashMap<usize, Vec<RoleBlock>> = HashMap::new();
        let mut last = None;
        for (place, block) in self.blocks.into_iter().enumerate() {
            match (block, last) {
                (None, _) => last = Some(place),
                (Some((_, block)), _) if is_said(&block) => {}
                (Some(block), Some(last)) => after.entry(last).or_default().push(block),
                (Some(block), None) => first.push(block),
            }
        }
        (first, after)
    }
}

/// What is the same in a block and in what is written of it after it went through a chat.
fn key(block: &Value) -> String {
    let member = |name: &str| block[name].as_str().unwrap_or_default();
    let kind = member("type");
    match kind {
        "text" => format!("text {}", member("text")),
        "thinking" => format!("thinking {}", member("signature")),
        "redacted_thinking" => format!("thinking {}", member("data")),
        "document" if block["source"]["type"] == "text" => {
            let text = block["source"]["data"].as_str();
            format!("text {}", text.unwrap_or_default())
        }
        "image" | "document" => format!("{kind} {}", block["source"]),
        _ => {
            let id = block.get("id").or(block.get("tool_use_id"));
            let id = id.and_then(Value::as_str).map(plain_id);
            match id {
                Some(id) => format!("{kind} {}", id.strip_suffix(MARK).unwrap_or(&id)),
                None => block.to_string(),
            }
        }
    }
}

/// The content of a result ends with the note that other results are missing.
fn has_note(content: &Value) -> bool {
    let last = content
        .as_array()
        .and_then(|parts| parts.last()?["text"].as_str());
    content
        .as_str()
        .or(last)
        .is_some_and(|text| text.ends_with(MISSING_NOTE))
}

/// A chat has a word for it, so that it was left out for a reason if it is missing.
fn is_said(block: &Value) -> bool {
    match block["type"].as_str() {
        Some("text" | "thinking" | "redacted_thinking" | "tool_use" | "tool_result") => true,
        Some("image" | "document") => {
            matches!(
                block["source"]["type"].as_str(),
                Some("base64" | "url" | "text")
            )
        }
        _ => false,
    }
}

/// What the client says of its tools, and the provider's own tools, in the client's order; the gateway's follow.
fn restore_tools(written: &mut Vec<Value>, original: Vec<Value>) {
    let mut rest = std::mem::take(written);
    for tool in original {
        let at = rest.iter().position(|it| it["name"] == tool["name"]);
        match (at.map(|at| rest.remove(at)), tool) {
            (Some(Value::Object(mut kept)), Value::Object(tool)) => {
                for (key, value) in tool {
                    kept.entry(key).or_insert(value);
                }
                written.push(kept.into());
            }
            (None, tool @ Value::Object(_)) if tool.get("input_schema").is_none() => {
                written.push(tool);
            }
            _ => {}
        }
    }
    written.append(&mut rest);
}

/// A raw block as the events of a stream begin it, and what its input is.
pub(super) fn begun(mut block: JsonObject) -> (Value, Option<Value>) {
    let input = block.get("input").cloned();
    if input.is_some() {
        block.extend(object([("input", Some(json!({})))]));
    }
    (block.into(), input)
}
