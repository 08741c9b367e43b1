//! Keys of clients, and what the policy says about calls.

use std::path::Path;

use regex::Regex;

use super::{
    check::Check,
    keys::unknown,
    raw::{RawApprovals, RawCondition, RawConfig, RawRule},
};
use crate::{
    gateway::confirmations::{self, WhenAsked},
    server::ApiKey,
};
use toolway_core::{
    catalog::ToolFilter,
    policy::{
        Action, KeyScope, Policy, Rule,
        condition::{Condition, Test, TestKind},
    },
};

impl Check<'_> {
    /// The keys of clients, those of `api_keys` first, and what each may see.
    pub(super) fn keys(&mut self, raw: &RawConfig) -> Vec<(ApiKey, KeyScope)> {
        let mut keys = Vec::new();
        for (i, key) in raw.api_keys.iter().flatten().enumerate() {
            let name = format!("api_keys[{i}]");
            if let Some(secret) = self.key(&name, key) {
                let scope = KeyScope {
                    name: name.clone(),
                    tools: ToolFilter::default(),
                    servers: ToolFilter::default(),
                };
                let key = ApiKey {
                    name,
                    secret,
                    admin: false,
                };
                keys.push((key, scope));
            }
        }
        for (name, raw) in &raw.client_keys {
            let path = format!("keys.{name}");
            let Some(key) = &raw.key else {
                self.problem(&path, "needs `key`, such as `key = \"env:NAME\"`");
                continue;
            };
            let tools = self.patterns(&format!("{path}.tools"), raw.tools.as_deref());
            let servers = self.patterns(&format!("{path}.servers"), raw.servers.as_deref());
            let Some(secret) = self.key(&format!("{path}.key"), key) else {
                continue;
            };
            if keys
                .iter()
                .any(|(other, _): &(ApiKey, _)| other.secret == secret)
            {
                self.problem(format_args!("{path}.key"), "is the same as another key");
            }
            let scope = KeyScope {
                name: name.clone(),
                tools,
                servers,
            };
            let key = ApiKey {
                name: name.clone(),
                secret,
                admin: raw.admin.unwrap_or(false),
            };
            keys.push((key, scope));
        }
        if u16::try_from(keys.len()).is_err() {
            self.problem("keys", "there are more than 65,535 keys");
        }
        keys
    }

    /// The rules.
    pub(super) fn policy(&mut self, raw: &RawConfig, keys: Vec<KeyScope>) -> Policy {
        let default = raw.policy.default.as_deref();
        let default = default.and_then(|it| self.action("policy.default", it));
        let rules = raw.policy.rules.iter().enumerate();
        Policy {
            rules: rules
                .filter_map(|(i, rule)| self.rule(format!("policy.rules[{i}]"), rule, &keys))
                .collect(),
            use_annotations: raw.policy.use_annotations.unwrap_or(false),
            default: default.unwrap_or_default(),
            keys,
        }
    }

    /// How a person is asked.
    pub(super) fn approvals(&mut self, raw: &RawApprovals) -> confirmations::Config {
        let usual = confirmations::Config::default();
        let chat = match raw.chat.as_deref() {
            None => usual.chat,
            Some("wait") => WhenAsked::Waits,
            Some("end_turn") => WhenAsked::Ends,
            Some(other) => {
                let message = unknown("value", other, &["wait", "end_turn"]);
                self.problem("approvals.chat", message);
                usual.chat
            }
        };
        confirmations::Config {
            chat,
            wait: self.time("approvals.wait", raw.wait, usual.wait),
            expires: self.time("approvals.expires", raw.expires, usual.expires),
        }
    }

    fn rule(&mut self, name: String, raw: &RawRule, known: &[KeyScope]) -> Option<Rule> {
        let servers = self.patterns(&format!("{name}.servers"), raw.servers.as_deref());
        let tools = self.patterns(&format!("{name}.tools"), raw.tools.as_deref());
        let path = format!("{name}.keys");
        let keys = raw.keys.as_deref();
        let keys = keys.map(|keys| self.patterns(&path, Some(keys)));
        if let Some(keys) = &keys {
            let names: Vec<&str> = known.iter().map(|it| it.name.as_str()).collect();
            for pattern in keys.unmatched(&names) {
                self.warn(&path, format_args!("`{pattern}` matches no key"));
            }
        }
        let args = raw.args.iter().flatten();
        let args: Vec<_> = args
            .filter_map(|(pointer, raw)| self.condition(&name, pointer, raw))
            .collect();
        let action = match &raw.action {
            Some(written) => self.action(&format!("{name}.action"), written),
            None => {
                self.problem(&name, "needs `action`: `allow`, `ask` or `deny`");
                None
            }
        };
        Some(Rule {
            servers,
            tools,
            keys,
            args,
            action: action?,
            reason: raw.reason.clone(),
            name,
        })
    }

    fn action(&mut self, path: &str, written: &str) -> Option<Action> {
        match written {
            "allow" => Some(Action::Allow),
            "ask" => Some(Action::Ask),
            "deny" => Some(Action::Deny),
            other => {
                self.problem(path, unknown("action", other, &["allow", "ask", "deny"]));
                None
            }
        }
    }

    fn patterns(&mut self, path: &str, written: Option<&[String]>) -> ToolFilter {
        if written.is_some_and(<[_]>::is_empty) {
            let advice = "is empty; leave it out for everything, or write `[\"!*\"]` for nothing";
            self.problem(path, advice);
        }
        let written = written.unwrap_or_default();
        let is_odd = |it: &String| it.trim_start_matches('!').trim().is_empty();
        let odd = written.iter().position(is_odd);
        if let Some(at) = odd {
            self.problem(
                format_args!("{path}[{at}]"),
                "must be a pattern, such as `files__*` or `!files__delete`",
            );
        }
        ToolFilter::new(written)
    }

    fn condition(&mut self, rule: &str, pointer: &str, raw: &RawCondition) -> Option<Condition> {
        let path = format!("{rule}.args.\"{pointer}\"");
        if !pointer.starts_with('/') {
            let message = "the place of a value begins with `/`: `/path`, `/user/name`, `/list/0`";
            self.problem(&path, message);
            return None;
        }
        let mut tests = vec![self.test(&path, raw, false)?];
        if let Some(not) = &raw.not {
            if not.not.is_some() {
                self.problem(
                    format_args!("{path}.not.not"),
                    "a `not` cannot hold another one",
                );
            }
            tests.push(self.test(&format!("{path}.not"), not, true)?);
        }
        tests.retain(|test| !test.all.is_empty());
        Some(Condition {
            pointer: pointer.to_owned(),
            tests,
        })
    }

    /// The tests of one table, without its `not`.
    fn test(&mut self, path: &str, raw: &RawCondition, is_negated: bool) -> Option<Test> {
        let before = self.problems.len();
        let regex = raw.regex.as_deref().and_then(|written| {
            let regex = Regex::new(written);
            let say = |error: regex::Error| {
                let error = error.to_string();
                let why = error.lines().last().unwrap_or_default();
                let why = why.trim_start_matches("error: ");
                let message = format_args!("is no regular expression: {why}");
                self.problem(format_args!("{path}.regex"), message);
            };
            regex.map_err(say).ok()
        });
        let inside = raw.inside.as_deref().filter(|folder| {
            let is_absolute = Path::new(folder).is_absolute();
            if !is_absolute {
                self.problem(
                    format_args!("{path}.inside"),
                    "must be an absolute path, because the server's working directory is not known",
                );
            }
            is_absolute
        });
        let kinds = [
            raw.equals.clone().map(TestKind::Equals),
            raw.one_of.clone().map(TestKind::OneOf),
            raw.glob.clone().map(TestKind::Glob),
            regex.map(TestKind::Regex),
            raw.min.map(TestKind::Min),
            raw.max.map(TestKind::Max),
            inside.map(|it| TestKind::Inside(it.to_owned())),
        ];
        let all: Vec<_> = kinds.into_iter().flatten().collect();
        if all.is_empty() && raw.not.is_none() && self.problems.len() == before {
            let tests = "`equals`, `one_of`, `glob`, `regex`, `min`, `max` or `inside`";
            self.problem(path, format_args!("needs a test: {tests}"));
            return None;
        }
        Some(Test { all, is_negated })
    }
}
