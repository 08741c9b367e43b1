//! The text of a document, JSON or YAML, as one kind of value.
//!
//! YAML lets a few lines stand for gigabytes, by anchors that hold anchors. The value is therefore counted
//! while it is built, and the parser itself repeats no part of a text more often than a hundred times its
//! length. Keys that are no texts, as in `200:`, become texts, and `<<` merges as everybody expects.

use std::{cell::Cell, fmt};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::MAX_DOCUMENT;

/// Most room that a document may take when its aliases are written out, in bytes, roughly.
const MAX_EXPANDED: usize = 4 * MAX_DOCUMENT;

/// Most brackets of a YAML document that are open at one place, those in its texts counted as well.
const MAX_OPEN: usize = 4096;

/// What a value costs besides its text.
const VALUE: usize = 32;

/// Reads a document's text: JSON if it begins with `{` or `[`, else YAML. The error says what is wrong
/// and where.
pub fn parse(text: &str) -> Result<Value, String> {
    let text = text.trim_start_matches('\u{feff}');
    if text.len() > MAX_DOCUMENT {
        return Err(format!("it is longer than {} MiB", MAX_DOCUMENT >> 20));
    }
    if text.trim_start().starts_with(['{', '[']) {
        return serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"));
    }
    if is_nested_beyond_reason(text) {
        return Err("it is no YAML that can be read: its brackets are nested too deep".to_owned());
    }
    let room = Cell::new(MAX_EXPANDED);
    let document = serde_yaml_ng::Deserializer::from_str(text);
    let value = Counted { room: &room }.deserialize(document);
    value.map_err(|error| format!("it is no YAML: {error}"))
}

/// More brackets are open than any document has. The YAML parser looks at all of them for each word, and it
/// refuses depth only after it has read everything.
fn is_nested_beyond_reason(text: &str) -> bool {
    let mut open = 0_usize;
    text.bytes().any(|byte| {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > MAX_OPEN
    })
}

/// Builds a value for as long as there is room.
#[derive(Clone, Copy)]
struct Counted<'r> {
    room: &'r Cell<usize>,
}

impl Counted<'_> {
    fn spend<E: de::Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.room.get().checked_sub(VALUE + bytes);
        let left = left.ok_or_else(|| {
            let most = MAX_EXPANDED >> 20;
            E::custom(format!(
                "with its aliases written out it takes more than {most} MiB"
            ))
        })?;
        self.room.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what JSON has, too")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        self.spend(0).map(|()| Value::Null)
    }

    fn visit_bool<E: de::Error>(self, it: bool) -> Result<Value, E> {
        self.spend(0).map(|()| it.into())
    }

    fn visit_i64<E: de::Error>(self, it: i64) -> Result<Value, E> {
        self.spend(0).map(|()| it.into())
    }

    fn visit_u64<E: de::Error>(self, it: u64) -> Result<Value, E> {
        self.spend(0).map(|()| it.into())
    }

    fn visit_f64<E: de::Error>(self, it: f64) -> Result<Value, E> {
        self.spend(0)?;
        Ok(Number::from_f64(it).map_or_else(|| it.to_string().into(), Value::Number))
    }

    fn visit_str<E: de::Error>(self, it: &str) -> Result<Value, E> {
        self.spend(it.len()).map(|()| it.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.spend(0)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        self.spend(0)?;
        let mut map = Map::new();
        let mut merged = Vec::new();
        while let Some(key) = members.next_key_seed(self)? {
            let value = members.next_value_seed(self)?;
            match key {
                Value::String(key) if key == "<<" => merged.push(value),
                Value::String(key) => _ = map.insert(key, value),
                Value::Array(_) | Value::Object(_) => {
                    return Err(de::Error::custom("a key is a list or a mapping"));
                }
                other => _ = map.insert(other.to_string(), value),
            }
        }
        for value in merged {
            merge(&mut map, value);
        }
        Ok(Value::Object(map))
    }
}

/// What is there already is kept.
fn merge(map: &mut Map<String, Value>, from: Value) {
    match from {
        Value::Object(members) => {
            for (key, value) in members {
                map.entry(key).or_insert(value);
            }
        }
        Value::Array(several) => several.into_iter().for_each(|one| merge(map, one)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_and_json_say_the_same() {
        let expected = json!({"openapi": "3.1.0", "a": [1, 2.5, true, null, "x"]});
        let yaml = "openapi: 3.1.0\na:\n  - 1\n  - 2.5\n  - true\n  -\n  - x\n";
        assert_eq!(parse(yaml), Ok(expected.clone()));
        assert_eq!(parse(&format!("\u{feff} {expected}")), Ok(expected));
    }

    #[test]
    fn keys_become_texts_and_aliases_are_written_out() {
        let yaml = "base: &base {a: 1, b: 2}\nmore:\n  <<: *base\n  b: 3\n200: ok\ntrue: yes\n";
        assert_eq!(
            parse(yaml),
            Ok(json!({
                "base": {"a": 1, "b": 2}, "more": {"b": 3, "a": 1}, "200": "ok", "true": "yes"
            }))
        );
    }

    #[test]
    fn what_is_neither_is_refused_with_the_place() {
        for (text, start) in [
            ("{\"a\": }", "it is no JSON: expected value at line 1"),
            ("a: [1", "it is no YAML: "),
            ("? [a]\n: b", "it is no YAML: a key is a list or a mapping"),
            ("a: !thing b", "it is no YAML: "),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.starts_with(start), "{text}: {why}");
        }
    }

    #[test]
    fn a_bomb_of_aliases_is_refused_before_it_goes_off() {
        let mut yaml = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{}", level - 1);
            let all = vec![before; 10].join(", ");
            yaml.push_str(&format!("a{level}: &a{level} [{all}]\n"));
        }
        let why = parse(&yaml).unwrap_err();
        assert!(why.contains("repetition limit"), "{why}");
        // What the parser itself lets through is counted.
        let long = "x".repeat(1 << 20);
        let yaml = format!("a: &a {long}\nb: [{}]\n", vec!["*a"; 130].join(", "));
        let why = parse(&yaml).unwrap_err();
        assert!(why.contains("takes more than 128 MiB"), "{why}");
    }

    #[test]
    fn depth_is_bounded() {
        let deep = format!("a: {}1{}", "[".repeat(500), "]".repeat(500));
        assert!(parse(&deep).is_err());
    }

    #[test]
    fn brackets_without_end_are_refused_at_once() {
        let why = parse(&format!("a: {}", "[".repeat(1_000_000))).unwrap_err();
        assert!(why.contains("brackets"), "{why}");
    }
}
