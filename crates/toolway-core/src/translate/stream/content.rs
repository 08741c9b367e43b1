//! `content` in whatever shape: a text, a list of parts with thoughts among them, or nothing.

use serde_json::Value;

/// What a `content` member says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MessageContent {
    /// The text; `None` where the member was absent or null.
    pub text: Option<String>,
    /// Thoughts among the parts (Mistral).
    pub reasoning: String,
}

impl MessageContent {
    /// Reads a text, a list of parts, or one part. What is neither is nothing.
    pub(crate) fn read(value: Value) -> MessageContent {
        match value {
            Value::String(text) => MessageContent {
                text: Some(text),
                reasoning: String::new(),
            },
            Value::Array(_) | Value::Object(_) => {
                let mut content = MessageContent {
                    text: Some(String::new()),
                    reasoning: String::new(),
                };
                content.add(&value, false);
                content
            }
            Value::Number(_) | Value::Bool(_) => MessageContent {
                text: Some(value.to_string()),
                reasoning: String::new(),
            },
            Value::Null => MessageContent::default(),
        }
    }

    /// Puts back the `<think>` that stood in the prompt, before a `</think>` that nothing opens. Only for a
    /// text that is whole.
    pub(crate) fn open_thoughts(&mut self) {
        if let Some(text) = &mut self.text
            && !text.contains("<think>")
            && text.contains("</think>")
        {
            text.insert_str(0, "<think>");
        }
    }

    fn add(&mut self, value: &Value, thinking: bool) {
        match value {
            Value::String(text) if thinking => self.reasoning.push_str(text),
            Value::String(text) => self.text.get_or_insert_default().push_str(text),
            Value::Array(parts) => parts.iter().for_each(|part| self.add(part, thinking)),
            Value::Object(part) => {
                let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
                let thinking = thinking || matches!(kind, "thinking" | "reasoning");
                let said = ["text", "thinking", "reasoning", "content"];
                if let Some(said) = said.iter().find_map(|key| part.get(*key)) {
                    self.add(said, thinking);
                }
            }
            _ => {}
        }
    }
}

/// The elements of a list, or the one thing that stands in its place.
pub(crate) fn elements(value: Value) -> impl Iterator<Item = Value> {
    match value {
        Value::Array(elements) => elements,
        Value::Null => Vec::new(),
        one => vec![one],
    }
    .into_iter()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(given: Value, text: Option<&str>, reasoning: &str) {
        let content = MessageContent::read(given);
        assert_eq!(
            (content.text.as_deref(), content.reasoning.as_str()),
            (text, reasoning)
        );
    }

    #[test]
    fn a_text_stays() {
        check(json!("a"), Some("a"), "");
        check(json!(""), Some(""), "");
        check(json!(null), None, "");
    }

    #[test]
    fn parts_are_joined_and_thoughts_split_off() {
        check(
            json!([{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"a"},"b"]),
            Some("ab"),
            "hm",
        );
        check(json!({"type":"text","text":"a"}), Some("a"), "");
        check(json!([{"type":"image_url","image_url":{}}]), Some(""), "");
        check(json!([]), Some(""), "");
    }
}
