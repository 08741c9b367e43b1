//! How long the result of a call serves again for calls that ask the same, and for whom.

use std::time::Duration;

use serde_json::Value;

use crate::catalog::{Offered, matches};
use toolway_protocol::tool::{JsonObject, ToolResult};

/// Longest time for which a server's own word is taken.
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// What the configuration says about the tools of one server (`servers.NAME.cache`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheRules {
    /// Patterns of the server's own tool names, and how long results last; the longest pattern first.
    rules: Vec<(String, Duration)>,
}

/// A result may serve again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// For so long.
    pub lasts: Duration,
    /// For every client, and not only for the one whose call it was.
    pub is_public: bool,
}

impl CacheRules {
    /// Of several patterns that match a tool, the longest counts.
    pub fn new(mut rules: Vec<(String, Duration)>) -> CacheRules {
        rules.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
        CacheRules { rules }
    }

    /// The patterns that match none of these names.
    pub fn unmatched(&self, names: &[&str]) -> Vec<String> {
        let patterns = self.rules.iter().map(|(pattern, _)| pattern);
        let is_unmatched = |pattern: &&String| !names.iter().any(|name| matches(pattern, name));
        patterns.filter(is_unmatched).cloned().collect()
    }

    fn configured(&self, tool: &str) -> Option<Duration> {
        let mut rules = self.rules.iter();
        let rule = rules.find(|(pattern, _)| matches(pattern, tool));
        rule.map(|(_, lasts)| *lasts)
    }

    /// Results of this tool may serve again: it does not say that it changes things, and it is named here or says that
    /// it changes nothing.
    pub fn may_keep(&self, tool: &Offered) -> bool {
        match self.configured(&tool.tool.name) {
            Some(lasts) => !lasts.is_zero() && !tool.tool.annotations.changes_things(),
            None => tool.is_read_only(),
        }
    }

    /// After a call of this tool, results of its server serve no more: it neither says that it changes nothing nor is
    /// named here.
    pub fn may_change(&self, tool: &Offered) -> bool {
        let is_named = self.configured(&tool.tool.name).is_some();
        !tool.is_read_only() && (!is_named || tool.tool.annotations.changes_things())
    }

    /// How long this result serves again: as configured, otherwise as its server says (`ttlMs` and `cacheScope` of
    /// 2026-07-28). `None`: not at all, as every error and every result that changes the state of a session.
    pub fn lifetime(&self, tool: &Offered, result: &ToolResult) -> Option<Lifetime> {
        if !self.may_keep(tool) || result.is_error || result.state_delta.is_some() {
            return None;
        }
        let hint = result.cache_hint;
        let lasts = match self.configured(&tool.tool.name) {
            Some(lasts) => lasts,
            None => Duration::from_millis(hint?.ttl_ms).min(MAX_LIFETIME),
        };
        (!lasts.is_zero()).then_some(Lifetime {
            lasts,
            is_public: hint.is_some_and(|hint| hint.is_public),
        })
    }
}

/// A text that two lists of arguments have in common exactly if they say the same, whatever the order of their members.
pub fn canonical(arguments: &JsonObject) -> String {
    let mut arguments = Value::Object(arguments.clone());
    arguments.sort_all_objects();
    arguments.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, ServerTools};
    use toolway_protocol::tool::{Annotations, CacheHint, ServerId, Tool};

    /// How many seconds a result lasts.
    #[track_caller]
    fn check(read_only: Option<bool>, rules: &[(&str, u64)], ttl_ms: Option<u64>, expected: u64) {
        let tool = Tool {
            name: "get_time".to_owned(),
            title: None,
            description: None,
            input_schema: JsonObject::new(),
            output_schema: None,
            annotations: Annotations {
                read_only,
                ..Annotations::default()
            },
            extra: JsonObject::new(),
        };
        let catalog = Catalog::build(&[ServerTools {
            server: ServerId::parse("s").unwrap(),
            stateful: false,
            risk: Default::default(),
            tools: vec![tool],
            dropped: Vec::new(),
        }]);
        let rules = rules
            .iter()
            .map(|(pattern, seconds)| ((*pattern).to_owned(), Duration::from_secs(*seconds)));
        let rules = CacheRules::new(rules.collect());
        let result = ToolResult {
            cache_hint: ttl_ms.map(|ttl_ms| CacheHint {
                ttl_ms,
                is_public: false,
            }),
            ..ToolResult::text("x")
        };
        let tool = &catalog.offered()[0];
        let lasts = rules.lifetime(tool, &result).map(|it| it.lasts.as_secs());
        assert_eq!(lasts.unwrap_or_default(), expected);
        let failed = ToolResult {
            is_error: true,
            ..result
        };
        assert_eq!(rules.lifetime(tool, &failed), None);
    }

    #[test]
    fn the_configuration_says_how_long_and_otherwise_the_server() {
        check(None, &[], None, 0);
        check(Some(true), &[], None, 0);
        check(Some(true), &[], Some(5000), 5);
        check(Some(true), &[("get_*", 60)], Some(5000), 60);
        check(None, &[("get_*", 60)], None, 60);
        check(Some(true), &[("get_*", 60), ("get_time", 0)], Some(5000), 0);
        check(Some(true), &[], Some(u64::MAX), 24 * 60 * 60);
    }

    #[test]
    fn a_server_is_not_believed_about_a_tool_that_may_change_something() {
        check(None, &[], Some(5000), 0);
        check(Some(false), &[("*", 60)], Some(5000), 0);
    }

    #[test]
    fn arguments_that_say_the_same_are_the_same() {
        let read = |text: &str| canonical(&serde_json::from_str(text).unwrap());
        assert_eq!(
            read(r#"{"a": {"x": 1, "y": [1, 2]}, "b": null}"#),
            read(r#"{"b": null, "a": {"y": [1, 2], "x": 1}}"#)
        );
        assert_ne!(read(r#"{"a": [1, 2]}"#), read(r#"{"a": [2, 1]}"#));
    }
}
