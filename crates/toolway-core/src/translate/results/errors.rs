//! Failures of a call as JSON that a model can read.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::plain::{plain, plain_value};
use toolway_protocol::tool::{CallError, RefusalKind};

/// Writes a failure as `{"error": {"type": …, "message": …, …}}`.
///
/// `retryable` says whether the same call may simply be made again, and is there only where that is known;
/// not where the call should be made again with other arguments or another name.
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
        CallError::WaitingForApproval { id, .. } => {
            body.insert("waiting_for_approval".to_owned(), true.into());
            body.insert("confirmation_id".to_owned(), id.as_str().into());
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

/// Writes a failure as a sentence or two, as plain as [`to_openai`] does: what is wrong, where, and what to do.
pub fn to_text(error: &CallError) -> String {
    let message = message(error);
    match error {
        CallError::InvalidParams { path, .. } if path.is_empty() => {
            format!("Invalid arguments: {message}")
        }
        CallError::InvalidParams { path, .. } => {
            format!("Invalid arguments at {path}: {message}")
        }
        CallError::InvalidArgumentsJson { .. } => format!("Invalid arguments: {message}"),
        CallError::UnknownTool { did_you_mean, .. } if !did_you_mean.is_empty() => {
            format!("{message}; did you mean {}?", did_you_mean.join(", "))
        }
        _ => message.into_owned(),
    }
}

fn message(error: &CallError) -> Cow<'_, str> {
    match error {
        CallError::InvalidParams { message, .. } | CallError::InvalidArgumentsJson { message } => {
            Cow::Borrowed(message)
        }
        CallError::UpstreamUnavailable { message, .. } | CallError::Refused { message, .. } => {
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
        | CallError::WaitingForApproval { .. }
        | CallError::Busy => error.to_string().into(),
    }
}

fn is_retryable(error: &CallError) -> Option<bool> {
    match error {
        CallError::Busy | CallError::UpstreamUnavailable { unsent: true, .. } => Some(true),
        CallError::Denied { .. } => Some(false),
        CallError::Refused { refusal, .. } => match refusal {
            RefusalKind::Later => Some(true),
            RefusalKind::Final => Some(false),
            RefusalKind::Unclear => None,
        },
        CallError::InvalidArgumentsJson { .. }
        | CallError::InvalidParams { .. }
        | CallError::UnknownTool { .. }
        | CallError::Timeout { .. }
        | CallError::Cancelled
        | CallError::WaitingForApproval { .. }
        | CallError::UpstreamUnavailable { unsent: false, .. }
        | CallError::Protocol { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(error: &CallError, expected: &Value) {
        let text = to_openai(error);
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({ "error": expected })
        );
    }

    #[test]
    fn every_failure_has_its_type_and_a_message() {
        check(
            &CallError::Timeout {
                after: Duration::from_secs(30),
            },
            &json!({"type": "timeout", "message": "the tool did not answer within 30 s"}),
        );
        check(
            &CallError::Cancelled,
            &json!({"type": "cancelled", "message": "the call was cancelled"}),
        );
        check(
            &CallError::Denied {
                reason: "writing is not allowed".into(),
            },
            &json!({"type": "denied", "message": "writing is not allowed", "retryable": false}),
        );
        check(
            &CallError::Busy,
            &json!({
                "type": "busy",
                "message": "the server is busy; try again in a moment",
                "retryable": true,
            }),
        );
    }

    #[test]
    fn bad_arguments_name_the_place_and_the_schema() {
        check(
            &CallError::InvalidParams {
                path: "/city".into(),
                message: "5 is not of type \"string\"".into(),
                input_schema: json!({"type": "string"}),
            },
            &json!({
                "type": "invalid_params",
                "message": "5 is not of type \"string\"",
                "path": "/city",
                "input_schema": {"type": "string"},
            }),
        );
    }

    #[test]
    fn an_unknown_tool_comes_with_names_that_look_like_it() {
        check(
            &CallError::UnknownTool {
                name: "raed".into(),
                did_you_mean: vec!["files__read".into()],
            },
            &json!({
                "type": "unknown_tool",
                "message": "there is no tool named `raed`",
                "did_you_mean": ["files__read"],
            }),
        );
    }

    #[test]
    fn only_a_call_that_was_not_sent_may_simply_be_made_again() {
        let unavailable = |unsent| {
            let message = "the server is starting".to_owned();
            to_openai(&CallError::UpstreamUnavailable { message, unsent })
        };
        assert!(unavailable(true).contains(r#""retryable":true"#));
        assert!(!unavailable(false).contains("retryable"));
    }

    #[test]
    fn what_an_http_error_says_of_the_call_is_said_to_the_model() {
        let refused = |status| CallError::Refused {
            message: format!("the tool's server answered with HTTP {status}"),
            refusal: RefusalKind::of_status(status),
            retry_after: None,
        };
        for (status, kind, retryable) in [
            (429, "busy", Some(true)),
            (401, "upstream_unavailable", Some(false)),
            (408, "upstream_unavailable", None),
            (503, "upstream_unavailable", None),
        ] {
            let message = format!("the tool's server answered with HTTP {status}");
            let mut expected = json!({"type": kind, "message": message});
            if let Some(retryable) = retryable {
                expected["retryable"] = retryable.into();
            }
            check(&refused(status), &expected);
        }
    }

    #[test]
    fn a_refusal_of_the_server_keeps_its_code_and_data_and_loses_its_stack() {
        check(
            &CallError::Protocol {
                code: -32602,
                message: "Unknown city. See http://10.0.0.5:8080/docs".into(),
                data: Some(json!({"field": "city", "stack": "at f (/srv/a.js:1:2)", "tries": 2})),
            },
            &json!({
                "type": "protocol_error",
                "message": "Unknown city.",
                "code": -32602,
                "data": {"field": "city", "tries": 2},
            }),
        );
    }
}
