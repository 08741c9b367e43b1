//! OpenAI's words on the wire. Unknown fields are kept, and nothing is decided here.

use serde::{Deserialize, Serialize};

pub mod error;
pub mod request;

pub use self::error::ErrorBody;

/// Why a model stopped: the five values that OpenAI's contract has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// It said what it had to say.
    Stop,
    /// It ran into the limit on tokens; what it said is cut off.
    Length,
    /// It wants tools to be called.
    ToolCalls,
    /// A filter took the rest away.
    ContentFilter,
    /// The deprecated form of [`FinishReason::ToolCalls`].
    FunctionCall,
}

impl FinishReason {
    /// The value on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::ContentFilter => "content_filter",
            FinishReason::FunctionCall => "function_call",
        }
    }

    /// The value that is exactly one of the five.
    pub fn parse(text: &str) -> Option<FinishReason> {
        Some(match text {
            "stop" => FinishReason::Stop,
            "length" => FinishReason::Length,
            "tool_calls" => FinishReason::ToolCalls,
            "content_filter" => FinishReason::ContentFilter,
            "function_call" => FinishReason::FunctionCall,
            _ => return None,
        })
    }

    /// What other providers call the same: `STOP`, `end_turn`, `max_tokens`, `tool_use` and so on.
    /// An unknown reason is a stop. [`is_no_reason`] and [`is_failure`] are to be asked before.
    pub fn from_foreign(text: &str) -> FinishReason {
        let text = text.trim().to_ascii_lowercase().replace(['-', ' '], "_");
        if let Some(own) = FinishReason::parse(&text) {
            return own;
        }
        match text.as_str() {
            "max_tokens"
            | "max_token"
            | "max_output_tokens"
            | "max_length"
            | "max_new_tokens"
            | "length_limit"
            | "token_limit"
            | "model_length"
            | "model_context_window_exceeded"
            | "context_length_exceeded"
            | "incomplete" => FinishReason::Length,
            "tool_use" | "tool_call" | "toolcalls" | "tooluse" | "tools" => FinishReason::ToolCalls,
            "function" | "functioncall" => FinishReason::FunctionCall,
            "safety"
            | "content_filtered"
            | "contentfilter"
            | "filtered"
            | "recitation"
            | "refusal"
            | "blocklist"
            | "prohibited_content"
            | "spii"
            | "image_safety"
            | "sensitive"
            | "guardrail_intervened"
            | "moderation" => FinishReason::ContentFilter,
            _ => FinishReason::Stop,
        }
    }
}

/// A finish reason that says as much as none: whether the answer is complete is for the answer to show.
pub fn is_no_reason(finish_reason: &str) -> bool {
    matches!(
        finish_reason.trim().to_ascii_lowercase().as_str(),
        "" | "null" | "none" | "abort" | "aborted"
    )
}

/// A finish reason that says that the answer failed, which no value of OpenAI's can say.
pub fn is_failure(finish_reason: &str) -> bool {
    matches!(
        finish_reason.trim().to_ascii_lowercase().as_str(),
        "error"
            | "failed"
            | "failure"
            | "internal_error"
            | "server_error"
            | "network_error"
            | "engine_overloaded"
            | "malformed_function_call"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &str, expected: &str) {
        assert_eq!(
            FinishReason::from_foreign(given).as_str(),
            expected,
            "{given}"
        );
    }

    #[test]
    fn the_five_stay_as_they_are() {
        for own in [
            "stop",
            "length",
            "tool_calls",
            "content_filter",
            "function_call",
        ] {
            check(own, own);
            assert_eq!(
                FinishReason::parse(own).map(FinishReason::as_str),
                Some(own)
            );
        }
    }

    #[test]
    fn foreign_words_are_mapped() {
        check("STOP", "stop");
        check("end_turn", "stop");
        check("eos", "stop");
        check("MAX_TOKENS", "length");
        check("tool_use", "tool_calls");
        check("tool-calls", "tool_calls");
        check("SAFETY", "content_filter");
        check("whatever", "stop");
    }

    #[test]
    fn an_error_is_no_finish() {
        assert!(is_failure("error"));
        assert!(is_failure("MALFORMED_FUNCTION_CALL"));
        assert!(!is_failure("stop"));
        assert!(is_no_reason(" NULL") && is_no_reason("abort"));
        assert!(!is_no_reason("stop"));
    }
}
