//! Schemas of a document as JSON Schema 2020-12, with what they refer to under `$defs`.
//!
//! Carried over is what `keywords` knows and what is well-formed; a broken keyword costs itself alone.
//! What is only read from the API (`readOnly`) is left out, because these are schemas of arguments.
//! References stay references, so that a schema that holds itself ends; `definitions` tidies them up.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};

use super::{
    document::{Dialect, Document, reference},
    keywords::{self, KeywordKind},
    naming,
};
use crate::translate::cut;

/// Longest text that is shown as an example, in bytes.
const MAX_EXAMPLE: usize = 100;

/// Most examples of one schema.
const MAX_EXAMPLES: usize = 3;

/// Most names that stand for the cases of a discriminator.
const MAX_CASES: usize = 20;

const TYPES: [&str; 7] = [
    "string", "number", "integer", "boolean", "array", "object", "null",
];

/// Why a schema cannot be carried over.
#[derive(Debug, PartialEq)]
pub(super) enum SchemaError {
    /// It is longer than there is room for; with a lower limit of depth it may fit.
    TooLong,
    /// It refers to what is not there.
    Broken(String),
}

/// How much of schemas is carried over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Schemas that stand this deep are carried over without the schemas in them.
    pub(super) depth: usize,
    /// Longest description, in bytes.
    pub(super) description: usize,
    /// Bytes that may be written, roughly.
    pub(super) room: usize,
}

/// Carries the schemas of one operation over.
pub(super) struct Schemas<'d> {
    document: &'d Document<'d>,
    limits: Limits,
    /// The name in `$defs` of each target of a reference.
    names: HashMap<&'d str, String>,
    taken: HashSet<String>,
    waiting: VecDeque<WaitingDefinition<'d>>,
}

/// A definition that is referred to and not carried over yet.
struct WaitingDefinition<'d> {
    name: String,
    schema: &'d Value,
    depth: usize,
}

