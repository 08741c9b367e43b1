//! Records as lines of a table (RFC 4180), for spreadsheets.
//!
//! A cell that a spreadsheet would take for a formula gets an apostrophe before it: what clients and models write must
//! not be computed by who reads it.

use serde_json::Value;

use super::AuditRecord;

/// The columns, which are members of [`AuditRecord`].
const COLUMNS: [&str; 20] = [
    "time",
    "id",
    "event",
    "request",
    "key",
    "face",
    "client",
    "server",
    "tool",
    "verdict",
    "rule",
    "confirmation",
    "outcome",
    "error",
    "duration_ms",
    "attempts",
    "argument_bytes",
    "result_bytes",
    "arguments",
    "result",
];

/// The first line.
pub fn head() -> String {
    format!("{}\r\n", COLUMNS.join(","))
}

/// A record as a line.
pub fn line(record: &AuditRecord) -> String {
    let record = serde_json::to_value(record).unwrap_or_default();
    let cells = COLUMNS.map(|column| match &record[column] {
        Value::Null => String::new(),
        Value::String(text) => cell(text),
        other => other.to_string(),
    });
    format!("{}\r\n", cells.join(","))
}

fn cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let guard = if is_formula { "'" } else { "" };
    match text.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{guard}{}\"", text.replace('"', "\"\"")),
        false => format!("{guard}{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(cell(text), expected);
    }

    #[test]
    fn a_cell_with_a_separator_is_quoted() {
        check("plain", "plain");
        check("a,b", "\"a,b\"");
        check("say \"hi\"", "\"say \"\"hi\"\"\"");
        check("two\nlines", "\"two\nlines\"");
    }

    #[test]
    fn a_formula_becomes_a_text() {
        for start in ["=", "+", "-", "@", "\t"] {
            check(&format!("{start}cmd"), &format!("'{start}cmd"));
        }
        check("=1,2", "\"'=1,2\"");
        check("\r=1", "\"'\r=1\"");
    }

    #[test]
    fn a_line_has_a_cell_for_each_column() {
        let record = AuditRecord {
            id: "a1".to_owned(),
            duration_ms: Some(12),
            client: Some("=cmd|' /C calc'!A0".to_owned()),
            ..AuditRecord::default()
        };
        let line = line(&record);
        assert_eq!(line.matches(',').count(), COLUMNS.len() - 1, "{line}");
        assert!(line.contains(",'=cmd|"), "{line}");
        assert_eq!(head().matches(',').count(), COLUMNS.len() - 1);
    }
}
