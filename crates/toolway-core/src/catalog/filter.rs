//! Which tools of one server are offered at all, as its configuration says.

use super::matches;

/// Patterns of a server's own tool names. A tool that they hide is on no list and cannot be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolFilter {
    shown: Vec<String>,
    hidden: Vec<String>,
}

impl ToolFilter {
    /// `*` stands for any characters. A pattern with `!` before it excludes, any other includes. A tool is shown
    /// if no pattern excludes it and a pattern includes it; without including patterns all others are shown. The order
    /// of the patterns does not matter.
    pub fn new(patterns: &[String]) -> ToolFilter {
        let mut filter = ToolFilter::default();
        for pattern in patterns {
            match pattern.strip_prefix('!') {
                Some(hidden) => filter.hidden.push(hidden.to_owned()),
                None => filter.shown.push(pattern.clone()),
            }
        }
        filter
    }

    /// The patterns that match none of these names, as they were written.
    pub fn unmatched(&self, names: &[&str]) -> Vec<String> {
        let is_unmatched = |pattern: &&String| !names.iter().any(|name| matches(pattern, name));
        let hidden = self.hidden.iter().filter(is_unmatched);
        let hidden = hidden.map(|pattern| format!("!{pattern}"));
        let shown = self.shown.iter().filter(is_unmatched).cloned();
        shown.chain(hidden).collect()
    }

    /// Every tool is shown.
    pub fn is_everything(&self) -> bool {
        self.shown.is_empty() && self.hidden.is_empty()
    }

    /// The tool of this name is shown.
    pub fn shows(&self, name: &str) -> bool {
        let is_match = |pattern: &String| matches(pattern, name);
        (self.shown.is_empty() || self.shown.iter().any(is_match))
            && !self.hidden.iter().any(is_match)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(patterns: &[&str], shown: &[&str], hidden: &[&str]) {
        let patterns: Vec<String> = patterns.iter().map(|it| (*it).to_owned()).collect();
        let filter = ToolFilter::new(&patterns);
        for name in shown {
            assert!(filter.shows(name), "{patterns:?} shows {name}");
        }
        for name in hidden {
            assert!(!filter.shows(name), "{patterns:?} hides {name}");
        }
    }

    #[test]
    fn patterns_that_match_nothing_are_known() {
        let patterns = ["read_*", "raed_*", "!delete", "!delte"].map(str::to_owned);
        let unmatched = ToolFilter::new(&patterns).unmatched(&["read_a", "delete"]);
        assert_eq!(unmatched, ["raed_*", "!delte"]);
    }

    #[test]
    fn what_a_pattern_hides_no_other_shows() {
        check(&[], &["a"], &[]);
        check(&["read_*"], &["read_a"], &["a"]);
        check(&["!delete_*"], &["a"], &["delete_a"]);
        check(&["a*", "!ab*"], &["a", "ac"], &["ab", "abc", "b"]);
        check(&["!ab*", "a*"], &["a", "ac"], &["ab", "abc", "b"]);
        check(&["!*"], &[], &["a"]);
    }
}
