//! The model providers.

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
}

#[test]
fn a_base_url_without_a_path_gets_v1_wherever_it_is_written() {
    for (url, expected) in [
        ("http://x", "http://x/v1"),
        ("http://x/", "http://x/v1"),
        ("http://x/v1/", "http://x/v1"),
        ("http://x/openai", "http://x/openai"),
        ("http://x/.", "http://x/"),
    ] {
        let in_file = ok(&format!("[[upstreams]]\nbase_url = '{url}'"));
        let given = Given {
            upstream: Some(url.into()),
            ..Given::default()
        };
        let in_option = load(&[], &given).unwrap();
        for config in [in_file, in_option] {
            assert_eq!(config.upstreams[0].base_url.as_str(), expected);
            assert_eq!(config.warnings, []);
        }
    }
}

#[test]
fn a_base_url_of_gemini_without_a_path_gets_v1beta() {
    let config = ok("[[upstreams]]\nbase_url = 'http://x'\napi = 'gemini'");
    assert_eq!(config.upstreams[0].base_url.as_str(), "http://x/v1beta");
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
    refused(
        indoc! {"
            [[upstreams]]
            base_url = 'http://localhost:11434'
            models = ['a']
            [[upstreams]]
            base_url = 'http://localhost:8000'
        "},
        "upstreams[1].name: `localhost` is already the name of upstreams[0]; without `name` the host of \
         `base_url` is the name, so add `name = \"…\"` to one of them",
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
    let with = |key: &str| format!("[[upstreams]]\nbase_url = 'http://x/v1'\napi_key = '{key}'");
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
fn a_clients_key_is_for_one_upstream_at_most() {
    let takers = |text: &str| -> Vec<bool> {
        let upstreams = ok(text).upstreams;
        upstreams.iter().map(|it| it.client_key).collect()
    };
    let one = |keys: &str| format!("[[upstreams]]\nbase_url = 'http://a/v1'\n{keys}\n");
    let two = |first: &str, second: &str| {
        format!(
            "{}[[upstreams]]\nbase_url = 'http://b/v1'\n{second}\n",
            one(first)
        )
    };
    assert_eq!(takers(""), [true], "OpenAI, where nothing is configured");
    assert_eq!(takers(&one("")), [true]);
    assert_eq!(takers(&one("client_key = false")), [false]);
    assert_eq!(takers(&one("api_key = 'env:KEY'")), [false]);
    assert_eq!(takers(&one("headers = {X-Api-Key = 'env:KEY'}")), [false]);
    assert_eq!(takers(&two("models = ['a']", "")), [false, false]);
    let second = two("models = ['a']\napi_key = 'env:KEY'", "");
    assert_eq!(takers(&second), [false, false]);
    let named = two("models = ['a']", "client_key = true");
    assert_eq!(takers(&named), [false, true]);
    refused(
        &two("models = ['a']\nclient_key = true", "client_key = true"),
        "upstreams[1].client_key: upstreams[0] has it already; a client's key goes to one upstream only",
    );
    upstream_refused(
        "base_url = 'http://a/v1'\nheaders = {Authorization = 'env:KEY'}\nclient_key = true",
        "upstreams[0].client_key: the upstream has a key of its own; leave out one of the two",
    );
}

#[test]
fn a_provider_that_gets_nobodys_key_is_a_warning() {
    let text = indoc! {"
        [[upstreams]]
        name = 'cloud'
        base_url = 'https://a/v1'
        models = ['gpt-*']
        [[upstreams]]
        name = 'ollama'
        base_url = 'http://127.0.0.1:11434/v1'
    "};
    warned(
        text,
        "upstreams[0].api_key: `cloud` gets no key at all; set its `api_key`, or `client_key = true` if the \
         clients' own key is for this upstream",
    );
    warned(&text.replace("models", "client_key = true\nmodels"), "");
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
