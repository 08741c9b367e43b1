//! A tool's input schema in the form that OpenAI takes as `parameters`.
//!
//! Only the offered form is changed; arguments are checked against the schema as the server gave it.
//! What cannot be carried is returned in [`Parameters::lost`], never dropped silently.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use toolway_protocol::tool::JsonObject;

/// A schema as it is offered.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The schema.
    pub schema: JsonObject,
    /// Keywords at the top that the offered form does not say any more.
    pub lost: Vec<&'static str>,
}

/// Keywords that OpenAI refuses at the top of `parameters`, the whole request with them
/// (langchainjs#9804).
const REFUSED_AT_TOP: [&str; 6] = ["$ref", "allOf", "anyOf", "oneOf", "enum", "not"];

/// Most references and branches that are followed at the top, so that a schema cannot make this take long.
const MAX_PARTS: usize = 64;

/// Longest schema that is offered, in bytes of JSON; a longer one would fill a model's context alone.
const MAX_SCHEMA: usize = 512 << 10;

/// Why a tool with this schema cannot be offered, if so; for the person who configured the server.
///
/// These are the faults that make an upstream refuse a whole request.
pub fn fault(schema: &JsonObject) -> Option<String> {
    match schema.get("type") {
        None => {}
        Some(Value::String(kind)) if kind == "object" => {}
        Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "object") => {}
        Some(other) => return Some(format!("its input schema has type {other}, not \"object\"")),
    }
    match schema.get("properties") {
        None => {}
        Some(Value::Object(properties)) => {
            let broken = properties
                .iter()
                .find(|(_, it)| !(it.is_object() || it.is_boolean()));
            if let Some((name, _)) = broken {
                return Some(format!(
                    "the schema of its parameter `{name}` is not an object"
                ));
            }
        }
        Some(_) => return Some("`properties` of its input schema is not an object".to_owned()),
    }
    match schema.get("required") {
        None => {}
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {}
        Some(_) => return Some("`required` of its input schema is not a list of names".to_owned()),
    }
    let size = serde_json::to_string(schema).map_or(0, |text| text.len());
    (size > MAX_SCHEMA).then(|| format!("its input schema is larger than {} KiB", MAX_SCHEMA >> 10))
}

/// The schema with all that OpenAI insists on.
///
/// - `type` is `"object"` and `properties` is there, if only empty.
/// - `$schema` is left out.
/// - Arrays say what their `items` are, if only `{}`.
/// - What the top refuses is merged into `properties` as far as it can be, and named in `lost`.
///
/// All else stays, local references included.
pub fn to_openai(schema: &JsonObject) -> Parameters {
    let mut offered = schema.clone();
    let lost: Vec<&str> = REFUSED_AT_TOP
        .into_iter()
        .filter(|keyword| schema.contains_key(*keyword))
        .collect();
    if !lost.is_empty() {
        let mut budget = MAX_PARTS;
        let top = Top::of(schema, schema, &mut budget);
        offered.retain(|keyword, _| !lost.contains(&keyword.as_str()));
        if !top.required.is_empty() {
            let required = top.required.into_iter().map(Value::String).collect();
            offered.insert("required".to_owned(), required);
        }
        offered.insert("properties".to_owned(), Value::Object(top.properties));
    }
    offered.shift_remove("$schema");
    offered.insert("type".to_owned(), "object".into());
    let properties = offered
        .entry("properties")
        .or_insert_with(|| Value::Object(Map::new()));
    if !properties.is_object() {
        *properties = Value::Object(Map::new());
    }
    add_items(&mut offered);
    Parameters {
        schema: offered,
        lost,
    }
}

/// The properties of an object schema, those in its combinations included.
#[derive(Default)]
struct Top {
    properties: JsonObject,
    required: BTreeSet<String>,
}

impl Top {
    /// `budget` is how many more schemas are read; at its end the rest is left out.
    fn of(schema: &JsonObject, root: &JsonObject, budget: &mut usize) -> Top {
        let mut top = Top::default();
        if *budget == 0 {
            return top;
        }
        *budget -= 1;
        if let Some(Value::Object(properties)) = schema.get("properties") {
            top.properties = properties.clone();
        }
        top.required = names(schema.get("required"));
        let target = schema
            .get("$ref")
            .and_then(|reference| resolve(reference, root));
        for part in target.into_iter().chain(branches(schema, "allOf")) {
            top.and(Top::of(part, root, budget));
        }
        for keyword in ["anyOf", "oneOf"] {
            let parts = branches(schema, keyword).map(|part| Top::of(part, root, budget));
            if let Some(alternatives) = parts.reduce(Top::or) {
                top.and(alternatives);
            }
        }
        top
    }

    /// Both hold.
    fn and(&mut self, part: Top) {
        self.required.extend(part.required);
        for (name, property) in part.properties {
            add(&mut self.properties, name, property, "allOf");
        }
    }

    /// One of them holds.
    fn or(mut self, part: Top) -> Top {
        self.required.retain(|name| part.required.contains(name));
        for (name, property) in part.properties {
            add(&mut self.properties, name, property, "anyOf");
        }
        self
    }
}

/// Adds a property; one that is there already with another schema is joined with it by `keyword`.
fn add(properties: &mut JsonObject, name: String, property: Value, keyword: &str) {
    let Some(there) = properties.get_mut(&name) else {
        properties.insert(name, property);
        return;
    };
    if *there == property {
        return;
    }
    let joined = there.as_object_mut().filter(|it| it.len() == 1);
    match joined
        .and_then(|it| it.get_mut(keyword))
        .and_then(Value::as_array_mut)
    {
        Some(list) if list.contains(&property) => {}
        Some(list) => list.push(property),
        None => *there = json!({keyword: [there.take(), property]}),
    }
}

