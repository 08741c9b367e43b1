//! A plain (not streamed) answer: read into a round, written from rounds, or mended.
//!
//! The same rules as for a stream, in `stream`; a whole message is read like one large delta.

mod fast_path;

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

pub use self::fast_path::final_answer;
use super::{
    ids::Ids,
    stream::{
        ChatStream, Fragment, Known, MessageContent, Mode, Pushed, REASONING, Round, RoundCall,
        RoundReader, Settings, StreamError, elements, first_choice, mend_envelope, mend_whole,
        take_delta,
    },
    usage,
};
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    openai::{FinishReason, error::ErrorBody},
    sse::{self, Framer},
    tool::JsonObject,
};

/// A plain answer of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// What it says.
    pub round: Round,
    /// Everything around the choices: `id`, `object`, `created` and `model`, filled in where they were
    /// missing, `service_tier` and what is not known here.
    pub envelope: JsonObject,
    /// What stands beside the message in the choice: `logprobs` and what is not known here.
    pub choice: JsonObject,
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
    /// Members that stand beside the message: `logprobs` and what is not known here.
    pub choice: JsonObject,
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
        join(&mut self.extra, &round.extra);
    }

    /// Adds what stood beside the message of a round.
    pub fn add_choice(&mut self, choice: &JsonObject) {
        join(&mut self.choice, choice);
    }
}

/// Adds members: lists are joined, objects too, otherwise the last counts.
fn join(known: &mut JsonObject, more: &JsonObject) {
    for (key, value) in more {
        match (known.get_mut(key), value) {
            (Some(_), Value::Null) => {}
            (Some(Value::Array(known)), Value::Array(more)) => known.extend(more.iter().cloned()),
            (Some(Value::Object(known)), Value::Object(more)) => join(known, more),
            _ => {
                known.insert(key.clone(), value.clone());
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
    if sse::is_begun_by(body) {
        return read_stream(body, settings, known);
    }
    let mut envelope = parse(body)?;
    let mut reading = RoundReader::new(settings);
    reading.read_usage(envelope.shift_remove("usage"));
    let choices = envelope.shift_remove("choices");
    let Some(mut choice) = first_choice(choices) else {
        return Err(StreamError::InvalidEvent(
            "the body has no choices".to_owned(),
        ));
    };
    reading.done = true;
    let message = take_delta(&mut choice);
    read_message(&mut reading, message, settings, known)?;
    if let Some(reason) = choice.get("finish_reason") {
        reading.read_finish(reason)?;
    }
    choice.retain(|key, _| !matches!(key.as_str(), "index" | "finish_reason"));
    let round = reading.into_whole_round(known, ids)?;
    fill_envelope(&mut envelope, settings, ids);
    Ok(Completion {
        round,
        envelope,
        choice,
    })
}

/// Reads a stream to its end as one answer.
fn read_stream(
    body: &[u8],
    settings: &Settings,
    known: &dyn Known,
) -> Result<Completion, StreamError> {
    let mut stream = ChatStream::new(Settings {
        mode: Mode::Loop,
        ..settings.clone()
    });
    let mut framer = Framer::new(body.len());
    let mut out = Vec::new();
    framer.push(Bytes::copy_from_slice(body));
    while let Some(pushed) = stream.push_next(&mut framer, known, &mut out) {
        if pushed? == Pushed::Done {
            break;
        }
        out.clear();
    }
    if let Some(event) = framer.finish() {
        stream.push(&event?, known, &mut out)?;
    }
    let round = stream.end_round(known, &mut out)?;
    let envelope = stream.into_envelope();
    Ok(Completion {
        round,
        envelope,
        choice: JsonObject::new(),
    })
}

/// A body without a byte-order mark, which clients do not expect before JSON.
fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body)
}

fn parse(body: &[u8]) -> Result<JsonObject, StreamError> {
    check_values(body, MAX_VALUES)
        .map_err(|error| StreamError::InvalidEvent(format!("the body has {error}")))?;
    let value: Value = serde_json::from_slice(without_mark(body))
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
    reading: &mut RoundReader,
    message: JsonObject,
    settings: &Settings,
    known: &dyn Known,
) -> Result<(), StreamError> {
    let mut fragments = Vec::new();
    for (key, value) in message {
        match key.as_str() {
            "role" => {}
            "content" => {
                let mut content = MessageContent::read(value);
                if settings.think_tags {
                    content.open_thoughts();
                }
                reading.read_content(content, known)?;
            }
            "tool_calls" => {
                let whole = elements(value).filter_map(Fragment::read).enumerate();
                fragments.extend(whole.map(|(at, fragment)| fragment.at(at)));
            }
            "function_call" => fragments.extend(Fragment::read_legacy(value)),
            "refusal" => reading.add_refusal(value.as_str().unwrap_or_default())?,
            name if REASONING.contains(&name) => {
                let text = MessageContent::read(value).text.unwrap_or_default();
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
    client_calls: &[RoundCall],
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
    let mut choice = serde_json::json!({
        "index": 0,
        "message": message,
        "logprobs": null,
        "finish_reason": finish.as_str(),
    });
    if let Some(choice) = choice.as_object_mut() {
        join(choice, &said.choice);
    }
    let mut completion = first_envelope;
    completion.insert("choices".to_owned(), Value::Array(vec![choice]));
    if let Some(mut counts) = usage {
        usage::complete(&mut counts);
        completion.insert("usage".to_owned(), Value::Object(counts));
    }
    completion
}

/// Mends a plain answer that is passed through: the same bytes, but for a byte-order mark, when nothing is wrong with
/// it.
pub fn mend<'a>(
    body: &'a [u8],
    settings: &Settings,
    known: &dyn Known,
    ids: &mut Ids,
) -> Result<Cow<'a, [u8]>, StreamError> {
    let body = without_mark(body);
    match fast_path::is_clean(body, settings) {
        true => Ok(Cow::Borrowed(body)),
        false => mend_closely(body, settings, known, ids),
    }
}

/// The same for a body that may be of any form.
fn mend_closely<'a>(
    body: &'a [u8],
    settings: &Settings,
    known: &dyn Known,
    ids: &mut Ids,
) -> Result<Cow<'a, [u8]>, StreamError> {
    if sse::is_begun_by(body) {
        let answer = read_stream(body, settings, known)?;
        let mut said = Summary::default();
        said.add(&answer.round);
        let Round {
            calls,
            finish,
            usage,
            ..
        } = answer.round;
        let completion = write(answer.envelope, &said, &calls, finish, usage);
        return Ok(Cow::Owned(
            Value::Object(completion).to_string().into_bytes(),
        ));
    }
    let before = parse(body)?;
    let mut completion = before.clone();
    fill_envelope(&mut completion, settings, ids);
    let Some(Value::Array(choices)) = completion.get_mut("choices") else {
        return Err(StreamError::InvalidEvent(
            "the body has no choices".to_owned(),
        ));
    };
    if choices.is_empty() {
        return Err(StreamError::InvalidEvent(
            "the body has no choices".to_owned(),
        ));
    }
    for (at, choice) in choices.iter_mut().enumerate() {
        if let Value::Object(choice) = choice {
            mend_whole(choice, at, settings, known, ids)?;
        }
    }
    if completion == before {
        return Ok(Cow::Borrowed(body));
    }
    Ok(Cow::Owned(
        Value::Object(completion).to_string().into_bytes(),
    ))
}

