//! The file as a whole, and what the command line adds.

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
fn what_is_no_toml_is_named_by_file_line_and_column() {
    let problems = from_toml("bind = \"x\"\n[loop\n").unwrap_err();
    assert!(
        problems[0].path.contains("toolway.toml: line 2, column "),
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
    refused(
        "[servers.s]\ncommand = 'c'\ncache = { 'get_*' = '25h' }",
        "servers.s.cache.\"get_*\": must be at most 24h, not 25h",
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
    assert_eq!(
        lines(&load(&[], &given("localhost:1")).unwrap_err()),
        "--upstream: must begin with http:// or https://"
    );
}

#[test]
fn an_option_that_is_wrong_is_named_as_an_option() {
    let given = Given {
        bind: Some("x".into()),
        ..Given::default()
    };
    assert_eq!(
        lines(&load(&[], &given).unwrap_err()),
        "--bind: `x` is no address with a port; write for example `127.0.0.1:4242`"
    );
}
