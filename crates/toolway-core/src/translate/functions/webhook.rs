//! The tool-calls webhook: `tool_calls` out, `tool_responses` back.
//!
//! **Invariant:** every call gets exactly one outcome, whatever the endpoint answered, and what is wrong with
//! the answer to one call is no fault of another's.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::{
    super::results::plain::plain,
    output::{self, error_text},
};
use toolway_protocol::{
    json_size::{MAX_VALUES, TooManyValues, check_values},
    tool::{JsonObject, ToolResult},
};

/// One call on its way out.
#[derive(Clone, Copy, Debug)]
pub struct WebhookCall<'a> {
    /// Ties the answer to the call; unique among the calls of one request.
    pub id: &'a str,
    /// The function's name.
    pub name: &'a str,
    /// Its arguments, which fit its schema.
    pub arguments: &'a JsonObject,
}

/// Writes calls as the endpoint gets them: `{"tool_calls": [{"id", "type", "function": {"name", "arguments"}}]}`,
/// where `arguments` is a text, as models write it.
pub fn request<'a>(calls: &[WebhookCall<'a>]) -> String {
    #[derive(Serialize)]
    struct WebhookBody<'a> {
        tool_calls: Vec<WebhookToolCall<'a>>,
    }
    #[derive(Serialize)]
    struct WebhookToolCall<'a> {
        id: &'a str,
        #[serde(rename = "type")]
        kind: &'static str,
        function: WebhookFunction<'a>,
    }
    #[derive(Serialize)]
    struct WebhookFunction<'a> {
        name: &'a str,
        arguments: String,
    }
    let entry = |call: &WebhookCall<'a>| WebhookToolCall {
        id: call.id,
        kind: "function",
        function: WebhookFunction {
            name: call.name,
            arguments: serde_json::to_string(call.arguments).unwrap_or_default(),
        },
    };
    let body = WebhookBody {
        tool_calls: calls.iter().map(entry).collect(),
    };
    serde_json::to_string(&body).expect("texts can be written as JSON")
}

/// Why a call has no answer; for the model, so no address and no HTML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// The answer is a web page.
    #[error("the function's endpoint answered with a web page instead of JSON")]
    Html,
    /// The answer is no JSON.
    #[error("the function's endpoint answered with something that is not JSON")]
    NotJson,
    /// The answer would take too much memory.
    #[error("the function's endpoint answered with {0}")]
    TooManyValues(#[from] TooManyValues),
    /// The answer is JSON of another form.
    #[error("the function's endpoint answered without `tool_responses`")]
    NoResponses,
    /// The whole request failed, and the endpoint says so.
    #[error("the function's endpoint says: {0}")]
    Said(String),
    /// An error status.
    #[error("the function's endpoint answered with HTTP {status}{}", colon(said))]
    Status {
        /// 300–599.
        status: u16,
        /// What it says besides, in plain words.
        said: Option<String>,
    },
    /// The answer has none for this call.
    #[error("the function's endpoint did not answer this call")]
    Missing,
    /// The answer has more than one for this call.
    #[error("the function's endpoint answered this call more than once")]
    Twice,
    /// There is an answer for this call, with nothing in it.
    #[error("the function's endpoint answered this call without an `output`")]
    NoOutput,
}

impl AnswerFault {
    /// The fault without the endpoint's own words, for the log.
    pub fn without_words(&self) -> AnswerFault {
        match self {
            AnswerFault::Said(_) => AnswerFault::Said("an error".to_owned()),
            AnswerFault::Status { status, .. } => AnswerFault::Status {
                status: *status,
                said: None,
            },
            other => other.clone(),
        }
    }
}

fn colon(said: &Option<String>) -> String {
    said.as_ref()
        .map(|said| format!(": {said}"))
        .unwrap_or_default()
}

/// What came of the calls of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// One for each call, in the order of the calls.
    pub outcomes: Vec<Result<ToolResult, AnswerFault>>,
    /// How many answers were for unknown calls.
    pub strangers: usize,
}

/// One answer, as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookAnswer {
    /// The call it is for, where it says so.
    pub id: Option<String>,
    /// What came of the call.
    pub outcome: Result<ToolResult, AnswerFault>,
}

/// Finds each call's answer in what the endpoint sent, by its id, whatever the order; see [`read`] for the forms.
pub fn read_answers(status: u16, body: &[u8], ids: &[&str]) -> Answers {
    match read(status, body) {
        Ok(answers) => match_up(answers, ids),
        Err(fault) => Answers {
            outcomes: vec![Err(fault); ids.len()],
            strangers: 0,
        },
    }
}

/// Reads all answers of a body, in their order.
///
/// Read are `{"tool_responses": [{"tool_call_id", "output"}]}`, an array of those, one of them alone, and
/// messages `{"role": "tool", "tool_call_id", "content"}`, as an array or under `messages`.
///
/// # Errors
/// Why there are no answers in it.
pub fn read(status: u16, body: &[u8]) -> Result<Vec<WebhookAnswer>, AnswerFault> {
    // Messages of other roles are no answers.
    let is_answer = |entry: &Value| entry.get("role").is_none_or(|role| role == "tool");
    let entries = entries(status, body)?.into_iter().filter(is_answer);
    let read = |entry| {
        let Value::Object(entry) = entry else {
            return WebhookAnswer {
                id: None,
                outcome: Err(AnswerFault::NoOutput),
            };
        };
        let id = ["tool_call_id", "call_id"]
            .into_iter()
            .find_map(|key| entry.get(key)?.as_str());
        WebhookAnswer {
            id: id.map(str::to_owned),
            outcome: answer(entry),
        }
    };
    Ok(entries.map(read).collect())
}

