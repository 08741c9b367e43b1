//! How far a schema can lead a validator, told before it is compiled.
//!
//! `jsonschema` follows references by recursion and again for every path to them. A schema of a few
//! kilobytes can thereby overflow the stack, which ends the process, or take hours. Tool schemas come from
//! anywhere, so one that leads too far is not compiled.

use std::collections::HashMap;

use serde_json::Value;

/// Longest path through a schema, references followed; each object and list on it counts.
const MAX_HEIGHT: usize = 256;

/// Most schemas there are when every reference is replaced by what it stands for.
const MAX_WEIGHT: usize = 1 << 17;

/// Most patterns there are, counted likewise: each may take a megabyte when compiled.
const MAX_PATTERNS: usize = 200;

/// Most references that are no pointers into the schema itself; where these lead is not followed here.
const MAX_NAMED: usize = 8;

/// Longest path through a schema that leads back into itself, times the depth of the arguments.
const MAX_RECURSION: usize = 2048;

/// Most visits of one schema while arguments are checked, where it leads back into itself in several ways at once:
/// each level of the arguments multiplies them.
const MAX_VISITS: u32 = 1 << 18;

/// The same where what does not fit is to be told, because every visit may leave an error behind.
const MAX_TOLD: u32 = 1 << 12;

/// What was found out about a schema.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Deepest arguments that it can be asked about; `None` where depth makes no difference.
    pub(super) max_depth: Option<usize>,
    /// Deepest arguments of which it can be told what does not fit.
    pub(super) max_told: usize,
}

/// Measures a schema; the error says why it leads too far.
pub(super) fn measure(schema: &Value) -> Result<Shape, &'static str> {
    let mut walk = Walk {
        root: schema,
        seen: HashMap::new(),
        named: 0,
        is_recursive: false,
        turns: 0,
    };
    let whole = walk.follow(schema, 0)?;
    let turns = walk.turns.max(whole.turns.most());
    let levels = |visits: u32| match turns {
        0 | 1 => usize::MAX,
        turns => visits.ilog(turns.min(visits)) as usize,
    };
    let max_depth = walk
        .is_recursive
        .then(|| (MAX_RECURSION / whole.height.max(1)).min(levels(MAX_VISITS)));
    Ok(Shape {
        max_depth,
        max_told: levels(MAX_TOLD),
    })
}

#[derive(Clone, Copy, Default)]
struct Extent {
    height: usize,
    weight: usize,
    patterns: usize,
    turns: Recursions,
}

/// How often a schema leads back into itself for one and the same value within a list, or within an object.
#[derive(Clone, Copy, Default)]
struct Recursions {
    list: u32,
    object: u32,
}

impl Recursions {
    const ONE: Recursions = Recursions { list: 1, object: 1 };

    fn most(self) -> u32 {
        self.list.max(self.object)
    }

    /// Of a keyword, by what its own schemas come to.
    fn of(keyword: &str, turns: Recursions) -> Recursions {
        let most = turns.most();
        match keyword {
            "$defs" | "definitions" => Recursions::default(),
            "items" | "prefixItems" | "additionalItems" | "unevaluatedItems" | "contains" => {
                Recursions {
                    list: most,
                    object: 0,
                }
            }
            "properties"
            | "patternProperties"
            | "additionalProperties"
            | "unevaluatedProperties"
            | "propertyNames" => Recursions {
                list: 0,
                object: most,
            },
            _ => turns,
        }
    }
}

impl Extent {
    fn add(&mut self, part: Extent) {
        self.height = self.height.max(part.height);
        self.weight = self.weight.saturating_add(part.weight);
        self.patterns = self.patterns.saturating_add(part.patterns);
        self.turns.list = self.turns.list.saturating_add(part.turns.list);
        self.turns.object = self.turns.object.saturating_add(part.turns.object);
    }

    /// The same for the schemas of properties, of which a value has one.
    fn add_other(&mut self, part: Extent) {
        let before = self.turns;
        self.add(part);
        self.turns.list = before.list.max(part.turns.list);
        self.turns.object = before.object.max(part.turns.object);
    }
}

struct Walk<'s> {
    root: &'s Value,
    /// The extent of what references lead to; `None` while it is being measured.
    seen: HashMap<&'s str, Option<Extent>>,
    named: usize,
    is_recursive: bool,
    /// Of whatever a reference leads to, the most.
    turns: u32,
}

