//! What a schema refers to, tidied up: no circle that a validator would run round for ever, nothing under
//! `$defs` that is used only once or is shorter than the talk about it.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::keywords::{children, children_mut, without_in_place};

/// A definition without references in it that has at most this many bytes is written wherever it is used.
const SMALL: usize = 160;

const PREFIX: &str = "#/$defs/";

type SchemaMap = Map<String, Value>;

/// The schema with its definitions: inlined where that is shorter, under `$defs` where not.
pub(super) fn tidy(mut schema: SchemaMap, mut definitions: SchemaMap) -> SchemaMap {
    break_circles(&mut definitions);
    let mut root = Value::Object(std::mem::take(&mut schema));
    let uses = uses(&root, &definitions);
    let is_inlined = |name: &str, definition: &Value| {
        uses.get(name) == Some(&1)
            || (all_references(definition).is_empty() && is_small(definition))
    };
    let (inlined, mut kept): (SchemaMap, SchemaMap) = definitions
        .into_iter()
        .filter(|(name, _)| uses.contains_key(name.as_str()))
        .partition(|(name, definition)| is_inlined(name, definition));
    inline(&mut root, &inlined);
    for definition in kept.values_mut() {
        inline(definition, &inlined);
    }
    let Value::Object(mut schema) = root else {
        return SchemaMap::new();
    };
    if !kept.is_empty() {
        schema.insert("$defs".to_owned(), Value::Object(kept));
    }
    schema
}

/// The definition that a schema refers to.
fn target(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix(PREFIX)
}

fn all_references(schema: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    references(schema, false, &mut found);
    found
}

/// The definitions that a schema refers to; with `in_place`, only for the same value.
fn references<'s>(schema: &'s Value, in_place: bool, found: &mut Vec<&'s str>) {
    found.extend(target(schema));
    for child in children(schema, in_place) {
        references(child, in_place, found);
    }
}

/// How often each definition is referred to, of those that can be reached.
fn uses(root: &Value, definitions: &SchemaMap) -> HashMap<String, usize> {
    let mut uses: HashMap<String, usize> = HashMap::new();
    let mut waiting = vec![root];
    while let Some(schema) = waiting.pop() {
        for name in all_references(schema) {
            let count = uses.entry(name.to_owned()).or_default();
            *count += 1;
            if *count == 1 {
                waiting.extend(definitions.get(name));
            }
        }
    }
    uses
}

fn is_small(definition: &Value) -> bool {
    definition.to_string().len() <= SMALL
}

/// Puts definitions in the place of the references to them. This ends because what is used once cannot be
/// in itself, and what is small refers to nothing.
fn inline(schema: &mut Value, inlined: &SchemaMap) {
    if let Some(definition) = target(schema).and_then(|name| inlined.get(name)) {
        put(schema, definition.clone());
        inline(schema, inlined);
        return;
    }
    if let Value::Object(members) = schema {
        for child in children_mut(members, false) {
            inline(child, inlined);
        }
    }
}

/// Replaces the reference in a schema by what it stands for; what stands beside it is kept.
fn put(schema: &mut Value, definition: Value) {
    let Value::Object(members) = schema else {
        return;
    };
    members.shift_remove("$ref");
    let Value::Object(defined) = definition else {
        return;
    };
    let says_more = |keyword: &String| {
        !matches!(
            keyword.as_str(),
            "title" | "description" | "default" | "examples" | "deprecated"
        )
    };
    if members.keys().any(says_more) {
        let both = members
            .entry("allOf")
            .or_insert_with(|| Value::Array(vec![]));
        if let Value::Array(list) = both {
            list.push(Value::Object(defined));
        }
    } else {
        for (keyword, value) in defined {
            members.entry(keyword).or_insert(value);
        }
    }
}

/// Takes the last step of every circle of references that speak of one value, as when an animal is `oneOf`
/// its kinds and each kind `allOf` the animal. What is put in its place is the target without such
/// references, here the animal's own properties.
fn break_circles(definitions: &mut SchemaMap) {
    // A kind of an animal that is `allOf` the animal keeps what it adds; the animal would lose its kinds.
    let mut upward: Vec<(String, String)> = Vec::new();
    for (name, definition) in definitions.iter() {
        let parts = definition.get("allOf").and_then(Value::as_array);
        for whole in parts.into_iter().flatten().filter_map(target) {
            let mut kinds = Vec::new();
            if let Some(whole) = definitions.get(whole) {
                references(whole, true, &mut kinds);
            }
            if kinds.contains(&name.as_str()) {
                upward.push((name.clone(), whole.to_owned()));
            }
        }
    }
    cut_all(definitions, upward);
    let closing = closing_steps(definitions);
    cut_all(definitions, closing);
}

