//! Messages that are nested deeper than the JSON parser reads. Of a list only the entries that are too deep are lost.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

/// The members of a result that list entries which do not depend on each other.
const LISTS: [&str; 4] = ["tools", "prompts", "resources", "resourceTemplates"];

/// Deepest nesting of an entry of a list that is nested too deep as a whole.
const MAX_DEPTH: usize = 100;

/// Stands in a tool that could not be read, with the reason.
pub(super) const UNREADABLE: &str = "toolway/unreadable";

/// Reads a message. Entries of a list that are nested too deep are replaced by something that no list can use.
///
/// # Errors
/// It is not JSON, or something else in it is nested too deep ([`is_too_deep`]).
pub fn read_message(text: &[u8]) -> serde_json::Result<Value> {
    match serde_json::from_slice(text) {
        Err(error) if is_too_deep(&error) => without_deep_entries(text).ok_or(error),
        read => read,
    }
}

/// It is JSON as far as it was read, but nested deeper than the parser reads.
pub fn is_too_deep(error: &serde_json::Error) -> bool {
    // serde_json has no other way to tell.
    error.to_string().starts_with("recursion limit exceeded")
}

type RawMembers<'a> = BTreeMap<String, &'a RawValue>;

fn without_deep_entries(text: &[u8]) -> Option<Value> {
    let mut message: RawMembers<'_> = serde_json::from_slice(text).ok()?;
    let result = message.remove("result")?;
    let result: RawMembers<'_> = serde_json::from_str(result.get()).ok()?;
    let member = |(name, raw): (String, &RawValue)| {
        let value = match LISTS.contains(&name.as_str()) {
            true => read_list(raw, &name)?,
            false => serde_json::from_str(raw.get()).ok()?,
        };
        Some((name, value))
    };
    let result: Option<serde_json::Map<_, _>> = result.into_iter().map(member).collect();
    let envelope = message
        .into_iter()
        .map(|(name, raw)| Some((name, serde_json::from_str(raw.get()).ok()?)));
    let mut whole: serde_json::Map<String, Value> = envelope.collect::<Option<_>>()?;
    whole.insert("result".to_owned(), Value::Object(result?));
    Some(Value::Object(whole))
}

fn read_list(list: &RawValue, name: &str) -> Option<Value> {
    let entries: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let read = |entry: &RawValue| {
        let value = serde_json::from_str(entry.get()).ok();
        let value = value.filter(|value| depth(value) <= MAX_DEPTH);
        value.unwrap_or_else(|| unreadable(entry, name))
    };
    Some(entries.into_iter().map(read).collect())
}

/// Takes the place of an entry.
fn unreadable(entry: &RawValue, list: &str) -> Value {
    #[derive(Deserialize)]
    struct NameMember {
        name: String,
    }
    if list != "tools" {
        return Value::Null;
    }
    let why = format!("it is nested more than {MAX_DEPTH} levels deep");
    let mut tool = json!({UNREADABLE: why});
    if let Ok(NameMember { name }) = serde_json::from_str(entry.get()) {
        tool["name"] = name.into();
    }
    tool
}

/// The deepest nesting of objects and arrays. The parser bounds how deep this recurses.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}{}", "[".repeat(levels), "]".repeat(levels))
    }

    fn read(text: &str) -> serde_json::Result<Value> {
        read_message(text.as_bytes())
    }

    #[test]
    fn of_a_list_only_the_deep_entry_is_lost() {
        let deep = nested(240);
        let read = read(&format!(
            r#"{{"id":1,"result":{{"nextCursor":"2","tools":[{{"name":"a","x":{deep}}},{{"name":"b"}},{{"x":{deep}}}]}}}}"#
        ));
        let why = "it is nested more than 100 levels deep";
        let expected = json!({"id": 1, "result": {"nextCursor": "2", "tools": [
            {"name": "a", UNREADABLE: why}, {"name": "b"}, {UNREADABLE: why},
        ]}});
        assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn an_entry_near_the_bound_goes_as_well_so_that_it_can_be_written_and_read_again() {
        let text = |levels| {
            let (deep, other) = (nested(200), nested(levels));
            format!(r#"{{"result":{{"prompts":[{deep},{other}]}}}}"#)
        };
        let kept = |levels| !read(&text(levels)).unwrap()["result"]["prompts"][1].is_null();
        assert!(kept(MAX_DEPTH));
        assert!(!kept(MAX_DEPTH + 1));
    }

    #[test]
    fn elsewhere_too_much_depth_is_an_error_of_its_own() {
        let deep = nested(200);
        for text in [
            format!(r#"{{"id":1,"result":{{"content":{deep}}}}}"#),
            format!(r#"{{"id":1,"method":"x","params":{deep}}}"#),
            deep,
        ] {
            assert!(is_too_deep(&read(&text).unwrap_err()), "{text}");
        }
        assert!(!is_too_deep(&read("{").unwrap_err()));
        assert_eq!(read("{}").unwrap(), json!({}));
    }

    #[test]
    fn a_hundred_thousand_levels_do_not_overflow_the_stack() {
        let text = format!(r#"{{"result":{{"tools":[{{"x":{}}}]}}}}"#, nested(100_000));
        assert!(read(&text).is_ok());
    }
}
