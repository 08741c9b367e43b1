//! Calls without a chat: a `tool_calls` array in, `tool_responses`, messages of role `tool`, or events out (the seed
//! documents; issue 12, D-01 to D-09).

use std::collections::HashSet;

use serde_json::{Value, json};

use super::stream::{CallKind, MAX_CALLS, Owner, Round, RoundCall};
use toolway_protocol::{
    openai::FinishReason,
    tool::{JsonObject, ToolCall},
};

/// How the results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResultForm {
    /// `{"tool_responses": [{"tool_call_id", "output": {"result"} or {"error"}}]}`.
    #[default]
    ToolResponses,
    /// `{"messages": [{"role": "tool", "tool_call_id", "content"}]}`, for the next chat request.
    Messages,
    /// One `tool_use_succeeded` or `tool_use_failed` for each call.
    Events,
}

impl ResultForm {
    /// The form of this name in the request's `format`.
    pub fn parse(name: &str) -> Option<ResultForm> {
        Some(match name {
            "tool_responses" => ResultForm::ToolResponses,
            "messages" => ResultForm::Messages,
            "events" => ResultForm::Events,
            _ => return None,
        })
    }
}

/// Why a request is refused as a whole. A call that cannot run is answered with an error instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToolCalls {
    /// There is no `tool_calls`.
    #[error(
        "`tool_calls` is a list of calls, each `{{\"id\", \"type\": \"function\", \"function\": {{\"name\", \"arguments\"}}}}`"
    )]
    NoCalls,
    /// There are more than [`MAX_CALLS`].
    #[error("`tool_calls` has more than {MAX_CALLS} calls")]
    TooMany,
    /// A call has no name.
    #[error("a call of `tool_calls` has no `function.name`")]
    NoName,
    /// Two calls have the same id, so their results could not be told apart.
    #[error("two calls of `tool_calls` have the same `id`")]
    SameId,
}

