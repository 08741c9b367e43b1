//! The arguments of one call while they arrive, in whatever pieces and shapes.
//!
//! The contract is a text in fragments. Seen as well: a JSON object in place of the text, `null`, an empty
//! `{}` before the real object, the whole text once more at the end, and every fragment holding all that
//! came before.

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::translate::calls::is_object;
use toolway_protocol::tool::JsonObject;

/// The arguments of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    text: String,
    scan: Scan,
    /// What came after the text was a whole JSON value.
    after: String,
    /// Arguments that came as an object; several are merged, the later member wins.
    object: Option<JsonObject>,
    /// How much of `text` was given out to be shown.
    shown: usize,
    /// Where the last fragment begins, and whether every fragment began with the one before it.
    last: usize,
    grows: Option<bool>,
    /// A fragment was found to hold all that came before; then the next ones do, too.
    repeats: bool,
}

impl Arguments {
    /// Adds what an `arguments` member holds. Null is nothing.
    pub(super) fn push(&mut self, value: &Value) {
        match value {
            Value::Null => {}
            Value::String(text) => self.push_text(text),
            Value::Object(object) => match &mut self.object {
                Some(known) => known.extend(object.clone()),
                None => self.object = Some(object.clone()),
            },
            other => self.push_text(&other.to_string()),
        }
    }

    fn push_text(&mut self, fragment: &str) {
        if fragment.is_empty() {
            return;
        }
        if self.scan.is_whole() && !(self.after.is_empty() && is_blank(fragment)) {
            self.after.push_str(fragment);
            return;
        }
        if self.is_said_again_by(fragment) {
            self.repeats = true;
            self.scan = Scan::default();
            self.text.clear();
        } else if !self.text.is_empty() {
            let grows = fragment.starts_with(&self.text[self.last..]);
            self.grows = Some(self.grows.unwrap_or(true) && grows);
        }
        self.last = self.text.len();
        let whole = self.scan.read(fragment).unwrap_or(fragment.len());
        let (value, after) = fragment.split_at(whole);
        self.text.push_str(value);
        if is_blank(after) {
            self.text.push_str(after);
        } else {
            self.after.push_str(after);
        }
    }

    /// A fragment holds all that came before and goes on from there: it begins in the same way, and put
    /// after it, it could not be JSON, or a fragment before did the same.
    fn is_said_again_by(&self, fragment: &str) -> bool {
        let may_become_json = |text: &str| match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) => true,
            Err(error) => error.is_eof(),
        };
        !self.text.is_empty()
            && fragment.starts_with(&self.text)
            && may_become_json(fragment)
            && (self.repeats || !may_become_json(&format!("{}{fragment}", self.text)))
    }

    /// Something other than space has come.
    pub(super) fn has_begun(&self) -> bool {
        self.object.is_some() || !is_blank(&self.text)
    }

    /// A whole JSON object or list has come.
    pub(super) fn is_whole(&self) -> bool {
        self.object.is_some() || self.scan.is_whole()
    }

    /// All that has come is an empty object, which some upstreams send before the real one.
    pub(super) fn is_placeholder(&self) -> bool {
        match &self.object {
            Some(object) => object.is_empty() && !self.text_has_begun(),
            None => self.scan.is_whole() && is_empty_object(&self.text) && is_blank(&self.after),
        }
    }

    /// It was an empty object, and something else came after it.
    pub(super) fn was_placeholder(&self) -> bool {
        self.object.is_none() && is_empty_object(&self.text) && !is_blank(&self.after)
    }

    /// `value`, coming next, says again what has come already.
    pub(super) fn is_repeated_by(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => *text == self.text,
            Value::Object(object) => self.object.as_ref() == Some(object),
            _ => false,
        }
    }

    /// How many bytes are held.
    pub(super) fn len(&self) -> usize {
        self.text.len() + self.after.len()
    }

    /// What may be shown now and was not yet. What could still turn out to be a placeholder, a repetition
    /// or a part of an object that is not whole waits for [`close`](Arguments::close).
    pub(super) fn take(&mut self) -> &str {
        let from = self.shown;
        let may_be_placeholder = || "{}".contains(without_space(&self.text).as_str());
        if self.object.is_none() && (from > 0 || !may_be_placeholder()) {
            self.shown = self.text.len();
        }
        &self.text[from..self.shown]
    }

    /// Decides what the arguments are, now that nothing more comes. An empty text is `{}`, because that is
    /// what a call without parameters means.
    pub(super) fn close(&mut self) {
        if let Some(object) = self.object.take() {
            let said: JsonObject = serde_json::from_str(&self.text).unwrap_or_default();
            let merged: JsonObject = said.into_iter().chain(object).collect();
            self.replace(Value::Object(merged).to_string());
        }
        if !is_blank(&self.after) {
            let after = std::mem::take(&mut self.after);
            if is_empty_object(&self.text) {
                self.replace(after);
            } else if without_space(&self.text) != without_space(&after) {
                self.text.push_str(&after);
            }
        } else if self.grows == Some(true) && !self.scan.is_whole() {
            let last = self.text[self.last..].to_owned();
            if is_object(&last) {
                self.replace(last);
            }
        }
        if is_blank(&self.text) {
            self.replace("{}".to_owned());
        }
    }

    /// The text, given up.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// What of the closed text was never shown.
    pub(super) fn take_rest(&mut self) -> &str {
        let from = self.shown.min(self.text.len());
        self.shown = self.text.len();
        self.text.get(from..).unwrap_or("")
    }

    /// Puts another text in the place of one. What was shown cannot be taken back; then it stays.
    fn replace(&mut self, text: String) {
        if self.shown == 0 {
            self.text = text;
            self.last = 0;
        } else if let Some(rest) = text.strip_prefix(&self.text[..self.shown]) {
            self.text.truncate(self.shown);
            self.text.push_str(rest);
        }
    }

    fn text_has_begun(&self) -> bool {
        !is_blank(&self.text)
    }
}

