//! May this call run?
//!
//! One question, asked before every call whatever face it came through. Nothing that runs a tool takes a call
//! without an [`Admitted`], and only [`Policy::evaluate`] makes one, so no face can go past it.
//!
//! In this order, and the first that decides counts: what the request selected, what its key may see, isolation where
//! the risk asks for it, the rules of the configuration, the risk of the tool, its annotations, the default.
//!
//! Where the answer is "a person is asked first", the tool is [`Admitted`] too, with [`Admitted::asked`]; what runs calls
//! looks at it.

pub mod condition;
pub mod isolation;

use std::{
    borrow::Cow,
    ops::Deref,
    sync::{Arc, Weak},
};

use self::condition::Condition;
use crate::catalog::{Offered, Risk, ToolFilter, ToolRisk};
use toolway_protocol::tool::JsonObject;

/// What the configuration says about calls (`[policy]` and `[keys.NAME]`).
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The first that matches decides.
    pub rules: Vec<Rule>,
    /// Asks about tools that say of themselves that they may destroy something.
    pub use_annotations: bool,
    /// Where nothing else decides.
    pub default: Action,
    /// What each key may see, by its [`KeyId`].
    pub keys: Vec<KeyScope>,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// It runs.
    #[default]
    Allow,
    /// It runs once a person has agreed.
    Ask,
    /// It does not run, and the model is told why.
    Deny,
}

impl Action {
    /// The word of the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Allow => "allow",
            Action::Ask => "ask",
            Action::Deny => "deny",
        }
    }
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Where it stands in the configuration.
    pub name: String,
    /// The servers it is about.
    pub servers: ToolFilter,
    /// The tools it is about, by their offered names.
    pub tools: ToolFilter,
    /// The keys it is about, by their names; `None`: all requests, also those without a key.
    pub keys: Option<ToolFilter>,
    /// What has to be true of the arguments.
    pub args: Vec<Condition>,
    /// What it says.
    pub action: Action,
    /// Why, for the model.
    pub reason: Option<String>,
}

/// The place of a key among those of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(pub u16);

/// What the clients with one key may see.
#[derive(Clone, Debug)]
pub struct KeyScope {
    /// Its name, which the log and the rules use.
    pub name: String,
    /// Tools, by their offered names.
    pub tools: ToolFilter,
    /// Servers.
    pub servers: ToolFilter,
}

/// What decides on the calls of one client.
#[derive(Clone, Debug, Default)]
pub struct ClientPolicy {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The client's key.
    pub key: Option<KeyId>,
}

/// A call that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct CallRequest<'a> {
    /// The tool.
    pub tool: &'a Arc<Offered>,
    /// It is among the tools that the request, or the endpoint, shows.
    pub is_shown: bool,
    /// The key of the request.
    pub key: Option<KeyId>,
    /// The arguments.
    pub arguments: &'a JsonObject,
}

/// The answer to "may this call run?".
#[derive(Debug)]
pub enum Verdict {
    /// It may.
    Allow(Admitted),
    /// It may once a person has agreed; [`Admitted::asked`] says why.
    Ask(Admitted),
    /// It may not.
    Deny {
        /// Why, for the model.
        reason: String,
        /// The rule that says so.
        rule: String,
    },
}

/// A tool that may be called, at once or once a person has agreed.
#[derive(Clone, Debug)]
pub struct Admitted {
    tool: Arc<Offered>,
    asked: Option<Arc<Asked>>,
    rule: Arc<str>,
}

/// Why a person is asked before a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The rule that says so.
    pub rule: String,
    /// Its reason.
    pub reason: Option<String>,
}

impl Admitted {
    /// Why a person has to agree first; `None`: the call may run at once.
    pub fn asked(&self) -> Option<&Asked> {
        self.asked.as_deref()
    }

    /// The rule that has decided.
    pub fn rule(&self) -> &str {
        &self.rule
    }
}

impl Admitted {
    /// The tool, as long as it is offered as it is.
    pub fn downgrade(&self) -> Weak<Offered> {
        Arc::downgrade(&self.tool)
    }
}

impl Deref for Admitted {
    type Target = Offered;

    fn deref(&self) -> &Offered {
        &self.tool
    }
}

/// One rule that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'p> {
    /// Its name.
    pub rule: Cow<'p, str>,
    /// What it says; `None` if it does not match.
    pub action: Option<Action>,
    /// Why.
    pub reason: Option<Cow<'p, str>>,
}

