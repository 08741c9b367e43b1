//! The files of other MCP clients.

use toolway_core::{catalog::Risk, policy::Action};

use super::*;

#[track_caller]
fn server(text: &str) -> upstream::mcp::Config {
    let config = from_mcp(text).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    assert_eq!(config.servers.len(), 1);
    config.servers[0].clone()
}

#[track_caller]
fn check_http(text: &str, url: &str, kind: Option<HttpKind>) {
    let Transport::Http {
        url: found,
        kind: as_found,
        ..
    } = server(text).transport
    else {
        panic!("http")
    };
    assert_eq!((found.as_str(), as_found), (url, kind));
}

#[track_caller]
fn mcp_refused(text: &str, problem: &str) {
    assert_eq!(lines(&from_mcp(text).unwrap_err()), problem);
}

#[test]
fn what_runs_without_approval_there_is_allowed_by_rules_of_the_policy() {
    let text = indoc! {r#"
        {"mcpServers": {
            "s": {"command": "x", "alwaysAllow": ["a", "b"], "autoApprove": [], "trust": false},
            "t": {"command": "y", "trust": true}
        }}
    "#};
    let rules = from_mcp(text).unwrap().policy.rules;
    let names: Vec<&str> = rules.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "mcp.json: mcpServers.s.alwaysAllow",
            "mcp.json: mcpServers.t.trust"
        ]
    );
    assert!(rules.iter().all(|it| it.action == Action::Allow));
    let shows = |tool| rules[0].tools.shows(tool) && rules[0].servers.shows("s");
    assert!(shows("s__a") && shows("s__b") && !shows("s__c"));
    assert!(rules[1].tools.is_everything() && !rules[1].servers.shows("s"));
}

#[test]
fn the_risk_and_the_container_of_mcp_bridge_count() {
    let server = server(
        r#"{"mcpServers": {"s": {"command": "x", "riskLevel": 3,
            "docker": {"image": "node:20", "volumes": ["/a:/b"], "network": "none"}}}}"#,
    );
    assert_eq!(server.risk.server, Some(Risk::High));
    assert!(server.risk.is_isolated);
    let Transport::Stdio { isolation, .. } = server.transport else {
        panic!("stdio")
    };
    assert_eq!(isolation.unwrap().mounts.len(), 1);
    mcp_refused(
        r#"{"mcpServers": {"s": {"command": "x", "riskLevel": 9}}}"#,
        "mcp.json: mcpServers.s.risk: must be 1 (low), 2 (medium) or 3 (high), not 9",
    );
    mcp_refused(
        r#"{"mcpServers": {"s": {"command": "x", "riskLevel": "2"}}}"#,
        "mcp.json: mcpServers.s.riskLevel: must be 1 (low), 2 (medium) or 3 (high), not \"2\"",
    );
}

