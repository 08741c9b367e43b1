//! A result in a sentence, made by rules and not by a model: how much there is, and how it begins (D-25 of issue 12).

use serde_json::Value;

/// Most entries that are named.
const MAX_NAMED: usize = 5;

/// Most characters of one entry.
const MAX_ENTRY: usize = 60;

/// Members of an object by which it is named.
const NAMES: [&str; 4] = ["name", "title", "id", "key"];

/// A sentence about a result, and the result itself: as a value where it is JSON, else as a text.
pub fn summary(tool: &str, result: &str) -> (String, Value) {
    let data = serde_json::from_str::<Value>(result);
    let Some(data) = data.ok().filter(|it| it.is_object() || it.is_array()) else {
        return (of_text(tool, result), result.into());
    };
    (of_json(tool, &data), data)
}

fn of_text(tool: &str, text: &str) -> String {
    let lines = text.lines().count();
    if lines <= 1 && text.chars().count() <= MAX_ENTRY {
        return format!("{tool} returned: {text}");
    }
    let begin = brief(text.lines().next().unwrap_or_default());
    let bytes = text.len();
    format!("{tool} returned {lines} lines, {bytes} bytes: {begin}")
}

fn of_json(tool: &str, data: &Value) -> String {
    let lists = |object: &serde_json::Map<String, Value>| {
        let mut lists = object.iter();
        lists.find_map(|(name, value)| Some((name.clone(), value.as_array()?.clone())))
    };
    let (what, entries): (String, Vec<String>) = match data {
        Value::Array(list) => ("entries".to_owned(), list.iter().map(named).collect()),
        Value::Object(object) => match lists(object) {
            Some((name, list)) => (name, list.iter().map(named).collect()),
            None => {
                let members = object.iter();
                let members = members.map(|(name, value)| format!("{name} = {}", named(value)));
                ("members".to_owned(), members.collect())
            }
        },
        other => ("values".to_owned(), vec![named(other)]),
    };
    let count = entries.len();
    let shown = entries.iter().take(MAX_NAMED).map(String::as_str);
    let shown: Vec<&str> = shown.collect();
    let more = count.saturating_sub(MAX_NAMED);
    let rest = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match count {
        0 => format!("{tool} returned 0 {what}."),
        _ => format!(
            "{tool} returned {count} {what}: {}{rest}.",
            shown.join(", ")
        ),
    }
}

/// An entry in few words.
fn named(value: &Value) -> String {
    let name = value.as_object().and_then(|object| {
        let mut names = NAMES.iter().filter_map(|name| object.get(*name));
        names.find(|name| name.is_string() || name.is_number())
    });
    match name.unwrap_or(value) {
        Value::String(text) => brief(text),
        other => brief(&other.to_string()),
    }
}

fn brief(text: &str) -> String {
    match text.char_indices().nth(MAX_ENTRY) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(result: &str, expected: &str) {
        assert_eq!(summary("get_orders", result).0, expected);
    }

    #[test]
    fn a_result_is_counted_and_its_first_entries_are_named_d_25() {
        check(
            r#"{"orders":["Order A","Order B"]}"#,
            "get_orders returned 2 orders: Order A, Order B.",
        );
        check(
            "[1,2,3,4,5,6,7]",
            "get_orders returned 7 entries: 1, 2, 3, 4, 5 and 2 more.",
        );
        check(
            r#"[{"id": 7, "x": 1}, {"name": "a"}]"#,
            "get_orders returned 2 entries: 7, a.",
        );
        check(
            r#"{"a": 1, "b": {"c": 2}}"#,
            r#"get_orders returned 2 members: a = 1, b = {"c":2}."#,
        );
        check("[]", "get_orders returned 0 entries.");
        check("12", "get_orders returned: 12");
        check("one\ntwo", "get_orders returned 2 lines, 7 bytes: one");
    }

    #[test]
    fn the_original_stays_readable_d_25() {
        let (_, data) = summary("f", r#"{"orders":[1]}"#);
        assert_eq!(data, json!({"orders": [1]}));
        let long = "é".repeat(100);
        let (short, data) = summary("f", &long);
        assert!(short.chars().count() < 100, "{short}");
        assert_eq!(data, json!(long));
    }
}
