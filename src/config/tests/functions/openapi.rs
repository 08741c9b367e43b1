//! OpenAPI documents as groups of functions.

use super::*;

const PETS: &str = "\
openapi: 3.1.0
servers: [{url: 'https://pets.example/v1/'}]
paths:
  /pets:
    get: {operationId: listPets}
    post: {operationId: createPet, requestBody: {required: true, content: {image/png: {}}}}
  /pets/{id}:
    get: {operationId: getPet}
    delete: {operationId: pets/delete}
";

fn load_api(document: &str, keys: &str) -> Result<Config, Vec<Problem>> {
    let toml = format!("[functions.a]\nopenapi = 'pets.yaml'\n{keys}");
    let files = [("toolway.toml", toml.as_str()), ("pets.yaml", document)];
    load(&files, &Given::default())
}

#[track_caller]
fn api(document: &str, keys: &str) -> (Config, crate::upstream::function::openapi::Config) {
    let config = load_api(document, keys).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    let BackendKind::OpenApi(api) = config.functions[0].kind.clone() else {
        panic!("{:?}", config.functions[0].kind);
    };
    (config, api)
}

#[track_caller]
fn api_refused(document: &str, keys: &str, problem: &str) {
    let problems = load_api(document, keys).expect_err("it should be refused");
    assert_eq!(lines(&problems), problem);
}

fn tool_names(config: &Config) -> Vec<&str> {
    let tools = config.functions[0].tools.iter();
    tools.map(|tool| tool.name.as_str()).collect()
}

#[test]
fn a_document_defines_the_functions_and_says_where_they_are() {
    let (config, api) = api(PETS, "headers = {Authorization = 'env:KEY'}");
    assert_eq!(tool_names(&config), ["listPets", "getPet", "pets_delete"]);
    assert_eq!(api.base_url.as_str(), "https://pets.example/v1");
    assert_eq!(api.headers[0].1.expose(), "sk-1");
    assert_eq!(api.dropped[0].name, "POST /pets");
    assert!(api.dropped[0].reason.contains("image/png"));
}

#[test]
fn operations_are_chosen_by_name() {
    let (config, api) = api(PETS, "operations = ['get*', 'pets/delete']");
    assert_eq!(tool_names(&config), ["getPet", "pets_delete"]);
    assert!(api.dropped.is_empty());
    api_refused(
        PETS,
        "operations = ['getpet', 'createPet']",
        "functions.a.operations[0]: `getpet` names no operation; there are `getPet`, `listPets`, `pets_delete`",
    );
}

#[test]
fn the_base_url_can_be_said_and_must_be_known() {
    let (_, api) = api(PETS, "base_url = 'http://127.0.0.1:9000/x'");
    assert_eq!(api.base_url.as_str(), "http://127.0.0.1:9000/x");
    let relative = PETS.replace("https://pets.example/v1/", "/v1");
    api_refused(
        &relative,
        "",
        "functions.a.base_url: is missing: `pets.yaml` does not say on which host the API is (`servers`); \
         write it here, with the path that all operations begin with",
    );
    api_refused(
        PETS,
        "base_url = 'http://x/?a=b'",
        "functions.a.base_url: must not have a query",
    );
}

#[test]
fn a_document_names_no_secret_of_this_machine() {
    let curious = PETS.replace("https://pets.example", "https://x.example/${KEY}");
    let problems = load_api(&curious, "").map(|_| ()).unwrap_err();
    assert!(lines(&problems).contains("does not say on which host"));
}

#[test]
fn a_document_that_is_none_is_refused_with_the_reason() {
    for (document, why) in [
        (
            "swagger: '2.0'\npaths: {}",
            "it is a Swagger 2.0 document, and toolway reads OpenAPI 3.x; convert it, \
          for example with `npx swagger2openapi FILE -o openapi.json`, and name the new file",
        ),
        (
            "openapi: 4.0.0\npaths: {}",
            "it says `openapi: 4.0.0`, and toolway reads OpenAPI 3.x",
        ),
        (
            "openapi: 3.1\npaths: {}",
            "it has no `paths`, so there is nothing to call",
        ),
        (
            "a: b",
            "it is no OpenAPI document: it has no `openapi: 3.x` at its top",
        ),
        (
            "{",
            "it is no JSON: EOF while parsing an object at line 1 column 1",
        ),
    ] {
        api_refused(
            document,
            "",
            &format!("functions.a.openapi: `pets.yaml`: {why}"),
        );
    }
}

#[test]
fn a_url_is_refused_with_what_to_do_instead() {
    super::super::refused(
        "[functions.a]\nopenapi = 'https://x/y.yaml'",
        "functions.a.openapi: must be a file; save the document beside the configuration, for example with \
         `curl -o openapi.yaml https://x/y.yaml`, and name that",
    );
    super::super::refused(
        "[functions.a]\nopenapi = 'gone.yaml'",
        "functions.a.openapi: `gone.yaml`: cannot be read: entity not found",
    );
}

#[test]
fn keys_of_another_way_are_refused() {
    api_refused(
        PETS,
        "definitions = 'x.json'",
        "functions.a.definitions: belongs to functions with `endpoint`, `url`, `command`, `model`",
    );
    api_refused(
        PETS,
        "endpoint = 'http://x'",
        "functions.a: has `endpoint`, `openapi`; give one of them",
    );
    refused(
        "endpoint = 'http://x'\noperations = []\nbase_url = ''",
        "functions.a.base_url: belongs to functions with `openapi`\n\
         functions.a.operations: belongs to functions with `openapi`",
    );
}

#[test]
fn a_document_with_more_tools_than_models_take_is_warned_about() {
    let paths: String = (0..129)
        .map(|i| format!("  /p{i}: {{get: {{}}}}\n"))
        .collect();
    let many = format!("openapi: 3.0.0\npaths:\n{paths}");
    let (config, _) = api(&many, "base_url = 'http://x'");
    assert_eq!(
        config.warnings[0].message,
        "`pets.yaml` offers 129 operations, and most models take 128 tools; choose some with `operations`"
    );
    let (config, _) = api(&many, "base_url = 'http://x'\noperations = ['*']");
    assert!(config.warnings.is_empty());
}
