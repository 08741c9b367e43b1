//! A tool's input schema in the form that OpenAI takes as `parameters`.
//!
//! Only the offered form is changed; arguments are checked against the schema as the server gave it.
//! What cannot be carried is returned in [`Parameters::lost`], never dropped silently.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::tool::JsonObject;

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

/// Deepest chain of references and combinations that is followed at the top.
const MAX_STEPS: usize = 8;

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
        None => None,
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => None,
        Some(_) => Some("`required` of its input schema is not a list of names".to_owned()),
    }
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
        let top = Top::of(schema, schema, MAX_STEPS);
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
    for (_, value) in &mut offered {
        add_items(value);
    }
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
    fn of(schema: &JsonObject, root: &JsonObject, steps: usize) -> Top {
        let mut top = Top::default();
        if let Some(Value::Object(properties)) = schema.get("properties") {
            top.properties = properties.clone();
        }
        top.required = names(schema.get("required"));
        if steps == 0 {
            return top;
        }
        let target = schema
            .get("$ref")
            .and_then(|reference| resolve(reference, root));
        for part in target.into_iter().chain(branches(schema, "allOf")) {
            let part = Top::of(part, root, steps - 1);
            top.required.extend(part.required.iter().cloned());
            top.add_properties(part);
        }
        for keyword in ["anyOf", "oneOf"] {
            let parts: Vec<Top> = branches(schema, keyword)
                .map(|part| Top::of(part, root, steps - 1))
                .collect();
            let everywhere = parts.iter().map(|part| part.required.clone());
            let everywhere =
                everywhere.reduce(|all, part| all.intersection(&part).cloned().collect());
            top.required.extend(everywhere.unwrap_or_default());
            parts.into_iter().for_each(|part| top.add_properties(part));
        }
        top
    }

    /// Adds the properties that are not there yet; the first to describe one wins.
    fn add_properties(&mut self, part: Top) {
        for (name, property) in part.properties {
            self.properties.entry(name).or_insert(property);
        }
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

/// Gives every schema of an array that does not say what its items are `items: {}`, which means the same
/// ("array schema missing items", mcphost#35). Values that are data and not schemas are left alone.
fn add_items(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(add_items),
        Value::Object(schema) => {
            let is_array = match schema.get("type") {
                Some(Value::String(kind)) => kind == "array",
                Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "array"),
                _ => false,
            };
            if is_array && !schema.contains_key("items") {
                schema.insert("items".to_owned(), Value::Object(Map::new()));
            }
            for (keyword, value) in schema {
                if !matches!(keyword.as_str(), "default" | "const" | "enum" | "examples") {
                    add_items(value);
                }
            }
        }
        _ => {}
    }
}
