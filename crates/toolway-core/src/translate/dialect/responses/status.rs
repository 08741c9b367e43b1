//! Responses that have not ended.

use serde_json::{Value, json};

use toolway_protocol::tool::JsonObject;

/// The response is queued or in progress.
pub fn is_unfinished(response: &JsonObject) -> bool {
    let status = response.get("status").and_then(Value::as_str);
    matches!(status, Some("queued" | "in_progress"))
}

/// A response that was unfinished when its process ended, as it is to be shown.
pub fn interrupted(mut response: JsonObject) -> JsonObject {
    let message =
        "toolway ended before the response was complete; what its tools have done stays done";
    let error = json!({"code": "server_error", "message": message});
    response.insert("status".to_owned(), "failed".into());
    response.insert("error".to_owned(), error);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_not_ended_was_interrupted() {
        for (status, expected) in [
            ("queued", true),
            ("in_progress", true),
            ("completed", false),
            ("cancelled", false),
        ] {
            let response = json!({"status": status}).as_object().unwrap().clone();
            assert_eq!(is_unfinished(&response), expected, "{status}");
            assert!(!is_unfinished(&interrupted(response)));
        }
    }
}
