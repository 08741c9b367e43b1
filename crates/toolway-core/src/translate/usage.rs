//! Token counts: summed over the rounds of an answer.

use std::sync::LazyLock;

use memchr::memmem::FinderRev;
use serde::Deserialize;
use serde_json::{Number, Value};

use toolway_protocol::tool::JsonObject;

/// How much of a body is looked through for its usage, in bytes.
const TAIL: usize = 2048;

/// The key of the counts. Made once, since that takes longer than to search the end of a body.
static USAGE: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new(b"\"usage\""));

/// Adds every count of `b` to `a`, in nested objects too. What is missing or null counts as 0, and what is
/// not a number is taken from the later of the two.
pub fn add(a: &mut JsonObject, b: &JsonObject) {
    for (key, value) in b {
        match (a.get_mut(key), value) {
            (Some(Value::Object(a)), Value::Object(b)) => add(a, b),
            (Some(Value::Number(a)), Value::Number(b)) => *a = sum(a, b),
            (Some(_), Value::Null) => {}
            (Some(a), b) => *a = b.clone(),
            (None, b) => {
                a.insert(key.clone(), b.clone());
            }
        }
    }
}

/// The two counts that people ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Counts {
    /// Tokens of the question.
    #[serde(default)]
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer.
    #[serde(default)]
    pub completion_tokens: Option<u64>,
}

/// The counts of a usage object.
pub fn counts(usage: &JsonObject) -> Counts {
    let count = |key| usage.get(key).and_then(Value::as_u64);
    Counts {
        prompt_tokens: count("prompt_tokens"),
        completion_tokens: count("completion_tokens"),
    }
}

/// The counts of a plain answer that is not read: `usage` stands near the end of its body. Within a text of the answer
/// the quotes would be escaped.
pub fn counts_in(body: &[u8]) -> Counts {
    let end = body.get(body.len().saturating_sub(TAIL)..).unwrap_or(body);
    let value = USAGE.rfind(end).and_then(|at| {
        end.get(at + USAGE.needle().len()..)?
            .trim_ascii_start()
            .strip_prefix(b":")
    });
    let mut values = serde_json::Deserializer::from_slice(value.unwrap_or_default()).into_iter();
    values.next().and_then(Result::ok).unwrap_or_default()
}

/// Fills in the three totals that the contract requires.
pub fn complete(usage: &mut JsonObject) {
    let mut count = |key: &str, otherwise: u64| {
        let number = usage.get(key).and_then(Value::as_u64);
        if number.is_none() && !usage.get(key).is_some_and(Value::is_number) {
            usage.insert(key.to_owned(), otherwise.into());
        }
        number.unwrap_or(otherwise)
    };
    let prompt = count("prompt_tokens", 0);
    let completion = count("completion_tokens", 0);
    count("total_tokens", prompt.saturating_add(completion));
}

fn sum(a: &Number, b: &Number) -> Number {
    if let (Some(a), Some(b)) = (a.as_u64(), b.as_u64()) {
        return a.saturating_add(b).into();
    }
    let float = a.as_f64().unwrap_or(0.0) + b.as_f64().unwrap_or(0.0);
    Number::from_f64(float).unwrap_or_else(|| 0.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> JsonObject {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_counts_of_a_body_are_those_at_its_end() {
        let read = |body: &str| {
            let Counts {
                prompt_tokens,
                completion_tokens,
            } = counts_in(body.as_bytes());
            (prompt_tokens, completion_tokens)
        };
        let choices = r#""choices":[{"message":{"content":"\"usage\": {\"prompt_tokens\": 9}"}}]"#;
        let usage = r#""usage" : {"prompt_tokens":1,"completion_tokens":2,"x":{}}"#;
        let both = (Some(1), Some(2));
        assert_eq!(read(&format!("{{{choices},{usage},\"a\":1}}")), both);
        assert_eq!(read(&format!("{{{usage},{choices}}}")), both);
        for none in [
            "",
            "{}",
            r#""usage""#,
            r#""usage":"#,
            r#""usage":null"#,
            choices,
        ] {
            assert_eq!(read(none), (None, None), "{none}");
        }
        let long = "x".repeat(3000);
        assert_eq!(read(&format!(r#"{{"a":"{long}",{usage}}}"#)), both);
    }

    #[track_caller]
    fn check(a: &str, b: &str, expected: &str) {
        let mut a = object(a);
        add(&mut a, &object(b));
        assert_eq!(a, object(expected));
    }

    #[test]
    fn counts_are_summed_at_every_depth() {
        check(
            r#"{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}"#,
            r#"{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":20,"audio_tokens":5}}"#,
            r#"{"prompt_tokens":11,"prompt_tokens_details":{"cached_tokens":22,"audio_tokens":5}}"#,
        );
    }

    #[test]
    fn what_is_missing_or_null_is_zero() {
        check(r#"{"a":1}"#, r#"{"b":2}"#, r#"{"a":1,"b":2}"#);
        check(
            r#"{"a":1,"b":null}"#,
            r#"{"a":null,"b":2}"#,
            r#"{"a":1,"b":2}"#,
        );
        check(r#"{"a":null}"#, r#"{"a":{"b":2}}"#, r#"{"a":{"b":2}}"#);
    }

    #[test]
    fn fractions_and_texts_do_not_break_it() {
        check(
            r#"{"cost":0.5,"tier":"a"}"#,
            r#"{"cost":0.25,"tier":"b"}"#,
            r#"{"cost":0.75,"tier":"b"}"#,
        );
        check(
            r#"{"a":18446744073709551615}"#,
            r#"{"a":1}"#,
            r#"{"a":18446744073709551615}"#,
        );
    }

    #[test]
    fn the_totals_are_filled_in() {
        let mut usage = object(r#"{"prompt_tokens":10}"#);
        complete(&mut usage);
        assert_eq!(
            usage,
            object(r#"{"prompt_tokens":10,"completion_tokens":0,"total_tokens":10}"#)
        );
    }
}
