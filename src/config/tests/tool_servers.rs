//! The MCP servers in `toolway.toml`.

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

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let text = "[servers.a]\ncommand = '${workspaceFolder}/x'\ncwd = 'data'";
    let check = |file: &str, folder: &str| {
        let given = Given {
            config: Some(file.into()),
            ..Given::default()
        };
        let config = load(&[(file, text)], &given).unwrap();
        let Transport::Stdio { command, cwd, .. } = &config.servers[0].transport else {
            panic!("stdio")
        };
        assert_eq!(*command, format!("{folder}/x"));
        assert_eq!(cwd.as_deref(), Some(Path::new(&format!("{folder}/data"))));
    };
    check("mine.toml", "/w");
    check("etc/mine.toml", "/w/etc");
}
