//! What a program that was run for a call wrote, as a tool's result.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::Value;

use super::{output, webhook::plain_text};
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    tool::{Content, ToolResult},
};

/// Reads the standard output of a program that ended well: JSON like any answer of a function, else text.
/// The line end at its end is none of it. What is no text is a file.
pub fn read_output(function: &str, stdout: Vec<u8>) -> ToolResult {
    let text = match String::from_utf8(stdout) {
        Ok(text) => text,
        Err(error) => {
            let file = Content::BlobResource {
                uri: output::attachment(function),
                mime_type: None,
                blob: BASE64.encode(error.as_bytes()),
            };
            return ToolResult {
                content: vec![file],
                ..ToolResult::default()
            };
        }
    };
    let text = text.trim_end_matches(['\r', '\n']);
    if check_values(text.as_bytes(), MAX_VALUES).is_err() {
        return ToolResult::text(text);
    }
    match serde_json::from_str::<Value>(text) {
        Ok(value) => output::read(value),
        Err(_) if text.is_empty() => ToolResult::default(),
        Err(_) => ToolResult::text(text),
    }
}

/// A program that failed: how it ended, and the first plain sentence of what it says about it.
pub fn failure(ended: &str, stderr: &[u8], stdout: &[u8]) -> ToolResult {
    let said = [stderr, stdout]
        .into_iter()
        .find_map(|bytes| plain_text(&String::from_utf8_lossy(bytes)));
    output::failure(match said {
        Some(said) => format!("the command failed ({ended}): {said}"),
        None => format!("the command failed ({ended})"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(stdout: &str, result: &ToolResult) {
        assert_eq!(read_output("f", stdout.as_bytes().to_vec()), *result);
    }

    #[test]
    fn json_is_read_and_all_else_is_text() {
        check("hello\nworld\n\r\n", &ToolResult::text("hello\nworld"));
        check("{\"a\": 1}\n", &output::structured(json!({"a": 1})));
        check("\"a\"", &ToolResult::text("a"));
        check("{\"error\": \"no\"}", &output::read(json!({"error": "no"})));
        check("\n", &ToolResult::default());
        check("", &ToolResult::default());
        check("{\"a\": 1} {}", &ToolResult::text("{\"a\": 1} {}"));
    }

    #[test]
    fn what_is_no_text_is_a_file() {
        let result = read_output("f", vec![0xff, 0]);
        let file = Content::BlobResource {
            uri: "attachment:f".into(),
            mime_type: None,
            blob: "/wA=".into(),
        };
        assert_eq!(result.content, [file]);
    }

    #[test]
    fn a_failure_says_why_in_a_sentence() {
        let check = |stderr: &str, stdout: &str, said: &str| {
            let result = failure("exit status: 3", stderr.as_bytes(), stdout.as_bytes());
            assert_eq!(
                result,
                output::failure(format!("the command failed (exit status: 3){said}"))
            );
        };
        check("boom\nmore", "x", ": boom");
        check(
            "Traceback (most recent call last):\n  File \"a.py\"\nValueError: bad\n",
            "",
            ": ValueError: bad",
        );
        check("", "no such city\n", ": no such city");
        check("", "", "");
    }
}
