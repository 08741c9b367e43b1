//! The groups of functions: their definitions, and the one way to run them.

mod openapi;

use super::*;
use crate::upstream::function::BackendKind;

const WEATHER: &str = r#"[{"type": "function", "function": {"name": "weather"}}]"#;

/// Loads `toolway.toml` beside `weather.json`, and `broken.json` with this text.
fn load_with(toml: &str, broken: &str) -> Result<Config, Vec<Problem>> {
    load(
        &[
            ("toolway.toml", toml),
            ("weather.json", WEATHER),
            ("broken.json", broken),
        ],
        &Given::default(),
    )
}

#[track_caller]
fn ok(keys: &str) -> Config {
    let toml = format!("[functions.a]\ndefinitions = 'weather.json'\n{keys}");
    load_with(&toml, "").unwrap_or_else(|problems| panic!("{}", lines(&problems)))
}

#[track_caller]
fn refused(keys: &str, problem: &str) {
    let toml = format!("[functions.a]\ndefinitions = 'weather.json'\n{keys}");
    let problems = load_with(&toml, "").expect_err("the file should be refused");
    assert_eq!(lines(&problems), problem);
}

#[track_caller]
fn definitions_refused(text: &str, problems: &str) {
    let toml = "[functions.a]\ndefinitions = 'broken.json'\nendpoint = 'http://x'";
    let found = load_with(toml, text).expect_err("the file should be refused");
    assert_eq!(lines(&found), problems);
}

#[test]
fn a_webhook_has_its_functions_and_the_defaults() {
    let config = ok("endpoint = 'http://x/y'\nheaders = {Authorization = 'env:KEY'}");
    let group = &config.functions[0];
    assert_eq!(group.group.as_str(), "a");
    assert_eq!(group.tools[0].name, "weather");
    assert_eq!(
        (
            group.timeout,
            group.parallel_calls,
            group.max_response_bytes
        ),
        (None, 16, 16 << 20)
    );
    let BackendKind::Endpoint(endpoint) = &group.kind else {
        panic!("endpoint")
    };
    assert_eq!(endpoint.url.as_str(), "http://x/y");
    assert_eq!(endpoint.headers[0].1.expose(), "sk-1");
}

#[test]
fn there_is_exactly_one_way_to_run_a_group() {
    refused(
        "",
        "functions.a: needs one way to be run: `endpoint`, `url`, `command`, `model`, `openapi`",
    );
    refused(
        "endpoint = 'x'",
        "functions.a.endpoint: must begin with http:// or https://",
    );
    refused(
        "endpoint = 'http://x'\nendpint = 1",
        "functions.a.endpint: unknown key `endpint`; did you mean `endpoint`?",
    );
}

#[test]
fn a_name_belongs_to_a_server_or_to_a_group() {
    refused(
        "endpoint = 'http://x'\n[servers.a]\ncommand = 'x'",
        "functions.a: `a` is already the name of a server",
    );
    ok("endpoint = 'http://x'\n[servers.a]\ncommand = 'x'\nenabled = false");
    let reserved = "`toolway` is the name of the gateway's own tools; choose another";
    super::refused(
        "[servers.toolway]\ncommand = 'x'",
        &format!("servers.toolway: {reserved}"),
    );
    refused(
        "endpoint = 'http://x'\n[functions.toolway]\ndefinitions = 'weather.json'\nendpoint = 'http://x'",
        &format!("functions.toolway: {reserved}"),
    );
}

#[test]
fn a_group_that_is_switched_off_is_not_looked_at() {
    assert!(ok("enabled = false").functions.is_empty());
}

#[test]
fn the_definitions_are_a_file_that_can_be_read() {
    super::refused(
        "[functions.a]\nendpoint = 'http://x'",
        "functions.a.definitions: is missing: the file with the OpenAI `tools` array",
    );
    super::refused(
        "[functions.a]\nendpoint = 'http://x'\ndefinitions = 'gone.json'",
        "functions.a.definitions: `gone.json` cannot be read: entity not found",
    );
}

#[test]
fn everything_that_is_wrong_with_the_definitions_is_named_at_once() {
    definitions_refused(
        r#"[{"name": "a"}, {"name": "a"}, {"name": "b", "parameters": {"type": "array"}}]"#,
        "functions.a.definitions: `broken.json`: [1].name: `a` is already defined at [0]\n\
         functions.a.definitions: `broken.json`: [2].parameters: its input schema has type \"array\", not \"object\"",
    );
    definitions_refused(
        "nope",
        "functions.a.definitions: `broken.json`: is not JSON: expected ident at line 1 column 2",
    );
    let many = format!("[{}]", ["1"; 25].join(","));
    let toml = "[functions.a]\ndefinitions = 'broken.json'\nendpoint = 'http://x'";
    let found = load_with(toml, &many).unwrap_err();
    assert_eq!(found.len(), 21);
    assert_eq!(found[20].message, "`broken.json`: and 5 more");
}

const TOWN: &str = r#"[
    {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}},
    {"name": "mayor", "parameters": {"type": "object", "properties": {"city": {}, "year": {}}}},
    {"name": "odd", "parameters": {"allOf": [{}]}}
]"#;

#[track_caller]
fn town(keys: &str) -> Config {
    let toml = format!("[functions.a]\ndefinitions = 'broken.json'\n{keys}");
    load_with(&toml, TOWN).unwrap_or_else(|problems| panic!("{}", lines(&problems)))
}

