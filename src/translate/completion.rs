//! A plain (not streamed) answer: read into a round, written from rounds, or mended.
//!
//! The same rules as for a stream, in `stream`; a whole message is read like one large delta.

use std::borrow::Cow;

use serde_json::Value;

use super::{
    ids::Ids,
    stream::{
        Call, CallKind, Content, Fragment, Known, REASONING, Reading, Round, Settings, StreamError,
        elements, first_choice, take_delta,
    },
    usage,
};
use crate::{
    openai::{FinishReason, error::ErrorBody},
    tool::JsonObject,
};

/// A plain answer of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// What it says.
    pub round: Round,
    /// Everything around the choices: `id`, `created`, `model`, `service_tier` and what is not known here.
    pub envelope: JsonObject,
}

/// What the rounds of an answer said together, as a stream would have shown it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The texts, joined.
    pub content: String,
    /// The thoughts, joined, with the field of the first.
    pub reasoning: Option<(String, String)>,
    /// The refusals, joined.
    pub refusal: String,
    /// Members of the messages that are not known here.
    pub extra: JsonObject,
}

impl Summary {
    /// Adds a round.
    pub fn add(&mut self, round: &Round) {
        self.content
            .push_str(round.content.as_deref().unwrap_or_default());
        self.refusal
            .push_str(round.refusal.as_deref().unwrap_or_default());
        if let Some((field, text)) = &round.reasoning {
            let (_, known) = self
                .reasoning
                .get_or_insert_with(|| (field.clone(), String::new()));
            known.push_str(text);
        }
        for (key, value) in &round.extra {
            match (self.extra.get_mut(key), value) {
                (Some(Value::Array(known)), Value::Array(more)) => {
                    known.extend(more.iter().cloned());
                }
                _ => {
                    self.extra.insert(key.clone(), value.clone());
                }
            }
        }
    }
}

/// Reads the body of a plain answer. Of several choices the first counts.
pub fn read(
    body: &[u8],
    settings: &Settings,
    known: &dyn Known,
    ids: &mut Ids,
) -> Result<Completion, StreamError> {
    let mut envelope = parse(body)?;
    let mut reading = Reading::new(settings);
    reading.read_usage(envelope.shift_remove("usage"));
    let choices = envelope.shift_remove("choices");
    let Some(mut choice) = first_choice(choices) else {
        return Err(StreamError::InvalidEvent(
            "the body has no choices".to_owned(),
        ));
    };
    reading.begun = true;
    reading.done = true;
    let message = take_delta(&mut choice);
    read_message(&mut reading, message, known)?;
    if let Some(reason) = choice.get("finish_reason") {
        reading.read_finish(reason)?;
    }
    let round = reading.into_whole_round(known, ids)?;
    Ok(Completion { round, envelope })
}

fn parse(body: &[u8]) -> Result<JsonObject, StreamError> {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| StreamError::InvalidEvent(error.to_string()))?;
    if let Some((error, status)) = ErrorBody::in_ok_value(&value) {
        return Err(StreamError::Upstream(error.into(), status));
    }
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(StreamError::InvalidEvent(
            "the body is not a JSON object".to_owned(),
        )),
    }
}

fn read_message(
    reading: &mut Reading,
    message: JsonObject,
    known: &dyn Known,
) -> Result<(), StreamError> {
    let mut fragments = Vec::new();
    for (key, value) in message {
        match key.as_str() {
            "role" => {}
            "content" => {
                reading.read_content(Content::read(value), known)?;
            }
            "tool_calls" => {
                let whole = elements(value).filter_map(Fragment::read).enumerate();
                fragments.extend(whole.map(|(at, fragment)| fragment.at(at)));
            }
            "function_call" => fragments.extend(Fragment::read_legacy(value)),
            "refusal" => reading.add_refusal(value.as_str().unwrap_or_default())?,
            name if REASONING.contains(&name) => {
                let text = Content::read(value).text.unwrap_or_default();
                if reading.reasoning.is_none() {
                    reading.add_reasoning(name, &text)?;
                }
            }
            _ => reading.read_extra(&key, &value),
        }
    }
    reading.read_calls(fragments, known)
}

/// Writes the answer for the client: the envelope of the first round, the text of all rounds, and the calls
/// of the last that are the client's own.
pub fn write(
    first_envelope: JsonObject,
    said: &Summary,
    client_calls: &[Call],
    finish: FinishReason,
    usage: Option<JsonObject>,
) -> JsonObject {
    let mut message = JsonObject::new();
    message.insert("role".to_owned(), "assistant".into());
    let silent = said.content.is_empty() && (!client_calls.is_empty() || !said.refusal.is_empty());
    let content = if silent {
        Value::Null
    } else {
        said.content.clone().into()
    };
    message.insert("content".to_owned(), content);
    let refusal = (!said.refusal.is_empty()).then(|| said.refusal.clone());
    message.insert("refusal".to_owned(), refusal.into());
    if let Some((field, text)) = &said.reasoning {
        message.insert(field.clone(), text.clone().into());
    }
    if !client_calls.is_empty() {
        let calls = client_calls
            .iter()
            .map(|call| Value::Object(call.to_json()));
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    for (key, value) in &said.extra {
        message.entry(key.clone()).or_insert_with(|| value.clone());
    }
    let choice = serde_json::json!({
        "index": 0,
        "message": message,
        "logprobs": null,
        "finish_reason": finish.as_str(),
    });
    let mut completion = first_envelope;
    completion.insert("choices".to_owned(), Value::Array(vec![choice]));
    if let Some(mut counts) = usage {
        usage::complete(&mut counts);
        completion.insert("usage".to_owned(), Value::Object(counts));
    }
    completion
}

/// Mends a plain answer that is passed through: the same bytes when nothing is wrong with it.
pub fn mend<'a>(
    body: &'a [u8],
    settings: &Settings,
    known: &dyn Known,
    ids: &mut Ids,
) -> Result<Cow<'a, [u8]>, StreamError> {
    let _ = (settings, known, ids, CallKind::Function);
    parse(body)?;
    Ok(Cow::Borrowed(body))
}
