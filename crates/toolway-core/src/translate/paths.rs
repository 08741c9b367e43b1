//! Paths of URLs: one form for each, and no step out of its place.
//!
//! Servers differ in what they decode before they route a request, so a path is judged by what any of them could
//! make of it.

use std::borrow::Cow;

use super::percent;

/// What stands for itself in a path besides letters, digits, `-`, `_`, `~`, `.` and `/` (RFC 3986, 3.3).
const PLAIN: &[u8] = b"!$&'()*+,;=:@";

const DOTS: &str = "a part of the path cannot be `.` or `..`, whichever way it is written";

/// How often a path may be encoded on top of an encoding.
const MAX_ENCODINGS: usize = 8;

/// The one form of a request's path: what needs no escape has none, what needs one has it, one slash stands between
/// two segments and none at the end.
///
/// `None` for a path that has no safe meaning: with a [`flaw`], a `%` without two digits, or escapes that are no UTF-8.
pub fn normalize(path: &str) -> Option<Cow<'_, str>> {
    if is_normal(path) {
        return Some(path.into());
    }
    let mut normal = String::with_capacity(path.len());
    let mut rest = path.strip_prefix('/')?.as_bytes();
    normal.push('/');
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let mut byte = *first;
        if byte == b'%' {
            byte = percent::escaped(after)?;
            rest = &after[2..];
        }
        let is_escaped = *first == b'%';
        match byte {
            b'/' if !is_escaped && normal.ends_with('/') => {}
            b'/' if !is_escaped => normal.push('/'),
            _ if is_unreserved(byte) => normal.push(char::from(byte)),
            _ if !is_escaped && PLAIN.contains(&byte) => normal.push(char::from(byte)),
            _ => percent::push(&mut normal, byte),
        }
    }
    if normal.len() > 1 && normal.ends_with('/') {
        normal.pop();
    }
    percent::decode(&normal)?;
    flaw(&normal).is_none().then_some(normal.into())
}

/// Why the path could lead elsewhere: a segment is `.` or `..`, or it has a control character, whichever way that is
/// written: escaped, escaped several times, beside a backslash or an escaped slash, followed by parameters (`..;x`) or
/// spaces.
pub fn flaw(path: &str) -> Option<&'static str> {
    let mut path = path.as_bytes().to_vec();
    for _ in 0..=MAX_ENCODINGS {
        let mut segments = path.split(|byte| matches!(byte, b'/' | b'\\'));
        let is_dots = |segment: &[u8]| {
            let name = segment.split(|byte| *byte == b';').next();
            matches!(name.unwrap_or_default().trim_ascii(), b"." | b"..")
        };
        if segments.any(is_dots) {
            return Some(DOTS);
        }
        // Servers cut a path off there, or leave the character out: `..` with one is `..` to them.
        if path.iter().any(u8::is_ascii_control) {
            return Some("a path cannot hold a control character, whichever way it is written");
        }
        let decoded = percent::bytes(&path);
        if decoded == path {
            return None;
        }
        path = decoded;
    }
    Some(DOTS)
}

/// To some servers the path means this one: they decode slashes, read a backslash as one, ignore the case of letters
/// or the parameters of a segment.
pub fn may_mean(path: &str, other: &[&str]) -> bool {
    let names = loosely_read(path);
    names.len() == other.len() && begins_with(&names, other)
}

/// To some servers the path is this one or below it; see [`may_mean`].
pub fn may_begin_with(path: &str, other: &[&str]) -> bool {
    begins_with(&loosely_read(path), other)
}

fn begins_with(names: &[Vec<u8>], other: &[&str]) -> bool {
    let mut names = names.iter();
    other
        .iter()
        .all(|other| names.next().is_some_and(|name| name == other.as_bytes()))
}

/// The names between the slashes, as the most lenient server reads them.
fn loosely_read(path: &str) -> Vec<Vec<u8>> {
    let mut decoded = path.as_bytes().to_vec();
    for _ in 0..=MAX_ENCODINGS {
        let next = percent::bytes(&decoded);
        if next == decoded {
            break;
        }
        decoded = next;
    }
    let segments = decoded.split(|byte| matches!(byte, b'/' | b'\\'));
    let names = segments.filter_map(|segment| segment.split(|byte| *byte == b';').next());
    let names = names
        .map(<[u8]>::trim_ascii)
        .filter(|name| !name.is_empty());
    names.map(<[u8]>::to_ascii_lowercase).collect()
}

