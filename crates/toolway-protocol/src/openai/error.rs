//! The error envelope: `{"error": {"message", "type", "param", "code"}}`, written whole and read loosely.
//!
//! Upstreams answer failures in many shapes; all of them become one here. HTML is never passed on.

use serde_json::{Value, json};

use crate::{
    json_size::{MAX_VALUES, check_values},
    tool::JsonObject,
};

/// Longest message that is passed on, in bytes.
pub const MAX_MESSAGE: usize = 2000;

/// Longest type or code that is logged, in bytes; and longest if it is a number.
const MAX_NAME: usize = 64;
const MAX_NUMBER: usize = 6;

/// What stands inside `{"error": …}`. All four keys are always written.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorBody {
    /// What happened, for people. At most [`MAX_MESSAGE`] bytes where it came from an upstream.
    pub message: String,
    /// The `type`: `invalid_request_error`, `server_error` and so on.
    pub kind: String,
    /// The request field that is to blame.
    pub param: Option<String>,
    /// The stable code; a text, or the number that an upstream sent.
    pub code: Option<Value>,
}

impl ErrorBody {
    /// An error of the gateway's own, with a stable code.
    pub fn new(kind: &str, code: &str, message: impl Into<String>) -> ErrorBody {
        ErrorBody {
            message: message.into(),
            kind: kind.to_owned(),
            param: None,
            code: Some(code.into()),
        }
    }

    /// Its type and code, for the log. They are an upstream's as well, so only what cannot be a key is shown.
    pub fn names(&self) -> String {
        let code = self.code.as_ref().map(|code| match code {
            Value::String(code) => code.clone(),
            code => code.to_string(),
        });
        let names = [Some(self.kind.clone()), code].into_iter().flatten();
        let names: Vec<String> = names.filter(|name| is_name(name)).collect();
        names.join(", ")
    }

    /// The whole envelope.
    pub fn to_value(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }

    /// The whole envelope as bytes.
    pub fn to_json(&self) -> Vec<u8> {
        self.to_value().to_string().into_bytes()
    }

    /// Reads the body of an answer whose status is an error, whatever its form.
    pub fn from_upstream(status: u16, content_type: Option<&str>, body: &[u8]) -> ErrorBody {
        let html = content_type.is_some_and(|kind| kind.to_ascii_lowercase().contains("html"));
        let named = match serde_json::from_slice::<Value>(body) {
            Ok(value) => in_value(&value)
                .or_else(|| in_unmarked(&value))
                .map(|(error, _)| error),
            Err(_) => text_of(body)
                .filter(|text| !html && !looks_like_html(text))
                .map(|text| ErrorBody {
                    message: text,
                    kind: String::new(),
                    param: None,
                    code: None,
                }),
        };
        let mut error = named.unwrap_or_else(|| ErrorBody {
            message: String::new(),
            kind: String::new(),
            param: None,
            code: None,
        });
        if error.message.is_empty() {
            error.message = format!("the upstream answered with status {status}");
        }
        if error.kind.is_empty() {
            error.kind = kind_of(status).to_owned();
        }
        error
    }

    /// The error in a body, or an event, whose status said that all is well. With it goes the status that
    /// fits, where the error says one (400 to 599).
    pub fn in_ok_body(body: &[u8]) -> Option<(ErrorBody, Option<u16>)> {
        check_values(body, MAX_VALUES).ok()?;
        ErrorBody::in_ok_value(&serde_json::from_slice(body).ok()?)
    }

    /// The same for a value that was parsed before.
    pub fn in_ok_value(value: &Value) -> Option<(ErrorBody, Option<u16>)> {
        in_value(value).map(completed)
    }

    /// The same for an object that was parsed before.
    pub fn in_ok_object(object: &JsonObject) -> Option<(ErrorBody, Option<u16>)> {
        in_object(object).map(completed)
    }

    /// The error in an event that is known to be one, whatever its form, and the status that fits.
    pub fn in_error_event(data: &[u8]) -> (ErrorBody, Option<u16>) {
        let value = serde_json::from_slice(data).ok();
        let named = value.and_then(|value| in_value(&value).or_else(|| in_unmarked(&value)));
        let status = named.and_then(|(_, status)| status);
        let body = ErrorBody::from_upstream(status.unwrap_or(502), None, data);
        (body, status)
    }
}

