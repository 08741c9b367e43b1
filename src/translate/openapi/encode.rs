//! Percent-encoding (RFC 3986, 2.1). What is not certainly harmless is encoded.

use std::fmt::Write;

/// What may stand in the literal part of a path besides the unreserved characters; `%` is among them
/// because a document writes its paths encoded.
const IN_PATH: &[u8] = b"/:@!$&'()*+,;=%";

/// What `allowReserved` leaves as it is. `&`, `=`, `+` and `#` would mean something else in a query.
const RESERVED: &[u8] = b":/?@!$'()*,;[]";

/// A value, with everything encoded but letters, digits, `-`, `.`, `_` and `~`.
pub(super) fn value(text: &str) -> String {
    with(text, b"")
}

/// A value of a query parameter with `allowReserved`.
pub(super) fn reserved(text: &str) -> String {
    with(text, RESERVED)
}

/// A literal part of a path.
pub(super) fn path(text: &str) -> String {
    with(text, IN_PATH)
}

fn with(text: &str, kept: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// A text with its escapes resolved; `None` where that is no UTF-8. A `%` that begins no escape stays.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = (*first == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escape {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// A segment that a URL parser or a server would take for "here" or "one up".
pub(super) fn is_dot_segment(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    plain == "." || plain == ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_could_mean_something_is_encoded() {
        assert_eq!(
            value("a/b?c#d%e f+g&h=i\r\n\\é"),
            "a%2Fb%3Fc%23d%25e%20f%2Bg%26h%3Di%0D%0A%5C%C3%A9"
        );
        assert_eq!(value("aZ09-._~"), "aZ09-._~");
        assert_eq!(
            reserved("2020-01-01T10:00/[a]&b=c+d#e%"),
            "2020-01-01T10:00/[a]%26b%3Dc%2Bd%23e%25"
        );
        assert_eq!(path("/a b/{x}:run%20"), "/a%20b/%7Bx%7D:run%20");
    }

    #[test]
    fn what_was_encoded_is_decoded_again() {
        assert_eq!(decode(&value("a/b é%2e")).as_deref(), Some("a/b é%2e"));
        assert_eq!(decode("100%").as_deref(), Some("100%"));
        assert_eq!(decode("%zz%+1").as_deref(), Some("%zz%+1"));
        assert_eq!(decode("%ff"), None);
    }

    #[test]
    fn dots_are_seen_through_their_escapes() {
        for text in [".", "..", "%2e", ".%2E", "%2E%2e"] {
            assert!(is_dot_segment(text), "{text}");
        }
        for text in ["", "...", "a.", "%252e"] {
            assert!(!is_dot_segment(text), "{text}");
        }
    }
}
