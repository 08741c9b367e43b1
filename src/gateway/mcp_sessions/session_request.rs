//! What the caller of `POST /v1/mcp_sessions` wants, read from its body. Pure.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::gateway::failure::Failure;
use toolway_core::translate::functions::definitions::{self, DocumentFault};
use toolway_protocol::{
    json_size,
    tool::{JsonObject, Tool},
};

/// Longest body, in bytes.
pub const MAX_BYTES: usize = 4 << 20;

/// Most JSON values of a body. They are copied a few times until every function is compiled.
const MOST_VALUES: usize = 200_000;

/// How long a session lives, in seconds: the least, if nothing is said, and the most.
const LIFE: [u64; 3] = [10, 3600, 86400];

/// How long a call waits for its answer, in seconds: the minimum, the default and the maximum. A person may have to
/// give the answer.
const CALL_TIMEOUT: [u64; 3] = [1, 300, 3600];

/// Longest name, in bytes.
const MAX_NAME: usize = 128;

/// Longest instructions, in bytes.
const MAX_INSTRUCTIONS: usize = 16 << 10;

/// How many faults of the functions are named.
const MAX_FAULTS: usize = 5;

const KNOWN: [&str; 6] = [
    "tools",
    "functions",
    "expires_in",
    "call_timeout",
    "name",
    "instructions",
];

/// A session as its caller wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRequest {
    /// The caller's functions; at least one, no two of one name, and every schema can be compiled.
    pub tools: Vec<Tool>,
    /// How long the session lives: 10 s to 24 h. Default: 1 h.
    pub life: Duration,
    /// How long a call waits for its answer: 1 s to 1 h. Default: 5 min.
    pub call_timeout: Duration,
    /// What the session calls itself towards agents.
    pub name: Option<String>,
    /// `instructions` for the models of agents.
    pub instructions: Option<String>,
}

/// Reads an order. With thousands of functions this takes a while, for their schemas are compiled.
///
/// # Errors
/// [`Failure::Request`], which names the member that is at fault.
pub fn read(body: &[u8]) -> Result<SessionRequest, Failure> {
    if body.len() > MAX_BYTES {
        let message = format!("the body is longer than {MAX_BYTES} bytes");
        return Err(refused(None, "invalid_request", message));
    }
    check_values(body, MOST_VALUES)?;
    let mut members = object(body)?;
    if let Some(unknown) = members.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        let message = format!(
            "Unknown parameter: '{unknown}'. Known are: {}.",
            KNOWN.join(", ")
        );
        return Err(refused(Some(unknown), "unknown_parameter", message));
    }
    members.retain(|_, value| !value.is_null());
    Ok(SessionRequest {
        life: seconds(&members, "expires_in", LIFE)?,
        call_timeout: seconds(&members, "call_timeout", CALL_TIMEOUT)?,
        name: text(&mut members, "name", MAX_NAME)?,
        instructions: text(&mut members, "instructions", MAX_INSTRUCTIONS)?,
        tools: tools(&members)?,
    })
}

/// A body that is a JSON object.
pub(super) fn object(body: &[u8]) -> Result<JsonObject, Failure> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => {
            let message = "the body must be a JSON object".to_owned();
            Err(refused(None, "invalid_request", message))
        }
        Err(error) => Err(not_json(&error)),
    }
}

/// Refuses a body of which building its values would take too much memory.
pub(super) fn check_values(body: &[u8], most: usize) -> Result<(), Failure> {
    let checked = json_size::check_values(body, most);
    checked.map_err(|error| refused(None, "invalid_request", format!("the body has {error}")))
}

pub(super) fn not_json(error: &serde_json::Error) -> Failure {
    let message = format!("the body is not JSON: {error}");
    refused(None, "invalid_request", message)
}

pub(super) fn refused(param: Option<&str>, code: &'static str, message: String) -> Failure {
    Failure::Request {
        message,
        param: param.map(str::to_owned),
        code,
    }
}

fn tools(members: &JsonObject) -> Result<Vec<Tool>, Failure> {
    let lists = ["tools", "functions"].into_iter().filter_map(|key| {
        let list = members.get(key)?;
        Some((key.to_owned(), list.clone()))
    });
    let lists: Map<String, Value> = lists.collect();
    if lists.is_empty() {
        let message = "Missing required parameter: 'tools'.".to_owned();
        return Err(refused(
            Some("tools"),
            "missing_required_parameter",
            message,
        ));
    }
    if let Some((key, _)) = lists.iter().find(|(_, list)| !list.is_array()) {
        let message = format!("Invalid type for '{key}': expected an array of functions.");
        return Err(refused(Some(key), "invalid_type", message));
    }
    let found = definitions::from_value(&Value::Object(lists));
    if let Some(first) = found.faults.first() {
        let param = Some(first.path.as_str()).filter(|path| !path.is_empty());
        return Err(refused(param, "invalid_value", named(&found.faults)));
    }
    if found.tools.is_empty() {
        let message = "Invalid value for 'tools': there is no function in it.".to_owned();
        return Err(refused(Some("tools"), "invalid_value", message));
    }
    Ok(found.tools)
}

/// The first faults, and how many there are besides.
fn named(faults: &[DocumentFault]) -> String {
    let first: Vec<String> = faults
        .iter()
        .take(MAX_FAULTS)
        .map(DocumentFault::to_string)
        .collect();
    let more = match faults.len().saturating_sub(MAX_FAULTS) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("{}{more}", first.join("; "))
}

