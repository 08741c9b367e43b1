//! Answers in the form that was not asked for: a whole completion as the one chunk of a stream, and a stream
//! as a whole completion.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{sse::Framer, tool::JsonObject};

use super::{
    completion::{self, Summary},
    stream::{ChatStream, Known, Mode, Owner, Pushed, Settings, StreamError},
};

/// Writes the completion in `body` as one `chat.completion.chunk`.
///
/// # Errors
/// When the body is no JSON object. An error object in it goes through; the stream's reader knows it.
pub fn to_chunk(body: &[u8]) -> Result<String, StreamError> {
    let mut chunk: JsonObject = serde_json::from_slice(body)
        .map_err(|error| StreamError::InvalidEvent(error.to_string()))?;
    if let Some(Value::Array(choices)) = chunk.get_mut("choices") {
        for choice in choices.iter_mut().filter_map(Value::as_object_mut) {
            if let Some(message) = choice.shift_remove("message") {
                choice.insert("delta".to_owned(), message);
            }
        }
        chunk.insert("object".to_owned(), "chat.completion.chunk".into());
    }
    Ok(Value::Object(chunk).to_string())
}

/// Reads a whole event stream and writes the completion that it would have been.
///
/// # Errors
/// Those of the stream's reader.
pub fn to_completion(
    body: Bytes,
    settings: &Settings,
    known: &dyn Known,
) -> Result<Vec<u8>, StreamError> {
    let settings = Settings {
        mode: Mode::Loop,
        ..settings.clone()
    };
    let known = &Shown(known);
    let envelope = json!({"id": null, "object": "chat.completion", "created": settings.created, "model": settings.model});
    let mut stream = ChatStream::new(settings);
    let mut shown = Vec::new();
    let mut framer = Framer::new(body.len());
    framer.push(body);
    let mut is_done = false;
    while let Some(event) = framer
        .next()
        .or_else(|| framer.finish())
        .filter(|_| !is_done)
    {
        is_done = stream.push(&event?, known, &mut shown)? == Pushed::Done;
    }
    let round = stream.end_round(known, &mut shown)?;
    let mut said = Summary::default();
    said.add(&round);
    let mut envelope = envelope.as_object().cloned().unwrap_or_default();
    if let Some(first) = first_chunk(&shown) {
        let named = first
            .into_iter()
            .filter(|(name, _)| name != "object" && name != "choices" && name != "usage");
        envelope.extend(named);
    }
    let whole = completion::write(envelope, &said, &round.calls, round.finish, round.usage);
    Ok(Value::Object(whole).to_string().into_bytes())
}

/// Every call is shown, so that it stays in the answer; whose it is will be asked when that is read.
struct Shown<'a>(&'a dyn Known);

impl Known for Shown<'_> {
    fn owner(&self, _: &str) -> Owner {
        Owner::Client
    }

    fn is_taken(&self, _: &str) -> bool {
        false
    }

    fn is_offered(&self, name: &str) -> bool {
        self.0.is_offered(name)
    }

    fn parameters(&self, name: &str) -> Option<Value> {
        self.0.parameters(name)
    }
}

/// The first chunk that the client would have been shown; it has the answer's identity.
fn first_chunk(shown: &[u8]) -> Option<JsonObject> {
    let mut framer = Framer::new(shown.len());
    framer.push(Bytes::copy_from_slice(shown));
    let event = std::iter::from_fn(|| framer.next())
        .flatten()
        .find(|event| !event.is_dataless())?;
    serde_json::from_str(&event.data()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_becomes_a_delta() {
        let body = br#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]}"#;
        let chunk: Value = serde_json::from_str(&to_chunk(body).unwrap()).unwrap();
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["choices"][0]["delta"]["content"], "hi");
        assert!(chunk["choices"][0].get("message").is_none());
    }

    #[test]
    fn an_error_stays_an_error() {
        let chunk = to_chunk(br#"{"error":{"message":"no"}}"#).unwrap();
        assert_eq!(chunk, r#"{"error":{"message":"no"}}"#);
    }
}
