//! What a client is told about its request besides the answer: `X-Toolway-Warning` headers.

use http::{HeaderMap, HeaderName, HeaderValue};

const NAME: HeaderName = HeaderName::from_static("x-toolway-warning");

/// Longest warning, in characters.
const MAX_LENGTH: usize = 400;

/// Warnings that go out with the head of an answer, one header each.
#[derive(Debug, Default)]
pub(super) struct Warnings(Vec<HeaderValue>);

impl Warnings {
    /// Adds a warning. Characters that a header cannot hold are sent as `?`.
    pub(super) fn add(&mut self, text: &str) {
        let fits = |c: char| c.is_ascii_graphic() || c == ' ';
        let text: String = text
            .chars()
            .take(MAX_LENGTH)
            .map(|c| if fits(c) { c } else { '?' })
            .collect();
        self.0.extend(HeaderValue::try_from(text));
    }

    /// Adds the warnings to the headers of an answer.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        for warning in &self.0 {
            headers.append(NAME, warning.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_is_a_header_of_its_own_in_plain_ascii() {
        let mut warnings = Warnings::default();
        warnings.add("first");
        warnings.add("a\r\nb: \u{e9}");
        warnings.add(&"x".repeat(MAX_LENGTH + 1));
        let mut headers = HeaderMap::new();
        warnings.write(&mut headers);
        let values: Vec<&str> = headers
            .get_all(NAME)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect();
        assert_eq!(values[..2], ["first", "a??b: ?"]);
        assert_eq!(values[2].len(), MAX_LENGTH);
    }
}