fn seconds(members: &JsonObject, key: &str, bounds: [u64; 3]) -> Result<Duration, Failure> {
    let [least, default, most] = bounds;
    let given = members.get(key).unwrap_or(&Value::Null);
    let seconds = match (given.is_null(), given.as_u64()) {
        (true, _) => default,
        (false, Some(seconds)) if (least..=most).contains(&seconds) => seconds,
        _ => {
            let code = if given.is_number() {
                "invalid_value"
            } else {
                "invalid_type"
            };
            let message = format!(
                "Invalid '{key}': expected a whole number of seconds from {least} to {most}."
            );
            return Err(refused(Some(key), code, message));
        }
    };
    Ok(Duration::from_secs(seconds))
}

fn text(members: &mut JsonObject, key: &str, most: usize) -> Result<Option<String>, Failure> {
    match members.shift_remove(key) {
        None => Ok(None),
        Some(Value::String(text)) if text.len() <= most => Ok(Some(text)),
        Some(Value::String(_)) => {
            let message = format!("Invalid '{key}': it is longer than {most} bytes.");
            Err(refused(Some(key), "invalid_value", message))
        }
        Some(_) => {
            let message = format!("Invalid type for '{key}': expected a string.");
            Err(refused(Some(key), "invalid_type", message))
        }
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use serde_json::json;

    use super::*;

    fn order(body: Value) -> Result<SessionRequest, Failure> {
        read(body.to_string().as_bytes())
    }

    #[track_caller]
    fn check(body: Value, param: Option<&str>, code: &str, says: &str) {
        match order(body.clone()) {
            Err(Failure::Request {
                message,
                param: at,
                code: its,
            }) => {
                assert_eq!((at.as_deref(), its), (param, code), "{body}: {message}");
                assert!(message.contains(says), "{message}");
            }
            other => panic!("{body}: {other:?}"),
        }
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    #[test]
    fn an_order_is_read_with_everything_in_it() {
        let read = order(json!({
            "tools": [function("a")], "functions": [{"name": "b"}], "expires_in": 10,
            "call_timeout": 3600, "name": "n", "instructions": "i",
        }))
        .unwrap();
        let names: Vec<&str> = read.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(read.life, Duration::from_secs(10));
        assert_eq!(read.call_timeout, Duration::from_secs(3600));
        assert_eq!(read.name.as_deref(), Some("n"));
        assert_eq!(read.instructions.as_deref(), Some("i"));
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let read = order(json!({"tools": [function("a")], "functions": null, "expires_in": null}));
        let read = read.unwrap();
        assert_eq!(read.life, Duration::from_secs(3600));
        assert_eq!(read.call_timeout, Duration::from_secs(300));
        assert_eq!((read.name, read.instructions), (None, None));
    }

    #[test]
    fn each_fault_names_its_place() {
        let a = || json!([function("a")]);
        check(json!([]), None, "invalid_request", "object");
        check(
            json!({}),
            Some("tools"),
            "missing_required_parameter",
            "tools",
        );
        check(json!({"tools": {}}), Some("tools"), "invalid_type", "array");
        check(
            json!({"tools": []}),
            Some("tools"),
            "invalid_value",
            "no function",
        );
        check(
            json!({"tools": a(), "expire_in": 5}),
            Some("expire_in"),
            "unknown_parameter",
            "expires_in",
        );
        for wrong in [json!(9), json!(86401), json!(-1), json!(10.5)] {
            let body = json!({"tools": a(), "expires_in": wrong});
            check(
                body,
                Some("expires_in"),
                "invalid_value",
                "from 10 to 86400",
            );
        }
        check(
            json!({"tools": a(), "call_timeout": "1m"}),
            Some("call_timeout"),
            "invalid_type",
            "seconds",
        );
        check(
            json!({"tools": a(), "name": 1}),
            Some("name"),
            "invalid_type",
            "string",
        );
        check(
            json!({"tools": a(), "name": "x".repeat(129)}),
            Some("name"),
            "invalid_value",
            "128",
        );
    }

    #[test]
    fn a_function_that_cannot_be_offered_is_named_by_its_index() {
        check(
            json!({"tools": [function("a"), function("b"), function("a")]}),
            Some("tools[2].function.name"),
            "invalid_value",
            "already defined at tools[0]",
        );
        let broken = json!({"name": "b", "parameters": {"type": "object", "properties": 5}});
        check(
            json!({"tools": [function("a"), {"type": "function", "function": broken}]}),
            Some("tools[1].function.parameters"),
            "invalid_value",
            "tools[1].function.parameters",
        );
        let all: Vec<Value> = (0..8).map(|_| json!(1)).collect();
        check(
            json!({"tools": all}),
            Some("tools[0]"),
            "invalid_value",
            "tools[4]: is not a JSON object; and 3 more",
        );
    }

    #[test]
    fn a_body_that_is_no_json_or_too_long_is_refused() {
        for body in [b"{".as_slice(), b"\xff", b""] {
            assert!(matches!(
                read(body),
                Err(Failure::Request {
                    code: "invalid_request",
                    ..
                })
            ));
        }
        let long = " ".repeat(MAX_BYTES + 1);
        let error = read(long.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("4194304"), "{error}");
    }
}
