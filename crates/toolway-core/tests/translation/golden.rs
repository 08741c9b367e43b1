//! Cases in files: what goes in stands beside what comes out.
//!
//! `UPDATE_GOLDEN=1 cargo test -p toolway-core` writes the `.out.json` files anew; the difference is to be
//! reviewed like code.

mod functions;
mod openapi;
mod stream;
mod translate;

use std::{env, fs, path::Path};

use serde_json::Value;

/// Compares with the file, or writes it where `UPDATE_GOLDEN` is set. Gives back what is wrong.
fn compare(path: &Path, actual: &Value) -> Option<String> {
    let actual = readable(actual, 0) + "\n";
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, actual).expect("the file can be written");
        return None;
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    (expected != actual).then(|| format!("{}: got\n{actual}", path.display()))
}

/// JSON with a line for each thing that is read as one.
fn readable(value: &Value, depth: usize) -> String {
    let pad = "  ".repeat(depth + 1);
    let end = "  ".repeat(depth);
    let compact = value.to_string();
    match value {
        Value::Object(members)
            if depth < 4 && compact.len() > 90 && !members.contains_key("id") =>
        {
            let line =
                |(key, value)| format!("{pad}{}: {}", Value::from(key), readable(value, depth + 1));
            let lines: Vec<String> = members.iter().map(|(k, v)| line((k.as_str(), v))).collect();
            format!("{{\n{}\n{end}}}", lines.join(",\n"))
        }
        Value::Array(items) if depth < 4 && compact.len() > 90 => {
            let lines: Vec<String> = items
                .iter()
                .map(|item| format!("{pad}{}", readable(item, depth + 1)))
                .collect();
            format!("[\n{}\n{end}]", lines.join(",\n"))
        }
        _ => compact,
    }
}