impl<'s> Walk<'s> {
    /// The extent of a value that stands `depth` steps from the top; never deeper than the bound.
    ///
    /// Data, as under `enum`, is followed as if it were a schema: that can only make the extent greater.
    fn follow(&mut self, value: &'s Value, depth: usize) -> Result<Extent, &'static str> {
        if depth > MAX_HEIGHT {
            return Err("its references lead too deep");
        }
        let mut extent = Extent::default();
        match value {
            Value::Array(values) => {
                for value in values {
                    extent.add(self.follow(value, depth + 1)?);
                }
            }
            Value::Object(members) => {
                extent.weight = 1;
                for (keyword, value) in members {
                    match (keyword.as_str(), value) {
                        ("pattern", Value::String(_)) => extent.patterns += 1,
                        ("patternProperties", Value::Object(named)) => {
                            extent.patterns += named.len();
                        }
                        _ => {}
                    }
                    let part = match (keyword.as_str(), value) {
                        // What a pointer leads to would depend on where it stands.
                        ("$id" | "$schema", Value::String(_)) if depth > 0 => {
                            return Err("a part of it has an `$id` or `$schema` of its own");
                        }
                        ("id", Value::String(_)) if depth > 0 && self.is_draft_4() => {
                            return Err("a part of it has an `id` of its own");
                        }
                        ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) => {
                            self.refer(target, depth + 1)?
                        }
                        ("properties", Value::Object(schemas)) => {
                            self.named_schemas(schemas, depth + 1, true)?
                        }
                        (
                            "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
                            | "dependencies",
                            Value::Object(schemas),
                        ) => self.named_schemas(schemas, depth + 1, false)?,
                        _ => self.follow(value, depth + 1)?,
                    };
                    let turns = Recursions::of(keyword, part.turns);
                    extent.add(Extent { turns, ..part });
                }
            }
            _ => return Ok(extent),
        }
        extent.height += 1;
        if extent.weight > MAX_WEIGHT {
            return Err("its references branch too often");
        }
        if extent.patterns > MAX_PATTERNS {
            return Err("it has too many patterns");
        }
        Ok(extent)
    }

    /// The extent of schemas that have names; of those of `properties` a value has one.
    fn named_schemas(
        &mut self,
        schemas: &'s serde_json::Map<String, Value>,
        depth: usize,
        is_one: bool,
    ) -> Result<Extent, &'static str> {
        let mut extent = Extent {
            weight: 1,
            ..Extent::default()
        };
        for schema in schemas.values() {
            let part = self.follow(schema, depth + 1)?;
            match is_one {
                true => extent.add_other(part),
                false => extent.add(part),
            }
        }
        extent.height += 1;
        Ok(extent)
    }

    fn is_draft_4(&self) -> bool {
        let draft = self.root.get("$schema").and_then(Value::as_str);
        draft.is_some_and(|draft| draft.contains("draft-04"))
    }

    /// The extent of what a reference leads to.
    fn refer(&mut self, target: &'s str, depth: usize) -> Result<Extent, &'static str> {
        match self.seen.get(target) {
            Some(Some(extent)) if depth + extent.height > MAX_HEIGHT => {
                return Err("its references lead too deep");
            }
            Some(Some(extent)) => return Ok(*extent),
            Some(None) => {
                self.is_recursive = true;
                return Ok(Extent {
                    height: 1,
                    weight: 1,
                    patterns: 0,
                    turns: Recursions::ONE,
                });
            }
            None => {}
        }
        // An escape such as `%31` could lead elsewhere than it reads.
        let pointer = target
            .strip_prefix('#')
            .filter(|pointer| !pointer.contains('%'));
        let Some(value) = pointer.and_then(|pointer| self.root.pointer(pointer)) else {
            self.named += 1;
            self.is_recursive = true;
            return match self.named > MAX_NAMED {
                true => Err("it has too many references that are no pointers into it"),
                false => Ok(Extent {
                    height: 1,
                    weight: 1,
                    patterns: 0,
                    turns: Recursions::ONE,
                }),
            };
        };
        self.seen.insert(target, None);
        let extent = self.follow(value, depth)?;
        self.seen.insert(target, Some(extent));
        self.turns = self.turns.max(extent.turns.most());
        Ok(extent)
    }
}