#[test]
fn servers_stand_in_the_variables_of_mcp_bridge() {
    let variables = |all: &[(&str, &str)]| Given {
        mcp_variables: all
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..Given::default()
    };
    let given = variables(&[
        ("MCP_SERVER_FILES_ARGS", "-y,server"),
        ("MCP_SERVER_FILES_COMMAND", "npx"),
        ("MCP_SERVER_FILES_ENV", r#"{"A": "b"}"#),
        ("MCP_SERVER_FILES_RISK_LEVEL", "2"),
    ]);
    let config = Config::load(&given, &Environment::real()).unwrap();
    let [server] = &config.servers[..] else {
        panic!("one server")
    };
    assert_eq!(server.server.as_str(), "files");
    assert_eq!(server.risk.server, Some(Risk::Medium));
    let Transport::Stdio {
        command, args, env, ..
    } = &server.transport
    else {
        panic!("stdio")
    };
    assert_eq!((command.as_str(), args.len(), env.len()), ("npx", 2, 1));
    let given = variables(&[
        ("MCP_SERVER_FILES_COMMAND", "npx"),
        ("MCP_SERVER_FILES_ENV", "secret"),
    ]);
    let problems = Config::load(&given, &Environment::real()).unwrap_err();
    assert_eq!(lines(&problems), "MCP_SERVER_FILES_ENV: is no JSON");
}

#[test]
fn claude_desktop() {
    let server = server(indoc! {r#"
        {
          "globalShortcut": "",
          "mcpServers": {
            "filesystem": {
              "command": "npx",
              "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me"],
              "env": {"TOKEN": "env:KEY", "PORT": 1, "KEY": "${KEY}"}
            }
          }
        }
    "#});
    assert_eq!(server.server.as_str(), "filesystem");
    let Transport::Stdio {
        command, args, env, ..
    } = &server.transport
    else {
        panic!("stdio")
    };
    assert_eq!((command.as_str(), args.len()), ("npx", 3));
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(env, [("KEY", "sk-1"), ("PORT", "1"), ("TOKEN", "env:KEY")]);
}

#[test]
fn cursor() {
    let text = r#"{"mcpServers": {"s": {"url": "http://x/mcp", "headers": {"Authorization": "Bearer ${env:KEY}"}}}}"#;
    let Transport::Http { headers, kind, .. } = server(text).transport else {
        panic!("http")
    };
    assert_eq!((headers[0].1.expose(), kind), ("Bearer sk-1", None));
}

#[test]
fn vs_code_with_comments_and_trailing_commas() {
    let text = indoc! {r#"
        {
          // servers of this workspace
          "servers": {
            "local": {
              "type": "stdio",
              "command": "node",
              "args": ["${workspaceFolder}/server.js"], /* here */
              "env": {"UNSET": null,},
            },
          },
        }
    "#};
    let given = Given {
        mcp: vec![".vscode/mcp.json".into()],
        ..Given::default()
    };
    let config = load(&[(".vscode/mcp.json", text)], &given).unwrap();
    let Transport::Stdio { args, env, .. } = &config.servers[0].transport else {
        panic!("stdio")
    };
    assert_eq!(args, &["/w/server.js"]);
    assert!(env.is_empty());
}

#[test]
fn an_env_file_of_vs_code_is_read_and_env_goes_before_it() {
    let text = r#"{"servers": {"a": {
        "command": "x", "env": {"B": "mine"}, "envFile": "${workspaceFolder}/.env"}}}"#;
    let env = "# a comment\nexport A = \"${KEY} 1\"\n\nB=theirs\nC='x=y'\nnonsense\n";
    let given = Given {
        mcp: vec!["mcp.json".into()],
        ..Given::default()
    };
    let config = load(&[("mcp.json", text), (".env", env)], &given).unwrap();
    let Transport::Stdio { env, .. } = &config.servers[0].transport else {
        panic!("stdio")
    };
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(env, [("A", "${KEY} 1"), ("B", "mine"), ("C", "x=y")]);
}

#[test]
fn an_input_of_vs_code_costs_its_server_and_is_named() {
    let server = server(
        r#"{"inputs": [{"id": "gh-token", "type": "promptString", "description": "GitHub token"}],
            "servers": {"gh": {"command": "x", "env": {"T": "${input:gh-token}"}}}}"#,
    );
    let Transport::Unavailable { reason, kind } = server.transport else {
        panic!("{:?}", server.transport)
    };
    assert_eq!(
        (kind, &*reason),
        (
            "stdio",
            "`env.T`: `${input:gh-token}` (GitHub token) is asked for by the editor, \
             and toolway has nobody to ask; put it into the environment and write `${env:GH_TOKEN}`"
        )
    );
}

#[test]
fn windsurf_gemini_and_cline() {
    check_http(
        r#"{"mcpServers": {"s": {"serverUrl": "http://x/sse"}}}"#,
        "http://x/sse",
        None,
    );
    check_http(
        r#"{"mcpServers": {"s": {"httpUrl": "http://x/mcp"}}}"#,
        "http://x/mcp",
        Some(HttpKind::Streamable),
    );
    check_http(
        r#"{"mcpServers": {"s": {"type": "streamableHttp", "url": "http://x/mcp", "autoApprove": []}}}"#,
        "http://x/mcp",
        Some(HttpKind::Streamable),
    );
    check_http(
        r#"{"mcpServers": {"s": {"type": "sse", "url": "http://x/sse", "timeout": 60}}}"#,
        "http://x/sse",
        Some(HttpKind::Sse),
    );
}

