//! A whole completion as the one chunk of a stream, for upstreams that answer a request for a stream with one.
//!
//! The reverse, a stream that was not requested, is [`super::completion`]'s.

use serde_json::Value;

use super::stream::StreamError;
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    tool::JsonObject,
};

/// Writes the completion in `body` as one `chat.completion.chunk`.
///
/// # Errors
/// When the body is no JSON object. An error object in it goes through; the stream's reader knows it.
pub fn to_chunk(body: &[u8]) -> Result<String, StreamError> {
    check_values(body, MAX_VALUES)
        .map_err(|error| StreamError::InvalidEvent(format!("the body has {error}")))?;
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
