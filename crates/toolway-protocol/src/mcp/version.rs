//! The versions of the protocol, and which one two sides agree on.

use std::fmt;

/// A released version of the Model Context Protocol; a later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// HTTP+SSE, tools, prompts, resources, sampling, roots.
    V2024_11_05,
    /// Streamable HTTP, annotations, audio, batches.
    V2025_03_26,
    /// Structured content, resource links, elicitation, titles; no batches any more.
    V2025_06_18,
    /// Icons, sampling with tools, streams that are polled.
    V2025_11_25,
    /// No handshake and no sessions: every request stands for itself.
    V2026_07_28,
}

impl Version {
    /// All of them, the oldest first.
    pub const ALL: [Version; 5] = [
        Version::V2024_11_05,
        Version::V2025_03_26,
        Version::V2025_06_18,
        Version::V2025_11_25,
        Version::V2026_07_28,
    ];

    /// The newest with a handshake.
    pub const LATEST_WITH_HANDSHAKE: Version = Version::V2025_11_25;

    /// The version of this name, if there is one.
    pub fn parse(name: &str) -> Option<Version> {
        Version::ALL.into_iter().find(|it| it.as_str() == name)
    }

    /// Its name, a date.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V2024_11_05 => "2024-11-05",
            Version::V2025_03_26 => "2025-03-26",
            Version::V2025_06_18 => "2025-06-18",
            Version::V2025_11_25 => "2025-11-25",
            Version::V2026_07_28 => "2026-07-28",
        }
    }

    /// What a server answers to an `initialize` that asks for this name: the same, or else the newest that has
    /// a handshake (2025-11-25, "Lifecycle", "Version Negotiation").
    pub fn negotiate(asked: &str) -> Version {
        Version::parse(asked)
            .filter(|it| it.has_handshake())
            .unwrap_or(Version::LATEST_WITH_HANDSHAKE)
    }

    /// It begins with `initialize` and may have sessions.
    pub fn has_handshake(self) -> bool {
        self < Version::V2026_07_28
    }

    /// Several messages may come in one array.
    pub fn has_batches(self) -> bool {
        self <= Version::V2025_03_26
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_handshake_version_is_agreed_to_and_any_other_answered_with_the_newest() {
        let agreed = |asked| Version::negotiate(asked).as_str();
        assert_eq!(agreed("2024-11-05"), "2024-11-05");
        assert_eq!(agreed("2025-11-25"), "2025-11-25");
        assert_eq!(agreed("2026-07-28"), "2025-11-25");
        assert_eq!(agreed("1999-01-01"), "2025-11-25");
    }

    #[test]
    fn names_lead_back_to_their_versions_and_sort_like_them() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()), Some(version));
        }
        assert!(Version::ALL.is_sorted_by_key(|it| it.as_str()));
        assert_eq!(Version::parse("2025-06"), None);
    }
}