impl Policy {
    /// Decides on a call.
    pub fn evaluate(&self, request: &CallRequest<'_>) -> Verdict {
        let decisive = self.steps(request).find(|step| step.action.is_some());
        let admitted = |rule: &str, asked| Admitted {
            tool: Arc::clone(request.tool),
            asked,
            rule: rule.into(),
        };
        match decisive {
            Some(Step {
                rule,
                action: Some(Action::Deny),
                reason,
            }) => Verdict::Deny {
                reason: match reason {
                    Some(reason) => format!("{reason} ({rule})"),
                    None => format!("{rule} does not allow it"),
                },
                rule: rule.into_owned(),
            },
            Some(Step {
                rule,
                action: Some(Action::Ask),
                reason,
            }) => Verdict::Ask(admitted(
                &rule,
                Some(Arc::new(Asked {
                    rule: rule.clone().into_owned(),
                    reason: reason.map(Cow::into_owned),
                })),
            )),
            allowing => {
                let rule = allowing.as_ref().map_or("policy.default", |it| &it.rule);
                Verdict::Allow(admitted(rule, None))
            }
        }
    }

    /// The rules that are looked at, up to the one that decides.
    pub fn explain(&self, request: &CallRequest<'_>) -> Vec<Step<'_>> {
        let mut steps = Vec::new();
        for step in self.steps(request) {
            let decides = step.action.is_some();
            steps.push(step);
            if decides {
                break;
            }
        }
        steps
    }

    /// Whether clients with this key see the tool: some call of it may be allowed.
    pub fn shows(&self, tool: &Offered, key: Option<KeyId>) -> bool {
        let scope = self.scope(key);
        let about = |rule: &&Rule| rule.is_about(tool, scope.map(|it| it.name.as_str()));
        // A rule with conditions may or may not match.
        let mut rules = self.rules.iter().filter(about);
        let decides = |rule: &&Rule| rule.args.is_empty() || rule.action != Action::Deny;
        let action = match rules.find(decides) {
            Some(rule) => rule.action,
            None => self.below_rules(tool),
        };
        // A tool that is refused because it is not isolated stays listed, so that the refusal can say why.
        scope.is_none_or(|scope| scope.shows(tool)) && action != Action::Deny
    }

    /// Every client sees every tool.
    pub fn shows_everything(&self) -> bool {
        self.rules.iter().all(|rule| rule.action != Action::Deny)
            && self.default != Action::Deny
            && self.keys.iter().all(KeyScope::is_everything)
    }

    fn steps<'p>(&'p self, request: &CallRequest<'_>) -> impl Iterator<Item = Step<'p>> {
        let CallRequest {
            tool,
            is_shown,
            key,
            arguments,
        } = *request;
        let scope = self.scope(key);
        let selection = Step {
            rule: "selection".into(),
            action: (!is_shown).then_some(Action::Deny),
            reason: (!is_shown).then(|| {
                let name = &tool.name;
                format!("the tool `{name}` is not among the tools chosen for this request").into()
            }),
        };
        let of_key = scope.map(|scope| Step {
            rule: format!("keys.{}", scope.name).into(),
            action: (!scope.shows(tool)).then_some(Action::Deny),
            reason: None,
        });
        let key = scope.map(|scope| scope.name.as_str());
        let rules = self.rules.iter().map(move |rule| {
            let is_match =
                rule.is_about(tool, key) && rule.args.iter().all(|it| it.holds(arguments));
            Step {
                rule: rule.name.as_str().into(),
                action: is_match.then_some(rule.action),
                reason: rule.reason.as_deref().filter(|_| is_match).map(Cow::from),
            }
        });
        [selection]
            .into_iter()
            .chain(of_key)
            .chain(not_isolated(tool))
            .chain(rules)
            .chain(self.steps_below_rules(tool))
    }

    /// What is looked at where no rule matches; one of the steps decides.
    fn steps_below_rules<'p>(&self, tool: &Offered) -> impl Iterator<Item = Step<'p>> {
        let risk = tool.risk.as_ref().map(|risk| Step {
            rule: risk_name(tool).into(),
            action: Some(match risk.level {
                // One of high risk that is not isolated was refused before.
                Risk::Low | Risk::High => Action::Allow,
                Risk::Medium => Action::Ask,
            }),
            reason: None,
        });
        let is_destructive = tool.tool.annotations.destructive == Some(true)
            && tool.tool.annotations.read_only != Some(true);
        let annotations = self.use_annotations.then(|| Step {
            rule: "policy.use_annotations".into(),
            action: is_destructive.then_some(Action::Ask),
            reason: is_destructive.then(|| "the tool says that it may destroy something".into()),
        });
        let default = Step {
            rule: "policy.default".into(),
            action: Some(self.default),
            reason: None,
        };
        risk.into_iter().chain(annotations).chain([default])
    }

    fn below_rules(&self, tool: &Offered) -> Action {
        let mut steps = self.steps_below_rules(tool);
        steps.find_map(|step| step.action).unwrap_or(self.default)
    }

    /// The name of a key.
    pub fn key_name(&self, key: Option<KeyId>) -> Option<&str> {
        self.scope(key).map(|it| it.name.as_str())
    }

    /// The key of this name.
    pub fn key_of(&self, name: Option<&str>) -> Option<KeyId> {
        let at = self
            .keys
            .iter()
            .position(|it| Some(it.name.as_str()) == name)?;
        u16::try_from(at).ok().map(KeyId)
    }

    fn scope(&self, key: Option<KeyId>) -> Option<&KeyScope> {
        key.and_then(|KeyId(key)| self.keys.get(usize::from(key)))
    }
}

/// A call of high risk runs only where its server is isolated, whatever a rule says.
fn not_isolated<'p>(tool: &Offered) -> Option<Step<'p>> {
    let is_refused = |it: &ToolRisk| it.level == Risk::High && !it.is_isolated;
    tool.risk.as_ref().is_some_and(is_refused).then(|| Step {
        rule: risk_name(tool).into(),
        action: Some(Action::Deny),
        reason: Some(
            "a tool of risk 3 runs only on an isolated server, and this one is not isolated".into(),
        ),
    })
}

/// Where the risk of a tool is configured.
fn risk_name(tool: &Offered) -> String {
    let pattern = tool.risk.as_ref().and_then(|it| it.pattern.as_deref());
    match pattern {
        Some(pattern) => format!("servers.{}.risk_of.\"{pattern}\"", tool.server),
        None => format!("servers.{}.risk", tool.server),
    }
}

impl Rule {
    /// The rule is about calls of this tool with this key.
    fn is_about(&self, tool: &Offered, key: Option<&str>) -> bool {
        let is_about_key = match (&self.keys, key) {
            (Some(keys), Some(key)) => keys.shows(key),
            (Some(_), None) => false,
            (None, _) => true,
        };
        is_about_key
            && self.servers.shows(tool.server.as_str())
            && self.tools.shows(tool.name.as_str())
    }
}

impl KeyScope {
    fn shows(&self, tool: &Offered) -> bool {
        self.servers.shows(tool.server.as_str()) && self.tools.shows(tool.name.as_str())
    }

