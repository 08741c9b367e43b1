//! How urgent a log message is (RFC 5424), and who wants to hear it.

/// The urgency of a log message; a later one is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For debugging.
    Debug,
    /// How it goes.
    Info,
    /// Worth knowing.
    Notice,
    /// Odd.
    Warning,
    /// Something failed.
    Error,
    /// Something that much depends on failed.
    Critical,
    /// Action must be taken immediately.
    Alert,
    /// Nothing works any more.
    Emergency,
}

impl Level {
    /// All of them, the least urgent first.
    pub const ALL: [Level; 8] = [
        Level::Debug,
        Level::Info,
        Level::Notice,
        Level::Warning,
        Level::Error,
        Level::Critical,
        Level::Alert,
        Level::Emergency,
    ];

    /// The level of this name, if there is one.
    pub fn parse(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|it| it.as_str() == name)
    }

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Notice => "notice",
            Level::Warning => "warning",
            Level::Error => "error",
            Level::Critical => "critical",
            Level::Alert => "alert",
            Level::Emergency => "emergency",
        }
    }

    /// A client with this level receives a message of that level; messages of unknown levels are received.
    pub fn hears(self, message: &str) -> bool {
        Level::parse(message).is_none_or(|it| it >= self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_warnings_hears_errors_and_no_infos() {
        assert!(Level::Warning.hears("error") && Level::Warning.hears("warning"));
        assert!(!Level::Warning.hears("info"));
        assert!(Level::Emergency.hears("unheard-of"));
    }

    #[test]
    fn names_lead_back_to_their_levels() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.as_str()), Some(level));
        }
        assert_eq!(Level::parse("Warning"), None);
        assert!(Level::ALL.is_sorted());
    }
}
