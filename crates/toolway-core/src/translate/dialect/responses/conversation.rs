//! Conversations: lists of items that have a name, so that a request can name one instead of sending its items.

use serde_json::{Value, json};

use super::items::with_ids;
use crate::translate::dialect::Unsupported;
use toolway_protocol::tool::JsonObject;

/// Most items that are added at one time.
const MAX_NEW: usize = 20;

/// Most members of `metadata`, and the most characters of their names and values.
const MAX_METADATA: (usize, usize, usize) = (16, 64, 512);

/// The conversation that a request names, by its id or in an object.
pub fn conversation_id(body: &JsonObject) -> Option<&str> {
    let named = body.get("conversation")?;
    named.as_str().or_else(|| named["id"].as_str())
}

/// The items that a client adds to a conversation.
///
/// # Errors
/// When they are no list of objects, or more than 20.
pub fn read_new_items(items: Option<Value>) -> Result<Vec<Value>, Unsupported> {
    let items = match items {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(invalid("items", "`items` is a list of items")),
    };
    if items.len() > MAX_NEW {
        return Err(invalid("items", "at most 20 items are added at one time"));
    }
    match items.iter().all(Value::is_object) {
        true => Ok(items),
        false => Err(invalid("items", "an item of `items` is not an object")),
    }
}

/// The `metadata` of a conversation.
///
/// # Errors
/// When it is no object of at most 16 short texts.
pub fn read_metadata(metadata: Option<Value>) -> Result<JsonObject, Unsupported> {
    let (members, name, value) = MAX_METADATA;
    let is_short = |text: &str, max| text.chars().count() <= max;
    match metadata {
        None | Some(Value::Null) => Ok(JsonObject::new()),
        Some(Value::Object(metadata))
            if metadata.len() <= members
                && metadata.iter().all(|(key, text)| {
                    is_short(key, name) && text.as_str().is_some_and(|text| is_short(text, value))
                }) =>
        {
            Ok(metadata)
        }
        Some(_) => Err(invalid(
            "metadata",
            "`metadata` has at most 16 texts of 512 characters, with names of 64",
        )),
    }
}

/// Items as a conversation has them: each with an id, those without one with `prefix` and a number; messages whole.
pub fn conversation_items(items: Vec<Value>, prefix: &str) -> Vec<Value> {
    let mut items = with_ids(items, prefix);
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        let kind = item.entry("type").or_insert_with(|| "message".into());
        if *kind != "message" {
            continue;
        }
        item.entry("status").or_insert_with(|| "completed".into());
        let part = match item.get("role") {
            Some(role) if role == "assistant" => {
                |text: &str| json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
            }
            _ => |text: &str| json!({"type": "input_text", "text": text}),
        };
        if let Some(content) = item.get_mut("content")
            && let Some(text) = content.as_str()
        {
            *content = json!([part(text)]);
        }
    }
    items
}

fn invalid(param: &str, message: &str) -> Unsupported {
    Unsupported {
        param: param.to_owned(),
        message: message.to_owned(),
        code: "invalid_value",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_named_in_two_ways() {
        for (body, expected) in [
            (json!({"conversation": "conv_1"}), Some("conv_1")),
            (json!({"conversation": {"id": "conv_1"}}), Some("conv_1")),
            (json!({"conversation": null}), None),
            (json!({}), None),
        ] {
            assert_eq!(conversation_id(body.as_object().unwrap()), expected);
        }
    }

    #[test]
    fn messages_become_whole_and_other_items_get_an_id() {
        let items = vec![
            json!({"role": "user", "content": "a"}),
            json!({"type": "message", "id": "msg_1", "role": "assistant", "content": "b"}),
            json!({"type": "function_call_output", "call_id": "c", "output": "d"}),
        ];
        let expected = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "a"}], "id": "x_0", "type": "message", "status": "completed"},
            {"type": "message", "id": "msg_1", "role": "assistant",
             "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}], "status": "completed"},
            {"type": "function_call_output", "call_id": "c", "output": "d", "id": "x_2"},
        ]);
        assert_eq!(Value::from(conversation_items(items, "x")), expected);
    }

    #[test]
    fn too_much_is_refused_by_name() {
        let many: Vec<Value> = vec![json!({}); MAX_NEW + 1];
        for items in [many.into(), json!({}), json!(["x"])] {
            assert_eq!(read_new_items(Some(items)).unwrap_err().param, "items");
        }
        assert_eq!(read_new_items(None).unwrap(), Vec::<Value>::new());
        let many: JsonObject = (0..17).map(|n| (n.to_string(), "x".into())).collect();
        for metadata in [
            many.into(),
            json!([]),
            json!({"a": 1}),
            json!({"a": "x".repeat(513)}),
        ] {
            assert_eq!(read_metadata(Some(metadata)).unwrap_err().param, "metadata");
        }
        let metadata = json!({"topic": "x".repeat(512)});
        assert_eq!(
            Value::from(read_metadata(Some(metadata.clone())).unwrap()),
            metadata
        );
    }
}
