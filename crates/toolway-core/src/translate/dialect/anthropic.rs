//! Anthropic's Messages API.

mod events;
mod models;
mod original;
mod read;
mod write;
mod writer;

pub use self::{
    events::EventReader,
    original::{defer, restore},
    read::{Read, read_request},
    write::write_request,
    writer::{MessageWriter, write_message},
};

use serde_json::{Value, json};

use toolway_protocol::openai::ErrorBody;

/// What the API does not take of a chat completion, whatever the model: `n` above 1 is refused, the rest left out.
pub const NOT_TAKEN: [&str; 12] = [
    "n",
    "seed",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "frequency_penalty",
    "presence_penalty",
    "prediction",
    "audio",
    "web_search_options",
    "input_audio",
    "verbosity",
];

/// The error types of the API and the statuses that they come with.
const ERROR_TYPES: [(u16, &str); 10] = [
    (400, "invalid_request_error"),
    (401, "authentication_error"),
    (402, "billing_error"),
    (403, "permission_error"),
    (404, "not_found_error"),
    (413, "request_too_large"),
    (429, "rate_limit_error"),
    (500, "api_error"),
    (504, "timeout_error"),
    (529, "overloaded_error"),
];

/// When a model was made, where that is not known.
const UNKNOWN_TIME: &str = "1970-01-01T00:00:00Z";

/// What the API says of a conversation that it does not keep; SDKs then send all of it.
const THREAD_NOT_FOUND: &str = "thread_not_found";

/// An error as the API has it: `{"type": "error", "error": {"type", "message"}}`. `status` is 500 where the answer has
/// begun.
pub fn write_error(status: u16, error: &ErrorBody) -> Value {
    let known = ERROR_TYPES.iter().find(|(known, _)| *known == status);
    let kind = match (known, status) {
        (Some((_, kind)), _) => *kind,
        (None, 400..=499) => "invalid_request_error",
        (None, _) => "api_error",
    };
    let mut body = json!({"type": "error", "error": {"type": kind, "message": error.message}});
    if error
        .code
        .as_ref()
        .is_some_and(|code| code == THREAD_NOT_FOUND)
    {
        body["error"]["details"] = json!({"error_code": THREAD_NOT_FOUND});
    }
    body
}

/// The list of these models, all on one page, as the API has it.
pub fn write_models(models: &[Value]) -> Value {
    let data: Vec<Value> = models.iter().map(write_model).collect();
    let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
    json!({"first_id": id(data.first()), "last_id": id(data.last()), "has_more": false, "data": data})
}

/// A model as the API has it; one of Anthropic's stays as it is.
pub fn write_model(model: &Value) -> Value {
    if model["type"] == "model" {
        return model.clone();
    }
    let id = &model["id"];
    json!({"type": "model", "id": id, "display_name": id, "created_at": UNKNOWN_TIME})
}
