//! Which characters of a text from outside a terminal shows, and escapes for the others.
//!
//! Control characters steer a terminal, bidirectional ones reorder what it shows, and invisible ones hide text from a
//! person that a model reads. Names, descriptions and errors of servers can hold any of them.

use std::{borrow::Cow, fmt::Write};

/// A terminal shows the character as itself, and it changes nothing around it.
///
/// Not so: control characters, the line separators of Unicode, and the characters that Unicode says to ignore where
/// they cannot be shown (`Default_Ignorable_Code_Point`: bidirectional controls, zero-width characters, fillers,
/// variation selectors, tags). The variation selector of emoji is taken for visible, because plain texts have it.
pub fn is_visible(character: char) -> bool {
    match character {
        ' '..='~' | '\u{fe0f}' => true,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' => false,
        '\u{2028}' | '\u{2029}' | '\u{fff9}'..='\u{fffb}' => false,
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0e}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fff8}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => false,
        _ => true,
    }
}

/// A text for a terminal: line breaks and tabs stay, everything else that is not visible becomes `\u{…}`.
pub fn text(text: &str) -> Cow<'_, str> {
    escape(text, |character, out| match character {
        '\n' | '\t' => out.push(character),
        _ => out.extend(character.escape_unicode()),
    })
}

/// A line that was put together with escape codes of our own: the control characters that these consist of stay.
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, |character, out| match character < ' ' {
        true => out.push(character),
        false => out.extend(character.escape_unicode()),
    })
}

/// JSON of the same value: what is not visible becomes `\uXXXX`. JSON itself escapes the control characters below U+0020
/// in texts; those between its values are line breaks.
pub fn json(text: &str) -> Cow<'_, str> {
    escape(text, |character, out| match character < ' ' {
        true => out.push(character),
        false => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    })
}

fn escape(text: &str, put: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || text.chars().all(is_visible) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_visible(character) {
            true => out.push(character),
            false => put(character, &mut out),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_escaped_visibly() {
        for (given, shown) in [
            ("a\u{202e}b\u{2066}", "a\\u{202e}b\\u{2066}"),
            ("pay\u{200b}pal\u{feff}", "pay\\u{200b}pal\\u{feff}"),
            ("\u{e0041}\u{e007f}", "\\u{e0041}\\u{e007f}"),
            ("\u{3164}\u{fe01}\u{e0100}", "\\u{3164}\\u{fe01}\\u{e0100}"),
            (
                "\u{1b}[31m\r\u{9b}\u{2028}",
                "\\u{1b}[31m\\u{d}\\u{9b}\\u{2028}",
            ),
        ] {
            assert_eq!(text(given), shown);
        }
    }

    #[test]
    fn what_people_write_stays() {
        for given in ["a\n\tb", "grün 日本語 שלום ⚠\u{fe0f}", "e\u{301}", ""] {
            assert_eq!(text(given), given);
            assert_eq!(json(given), given);
            assert_eq!(line(given), given);
        }
    }

    #[test]
    fn a_line_keeps_its_escape_codes() {
        assert_eq!(
            line("\u{1b}[1m\u{200b}\u{9b}\u{7f}\r\n"),
            "\u{1b}[1m\\u{200b}\\u{9b}\\u{7f}\r\n"
        );
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({"a\u{202e}": "b\u{e0041}\n\u{7f}\u{85}\u{1b}"});
        let escaped = json(&value.to_string()).into_owned();
        assert!(escaped.chars().all(|c| matches!(c, ' '..='~')), "{escaped}");
        // What takes escape codes out of a pipe finds nothing to take.
        assert_eq!(anstream::adapter::strip_str(&escaped).to_string(), escaped);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&escaped).unwrap(),
            value
        );
    }
}
