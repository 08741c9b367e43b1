//! The MCP servers in `toolway.toml`.

use super::*;
use crate::upstream::function::BackendKind;
use toolway_core::policy::isolation::{Isolation, IsolationKind, Mount};

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
        "servers.a: has both `command` and `url`; give one of them",
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
fn a_server_runs_always_or_on_demand() {
    server_refused(
        "command = 'x'\nstart = 'sometimes'",
        "servers.a.start: must be \"eager\" or \"on_demand\", not \"sometimes\"",
    );
    server_refused(
        "command = 'x'\nidle_stop = '1m'",
        "servers.a.idle_stop: is for servers with `start = \"on_demand\"`",
    );
    server_refused(
        "command = 'x'\nstateful = true\ninstances = 2",
        "servers.a.instances: a `stateful` server has one instance; leave this out",
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

#[track_caller]
fn check_unavailable(server: &upstream::mcp::Config, expected: &str) {
    let Transport::Unavailable { reason, .. } = &server.transport else {
        panic!("{:?}", server.transport)
    };
    assert_eq!(reason, expected);
}

#[test]
fn what_is_not_there_costs_its_server_and_no_other() {
    let config = ok(indoc! {"
        [servers.a]
        command = 'x'
        args = ['${GONE} ${KEY} ${LOST}']
        [servers.b]
        url = 'http://x/mcp'
        headers = { Authorization = 'env:GONE' }
        [servers.c]
        command = 'x'
        env = { TOKEN = 'file:gone.key' }
        [servers.d]
        command = 'x'
    "});
    check_unavailable(
        &config.servers[0],
        "`args[0]`: the environment variable `GONE` is not set; \
         `args[0]`: the environment variable `LOST` is not set",
    );
    check_unavailable(
        &config.servers[1],
        "`headers.Authorization`: the environment variable `GONE` is not set",
    );
    check_unavailable(
        &config.servers[2],
        "`env.TOKEN`: `gone.key` cannot be read: entity not found",
    );
    assert!(matches!(
        config.servers[3].transport,
        Transport::Stdio { .. }
    ));
}

#[test]
fn a_key_that_is_not_used_may_be_missing() {
    let text = indoc! {"
        api_keys = ['env:GONE']
        [[upstreams]]
        base_url = 'https://u/v1'
        api_key = 'env:GONE'
    "};
    let with = |text: &str, keys| {
        let given = Given {
            keys,
            ..Given::default()
        };
        load(&[("toolway.toml", text)], &given)
    };
    assert_eq!(with(text, Keys::All).unwrap_err().len(), 2);
    let config = with(text, Keys::Used).unwrap();
    assert_eq!(config.warnings, []);
    assert_eq!(
        lines(&config.unset),
        "api_keys[0]: the environment variable `GONE` is not set\n\
         upstreams[0].api_key: the environment variable `GONE` is not set"
    );
    let asking = format!("{text}\n[functions.f]\nmodel = 'm'\nprompt = '{{input}}'");
    let BackendKind::Unavailable { reason, .. } =
        &with(&asking, Keys::Used).unwrap().functions[0].kind
    else {
        panic!("it asks a model that cannot be asked")
    };
    assert_eq!(
        reason,
        "`model`: upstreams[0].api_key: the environment variable `GONE` is not set"
    );
    assert_eq!(with(&asking, Keys::All).unwrap_err().len(), 2);
}

#[test]
fn patterns_choose_the_tools_of_a_server() {
    let config = ok("[servers.a]\ncommand = 'x'\ntools = ['read_*', '!read_all']");
    let shown = ["read_a", "read_all", "x"].map(|name| config.servers[0].tools.shows(name));
    assert_eq!(shown, [true, false, false]);
    server_refused(
        "command = 'x'\ntools = []",
        "servers.a.tools: is empty; leave it out for every tool, or write `enabled = false` for no server",
    );
    server_refused(
        "command = 'x'\ntools = ['!']",
        "servers.a.tools[0]: must not be empty",
    );
}

#[test]
fn a_process_gets_the_variables_that_it_inherits_and_env_goes_before_them() {
    let config = ok(
        "[servers.a]\ncommand = 'x'\ninherit_env = ['KEY', 'GONE', 'EMPTY']\nenv = { EMPTY = 'mine' }",
    );
    let Transport::Stdio { env, .. } = &config.servers[0].transport else {
        panic!("stdio")
    };
    let env = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()));
    let expected = [("KEY", "sk-1"), ("EMPTY", ""), ("EMPTY", "mine")];
    assert_eq!(env.collect::<Vec<_>>(), expected);
    server_refused(
        "url = 'http://x/mcp'\ninherit_env = ['KEY']",
        "servers.a.inherit_env: belongs to a server with a `command`",
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

#[test]
fn a_server_is_isolated_as_it_says() {
    let config = ok(
        "[servers.a]\ncommand = 'x'\nisolation = { kind = 'docker', image = 'i:1', memory = '64m', network = 'none', mounts = ['/srv/d:/d:ro'] }",
    );
    let Transport::Stdio {
        isolation: Some(isolation),
        ..
    } = &config.servers[0].transport
    else {
        panic!("isolated")
    };
    let expected = Isolation {
        kind: IsolationKind::Docker,
        image: "i:1".to_owned(),
        memory: 64 << 20,
        cpus: 1.0,
        pids: 128,
        network: None,
        mounts: vec![Mount {
            host: "/srv/d".to_owned(),
            inside: "/d".to_owned(),
            read_only: true,
        }],
    };
    assert_eq!(**isolation, expected);
}

#[test]
fn a_server_whose_isolation_is_not_understood_is_refused() {
    for (isolation, problem) in [
        (
            "{ image = 'i' }",
            "kind: is missing: `\"docker\"`, `\"podman\"` or `\"bubblewrap\"`",
        ),
        (
            "{ kind = 'dokcer', image = 'i' }",
            "kind: unknown kind `dokcer`; did you mean `docker`?",
        ),
        (
            "{ kind = 'docker' }",
            "image: is missing: the image that the container is made of",
        ),
        (
            "{ kind = 'docker', image = '--privileged' }",
            "image: must not begin with `-`",
        ),
        (
            "{ kind = 'bubblewrap', image = 'i' }",
            "image: has no meaning for `bubblewrap`",
        ),
        (
            "{ kind = 'docker', image = 'i', memory = 'much' }",
            "memory: `much` is no size of 6 MiB or more, such as `512m` or `2g`",
        ),
        (
            "{ kind = 'docker', image = 'i', mounts = ['data'] }",
            "mounts[0]: is written `HOST:INSIDE` or `HOST:INSIDE:ro`; INSIDE begins with `/`",
        ),
        (
            "{ kind = 'docker', image = 'i', network = '--net' }",
            "network: is `\"none\"` or the name of a network",
        ),
    ] {
        server_refused(
            &format!("command = 'x'\nisolation = {isolation}"),
            &format!("servers.a.isolation.{problem}"),
        );
    }
    server_refused(
        "url = 'http://x/mcp'\nisolation = { kind = 'docker', image = 'i' }",
        "servers.a.isolation: belongs to a server with a `command`",
    );
}
