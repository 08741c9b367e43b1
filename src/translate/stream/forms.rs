//! The forms of tool calls in plain text.
