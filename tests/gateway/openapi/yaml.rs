//! Reads as much YAML as openapi.yaml is written in: blocks by indentation, `{…}` and `[…]` on one line,
//! quoted and plain scalars, and folded texts (`>`). Anything else is a panic, so that nothing is misread.

use serde_json::{Map, Value};

/// Reads a whole document.
pub fn read(text: &str) -> Value {
    let lines = text.lines().filter_map(|line| {
        let content = line.trim_start();
        let is_said = !content.is_empty() && !content.starts_with('#');
        is_said.then(|| (line.len() - content.len(), content.trim_end()))
    });
    let mut lines = Lines {
        lines: lines.collect(),
        at: 0,
    };
    let value = lines.block();
    assert_eq!(lines.next(), None, "a line that belongs to nothing");
    value
}

/// The lines that say something, as (indentation, content), and how many of them were read.
struct Lines<'a> {
    lines: Vec<(usize, &'a str)>,
    at: usize,
}

impl<'a> Lines<'a> {
    fn next(&self) -> Option<(usize, &'a str)> {
        self.lines.get(self.at).copied()
    }

    /// The mapping or list that begins here.
    fn block(&mut self) -> Value {
        let (indent, content) = self.next().expect("something is indented here");
        match content.strip_prefix("- ") {
            Some(_) => self.list(indent),
            None => self.mapping(indent),
        }
    }

    fn list(&mut self, indent: usize) -> Value {
        let mut list = Vec::new();
        while let Some((at, content)) = self.next() {
            let Some(item) = content.strip_prefix("- ").filter(|_| at == indent) else {
                break;
            };
            if split_key(item).is_some() && !item.starts_with(['{', '[']) {
                self.lines[self.at] = (indent + 2, item);
                list.push(self.mapping(indent + 2));
            } else {
                self.at += 1;
                list.push(scalar(item));
            }
        }
        Value::Array(list)
    }

    fn mapping(&mut self, indent: usize) -> Value {
        let mut mapping = Map::new();
        while let Some((at, content)) = self.next() {
            if at != indent || content.starts_with("- ") {
                assert!(at < indent, "`{content}` is indented too far");
                break;
            }
            let (key, rest) = split_key(content).unwrap_or_else(|| panic!("no key: `{content}`"));
            self.at += 1;
            let value = match rest {
                "" => self.block(),
                ">" => self.folded(indent),
                rest => scalar(rest),
            };
            let before = mapping.insert(key.to_owned(), value);
            assert_eq!(before, None, "`{key}` stands there twice");
        }
        Value::Object(mapping)
    }

    fn folded(&mut self, indent: usize) -> Value {
        let mut words = Vec::new();
        while let Some((_, content)) = self.next().filter(|(at, _)| *at > indent) {
            words.push(content);
            self.at += 1;
        }
        Value::String(words.join(" "))
    }
}

/// `key: rest` or `key:`; the key may be quoted.
fn split_key(content: &str) -> Option<(&str, &str)> {
    if let Some(quoted) = content.strip_prefix('"') {
        let (key, rest) = quoted.split_once('"')?;
        return Some((key, rest.strip_prefix(':')?.trim_start()));
    }
    match content.split_once(": ") {
        Some((key, rest)) => Some((key, rest.trim_start())),
        None => Some((content.strip_suffix(':')?, "")),
    }
}

/// What stands behind a key: a plain text to the end of the line, or something in brackets or quotes.
fn scalar(text: &str) -> Value {
    if !text.starts_with(['{', '[', '"']) {
        return plain(text);
    }
    let mut flow = Flow { rest: text };
    let value = flow.value();
    assert_eq!(flow.rest.trim(), "", "after the end of `{text}`");
    value
}

fn plain(text: &str) -> Value {
    let text = text.trim();
    let is_word = matches!(text, "true" | "false" | "null") || text.parse::<i64>().is_ok();
    let value = is_word.then(|| serde_json::from_str(text).unwrap());
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A value in brackets.
struct Flow<'a> {
    rest: &'a str,
}

impl<'a> Flow<'a> {
    fn value(&mut self) -> Value {
        if self.takes('{') {
            let mut mapping = Map::new();
            while !self.takes('}') {
                let key = self.text(&[':']);
                assert!(self.takes(':'), "a key without a value: `{}`", self.rest);
                mapping.insert(key.to_owned(), self.value());
                self.comma('}');
            }
            Value::Object(mapping)
        } else if self.takes('[') {
            let mut list = Vec::new();
            while !self.takes(']') {
                list.push(self.value());
                self.comma(']');
            }
            Value::Array(list)
        } else if self.rest.trim_start().starts_with('"') {
            Value::String(self.text(&[]).to_owned())
        } else {
            plain(self.text(&[',', '}', ']']))
        }
    }

    fn takes(&mut self, c: char) -> bool {
        let rest = self.rest.trim_start();
        let after = rest.strip_prefix(c);
        self.rest = after.unwrap_or(rest);
        after.is_some()
    }

    fn comma(&mut self, close: char) {
        let goes_on = self.takes(',') || self.rest.starts_with(close);
        assert!(goes_on, "neither `,` nor `{close}`: `{}`", self.rest);
    }

    /// A quoted text, or a plain one up to one of these.
    fn text(&mut self, ends: &[char]) -> &'a str {
        let rest = self.rest.trim_start();
        if let Some(quoted) = rest.strip_prefix('"') {
            let (text, rest) = quoted.split_once('"').expect("the quotes are closed");
            assert!(!text.contains('\\'), "escapes are not read: `{text}`");
            self.rest = rest;
            return text;
        }
        let end = rest.find(ends).expect("the brackets are closed");
        let (text, rest) = rest.split_at(end);
        self.rest = rest;
        text.trim()
    }
}

#[test]
fn what_openapi_yaml_is_written_in_is_read() {
    let text = indoc::indoc! {r##"
        # a comment
        openapi: 3.1.0
        about: >
          Two lines: one
          text.
        security:
          - {}
          - key: []
            other: yes it is
          - $ref: "#/a/b"
        "*/*": { schema: {}, type: [string, "null"], x: it's, n: 1 }
        deep:
          /a/{id}:
            get: { ok: true }
    "##};
    let expected = serde_json::json!({
        "openapi": "3.1.0",
        "about": "Two lines: one text.",
        "security": [{}, {"key": [], "other": "yes it is"}, {"$ref": "#/a/b"}],
        "*/*": {"schema": {}, "type": ["string", "null"], "x": "it's", "n": 1},
        "deep": {"/a/{id}": {"get": {"ok": true}}},
    });
    assert_eq!(read(text), expected);
}
