//! Percent-encoding (RFC 3986, 2.1). What is not certainly harmless is encoded.

use std::fmt::Write;

/// What may stand in the literal part of a path besides the unreserved characters; `%` is among them
/// because a document writes its paths encoded.
const IN_PATH: &[u8] = b"/:@!$&'()*+,;=%";

/// What `allowReserved` leaves as it is. `&`, `=`, `+` and `#` would mean something else in a query.
const RESERVED: &[u8] = b":/?@!$'()*,;[]";

/// A value, with everything encoded but letters, digits, `-`, `.`, `_` and `~`.
pub(in crate::translate) fn value(text: &str) -> String {
    with(text, b"")
}

/// A value of a query parameter with `allowReserved`.
pub(in crate::translate) fn reserved(text: &str) -> String {
    with(text, RESERVED)
}

/// A literal part of a path.
pub(in crate::translate) fn path(text: &str) -> String {
    with(text, IN_PATH)
}

fn with(text: &str, kept: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            out.push(char::from(byte));
        } else {
            push(&mut out, byte);
        }
    }
    out
}

/// Adds a byte, encoded.
pub(in crate::translate) fn push(out: &mut String, byte: u8) {
    // Writing to a text cannot fail.
    let _ = write!(out, "%{byte:02X}");
}

/// A text with its escapes resolved; `None` where that is no UTF-8. A `%` that begins no escape stays.
pub(in crate::translate) fn decode(text: &str) -> Option<String> {
    String::from_utf8(bytes(text.as_bytes())).ok()
}

/// The bytes of a text with its escapes resolved. A `%` that begins no escape stays.
pub(in crate::translate) fn bytes(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        match (*first == b'%').then(|| escaped(after)).flatten() {
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
    bytes
}

/// The byte that the two digits after a `%` stand for.
pub(in crate::translate) fn escaped(after: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
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
}