fn names(required: Option<&Value>) -> BTreeSet<String> {
    let names = required.and_then(Value::as_array).into_iter().flatten();
    names
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect()
}

fn branches<'s>(schema: &'s JsonObject, keyword: &str) -> impl Iterator<Item = &'s JsonObject> {
    schema
        .get(keyword)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
}

/// The object a local reference (`#/$defs/x`) points to.
fn resolve<'s>(reference: &Value, root: &'s JsonObject) -> Option<&'s JsonObject> {
    let mut steps = reference.as_str()?.strip_prefix("#/")?.split('/');
    let unescape = |step: &str| step.replace("~1", "/").replace("~0", "~");
    let first = root.get(&unescape(steps.next()?))?;
    steps
        .try_fold(first, |value, step| value.get(unescape(step)))?
        .as_object()
}

/// Keywords whose value is a schema, or a list of them.
const WITH_SCHEMAS: [&str; 15] = [
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
];

/// Keywords whose value is an object of schemas by name.
const WITH_NAMED_SCHEMAS: [&str; 5] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "$defs",
    "definitions",
];

/// Gives every schema of an array that does not say what its items are `items: {}`, which means the same
/// ("array schema missing items", mcphost#35).
fn add_items(schema: &mut JsonObject) {
    let is_array = match schema.get("type") {
        Some(Value::String(kind)) => kind == "array",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "array"),
        _ => false,
    };
    if is_array {
        schema.entry("items").or_insert_with(|| json!({}));
    }
    for (keyword, value) in schema {
        let parts: Vec<&mut Value> = match value {
            Value::Array(values) if WITH_SCHEMAS.contains(&keyword.as_str()) => {
                values.iter_mut().collect()
            }
            value if WITH_SCHEMAS.contains(&keyword.as_str()) => vec![value],
            Value::Object(named) if WITH_NAMED_SCHEMAS.contains(&keyword.as_str()) => {
                named.values_mut().collect()
            }
            _ => continue,
        };
        parts
            .into_iter()
            .filter_map(Value::as_object_mut)
            .for_each(add_items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &Value, expected: &Value) {
        let offered = to_openai(given.as_object().unwrap());
        assert_eq!(&Value::Object(offered.schema), expected, "{given}");
    }

    #[test]
    fn a_property_that_differs_between_alternatives_may_be_each_of_them() {
        check(
            &json!({"anyOf": [
                {"properties": {"mode": {"const": "a"}, "x": {}}, "required": ["mode", "x"]},
                {"properties": {"mode": {"const": "b"}}, "required": ["mode"]},
                {"properties": {"mode": {"const": "b"}}, "required": ["mode"]},
                {"properties": {"mode": {"const": "c"}}, "required": ["mode"]},
            ]}),
            &json!({
                "type": "object",
                "required": ["mode"],
                "properties": {
                    "mode": {"anyOf": [{"const": "a"}, {"const": "b"}, {"const": "c"}]},
                    "x": {},
                },
            }),
        );
    }

    #[test]
    fn a_property_that_is_said_twice_must_be_both() {
        check(
            &json!({"properties": {"a": {"type": "string"}}, "allOf": [{"properties": {"a": {"minLength": 1}}}]}),
            &json!({
                "type": "object",
                "properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 1}]}},
            }),
        );
    }

    #[test]
    fn a_schema_that_refers_to_itself_at_the_top_does_not_go_on_for_ever() {
        let reference = json!({"$ref": "#/$defs/a"});
        let branches = vec![reference.clone(); 1000];
        let schema = json!({
            "allOf": branches.clone(),
            "$defs": {"a": {"anyOf": branches, "properties": {"b": {}}}},
        });
        let offered = to_openai(schema.as_object().unwrap());
        assert_eq!(offered.lost, ["allOf"]);
        assert_eq!(offered.schema["properties"], json!({"b": {}}));
    }

    #[test]
    fn what_openai_takes_stays_as_it_is() {
        let schema = json!({
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"anyOf": [{}, {"not": {}}]}},
            "$defs": {"a": {"enum": [1, null]}},
            "x-unknown": [{"type": "array"}, 1.5],
            "if": {}, "then": {},
            "additionalProperties": false,
        });
        check(&schema, &schema);
    }

    #[test]
    fn an_array_without_items_gets_them_wherever_a_schema_stands() {
        let array = json!({"type": "array"});
        let given = |array: &Value| {
            json!({
                "type": "object",
                "properties": {"default": array, "type": array, "a": {"items": array}},
                "allowed": {"type": "array"},
                "definitions": {"a": {"not": {"anyOf": [array, true]}}},
                "examples": [{"type": "array"}],
            })
        };
        check(
            &given(&array),
            &given(&json!({"type": "array", "items": {}})),
        );
    }

    #[test]
    fn a_schema_that_would_fill_the_request_is_a_fault() {
        let values: Vec<String> = (0..100_000).map(|i| format!("value_{i}")).collect();
        let schema = json!({"properties": {"a": {"enum": values}}});
        assert!(
            fault(schema.as_object().unwrap())
                .unwrap()
                .contains("larger")
        );
        let values: Vec<String> = (0..10_000).map(|i| format!("value_{i}")).collect();
        let schema = json!({"properties": {"a": {"enum": values}}});
        assert_eq!(fault(schema.as_object().unwrap()), None);
    }

    #[test]
    fn a_nullable_object_is_an_object() {
        let schema = json!({"type": ["object", "null"]});
        assert_eq!(fault(schema.as_object().unwrap()), None);
        check(&schema, &json!({"type": "object", "properties": {}}));
    }
}
