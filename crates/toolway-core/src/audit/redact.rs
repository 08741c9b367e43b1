//! What a record keeps of arguments and results, where the configuration asks for it: without values under names of
//! secrets, without the secrets of the configuration, and of a bounded length.
//!
//! A password in the middle of a sentence is not found.

use serde_json::Value;

/// What stands in the place of a secret.
const REDACTED: &str = "[redacted]";

/// Parts of names, in lower case and without `_` and `-`, whose values are secrets.
const NAMES: [&str; 10] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "apikey",
    "authorization",
    "credential",
    "privatekey",
    "accesskey",
    "cookie",
];

/// Longest text that is read as JSON, in bytes.
const MAX_JSON: usize = 1 << 20;

/// What is taken out, and how much is kept.
#[derive(Clone, Default)]
pub struct Redaction {
    /// Texts that are taken out wherever they are.
    pub secrets: Vec<String>,
    /// Longest text that is kept, in bytes.
    pub max_bytes: usize,
}

impl Redaction {
    /// A value as JSON, redacted and cut.
    pub fn text(&self, value: &Value) -> String {
        let mut text = self.redacted(value).to_string();
        if text.len() > self.max_bytes {
            let ends = (0..=self.max_bytes).rev();
            let end = ends.into_iter().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or_default());
            text.push('…');
        }
        text
    }

    fn redacted(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.redacted_text(text)),
            Value::Array(items) => items.iter().map(|it| self.redacted(it)).collect(),
            Value::Object(members) => members
                .iter()
                .map(|(name, value)| {
                    let value = match is_secret(name, value) {
                        true => Value::from(REDACTED),
                        false => self.redacted(value),
                    };
                    (self.without_secrets(name), value)
                })
                .collect(),
            other => other.clone(),
        }
    }

    /// Results have JSON within texts, where names mean as much.
    fn redacted_text(&self, text: &str) -> String {
        if text.len() > MAX_JSON {
            return format!("[{} bytes]", text.len());
        }
        if text.trim_start().starts_with(['{', '['])
            && let Ok(inner) = serde_json::from_str::<Value>(text)
        {
            return self.redacted(&inner).to_string();
        }
        self.without_secrets(text)
    }

    fn without_secrets(&self, text: &str) -> String {
        let found = self
            .secrets
            .iter()
            .filter(|secret| text.contains(secret.as_str()));
        found.fold(text.to_owned(), |text, secret| {
            text.replace(secret.as_str(), REDACTED)
        })
    }
}

/// The name says that the value is a secret. A number or a flag with `token` in its name is none (`max_tokens`).
fn is_secret(name: &str, value: &Value) -> bool {
    let plain: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|it| it.to_ascii_lowercase())
        .collect();
    let is_text = !matches!(value, Value::Null | Value::Bool(_) | Value::Number(_));
    NAMES.iter().any(|secret| plain.contains(secret))
        || (plain.contains("token") && is_text)
        || plain == "auth"
        || plain == "bearer"
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn redaction() -> Redaction {
        Redaction {
            secrets: vec!["sk-0123-4567".to_owned()],
            max_bytes: 200,
        }
    }

    #[track_caller]
    fn check(value: &Value, expected: &Value) {
        assert_eq!(redaction().text(value), expected.to_string());
    }

    #[test]
    fn values_under_names_of_secrets_are_taken_out() {
        for name in [
            "password",
            "db_password",
            "X-Api-Key",
            "apiKey",
            "Authorization",
            "access_token",
            "client_secret",
            "auth",
            "Set-Cookie",
        ] {
            check(
                &json!({"a": [{name: {"x": "hunter2"}}]}),
                &json!({"a": [{name: REDACTED}]}),
            );
        }
    }

    #[test]
    fn counts_of_tokens_stay() {
        check(&json!({"max_tokens": 100}), &json!({"max_tokens": 100}));
        check(
            &json!({"author": "x", "path": "/tmp"}),
            &json!({"author": "x", "path": "/tmp"}),
        );
    }

    #[test]
    fn secrets_of_the_configuration_are_taken_out_of_every_text() {
        check(
            &json!({"sk-0123-4567": ["use sk-0123-4567 now"]}),
            &json!({REDACTED: ["use [redacted] now"]}),
        );
    }

    #[test]
    fn json_within_a_text_is_redacted_as_well() {
        let inner = json!({"token": "abc", "n": 1}).to_string();
        let without = json!({"token": REDACTED, "n": 1}).to_string();
        check(
            &json!({"content": [{"type": "text", "text": inner}]}),
            &json!({"content": [{"type": "text", "text": without}]}),
        );
    }

    #[test]
    fn what_is_long_is_cut_at_a_character() {
        let text = redaction().text(&json!("ä".repeat(500)));
        assert!(text.len() <= 200 + '…'.len_utf8(), "{}", text.len());
        assert!(text.ends_with('…'));
    }

    proptest! {
        #[test]
        fn a_secret_never_remains(before in ".{0,300}", after in ".{0,300}", name in "[a-z]{1,8}") {
            let text = redaction().text(&json!({name: format!("{before}sk-0123-4567{after}")}));
            prop_assert!(!text.contains("0123-4567"), "{}", text);
        }
    }
}
