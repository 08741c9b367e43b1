//! One thing that is wrong with a configuration, and where.

use std::fmt;

/// Something wrong, or probably not meant, in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where: `upstreams[1].base_url`, or `FILE: mcpServers.files.url` in a file of another client.
    pub path: String,
    /// What is wrong and what to do about it; never the text of a secret.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}