#[track_caller]
fn town_refused(keys: &str, problem: &str) {
    let toml = format!("[functions.a]\ndefinitions = 'broken.json'\n{keys}");
    let problems = load_with(&toml, TOWN).expect_err("the file should be refused");
    assert_eq!(lines(&problems), problem);
}

#[test]
fn two_ways_are_one_too_many_and_a_key_of_another_way_is_too() {
    refused(
        "endpoint = 'http://x'\ncommand = 'x'",
        "functions.a: has `endpoint`, `command`; give one of them",
    );
    refused(
        "command = 'x'\nheaders = {}\nmethod = 'GET'\nmax_batch = 5",
        "functions.a.max_batch: belongs to functions with `endpoint`\n\
         functions.a.method: belongs to functions with `url`\n\
         functions.a.headers: belongs to functions with `endpoint`, `url`, `openapi`",
    );
}

#[test]
fn a_batch_has_its_bounds() {
    let config = ok("endpoint = 'http://x'\nbatch = '5ms'");
    let BackendKind::Endpoint(endpoint) = &config.functions[0].kind else {
        panic!("endpoint")
    };
    let batch = endpoint.batch.unwrap();
    assert_eq!(
        (batch.window, batch.max_calls),
        (Duration::from_millis(5), 16)
    );
    refused(
        "endpoint = 'http://x'\nbatch = '2s'",
        "functions.a.batch: must be at most 1s, because every call waits for it",
    );
    refused(
        "endpoint = 'http://x'\nmax_batch = 2",
        "functions.a.max_batch: belongs to `batch`",
    );
    refused(
        "endpoint = 'http://x'\nbatch = '5ms'\nmax_batch = 1",
        "functions.a.max_batch: must be between 2 and 128, not 1",
    );
}

#[test]
fn each_function_has_a_url_and_each_place_a_parameter() {
    let config = town("url = 'https://x/{function}/{city}'\nurls = {odd = 'GET https://x/{any}'}");
    let BackendKind::Url(url) = &config.functions[0].kind else {
        panic!("url")
    };
    let mut names: Vec<_> = url.requests.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["mayor", "odd", "weather"]);

    town_refused(
        "url = 'https://x/{year}'",
        "functions.a.url: `{year}` is no parameter of `weather`",
    );
    town_refused(
        "urls = {weather = 'https://x', odd = 'https://x', mayer = 'https://x'}",
        "functions.a.urls.mayer: unknown function `mayer`; did you mean `mayor`?\n\
         functions.a.urls: has no URL for `mayor`, and there is no `url`",
    );
    town_refused(
        "url = 'https://{city}/'\nmethod = 'GOT'",
        "functions.a.method: unknown method `GOT`; known are GET, POST, PUT, PATCH, DELETE, HEAD\n\
         functions.a.url: the host cannot come from an argument",
    );
    town_refused(
        "url = 'https://x'\nurls = {odd = 'nope'}",
        "functions.a.urls.odd: must begin with http:// or https://",
    );
}

#[test]
fn a_command_is_a_program_with_its_arguments() {
    let config = ok(
        "command = 'bin/x'\nargs = ['{function}', '${KEY}']\ncwd = 'data'\nenv = {K = 'env:KEY'}",
    );
    let BackendKind::Command(command) = &config.functions[0].kind else {
        panic!("command")
    };
    assert_eq!(command.args, ["{function}", "sk-1"]);
    assert_eq!(command.cwd.as_deref(), Some(Path::new("/w/data")));
    assert_eq!(command.env[0].1.expose(), "sk-1");
    let config = ok("command = './run'");
    let BackendKind::Command(command) = &config.functions[0].kind else {
        panic!("command")
    };
    assert_eq!(command.command, "/w/./run");
    refused("command = ''", "functions.a.command: must not be empty");
}

#[test]
fn a_model_is_a_tool_by_itself() {
    let upstream = "[[upstreams]]\nbase_url = 'http://u'\nmodels = ['small-*']";
    let check = |keys: &str| {
        let toml = format!("[functions.brief]\n{keys}\n{upstream}");
        load_with(&toml, "")
    };
    let config = check("model = 'small-1'\nprompt = 'Sum up: {input}'").unwrap();
    let tool = &config.functions[0].tools[0];
    assert_eq!(
        (tool.name.as_str(), tool.description.as_deref()),
        ("brief", Some("Asks the model small-1."))
    );
    let refused = |keys: &str, problem: &str| {
        assert_eq!(lines(&check(keys).unwrap_err()), problem);
    };
    refused(
        "model = 'big'\nprompt = '{input}'",
        "functions.brief.model: no upstream has the model `big`",
    );
    refused(
        "model = 'small-1'",
        "functions.brief.prompt: is missing: what the model is asked",
    );
    refused(
        "model = 'small-1'\nprompt = 'Tell a joke.'",
        "functions.brief.prompt: says nothing of the argument; put `{input}` where it belongs",
    );
    refused(
        "model = 'small-1'\nprompt = '{text}'",
        "functions.brief.prompt: `{text}` is no parameter of `brief`",
    );
}

#[test]
fn a_model_without_a_key_of_its_own_is_a_warning() {
    super::warned(
        "[functions.brief]\nmodel = 'm'\nprompt = '{input}'",
        "functions.brief.model: the upstream `api.openai.com` has no `api_key`, and a function has no client \
         whose key could be passed on",
    );
}