fn match_up(answers: Vec<WebhookAnswer>, ids: &[&str]) -> Answers {
    let mut found: HashMap<&str, Vec<Result<ToolResult, AnswerFault>>> =
        ids.iter().map(|id| (*id, vec![])).collect();
    let mut strangers = 0;
    for WebhookAnswer { id, outcome } in answers {
        match id.and_then(|id| found.get_mut(id.as_str())) {
            Some(mine) => mine.push(outcome),
            None => strangers += 1,
        }
    }
    let mine = ids.iter().map(|id| found.remove(*id).unwrap_or_default());
    let outcome = |mut mine: Vec<_>| match (mine.pop(), mine.is_empty()) {
        (Some(outcome), true) => outcome,
        (Some(_), false) => Err(AnswerFault::Twice),
        (None, _) => Err(AnswerFault::Missing),
    };
    Answers {
        outcomes: mine.map(outcome).collect(),
        strangers,
    }
}

/// One entry's output. An `error` beside it, or `is_error`, makes it a failure.
fn answer(mut entry: JsonObject) -> Result<ToolResult, AnswerFault> {
    let has_failed = ["is_error", "isError"]
        .iter()
        .any(|key| entry.get(*key) == Some(&Value::Bool(true)));
    let error = entry.get("error").and_then(error_text);
    let said = ["output", "content"]
        .into_iter()
        .find_map(|key| entry.shift_remove(key));
    let mut result = match (said, error) {
        (None, None) if has_failed => output::failure("the function failed and did not say why"),
        (None, None) => return Err(AnswerFault::NoOutput),
        (None | Some(Value::Null), Some(error)) => output::failure(error),
        (Some(said), error) => {
            let mut result = output::read(said);
            result.is_error |= error.is_some();
            result
        }
    };
    result.is_error |= has_failed;
    Ok(result)
}

/// The list of answers in the body, or why there is none.
fn entries(status: u16, body: &[u8]) -> Result<Vec<Value>, AnswerFault> {
    let is_success = (200..300).contains(&status);
    check_values(body, MAX_VALUES)?;
    let read = serde_json::from_slice::<Value>(body);
    let Ok(value) = read else {
        let is_html = body.trim_ascii_start().starts_with(b"<");
        return Err(match (is_success, is_html) {
            (false, _) => AnswerFault::Status {
                status,
                said: plain_text(&String::from_utf8_lossy(body)),
            },
            (true, true) => AnswerFault::Html,
            (true, false) => AnswerFault::NotJson,
        });
    };
    let said = match value {
        Value::Array(entries) => return Ok(entries),
        Value::Object(mut members) => {
            for key in ["tool_responses", "messages", "tool_outputs"] {
                if let Some(Value::Array(_)) = members.get(key)
                    && let Some(Value::Array(entries)) = members.shift_remove(key)
                {
                    return Ok(entries);
                }
            }
            if members.contains_key("tool_call_id") {
                return Ok(vec![Value::Object(members)]);
            }
            what_failed(&members)
        }
        _ => None,
    };
    Err(match (is_success, said) {
        (false, said) => AnswerFault::Status { status, said },
        (true, Some(said)) => AnswerFault::Said(said),
        (true, None) => AnswerFault::NoResponses,
    })
}

/// What an error body says, in the forms that web frameworks have.
pub(super) fn what_failed(members: &JsonObject) -> Option<String> {
    let error = members.get("error").and_then(error_text);
    let text = |key: &str| members.get(key)?.as_str().map(str::to_owned);
    let said = error
        .or_else(|| text("message"))
        .or_else(|| text("detail"))
        .or_else(|| text("title"));
    said.and_then(|said| plain_text(&said))
}

