//! Values that are not there, and servers that are not: what `check`, `tools` and `call` say of them.

use std::fs;

use serde_json::{Value, json};

use crate::{answering, text, toolway, with_demo_server};

/// Runs it in a folder with this `toolway.toml`, and `f.json`, which defines the function `f`: exit code, standard
/// output and standard error.
fn run(config: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("toolway.toml"), config).unwrap();
    let definitions = json!([{"type": "function", "function": {"name": "f"}}]);
    fs::write(folder.path().join("f.json"), definitions.to_string()).unwrap();
    let output = toolway(folder.path(), args).output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|it| text(it).to_owned());
    (output.status.code(), out, err)
}

#[test]
fn a_variable_that_is_not_set_costs_its_group_of_functions_only() {
    let upstream = answering("200 OK");
    let config = format!(
        "[[upstreams]]\nbase_url = '{upstream}/v1'\napi_key = 'env:NOT_SET_9'\n\
         [functions.hook]\ndefinitions = 'f.json'\nendpoint = 'http://127.0.0.1:9/'\n\
         headers = {{ Authorization = 'env:NOT_SET_9' }}\n\
         [functions.brief]\nmodel = 'm'\nprompt = '{{input}}'\n\
         [functions.cat]\ndefinitions = 'f.json'\ncommand = 'cat'\n"
    );
    let (code, out, err) = run(&config, &["call", "cat__f", r#"{"a": 1}"#]);
    assert_eq!((code, out.as_str()), (Some(0), "{\"a\":1}\n"), "{err}");
    let (code, out, err) = run(&config, &["tools"]);
    assert_eq!(code, Some(1), "{err}");
    let hook =
        "hook  failed  `headers.Authorization`: the environment variable `NOT_SET_9` is not set\n";
    let brief = "brief  failed  `model`: upstreams[0].api_key: the environment variable `NOT_SET_9` is not set\n";
    assert!(out.contains(hook) && out.contains(brief), "{out}");
    assert!(out.contains("cat  1 tool\n"), "{out}");
    let (code, _, err) = run(&config, &["call", "hook__f"]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("server `hook` is not ready (failed): `headers.Authorization`"),
        "{err}"
    );
    let (code, out, _) = run(&config, &["check", "--offline"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains(
            "warning: functions.hook: is not offered: `headers.Authorization`: the environment"
        ),
        "{out}"
    );
    let config = config.replacen("'env:NOT_SET_9'", "'k'", 1);
    let (code, out, _) = run(&config, &["check", "--json"]);
    let value: Value = serde_json::from_str(&out).unwrap();
    let group = |name| {
        value["functions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(code, Some(1), "{out}");
    assert_eq!(
        (&group("hook")["state"], &group("brief")["state"]),
        (&json!("failed"), &json!("ready"))
    );
}

#[test]
fn check_says_that_keys_are_required_although_they_are_not_set() {
    let config = "api_keys = ['env:NOT_SET_9', 'env:PATH']\n[[upstreams]]\nbase_url = 'https://u/v1'\napi_key = 'env:NOT_SET_9'\n";
    let (code, out, _) = run(config, &["check", "--offline"]);
    assert_eq!(code, Some(0), "{out}");
    for line in [
        "listens on  127.0.0.1:4242 (2 API keys, 1 of them is not set)\n",
        "  u  https://u/v1  every model  with its own key, which is not set\n",
        "warning: api_keys[0]: the environment variable `NOT_SET_9` is not set; `toolway serve` needs it\n",
        "warning: upstreams[0].api_key: the environment variable `NOT_SET_9` is not set; `toolway serve` needs it\n",
    ] {
        assert!(out.contains(line), "{out}");
    }
    let (_, out, _) = run(config, &["check", "--offline", "--json"]);
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["warnings"][0]["path"], "api_keys[0]");
}

#[test]
fn check_explains_what_the_policy_says_about_a_call() {
    let config = with_demo_server()
        + "\n[keys.alice]\nkey = 'sk-alice-1'\n[[policy.rules]]\ntools = ['demo__mult*']\n\
           args = { '/a' = { min = 10 } }\naction = 'deny'\nreason = 'too big'\n";
    let explain = |more: &[&str]| {
        let args = [&["check", "--explain", "demo__multiply"], more].concat();
        let (code, out, err) = run(&config, &args);
        assert_eq!(code, Some(0), "{out}{err}");
        out
    };
    let expected = "demo__multiply with the key `alice`: deny\n  selection        says nothing\n  \
                    keys.alice       says nothing\n  policy.rules[0]  deny: too big\n";
    assert_eq!(explain(&[r#"{"a": 10}"#, "--key", "alice"]), expected);
    let value: Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    assert_eq!(
        (&value["verdict"], &value["rule"]),
        (&"allow".into(), &"policy.default".into())
    );
    let (code, _, err) = run(&config, &["check", "--explain", "demo__multply"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("do you mean `demo__multiply`?"), "{err}");
}

#[test]
fn check_names_patterns_that_match_no_tool() {
    let config = with_demo_server()
        + "\ntools = ['mult*', 'multply', '!gone_*']\ncache = { 'mult*' = '1m', 'lost' = '1m' }\n[profiles.p]\ntools = ['demo__mult*', 'demo__gone', '!demo__lost']\n\
           [keys.alice]\nkey = 'sk-alice-1'\ntools = ['deno__*']\n[[policy.rules]]\nservers = ['dem', 'demo']\ntools = ['*__lose']\naction = 'deny'\n";
    let (code, out, err) = run(&config, &["check"]);
    assert_eq!(code, Some(0), "{out}{err}");
    for (path, pattern) in [
        ("servers.demo", "multply"),
        ("servers.demo", "!gone_*"),
        ("servers.demo", "lost"),
        ("profiles.p.tools", "demo__gone"),
        ("profiles.p.tools", "!demo__lost"),
        ("keys.alice.tools", "deno__*"),
        ("policy.rules[0].tools", "*__lose"),
    ] {
        let line = format!("warning: {path}: pattern `{pattern}` matches no tool\n");
        assert!(out.contains(&line), "{out}");
    }
    assert_eq!(out.matches("matches no tool").count(), 7, "{out}");
    let line = "warning: policy.rules[0].servers: pattern `dem` matches no server\n";
    assert!(out.contains(line), "{out}");
}

#[test]
fn a_quiet_check_says_no_more_than_a_usual_one() {
    let config = with_demo_server()
        + "\ntools = ['mult*', 'multply']\n[servers.gone]\ncommand = 'no-such-program'\n";
    let (_, usual, err) = run(&config, &["check"]);
    assert_eq!(err, "");
    for quiet in ["-q", "-qq"] {
        let (_, out, err) = run(&config, &["check", quiet]);
        assert_eq!(
            (out.as_str(), err.as_str()),
            (usual.as_str(), ""),
            "{quiet}"
        );
    }
}

#[test]
fn check_names_functions_whose_program_is_not_there_or_whose_service_is_dead() {
    let config = format!(
        "[[upstreams]]\nbase_url = '{}/v1'\n\
         [functions.gone]\ndefinitions = 'f.json'\ncommand = 'no-such-program'\n\
         [functions.near]\ndefinitions = 'f.json'\ncommand = './no-such-program'\n\
         [functions.cat]\ndefinitions = 'f.json'\ncommand = 'cat'\n\
         [functions.hook]\ndefinitions = 'f.json'\nendpoint = 'http://127.0.0.1:9/hook'\n",
        answering("200 OK")
    );
    let (code, out, _) = run(&config, &["check"]);
    assert_eq!(code, Some(1), "{out}");
    let row = |name: &str| {
        let row = out.lines().find(|line| line.trim_start().starts_with(name));
        row.unwrap_or_else(|| panic!("{out}")).to_owned()
    };
    assert!(
        row("gone").contains("failed ")
            && row("gone").contains("`no-such-program` cannot be started: it is not in `PATH`"),
        "{out}"
    );
    assert!(
        row("near").contains("failed ")
            && row("near").contains("no-such-program` cannot be started: No such file"),
        "{out}"
    );
    assert!(row("cat").contains("ready "), "{out}");
    assert!(
        row("hook").contains("failed ") && row("hook").contains("cannot be reached"),
        "{out}"
    );
    assert!(!row("hook").contains("ready"), "{out}");
}

#[test]
fn tools_as_json_names_every_server_and_why_it_is_not_ready() {
    let config = with_demo_server() + "\n[servers.gone]\ncommand = 'no-such-program'\n";
    let (code, out, _) = run(&config, &["tools", "--json"]);
    assert_eq!(code, Some(1), "{out}");
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["tools"].as_array().unwrap().len(), 3);
    let servers = &value["servers"];
    assert_eq!(
        (&servers[0]["name"], &servers[0]["state"]),
        (&json!("demo"), &json!("ready"))
    );
    assert_eq!(
        (&servers[1]["name"], &servers[1]["state"]),
        (&json!("gone"), &json!("failed"))
    );
    assert!(
        servers[1]["last_error"]
            .as_str()
            .unwrap()
            .contains("no-such-program")
    );
}

#[test]
fn a_profile_of_a_server_that_is_switched_off_is_empty_and_no_error() {
    let config = format!(
        "[[upstreams]]\nbase_url = '{}/v1'\n[servers.off]\ncommand = 'x'\nenabled = false\n[profiles.p]\nserver = 'off'\n",
        answering("200 OK")
    );
    for args in [&["check"][..], &["check", "--offline"]] {
        let (code, out, _) = run(&config, args);
        assert_eq!(code, Some(0), "{out}");
        let line = "warning: profiles.p.server: shows nothing, because `off` is switched off\n";
        assert!(out.contains(line), "{out}");
    }
    let (code, out, _) = run(&config.replace("'off'", "'of'"), &["check"]);
    assert_eq!(code, Some(2), "{out}");
    assert!(
        out.contains("there is no server or group of functions named `of`"),
        "{out}"
    );
}

#[test]
fn the_log_counts_the_tools_that_are_offered_and_has_no_empty_fields() {
    let config = with_demo_server()
        + "\ntools = ['mult*']\n[servers.gone]\ncommand = 'no-such-program'\n\
           [servers.unset]\ncommand = 'x'\nargs = ['${NOT_SET_9}']\n";
    let (_, _, err) = run(&config, &["check", "--log", "info"]);
    let line = |text: &str| {
        let line = err.lines().find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("{err}")).to_owned()
    };
    assert!(
        line("A server is ready server.id=demo").contains(" tools=1 hidden=2 "),
        "{err}"
    );
    assert!(err.contains("The catalog has changed offered=1\n"), "{err}");
    let start = "A server did not start; starting it again server.id=gone error=\"`no-such-program` cannot be started";
    assert!(line(start).ends_with("is it installed?\""), "{err}");
    assert!(
        !err.contains("pause=0") && !err.contains("stderr=\"\""),
        "{err}"
    );
    let reason = "reason=\"`args[0]`: the environment variable `NOT_SET_9` is not set\"";
    assert!(
        line("A server is not started server.id=unset").ends_with(reason),
        "{err}"
    );
}

#[test]
fn a_call_says_why_the_tool_of_a_server_cannot_be_called() {
    let config =
        with_demo_server() + "\ntools = ['mult*']\n[servers.gone]\ncommand = 'no-such-program'\n";
    let (code, _, err) = run(&config, &["call", "demo__divide"]);
    assert_eq!(code, Some(1), "{err}");
    let hidden = "`tools` of server `demo` hides `divide`, or the server has no such tool\n";
    assert!(err.contains(hidden), "{err}");
    let (code, _, err) = run(&config, &["call", "gone__multiply"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("server `gone` is not ready (failed): `no-such-program`"),
        "{err}"
    );
    let (_, _, err) = run(&config, &["call", "demo__multply"]);
    assert!(!err.contains("`gone`"), "{err}");
}

#[cfg(unix)]
#[test]
fn a_server_that_ends_at_once_is_named_with_its_error_first() {
    let server = |script: &str| {
        let config = format!("[servers.s]\ncommand = 'sh'\nargs = ['-c', \"{script}\"]\n");
        run(&config, &["tools"]).1
    };
    let out = server("echo 'Error: no token' >&2; exit 1");
    let line = "s  failed  the process ended (exit status: 1): Error: no token (it gets only";
    assert!(out.contains(line), "{out}");
    let line = "s  failed  the process ended (exit status: 0) without speaking MCP; is it an MCP server?\n";
    assert!(server("exit 0").contains(line));
}

#[test]
fn a_configuration_with_problems_is_not_printed_for_a_client() {
    let print = ["mcp", "--print-config", "claude"];
    let (code, out, err) = run("bind = 'x'\n[servers.a]\ncomand = 'x'", &print);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("did you mean `command`?"), "{err}");
}

#[test]
fn what_is_printed_for_a_client_has_plain_paths_and_names_the_variables_it_needs() {
    let config = "api_keys = ['env:NOT_USED_9']\n[servers.a]\nurl = 'http://x/mcp'\n\
         headers = { Authorization = 'Bearer ${NOT_SET_9}' }\n\
         [servers.b]\ncommand = 'x'\nargs = ['${NOT_SET_8:-y}']\ninherit_env = ['PROXY_9']\n";
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    fs::write(folder.path().join("t.toml"), config).unwrap();
    let args = [
        "mcp",
        "--print-config",
        "cursor",
        "--config",
        "./sub/../t.toml",
    ];
    let output = toolway(folder.path(), &args).output().unwrap();
    let settings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let path = folder.path().canonicalize().unwrap().join("t.toml");
    let printed = &settings["mcpServers"]["toolway"]["args"][2];
    assert_eq!(printed, path.to_str().unwrap());
    let err = text(&output.stderr);
    let hint = "The configuration uses environment variables, which the client may not pass on: \
                add `\"env\"` to the entry, with values for NOT_SET_9, PROXY_9.\n";
    assert!(err.contains(hint), "{err}");
    let args = ["mcp", "--print-config", "claude"];
    let output = toolway(folder.path(), &args).output().unwrap();
    assert!(
        !text(&output.stderr).contains("environment"),
        "{}",
        text(&output.stderr)
    );
}
