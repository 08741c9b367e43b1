//! The loop guard: a call that failed twice in the same way with the same arguments is not sent again.

use std::collections::HashMap;

use serde_json::{Value, json};

/// How often a call may fail in the same way before it is stopped.
const MAX_SAME_FAILURES: u32 = 2;

/// The failures of one request, by the call's name and arguments.
#[derive(Debug, Default)]
pub struct Repeats {
    failures: HashMap<(String, String), RepeatedFailure>,
}

#[derive(Debug)]
struct RepeatedFailure {
    text: String,
    times: u32,
}

impl Repeats {
    /// Notes that a call failed and what the model was told.
    pub fn failed(&mut self, name: &str, arguments: &str, text: &str) {
        let failure = self
            .failures
            .entry((name.to_owned(), arguments.to_owned()))
            .or_insert_with(|| RepeatedFailure {
                text: text.to_owned(),
                times: 0,
            });
        if failure.text == text {
            failure.times += 1;
        } else {
            *failure = RepeatedFailure {
                text: text.to_owned(),
                times: 1,
            };
        }
    }

    /// What to tell the model instead of sending the call; `None` when it may be sent.
    pub fn stops(&self, name: &str, arguments: &str) -> Option<String> {
        let failure = self
            .failures
            .get(&(name.to_owned(), arguments.to_owned()))?;
        if failure.times < MAX_SAME_FAILURES {
            return None;
        }
        let mut answer: Value = serde_json::from_str(&failure.text).unwrap_or_default();
        if !answer["error"].is_object() {
            answer = json!({"error": {"type": "tool_error", "message": failure.text}});
        }
        answer["error"]["note"] = json!(format!(
            "not sent again: this call failed {} times in the same way with the same arguments",
            failure.times
        ));
        answer["error"]["retryable"] = json!(false);
        Some(answer.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = r#"{"error":{"type":"tool_error","message":"no"}}"#;

    #[test]
    fn the_second_identical_failure_stops_the_call() {
        let mut repeats = Repeats::default();
        repeats.failed("a", "{}", FAILED);
        assert!(repeats.stops("a", "{}").is_none());
        repeats.failed("a", "{}", FAILED);
        assert!(
            repeats
                .stops("a", "{}")
                .is_some_and(|text| text.contains("not sent again"))
        );
    }

    #[test]
    fn a_failure_of_any_form_can_be_told_again() {
        for text in ["no", "5", "[1]", "\"no\"", r#"{"error": "no"}"#] {
            let mut repeats = Repeats::default();
            repeats.failed("a", "{}", text);
            repeats.failed("a", "{}", text);
            let told: Value = serde_json::from_str(&repeats.stops("a", "{}").unwrap()).unwrap();
            assert_eq!(told["error"]["message"], text);
            assert_eq!(told["error"]["retryable"], false);
        }
    }

    #[test]
    fn other_arguments_and_other_failures_are_other_calls() {
        let mut repeats = Repeats::default();
        repeats.failed("a", "{}", FAILED);
        repeats.failed("a", "{}", "something else");
        repeats.failed("a", "{\"x\":1}", FAILED);
        assert!(repeats.stops("a", "{}").is_none());
        assert!(repeats.stops("a", "{\"x\":1}").is_none());
    }
}
