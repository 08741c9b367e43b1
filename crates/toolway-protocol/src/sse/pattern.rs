//! Events that differ from the one before in a few values only: most of a stream is such events, and reading each as JSON
//! would cost more than everything else that is done with it.

use std::borrow::Cow;

use super::{Framer, SseEvent};

/// What an event is made of besides the values that change from one to the next.
///
/// What fits has the structure of the event that the pattern was made of, so nothing but the values has to be read anew.
/// The values are a JSON text, others without escapes, and whole numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPattern {
    /// What is before each value, and what kind of value it is.
    values: Vec<(Vec<u8>, ValueKind)>,
    /// What is after the last value, with the blank line.
    end: Vec<u8>,
    /// The place of the text among the values.
    text: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Text,
    Number,
}

impl EventPattern {
    /// The pattern of an event with one line of data. `text` is the content of the JSON text that the pattern is about,
    /// `others` are values that change as well: JSON as it stands in the event. All are parts of the event's data.
    ///
    /// `None` where a value is not what [`EventPattern`] says, or the event does not end with two LF.
    pub fn of(event: &SseEvent, text: &str, others: &[&str]) -> Option<EventPattern> {
        let whole = std::str::from_utf8(event.raw()).ok()?;
        if !whole.ends_with("\n\n") {
            return None;
        }
        let mut places = vec![place_of(text, whole)?];
        for other in others {
            let content = other
                .strip_prefix('"')
                .and_then(|rest| rest.strip_suffix('"'));
            places.push(place_of(content.unwrap_or(other), whole)?);
        }
        let text = places[0];
        places.sort_unstable();
        let (mut values, mut from) = (Vec::new(), 0);
        for &(start, end) in &places {
            let before = whole.get(from..start)?;
            let (kind, length) = match before.ends_with('"') {
                true => (
                    ValueKind::Text,
                    text_length(&whole.as_bytes()[start..], false)?,
                ),
                false => (
                    ValueKind::Number,
                    number_length(&whole.as_bytes()[start..])?,
                ),
            };
            if start + length != end {
                return None;
            }
            values.push((before.as_bytes().to_vec(), kind));
            from = end;
        }
        Some(EventPattern {
            values,
            end: whole.as_bytes()[from..].to_vec(),
            text: places.iter().position(|place| *place == text)?,
        })
    }

    /// The length of the event that `bytes` begin with, and its text, if it fits.
    pub(super) fn find<'a>(&self, bytes: &'a [u8]) -> Option<(usize, Cow<'a, str>)> {
        let (mut rest, mut text) = (bytes, None);
        for (at, (before, kind)) in self.values.iter().enumerate() {
            rest = rest.strip_prefix(before.as_slice())?;
            let is_text = at == self.text;
            let length = match kind {
                ValueKind::Text => text_length(rest, is_text)?,
                ValueKind::Number => number_length(rest)?,
            };
            let (value, after) = rest.split_at(length);
            if *kind == ValueKind::Text {
                let value = std::str::from_utf8(value).ok()?;
                if is_text {
                    text = Some(unescaped(value)?);
                }
            }
            rest = after;
        }
        let rest = rest.strip_prefix(self.end.as_slice())?;
        Some((bytes.len() - rest.len(), text?))
    }
}

/// Most patterns that are made in vain: there are streams in which no two events are alike.
const MAX_MISSES: u8 = 16;

/// What the events of one stream look like that come again and again with another text.
#[derive(Clone, Debug, Default)]
pub struct AlikeEvents {
    pattern: Option<EventPattern>,
    /// How many patterns were made since an event fitted one.
    misses: u8,
}

impl AlikeEvents {
    /// Takes the pattern of an event that was read, if patterns are of use here. `make` as [`EventPattern::of`].
    pub fn learn(&mut self, make: impl FnOnce() -> Option<EventPattern>) {
        if self.misses < MAX_MISSES
            && let Some(pattern) = make()
        {
            self.pattern = Some(pattern);
            self.misses += 1;
        }
    }

    /// The framer's next event and its text, if it fits; see [`Framer::peek_like`].
    pub fn peek<'a>(&mut self, framer: &'a mut Framer) -> Option<(&'a [u8], Cow<'a, str>)> {
        let found = framer.peek_like(self.pattern.as_ref()?)?;
        self.misses = 0;
        Some(found)
    }
}

/// Where `part`, a slice of `whole`, begins and ends in it.
fn place_of(part: &str, whole: &str) -> Option<(usize, usize)> {
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    let end = start + part.len();
    (whole.get(start..end)? == part).then_some((start, end))
}

/// The length of a JSON text's content up to its closing quote; `None` where it has escapes and must not.
fn text_length(bytes: &[u8], may_escape: bool) -> Option<usize> {
    let is_special = |byte: &u8| *byte < b' ' || matches!(byte, b'"' | b'\\');
    let mut from = 0;
    loop {
        let at = from + bytes.get(from..)?.iter().position(is_special)?;
        match bytes[at] {
            b'"' => return Some(at),
            b'\\' if may_escape => from = at + 2,
            _ => return None,
        }
    }
}

