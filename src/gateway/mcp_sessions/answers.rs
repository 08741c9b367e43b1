//! What the caller answers: `tool_responses`, read from the body of its POST. Pure.
//!
//! A body is taken as a whole or not at all: a mistake in one entry is told to the caller, who can mend it,
//! and no call gets half of an answer.

use serde_json::Value;

use super::session_request::{check_values, not_json, refused};
use crate::gateway::failure::Failure;
use toolway_core::translate::functions::output;
use toolway_protocol::{
    json_size::MAX_VALUES,
    tool::{JsonObject, ToolResult},
};

/// Most answers in one body.
const MAX_ANSWERS: usize = 1024;

/// The answer to one call.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionOutput {
    /// The call's id.
    pub id: String,
    /// What came of it.
    pub result: ToolResult,
}

/// Reads the answers in a body: `{"tool_responses": [{"tool_call_id", "output"}]}`, an array of those, or
/// messages `{"role": "tool", "tool_call_id", "content"}` as an array or under `messages`, where those of
/// other roles are passed over. An `error` in place of the output, or `is_error` beside it, is a failure.
///
/// # Errors
/// [`Failure::Request`], which names the entry that is at fault.
pub fn read(body: &[u8]) -> Result<Vec<FunctionOutput>, Failure> {
    let (key, entries) = entries(body)?;
    if entries.len() > MAX_ANSWERS {
        let message = format!("more than {MAX_ANSWERS} answers at once; send several requests");
        return Err(refused(None, "invalid_value", message));
    }
    let mut answers = Vec::with_capacity(entries.len());
    for (place, entry) in entries.into_iter().enumerate() {
        let path = format!("{key}[{place}]");
        let Value::Object(entry) = entry else {
            let message = format!("Invalid type for '{path}': expected an object.");
            return Err(refused(Some(&path), "invalid_type", message));
        };
        if entry.get("role").is_none_or(|role| role == "tool") {
            answers.push(answer(&path, entry)?);
        }
    }
    Ok(answers)
}

/// The list, and under which name it stands.
fn entries(body: &[u8]) -> Result<(&'static str, Vec<Value>), Failure> {
    check_values(body, MAX_VALUES)?;
    let mut members = match serde_json::from_slice(body) {
        Ok(Value::Array(entries)) => return Ok(("", entries)),
        Ok(Value::Object(members)) => members,
        Ok(_) => {
            let message = "the body must be an object with `tool_responses`".to_owned();
            return Err(refused(None, "invalid_request", message));
        }
        Err(error) => return Err(not_json(&error)),
    };
    for key in ["tool_responses", "messages"] {
        match members.shift_remove(key) {
            None | Some(Value::Null) => {}
            Some(Value::Array(entries)) => return Ok((key, entries)),
            Some(_) => {
                let message = format!("Invalid type for '{key}': expected an array.");
                return Err(refused(Some(key), "invalid_type", message));
            }
        }
    }
    let message = "Missing required parameter: 'tool_responses'.".to_owned();
    Err(refused(
        Some("tool_responses"),
        "missing_required_parameter",
        message,
    ))
}

fn answer(path: &str, mut entry: JsonObject) -> Result<FunctionOutput, Failure> {
    let id = match entry.shift_remove("tool_call_id") {
        Some(Value::String(id)) => id,
        other => {
            let param = format!("{path}.tool_call_id");
            return Err(match other {
                None => missing(&param),
                Some(_) => {
                    let message = format!("Invalid type for '{param}': expected a string.");
                    refused(Some(&param), "invalid_type", message)
                }
            });
        }
    };
    let has_failed = ["is_error", "isError"]
        .iter()
        .any(|key| entry.get(*key) == Some(&Value::Bool(true)));
    let error = entry.get("error").and_then(output::error_text);
    let said = ["output", "content"]
        .into_iter()
        .find_map(|key| entry.shift_remove(key));
    let mut result = match (said, error) {
        (None, None) if has_failed => output::failure("the function failed and did not say why"),
        (None, None) => return Err(missing(&format!("{path}.output"))),
        (None | Some(Value::Null), Some(error)) => output::failure(error),
        (Some(said), error) => {
            let mut result = output::read(said);
            result.is_error |= error.is_some();
            result
        }
    };
    result.is_error |= has_failed;
    Ok(FunctionOutput { id, result })
}

fn missing(param: &str) -> Failure {
    let message = format!("Missing required parameter: '{param}'.");
    refused(Some(param), "missing_required_parameter", message)
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use serde_json::json;

    use super::*;

    fn answers(body: Value) -> Vec<FunctionOutput> {
        read(body.to_string().as_bytes()).unwrap()
    }

    fn one(entry: Value) -> ToolResult {
        answers(json!({"tool_responses": [entry]})).remove(0).result
    }

    #[track_caller]
    fn check_refused(body: Value, param: Option<&str>, code: &str) {
        match read(body.to_string().as_bytes()) {
            Err(Failure::Request {
                param: at,
                code: its,
                ..
            }) => assert_eq!((at.as_deref(), its), (param, code), "{body}"),
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn every_form_of_answers_is_read() {
        let a = FunctionOutput {
            id: "a".into(),
            result: ToolResult::text("A"),
        };
        let entry = json!({"tool_call_id": "a", "output": "A"});
        let message = json!({"role": "tool", "tool_call_id": "a", "content": "A"});
        let assistant = json!({"role": "assistant", "content": null, "tool_calls": []});
        for body in [
            json!({"tool_responses": [entry]}),
            json!([entry]),
            json!([message]),
            json!([assistant, message]),
            json!({"messages": [assistant, message], "tool_responses": null}),
        ] {
            assert_eq!(answers(body.clone()), std::slice::from_ref(&a), "{body}");
        }
        assert_eq!(answers(json!([])), []);
    }

    #[test]
    fn an_answer_can_say_that_the_call_failed() {
        let failed = |text: &str| output::failure(text);
        assert_eq!(
            one(json!({"tool_call_id": "a", "error": "no"})),
            failed("no")
        );
        assert_eq!(
            one(json!({"tool_call_id": "a", "output": null, "error": {"message": "no"}})),
            failed("no")
        );
        assert_eq!(
            one(json!({"tool_call_id": "a", "output": "gone", "is_error": true})),
            failed("gone")
        );
        assert!(one(json!({"tool_call_id": "a", "is_error": true})).is_error);
        assert!(!one(json!({"tool_call_id": "a", "output": null})).is_error);
    }

    #[test]
    fn a_mistake_names_its_entry_and_nothing_is_taken() {
        let good = json!({"tool_call_id": "a", "output": 1});
        let with = |entry: Value| json!({"tool_responses": [good, entry]});
        check_refused(with(json!(1)), Some("tool_responses[1]"), "invalid_type");
        check_refused(
            with(json!({"output": 1})),
            Some("tool_responses[1].tool_call_id"),
            "missing_required_parameter",
        );
        check_refused(
            with(json!({"tool_call_id": 7, "output": 1})),
            Some("tool_responses[1].tool_call_id"),
            "invalid_type",
        );
        check_refused(
            with(json!({"tool_call_id": "b"})),
            Some("tool_responses[1].output"),
            "missing_required_parameter",
        );
        check_refused(
            json!({}),
            Some("tool_responses"),
            "missing_required_parameter",
        );
        check_refused(
            json!({"tool_responses": {}}),
            Some("tool_responses"),
            "invalid_type",
        );
        check_refused(json!("x"), None, "invalid_request");
        let many = vec![good; MAX_ANSWERS + 1];
        check_refused(json!(many), None, "invalid_value");
        assert!(read(b"{").is_err());
    }
}
