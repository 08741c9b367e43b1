//! What requests refer to instead of sending it: responses, conversations and items.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::conversation::conversation_id;
use crate::translate::dialect::{Unsupported, take, text};
use toolway_protocol::tool::JsonObject;

/// What a request refers to instead of sending it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// The response that it continues.
    pub previous: Option<String>,
    /// The conversation that it belongs to.
    pub conversation: Option<String>,
    /// Items.
    pub items: HashSet<String>,
}

impl References {
    /// Those of a request.
    pub fn of(body: &JsonObject) -> References {
        let items = body.get("input").and_then(Value::as_array);
        let items = items.into_iter().flatten().filter_map(text_of_reference);
        References {
            previous: text(body, "previous_response_id").map(str::to_owned),
            conversation: conversation_id(body).map(str::to_owned),
            items: items.map(str::to_owned).collect(),
        }
    }

    /// It refers to nothing.
    pub fn is_empty(&self) -> bool {
        *self == References::default()
    }
}

/// What is known of what a request refers to.
#[derive(Clone, Debug, Default)]
pub struct Earlier {
    /// The items of the conversation that the request continues.
    pub conversation: Option<Vec<Value>>,
    /// The response that the request continues has not ended.
    pub is_unfinished: bool,
    /// Items by their ids.
    pub items: HashMap<String, Value>,
}

/// Puts what a request refers to in its place, and gives the client's own items.
///
/// # Errors
/// When it refers to what is not known, or to more than `max_bytes` of JSON.
pub fn expand(
    body: &mut JsonObject,
    earlier: Earlier,
    max_bytes: usize,
) -> Result<Vec<Value>, Unsupported> {
    let Earlier {
        conversation,
        is_unfinished,
        items,
    } = earlier;
    if text(body, "previous_response_id").is_some() && conversation_id(body).is_some() {
        return Err(Unsupported {
            param: "conversation".to_owned(),
            message: "`conversation` and `previous_response_id` exclude each other".to_owned(),
            code: "mutually_exclusive_parameters",
        });
    }
    if is_unfinished {
        return Err(Unsupported {
            param: "previous_response_id".to_owned(),
            message: "the previous response has not ended".to_owned(),
            code: "previous_response_not_completed",
        });
    }
    if let (Some(id), None) = (text(body, "previous_response_id"), &conversation) {
        return Err(Unsupported {
            param: "previous_response_id".to_owned(),
            message: format!("Previous response with id '{id}' not found."),
            code: "previous_response_not_found",
        });
    }
    if let (Some(id), None) = (conversation_id(body), &conversation) {
        return Err(Unsupported {
            param: "conversation".to_owned(),
            message: format!("Conversation with id '{id}' not found."),
            code: "conversation_not_found",
        });
    }
    let mut conversation = conversation.unwrap_or_default();
    let input = read_input(body)?;
    let mut left = max_bytes;
    for item in &conversation {
        left = take_room(item, left)?;
    }
    let resolved = input.into_iter().map(|item| {
        let Some(id) = text_of_reference(&item) else {
            return Ok(item);
        };
        let found = items.get(id).ok_or_else(|| Unsupported {
            param: "input".to_owned(),
            message: format!("Item with id '{id}' not found."),
            code: "item_not_found",
        })?;
        left = take_room(found, left)?;
        Ok(found.clone())
    });
    let own: Vec<Value> = resolved.collect::<Result<_, _>>()?;
    conversation.extend(own.iter().cloned());
    body.insert("input".to_owned(), conversation.into());
    Ok(own)
}

/// Puts items before the input of a request.
///
/// # Errors
/// When it has no input.
pub fn continue_from(body: &mut JsonObject, mut items: Vec<Value>) -> Result<(), Unsupported> {
    items.extend(read_input(body)?);
    body.insert("input".to_owned(), items.into());
    Ok(())
}

/// The items of `input`; a text is a message.
fn read_input(body: &mut JsonObject) -> Result<Vec<Value>, Unsupported> {
    match take(body, "input") {
        Some(Value::String(text)) => {
            let content = json!([{"type": "input_text", "text": text}]);
            Ok(vec![
                json!({"type": "message", "role": "user", "content": content}),
            ])
        }
        Some(Value::Array(items)) => Ok(items),
        _ => Err(Unsupported::new(
            "input",
            "`input` is a text or a list of items",
        )),
    }
}

/// What is left of a number of bytes, when this item takes its part.
fn take_room(item: &Value, left: usize) -> Result<usize, Unsupported> {
    left.checked_sub(item.to_string().len())
        .ok_or_else(|| Unsupported {
            param: "input".to_owned(),
            message: "the items that the request refers to are too long together".to_owned(),
            code: "body_too_large",
        })
}

/// The id that an item refers to: it says so, or it has nothing but an id.
fn text_of_reference(item: &Value) -> Option<&str> {
    let is_reference =
        item["type"] == "item_reference" || item.as_object().is_some_and(|item| item.len() == 1);
    item["id"].as_str().filter(|_| is_reference)
}
