//! A model's arguments on their way to a tool: parsed, then checked against the tool's schema.

use serde_json::{Value, de::StrRead, error::Category};

use super::cut;
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    tool::{CallError, JsonObject},
};

mod validator;

pub use self::validator::Validator;

/// Most bytes of the arguments that a message quotes.
const QUOTE: usize = 40;

/// Reads the arguments of a call as a model wrote them.
///
/// An empty text and `null` are `{}`. An object in a JSON string is unwrapped once. Some upstreams send a
/// placeholder `{}` and then the real object, or the same object twice: what has only one sensible reading
/// is read that way. Everything else, objects nested more than 127 deep among it, is
/// [`CallError::InvalidArgumentsJson`] with what is wrong and where.
pub fn parse_arguments(text: &str) -> Result<JsonObject, CallError> {
    match value(text)? {
        Value::String(inner) => match value(&inner)? {
            Value::String(_) => Err(invalid(
                "the arguments must be a JSON object, but are a string",
            )),
            inner => object(inner),
        },
        value => object(value),
    }
}

/// The text is one JSON object, which can be built.
pub fn is_object(text: &str) -> bool {
    check_values(text.as_bytes(), MAX_VALUES).is_ok()
        && serde_json::from_str::<JsonObject>(text).is_ok()
}

fn object(value: Value) -> Result<JsonObject, CallError> {
    let found = match value {
        Value::Object(object) => return Ok(object),
        Value::Null => return Ok(JsonObject::new()),
        Value::Array(_) => "an array",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
    };
    Err(invalid(format!(
        "the arguments must be a JSON object, but are {found}"
    )))
}

/// The one value that the text stands for.
fn value(text: &str) -> Result<Value, CallError> {
    check_values(text.as_bytes(), MAX_VALUES)
        .map_err(|error| invalid(format!("the arguments have {error}")))?;
    let text = text.trim();
    if text.is_empty() {
        return Ok(Value::Null);
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let Some(first) = values
        .next()
        .transpose()
        .map_err(|error| not_json(text, &error))?
    else {
        return Ok(Value::Null);
    };
    let end = values.byte_offset();
    match second(values) {
        None if is_blank(text, end) => Ok(first),
        Some(second @ Value::Object(_)) if first == second || is_empty_object(&first) => Ok(second),
        _ => {
            let place = quote(text, end);
            Err(invalid(format!(
                "after the arguments comes something else, near `{place}`"
            )))
        }
    }
}

fn is_blank(text: &str, from: usize) -> bool {
    text.get(from..).is_none_or(|rest| rest.trim().is_empty())
}

/// The value after the first, if it is the last.
fn second<'t>(mut values: serde_json::StreamDeserializer<'t, StrRead<'t>, Value>) -> Option<Value> {
    let second = values.next()?.ok()?;
    values.next().is_none().then_some(second)
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(JsonObject::is_empty)
}

fn not_json(text: &str, error: &serde_json::Error) -> CallError {
    let line_start: usize = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1))
        .map(str::len)
        .sum();
    let place = quote(text, line_start + error.column());
    let what = match error.classify() {
        Category::Eof => "the arguments end too early",
        _ => "the arguments are not valid JSON",
    };
    invalid(format!("{what}: {error}, near `{place}`"))
}

/// What stands around a byte of the text, bounded.
fn quote(text: &str, at: usize) -> &str {
    let start = cut::boundary(text, at.saturating_sub(QUOTE / 2));
    cut::at_most(&text[start..], QUOTE)
}

fn invalid(message: impl Into<String>) -> CallError {
    CallError::InvalidArgumentsJson {
        message: message.into(),
    }
}