/// Fills in `id`, `object`, `created` and `model`, or sets their types right.
fn fill_envelope(completion: &mut JsonObject, settings: &Settings, ids: &mut Ids) {
    let whole = ["id", "object", "model"]
        .iter()
        .all(|key| completion.get(*key).is_some_and(Value::is_string));
    if whole && completion.get("created").is_some_and(Value::is_u64) {
        return;
    }
    let mut own = JsonObject::new();
    own.insert("id".to_owned(), ids.completion().into());
    own.insert("object".to_owned(), "chat.completion".into());
    own.insert("created".to_owned(), settings.created.into());
    own.insert("model".to_owned(), settings.model.clone().into());
    mend_envelope(completion, own);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::translate::stream::{CallKind, Owner};
    use toolway_protocol::tool::ToolCall;

    fn round(content: &str, reasoning: &str) -> Round {
        Round {
            content: Some(content.to_owned()),
            reasoning: Some(("reasoning".to_owned(), reasoning.to_owned())),
            refusal: None,
            calls: Vec::new(),
            finish: FinishReason::Stop,
            usage: None,
            extra: json!({"annotations": [content]})
                .as_object()
                .cloned()
                .unwrap(),
        }
    }

    fn call() -> RoundCall {
        RoundCall {
            call: ToolCall {
                id: "i".into(),
                name: "n".into(),
                arguments: "{}".into(),
            },
            owner: Owner::Client,
            kind: CallKind::Function,
            extra: JsonObject::new(),
        }
    }

    fn message(said: &Summary, calls: &[RoundCall]) -> Value {
        let finish = FinishReason::Stop;
        let mut whole = write(JsonObject::new(), said, calls, finish, None);
        whole["choices"][0]["message"].take()
    }

    #[test]
    fn the_text_of_all_rounds_is_one_text() {
        let mut said = Summary::default();
        said.add(&round("A", "x"));
        said.add(&round("B", "y"));
        let message = message(&said, &[]);
        assert_eq!(message["content"], "AB");
        assert_eq!(message["reasoning"], "xy");
        assert_eq!(message["annotations"], json!(["A", "B"]));
        assert!(message.get("tool_calls").is_none());
    }

    #[test]
    fn content_is_null_where_there_is_no_text_and_there_are_calls() {
        assert_eq!(
            message(&Summary::default(), &[call()])["content"],
            json!(null)
        );
        assert_eq!(message(&Summary::default(), &[])["content"], "");
        let said = Summary {
            content: "A".to_owned(),
            ..Summary::default()
        };
        assert_eq!(message(&said, &[call()])["content"], "A");
    }

    #[test]
    fn log_probabilities_of_all_rounds_are_joined() {
        let mut said = Summary::default();
        for token in ["a", "b"] {
            let choice = json!({"logprobs": {"content": [{"token": token}], "refusal": null}});
            said.add_choice(choice.as_object().unwrap());
        }
        let whole = write(JsonObject::new(), &said, &[], FinishReason::Stop, None);
        let expected = json!({"content": [{"token": "a"}, {"token": "b"}], "refusal": null});
        assert_eq!(whole["choices"][0]["logprobs"], expected);
    }
}
