//! A text that must not be shown: keys, tokens, header values.
//!
//! Row 1, beside `tool`. Nothing here reads the environment or a file; `config` does.

use std::{fmt, sync::Arc};

/// A secret text. `Debug` prints `[redacted]`, there is no `Display`, and it is compared in constant time.
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<Arc<str>>) -> Secret {
        Secret(text.into())
    }

    /// The text itself. The caller sends it where it belongs and keeps it out of logs and errors.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .bytes()
                .zip(other.0.bytes())
                .fold(0, |acc, (a, b)| acc | (a ^ b))
                == 0
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new("sk-1")), "[redacted]");
    }

    #[test]
    fn secrets_are_equal_by_their_text() {
        assert_eq!(Secret::new("a"), Secret::new("a"));
        assert_ne!(Secret::new("a"), Secret::new("b"));
        assert_ne!(Secret::new("a"), Secret::new("ab"));
    }
}