/// What the content of a JSON text says.
fn unescaped(content: &str) -> Option<Cow<'_, str>> {
    match content.contains('\\') {
        true => serde_json::from_str(&format!("\"{content}\""))
            .ok()
            .map(Cow::Owned),
        false => Some(Cow::Borrowed(content)),
    }
}

/// The length of a whole number.
fn number_length(bytes: &[u8]) -> Option<usize> {
    let length = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let is_number = length == 1 || (2..20).contains(&length) && bytes[0] != b'0';
    let is_whole = !matches!(bytes[length], b'.' | b'e' | b'E');
    (is_number && is_whole).then_some(length)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde::Deserialize;
    use serde_json::{Value, json, value::RawValue};

    use super::super::Framer;
    use super::*;

    #[derive(Deserialize)]
    struct Delta<'a> {
        delta: &'a str,
        #[serde(borrow)]
        number: &'a RawValue,
        #[serde(borrow)]
        noise: &'a RawValue,
    }

    fn event(text: &str, number: &Value, noise: &str) -> String {
        let (text, noise) = (json!(text), json!(noise));
        format!(
            "event: delta\ndata: {{\"number\":{number}, \"delta\":{text},\"noise\":{noise} }}\n\n"
        )
    }

    fn framer(stream: &str) -> Framer {
        let mut framer = Framer::new(1000);
        framer.push(Bytes::from(stream.to_owned()));
        framer
    }

    fn learned() -> EventPattern {
        let event = framer(&event("Hello", &json!(7), "x"))
            .next()
            .unwrap()
            .unwrap();
        let data = event.data().unwrap();
        let delta: Delta<'_> = serde_json::from_str(&data).unwrap();
        let others = [delta.number.get(), delta.noise.get()];
        EventPattern::of(&event, delta.delta, &others).unwrap()
    }

    #[track_caller]
    fn check(stream: &str, expected: Option<&str>) {
        let found = learned().find(stream.as_bytes());
        assert_eq!(found.map(|(_, text)| text).as_deref(), expected, "{stream}");
    }

    #[test]
    fn only_values_may_differ() {
        check(&event(" wörld", &json!(1234), ""), Some(" wörld"));
        check(&event("", &json!(0), "yy"), Some(""));
        check(&event("a\n\"b\\", &json!(8), "y"), Some("a\n\"b\\"));
        check(&event("a", &json!(8), "\n"), None);
        check(&event("a", &json!(8.5), "y"), None);
        check(&event("a", &json!(-8), "y"), None);
        check(&event("a", &json!("8"), "y"), None);
        check(&event("a", &json!(8), "\\"), None);
        let good = event("a", &json!(8), "y");
        for (from, to) in [
            ("8", "08"),
            ("8", "8e1"),
            ("8", ""),
            ("delta\n", "delta\r\n"),
            (" }", "}"),
            ("\n\n", "\n"),
        ] {
            check(&good.replacen(from, to, 1), None);
        }
    }

    #[test]
    fn what_is_no_part_of_the_event_makes_no_pattern() {
        let event = framer(&event("a\tb", &json!(1), ""))
            .next()
            .unwrap()
            .unwrap();
        assert!(EventPattern::of(&event, "a\tb", &[]).is_none());
        let data = event.data().unwrap();
        let escaped = &data[data.find("a\\t").unwrap()..][..4];
        assert!(
            EventPattern::of(&event, escaped, &[]).is_none(),
            "{escaped}"
        );
    }

    #[test]
    fn the_framer_gives_what_fits_and_reads_the_rest_as_ever() {
        let pattern = learned();
        let other = "data: {}\n\n";
        let half = event("c", &json!(3), "z");
        let stream = event("a", &json!(1), "") + &event("b", &json!(2), "y") + other + &half;
        let mut framer = framer(&stream[..stream.len() - 1]);
        // Whether a byte-order mark comes is not known before the first event was read.
        assert!(framer.peek_like(&pattern).is_none());
        assert!(framer.next().unwrap().unwrap().name() == Some("delta"));
        let (raw, text) = framer.peek_like(&pattern).unwrap();
        assert_eq!((raw, &*text), (event("b", &json!(2), "y").as_bytes(), "b"));
        let length = raw.len();
        framer.skip(length);
        assert!(framer.peek_like(&pattern).is_none());
        assert_eq!(framer.next().unwrap().unwrap().raw(), other);
        assert!(framer.peek_like(&pattern).is_none(), "its end is missing");
        assert!(framer.next().is_none());
        framer.push(Bytes::from("\n"));
        assert!(
            framer.peek_like(&pattern).is_none(),
            "its beginning was read"
        );
        assert_eq!(framer.next().unwrap().unwrap().raw(), &half);
    }

    proptest! {
        /// What fits says the same when it is read as JSON.
        #[test]
        fn what_fits_is_what_json_says(text: String, number: u32, noise: String, torn in 0usize..200) {
            let event = event(&text, &json!(number), &noise);
            let (length, found) = match learned().find(event.as_bytes()) {
                Some(found) => found,
                None => {
                    prop_assert!(json!(noise).to_string().len() > noise.len() + 2);
                    return Ok(());
                }
            };
            prop_assert_eq!((length, &*found), (event.len(), &*text));
            prop_assert!(learned().find(&event.as_bytes()[..torn.min(event.len() - 1)]).is_none());
        }
    }
}