#[test]
fn a_server_that_is_switched_off_is_not_looked_at() {
    let text =
        r#"{"mcpServers": {"a": {"command": "${GONE}", "disabled": true}, "b": {"command": "x"}}}"#;
    assert_eq!(server(text).server.as_str(), "b");
    assert_eq!(
        lines(&from_mcp(text).unwrap().notes),
        "mcp.json: mcpServers.a: is not started: `disabled` is true there"
    );
}

/// The names of the servers that are started, and the notes on the others.
#[track_caller]
fn check_started(text: &str, started: &[&str], notes: &str) {
    let config = from_mcp(text).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    let names: Vec<_> = config.servers.iter().map(|it| it.server.as_str()).collect();
    assert_eq!(names, started, "{text}");
    assert_eq!(lines(&config.notes).replace("mcp.json: ", ""), notes);
}

#[test]
fn a_switch_is_understood_as_people_write_it() {
    for switch in [
        r#""disabled": "true""#,
        r#""disabled": 1"#,
        r#""disabled": "Yes""#,
        r#""disabled": "on""#,
        r#""enabled": "false""#,
        r#""enabled": 0"#,
        r#""enabled": "no""#,
        r#""isActive": false"#,
    ] {
        let text = format!(r#"{{"mcpServers": {{"a": {{"command": "x", {switch}}}}}}}"#);
        let (key, value) = switch.split_once(": ").unwrap();
        let key = key.trim_matches('"');
        let note = format!("mcpServers.a: is not started: `{key}` is {value} there");
        check_started(&text, &[], &note);
    }
    let on = r#"{"mcpServers": {"a": {"command": "x", "disabled": "false", "enabled": 1, "isActive": null}}}"#;
    check_started(on, &["a"], "");
}

/// Why the server `a` counts as failed, where `b` does not.
#[track_caller]
fn check_failed(entry: &str, why: &str) {
    let text = format!(r#"{{"mcpServers": {{"a": {entry}, "b": {{"command": "x"}}}}}}"#);
    let config = from_mcp(&text).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    let [a, b] = &config.servers[..] else {
        panic!("{:?}", config.servers)
    };
    let Transport::Unavailable { reason, .. } = &a.transport else {
        panic!("{:?}", a.transport)
    };
    assert_eq!(&**reason, why);
    assert!(matches!(b.transport, Transport::Stdio { .. }));
    assert_eq!(lines(&config.warnings), "");
}

#[test]
fn a_server_whose_switch_is_no_switch_is_not_started() {
    let why = "must be true or false";
    check_failed(
        r#"{"command": "x", "disabled": []}"#,
        &format!("`disabled`: {why}"),
    );
    check_failed(
        r#"{"command": "x", "enabled": "maybe"}"#,
        &format!("`enabled`: {why}"),
    );
}

#[test]
fn a_transport_that_toolway_has_not_costs_its_server_only() {
    let known = "known are stdio, http, streamable-http, sse";
    check_failed(
        r#"{"tcp": "localhost:1"}"#,
        &format!("`type`: unknown type `tcp`; {known}"),
    );
    check_failed(
        r#"{"type": "ws", "url": "ws://localhost:1"}"#,
        &format!("`type`: unknown type `ws`; {known}"),
    );
}

#[test]
fn servers_that_gemini_leaves_out_are_not_started() {
    let servers = r#""mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}, "C": 1}"#;
    check_started(
        &format!(r#"{{"mcp": {{"allowed": ["a", "c"], "excluded": ["c"]}}, {servers}}}"#),
        &["a"],
        "mcpServers.b: is not started: `mcp.allowed` does not name it\n\
         mcpServers.C: is not started: `mcp.excluded` names it",
    );
    check_started(
        &format!(r#"{{"excludeMCPServers": ["a", "C"], {servers}}}"#),
        &["b"],
        "mcpServers.a: is not started: `excludeMCPServers` names it\n\
         mcpServers.C: is not started: `excludeMCPServers` names it",
    );
    let none = "is not started: `allowMCPServers` does not name it";
    check_started(
        &format!(r#"{{"allowMCPServers": [], {servers}}}"#),
        &[],
        &format!("mcpServers.a: {none}\nmcpServers.b: {none}\nmcpServers.C: {none}"),
    );
    mcp_refused(
        r#"{"mcp": {"excluded": "a"}, "excludeMCPServers": 1, "mcpServers": {}}"#,
        "mcp.json: mcp.excluded: must be a list of texts\n\
         mcp.json: excludeMCPServers: must be a list of texts",
    );
}

#[test]
fn keys_beside_the_servers_that_have_no_effect_are_named() {
    let text = r#"{"theme": "dark", "disabledMcpServers": ["a"], "$schema": "", "// x": 1, "inputs": [],
        "mcp": {"serverCommand": "x", "allowed": ["a"]}, "mcpServers": {"a": {"command": "x"}}}"#;
    let warnings = |name: &str| {
        let given = Given {
            mcp: vec![name.into()],
            ..Given::default()
        };
        lines(&load(&[(name, text)], &given).unwrap().warnings)
    };
    assert_eq!(
        warnings(".mcp.json"),
        ".mcp.json: not understood, and without effect: `theme`, `disabledMcpServers`, `mcp.serverCommand`"
    );
    // The settings of a whole program are full of other things.
    assert_eq!(
        warnings("settings.json"),
        "settings.json: not understood, and without effect: `disabledMcpServers`, `mcp.serverCommand`"
    );
}

#[test]
fn a_variable_without_braces_is_named_and_stays() {
    let text = r#"{"mcpServers": {"s": {"command": "x", "args": ["$ONE", "echo $HOME", "a$b"],
        "env": {"A": "$KEY", "B": "pa$word", "C": "Bearer $KEY", "D": "${KEY}", "E": "$1A"}}}}"#;
    let config = from_mcp(text).unwrap();
    let odd = "a `$` without braces stands for itself; a variable is written `${NAME}`";
    assert_eq!(
        lines(&config.warnings).replace("mcp.json: mcpServers.s.", ""),
        format!("env.A: {odd}\nenv.C: {odd}\nargs[0]: {odd}")
    );
    let Transport::Stdio { env, .. } = &config.servers[0].transport else {
        panic!("stdio")
    };
    assert_eq!(env[0].1.expose(), "$KEY");
}

#[track_caller]
fn check_shows(members: &str, shown: &[&str]) {
    let text = format!(r#"{{"mcpServers": {{"s": {{"command": "x", {members}}}}}}}"#);
    let filter = server(&text).tools;
    let names = ["read", "write", "delete"].into_iter();
    let found: Vec<_> = names.filter(|name| filter.shows(name)).collect();
    assert_eq!(found, shown, "{members}");
}

#[test]
fn tools_that_another_client_hides_are_hidden() {
    check_shows(r#""disabledTools": ["delete"]"#, &["read", "write"]);
    check_shows(r#""excludeTools": ["delete", "write"]"#, &["read"]);
    check_shows(r#""includeTools": ["read", "write"]"#, &["read", "write"]);
    check_shows(
        r#""includeTools": ["read", "write"], "excludeTools": ["write"]"#,
        &["read"],
    );
    check_shows(r#""includeTools": []"#, &[]);
    check_shows(r#""tools": ["*"]"#, &["read", "write", "delete"]);
}

#[test]
fn what_has_no_effect_is_named() {
    let text = indoc! {r#"
        {"mcpServers": {"s": {
            "command": "x", "description": "for people", "_comment": 1,
            "alwaysAllow": ["a"], "autoApprove": [], "trust": true, "timeout": 60, "disabeldTools": []
        }}}
    "#};
    let odd = "is not understood, and has no effect";
    assert_eq!(
        lines(&from_mcp(text).unwrap().warnings),
        format!(
            "mcp.json: mcpServers.s.timeout: {odd}\n\
             mcp.json: mcpServers.s.disabeldTools: {odd}; did you mean `disabledTools`?"
        )
    );
}

#[test]
fn a_name_outside_the_alphabet_is_made_to_fit() {
    let text = r#"{"mcpServers": {"my files": {"command": "x"}, "my.files": {"command": "x"}, "ü": {"command": "x"}}}"#;
    let config = from_mcp(text).unwrap();
    let names: Vec<_> = config.servers.iter().map(|s| s.server.as_str()).collect();
    assert_eq!(names, ["my_files", "my_files_2", "server"]);
    assert_eq!(config.warnings.len(), 3);
    assert_eq!(
        config.warnings[0].to_string(),
        "mcp.json: mcpServers.my files: is called `my_files` here, to fit into tool names"
    );
}

#[test]
fn a_profile_may_name_a_server_that_is_switched_off() {
    let given = Given {
        mcp: vec!["mcp.json".into()],
        ..Given::default()
    };
    let files = [
        ("toolway.toml", "[profiles.p]\nserver = 'a'"),
        (
            "mcp.json",
            r#"{"mcpServers": {"a": {"command": "y", "disabled": true}}}"#,
        ),
    ];
    let config = load(&files, &given).unwrap();
    assert_eq!((config.profiles.len(), config.servers.len()), (1, 0));
    assert_eq!(
        lines(&config.warnings),
        "profiles.p.server: shows nothing, because `a` is switched off"
    );
}

#[test]
fn a_name_that_is_already_there_is_a_problem() {
    let given = Given {
        mcp: vec!["mcp.json".into()],
        ..Given::default()
    };
    let files = [
        ("toolway.toml", "[servers.a]\ncommand = 'x'"),
        ("mcp.json", r#"{"mcpServers": {"a": {"command": "y"}}}"#),
    ];
    assert_eq!(
        lines(&load(&files, &given).unwrap_err()),
        "mcp.json: mcpServers.a: the name `a` is taken by `servers.a` in the configuration file; rename or remove one of them"
    );
}

#[test]
fn the_same_server_in_two_files_is_used_once() {
    let given = Given {
        mcp: vec!["a.json".into(), "servers.json".into()],
        ..Given::default()
    };
    let same = r#"{"mcpServers": {"a": {"command": "x", "args": ["1"]}}}"#;
    let config = load(&[("a.json", same), ("servers.json", same)], &given).unwrap();
    assert_eq!(config.servers.len(), 1);
    assert_eq!(
        lines(&config.warnings),
        "servers.json: mcpServers.a: is the same as a.json: mcpServers.a, and used once"
    );
}

#[test]
fn keys_without_effect_are_taken_as_they_are() {
    let given = Given {
        mcp: vec!["servers.json".into()],
        ..Given::default()
    };
    let text = r#"{"servers": {"a": {"url": "http://x", "args": [], "env": {}}}}"#;
    assert_eq!(
        load(&[("servers.json", text)], &given)
            .unwrap()
            .servers
            .len(),
        1
    );
}

#[test]
fn broken_files_are_named() {
    mcp_refused(
        "{}",
        "mcp.json: has neither an `mcpServers` nor a `servers` object",
    );
    mcp_refused(
        r#"{"mcpServers": {"a": 1, "b": {"command": 1, "args": "x"}, "c": {"env": []}}}"#,
        "mcp.json: mcpServers.a: must be an object\n\
         mcp.json: mcpServers.b.args: must be a list of texts\n\
         mcp.json: mcpServers.c.env: must be an object of texts\n\
         mcp.json: mcpServers.c: needs a `command` to start or a `url` to connect to",
    );
    let problems = from_mcp("{\n  oops\n}").unwrap_err();
    assert!(
        problems[0].to_string().contains("line 2 column 3"),
        "{}",
        problems[0]
    );
}

#[test]
fn the_entry_of_toolway_itself_is_left_out() {
    let config = from_mcp(indoc! {r#"
        {"mcpServers": {
            "toolway": {"command": "/usr/bin/toolway", "args": ["mcp", "--mcp", "this.json"]},
            "gateway": {"command": "toolway", "args": ["mcp"]},
            "files": {"command": "npx", "args": ["-y", "x"]}
        }}
    "#});
    let config = config.unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    let names: Vec<_> = config.servers.iter().map(|it| it.server.as_str()).collect();
    assert_eq!(names, ["files"]);
    assert_eq!(config.warnings.len(), 2);
    assert!(config.warnings[0].message.contains("toolway itself"));
}