    fn is_everything(&self) -> bool {
        self.servers.is_everything() && self.tools.is_everything()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        condition::{Test, TestKind},
        *,
    };
    use crate::catalog::{Catalog, ServerRisk, ServerTools};
    use serde_json::json;
    use toolway_protocol::tool::{Annotations, ServerId, Tool};

    fn filter(patterns: &[&str]) -> ToolFilter {
        let patterns: Vec<String> = patterns.iter().map(|it| (*it).to_owned()).collect();
        ToolFilter::new(&patterns)
    }

    fn rule(number: usize, tools: &[&str], keys: Option<&[&str]>, action: Action) -> Rule {
        Rule {
            name: format!("policy.rules[{number}]"),
            servers: ToolFilter::default(),
            tools: filter(tools),
            keys: keys.map(filter),
            args: Vec::new(),
            action,
            reason: None,
        }
    }

    fn inside(folder: &str) -> Vec<Condition> {
        let test = Test {
            all: vec![TestKind::Inside(folder.to_owned())],
            is_negated: false,
        };
        vec![Condition {
            pointer: "/path".to_owned(),
            tests: vec![test],
        }]
    }

    /// The tools `read` and `write` of the server `files`, and `get` of `web`.
    fn catalog() -> Catalog {
        let tool = |name: &str| Tool {
            name: name.to_owned(),
            title: None,
            description: None,
            input_schema: JsonObject::new(),
            output_schema: None,
            annotations: Annotations::default(),
            extra: JsonObject::new(),
        };
        let server = |name: &str, tools: &[&str]| ServerTools {
            server: ServerId::parse(name).unwrap(),
            stateful: false,
            risk: Default::default(),
            tools: tools.iter().map(|it| tool(it)).collect(),
            dropped: Vec::new(),
        };
        Catalog::build(&[server("files", &["read", "write"]), server("web", &["get"])])
    }