/// How deep a value is nested; its own level counts.
pub(super) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// `count` definitions, each made from the name of the next.
    fn chain(count: usize, link: impl Fn(&str) -> Value) -> Value {
        let mut definitions = Map::new();
        for i in 0..count {
            definitions.insert(format!("a{i}"), link(&format!("#/$defs/a{}", i + 1)));
        }
        definitions.insert(format!("a{count}"), json!({"type": "object"}));
        json!({"$ref": "#/$defs/a0", "$defs": definitions})
    }

    #[track_caller]
    fn check(schema: &Value, expected: Result<Option<usize>, &str>) {
        assert_eq!(measure(schema).map(|shape| shape.max_depth), expected);
    }

    #[test]
    fn patterns_are_counted_through_references() {
        let properties = |count: usize| -> Value {
            let entry = |i: usize| (format!("p{i}"), json!({"$ref": "#/$defs/id"}));
            Value::Object((0..count).map(entry).collect())
        };
        let schema = |count| json!({"properties": properties(count), "$defs": {"id": {"pattern": "^a{1,9}$"}}});
        check(&schema(MAX_PATTERNS - 1), Ok(None));
        check(&schema(MAX_PATTERNS), Err("it has too many patterns"));
    }

    #[test]
    fn what_tools_have_is_measured_and_taken() {
        check(&json!({}), Ok(None));
        check(
            &json!({"properties": {"id": {"type": "string"}, "$id": {}}}),
            Ok(None),
        );
        check(
            &json!({"$id": "https://example.com/a", "default": {"id": "b"}}),
            Ok(None),
        );
        check(&chain(50, |next| json!({"$ref": next})), Ok(None));
    }

    #[test]
    fn a_chain_of_thousands_of_references_leads_too_deep() {
        let expected = Err("its references lead too deep");
        check(&chain(10_000, |next| json!({"$ref": next})), expected);
        check(
            &chain(200, |next| json!({"allOf": [{"$ref": next}]})),
            expected,
        );
    }

    #[test]
    fn a_chain_behind_a_property_with_the_name_of_a_keyword_is_seen() {
        for name in ["default", "enum", "const"] {
            let mut schema = chain(10_000, |next| json!({"$ref": next}));
            schema["$ref"].take();
            schema["properties"] = json!({name: {"$ref": "#/$defs/a0"}});
            check(&schema, Err("its references lead too deep"));
        }
    }

    #[test]
    fn references_that_double_at_each_step_branch_too_often() {
        let twice = |next: &str| json!({"allOf": [{"$ref": next}, {"$ref": next}]});
        check(&chain(10, twice), Ok(None));
        check(&chain(40, twice), Err("its references branch too often"));
    }

    #[test]
    fn references_that_cannot_be_followed_are_few_or_refused() {
        let anchored = |count: usize| {
            let all: Vec<Value> = (0..count)
                .map(|i| json!({"$ref": format!("#x{i}")}))
                .collect();
            json!({"anyOf": all})
        };
        assert!(measure(&anchored(8)).is_ok());
        assert!(measure(&anchored(9)).is_err());
        let inner = json!({"$defs": {"a": {"$id": "https://example.com/b"}}});
        check(
            &inner,
            Err("a part of it has an `$id` or `$schema` of its own"),
        );
    }

    #[test]
    fn a_schema_that_leads_back_into_itself_bounds_the_depth_of_arguments() {
        let tree = json!({"properties": {"children": {"items": {"$ref": "#"}}}});
        assert!(measure(&tree).unwrap().max_depth.unwrap() > 127);
        let long = |i: usize| format!("#/$defs/a{i}");
        let mut schema = chain(100, |next| json!({"$ref": next}));
        schema["$defs"]["a100"] = json!({"additionalProperties": {"$ref": long(0)}});
        assert_eq!(measure(&schema).unwrap().max_depth, Some(2048 / 105));
    }

    #[test]
    fn a_schema_that_branches_into_itself_bounds_the_depth_of_arguments() {
        let depth = |schema: Value| measure(&schema).unwrap().max_depth.unwrap();
        let node = json!({"$ref": "#/$defs/n"});
        let with =
            |n: Value| json!({"properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": n}});
        let one = json!({"properties": {"n": node}});
        let twice = json!({"anyOf": [one, one]});
        assert!(depth(with(twice)) <= 18);
        // Where every value is looked at once it may be as deep as before.
        let tree = json!({"properties": {"left": node, "right": node}});
        assert!(depth(with(tree)) > 100);
        let any =
            json!({"anyOf": [{"type": "array", "items": node}, {"additionalProperties": node}]});
        assert!(depth(with(any)) > 100);
        // A name is no keyword.
        let named = json!({"patternProperties": {"properties": {"if": one, "not": one}}});
        assert!(depth(with(named)) <= 18);
    }
}
