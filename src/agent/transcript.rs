//! The messages that a request added to its conversation: turns of the model and the answers to its calls.

use serde_json::{Map, Value, json};

use crate::{
    tool::JsonObject,
    translate::{
        calls,
        stream::{Call, CallKind, Round},
    },
};

/// What one call is answered with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The tool message's text; never empty.
    pub text: String,
    /// Content parts (pictures, sound) for a user message after all tool messages.
    pub parts: Vec<Value>,
}

impl Answer {
    /// An answer of text alone.
    pub fn text(text: String) -> Answer {
        Answer {
            text,
            parts: Vec::new(),
        }
    }
}

/// One turn of the model with the answers to its calls, in the order of the calls.
#[derive(Clone, Debug)]
struct Exchange {
    assistant: JsonObject,
    /// Each call's id and answer; no answer where the call is the client's own.
    answers: Vec<(String, Option<Answer>)>,
}

/// All turns of one request, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    exchanges: Vec<Exchange>,
}

impl Transcript {
    /// Adds a turn. `answers` stands beside `calls`; a client's own call has none yet.
    pub fn push(
        &mut self,
        round: &Round,
        calls: &[Call],
        answers: Vec<Option<Answer>>,
        send_reasoning: bool,
    ) {
        let ids = calls.iter().map(|call| call.call.id.clone());
        self.exchanges.push(Exchange {
            assistant: assistant(round, calls, send_reasoning),
            answers: ids.zip(answers).collect(),
        });
    }

    /// Something happened that a client which only knows its own calls cannot tell the model.
    pub fn holds_more_than_the_client_sees(&self) -> bool {
        self.exchanges.len() > 1
            || self
                .exchanges
                .iter()
                .any(|exchange| exchange.answers.iter().any(|(_, answer)| answer.is_some()))
    }

    /// The messages as JSON objects with commas between them; empty when there are none.
    pub fn messages(&self) -> String {
        self.messages_with(|_| None)
    }

    /// The same, with the client's answers (whole tool messages, as JSON) to its own calls put in their places.
    pub fn messages_with(&self, client: impl Fn(&str) -> Option<String>) -> String {
        let mut messages = Vec::new();
        for exchange in &self.exchanges {
            messages.push(Value::Object(exchange.assistant.clone()).to_string());
            let mut parts = Vec::new();
            for (id, answer) in &exchange.answers {
                messages.push(match answer {
                    Some(answer) => tool_message(id, &answer.text),
                    None => client(id).unwrap_or_else(|| unanswered(id)),
                });
                parts.extend(
                    answer
                        .iter()
                        .flat_map(|answer| answer.parts.iter().cloned()),
                );
            }
            if !parts.is_empty() {
                messages.push(json!({"role": "user", "content": parts}).to_string());
            }
        }
        messages.join(",")
    }
}

fn tool_message(id: &str, text: &str) -> String {
    json!({"role": "tool", "tool_call_id": id, "content": text}).to_string()
}

/// Every call gets exactly one tool message, also one that the client left without an answer.
fn unanswered(id: &str) -> String {
    let error =
        json!({"error": {"type": "cancelled", "message": "the client did not run this call"}});
    tool_message(id, &error.to_string())
}

fn assistant(round: &Round, calls: &[Call], send_reasoning: bool) -> JsonObject {
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    message.insert(
        "content".into(),
        round.content.clone().map_or(Value::Null, Value::String),
    );
    if send_reasoning {
        if let Some((field, text)) = &round.reasoning {
            message.insert(field.clone(), text.clone().into());
        }
        let kept = round
            .extra
            .iter()
            .filter(|(name, _)| name.starts_with("reasoning"));
        message.extend(kept.map(|(name, value)| (name.clone(), value.clone())));
    }
    message.insert("tool_calls".into(), calls.iter().map(tool_call).collect());
    message
}

/// A call as it goes back to the model. Arguments that are no JSON object become `{}`: many upstreams parse
/// them and would refuse the whole conversation; the tool message says what was wrong.
fn tool_call(call: &Call) -> Value {
    let mut sent = call.clone();
    let is_object = serde_json::from_str::<JsonObject>(&call.call.arguments).is_ok();
    if call.kind == CallKind::Function && !is_object {
        let mended = calls::parse_arguments(&call.call.arguments).unwrap_or_default();
        sent.call.arguments = Value::Object(mended).to_string();
    }
    Value::Object(sent.to_json())
}
