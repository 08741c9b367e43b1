//! What a server says about its own failure, made fit for a model: a plain first sentence without markup,
//! stack trace or internal address.

use serde_json::{Map, Value};

use super::cut;

/// Longest sentence that is kept, in bytes.
const MAX_SENTENCE: usize = 300;

/// Most of a message that is looked at, in bytes.
const MAX_READ: usize = 16 << 10;

/// Longest `data` that is kept, in bytes of JSON.
const MAX_DATA: usize = 2048;

/// Members of `data` that hold stack traces.
const TRACES: [&str; 6] = [
    "stack",
    "stacktrace",
    "stack_trace",
    "trace",
    "traceback",
    "backtrace",
];

/// The first plain sentence of a message; `otherwise` if there is none.
pub(in crate::translate) fn plain(message: &str, otherwise: &str) -> String {
    let text = without_markup(cut::at_most(message, MAX_READ));
    let line = telling_line(&text).unwrap_or_default();
    let sentence = first_sentence(line);
    let words: Vec<&str> = sentence.split_whitespace().map(without_address).collect();
    let sentence = words.join(" ");
    match sentence.chars().any(char::is_alphabetic) {
        true => cut::bounded(&sentence, MAX_SENTENCE),
        false => otherwise.to_owned(),
    }
}

/// What a server added to its error, each text made plain; `None` if it is too long or nothing is left.
pub(super) fn plain_value(data: &Value) -> Option<Value> {
    let data = match data {
        Value::String(text) => Value::String(plain(text, "")),
        Value::Array(values) => values.iter().filter_map(plain_value).collect(),
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, _)| !is_trace(name));
            let kept = kept.filter_map(|(name, value)| Some((name.clone(), plain_value(value)?)));
            Value::Object(kept.collect::<Map<_, _>>())
        }
        other => other.clone(),
    };
    let is_empty = match &data {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    (!is_empty && data.to_string().len() <= MAX_DATA).then_some(data)
}

fn is_trace(name: &str) -> bool {
    TRACES.iter().any(|trace| name.eq_ignore_ascii_case(trace))
}

/// The text between tags. Of a whole page only the title is kept, or the first heading.
fn without_markup(text: &str) -> String {
    for tag in ["title", "h1"] {
        if let Some(inner) = element(text, tag) {
            return without_tags(inner);
        }
    }
    without_tags(text)
}

fn element<'t>(text: &'t str, tag: &str) -> Option<&'t str> {
    let lower = text.to_ascii_lowercase();
    let open = lower.find(&format!("<{tag}"))?;
    let start = open + lower[open..].find('>')? + 1;
    let end = start + lower[start..].find(&format!("</{tag}"))?;
    Some(&text[start..end])
}

fn without_tags(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('<') {
        plain.push_str(&rest[..open]);
        let after = &rest[open + 1..];
        let is_tag = after.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '!'));
        match after.find('>').filter(|_| is_tag) {
            Some(close) => {
                plain.push(' ');
                rest = &after[close + 1..];
            }
            None if is_tag => return plain,
            None => {
                plain.push('<');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

/// The line that says what happened: the first that is no stack frame; the last one of a Python traceback.
fn telling_line(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next()?;
    if first.starts_with("Traceback (most recent call last)") {
        return lines.rfind(|line| !is_frame(line));
    }
    std::iter::once(first)
        .chain(lines)
        .find(|line| !is_frame(line))
}

fn is_frame(line: &str) -> bool {
    line.starts_with("at ")
        || line.starts_with("File \"")
        || line.starts_with("stack backtrace:")
        || line.starts_with("goroutine ")
}

/// Up to the first full stop that ends a sentence, and not beyond a stack trace on the same line.
fn first_sentence(line: &str) -> &str {
    let end = line.find(". ").map_or(line.len(), |at| at + 1);
    let line = &line[..end];
    // "Error: x    at f (file.js:1:2)": a trace whose line breaks got lost.
    match line.find("    at ") {
        Some(frames) => &line[..frames],
        None => line,
    }
}

/// The word, or `[address]` in its place if it is one.
fn without_address(word: &str) -> &str {
    let bare =
        word.trim_matches(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '/' | '[' | ']')));
    if is_address(bare) { "[address]" } else { word }
}

