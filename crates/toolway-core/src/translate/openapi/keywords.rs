//! The keywords of JSON Schema that are carried over, and what their values have to be.
//!
//! `not`, `if`, `then`, `else` and `dependentSchemas` are not: with less in them, as when what is only read is
//! left out, they would refuse more, and the API checks them anyway.

use serde_json::{Map, Value};

/// What a keyword's value has to be; any other value is no schema and left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    /// An integer from 0.
    Count,
    Flag,
    /// A list with something in it.
    Values,
    /// A list of texts.
    Names,
    /// Anything.
    Data,
    Schema,
    /// A list with a schema in it.
    Schemas,
    /// An object of schemas.
    NamedSchemas,
    /// An object of lists of texts.
    NamedNames,
}

/// `type`, `$ref` and what OpenAPI adds are not here: `schemas` deals with them.
const KEYWORDS: [(&str, Kind); 36] = [
    ("title", Kind::Text),
    ("description", Kind::Text),
    ("format", Kind::Text),
    ("pattern", Kind::Text),
    ("contentEncoding", Kind::Text),
    ("contentMediaType", Kind::Text),
    ("enum", Kind::Values),
    ("const", Kind::Data),
    ("default", Kind::Data),
    ("deprecated", Kind::Flag),
    ("minimum", Kind::Number),
    ("maximum", Kind::Number),
    ("exclusiveMinimum", Kind::Number),
    ("exclusiveMaximum", Kind::Number),
    ("multipleOf", Kind::Number),
    ("minLength", Kind::Count),
    ("maxLength", Kind::Count),
    ("minItems", Kind::Count),
    ("maxItems", Kind::Count),
    ("minContains", Kind::Count),
    ("maxContains", Kind::Count),
    ("minProperties", Kind::Count),
    ("maxProperties", Kind::Count),
    ("uniqueItems", Kind::Flag),
    ("required", Kind::Names),
    ("dependentRequired", Kind::NamedNames),
    ("properties", Kind::NamedSchemas),
    ("patternProperties", Kind::NamedSchemas),
    ("additionalProperties", Kind::Schema),
    ("propertyNames", Kind::Schema),
    ("items", Kind::Schema),
    ("prefixItems", Kind::Schemas),
    ("contains", Kind::Schema),
    ("allOf", Kind::Schemas),
    ("anyOf", Kind::Schemas),
    ("oneOf", Kind::Schemas),
];

/// Keywords whose schemas speak of the same value as the schema they stand in.
const IN_PLACE: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// What a known keyword's value has to be.
pub(super) fn kind(keyword: &str) -> Option<Kind> {
    let found = KEYWORDS.iter().find(|(name, _)| *name == keyword);
    found.map(|(_, kind)| *kind)
}

impl Kind {
    /// The value is of this kind; what is inside schemas is not looked at.
    pub(super) fn fits(self, value: &Value) -> bool {
        let is_schema = |value: &Value| value.is_object() || value.is_boolean();
        match (self, value) {
            (Kind::Data, _) => true,
            (Kind::Text, it) => it.is_string(),
            (Kind::Number, it) => it.is_number(),
            (Kind::Count, it) => it.is_u64(),
            (Kind::Flag, it) => it.is_boolean(),
            (Kind::Values, Value::Array(list)) => !list.is_empty(),
            (Kind::Names, Value::Array(list)) => list.iter().all(Value::is_string),
            (Kind::Schema, it) => is_schema(it),
            (Kind::Schemas, Value::Array(list)) => list.iter().any(is_schema),
            (Kind::NamedSchemas, it) => it.is_object(),
            (Kind::NamedNames, Value::Object(members)) => {
                members.values().all(|it| Kind::Names.fits(it))
            }
            _ => false,
        }
    }

    /// Schemas stand in the value.
    pub(super) fn holds_schemas(self) -> bool {
        matches!(self, Kind::Schema | Kind::Schemas | Kind::NamedSchemas)
    }
}

/// The schemas that stand directly in this one; with `in_place`, only those about the same value.
pub(super) fn children(schema: &Value, in_place: bool) -> Vec<&Value> {
    let members = schema.as_object().into_iter().flatten();
    let mut found = Vec::new();
    for (keyword, value) in members.filter(|(keyword, _)| is_followed(keyword, in_place)) {
        match (kind(keyword), value) {
            (Some(Kind::Schema), value) => found.push(value),
            (Some(Kind::Schemas), Value::Array(list)) => found.extend(list),
            (Some(Kind::NamedSchemas), Value::Object(members)) => found.extend(members.values()),
            _ => {}
        }
    }
    found
}

/// The same, to be changed.
pub(super) fn children_mut(schema: &mut Map<String, Value>, in_place: bool) -> Vec<&mut Value> {
    let mut found = Vec::new();
    for (keyword, value) in schema {
        if !is_followed(keyword, in_place) {
            continue;
        }
        match (kind(keyword), value) {
            (Some(Kind::Schema), value) => found.push(value),
            (Some(Kind::Schemas), Value::Array(list)) => found.extend(list),
            (Some(Kind::NamedSchemas), Value::Object(members)) => {
                found.extend(members.values_mut());
            }
            _ => {}
        }
    }
    found
}

fn is_followed(keyword: &str, in_place: bool) -> bool {
    !in_place || IN_PLACE.contains(&keyword)
}

/// The schema without what [`IN_PLACE`] and a reference add to it.
pub(super) fn without_in_place(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        members.retain(|keyword, _| keyword != "$ref" && !IN_PLACE.contains(&keyword.as_str()));
    }
    schema
}
