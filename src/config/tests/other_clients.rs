//! The files of other MCP clients.

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
    let none = "has no effect: toolway runs every call without asking";
    let odd = "is not understood, and has no effect";
    assert_eq!(
        lines(&from_mcp(text).unwrap().warnings),
        format!(
            "mcp.json: mcpServers.s.alwaysAllow: {none}\n\
             mcp.json: mcpServers.s.trust: {none}\n\
             mcp.json: mcpServers.s.timeout: {odd}\n\
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
