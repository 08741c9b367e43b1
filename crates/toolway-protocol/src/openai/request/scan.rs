//! The request object cut into its members in one pass, without a value being built.
//!
//! A chat of a megabyte is mostly text; the scanner goes over texts as fast as `memchr` does. It knows all of JSON's
//! grammar and takes nothing that is not JSON. What it does not take is read once more, slowly, by `serde_json`,
//! which says what is wrong with it.

use memchr::memchr2;

use super::RequestError;
use crate::json_size::{MAX_VALUES, TooManyValues, measure};

/// The members of the object that a text is, each with its key and its value as they are written. `None` if the text
/// is no JSON object, is nested more than `max_depth` levels, has more than [`MAX_VALUES`] values, more than
/// `max_members` members or a key with escapes.
pub(super) fn members(
    text: &str,
    max_depth: usize,
    max_members: usize,
) -> Option<Vec<(&str, &str)>> {
    let mut scanner = Scanner {
        text,
        at: 0,
        max_depth,
        values_left: MAX_VALUES - 1,
        open: Vec::new(),
    };
    let mut members = Vec::with_capacity(16);
    scanner.space();
    scanner.enter(b'}')?;
    scanner.space();
    if scanner.skip(b'}').is_none() {
        loop {
            let key = scanner.key()?;
            let start = scanner.at;
            scanner.value()?;
            if members.len() == max_members {
                return None;
            }
            members.push((key, &text[start..scanner.at]));
            scanner.space();
            match scanner.next()? {
                b',' => scanner.space(),
                b'}' => break,
                _ => return None,
            }
        }
    }
    scanner.space();
    (scanner.at == text.len()).then_some(members)
}

/// Refuses a text whose objects and arrays are nested more than `max_depth` levels, or that has more than
/// [`MAX_VALUES`] values.
///
/// The text need not be JSON: whatever it is, this ends and does not panic.
pub(super) fn check_size(text: &str, max_depth: usize) -> Result<(), RequestError> {
    let size = measure(text.as_bytes());
    if size.depth > max_depth {
        return Err(RequestError::body(format!(
            "The request body is nested more than {max_depth} levels deep."
        )));
    }
    if size.values > MAX_VALUES {
        let error = TooManyValues(MAX_VALUES);
        return Err(RequestError::body(format!("The request body has {error}.")));
    }
    Ok(())
}

