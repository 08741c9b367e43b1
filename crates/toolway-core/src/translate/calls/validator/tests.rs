use serde_json::json;

use super::*;

fn object(value: &Value) -> JsonObject {
    value.as_object().unwrap().clone()
}

#[track_caller]
fn check(schema: &Value, arguments: &Value, is_met: bool) {
    let validator = Validator::compile(&object(schema)).unwrap();
    assert_eq!(
        validator.check(&object(arguments)).is_ok(),
        is_met,
        "{arguments} by {schema}"
    );
}

#[track_caller]
fn is_not_compiled(schema: &Value) -> String {
    Validator::compile(&object(schema)).unwrap_err()
}

/// What is said of arguments that do not fit: path, message, fragment.
#[track_caller]
fn misfit(schema: &Value, arguments: &Value) -> (String, String, Value) {
    let validator = Validator::compile(&object(schema)).unwrap();
    match validator.check(&object(arguments)) {
        Err(CallError::InvalidParams {
            path,
            message,
            input_schema,
        }) => (path, message, input_schema),
        other => panic!("{arguments} should not fit, but: {other:?}"),
    }
}

#[test]
fn a_schema_without_bounds_takes_everything() {
    check(&json!({}), &json!({"a": [1, null]}), true);
}

#[test]
fn a_recursive_schema_is_followed_into_the_arguments() {
    let tree = json!({
        "type": "object",
        "properties": {"value": {"type": "integer"}, "children": {"items": {"$ref": "#"}}},
        "required": ["value"],
    });
    check(
        &tree,
        &json!({"value": 1, "children": [{"value": 2, "children": []}]}),
        true,
    );
    check(
        &tree,
        &json!({"value": 1, "children": [{"value": 2, "children": [{}]}]}),
        false,
    );
}

#[test]
fn a_schema_that_refers_to_itself_alone_does_not_go_on_for_ever() {
    let schemas = [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"properties": {"a": {"$ref": "#/properties/a"}}}),
    ];
    for schema in schemas {
        if let Ok(validator) = Validator::compile(&object(&schema)) {
            let _ = validator.check(&object(&json!({"a": 1})));
        }
    }
}

#[test]
fn a_schema_at_the_bounds_does_not_overflow_the_stack() {
    let schema = |count: usize, last: Value| {
        let mut definitions = JsonObject::new();
        for i in 0..count {
            let next = json!({"$ref": format!("#/$defs/a{}", i + 1)});
            definitions.insert(format!("a{i}"), json!({"allOf": [next]}));
        }
        definitions.insert(format!("a{count}"), last);
        json!({"$ref": "#/$defs/a0", "$defs": definitions})
    };
    let deepest = (1..300).rev().find_map(|count| {
        Validator::compile(&object(&schema(count, json!({"required": ["x"]})))).ok()
    });
    assert!(deepest.unwrap().check(&JsonObject::new()).is_err());

    let again = json!({"additionalProperties": {"$ref": "#/$defs/a0"}});
    for count in [1, 10, 50, 80] {
        let validator = Validator::compile(&object(&schema(count, again.clone()))).unwrap();
        for depth in 1..120 {
            let nested = (0..depth).fold(json!({}), |inner, _| json!({ "a": inner }));
            let _ = validator.check(&object(&nested));
        }
    }
}

#[test]
fn a_reference_to_a_file_or_a_url_is_not_fetched() {
    for reference in [
        "http://127.0.0.1:1/x.json",
        "file:///etc/hostname",
        "other.json",
    ] {
        let reason = is_not_compiled(&json!({"properties": {"a": {"$ref": reference}}}));
        assert!(!reason.contains("refused"), "{reason}");
    }
    is_not_compiled(&json!({"$schema": "http://127.0.0.1:1/x.json"}));
}

#[test]
fn a_broken_pattern_is_a_reason_not_a_panic() {
    is_not_compiled(&json!({"properties": {"a": {"pattern": "["}}}));
    is_not_compiled(&json!({"properties": {"a": {"pattern": "(a{1000}){1000}"}}}));
}

#[test]
fn a_broken_keyword_is_a_reason_not_a_panic() {
    is_not_compiled(&json!({"properties": {"a": {"type": "text"}}}));
    is_not_compiled(&json!({"properties": 5}));
    is_not_compiled(&json!({"$ref": "#/nowhere"}));
}

#[test]
fn a_pattern_that_steps_back_for_ever_ends() {
    let schema = json!({"properties": {"a": {"pattern": "^(?=(a+)+$)(a|aa)+\\1$"}}});
    if let Ok(validator) = Validator::compile(&object(&schema)) {
        let text = format!("{}b", "a".repeat(2000));
        assert!(validator.check(&object(&json!({"a": text}))).is_err());
    }
}

#[test]
fn the_draft_is_the_one_the_schema_names() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {"a": {"minimum": 1, "exclusiveMinimum": true}},
    });
    check(&schema, &json!({"a": 1}), false);
    check(&schema, &json!({"a": 2}), true);
}

#[test]
fn a_format_is_left_to_the_server() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"at": {"type": "string", "format": "date-time"}},
    });
    check(&schema, &json!({"at": "tomorrow"}), true);
}

#[test]
fn a_path_is_a_json_pointer() {
    let schema = json!({"additionalProperties": {"items": {"type": "integer"}}});
    let (path, _, fragment) = misfit(&schema, &json!({"a/b": [1, "x"]}));
    assert_eq!(path, "/a~1b/1");
    assert_eq!(fragment, json!({"type": "integer"}));
}

#[test]
fn a_long_value_is_not_repeated_but_the_reason_stays() {
    let schema = json!({"properties": {"a": {"type": "integer"}}});
    let (_, message, _) = misfit(&schema, &json!({"a": "x".repeat(5000)}));
    assert_eq!(message, "the value is not of type \"integer\"");
}

#[test]
fn of_a_huge_schema_only_the_keyword_is_given() {
    let properties: JsonObject = (0..2000)
        .map(|i| (format!("property_{i}"), json!({"type": "string"})))
        .collect();
    let schema = json!({"properties": properties, "required": ["property_7"]});
    let (_, _, fragment) = misfit(&schema, &json!({}));
    assert_eq!(fragment, json!({"required": ["property_7"]}));
}

#[test]
fn of_a_huge_enum_nothing_is_given() {
    let values: Vec<String> = (0..10_000).map(|i| format!("value_{i}")).collect();
    let schema = json!({"properties": {"a": {"enum": values}}});
    check(&schema, &json!({"a": "value_9999"}), true);
    let (path, message, fragment) = misfit(&schema, &json!({"a": "value_x"}));
    assert_eq!(path, "/a");
    assert!(message.len() < 400, "{message}");
    assert_eq!(fragment, Value::Null);
}

#[test]
fn a_schema_that_branches_into_itself_costs_a_bounded_time() {
    let case =
        |needs: &str| json!({"properties": {"n": {"$ref": "#/$defs/n"}}, "required": [needs]});
    let schema = json!({"properties": {"x": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"anyOf": [case("q"), case("z")]}}});
    for (depth, told) in [
        (3, "is not valid under any"),
        (15, "too many ways"),
        (60, "levels deep"),
    ] {
        let arguments = (0..depth).fold(json!({}), |inner, _| json!({"n": inner}));
        let (_, message, _) = misfit(&schema, &json!({"x": arguments}));
        assert!(message.contains(told), "{depth}: {message}");
    }
    let fitting = (0..14).fold(json!({"q": 1}), |inner, _| json!({"q": 1, "n": inner}));
    check(&schema, &json!({"x": fitting}), true);
}