fn is_address(word: &str) -> bool {
    word.contains("://")
        || word.contains("localhost")
        || is_path(word)
        || is_ip(word)
        || has_port(word)
        || [".internal", ".local", ".svc", ".lan", ".cluster"]
            .iter()
            .any(|part| word.to_ascii_lowercase().contains(part))
}

/// An absolute path of at least two steps.
fn is_path(word: &str) -> bool {
    let word = word.trim_start_matches(['(', '[', '"', '\'']);
    let drive = word.get(1..3).is_some_and(|at| at == ":\\");
    drive || (word.starts_with('/') && word.matches('/').count() > 1)
}

fn is_ip(word: &str) -> bool {
    let word = word.trim_matches(['[', ']']);
    word.parse::<std::net::IpAddr>().is_ok() || word.parse::<std::net::SocketAddr>().is_ok()
}

/// `host:port`, where the host looks like one.
fn has_port(word: &str) -> bool {
    let Some((host, port)) = word.rsplit_once(':') else {
        return false;
    };
    let is_port = (2..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    // Not every word with a number is one: `status:404`.
    let is_host = host.contains('.') || port.len() >= 4;
    is_port && is_host && host.starts_with(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(message: &str, expected: &str) {
        assert_eq!(plain(message, "(nothing)"), expected, "{message}");
    }

    #[test]
    fn a_plain_sentence_stays() {
        check("Unknown city", "Unknown city");
        check("if a < b and c > d", "if a < b and c > d");
        check("status:404, a/b is 1/2", "status:404, a/b is 1/2");
    }

    #[test]
    fn only_the_first_sentence_stays() {
        check("No such row. Try another table.", "No such row.");
        check("\n\n first line\nsecond line", "first line");
    }

    #[test]
    fn of_a_web_page_the_title_stays() {
        check(
            "<!DOCTYPE html><html><head><TITLE>502 Bad Gateway</TITLE></head><body><h1>x</h1>",
            "502 Bad Gateway",
        );
        check(
            "<html><body><h1>Not Found</h1><p>nginx</p></body></html>",
            "Not Found",
        );
        check("<html><body></body></html>", "(nothing)");
        check("broken <b>bold</b> text <unclosed", "broken bold text");
    }

    #[test]
    fn stack_traces_go() {
        check(
            "TypeError: x is not a function\n    at f (/srv/app.js:1:2)",
            "TypeError: x is not a function",
        );
        check(
            "Error: boom    at f (/srv/app.js:1:2)    at g",
            "Error: boom",
        );
        check(
            "Traceback (most recent call last):\n  File \"/srv/a.py\", line 3, in f\nValueError: bad city",
            "ValueError: bad city",
        );
        check("    at f (/srv/app.js:1:2)", "(nothing)");
    }

    #[test]
    fn addresses_and_paths_go() {
        check(
            "connect ECONNREFUSED 127.0.0.1:5432",
            "connect ECONNREFUSED [address]",
        );
        check(
            "cannot reach http://db.internal/x",
            "cannot reach [address]",
        );
        check(
            "cannot reach db:5432, giving up",
            "cannot reach [address] giving up",
        );
        check("cannot reach (fe80::1)", "cannot reach [address]");
        check(
            "cannot open /var/lib/app/secrets.json",
            "cannot open [address]",
        );
        check("localhost refused", "[address] refused");
    }

    #[test]
    fn a_long_message_is_bounded() {
        assert!(plain(&"é".repeat(1 << 20), "").len() < 400);
        assert!(plain(&"<".repeat(1 << 20), "").len() < 400);
    }

    #[test]
    fn data_that_is_too_long_goes() {
        assert_eq!(plain_value(&json!({"a": vec![1; 5000]})), None);
        assert_eq!(plain_value(&json!({"Stack": "x"})), None);
        assert_eq!(plain_value(&json!(7)), Some(json!(7)));
    }
}