/// A place in a text. Every step takes what it is named for, or gives `None`.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    max_depth: usize,
    /// How many more values there may be.
    values_left: usize,
    /// What closes the objects and arrays that are open.
    open: Vec<u8>,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn skip(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Opens an object or an array, which this byte closes.
    fn enter(&mut self, close: u8) -> Option<()> {
        self.skip(close - 2)?;
        (self.open.len() < self.max_depth).then(|| self.open.push(close))
    }

    /// A key and its colon, and the space after them. The key is without escapes.
    fn key(&mut self) -> Option<&'a str> {
        self.skip(b'"')?;
        let start = self.at;
        let is_plain = self.string()?;
        let end = self.at - 1;
        self.space();
        self.skip(b':')?;
        self.space();
        is_plain.then(|| &self.text[start..end])
    }

    /// A key that is not used.
    fn any_key(&mut self) -> Option<()> {
        self.skip(b'"')?;
        self.string()?;
        self.space();
        self.skip(b':')?;
        self.space();
        Some(())
    }

    /// One value with everything in it.
    fn value(&mut self) -> Option<()> {
        let outside = self.open.len();
        loop {
            self.values_left = self.values_left.checked_sub(1)?;
            let is_whole = match self.peek()? {
                b'{' => self.begin(b'}')?,
                b'[' => self.begin(b']')?,
                _ => {
                    self.scalar()?;
                    true
                }
            };
            if is_whole && self.after_value(outside)? {
                return Some(());
            }
        }
    }

    /// The beginning of an object or an array, up to its first value. True if it is empty and closed again.
    fn begin(&mut self, close: u8) -> Option<bool> {
        self.enter(close)?;
        self.space();
        if self.skip(close).is_some() {
            self.open.pop();
            return Some(true);
        }
        if close == b'}' {
            self.any_key()?;
        }
        Some(false)
    }

    /// Closes what ends after a value, and goes on to the next. True if nothing is open but what was `outside`.
    fn after_value(&mut self, outside: usize) -> Option<bool> {
        while self.open.len() > outside {
            let close = *self.open.last()?;
            self.space();
            match self.next()? {
                b',' => {
                    self.space();
                    if close == b'}' {
                        self.any_key()?;
                    }
                    return Some(false);
                }
                byte if byte == close => self.open.pop(),
                _ => return None,
            };
        }
        Some(true)
    }

    fn scalar(&mut self) -> Option<()> {
        match self.next()? {
            b'"' => self.string().map(drop),
            b't' => self.word("rue"),
            b'f' => self.word("alse"),
            b'n' => self.word("ull"),
            b'-' => {
                let first = self.next()?;
                self.number(first)
            }
            first => self.number(first),
        }
    }

    fn word(&mut self, rest: &str) -> Option<()> {
        let is_there = self.text.as_bytes()[self.at..].starts_with(rest.as_bytes());
        is_there.then(|| self.at += rest.len())
    }

    /// The rest of a number that has begun with this digit.
    fn number(&mut self, first: u8) -> Option<()> {
        match first {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            _ => return None,
        }
        if self.skip(b'.').is_some() {
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Some(())
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Option<()> {
        let start = self.at;
        self.digits();
        (self.at > start).then_some(())
    }

    /// The rest of a string and its closing quote. True if it is without escapes.
    fn string(&mut self) -> Option<bool> {
        let mut is_plain = true;
        loop {
            let rest = self.text.as_bytes().get(self.at..)?;
            let step = memchr2(b'"', b'\\', rest)?;
            // Without an early end, and as a least byte, this is as fast as the search.
            let least = rest[..step]
                .iter()
                .fold(u8::MAX, |least, byte| least.min(*byte));
            if least < 0x20 {
                return None;
            }
            self.at += step + 1;
            if rest[step] == b'"' {
                return Some(is_plain);
            }
            is_plain = false;
            self.escape()?;
        }
    }

    fn escape(&mut self) -> Option<()> {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.text.as_bytes().get(self.at..self.at + 4)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn members_are_cut_out_as_they_are_written() {
        let text = " {\"a\" : [1, {\"b\":\"\\\"}\"}] ,\"c\":{ },\"d\":-1.5e+3}\n";
        assert_eq!(
            members(text, 9, 9),
            Some(vec![
                ("a", "[1, {\"b\":\"\\\"}\"}]"),
                ("c", "{ }"),
                ("d", "-1.5e+3")
            ])
        );
        assert_eq!(members("{}", 1, 0), Some(vec![]));
    }

    #[test]
    fn what_goes_beyond_a_bound_is_not_taken() {
        let text = r#"{"a":[[]],"b":1}"#;
        assert!(members(text, 3, 2).is_some());
        assert!(members(text, 2, 2).is_none());
        assert!(members(text, 3, 1).is_none());
        assert!(members(r#"{"\u0061":1}"#, 3, 2).is_none());
    }

    /// The scanner takes a text if and only if `serde_json` does, and cuts it alike.
    #[track_caller]
    fn agrees(text: &str) {
        let theirs: Option<theirs::Members<'_>> = serde_json::from_str(text).ok();
        let theirs = theirs.map(|it| it.0);
        let ours = members(text, 128, 512);
        if let Some(theirs) = &theirs
            && theirs.iter().any(|(key, _)| key.is_none())
        {
            assert_eq!(ours, None, "{text}: a key has escapes");
            return;
        }
        let theirs = theirs.map(|list| {
            let plain = list
                .into_iter()
                .map(|(key, value)| (key.unwrap_or_default(), value));
            plain.collect::<Vec<_>>()
        });
        assert_eq!(ours, theirs, "{text}");
    }

    mod theirs {
        use super::*;
        use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

        /// Keys without escapes, and values as they are written.
        pub(super) struct Members<'a>(pub(super) Vec<(Option<&'a str>, &'a str)>);

        impl<'de> Deserialize<'de> for Members<'de> {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct All;
                impl<'de> Visitor<'de> for All {
                    type Value = Members<'de>;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_map<A: MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> Result<Members<'de>, A::Error> {
                        let mut all = Vec::new();
                        while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                            let key = key.get().trim_matches('"');
                            all.push(((!key.contains('\\')).then_some(key), value.get()));
                        }
                        Ok(Members(all))
                    }
                }
                from.deserialize_map(All)
            }
        }
    }

    #[test]
    fn the_grammar_is_jsons() {
        for value in [
            "0",
            "-0",
            "01",
            "1.",
            ".5",
            "1.5",
            "1e5",
            "1E+5",
            "1e",
            "-",
            "+1",
            "--1",
            "1e-",
            "true",
            "tru",
            "nulll",
            "null",
            "false",
            "fals",
            "\"\"",
            "\"\\u00e9\"",
            "\"\\u00g9\"",
            "\"\\u00",
            "\"\\x\"",
            "\"\t\"",
            "\"a",
            "[]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1,2]",
            "{}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "[}",
            "{]",
            "[[]",
            "[]]",
            "\"\u{7f}\"",
            "\"\u{e9}\"",
            "",
            "NaN",
            "{\"a\":1 \"b\":2}",
            "[{\"a\":[{}]}]",
        ] {
            agrees(&format!("{{\"k\":{value}}}"));
            agrees(&format!("{{\"k\": [ {value} , 1 ] }}"));
            agrees(&format!("{{\"k\": {value} , \"l\":2}} "));
            agrees(value);
        }
    }

    proptest! {
        #[test]
        fn whatever_the_text_serde_json_agrees(text in r#"[{\[\]},:"\\a01.eE+\-tnul
    ]{0,40}"#) {
            agrees(&text);
            agrees(&format!("{{\"k\":{text}}}"));
        }

        #[test]
        fn whatever_the_value_serde_json_agrees(text in "\\PC{0,30}", number in any::<f64>(), deep in 0_usize..20) {
            let value = serde_json::json!({"a": text, "n": number, "l": [[text, null], {"x": {}}, true]});
            let nested = format!("{}{value}{}", "[".repeat(deep), "]".repeat(deep));
            agrees(&format!("{{\"k\":{nested},\"l\":{}}}", serde_json::to_string_pretty(&value).unwrap()));
        }
    }
}
