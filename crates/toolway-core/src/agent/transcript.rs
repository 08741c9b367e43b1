//! The messages that a request added to its conversation: turns of the model and the answers to its calls.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::translate::{
    calls,
    stream::{CallKind, Round, RoundCall},
};
use toolway_protocol::tool::JsonObject;

/// What one call is answered with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolAnswer {
    /// The tool message's text; never empty.
    pub text: String,
    /// Content parts (pictures, sound) for a user message after all tool messages.
    pub parts: Vec<Value>,
}

impl ToolAnswer {
    /// An answer of text alone.
    pub fn text(text: String) -> ToolAnswer {
        ToolAnswer {
            text,
            parts: Vec::new(),
        }
    }
}

/// One turn of the model with the answers to its calls, in the order of the calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Exchange {
    assistant: JsonObject,
    /// Each call's id and answer; no answer where the call is the client's own.
    answers: Vec<(String, Option<ToolAnswer>)>,
}

/// All turns of one request, the oldest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Transcript {
    exchanges: Vec<Exchange>,
}

impl Transcript {
    /// Adds a turn. `answers` stands beside `calls`; a client's own call has none yet.
    pub fn push(
        &mut self,
        round: &Round,
        calls: &[RoundCall],
        answers: Vec<Option<ToolAnswer>>,
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

fn assistant(round: &Round, calls: &[RoundCall], send_reasoning: bool) -> JsonObject {
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
fn tool_call(call: &RoundCall) -> Value {
    let mut sent = call.clone();
    let is_object = calls::is_object(&call.call.arguments);
    if call.kind == CallKind::Function && !is_object {
        let mended = calls::parse_arguments(&call.call.arguments).unwrap_or_default();
        sent.call.arguments = Value::Object(mended).to_string();
    }
    Value::Object(sent.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::stream::Owner;
    use toolway_protocol::{openai::FinishReason, tool::ToolCall};

    fn round() -> Round {
        Round {
            content: None,
            reasoning: None,
            refusal: None,
            calls: Vec::new(),
            finish: FinishReason::ToolCalls,
            usage: None,
            extra: JsonObject::new(),
        }
    }

    fn call(id: &str, arguments: &str, kind: CallKind) -> RoundCall {
        RoundCall {
            call: ToolCall {
                id: id.to_owned(),
                name: "f".to_owned(),
                arguments: arguments.to_owned(),
            },
            owner: Owner::Gateway,
            kind,
            extra: JsonObject::new(),
        }
    }

    fn text(text: &str) -> Option<ToolAnswer> {
        Some(ToolAnswer::text(text.to_owned()))
    }

    fn picture(name: &str) -> Option<ToolAnswer> {
        Some(ToolAnswer {
            text: "a picture".to_owned(),
            parts: vec![json!({"picture": name})],
        })
    }

    /// One turn of calls `1`, `2` … with these answers.
    fn turn(answers: Vec<Option<ToolAnswer>>) -> Transcript {
        let ids = 1..=answers.len();
        let calls: Vec<RoundCall> = ids
            .map(|id| call(&id.to_string(), "{}", CallKind::Function))
            .collect();
        let mut transcript = Transcript::default();
        transcript.push(&round(), &calls, answers, true);
        transcript
    }

    fn read(messages: &str) -> Vec<Value> {
        serde_json::from_str(&format!("[{messages}]")).unwrap()
    }

    /// Each message's role, and the id of the call that it answers.
    fn outline(messages: &str) -> Vec<String> {
        let line = |message: &Value| {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            format!("{} {id}", message["role"].as_str().unwrap())
        };
        read(messages).iter().map(line).collect()
    }

    /// The message of a turn with this round and one call.
    fn assistant_of(round: &Round, arguments: &str, kind: CallKind, send_reasoning: bool) -> Value {
        let mut transcript = Transcript::default();
        let calls = [call("1", arguments, kind)];
        transcript.push(round, &calls, vec![text("x")], send_reasoning);
        read(&transcript.messages()).remove(0)
    }

    #[test]
    fn every_call_has_one_message_in_the_order_of_the_calls() {
        let mut transcript = turn(vec![text("a"), None, text("c")]);
        let second = turn(vec![text("d")]);
        transcript.exchanges.extend(second.exchanges);
        assert_eq!(
            outline(&transcript.messages()),
            [
                "assistant ",
                "tool 1",
                "tool 2",
                "tool 3",
                "assistant ",
                "tool 1"
            ]
        );
        assert_eq!(Transcript::default().messages(), "");
    }

    #[test]
    fn a_client_that_gave_no_answer_is_said_not_to_have_run_its_call() {
        let messages = read(&turn(vec![None]).messages());
        assert!(
            messages[1]["content"]
                .as_str()
                .unwrap()
                .contains("cancelled")
        );
        let own = r#"{"role":"tool","tool_call_id":"1","content":"own", "x":1}"#;
        let messages = turn(vec![None]).messages_with(|id| (id == "1").then(|| own.to_owned()));
        assert!(
            messages.ends_with(own),
            "as the client wrote it: {messages}"
        );
    }

    #[test]
    fn pictures_of_all_results_stand_in_one_message_after_the_last_result() {
        let transcript = turn(vec![picture("a"), text("b"), picture("c"), None]);
        let messages = transcript.messages();
        assert_eq!(
            outline(&messages),
            [
                "assistant ",
                "tool 1",
                "tool 2",
                "tool 3",
                "tool 4",
                "user "
            ]
        );
        let expected = json!([{"picture": "a"}, {"picture": "c"}]);
        assert_eq!(read(&messages)[5]["content"], expected);
    }

    #[test]
    fn arguments_that_are_no_object_go_back_as_one() {
        let sent = |arguments: &str, kind| {
            let (body, text) = CallKind::members(kind);
            assistant_of(&round(), arguments, kind, true)["tool_calls"][0][body][text].clone()
        };
        for (arguments, expected) in [
            (r#"{ "a": 1 }"#, r#"{ "a": 1 }"#),
            (r#""{\"a\":1}""#, r#"{"a":1}"#),
            ("{\"a\":", "{}"),
            ("[1]", "{}"),
            ("", "{}"),
        ] {
            assert_eq!(sent(arguments, CallKind::Function), expected, "{arguments}");
        }
        assert_eq!(sent("print(1)", CallKind::Custom), "print(1)");
    }

    #[test]
    fn thoughts_go_back_only_to_those_who_want_them() {
        let mut thinking = round();
        thinking.content = Some("text".to_owned());
        thinking.reasoning = Some(("reasoning_content".to_owned(), "hm".to_owned()));
        thinking
            .extra
            .insert("reasoning_details".to_owned(), json!([1]));
        thinking.extra.insert("annotations".to_owned(), json!([2]));
        let members = |send_reasoning| {
            let message = assistant_of(&thinking, "{}", CallKind::Function, send_reasoning);
            let names = message.as_object().unwrap().keys();
            names.cloned().collect::<Vec<_>>()
        };
        assert_eq!(
            members(true),
            [
                "role",
                "content",
                "reasoning_content",
                "reasoning_details",
                "tool_calls"
            ]
        );
        assert_eq!(members(false), ["role", "content", "tool_calls"]);
    }

    #[test]
    fn one_turn_of_the_clients_own_calls_is_all_that_a_client_knows() {
        assert!(!turn(vec![None, None]).holds_more_than_the_client_sees());
        assert!(turn(vec![None, text("a")]).holds_more_than_the_client_sees());
        let mut two = turn(vec![None]);
        two.exchanges.extend(turn(vec![None]).exchanges);
        assert!(two.holds_more_than_the_client_sees());
    }
}