/// An error with a message and a type, whatever it said itself.
fn completed((mut error, status): (ErrorBody, Option<u16>)) -> (ErrorBody, Option<u16>) {
    if error.message.is_empty() {
        error.message = "the upstream reported an error".to_owned();
    }
    if error.kind.is_empty() {
        error.kind = kind_of(status.unwrap_or(502)).to_owned();
    }
    (error, status)
}

/// An error that says that it is one: `error`, `object: "error"`, or either within a list of one (Gemini).
fn in_value(value: &Value) -> Option<(ErrorBody, Option<u16>)> {
    match value {
        Value::Object(object) => in_object(object),
        Value::Array(items) => items.first().and_then(in_value),
        _ => None,
    }
}

fn in_object(object: &JsonObject) -> Option<(ErrorBody, Option<u16>)> {
    let answers = object.contains_key("choices");
    match object.get("error") {
        Some(Value::Object(error)) if !(answers && error.is_empty()) => {
            Some(described(error, object))
        }
        Some(Value::String(text)) if !(answers && text.is_empty()) => {
            Some(described_by(text, object))
        }
        Some(Value::Array(items)) if !items.is_empty() => {
            Some(described_by(&reasons(items), object))
        }
        Some(Value::Bool(true)) => Some(described(object, object)),
        _ if object.get("object").is_some_and(|kind| kind == "error") => {
            Some(described(object, object))
        }
        _ if object.get("type").is_some_and(|kind| kind == "error") => {
            Some(described(object, object))
        }
        // FastAPI, and nothing that an answer has beside it.
        _ if object.contains_key("detail") && !answers => Some(described(object, object)),
        _ => None,
    }
}

/// An error that only the status told: `{"message": …}`, or a bare text.
fn in_unmarked(value: &Value) -> Option<(ErrorBody, Option<u16>)> {
    match value {
        Value::Object(object) => Some(described(object, object)),
        Value::String(text) => Some(described_by(text, &JsonObject::new())),
        _ => None,
    }
}

fn described(error: &JsonObject, around: &JsonObject) -> (ErrorBody, Option<u16>) {
    let text = |key: &str| match error.get(key) {
        Some(Value::String(text)) if !text.trim().is_empty() => Some(text.clone()),
        _ => None,
    };
    let message = text("message")
        .or_else(|| text("detail"))
        .or_else(|| text("msg"))
        .or_else(|| {
            error
                .get("detail")
                .and_then(Value::as_array)
                .map(|list| reasons(list))
        })
        .or_else(|| {
            error
                .get("message")
                .filter(|m| !m.is_null())
                .map(Value::to_string)
        })
        .or_else(|| text("code"))
        .or_else(|| text("type"))
        .unwrap_or_default();
    let code = error
        .get("code")
        .filter(|code| code.is_string() || code.is_number());
    let kind = text("type").or_else(|| text("status")).unwrap_or_default();
    let body = ErrorBody {
        message: without_html(&message),
        kind: if kind == "error" { String::new() } else { kind },
        param: text("param"),
        code: code.cloned(),
    };
    let status = status_in(error).or_else(|| status_in(around));
    let status = status.or_else(|| status_of(&body.kind));
    (body, status)
}

fn described_by(message: &str, around: &JsonObject) -> (ErrorBody, Option<u16>) {
    let body = ErrorBody {
        message: without_html(message),
        kind: String::new(),
        param: None,
        code: None,
    };
    (body, status_in(around))
}

/// A word such as `invalid_api_key` or a number such as `1113`; keys are long, and have both letters and digits.
fn is_name(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphabetic() || b"_.-".contains(&byte);
    let is_number = text.len() <= MAX_NUMBER && text.bytes().all(|byte| byte.is_ascii_digit());
    (1..=MAX_NAME).contains(&text.len()) && (is_number || text.bytes().all(is_word))
}

