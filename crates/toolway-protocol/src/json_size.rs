//! The size of a JSON text, counted before any value is built from it.
//!
//! Values in memory take up to a hundred times the bytes of a dense text such as `[{"a":0},…]`, so texts from
//! outside are bounded in values as well as in bytes. Nothing here allocates.

use memchr::memchr2;

/// Most values of one text that is read: about 150 MB once they are built.
pub const MAX_VALUES: usize = 500_000;

/// What one value takes in memory, in bytes: an estimate for texts with many small objects.
pub const BYTES_PER_VALUE: usize = 256;

/// How much a JSON text holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JsonSize {
    /// Objects, arrays, strings, numbers, booleans and nulls, without the keys of objects.
    pub values: usize,
    /// The deepest nesting of objects and arrays.
    pub depth: usize,
}

impl JsonSize {
    /// As a bound: as many values as any text may have, nested so deep.
    pub fn up_to_depth(depth: usize) -> JsonSize {
        JsonSize {
            values: MAX_VALUES,
            depth,
        }
    }
}

/// A text has more values than may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {0} JSON values")]
pub struct TooManyValues(pub usize);

/// Counts the values of a text and how deep they are nested.
///
/// The text need not be JSON: the result is then of no use, but this ends and does not panic.
pub fn measure(text: &[u8]) -> JsonSize {
    let mut values = usize::from(!text.is_empty());
    let (mut depth, mut deepest) = (0_usize, 0);
    // Nothing but space has come since an object or array was opened.
    let mut is_empty = false;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => {}
            b'{' | b'[' => {
                values += 1;
                depth += 1;
                deepest = deepest.max(depth);
                is_empty = true;
            }
            b'}' | b']' => {
                values -= usize::from(is_empty);
                depth = depth.saturating_sub(1);
                is_empty = false;
            }
            b',' => values += 1,
            b'"' => {
                at = after_string(text, at);
                is_empty = false;
            }
            _ => is_empty = false,
        }
    }
    JsonSize {
        values,
        depth: deepest,
    }
}

/// Refuses a text with more than `max` values. Short texts cost nothing.
///
/// # Errors
/// [`TooManyValues`], with the bound.
pub fn check_values(text: &[u8], max: usize) -> Result<(), TooManyValues> {
    // Every value has a byte of its own and one that parts it from the next.
    if text.len() / 2 < max || measure(text).values <= max {
        return Ok(());
    }
    Err(TooManyValues(max))
}

/// Where the string that begins at `at` (after its quote) has ended.
fn after_string(text: &[u8], mut at: usize) -> usize {
    while let Some(rest) = text.get(at..) {
        match memchr2(b'"', b'\\', rest) {
            None => return text.len(),
            Some(step) if rest[step] == b'"' => return at + step + 1,
            Some(step) => at += step + 2,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[track_caller]
    fn check(text: &str, values: usize, depth: usize) {
        assert_eq!(
            measure(text.as_bytes()),
            JsonSize { values, depth },
            "{text}"
        );
    }

    #[test]
    fn every_value_counts_and_keys_do_not() {
        check("1", 1, 0);
        check("{}", 1, 1);
        check("[ ]", 1, 1);
        check("[1, 2]", 3, 1);
        check(r#"{"a":[{}]}"#, 3, 3);
        check(r#"[{"a":0},{"a":0}]"#, 5, 2);
        check("[[],[],[[]]]", 5, 3);
    }

    #[test]
    fn brackets_and_commas_in_strings_do_not_count() {
        check(r#""[[[[,,""#, 1, 0);
        check(r#"["\"[[", "\\", []]"#, 4, 2);
    }

    #[test]
    fn a_text_that_is_no_json_does_no_harm() {
        for text in ["", "]]]}[", r#"["abc\"#, r#"""#, "[[[[", ",,,,", "{]}"] {
            measure(text.as_bytes());
        }
    }

    #[test]
    fn a_text_at_the_bound_is_taken_and_one_above_is_not() {
        let list = |items: usize| format!("[{}]", vec!["0"; items].join(","));
        assert_eq!(check_values(list(9).as_bytes(), 10), Ok(()));
        let refused = check_values(list(10).as_bytes(), 10);
        assert_eq!(refused, Err(TooManyValues(10)));
    }

    fn count(value: &Value) -> JsonSize {
        let parts: Vec<JsonSize> = match value {
            Value::Array(list) => list.iter().map(count).collect(),
            Value::Object(object) => object.values().map(count).collect(),
            _ => {
                return JsonSize {
                    values: 1,
                    depth: 0,
                };
            }
        };
        JsonSize {
            values: 1 + parts.iter().map(|part| part.values).sum::<usize>(),
            depth: 1 + parts.iter().map(|part| part.depth).max().unwrap_or(0),
        }
    }

    proptest! {
        #[test]
        fn counting_a_text_counts_its_values(value in any_value(), pretty: bool) {
            let text = match pretty {
                true => serde_json::to_string_pretty(&value),
                false => serde_json::to_string(&value),
            };
            let text = text.unwrap();
            prop_assert_eq!(measure(text.as_bytes()), count(&value));
            // What lets short texts through unread.
            prop_assert!(count(&value).values <= text.len().div_ceil(2));
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            r#"[a\[\]{},:"\\\n]{0,6}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 6, |inner| {
            let key = r#"[a\[{,"\\]{0,3}"#;
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }
}