/// Nothing has to be done: the form that almost every path comes in.
fn is_normal(path: &str) -> bool {
    let mut before = 0;
    let is_fine = |byte: u8| {
        let fits = match byte {
            b'/' | b'.' => before != b'/',
            byte => is_unreserved(byte),
        };
        before = byte;
        fits
    };
    path.starts_with('/') && path.bytes().all(is_fine) && (path.len() == 1 || !path.ends_with('/'))
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Probes need no key; without one `/health` shows less. They take no place either: a busy process counts as healthy
/// and must not be restarted.
pub fn is_probe(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/health")
}

/// Where the agents connect to which functions are lent; a token follows.
pub const LENT_FUNCTIONS: &str = "/mcp/s/";

/// The token in a path at which functions are lent.
pub fn lent_token(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(LENT_FUNCTIONS)?;
    Some(rest.split('/').next().unwrap_or_default())
}

/// The path is one of Anthropic's API.
pub fn is_messages(path: &str) -> bool {
    path.starts_with("/v1/messages")
}

/// A path of the MCP face.
pub fn is_mcp(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    matches!(parts.next(), Some("mcp" | "sse"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(path: &str, normal: Option<&str>) {
        assert_eq!(normalize(path).as_deref(), normal, "{path}");
    }

    #[test]
    fn a_path_has_one_form() {
        for (path, normal) in [
            ("/", "/"),
            ("//", "/"),
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/v1/chat//completions", "/v1/chat/completions"),
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("//v1/chat/completions//", "/v1/chat/completions"),
            ("/v1/%63hat/completions", "/v1/chat/completions"),
            ("/v1/models/", "/v1/models"),
            ("/v1/files/a%2fb", "/v1/files/a%2Fb"),
            ("/v1/files/a b{c}|\u{e9}", "/v1/files/a%20b%7Bc%7D%7C%C3%A9"),
            ("/v1/files/a\\b", "/v1/files/a%5Cb"),
            ("/v1/files/%7Ea%3Bb;c=d", "/v1/files/~a%3Bb;c=d"),
            ("/v1/models/ft:gpt@x", "/v1/models/ft:gpt@x"),
            ("/v1/files/a..b", "/v1/files/a..b"),
            ("/v1/...", "/v1/..."),
            ("/v1/.well-known/x", "/v1/.well-known/x"),
            ("/v1/%252Fx", "/v1/%252Fx"),
        ] {
            check(path, Some(normal));
        }
    }

    #[test]
    fn a_path_that_could_lead_elsewhere_has_none() {
        for path in [
            "/v1/../admin",
            "/v1/..",
            "/v1/./x",
            "/v1/a/%2E%2e/x",
            "/v1/.%2e/x",
            "/v1/..\\x",
            "/v1/..%5cx",
            "/v1/..%2fadmin",
            "/v1/%2e%2e%2fadmin",
            "/v1/a%2f..",
            "/v1/a%2F..%2fb",
            "/v1/..;/admin",
            "/v1/..;a=b/admin",
            "/v1/..%3b/admin",
            "/v1/..%20/admin",
            "/v1/%252e%252e/admin",
            "/v1/%25252e.%25252fadmin",
            "/v1/%252525252525252525252525252525252525252e",
            "/v1/%c0%ae%c0%ae/admin",
            "/v1/%ff",
            "/v1/a%00",
            "/v1/a%0d%0ab",
            "/v1/..%01/admin",
            "/v1/..%257f/admin",
            "/v1/a\tb",
            "/v1/%",
            "/v1/%2",
            "/v1/%zz",
            "/v1/%+1",
            "",
            "*",
            "v1/models",
        ] {
            check(path, None);
        }
    }

    #[test]
    fn another_spelling_of_a_path_is_told() {
        let chat = ["v1", "chat", "completions"];
        for path in [
            "/v1/chat/completions",
            "/v1/Chat/Completions",
            "/v1/chat%2Fcompletions",
            "/v1/chat%5Ccompletions",
            "/v1/chat;a=b/completions;",
            "/v1/chat/completions%2F",
        ] {
            assert!(may_mean(path, &chat), "{path}");
        }
        for path in ["/v1/completions", "/v1/chat", "/v1/chat/completions/id"] {
            assert!(!may_mean(path, &chat), "{path}");
        }
        assert!(may_begin_with("/v1/Chat%2Fx", &["v1", "chat"]));
        assert!(!may_begin_with("/v1", &["v1", "chat"]));
    }

    proptest! {
        #[test]
        fn the_form_of_a_form_is_itself(path in "/[a-c/.%25;\\\\ é]{0,12}") {
            if let Some(normal) = normalize(&path) {
                let again = normalize(&normal);
                prop_assert_eq!(again.as_deref(), Some(&*normal));
                prop_assert_eq!(flaw(&normal), None);
                let url = url::Url::parse("http://a").unwrap().join(&normal).unwrap();
                prop_assert_eq!(url.path(), &*normal, "as a URL parser leaves it");
            }
        }
    }
}
