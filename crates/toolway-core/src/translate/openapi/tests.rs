//! Documents as a whole: versions, bounds, names, and that nothing makes reading panic.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use toolway_protocol::tool::FunctionName;

#[track_caller]
fn check_refused(document: &Value, why: &str) {
    assert_eq!(
        read(document, &Fixed::default()).unwrap_err().to_string(),
        why
    );
}

#[test]
fn what_is_no_document_of_3_x_is_refused() {
    let version = "it is no OpenAPI document: it has no `openapi: 3.x` at its top";
    check_refused(&json!({"paths": {}}), version);
    check_refused(
        &json!(null),
        "it is no OpenAPI document: it is empty, not an object with `openapi` and `paths`",
    );
    check_refused(
        &json!({"openapi": "2.0"}),
        "it says `openapi: 2.0`, and toolway reads OpenAPI 3.x",
    );
    check_refused(
        &json!({"openapi": "3.0.0", "paths": []}),
        "it has no `paths`, so there is nothing to call",
    );
}

#[test]
fn every_3_x_is_read_also_as_the_number_that_yaml_makes_of_it() {
    for version in [
        json!("3.0.3"),
        json!("3.1.1"),
        json!("3.2.0"),
        json!(3.1),
        json!(3),
        json!(" 3.0 "),
    ] {
        let document = json!({"openapi": version, "paths": {"/": {"get": {}}}});
        assert_eq!(
            read(&document, &Fixed::default()).unwrap().operations.len(),
            1
        );
    }
}

#[test]
fn at_most_5000_operations_are_taken_and_the_rest_is_counted() {
    let paths: Map<String, Value> = (0..5010)
        .map(|i| (format!("/p{i}"), json!({"get": {}})))
        .collect();
    let api = read(
        &json!({"openapi": "3.0.0", "paths": paths}),
        &Fixed::default(),
    )
    .unwrap();
    assert_eq!(api.operations.len(), MAX_OPERATIONS);
    assert_eq!(api.skipped[0].place, "10 more operations");
}

#[test]
fn a_parameter_that_the_configuration_sends_is_not_asked_for() {
    let parameters = json!([
        {"name": "X-Api-Key", "in": "header", "required": true},
        {"name": "session", "in": "cookie"},
        {"name": "X-Other", "in": "header"},
    ]);
    let document = json!({"openapi": "3.0.0", "paths": {"/": {"get": {"parameters": parameters}}}});
    let fixed = Fixed {
        headers: vec!["x-api-key".to_owned(), "Cookie".to_owned()],
        ..Fixed::default()
    };
    let api = read(&document, &fixed).unwrap();
    let schema = &api.operations[0].tool.input_schema;
    assert_eq!(schema["properties"], json!({"X-Other": {"type": "string"}}));
    assert_eq!(schema.get("required"), None);
}

#[test]
fn what_a_document_says_about_itself_does_not_act_in_a_terminal() {
    let document =
        json!({"openapi": "3.0.0", "paths": {"/ok": {"get": {}}, "/\u{1b}[2J\n": {"get": 1}}});
    let api = read(&document, &Fixed::default()).unwrap();
    assert!(!api.skipped[0].place.contains(char::is_control));
}

/// Words that mean something in a document, so that what is made up of them gets far.
const WORDS: [&str; 40] = [
    "parameters",
    "name",
    "in",
    "path",
    "query",
    "header",
    "schema",
    "type",
    "object",
    "array",
    "string",
    "properties",
    "items",
    "$ref",
    "#/components/schemas/A",
    "#/components/schemas/B",
    "#/paths",
    "#",
    "allOf",
    "oneOf",
    "required",
    "requestBody",
    "content",
    "application/json",
    "multipart/form-data",
    "text/plain",
    "nullable",
    "readOnly",
    "enum",
    "default",
    "discriminator",
    "propertyName",
    "get",
    "post",
    "servers",
    "url",
    "{id}",
    "additionalProperties",
    "style",
    "deepObject",
];

fn value() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(&WORDS[..]);
    let leaf = prop_oneof![
        4 => word.clone().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i32>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(6, 60, 6, move |inner| {
        prop_oneof![
            3 => prop::collection::vec((word.clone(), inner.clone()), 0..6)
                .prop_map(|it| Value::Object(it.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::from),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_a_document_holds_its_tools_are_sound(item in value(), a in value(), b in value(), version in 0..2) {
        let document = json!({
            "openapi": format!("3.{version}.0"),
            "paths": {
                "/fine": {"get": {}},
                "/a/{id}": item,
                "/b": {"post": {"requestBody": {"content": {"application/json": {"schema": {"properties": {"x": a}}}}}}},
            },
            "components": {"schemas": {"A": a, "B": b}},
        });
        let api = read(&document, &Fixed::default()).unwrap();
        for operation in api.operations {
            let schema = &operation.tool.input_schema;
            prop_assert_eq!(crate::translate::schema::fault(schema), None);
            let name = format!("x{}", &operation.tool.name[1..]);
            prop_assert!(FunctionName::parse(&name).is_ok(), "{}", operation.tool.name);
            let compiled = crate::translate::calls::Validator::compile(schema);
            // What is compiled can be asked; it must not run round in circles.
            if let Ok(validator) = compiled {
                let properties = schema["properties"].as_object().unwrap();
                let nulls: Map<String, Value> = properties.keys().map(|it| (it.clone(), json!({}))).collect();
                let _ = validator.check(&nulls);
                let _ = operation.plan.request(&nulls);
            }
        }
    }
}
