//! Google's Gemini API: `generateContent` and `streamGenerateContent`.

mod contents;
mod events;
mod media;
mod models;
mod write;

pub use self::{events::EventReader, write::write_request};

use serde_json::{Value, json};

use super::text;
use crate::translate::percent;
use toolway_protocol::tool::JsonObject;

/// What the API does not take of a chat completion, whatever the model: `n` above 1 is refused, the rest left out.
pub const NOT_TAKEN: [&str; 8] = [
    "n",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "prediction",
    "audio",
    "web_search_options",
    "verbosity",
];

/// The path of a question below the API's base, and its query. The model's name is one segment of it; one that begins with
/// `models/`, as the API lists them, is the same model.
pub fn path(model: &str, is_stream: bool) -> (String, Option<&'static str>) {
    let model = percent::value(model.strip_prefix("models/").unwrap_or(model));
    match is_stream {
        true => (
            format!("models/{model}:streamGenerateContent"),
            Some("alt=sse"),
        ),
        false => (format!("models/{model}:generateContent"), None),
    }
}

/// The models of a list that can be asked, as chat completions list them. `None` if it is no list.
pub fn read_models(list: &JsonObject) -> Option<Vec<Value>> {
    let models = list.get("models")?.as_array()?.iter();
    let models = models.filter_map(|model| {
        let model = model.as_object()?;
        let methods = model.get("supportedGenerationMethods");
        let methods = methods.and_then(Value::as_array);
        let can_be_asked = methods.is_none_or(|it| it.iter().any(|it| it == "generateContent"));
        let name = text(model, "name")?;
        let id = name.strip_prefix("models/").unwrap_or(name);
        can_be_asked
            .then(|| json!({"id": id, "object": "model", "created": 0, "owned_by": "google"}))
    });
    Some(models.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_name_is_one_segment_of_the_path() {
        for (model, expected) in [
            ("gemini-3-pro", "models/gemini-3-pro:generateContent"),
            ("models/gemini-3-pro", "models/gemini-3-pro:generateContent"),
            ("../x?key=1", "models/..%2Fx%3Fkey%3D1:generateContent"),
            ("a:countTokens", "models/a%3AcountTokens:generateContent"),
        ] {
            assert_eq!(path(model, false), (expected.to_owned(), None));
        }
        let (path, query) = path("m", true);
        assert_eq!(path, "models/m:streamGenerateContent");
        assert_eq!(query, Some("alt=sse"));
    }
}