/// Reads the calls, as a model's answer that consists of them. A call without an id gets one: `call_` and its number.
/// `arguments` may be an object as well as a text with JSON.
///
/// # Errors
/// See [`InvalidToolCalls`].
pub fn read(body: &JsonObject) -> Result<Round, InvalidToolCalls> {
    let calls = body.get("tool_calls").and_then(Value::as_array);
    let calls = calls.ok_or(InvalidToolCalls::NoCalls)?;
    if calls.len() > MAX_CALLS {
        return Err(InvalidToolCalls::TooMany);
    }
    let mut ids = HashSet::new();
    let calls = calls.iter().enumerate().map(|(at, call)| {
        let id = call["id"].as_str().filter(|id| !id.is_empty());
        let id = id.map_or_else(|| format!("call_{at}"), str::to_owned);
        if !ids.insert(id.clone()) {
            return Err(InvalidToolCalls::SameId);
        }
        let name = call["function"]["name"]
            .as_str()
            .ok_or(InvalidToolCalls::NoName)?;
        let arguments = match &call["function"]["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        Ok(one(id, name.to_owned(), arguments))
    });
    let mut round = Round::without_a_word(FinishReason::ToolCalls);
    round.calls = calls.collect::<Result<_, _>>()?;
    Ok(round)
}

/// A round that has only this call.
pub fn round_of(name: String, arguments: String) -> Round {
    round_of_calls([("call_0".to_owned(), name, arguments)])
}

/// A round of calls: the id, the name and the arguments of each.
pub fn round_of_calls(calls: impl IntoIterator<Item = (String, String, String)>) -> Round {
    let mut round = Round::without_a_word(FinishReason::ToolCalls);
    let calls = calls.into_iter();
    round.calls = calls
        .map(|(id, name, arguments)| one(id, name, arguments))
        .collect();
    round
}

fn one(id: String, name: String, arguments: String) -> RoundCall {
    RoundCall {
        call: ToolCall {
            id,
            name,
            arguments,
        },
        owner: Owner::Gateway,
        kind: CallKind::Function,
        extra: JsonObject::new(),
    }
}

/// A result, as the model of a chat would get it.
#[derive(Clone, Debug, PartialEq)]
pub struct Executed {
    /// The id of the call.
    pub id: String,
    /// The text; of a failed call the JSON of an `error`.
    pub content: String,
}

impl Executed {
    /// The message of role `tool` as it is in a conversation.
    pub fn of_message(message: &Value) -> Option<Executed> {
        Some(Executed {
            id: message["tool_call_id"].as_str()?.to_owned(),
            content: message["content"].as_str()?.to_owned(),
        })
    }

    /// The error of a call that failed: `{"type", "message", …}`.
    pub fn error(&self) -> Option<Value> {
        let content: JsonObject = serde_json::from_str(&self.content).ok()?;
        let error = content.get("error").filter(|_| content.len() == 1)?;
        error["type"].is_string().then(|| error.clone())
    }
}

/// Writes one event for a result.
pub fn write_event(executed: &Executed) -> Value {
    match executed.error() {
        None => json!({
            "type": "tool_use_succeeded",
            "tool_call_id": executed.id,
            "content": {"prompt": executed.content},
        }),
        Some(error) => json!({
            "type": "tool_use_failed",
            "tool_call_id": executed.id,
            "isError": true,
            "reason": error["message"],
            "error": error,
        }),
    }
}

/// Writes all results, in the order of the calls.
pub fn write(executed: &[Executed], form: ResultForm) -> Value {
    match form {
        ResultForm::Events => {
            json!({"events": executed.iter().map(write_event).collect::<Vec<_>>()})
        }
        ResultForm::Messages => {
            let message = |it: &Executed| json!({"role": "tool", "tool_call_id": it.id, "content": it.content});
            json!({"messages": executed.iter().map(message).collect::<Vec<_>>()})
        }
        ResultForm::ToolResponses => {
            let response = |it: &Executed| {
                let output = match it.error() {
                    Some(error) => json!({"error": error}),
                    None => json!({"result": it.content}),
                };
                json!({"tool_call_id": it.id, "output": output})
            };
            json!({"tool_responses": executed.iter().map(response).collect::<Vec<_>>()})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> JsonObject {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn calls_are_read_as_the_seed_documents_have_them() {
        let read = read(&body(
            r#"{"tool_calls":[
                {"id":"toolcall-456","type":"function","function":{"name":"calculate_sum","arguments":"{\"a\": 5, \"b\": 7}"}},
                {"function":{"name":"f","arguments":{"x":1}}}, {"function":{"name":"g"}}]}"#,
        ));
        let calls = read.unwrap().calls;
        let calls: Vec<(&str, &str, &str)> = calls
            .iter()
            .map(|call| {
                (
                    call.call.id.as_str(),
                    call.call.name.as_str(),
                    call.call.arguments.as_str(),
                )
            })
            .collect();
        let expected = [
            ("toolcall-456", "calculate_sum", "{\"a\": 5, \"b\": 7}"),
            ("call_1", "f", "{\"x\":1}"),
            ("call_2", "g", ""),
        ];
        assert_eq!(calls, expected);
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused() {
        for (text, expected) in [
            ("{}", InvalidToolCalls::NoCalls),
            (r#"{"tool_calls":{}}"#, InvalidToolCalls::NoCalls),
            (r#"{"tool_calls":[{}]}"#, InvalidToolCalls::NoName),
            (r#"{"tool_calls":[1]}"#, InvalidToolCalls::NoName),
            (
                r#"{"tool_calls":[{"id":"a","function":{"name":"f"}},{"id":"a","function":{"name":"f"}}]}"#,
                InvalidToolCalls::SameId,
            ),
        ] {
            assert_eq!(read(&body(text)), Err(expected), "{text}");
        }
    }

    #[test]
    fn results_are_written_in_each_form() {
        let executed = [
            Executed {
                id: "a".to_owned(),
                content: "12".to_owned(),
            },
            Executed {
                id: "b".to_owned(),
                content: r#"{"error":{"type":"tool_error","message":"no such city"}}"#.to_owned(),
            },
        ];
        let error = json!({"type": "tool_error", "message": "no such city"});
        assert_eq!(
            write(&executed, ResultForm::ToolResponses),
            json!({"tool_responses": [
                {"tool_call_id": "a", "output": {"result": "12"}},
                {"tool_call_id": "b", "output": {"error": error}},
            ]})
        );
        assert_eq!(
            write(&executed, ResultForm::Messages)["messages"][0],
            json!({"role": "tool", "tool_call_id": "a", "content": "12"})
        );
        assert_eq!(
            write(&executed, ResultForm::Events),
            json!({"events": [
                {"type": "tool_use_succeeded", "tool_call_id": "a", "content": {"prompt": "12"}},
                {"type": "tool_use_failed", "tool_call_id": "b", "isError": true, "reason": "no such city", "error": error},
            ]})
        );
    }
}
