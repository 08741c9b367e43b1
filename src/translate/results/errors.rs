//! Failures of a call as JSON that a model can read.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::plain::{plain, plain_value};
use crate::tool::CallError;

/// Writes a failure as `{"error": {"type": …, "message": …, …}}`.
///
/// `retryable` says whether the same call may simply be made again, and is there only where that is known.
/// What a server said is made plain: no HTML, stack trace or address gets through.
pub fn to_openai(error: &CallError) -> String {
    let mut body = Map::new();
    body.insert("type".to_owned(), error.kind().into());
    body.insert("message".to_owned(), message(error).into());
    match error {
        CallError::InvalidParams {
            path, input_schema, ..
        } => {
            body.insert("path".to_owned(), path.as_str().into());
            body.insert("input_schema".to_owned(), input_schema.clone());
        }
        CallError::UnknownTool { did_you_mean, .. } => {
            body.insert("did_you_mean".to_owned(), did_you_mean.as_slice().into());
        }
        CallError::Protocol { code, data, .. } => {
            body.insert("code".to_owned(), (*code).into());
            if let Some(data) = data.as_ref().and_then(plain_value) {
                body.insert("data".to_owned(), data);
            }
        }
        _ => {}
    }
    if let Some(retryable) = is_retryable(error) {
        body.insert("retryable".to_owned(), retryable.into());
    }
    let error = [("error".to_owned(), Value::Object(body))];
    Value::Object(error.into_iter().collect()).to_string()
}

fn message(error: &CallError) -> Cow<'_, str> {
    match error {
        CallError::InvalidParams { message, .. } | CallError::InvalidArgumentsJson { message } => {
            Cow::Borrowed(message)
        }
        CallError::UpstreamUnavailable { message, .. } => {
            plain(message, "The server of this tool is not available.").into()
        }
        CallError::Protocol { message, .. } => plain(
            message,
            "The server refused the call without a readable reason.",
        )
        .into(),
        CallError::UnknownTool { .. }
        | CallError::Timeout { .. }
        | CallError::Cancelled
        | CallError::Denied { .. }
        | CallError::Busy => error.to_string().into(),
    }
}

fn is_retryable(error: &CallError) -> Option<bool> {
    match error {
        CallError::InvalidArgumentsJson { .. }
        | CallError::InvalidParams { .. }
        | CallError::UnknownTool { .. }
        | CallError::Denied { .. } => Some(false),
        CallError::Busy | CallError::UpstreamUnavailable { unsent: true, .. } => Some(true),
        CallError::Timeout { .. }
        | CallError::Cancelled
        | CallError::UpstreamUnavailable { unsent: false, .. }
        | CallError::Protocol { .. } => None,
    }
}
