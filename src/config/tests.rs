use std::{collections::BTreeMap, io, path::Path, time::Duration};

use indoc::indoc;

use super::*;
use crate::upstream::mcp::{HttpKind, Transport};

/// The files and variables that every case sees.
fn load(files: &[(&str, &str)], given: &Given) -> Result<Config, Vec<Problem>> {
    let files: BTreeMap<String, String> = files
        .iter()
        .map(|(name, text)| (format!("/w/{name}"), (*text).to_owned()))
        .collect();
    let env = |name: &str| match name {
        "KEY" => Some("sk-1".to_owned()),
        "EMPTY" => Some(String::new()),
        "HOME" => Some("/home/me".to_owned()),
        _ => None,
    };
    let read = |path: &Path| {
        let text = files
            .get(&path.display().to_string())
            .ok_or(io::ErrorKind::NotFound)?;
        Ok(FileText {
            text: text.clone(),
            open_to_all: path.ends_with("open.key"),
        })
    };
    Config::load(
        given,
        &Around {
            env: &env,
            read: &read,
            folder: "/w".into(),
        },
    )
}

fn from_toml(text: &str) -> Result<Config, Vec<Problem>> {
    load(
        &[
            ("toolway.toml", text),
            ("closed.key", "sk-file\n"),
            ("open.key", "sk-open"),
        ],
        &Given::default(),
    )
}

fn from_mcp(text: &str) -> Result<Config, Vec<Problem>> {
    load(
        &[("mcp.json", text)],
        &Given {
            mcp: vec!["mcp.json".into()],
            ..Given::default()
        },
    )
}

fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(Problem::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[track_caller]
fn ok(text: &str) -> Config {
    from_toml(text).unwrap_or_else(|problems| panic!("{}", lines(&problems)))
}

/// The one problem of a file.
#[track_caller]
fn refused(text: &str, problem: &str) {
    let problems = from_toml(text).expect_err("the file should be refused");
    assert_eq!(lines(&problems), problem);
}

/// The one warning of a file.
#[track_caller]
fn warned(text: &str, warning: &str) {
    assert_eq!(lines(&ok(text).warnings), warning);
}

mod whole {
    use super::*;

    #[test]
    fn no_file_at_all_is_openai_with_the_clients_own_key() {
        let config = load(&[], &Given::default()).unwrap();
        assert_eq!(
            config.upstreams[0].base_url.as_str(),
            "https://api.openai.com/v1"
        );
        assert_eq!(config.upstreams[0].api_key, None);
        assert_eq!(config.server.bind.to_string(), "127.0.0.1:4242");
        assert!(config.files.is_empty() && config.warnings.is_empty() && config.servers.is_empty());
    }

    #[test]
    fn every_problem_is_reported_at_once_and_each_with_its_path() {
        let text = indoc! {r#"
            bind = "everywhere"
            max_body_bytes = "big"
            colour = 1

            [[upstreams]]
            base_url = "ftp://x"

            [[upstreams]]
            base_url = "http://x/v1"
            retries = -1

            [loop]
            tool_timeout = 30
            request_timeout = "0s"

            [servers.files]
            comand = "npx"

            [servers."a.b"]
            command = "x"
            env = { A = 1, B = "env:GONE" }
        "#};
        let problems = from_toml(text).unwrap_err();
        let mut paths: Vec<&str> = problems.iter().map(|p| p.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(
            paths,
            [
                "bind",
                "colour",
                "loop.request_timeout",
                "loop.tool_timeout",
                "max_body_bytes",
                "servers.a.b",
                "servers.a.b.env.A",
                "servers.files",
                "servers.files.comand",
                "upstreams[0].base_url",
                "upstreams[1].retries",
            ]
        );
    }

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        refused(
            "[servers.files]\ncommand = 'x'\nstatefull = true",
            "servers.files.statefull: unknown key `statefull`; did you mean `stateful`?",
        );
    }

    #[test]
    fn what_is_no_toml_is_named_by_line_and_column() {
        let problems = from_toml("bind = \"x\"\n[loop\n").unwrap_err();
        assert!(
            problems[0].path.starts_with("line 2, column "),
            "{}",
            problems[0]
        );
    }

    #[test]
    fn a_wrong_type_says_what_is_wanted() {
        refused(
            "[loop]\ntool_timeout = 30",
            "loop.tool_timeout: integer `30`, expected a time with its unit, such as \"30s\"",
        );
        refused(
            "[loop]\ntool_timeout = '30'",
            "loop.tool_timeout: `30` has no unit; write for example `30s`",
        );
        refused(
            "[loop]\nmax_rounds = 1.5",
            "loop.max_rounds: floating point `1.5`, expected a whole number",
        );
        refused("loop = 1", "loop: must be a table, not a number");
        refused("servers = []", "servers: must be a table, not a list");
        refused(
            "upstreams = 1",
            "upstreams: must be a list; write `[[upstreams]]` above each",
        );
    }

    #[test]
    fn bounds_are_checked() {
        refused(
            "[loop]\nmax_rounds = 0",
            "loop.max_rounds: must be between 1 and 1000, not 0",
        );
        refused(
            "[loop]\nkeepalive = '0s'",
            "loop.keepalive: must be longer than nothing",
        );
        refused(
            "[loop]\nkeepalive = '25h'",
            "loop.keepalive: must be at most 24h, not 25h",
        );
    }

    #[test]
    fn functions_are_refused_clearly() {
        refused(
            "[functions.billing]\ndefinitions = 'x.json'",
            "functions.billing: functions are not available in this version",
        );
    }

    #[test]
    fn a_named_file_that_is_missing_is_a_problem() {
        let given = Given {
            config: Some("gone.toml".into()),
            ..Given::default()
        };
        let problems = load(&[], &given).unwrap_err();
        assert!(
            problems[0]
                .to_string()
                .starts_with("gone.toml: cannot be read: ")
        );
    }

    #[test]
    fn the_contract_of_the_design_is_read() {
        let config = ok(indoc! {r#"
            bind = "127.0.0.1:4242"
            log = "debug"
            log_format = "json"

            [[upstreams]]
            name = "openai"
            base_url = "https://api.openai.com/v1"
            api_key = "env:KEY"
            models = ["gpt-*", "o*"]
            text_tool_calls = ["harmony"]
            modalities = ["image"]

            [loop]
            max_rounds = 3
            tool_timeout = "1s"
            request_timeout = "2m"
            keepalive = "500ms"
            max_result_bytes = 1000
            parallel_calls = 2
            max_calls = 4

            [servers.files]
            command = "npx"
            args = ["-y", "pkg", "${HOME}", "$${HOME}", "${NONE:-none}"]
            env = { LOG = "info", TOKEN = "env:KEY" }
            cwd = "data"
            stateful = true

            [servers.tickets]
            url = "https://mcp.example.com/mcp"
            headers = { Authorization = "Bearer ${env:KEY}" }
            type = "sse"

            [servers.off]
            command = "x"
            enabled = false
        "#});
        let upstream = &config.upstreams[0];
        assert_eq!(upstream.api_key.as_ref().unwrap().expose(), "sk-1");
        assert!(upstream.text_tool_calls.harmony && upstream.images && !upstream.audio);
        assert_eq!(config.gateway.keepalive, Duration::from_millis(500));
        assert_eq!(
            (config.gateway.max_rounds, config.gateway.max_calls),
            (3, 4)
        );
        assert_eq!(config.telemetry.format, telemetry::Format::Json);
        let [files, tickets] = &config.servers[..] else {
            panic!("two servers")
        };
        assert_eq!((files.stateful, files.parallel_calls), (true, 1));
        let Transport::Stdio { args, env, cwd, .. } = &files.transport else {
            panic!("stdio")
        };
        assert_eq!(args, &["-y", "pkg", "/home/me", "${HOME}", "none"]);
        assert_eq!(env[1].1.expose(), "sk-1");
        assert_eq!(cwd.as_deref(), Some(Path::new("/w/data")));
        let Transport::Http { headers, kind, .. } = &tickets.transport else {
            panic!("http")
        };
        assert_eq!(headers[0].1.expose(), "Bearer sk-1");
        assert_eq!(*kind, Some(HttpKind::Sse));
        assert!(config.warnings.is_empty(), "{}", lines(&config.warnings));
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let given = Given {
            bind: Some("localhost:0".into()),
            upstream: Some("http://127.0.0.1:11434".into()),
            ..Given::default()
        };
        let file = "bind = '127.0.0.1:1'\n[[upstreams]]\nbase_url = 'http://x/v1'";
        let config = load(&[("toolway.toml", file)], &given).unwrap();
        assert_eq!(config.server.bind.to_string(), "127.0.0.1:0");
        assert_eq!(config.upstreams.len(), 1);
        assert_eq!(config.upstreams[0].name, "127.0.0.1");
        assert_eq!(
            config.upstreams[0].base_url.as_str(),
            "http://127.0.0.1:11434/v1"
        );
    }

    #[test]
    fn a_path_given_on_the_command_line_is_kept() {
        let given = |url: &str| Given {
            upstream: Some(url.into()),
            ..Given::default()
        };
        for (url, kept) in [
            ("http://x/", "http://x/v1"),
            ("http://x/v1/", "http://x/v1"),
            ("http://x/openai", "http://x/openai"),
        ] {
            assert_eq!(
                load(&[], &given(url)).unwrap().upstreams[0]
                    .base_url
                    .as_str(),
                kept
            );
        }
        let problems = load(&[], &given("x:1")).unwrap_err();
        assert_eq!(problems[0].path, "upstreams[0].base_url");
    }
}

mod listening {
    use super::*;

    const OPEN: &str = "bind: 0.0.0.0:80 can be reached by others, who could use your keys and \
                        tools; set `api_keys`, or `allow_anonymous = true` if that is meant";

    #[test]
    fn it_is_closed_off_loopback() {
        refused("bind = '0.0.0.0:80'", OPEN);
        refused("bind = '0.0.0.0:80'\napi_keys = []", OPEN);
        ok("bind = '0.0.0.0:80'\napi_keys = ['env:KEY']");
        ok("bind = '0.0.0.0:80'\nallow_anonymous = true");
        ok("bind = '[::1]:80'");
        ok("bind = '[::ffff:127.0.0.1]:80'");
    }

    #[test]
    fn a_key_that_is_missing_is_no_open_door() {
        refused(
            "bind = '0.0.0.0:80'\napi_keys = ['env:GONE']",
            "api_keys[0]: the environment variable `GONE` is not set",
        );
        refused("api_keys = ['env:EMPTY']", "api_keys[0]: is empty");
    }

    #[test]
    fn a_host_with_a_scheme_is_refused() {
        refused(
            "allowed_hosts = ['ok.example', 'https://x']",
            "allowed_hosts[1]: `https://x` is no host name; write it without `https://` and without a path",
        );
    }

    #[test]
    fn a_key_that_everybody_spends_is_a_warning() {
        warned(
            indoc! {"
                bind = '0.0.0.0:80'
                allow_anonymous = true
                [[upstreams]]
                name = 'a'
                base_url = 'http://a/v1'
                api_key = 'env:KEY'
            "},
            "allow_anonymous: everybody who reaches 0.0.0.0:80 spends the key of upstream `a`",
        );
    }

    #[test]
    fn the_log_is_checked() {
        refused(
            "log = 'loud'",
            "log: `loud` is no level (error, warn, info, debug, trace) and no list of TARGET=LEVEL",
        );
        refused(
            "log_format = 'jsn'",
            "log_format: unknown format `jsn`; did you mean `json`?",
        );
    }
}

mod providers {
    use super::*;

    #[track_caller]
    fn upstream_refused(keys: &str, problem: &str) {
        refused(&format!("[[upstreams]]\n{keys}"), problem);
    }

    #[test]
    fn a_base_url_is_needed_and_is_one() {
        upstream_refused(
            "name = 'a'",
            "upstreams[0].base_url: is missing; write for example \"http://127.0.0.1:11434/v1\"",
        );
        upstream_refused(
            "base_url = 'http://x/v1/chat/completions'",
            "upstreams[0].base_url: ends one step too late; write it up to `/v1`",
        );
        upstream_refused(
            "base_url = 'http://me:pw@x/v1'",
            "upstreams[0].base_url: must not hold a name or password; use a header for that",
        );
        warned(
            "[[upstreams]]\nbase_url = 'http://x'",
            "upstreams[0].base_url: has no path; most servers have their API at `/v1`",
        );
    }

    #[test]
    fn names_are_there_once() {
        refused(
            indoc! {"
                [[upstreams]]
                name = 'a'
                base_url = 'http://x/v1'
                models = ['a']
                [[upstreams]]
                name = 'a'
                base_url = 'http://y/v1'
            "},
            "upstreams[1].name: `a` is already the name of upstreams[0]",
        );
        upstream_refused(
            "name = ''\nbase_url = 'http://x/v1'",
            "upstreams[0].name: must not be empty",
        );
    }

    #[track_caller]
    fn shadowing(first: &str, second: &str, is_shadowed: bool) {
        let text = format!(
            "[[upstreams]]\nbase_url = 'http://a/v1'\n{first}\n[[upstreams]]\nbase_url = 'http://b/v1'\n{second}"
        );
        let warnings = ok(&text).warnings;
        assert_eq!(!warnings.is_empty(), is_shadowed, "{}", lines(&warnings));
    }

    #[test]
    fn an_upstream_that_never_gets_a_request_is_a_warning() {
        shadowing("", "models = ['gpt-*']", true);
        shadowing("models = ['*']", "", true);
        shadowing("models = ['g*', 'o*']", "models = ['gpt-*', 'o1']", true);
        shadowing("models = ['a*b*c']", "models = ['axbyc', 'a*b*bc']", true);
        shadowing("models = ['gpt-*']", "", false);
        shadowing("models = ['gpt-4']", "models = ['gpt-*']", false);
        shadowing("models = ['a*ba']", "models = ['aba*']", false);
        shadowing("models = ['ab*ba']", "models = ['aba']", false);
    }

    #[test]
    fn a_pattern_is_a_name_with_stars() {
        let with = |models: &str| format!("base_url = 'http://x/v1'\nmodels = {models}");
        upstream_refused(
            &with("['a', '']"),
            "upstreams[0].models[1]: must not be empty",
        );
        upstream_refused(
            &with("['gpt-?']"),
            "upstreams[0].models[0]: `?` means nothing here; only `*` does",
        );
        upstream_refused(
            &with("[]"),
            "upstreams[0].models: is empty; leave it out for every model",
        );
    }

    #[test]
    fn a_missing_variable_is_a_problem_and_a_key_in_plain_text_a_warning() {
        let with = |key: &str| format!("base_url = 'http://x/v1'\napi_key = '{key}'");
        upstream_refused(
            &with("env:GONE"),
            "upstreams[0].api_key: the environment variable `GONE` is not set",
        );
        upstream_refused(&with("env:EMPTY"), "upstreams[0].api_key: is empty");
        warned(
            &format!("[[upstreams]]\n{}", with("sk-plain")),
            "upstreams[0].api_key: a key in plain text; better write `env:NAME` or `file:PATH`",
        );
    }

    #[test]
    fn a_key_is_read_from_a_file() {
        let with =
            |key: &str| format!("[[upstreams]]\nbase_url = 'http://x/v1'\napi_key = '{key}'");
        let config = ok(&with("file:closed.key"));
        assert_eq!(
            config.upstreams[0].api_key.as_ref().unwrap().expose(),
            "sk-file"
        );
        assert!(config.warnings.is_empty());
        warned(
            &with("file:open.key"),
            "upstreams[0].api_key: `open.key` can be read by every user of this machine; `chmod 600` closes it",
        );
    }

    #[test]
    fn headers_are_ones_that_can_be_sent() {
        let with = |headers: &str| format!("base_url = 'http://x/v1'\nheaders = {{ {headers} }}");
        upstream_refused(
            &with("'a b' = 'x'"),
            "upstreams[0].headers.a b: is no name of a header",
        );
        upstream_refused(
            &with("Content-Length = '1'"),
            "upstreams[0].headers.Content-Length: is set by the connection itself",
        );
        upstream_refused(
            &with(r#"x = "a\nb""#),
            "upstreams[0].headers.x: holds a character that a header cannot carry",
        );
        upstream_refused(
            &format!("api_key = 'env:KEY'\n{}", with("authorization = 'x'")),
            "upstreams[0].headers.Authorization: `api_key` already sets this header",
        );
    }

    #[test]
    fn words_that_are_not_known_are_refused() {
        upstream_refused(
            "base_url = 'http://x/v1'\ntext_tool_calls = ['mistrl']",
            "upstreams[0].text_tool_calls[0]: unknown form `mistrl`; did you mean `mistral`?",
        );
        upstream_refused(
            "base_url = 'http://x/v1'\nmodalities = ['smell']",
            "upstreams[0].modalities[0]: unknown modality `smell`; known are image, audio",
        );
    }
}

mod tool_servers {
    use super::*;

    #[track_caller]
    fn server_refused(keys: &str, problem: &str) {
        refused(&format!("[servers.a]\n{keys}"), problem);
    }

    #[test]
    fn a_server_is_started_or_connected_to() {
        server_refused(
            "",
            "servers.a: needs a `command` to start or a `url` to connect to",
        );
        server_refused(
            "command = 'x'\nurl = 'http://x'",
            "servers.a: has both `command` and `url`; which one is it?",
        );
        server_refused(
            "url = 'http://x'\nargs = []",
            "servers.a.args: belongs to a server with a `command`",
        );
        server_refused(
            "command = 'x'\nheaders = {}",
            "servers.a.headers: belongs to a server with a `url`",
        );
        server_refused(
            "command = 'x'\ntype = 'sse'",
            "servers.a.type: is for a `url`, not for a `command`",
        );
        server_refused(
            "url = 'http://x'\ntype = 'websocket'",
            "servers.a.type: unknown type `websocket`; known are stdio, http, streamable-http, sse",
        );
    }

    #[test]
    fn a_command_line_in_one_text_is_a_warning() {
        warned(
            "[servers.a]\ncommand = 'npx -y pkg'",
            "servers.a.command: is one program named `npx -y pkg`; if `-y pkg` are arguments of \
             `npx`, write them in `args`",
        );
    }

    #[test]
    fn a_stateful_server_takes_one_call_at_a_time() {
        server_refused(
            "command = 'x'\nstateful = true\nparallel_calls = 4",
            "servers.a.parallel_calls: calls on a `stateful` server run one after another; leave this out",
        );
    }

    #[test]
    fn a_name_is_within_its_alphabet() {
        refused(
            "[servers.'a b']\ncommand = 'x'",
            "servers.a b: ` ` is not allowed in a name; allowed are letters, digits, `_` and `-`",
        );
    }

    #[test]
    fn each_missing_variable_is_named() {
        server_refused(
            "command = 'x'\nargs = ['${GONE} ${KEY} ${LOST}']",
            "servers.a.args[0]: the environment variable `GONE` is not set\n\
             servers.a.args[0]: the environment variable `LOST` is not set",
        );
    }

    #[test]
    fn a_brace_that_never_closes_is_plain_text() {
        let config = ok("[servers.a]\ncommand = 'x'\nargs = ['${KEY', '$', '$$', 'a$${b']");
        let Transport::Stdio { args, .. } = &config.servers[0].transport else {
            panic!("stdio")
        };
        assert_eq!(args, &["${KEY", "$", "$$", "a${b"]);
    }
}

mod other_clients {
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
    fn an_input_of_vs_code_is_a_problem_that_names_it() {
        mcp_refused(
            r#"{"inputs": [{"id": "gh-token", "type": "promptString", "description": "GitHub token"}],
                "servers": {"gh": {"command": "x", "env": {"T": "${input:gh-token}"}}}}"#,
            "mcp.json: servers.gh.env.T: `${input:gh-token}` (GitHub token) is asked for by the editor, \
             and toolway has nobody to ask; put it into the environment and write `${env:GH_TOKEN}`",
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
        let text = r#"{"mcpServers": {"a": {"command": "${GONE}", "disabled": true}, "b": {"command": "x"}}}"#;
        assert_eq!(server(text).server.as_str(), "b");
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
            "mcp.json: mcpServers.a: `a` is already the name of a server, at servers.a"
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
}
