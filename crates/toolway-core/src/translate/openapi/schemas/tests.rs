//! Bounds of schemas: what is too long loses what is deepest, and nothing runs for ever.

use serde_json::{Value, json};

use crate::translate::{
    calls::Validator,
    openapi::{self, ApiDescription, Fixed},
};

fn api(schemas: &Value, body: &Value) -> ApiDescription {
    let document = json!({
        "openapi": "3.1.0",
        "paths": {"/": {"post": {"requestBody": {"content": {"application/json": {"schema": body}}}}}},
        "components": {"schemas": schemas},
    });
    openapi::read(&document, &Fixed::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn schema(schemas: &Value, body: &Value) -> Value {
    Value::Object(api(schemas, body).operations.remove(0).tool.input_schema)
}

#[track_caller]
fn check_is_sound(schema: &Value) {
    assert!(schema.to_string().len() <= 64 << 10, "it is too long");
    let compiled = Validator::compile(schema.as_object().unwrap());
    assert!(compiled.is_ok(), "{:?}", compiled.err());
}

#[test]
fn a_schema_that_is_too_long_loses_what_is_deepest() {
    let long = "x".repeat(500);
    let deep = json!({"type": "object", "required": ["z"], "additionalProperties": false, "properties": {
        "z": {"enum": vec![long; 200]},
    }});
    let body = json!({"properties": {
        "flat": {"type": "string", "minLength": 3},
        "deep": {"properties": {"a": {"properties": {"b": {"properties": {"c": deep}}}}}},
    }});
    let schema = schema(&json!({}), &body);
    check_is_sound(&schema);
    assert_eq!(
        schema["properties"]["flat"],
        json!({"type": "string", "minLength": 3})
    );
    // Where it ends, an object is an object, and nothing that is sent is refused for what is not said.
    let validator = Validator::compile(schema.as_object().unwrap()).unwrap();
    let arguments = json!({"deep": {"a": {"b": {"c": {"z": "anything"}}}}});
    assert_eq!(validator.check(arguments.as_object().unwrap()), Ok(()));
}

#[test]
fn hundreds_of_schemas_that_all_refer_to_each_other_end() {
    let names: Vec<String> = (0..400).map(|i| format!("S{i}")).collect();
    let all: Value = names
        .iter()
        .map(|name| {
            (
                name.clone(),
                json!({"$ref": format!("#/components/schemas/{name}")}),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let schemas: Value = names
        .iter()
        .map(|name| (name.clone(), json!({"type": "object", "properties": all, "allOf": [{"$ref": "#/components/schemas/S0"}]})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    check_is_sound(&schema(
        &schemas,
        &json!({"properties": {"s": {"$ref": "#/components/schemas/S1"}}}),
    ));
}

#[test]
fn a_long_chain_and_a_deep_nest_end() {
    let chain: Value = (0..5000)
        .map(|i| {
            (
                format!("S{i}"),
                json!({"items": {"$ref": format!("#/components/schemas/S{}", (i + 1) % 5000)}}),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    check_is_sound(&schema(
        &chain,
        &json!({"properties": {"s": {"$ref": "#/components/schemas/S0"}}}),
    ));
    let nest = (0..100).fold(
        json!({"type": "string"}),
        |inner, _| json!({"items": inner}),
    );
    check_is_sound(&schema(&json!({}), &json!({"properties": {"s": nest}})));
}

#[test]
fn one_argument_too_many_costs_its_operation_alone() {
    let many: Value = (0..4000)
        .map(|i| (format!("property_{i}"), json!({"type": "string"})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let document = json!({"openapi": "3.0.0", "paths": {
        "/a": {"post": {"requestBody": {"content": {"application/json": {"schema": {"properties": many}}}}}},
        "/b": {"get": {}},
    }});
    let api = openapi::read(&document, &Fixed::default()).unwrap();
    assert_eq!(api.operations.len(), 1);
    assert_eq!(
        api.skipped[0].reason,
        "the schema of its arguments is longer than 64 KiB"
    );
}

#[test]
fn a_value_may_meet_two_cases_of_one_of() {
    let schemas = json!({
        "Cat": {"type": "object", "properties": {"kind": {"type": "string"}, "lives": {"type": "integer"}}},
        "Dog": {"type": "object", "properties": {"kind": {"type": "string"}, "barks": {"type": "boolean"}}},
    });
    let either =
        json!([{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}]);
    let schema = schema(&schemas, &json!({"properties": {"pet": {"oneOf": either}}}));
    let validator = Validator::compile(schema.as_object().unwrap()).unwrap();
    assert_eq!(
        validator.check(json!({"pet": {"kind": "cat"}}).as_object().unwrap()),
        Ok(())
    );
    assert!(
        validator
            .check(json!({"pet": 1}).as_object().unwrap())
            .is_err()
    );
}
