//! Reads tables key by key, so that one wrong key does not hide another; finds the known key nearest to an unknown one.

use std::fmt;

use serde::{Deserialize, de, de::DeserializeOwned, forward_to_deserialize_any};
use toml::{Table, Value};

use super::check::Check;

impl Check<'_> {
    /// Reads a table of all-optional fields; each key that is unknown or of a wrong type is a problem of
    /// its own and is then left out.
    pub(super) fn table<T: DeserializeOwned + Default>(&mut self, path: &str, table: Table) -> T {
        let mut good = Table::new();
        for (key, value) in table {
            let one = Table::from_iter([(key.clone(), value.clone())]);
            match T::deserialize(one) {
                Ok(_) => _ = good.insert(key, value),
                Err(error) => self.wrong_key::<T>(path, &key, &error),
            }
        }
        T::deserialize(good).unwrap_or_default()
    }

    fn wrong_key<'de, T: Deserialize<'de>>(
        &mut self,
        path: &str,
        key: &str,
        error: &toml::de::Error,
    ) {
        let known = fields_of::<T>();
        if known.contains(&key) {
            let path = join(path, &deepest(error).unwrap_or_else(|| key.to_owned()));
            self.problem(path, in_plain_words(error.message()));
        } else {
            self.problem(join(path, key), unknown_key(key, known));
        }
    }

    /// A value that must be a table.
    pub(super) fn expect_table(&mut self, path: &str, value: Value) -> Option<Table> {
        match value {
            Value::Table(table) => Some(table),
            other => {
                self.problem(path, format_args!("must be a table, not {}", kind(&other)));
                None
            }
        }
    }
}

/// The message for a key that is not in `known`.
fn unknown_key(key: &str, known: &[&str]) -> String {
    if key == "mcpServers" {
        return "servers stand under `[servers.NAME]` here; a file of another client is given with `--mcp`".into();
    }
    unknown("key", key, known)
}

/// The message for a word that is not in `known`.
pub(super) fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("unknown {what} `{word}`; did you mean `{near}`?"),
        None => format!("unknown {what} `{word}`; known are {}", known.join(", ")),
    }
}

/// The known word that is a few typing errors away from `word`.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    known
        .iter()
        .map(|k| (distance(&word, k), *k))
        .filter(|(distance, k)| *distance <= 1 + k.len().min(word.len()) / 4)
        .min()
        .map(|(_, k)| k)
}

/// The edit distance: letters added, removed, changed or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1)
                .min(row[j - 1] + 1)
                .min(rows[i - 1][j - 1] + changed);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// The path within the value, as the `toml` crate reports it on the last line of its message.
fn deepest(error: &toml::de::Error) -> Option<String> {
    let text = error.to_string();
    Some(
        text.trim_end()
            .lines()
            .last()?
            .strip_prefix("in `")?
            .strip_suffix('`')?
            .to_owned(),
    )
}

fn in_plain_words(message: &str) -> String {
    message
        .replace("expected i64", "expected a whole number")
        .replace("expected a sequence", "expected a list")
        .replace("expected a map", "expected a table")
        .replace("invalid type: ", "")
        .replace("invalid value: ", "")
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

/// The names of a struct's fields, as serde knows them, so that no second list is needed.
pub(super) fn fields_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    _ = T::deserialize(FieldNames(&mut found));
    found
}

/// A deserializer that only records the requested fields.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

/// The way out of a [`FieldNames`] run.
#[derive(Debug)]
struct Stop;

impl<'de> de::Deserializer<'de> for FieldNames<'_> {
    type Error = Stop;

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Stop> {
        *self.0 = fields;
        Err(Stop)
    }

    fn deserialize_any<V: de::Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        Err(Stop)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl de::Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Stop {
        Stop
    }
}

impl std::error::Error for Stop {}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("only the names of the fields were asked for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(word: &str, near: Option<&str>) {
        assert_eq!(
            nearest(word, &["command", "args", "cwd", "max_tools", "url"]),
            near
        );
    }

    #[test]
    fn a_slip_of_the_hand_is_recognised() {
        check("comand", Some("command"));
        check("commnad", Some("command"));
        check("arg", Some("args"));
        check("Max-Tools", Some("max_tools"));
    }

    #[test]
    fn another_word_is_no_slip() {
        check("colour", None);
        check("x", None);
    }

    #[test]
    fn the_table_of_other_clients_has_a_word_of_its_own() {
        assert!(unknown_key("mcpServers", &["bind"]).contains("`--mcp`"));
    }

    #[test]
    fn the_fields_of_a_struct_are_known_without_a_list() {
        assert!(fields_of::<super::super::RawServer>().contains(&"command"));
        assert!(fields_of::<super::super::RawConfig>().contains(&"loop"));
    }
}