/// The first plain sentence of a text that may be a page; `None` for a page, whose words tell a model nothing.
pub(super) fn plain_text(text: &str) -> Option<String> {
    if text.trim_start().starts_with('<') {
        return None;
    }
    Some(plain(text, "")).filter(|said| !said.is_empty())
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_words_of_an_endpoint_are_not_for_the_log() {
        let key = "Incorrect API key: sk-1";
        for fault in [
            AnswerFault::Said(key.to_owned()),
            AnswerFault::Status {
                status: 401,
                said: Some(key.to_owned()),
            },
        ] {
            assert!(fault.to_string().contains(key));
            assert!(!fault.without_words().to_string().contains("sk-1"));
        }
    }

    fn text(text: &str) -> Result<ToolResult, AnswerFault> {
        Ok(ToolResult::text(text))
    }

    /// What comes of the calls `a` and `b`.
    #[track_caller]
    fn check(body: Value, a: Result<ToolResult, AnswerFault>, b: Result<ToolResult, AnswerFault>) {
        let answers = read_answers(200, body.to_string().as_bytes(), &["a", "b"]);
        assert_eq!(answers.outcomes, [a, b], "{body}");
    }

    #[track_caller]
    fn check_whole(status: u16, body: &str, fault: &str) {
        let answers = read_answers(status, body.as_bytes(), &["a", "b"]);
        for outcome in answers.outcomes {
            assert_eq!(outcome.unwrap_err().to_string(), fault, "{body}");
        }
    }

    #[test]
    fn calls_are_written_as_models_write_them() {
        let arguments = json!({"city": "Köln", "n": 1.0});
        let call = WebhookCall {
            id: "a",
            name: "weather",
            arguments: arguments.as_object().unwrap(),
        };
        assert_eq!(
            request(&[call]),
            r#"{"tool_calls":[{"id":"a","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Köln\",\"n\":1.0}"}}]}"#
        );
    }

    #[test]
    fn every_form_of_answers_is_read_in_any_order() {
        let b = json!({"tool_call_id": "b", "output": "B"});
        let a = json!({"tool_call_id": "a", "output": "A"});
        check(json!({"tool_responses": [b, a]}), text("A"), text("B"));
        check(json!([b, a]), text("A"), text("B"));
        check(json!({"tool_outputs": [a, b]}), text("A"), text("B"));
        let messages = json!([
            {"role": "assistant", "content": null},
            {"role": "tool", "tool_call_id": "b", "content": "B"},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "A"}]},
        ]);
        check(messages.clone(), text("A"), text("B"));
        check(json!({"messages": messages}), text("A"), text("B"));
        check(a, text("A"), Err(AnswerFault::Missing));
    }

    #[test]
    fn what_is_wrong_with_one_answer_is_no_fault_of_anothers() {
        let b = json!({"tool_call_id": "b", "output": "B"});
        let a = |output: Value| json!({"tool_call_id": "a", "output": output});
        check(json!([b]), Err(AnswerFault::Missing), text("B"));
        check(
            json!([a(json!(1)), b, a(json!(1))]),
            Err(AnswerFault::Twice),
            text("B"),
        );
        check(
            json!([{"tool_call_id": "a"}, b]),
            Err(AnswerFault::NoOutput),
            text("B"),
        );
        check(
            json!([5, null, {"tool_call_id": 7}, b]),
            Err(AnswerFault::Missing),
            text("B"),
        );
    }

    #[test]
    fn answers_to_calls_that_nobody_made_are_counted() {
        let body = r#"[{"tool_call_id": "x", "output": 1}, {"output": 1}, {"tool_call_id": "a", "output": "A"}]"#;
        let answers = read_answers(200, body.as_bytes(), &["a"]);
        assert_eq!((answers.outcomes, answers.strangers), (vec![text("A")], 2));
    }

    #[test]
    fn a_call_can_fail_alone() {
        let b = json!({"tool_call_id": "b", "output": "B"});
        let failed = |text: &str| Ok(output::failure(text));
        check(
            json!([{"tool_call_id": "a", "error": "no"}, b]),
            failed("no"),
            text("B"),
        );
        check(
            json!([{"tool_call_id": "a", "output": "gone", "is_error": true}, b]),
            failed("gone"),
            text("B"),
        );
        check(
            json!([{"tool_call_id": "a", "output": null, "error": {"message": "no"}}, b]),
            failed("no"),
            text("B"),
        );
    }

    #[test]
    fn a_body_that_is_no_answer_is_each_calls_failure() {
        let endpoint = "the function's endpoint";
        check_whole(
            200,
            " <!DOCTYPE html><p>x",
            &format!("{endpoint} answered with a web page instead of JSON"),
        );
        check_whole(
            200,
            "ok",
            &format!("{endpoint} answered with something that is not JSON"),
        );
        check_whole(
            200,
            "",
            &format!("{endpoint} answered with something that is not JSON"),
        );
        check_whole(
            200,
            "{}",
            &format!("{endpoint} answered without `tool_responses`"),
        );
        check_whole(
            200,
            "1",
            &format!("{endpoint} answered without `tool_responses`"),
        );
        check_whole(
            200,
            r#"{"error": {"message": "no quota"}}"#,
            &format!("{endpoint} says: no quota"),
        );
        check_whole(
            502,
            "<html>nginx at 10.0.0.1</html>",
            &format!("{endpoint} answered with HTTP 502"),
        );
        check_whole(
            500,
            r#"{"detail": "boom"}"#,
            &format!("{endpoint} answered with HTTP 500: boom"),
        );
        check_whole(
            404,
            "no route to http://10.0.0.1/x",
            &format!("{endpoint} answered with HTTP 404: no route to [address]"),
        );
    }

    #[test]
    fn answers_under_an_error_status_still_count() {
        let body = r#"{"tool_responses": [{"tool_call_id": "a", "error": "no such city"}]}"#;
        let answers = read_answers(422, body.as_bytes(), &["a"]);
        assert_eq!(answers.outcomes, [Ok(output::failure("no such city"))]);
    }
}
