//! The command line from outside: exit codes, what goes where, and the manual in the README.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should say where"
)]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

mod config;
mod cycles;
mod layers;
mod log;
mod missing;

/// The binary, with nothing of the caller's environment that would change what it says.
fn toolway(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolway"));
    command.args(args).current_dir(folder).stdin(Stdio::null());
    for name in ["TOOLWAY_CONFIG", "TOOLWAY_LOG", "COLUMNS", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.env("TOOLWAY_DATA_DIR", folder.join("data"));
    command
}

/// Runs it in a folder with this `toolway.toml`.
fn run(config: &str, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    if !config.is_empty() {
        fs::write(folder.path().join("toolway.toml"), config).unwrap();
    }
    toolway(folder.path(), args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const BROKEN: &str = "bind = 'x'\n[servers.files]\ncomand = 'npx'\n";

#[test]
fn check_prints_every_problem_with_its_path_and_exits_2() {
    let output = run(BROKEN, &["check"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        text(&output.stdout),
        "error: servers.files.comand: unknown key `comand`; did you mean `command`?\n\
         error: bind: `x` is no address with a port; write for example `127.0.0.1:4242`\n\
         error: servers.files: needs a `command` to start or a `url` to connect to\n\
         3 problems in the configuration; nothing was started\n"
    );
}

#[test]
fn check_speaks_json() {
    let output = run(BROKEN, &["check", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["ok"], false);
    assert_eq!(value["problems"][1]["path"], "bind");
}

#[test]
fn check_offline_starts_nothing_and_is_content() {
    let output = run(
        "[servers.files]\ncommand = 'no-such-program'",
        &["check", "--offline"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("configuration  toolway.toml\n"));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn nothing_starts_on_a_broken_configuration() {
    for args in [&["serve"][..], &["tools"], &["call", "x"]] {
        let output = run(BROKEN, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert!(
            text(&output.stderr).contains("did you mean `command`?"),
            "{args:?}"
        );
    }
}

#[test]
fn a_wrong_command_line_exits_2() {
    for args in [
        &["bogus"][..],
        &["serve", "--nope"],
        &["serve", "--log", "loud"],
        &[],
    ] {
        assert_eq!(run("", args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn colours_are_for_terminals() {
    for args in [&["check"][..], &["check", "--json"], &["--help"]] {
        assert!(!run(BROKEN, args).stdout.contains(&0x1b), "{args:?}");
    }
}

#[test]
fn completions_are_there_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run("", &["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains("toolway"), "{shell}");
    }
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = toolway(folder.path(), &["completions", "bash"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

/// A server that answers every request with this status, while the test runs; its address.
fn answering(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines();
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
            _ = (&stream).write_all(format!("{head}content-length: 2\r\n\r\n{{}}").as_bytes());
        }
    });
    format!("http://{address}")
}

/// A configuration with the built-in MCP server of the demo, and an upstream that takes fewer tools.
fn with_demo_server() -> String {
    let program = env!("CARGO_BIN_EXE_toolway");
    let server = format!("command = '{program}'\nargs = ['demo-server']");
    let base = answering("200 OK");
    let upstream = format!("name = 'small'\nbase_url = '{base}/v1'\nmax_tools = 2");
    format!("[[upstreams]]\n{upstream}\n[servers.demo]\n{server}")
}

#[test]
fn tools_are_listed_as_models_see_them() {
    let output = run(&with_demo_server(), &["tools"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).starts_with("demo  3 tools\n"),
        "{}",
        text(&output.stdout)
    );
    assert!(text(&output.stdout).contains("\n  demo__multiply "));
    let output = run(&with_demo_server(), &["tools", "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["tools"].as_array().unwrap().len(), 3);
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn why_a_server_has_no_tools_stands_beside_the_json() {
    let output = run(
        "[servers.gone]\ncommand = 'no-such-program-9'",
        &["tools", "--json"],
    );
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["servers"][0]["state"], "failed");
    let said = text(&output.stderr);
    assert!(
        said.contains("server `gone` is not ready (failed): "),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_a_terminal_would_not_show_is_shown_as_an_escape() {
    let folder = tempfile::tempdir().unwrap();
    let function = json!({"name": "f", "description": "pay\u{200b} \u{202e}lap\u{e0041}\u{7f}", "parameters": {}});
    let functions = json!({"tools": [{"type": "function", "function": function}]}).to_string();
    fs::write(folder.path().join("f.json"), functions).unwrap();
    let config = "[functions.g]\ndefinitions = 'f.json'\nendpoint = 'http://127.0.0.1:9/'\n";
    fs::write(folder.path().join("toolway.toml"), config).unwrap();
    let out = |args: &[&str]| toolway(folder.path(), args).output().unwrap().stdout;
    assert_eq!(
        text(&out(&["tools"])),
        "g  1 tool\n  g__f  pay\\u{200b} \\u{202e}lap\\u{e0041}\\u{7f}\n"
    );
    let listed = out(&["tools", "--json"]);
    assert!(text(&listed).contains("pay\\u200b \\u202elap\\udb40\\udc41\\u007f"));
    let value: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(
        value["tools"][0]["description"],
        "pay\u{200b} \u{202e}lap\u{e0041}\u{7f}"
    );
}

#[test]
fn a_call_prints_what_the_tool_answers() {
    let call = ["call", "demo__multiply", r#"{"a": 6, "b": 7}"#];
    let output = run(&with_demo_server(), &call);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "42\n")
    );
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn the_audit_of_calls_is_read_from_the_files_where_no_gateway_runs() {
    let folder = tempfile::tempdir().unwrap();
    // Nothing listens there.
    let config = format!("bind = '127.0.0.1:9'\n{}", with_demo_server());
    fs::write(folder.path().join("toolway.toml"), config).unwrap();
    let out = |args: &[&str]| {
        let output = toolway(folder.path(), args).output().unwrap();
        assert_eq!(text(&output.stderr), "", "{args:?}");
        text(&output.stdout).to_owned()
    };
    out(&["call", "demo__multiply", r#"{"a": 6, "b": 7}"#]);
    out(&["call", "demo__multiply", r#"{"a": 3, "b": 4}"#]);
    let json = out(&["audit", "--tool", "demo__*", "--json"]);
    let records: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(records.len(), 2, "{json}");
    assert!(records[0]["time"].as_str() <= records[1]["time"].as_str());
    assert_eq!(
        (&records[0]["face"], &records[0]["outcome"]),
        (&json!("cli"), &json!("ok"))
    );
    let shown = out(&["audit", "--since", "1h", "--face", "cli", "--limit", "1"]);
    assert_eq!(shown.lines().count(), 1, "{shown}");
    assert!(
        shown.contains("cli  allowed  demo__multiply  ok  "),
        "{shown}"
    );
    assert_eq!(out(&["audit", "--tool", "other__*"]), "no records\n");
    let table = out(&["audit", "--face", "cli", "--csv"]);
    assert_eq!(table.lines().count(), 3, "{table}");
}

#[test]
fn a_call_that_fails_exits_1_and_one_with_wrong_arguments_2() {
    for (code, args, said) in [
        (
            1,
            &["call", "demo__multply"][..],
            "did you mean demo__multiply?",
        ),
        (2, &["call", "demo__multiply", r#"{"a": 6}"#], "required"),
        (2, &["call", "demo__multiply", "{"], "error: "),
    ] {
        let output = run(&with_demo_server(), args);
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(code), ""),
            "{args:?}"
        );
        assert!(
            text(&output.stderr).contains(said),
            "{}",
            text(&output.stderr)
        );
    }
    let output = run(&with_demo_server(), &["call", "demo__multply", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["error"]["type"], "unknown_tool");
}

#[test]
fn a_call_that_finds_nothing_says_where_the_tool_could_be() {
    let gone = "[servers.gone]\ncommand = 'no-such-program'";
    for (config, said) in [
        ("", "no MCP server is configured"),
        (gone, "server `gone` is not ready (failed): "),
        (&with_demo_server(), "`toolway tools` lists"),
    ] {
        let output = run(config, &["call", "x__y"]);
        let error = text(&output.stderr);
        assert!(
            error.starts_with("error: there is no tool named `x__y`\n"),
            "{error}"
        );
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_variable_that_is_not_set_costs_its_server_only() {
    let config =
        with_demo_server() + "\n[servers.other]\ncommand = 'x'\nenv = { T = 'env:NOT_SET_9' }\n";
    let why = "`env.T`: the environment variable `NOT_SET_9` is not set";
    let output = run(&config, &["tools"]);
    assert!(text(&output.stdout).contains("\n  demo__multiply "));
    assert!(
        text(&output.stdout).contains(why),
        "{}",
        text(&output.stdout)
    );
    let output = run(&config, &["call", "demo__multiply", r#"{"a": 6, "b": 7}"#]);
    assert_eq!(text(&output.stdout), "42\n", "{}", text(&output.stderr));
    let output = run(&config, &["check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains(why),
        "{}",
        text(&output.stdout)
    );
    let output = run(&config, &["check", "--offline"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).contains(&format!("warning: servers.other: is not started: {why}\n")),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_key_is_wanted_only_where_it_is_used() {
    let config = with_demo_server().replace("max_tools", "api_key = 'env:NOT_SET_9'\nmax_tools");
    let config = format!("api_keys = ['env:NOT_SET_9']\n{config}");
    for args in [
        &["tools"][..],
        &["call", "demo__multiply", r#"{"a": 6, "b": 7}"#],
        &["check", "--offline"],
        &["mcp"],
    ] {
        let output = run(&config, args);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
    let output = run(&config, &["serve"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("upstreams[0].api_key: the environment variable"));
}

#[test]
fn the_lines_of_the_demo_can_be_pasted() {
    let output = run("", &["demo", "--once", "--bind", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for start in ["curl -N ", "from openai ", "    print(", "import OpenAI "] {
        let line = format!("\n{start}");
        assert!(text(&output.stdout).contains(&line), "{start}");
    }
}

#[test]
fn check_starts_the_servers_and_names_what_is_left_out() {
    let output = run(&with_demo_server(), &["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert!(out.contains("  demo  ready  stdio  "), "{out}");
    assert!(out.contains("  left out 1 tool for small: "), "{out}");
}

#[test]
fn check_exits_1_when_a_server_does_not_come_up() {
    let output = run(
        "[servers.gone]\ncommand = 'no-such-program'",
        &["check", "--json"],
    );
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["ok"], false);
    assert_eq!(value["servers"][0]["state"], "failed");
    assert!(
        value["servers"][0]["last_error"]
            .as_str()
            .unwrap()
            .contains("no-such-program")
    );
}

#[test]
fn check_names_what_cannot_be_reached_and_runs_nothing_there() {
    let (fine, wary) = (answering("404 Not Found"), answering("401 Unauthorized"));
    // What Google says of a wrong key.
    let google = answering("400 Bad Request");
    let definitions = r#"[{"type": "function", "function": {"name": "f"}}]"#;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("f.json"), definitions).unwrap();
    let config = format!(
        "[[upstreams]]\nname = 'fine'\nbase_url = '{fine}/v1'\nmodels = ['a']\n\
         [[upstreams]]\nname = 'wary'\nbase_url = '{wary}/v1'\nmodels = ['b']\n\
         [[upstreams]]\nname = 'strict'\nbase_url = '{wary}/v1'\nmodels = ['c']\napi_key = 'k'\n\
         [[upstreams]]\nname = 'google'\nbase_url = '{google}'\nmodels = ['e']\napi = 'gemini'\napi_key = 'k'\n\
         [[upstreams]]\nname = 'keyless'\nbase_url = '{google}'\nmodels = ['f']\napi = 'gemini'\n\
         [[upstreams]]\nname = 'dead'\nbase_url = 'http://127.0.0.1:9/v1'\nmodels = ['d']\n\
         [functions.hook]\ndefinitions = 'f.json'\nendpoint = '{fine}/hook'\n\
         [functions.gone]\ndefinitions = 'f.json'\nendpoint = 'http://127.0.0.1:9/hook'\n"
    );
    fs::write(folder.path().join("toolway.toml"), config).unwrap();
    let output = toolway(folder.path(), &["check", "--json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let dead = |list: &str| {
        let list = value[list].as_array().unwrap().clone();
        let dead = list.into_iter().filter(|it| !it["error"].is_null());
        dead.map(|it| it["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(dead("upstreams"), ["strict", "google", "dead"], "{value}");
    assert_eq!(dead("services"), ["gone"], "{value}");
    let output = toolway(folder.path(), &["check"]).output().unwrap();
    let out = text(&output.stdout);
    assert!(
        out.contains("cannot be reached: Connection refused"),
        "{out}"
    );
    let output = toolway(folder.path(), &["check", "--offline"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_server_that_never_answers_is_named_and_the_exit_code_is_1() {
    let config = format!(
        "[[upstreams]]\nbase_url = '{}/v1'\n[servers.mute]\ncommand = 'sleep'\nargs = ['600']\nstart_timeout = '1s'",
        answering("200 OK")
    );
    for args in [&["check"][..], &["tools"]] {
        let output = run(&config, args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let out = text(&output.stdout);
        assert!(out.contains("the server did not answer in 1 s"), "{out}");
    }
}

/// Whether a process runs; one that is dead and not collected yet does not.
#[cfg(target_os = "linux")]
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !matches!(state.chars().next(), None | Some('Z' | 'X'))
}

/// As `npx` does it: a wrapper with a child of its own, and neither of them ends when it is asked to.
/// `then` is what the wrapper does as the server.
#[cfg(target_os = "linux")]
fn stubborn(then: &str) -> String {
    let script =
        format!("trap '' TERM; sleep 1000 & echo $! > started; mv started pid; {then}; sleep 1000");
    format!("[servers.x]\ncommand = 'sh'\nargs = ['-c', \"{script}\"]\n")
}

/// Starts it, waits for the grandchild, sends SIGTERM after each of these texts was logged, and expects that
/// all is over.
#[track_caller]
#[cfg(target_os = "linux")]
fn check_stopped_at_once(config: &str, args: &[&str], after: &[&str]) {
    use nix::{sys::signal, unistd::Pid};
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("toolway.toml"), config).unwrap();
    let mut command = toolway(folder.path(), args);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let pid_file = folder.path().join("pid");
    while !pid_file.exists() {
        thread::sleep(Duration::from_millis(10));
    }
    let grandchild = fs::read_to_string(pid_file).unwrap();
    assert!(is_running(grandchild.trim()));
    let mut log = BufReader::new(running.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok);
    for text in after {
        assert!(
            text.is_empty() || log.any(|line| line.contains(text)),
            "`{text}` was not logged"
        );
        let pid = Pid::from_raw(i32::try_from(running.id()).unwrap());
        signal::kill(pid, signal::SIGTERM).unwrap();
    }
    assert_eq!(running.wait().unwrap().code(), Some(130));
    // Killed, it may take its time to die.
    let is_gone = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        !is_running(grandchild.trim())
    });
    assert!(is_gone, "it was left running");
}

#[test]
#[cfg(target_os = "linux")]
fn whoever_is_told_twice_stops_at_once_and_leaves_nothing_running() {
    let server = format!("{} demo-server", env!("CARGO_BIN_EXE_toolway"));
    let args = ["serve", "--bind", "127.0.0.1:0"];
    let after = [
        "A server is ready server.id=x",
        "a second signal ends toolway at once",
    ];
    check_stopped_at_once(&stubborn(&server), &args, &after);
}

#[test]
#[cfg(target_os = "linux")]
fn a_command_that_is_interrupted_leaves_nothing_running() {
    check_stopped_at_once(&stubborn("wait"), &["tools"], &[""]);
}

/// The log of a gateway with this limit of open files, until it listens.
#[cfg(target_os = "linux")]
fn log_with_open_files(limit: &str) -> String {
    use nix::{sys::signal, unistd::Pid};
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    let script = format!("ulimit {limit}; exec \"$0\" serve --bind 127.0.0.1:0");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_toolway")]);
    command.env("TOOLWAY_DATA_DIR", folder.path().join("data"));
    command.current_dir(folder.path()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(running.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("toolway listens on "), "{line}");
    let pid = Pid::from_raw(i32::try_from(running.id()).unwrap());
    signal::kill(pid, signal::SIGTERM).unwrap();
    text(&running.wait_with_output().unwrap().stderr).to_owned()
}

#[test]
#[cfg(target_os = "linux")]
fn the_limit_of_open_files_is_raised_and_what_is_served_fits_it() {
    let log = log_with_open_files("-Sn 256");
    assert!(
        log.contains("Raised the limit of open files from 256 to "),
        "{log}"
    );
    let log = log_with_open_files("-n 256");
    assert!(!log.contains("Raised"), "{log}");
    let warning = "At most 256 files can be open, so 72 requests are served side by side and not 4096; \
        that takes 10304 (`ulimit -n 10304`, `LimitNOFILE=10304`)";
    assert!(log.contains(warning), "{log}");
}

/// What stands between the marks of a README is what the program says.
#[test]
fn the_help_in_the_readme_is_the_help_of_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let page = fs::read_to_string(&path).unwrap();
    let (start, end) = ("<!-- help -->\n", "<!-- /help -->");
    let (before, rest) = page.split_once(start).expect("README.md has a help mark");
    let (_, after) = rest
        .split_once(end)
        .expect("README.md has an end of help mark");
    let help = run("", &["-h"]);
    let wanted = format!(
        "{before}{start}```text\n{}```\n{end}{after}",
        text(&help.stdout)
    );
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &wanted).unwrap();
    } else {
        assert!(page == wanted, "run `UPDATE_DOCS=1 cargo test --test cli`");
    }
}

#[test]
fn a_profile_that_is_not_there_is_not_printed_for_a_client() {
    let profiles = "[profiles.one]\ntools = ['*']";
    let print = |name: &str| {
        run(
            profiles,
            &["mcp", "--profile", name, "--print-config", "claude"],
        )
    };
    assert_eq!(print("one").status.code(), Some(0));
    let refused = print("two");
    assert_eq!(
        (refused.status.code(), text(&refused.stdout)),
        (Some(2), "")
    );
    let said = "no profile `two`; there are: one";
    assert!(
        text(&refused.stderr).contains(said),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn what_to_paste_into_another_client_is_printed_and_where_is_said_beside() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("toolway.toml"), "").unwrap();
    fs::write(folder.path().join("other.json"), r#"{"mcpServers": {}}"#).unwrap();
    let args = ["mcp", "--mcp", "other.json", "--print-config"];
    for (client, table) in [
        ("claude", "mcpServers"),
        ("claude-code", "mcpServers"),
        ("cursor", "mcpServers"),
        ("vscode", "servers"),
    ] {
        let output = toolway(folder.path(), &args).arg(client).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let settings: Value = serde_json::from_slice(&output.stdout).unwrap();
        let entry = &settings[table]["toolway"];
        assert_eq!(entry["command"], env!("CARGO_BIN_EXE_toolway"));
        let args = entry["args"].as_array().unwrap();
        let options = [&args[0], &args[1], &args[3]];
        assert_eq!(options, ["mcp", "--config", "--mcp"]);
        for file in [&args[2], &args[4]] {
            let file = Path::new(file.as_str().unwrap());
            assert!(file.is_absolute() && file.is_file(), "{}", file.display());
        }
        let said = text(&output.stderr);
        assert!(said.starts_with("Paste this into "), "{said}");
        assert!(said.contains("names toolway.toml of this folder"), "{said}");
        assert!(said.contains("this entry offers no tools"), "{said}");
    }
    let with_server = with_demo_server();
    let output = run(&with_server, &["mcp", "--print-config", "claude"]);
    assert!(!text(&output.stderr).contains("offers no tools"));
    let output = run(
        "",
        &["mcp", "--print-config", "claude", "--config", "gone.toml"],
    );
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
}