/// What a list of FastAPI's reasons, or of texts, says.
fn reasons(list: &[Value]) -> String {
    let one = |reason: &Value| {
        let said = reason
            .get("msg")
            .or_else(|| reason.get("message"))
            .and_then(Value::as_str);
        let place = reason.get("loc").and_then(Value::as_array).map(|path| {
            let step = |p: &Value| p.as_str().map_or_else(|| p.to_string(), str::to_owned);
            path.iter().map(step).collect::<Vec<_>>().join(".")
        });
        match (said, place) {
            (Some(said), Some(place)) => format!("{place}: {said}"),
            (Some(said), None) => said.to_owned(),
            (None, _) => reason
                .as_str()
                .map_or_else(|| reason.to_string(), str::to_owned),
        }
    };
    list.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// A status that an error names in one of its numbers.
fn status_in(error: &JsonObject) -> Option<u16> {
    ["code", "status", "status_code", "http_code"]
        .into_iter()
        .find_map(|key| {
            let number = match error.get(key)? {
                Value::Number(number) => number.as_u64()?,
                Value::String(text) => text.parse().ok()?,
                _ => return None,
            };
            u16::try_from(number)
                .ok()
                .filter(|status| (400..600).contains(status))
        })
}

/// The status that goes with a `type` where no number was given.
fn status_of(kind: &str) -> Option<u16> {
    Some(match kind.to_ascii_lowercase().as_str() {
        "invalid_request_error" | "badrequesterror" | "invalid_argument" => 400,
        "authentication_error" | "unauthenticated" => 401,
        "permission_error" | "permission_denied" => 403,
        "not_found_error" | "notfounderror" | "not_found" => 404,
        "rate_limit_error"
        | "rate_limit_exceeded"
        | "resource_exhausted"
        | "requests"
        | "tokens"
        | "insufficient_quota" => 429,
        "overloaded_error" | "unavailable" | "service_unavailable" => 503,
        _ => return None,
    })
}

/// The `type` that goes with a status where an upstream gave none.
fn kind_of(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

/// A body as a text that may be shown, or `None` if it is empty or not text.
fn text_of(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?.trim();
    (!text.is_empty()).then(|| bounded(text))
}

fn without_html(message: &str) -> String {
    if looks_like_html(message) {
        String::new()
    } else {
        bounded(message)
    }
}

fn looks_like_html(text: &str) -> bool {
    let start: String = text
        .trim_start()
        .chars()
        .take(200)
        .collect::<String>()
        .to_ascii_lowercase();
    [
        "<!doctype",
        "<html",
        "<head",
        "<body",
        "<title",
        "<h1",
        "<?xml",
        "<center",
    ]
    .iter()
    .any(|tag| start.contains(tag))
}

/// At most [`MAX_MESSAGE`] bytes, cut between characters.
fn bounded(text: &str) -> String {
    if text.len() <= MAX_MESSAGE {
        return text.to_owned();
    }
    let end = (0..=MAX_MESSAGE - 3)
        .rev()
        .find(|&n| text.is_char_boundary(n))
        .unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u16, content_type: &str, body: &str, expected: &Value) {
        let error = ErrorBody::from_upstream(status, Some(content_type), body.as_bytes());
        assert_eq!(error.to_value()["error"], *expected, "{body}");
    }

    #[track_caller]
    fn check_ok(body: &str, message: &str, status: Option<u16>) {
        let (error, guess) = ErrorBody::in_ok_body(body.as_bytes()).expect("an error");
        assert_eq!((error.message.as_str(), guess), (message, status), "{body}");
    }

    #[test]
    fn the_own_form_stays() {
        check(
            429,
            "application/json",
            r#"{"error": {"message": "slow down", "type": "requests", "param": null, "code": "rate_limit_exceeded"}}"#,
            &json!({"message": "slow down", "type": "requests", "param": null, "code": "rate_limit_exceeded"}),
        );
    }

    #[test]
    fn html_is_not_passed_on() {
        let said = json!({"message": "the upstream answered with status 502", "type": "server_error", "param": null, "code": null});
        check(502, "text/html", "<html><body>nginx</body></html>", &said);
        check(502, "text/plain", "  <!DOCTYPE html><p>x", &said);
        check(
            502,
            "application/json",
            r#"{"error": "<html>x</html>"}"#,
            &said,
        );
        check(502, "text/html", "plain but named html", &said);
    }

    #[test]
    fn every_other_form_becomes_a_message() {
        let said = |message: &str, kind: &str| json!({"message": message, "type": kind, "param": null, "code": null});
        let bad = "invalid_request_error";
        check(
            400,
            "application/json",
            r#"{"error":"no tools"}"#,
            &said("no tools", bad),
        );
        check(
            422,
            "application/json",
            r#"{"detail": [{"loc": ["body", "tools", 0], "msg": "field required"}]}"#,
            &said("body.tools.0: field required", bad),
        );
        check(
            404,
            "application/json",
            r#"{"detail":"Not Found"}"#,
            &said("Not Found", "not_found_error"),
        );
        check(
            500,
            "application/json",
            r#"{"message":"oops"}"#,
            &said("oops", "server_error"),
        );
        check(500, "text/plain", "oops", &said("oops", "server_error"));
        check(
            500,
            "text/plain",
            "",
            &said("the upstream answered with status 500", "server_error"),
        );
        check(
            500,
            "application/json",
            "{}",
            &said("the upstream answered with status 500", "server_error"),
        );
        check(
            500,
            "application/json",
            "[]",
            &said("the upstream answered with status 500", "server_error"),
        );
        check(
            400,
            "application/json",
            r#"{"object":"error","message":"m","type":"BadRequestError","param":"x","code":400}"#,
            &json!({"message": "m", "type": "BadRequestError", "param": "x", "code": 400}),
        );
        check(
            400,
            "application/json",
            r#"[{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}]"#,
            &json!({"message": "m", "type": "INVALID_ARGUMENT", "param": null, "code": 400}),
        );
    }

    #[test]
    fn only_names_are_for_the_log() {
        let key = "sk-proj-4f9aB7";
        for (kind, code, names) in [
            (
                "requests",
                json!("rate_limit_exceeded"),
                "requests, rate_limit_exceeded",
            ),
            (
                "invalid_request_error",
                json!(1113),
                "invalid_request_error, 1113",
            ),
            ("BadRequestError", json!(null), "BadRequestError"),
            (
                "",
                json!("InvalidParameter.Model"),
                "InvalidParameter.Model",
            ),
            ("server_error", json!(key), "server_error"),
            (key, json!("12345678901234567890"), ""),
            ("a b", json!({"x": 1}), ""),
        ] {
            let mut error = ErrorBody::new(kind, "", key);
            error.code = Some(code);
            error.code = error.code.filter(|code| !code.is_null());
            assert_eq!(error.names(), names);
        }
    }

    #[test]
    fn a_message_is_bounded() {
        let error = ErrorBody::from_upstream(500, None, "ä".repeat(5000).as_bytes());
        assert!(error.message.len() <= MAX_MESSAGE && error.message.ends_with('…'));
    }

    #[test]
    fn an_error_in_an_ok_body_is_seen_with_its_status() {
        check_ok(
            r#"{"error":{"message":"No endpoints","code":404}}"#,
            "No endpoints",
            Some(404),
        );
        check_ok(r#"{"error":{"message":"x","code":"529"}}"#, "x", Some(529));
        check_ok(
            r#"{"error":{"message":"x","type":"rate_limit_exceeded"}}"#,
            "x",
            Some(429),
        );
        check_ok(r#"{"error":"x"}"#, "x", None);
        check_ok(r#"{"error":{}}"#, "the upstream reported an error", None);
        check_ok(r#"{"type":"error","message":"x"}"#, "x", None);
        check_ok(r#"{"detail":"x","status_code":503}"#, "x", Some(503));
        check_ok(
            r#"{"error":{"message":"x"},"choices":[{"delta":{"content":""}}]}"#,
            "x",
            None,
        );
    }

    #[test]
    fn what_is_no_error_is_none() {
        let empty = [
            r#"{"error":"","choices":[]}"#,
            r#"{"error":{},"choices":[]}"#,
        ];
        for body in [
            r#"{"choices":[]}"#,
            r#"{"error":null,"choices":[]}"#,
            "[]",
            "1",
            "x",
        ]
        .iter()
        .chain(&empty)
        {
            assert_eq!(ErrorBody::in_ok_body(body.as_bytes()), None, "{body}");
        }
    }
}