    /// The rule that refuses the call; `None` if it may run.
    fn refused_by(
        policy: &Policy,
        tool: &str,
        key: Option<u16>,
        arguments: &serde_json::Value,
    ) -> Option<String> {
        let catalog = catalog();
        let request = CallRequest {
            tool: catalog.find(tool).unwrap(),
            is_shown: true,
            key: key.map(KeyId),
            arguments: arguments.as_object().unwrap(),
        };
        match policy.evaluate(&request) {
            Verdict::Allow(admitted) | Verdict::Ask(admitted) => {
                assert_eq!(admitted.name.as_str(), tool);
                assert!(
                    policy.shows(request.tool, request.key),
                    "what is allowed is shown"
                );
                None
            }
            Verdict::Deny { rule, .. } => Some(rule),
        }
    }

    /// Two keys, `alice` for `files`, `bob` for everything.
    fn policy(rules: Vec<Rule>, default: Action) -> Policy {
        let key = |name: &str, servers: &[&str]| KeyScope {
            name: name.to_owned(),
            tools: ToolFilter::default(),
            servers: filter(servers),
        };
        Policy {
            rules,
            use_annotations: false,
            default,
            keys: vec![key("alice", &["files"]), key("bob", &[])],
        }
    }

    #[test]
    fn a_tool_that_is_not_shown_is_refused_by_the_rule_of_selection() {
        let catalog = catalog();
        let request = CallRequest {
            tool: catalog.find("web__get").unwrap(),
            is_shown: false,
            key: None,
            arguments: &JsonObject::new(),
        };
        let verdict = Policy::default().evaluate(&request);
        assert!(
            matches!(verdict, Verdict::Deny { rule, reason } if rule == "selection" && reason.contains("web__get"))
        );
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_then_the_default() {
        let mut in_data = rule(0, &["files__write"], None, Action::Allow);
        in_data.args = inside("/srv/data");
        let no_writes = rule(1, &["*__write"], None, Action::Deny);
        let policy = policy(vec![in_data, no_writes], Action::Allow);
        let data = json!({"path": "/srv/data/x"});
        let etc = json!({"path": "/etc/passwd"});
        assert_eq!(refused_by(&policy, "files__write", None, &data), None);
        let rule = refused_by(&policy, "files__write", None, &etc);
        assert_eq!(rule.as_deref(), Some("policy.rules[1]"));
        assert_eq!(refused_by(&policy, "files__read", None, &etc), None);
        assert!(!policy.shows_everything());
    }

    #[test]
    fn a_default_of_deny_leaves_what_a_rule_allows() {
        let policy = policy(
            vec![rule(0, &["web__*"], None, Action::Allow)],
            Action::Deny,
        );
        assert_eq!(refused_by(&policy, "web__get", None, &json!({})), None);
        let rule = refused_by(&policy, "files__read", None, &json!({}));
        assert_eq!(rule.as_deref(), Some("policy.default"));
        assert!(!policy.shows(catalog().find("files__read").unwrap(), None));
    }

    #[test]
    fn a_key_sees_its_tools_and_rules_may_be_about_keys() {
        let no_reads = rule(0, &["*__read"], Some(&["bob"]), Action::Deny);
        let policy = policy(vec![no_reads], Action::Allow);
        let by = |tool, key| refused_by(&policy, tool, key, &json!({}));
        assert_eq!(by("files__read", Some(0)), None);
        assert_eq!(by("web__get", Some(0)).as_deref(), Some("keys.alice"));
        assert_eq!(
            by("files__read", Some(1)).as_deref(),
            Some("policy.rules[0]")
        );
        assert_eq!(by("web__get", Some(1)), None);
        assert_eq!(by("files__read", None), None, "the rule is about a key");
    }

    /// What is said of a call of `files__write` with this risk, and the rule that says so.
    fn decided(policy: &Policy, risk: ServerRisk, destructive: bool) -> (Action, String) {
        let mut server = ServerTools {
            server: ServerId::parse("files").unwrap(),
            stateful: false,
            risk,
            tools: vec![catalog().find("files__write").unwrap().tool.clone()],
            dropped: Vec::new(),
        };
        server.tools[0].annotations.destructive = destructive.then_some(true);
        let catalog = Catalog::build(&[server]);
        let request = CallRequest {
            tool: catalog.find("files__write").unwrap(),
            is_shown: true,
            key: None,
            arguments: &JsonObject::new(),
        };
        let last = policy.explain(&request).pop().unwrap();
        let action = match policy.evaluate(&request) {
            Verdict::Allow(tool) => {
                assert_eq!(tool.asked(), None);
                Action::Allow
            }
            Verdict::Ask(tool) => {
                assert_eq!(tool.asked().unwrap().rule, last.rule);
                Action::Ask
            }
            Verdict::Deny { rule, .. } => {
                assert_eq!(rule, last.rule);
                Action::Deny
            }
        };
        assert_eq!(last.action, Some(action));
        (action, last.rule.into_owned())
    }

    #[test]
    fn rules_go_before_risk_risk_before_annotations_and_annotations_before_the_default() {
        let risk = |server, pattern: Option<Risk>| ServerRisk {
            server,
            is_isolated: false,
            tools: pattern
                .map(|it| ("wr*".to_owned(), it))
                .into_iter()
                .collect(),
        };
        let (low, medium, high) = (Some(Risk::Low), Some(Risk::Medium), Some(Risk::High));
        let mut bare = policy(Vec::new(), Action::Deny);
        let by = |policy: &Policy, risk, destructive| decided(policy, risk, destructive);
        let said = |action, rule: &str| (action, rule.to_owned());
        let none = || risk(None, None);
        assert_eq!(
            by(&bare, none(), true),
            said(Action::Deny, "policy.default")
        );
        bare.use_annotations = true;
        let annotations = said(Action::Ask, "policy.use_annotations");
        assert_eq!(by(&bare, none(), true), annotations);
        assert_eq!(
            by(&bare, none(), false),
            said(Action::Deny, "policy.default")
        );
        let server = said(Action::Allow, "servers.files.risk");
        assert_eq!(by(&bare, risk(low, None), true), server);
        let tool = said(Action::Ask, "servers.files.risk_of.\"wr*\"");
        assert_eq!(by(&bare, risk(low, medium), false), tool);
        let ruled = policy(vec![rule(0, &["*"], None, Action::Allow)], Action::Deny);
        assert_eq!(
            by(&ruled, risk(medium, None), true),
            said(Action::Allow, "policy.rules[0]")
        );
        let refused = said(Action::Deny, "servers.files.risk");
        assert_eq!(
            by(&ruled, risk(high, None), true),
            refused,
            "no rule lets it out"
        );
        let isolated = ServerRisk {
            is_isolated: true,
            ..risk(high, None)
        };
        assert_eq!(
            by(&bare, isolated, true),
            said(Action::Allow, "servers.files.risk")
        );
    }

    #[test]
    fn a_tool_that_is_asked_about_is_shown() {
        let asks = policy(vec![rule(0, &["web__*"], None, Action::Ask)], Action::Deny);
        let (catalog, none) = (catalog(), None);
        assert!(asks.shows(catalog.find("web__get").unwrap(), none));
        assert!(!asks.shows(catalog.find("files__read").unwrap(), none));
        let asks = policy(Vec::new(), Action::Ask);
        assert!(asks.shows(catalog.find("files__read").unwrap(), none));
    }

    #[test]
    fn an_explanation_ends_with_the_rule_that_decides() {
        let mut denied = rule(1, &["web__*"], None, Action::Deny);
        denied.reason = Some("no web".to_owned());
        let policy = policy(
            vec![rule(0, &["files__*"], None, Action::Allow), denied],
            Action::Allow,
        );
        let catalog = catalog();
        let request = CallRequest {
            tool: catalog.find("web__get").unwrap(),
            is_shown: true,
            key: Some(KeyId(1)),
            arguments: &JsonObject::new(),
        };
        let steps = policy.explain(&request);
        let found: Vec<_> = steps.iter().map(|it| (&*it.rule, it.action)).collect();
        let expected = [
            ("selection", None),
            ("keys.bob", None),
            ("policy.rules[0]", None),
            ("policy.rules[1]", Some(Action::Deny)),
        ];
        assert_eq!(found, expected);
        let verdict = policy.evaluate(&request);
        assert!(
            matches!(verdict, Verdict::Deny { reason, .. } if reason == "no web (policy.rules[1])")
        );
    }
}