fn is_blank(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_whitespace())
}

/// The text without space, as far as a comparison with `{}` or a repetition needs it.
fn without_space(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_whitespace()).collect()
}

fn is_empty_object(text: &str) -> bool {
    text.len() < 64 && without_space(text) == "{}"
}

/// Follows brackets and strings, to know when a JSON object or list is whole. It reads every byte once
/// and forgives everything that is not a bracket or a quote.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    whole: bool,
}

impl Scan {
    /// Reads on. Gives the place in `text` just after the end of the value, the first time it is whole.
    pub(super) fn read(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            if self.whole {
                return None;
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.whole = true;
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The value is whole.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What becomes of members that come one after another, where nothing and where everything is shown.
    #[track_caller]
    fn check(members: &[Value], expected: &str) {
        let mut hidden = Arguments::default();
        let mut seen = Arguments::default();
        let mut shown = String::new();
        for member in members {
            hidden.push(member);
            seen.push(member);
            shown.push_str(seen.take());
        }
        hidden.close();
        seen.close();
        shown.push_str(seen.take_rest());
        assert_eq!(hidden.into_text(), expected);
        assert_eq!(shown, expected, "as shown");
    }

    #[test]
    fn fragments_are_joined() {
        check(&[json!("{\"a\""), json!(":1"), json!("}")], r#"{"a":1}"#);
        check(&[json!("{"), json!("}")], "{}");
    }

    #[test]
    fn nothing_is_an_empty_object() {
        check(&[], "{}");
        check(&[json!(null), json!("")], "{}");
        check(&[json!("  ")], "{}");
    }

    #[test]
    fn objects_are_merged_and_the_later_member_counts() {
        check(&[json!({"a": 1})], r#"{"a":1}"#);
        check(
            &[json!({}), json!({"a": 1}), json!({"a": 2, "b": 3})],
            r#"{"a":2,"b":3}"#,
        );
    }

    #[test]
    fn an_empty_object_before_the_real_one_goes() {
        check(&[json!("{}"), json!(r#"{"a":"#), json!("1}")], r#"{"a":1}"#);
        check(&[json!("{"), json!("}"), json!(r#"{"a":1}"#)], r#"{"a":1}"#);
        check(&[json!(r#"{}{"a":1}"#)], r#"{"a":1}"#);
    }

    #[test]
    fn what_is_said_again_counts_once() {
        check(
            &[json!(r#"{"a":"#), json!("1}"), json!(r#"{"a":1}"#)],
            r#"{"a":1}"#,
        );
        check(
            &[json!(r#"{"a"#), json!(r#"{"ab":"#), json!(r#"{"ab":1}"#)],
            r#"{"ab":1}"#,
        );
    }

    #[test]
    fn an_object_within_one_that_begins_alike_is_not_said_again() {
        check(
            &[json!(r#"{"a":"#), json!(r#"{"a":"#), json!("1}}")],
            r#"{"a":{"a":1}}"#,
        );
    }

    #[test]
    fn what_cannot_be_read_stays() {
        check(
            &[json!(r#"{"a":1}"#), json!(r#"{"b":2}"#)],
            r#"{"a":1}{"b":2}"#,
        );
        check(&[json!("{\"a\":\"\\x\"}")], "{\"a\":\"\\x\"}");
        check(&[json!(["a"])], r#"["a"]"#);
        check(&[json!(7)], "7");
        check(&[json!("{\"a\": ")], "{\"a\": ");
    }

    #[test]
    fn brackets_in_strings_do_not_end_a_value() {
        let mut scan = Scan::default();
        assert_eq!(scan.read(r#"{"a":"}\"}"#), None);
        assert_eq!(scan.read(r#""}x"#), Some(2));
        assert!(scan.is_whole());
    }
}