/// The last step of each circle, as a definition and the one it refers to.
fn closing_steps(definitions: &SchemaMap) -> Vec<(String, String)> {
    let mut graph: HashMap<&str, Vec<&str>> = HashMap::new();
    for (name, definition) in definitions.iter() {
        let mut found = Vec::new();
        references(definition, true, &mut found);
        graph.insert(name, found);
    }
    let mut closing: Vec<(String, String)> = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for start in definitions.keys() {
        // The path from `start`, each step with the targets that are still to be tried.
        let mut path: Vec<(&str, &[&str])> = Vec::new();
        if seen.insert(start) {
            path.push((start, &graph[start.as_str()]));
        }
        while let Some((name, rest)) = path.last_mut() {
            let Some((next, after)) = rest.split_first() else {
                path.pop();
                continue;
            };
            let (name, next) = (*name, *next);
            *rest = after;
            if path.iter().any(|(step, _)| *step == next) {
                closing.push((name.to_owned(), next.to_owned()));
            } else if seen.insert(next)
                && let Some(targets) = graph.get(next)
            {
                path.push((next, targets));
            }
        }
    }
    closing
}

fn cut_all(definitions: &mut SchemaMap, steps: Vec<(String, String)>) {
    for (name, next) in steps {
        let alone = definitions.get(&next).map(without_in_place);
        if let (Some(definition), Some(alone)) = (definitions.get_mut(&name), alone) {
            cut(definition, &next, &alone);
        }
    }
}

fn cut(schema: &mut Value, name: &str, alone: &Value) {
    if target(schema) == Some(name) {
        put(schema, alone.clone());
    }
    if let Value::Object(members) = schema {
        for child in children_mut(members, true) {
            cut(child, name, alone);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: Value, definitions: Value, expected: &Value) {
        let (Value::Object(schema), Value::Object(definitions)) = (schema, definitions) else {
            panic!("both are objects");
        };
        assert_eq!(&Value::Object(tidy(schema, definitions)), expected);
    }

    #[test]
    fn what_is_used_once_or_small_is_inlined() {
        let long = "x".repeat(200);
        check(
            json!({"properties": {
                "a": {"$ref": "#/$defs/Once", "description": "mine"},
                "b": {"$ref": "#/$defs/Small"},
                "c": {"$ref": "#/$defs/Small"},
                "d": {"items": {"$ref": "#/$defs/Long"}},
                "e": {"$ref": "#/$defs/Long"},
            }}),
            json!({
                "Once": {"type": "object", "description": "its own", "properties": {"z": {"$ref": "#/$defs/Small"}}},
                "Small": {"enum": ["x"]},
                "Long": {"description": long},
                "Unused": {"type": "string"},
            }),
            &json!({
                "properties": {
                    "a": {"description": "mine", "type": "object", "properties": {"z": {"enum": ["x"]}}},
                    "b": {"enum": ["x"]},
                    "c": {"enum": ["x"]},
                    "d": {"items": {"$ref": "#/$defs/Long"}},
                    "e": {"$ref": "#/$defs/Long"},
                },
                "$defs": {"Long": {"description": long}},
            }),
        );
    }

    #[test]
    fn a_tree_stays_a_tree() {
        let tree = json!({"properties": {"children": {"items": {"$ref": "#/$defs/Tree"}}}});
        check(
            json!({"properties": {"a": {"$ref": "#/$defs/Tree"}}}),
            json!({"Tree": tree}),
            &json!({"properties": {"a": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": tree}}),
        );
    }

    #[test]
    fn a_circle_about_one_value_is_opened_and_loses_nothing() {
        check(
            json!({"properties": {"a": {"$ref": "#/$defs/Animal"}}}),
            json!({
                "Animal": {"required": ["kind"], "oneOf": [{"$ref": "#/$defs/Cat"}]},
                "Cat": {"allOf": [{"$ref": "#/$defs/Animal"}, {"required": ["lives"]}]},
            }),
            &json!({"properties": {"a": {
                "required": ["kind"],
                "oneOf": [{"allOf": [{"required": ["kind"]}, {"required": ["lives"]}]}],
            }}}),
        );
    }

    #[test]
    fn references_that_only_lead_to_each_other_end() {
        check(
            json!({"properties": {"a": {"$ref": "#/$defs/A"}}}),
            json!({"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}),
            &json!({"properties": {"a": {}}}),
        );
        check(
            json!({"properties": {"a": {"$ref": "#/$defs/A"}}}),
            json!({"A": {"$ref": "#/$defs/A"}}),
            &json!({"properties": {"a": {}}}),
        );
    }
}
