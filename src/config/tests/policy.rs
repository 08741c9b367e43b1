use super::*;

#[test]
fn rules_and_keys_are_read() {
    let config = ok(indoc! {r#"
        api_keys = ["env:KEY"]
        upstreams = [{ name = "a", base_url = "http://a" }]

        [keys.alice]
        key = "file:closed.key"
        tools = ["files__*"]

        [policy]
        default = "deny"

        [[policy.rules]]
        tools = ["files__*"]
        keys = ["alice", "api_keys[0]", "ghost"]
        args = { "/size" = { min = 1, max = 10, not = { one_of = [3, 5.0] } } }
        action = "allow"
        reason = "small files"
    "#});
    let names = config.server.api_keys.iter().map(|it| it.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["api_keys[0]", "alice"]);
    let scopes = config.policy.keys.iter().map(|it| it.name.as_str());
    assert_eq!(scopes.collect::<Vec<_>>(), ["api_keys[0]", "alice"]);
    let rule = &config.policy.rules[0];
    assert_eq!(rule.name, "policy.rules[0]");
    let holds = |size: serde_json::Value| {
        let arguments = serde_json::json!({"size": size});
        rule.args[0].holds(arguments.as_object().unwrap())
    };
    let sizes = [0, 1, 3, 5, 10, 11].map(|size| holds(size.into()));
    assert_eq!(sizes, [false, true, false, false, true, false]);
    assert_eq!(
        lines(&config.warnings),
        "policy.rules[0].keys: `ghost` matches no key"
    );
}

/// The one problem of a file begins so.
#[track_caller]
fn wrong(text: &str, start: &str) {
    let problems = lines(&from_toml(text).expect_err("the file should be refused"));
    assert!(
        problems.starts_with(start) && !problems.contains('\n'),
        "{problems}"
    );
}

#[test]
fn what_is_wrong_with_a_rule_or_a_key_is_named() {
    wrong(
        "[keys.a]\ntools = ['x']",
        "keys.a: needs `key`, such as `key = \"env:NAME\"`",
    );
    wrong(
        "api_keys = ['env:KEY']\n[keys.a]\nkey = 'env:KEY'",
        "keys.a.key: is the same as another key",
    );
    wrong("[keys.a]\nkey = 'env:KEY'\ntool = ['x']", "keys.a.tool: ");
    wrong(
        "[policy]\ndefault = 'aks'",
        "policy.default: unknown action `aks`",
    );
    wrong(
        "[[policy.rules]]\ntools = ['x']",
        "policy.rules[0]: needs `action`",
    );
    wrong(
        "[servers.a]\nurl = 'http://a'\nrisk = 4",
        "servers.a.risk: must be 1 (low), 2 (medium) or 3 (high), not 4",
    );
    let rule = |args: &str| format!("[[policy.rules]]\naction = 'deny'\nargs = {{ {args} }}");
    wrong(
        &rule("path = { equals = 1 }"),
        "policy.rules[0].args.\"path\": the place of a value begins with `/`",
    );
    wrong(
        &rule("'/path' = {}"),
        "policy.rules[0].args.\"/path\": needs a test",
    );
    wrong(
        &rule("'/path' = { not = {} }"),
        "policy.rules[0].args.\"/path\".not: needs a test",
    );
    wrong(
        &rule("'/path' = { regex = '(' }"),
        "policy.rules[0].args.\"/path\".regex: ",
    );
    wrong(
        &rule("'/path' = { inside = 'data' }"),
        "policy.rules[0].args.\"/path\".inside: must be an absolute path",
    );
    wrong(&rule("'/path' = { equal = 1 }"), "policy.rules[0].");
}

#[test]
fn an_empty_list_of_patterns_is_refused_because_it_would_mean_everything() {
    let advice = "is empty; leave it out for everything, or write `[\"!*\"]` for nothing";
    refused(
        "[keys.a]\nkey = 'k-1234567'\ntools = []",
        &format!("keys.a.tools: {advice}"),
    );
    refused(
        "[[policy.rules]]\naction = 'deny'\nservers = []",
        &format!("policy.rules[0].servers: {advice}"),
    );
    refused(
        "[[policy.rules]]\naction = 'deny'\ntools = ['!']",
        "policy.rules[0].tools[0]: must be a pattern, such as `files__*` or `!files__delete`",
    );
}