impl<'d> Schemas<'d> {
    pub(super) fn new(document: &'d Document<'d>, limits: Limits) -> Schemas<'d> {
        Schemas {
            document,
            limits,
            names: HashMap::new(),
            taken: HashSet::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Everything that has been referred to, by its name. To be asked for last.
    pub(super) fn definitions(&mut self) -> Result<Map<String, Value>, SchemaError> {
        let mut definitions = Map::new();
        while let Some(next) = self.waiting.pop_front() {
            let schema = self.convert(next.schema, next.depth)?;
            definitions.insert(next.name, schema);
        }
        Ok(definitions)
    }

    /// One schema, which stands `depth` schemas below the arguments.
    pub(super) fn convert(
        &mut self,
        schema: &'d Value,
        depth: usize,
    ) -> Result<Value, SchemaError> {
        let members = match schema {
            Value::Object(members) => members,
            Value::Bool(false) => return Ok(json!({"not": {}})),
            _ => return Ok(json!({})),
        };
        let mut out = Map::new();
        let mut is_alone = false;
        if let Some(target) = reference(schema) {
            is_alone = self.document.dialect == Dialect::V3_0;
            self.refer(target, depth, &mut out)?;
        }
        if let Some(kind) = members.get("type").and_then(types) {
            out.insert("type".to_owned(), kind);
        }
        let hidden = self.read_only(members);
        for (keyword, value) in members {
            let Some(kind) = keywords::kind(keyword).filter(|kind| kind.fits(value)) else {
                continue;
            };
            // Beside a reference OpenAPI 3.0 ignores everything; these do no harm and are often meant.
            let is_heeded = matches!(keyword.as_str(), "title" | "description" | "default");
            if (is_alone && !is_heeded) || (kind.holds_schemas() && depth >= self.limits.depth) {
                continue;
            }
            let value = match keyword.as_str() {
                "description" if self.limits.description == 0 => continue,
                "description" => {
                    let text = cut::bounded(value.as_str().unwrap_or(""), self.limits.description);
                    self.spend(text.len())?;
                    text.into()
                }
                "required" => without(value, &hidden),
                "properties" => self.properties(value, &hidden, depth)?,
                _ => self.keyword(kind, value, depth)?,
            };
            self.spend(keyword.len() + 6)?;
            match keyword.as_str() {
                "oneOf" => any_of(value, &mut out),
                _ => _ = out.insert(keyword.clone(), value),
            }
        }
        if !is_alone {
            exclusive(members, "minimum", "exclusiveMinimum", &mut out);
            exclusive(members, "maximum", "exclusiveMaximum", &mut out);
            examples(members, &mut out);
            cases(members, &mut out);
        }
        self.spend(2)?;
        Ok(Value::Object(match members.get("nullable") {
            Some(Value::Bool(true)) => nullable(out),
            _ => out,
        }))
    }

    /// The value of a keyword, with the schemas in it carried over.
    fn keyword(
        &mut self,
        kind: KeywordKind,
        value: &'d Value,
        depth: usize,
    ) -> Result<Value, SchemaError> {
        match (kind, value) {
            (KeywordKind::Schema, Value::Bool(_)) => Ok(value.clone()),
            (KeywordKind::Schema, schema) => self.convert(schema, depth + 1),
            (KeywordKind::Schemas, Value::Array(list)) => {
                list.iter().map(|it| self.convert(it, depth + 1)).collect()
            }
            (KeywordKind::NamedSchemas, schemas) => {
                self.properties(schemas, &HashSet::new(), depth)
            }
            (_, data) => {
                self.spend(data.to_string().len())?;
                Ok(data.clone())
            }
        }
    }

    fn properties(
        &mut self,
        schemas: &'d Value,
        hidden: &HashSet<&str>,
        depth: usize,
    ) -> Result<Value, SchemaError> {
        let mut out = Map::new();
        for (name, schema) in schemas.as_object().into_iter().flatten() {
            if !hidden.contains(name.as_str()) {
                self.spend(name.len() + 4)?;
                out.insert(name.clone(), self.convert(schema, depth + 1)?);
            }
        }
        Ok(Value::Object(out))
    }

    /// Writes a reference; where nothing deeper is carried over, what the target is without its parts.
    fn refer(
        &mut self,
        target: &'d str,
        depth: usize,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let schema = self.document.at(target).map_err(SchemaError::Broken)?;
        if depth >= self.limits.depth {
            let target = self.document.resolve(schema).map_err(SchemaError::Broken)?;
            if let Some(kind) = target.get("type").and_then(types) {
                out.insert("type".to_owned(), kind);
            }
            return Ok(());
        }
        let name = match self.names.get(target) {
            Some(name) => name.clone(),
            None => {
                let last = target.rsplit('/').next().unwrap_or_default();
                let name = naming::unused(&naming::spelled(last, "schema"), &mut self.taken);
                self.names.insert(target, name.clone());
                self.waiting.push_back(WaitingDefinition {
                    name: name.clone(),
                    schema,
                    depth: depth + 1,
                });
                name
            }
        };
        self.spend(name.len() + 20)?;
        out.insert("$ref".to_owned(), format!("#/$defs/{name}").into());
        Ok(())
    }

    /// The properties that only answers have.
    fn read_only(&self, members: &'d Map<String, Value>) -> HashSet<&'d str> {
        let properties = members.get("properties").and_then(Value::as_object);
        properties
            .into_iter()
            .flatten()
            .filter(|(_, schema)| self.is_read_only(schema))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The schema, or what it refers to, says that it is in answers only.
    pub(super) fn is_read_only(&self, schema: &'d Value) -> bool {
        let says = |it: &Value| it.get("readOnly") == Some(&Value::Bool(true));
        says(schema) || self.document.resolve(schema).is_ok_and(says)
    }

    fn spend(&mut self, bytes: usize) -> Result<(), SchemaError> {
        let room = &mut self.limits.room;
        *room = room.checked_sub(bytes).ok_or(SchemaError::TooLong)?;
        Ok(())
    }
}

/// A `type`, as far as JSON Schema knows it.
fn types(kind: &Value) -> Option<Value> {
    match kind {
        Value::String(name) if name == "file" => Some("string".into()),
        Value::String(name) if TYPES.contains(&name.as_str()) => Some(kind.clone()),
        Value::Array(names) => {
            let mut known: Vec<Value> = names.iter().filter_map(types).collect();
            known.dedup();
            match known.len() {
                0 => None,
                1 => known.pop(),
                _ => Some(Value::Array(known)),
            }
        }
        _ => None,
    }
}

/// `oneOf` is carried over as `anyOf`: documents tell the cases apart by a `discriminator`, or not at all, and
/// what two of them allow is still a good argument.
fn any_of(cases: Value, out: &mut Map<String, Value>) {
    if !out.contains_key("anyOf") {
        out.insert("anyOf".to_owned(), cases);
        return;
    }
    let all = out.entry("allOf").or_insert_with(|| json!([]));
    if let Value::Array(all) = all {
        all.push(json!({"anyOf": cases}));
    }
}

fn without(names: &Value, hidden: &HashSet<&str>) -> Value {
    let names = names.as_array().into_iter().flatten();
    let mut kept: Vec<Value> = Vec::new();
    for name in names {
        if !hidden.contains(name.as_str().unwrap_or("")) && !kept.contains(name) {
            kept.push(name.clone());
        }
    }
    Value::Array(kept)
}

/// `exclusiveMinimum: true` of OpenAPI 3.0 makes `minimum` a bound that is not reached itself.
fn exclusive(members: &Map<String, Value>, plain: &str, flag: &str, out: &mut Map<String, Value>) {
    if members.get(flag) == Some(&Value::Bool(true))
        && let Some(bound) = out.shift_remove(plain)
    {
        out.insert(flag.to_owned(), bound);
    }
}

/// Short examples help a model; long ones would crowd the schema out.
fn examples(members: &Map<String, Value>, out: &mut Map<String, Value>) {
    let several = members.get("examples").and_then(Value::as_array);
    let short: Vec<Value> = several
        .into_iter()
        .flatten()
        .chain(members.get("example"))
        .filter(|it| !(it.is_object() || it.is_array() || it.is_null()))
        .filter(|it| it.to_string().len() <= MAX_EXAMPLE)
        .take(MAX_EXAMPLES)
        .cloned()
        .collect();
    if !short.is_empty() {
        out.insert("examples".to_owned(), Value::Array(short));
    }
}

/// What a `discriminator` says is told in words, since JSON Schema has nothing for it.
fn cases(members: &Map<String, Value>, out: &mut Map<String, Value>) {
    let Some(discriminator) = members.get("discriminator") else {
        return;
    };
    let Some(property) = discriminator.get("propertyName").and_then(Value::as_str) else {
        return;
    };
    let mapped = discriminator.get("mapping").and_then(Value::as_object);
    let mut cases: Vec<&str> = mapped
        .into_iter()
        .flatten()
        .map(|(case, _)| case.as_str())
        .collect();
    if cases.is_empty() {
        let branches = ["oneOf", "anyOf"].map(|it| members.get(it).and_then(Value::as_array));
        let targets = branches.into_iter().flatten().flatten();
        cases = targets
            .filter_map(reference)
            .filter_map(|target| target.rsplit('/').next())
            .collect();
    }
    let cases: Vec<String> = cases
        .iter()
        .take(MAX_CASES)
        .map(|case| format!("`{case}`"))
        .collect();
    let mut words = format!("`{property}` says which kind it is");
    if !cases.is_empty() {
        words = format!("{words}: {}", cases.join(", "));
    }
    let said = match out.get("description").and_then(Value::as_str) {
        Some(text) if !text.is_empty() => format!("{text} ({words})"),
        _ => words,
    };
    out.insert("description".to_owned(), said.into());
}

/// `nullable` of OpenAPI 3.0. It adds to a `type`; to a schema that is made of others, which is wider than
/// the letter of 3.0.3 and what its writers mean.
fn nullable(mut schema: Map<String, Value>) -> Map<String, Value> {
    let is_made_of_others = ["$ref", "allOf", "anyOf", "oneOf"]
        .iter()
        .any(|keyword| schema.contains_key(*keyword));
    match schema.get_mut("type") {
        _ if is_made_of_others => {
            let mut outer = Map::new();
            for keyword in ["title", "description", "default"] {
                if let Some(text) = schema.shift_remove(keyword) {
                    outer.insert(keyword.to_owned(), text);
                }
            }
            outer.insert("anyOf".to_owned(), json!([schema, {"type": "null"}]));
            return outer;
        }
        Some(kind) if kind.is_string() => *kind = json!([kind.take(), "null"]),
        Some(Value::Array(kinds)) if !kinds.contains(&"null".into()) => kinds.push("null".into()),
        _ => {}
    }
    match schema.get_mut("enum") {
        Some(Value::Array(values)) if !values.contains(&Value::Null) => values.push(Value::Null),
        _ => {}
    }
    schema
}

#[cfg(test)]
mod tests;
