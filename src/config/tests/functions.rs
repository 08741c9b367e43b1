//! The groups of functions: their definitions, and the one way to run them.

use super::*;
use crate::upstream::function::Kind;

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
    let Kind::Endpoint(endpoint) = &group.kind;
    assert_eq!(endpoint.url.as_str(), "http://x/y");
    assert_eq!(endpoint.headers[0].1.expose(), "sk-1");
}

#[test]
fn there_is_exactly_one_way_to_run_a_group() {
    refused("", "functions.a: needs one way to be run: `endpoint`");
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
