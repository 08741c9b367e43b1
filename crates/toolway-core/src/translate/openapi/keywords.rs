//! The keywords of JSON Schema that are carried over, and what their values have to be.
//!
//! `not`, `if`, `then`, `else` and `dependentSchemas` are not: with less in them, as when what is only read is
//! left out, they would refuse more, and the API checks them anyway.

use serde_json::{Map, Value};

/// What a keyword's value has to be; any other value is no schema and left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeywordKind {
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
const KEYWORDS: [(&str, KeywordKind); 36] = [
    ("title", KeywordKind::Text),
    ("description", KeywordKind::Text),
    ("format", KeywordKind::Text),
    ("pattern", KeywordKind::Text),
    ("contentEncoding", KeywordKind::Text),
    ("contentMediaType", KeywordKind::Text),
    ("enum", KeywordKind::Values),
    ("const", KeywordKind::Data),
    ("default", KeywordKind::Data),
    ("deprecated", KeywordKind::Flag),
    ("minimum", KeywordKind::Number),
    ("maximum", KeywordKind::Number),
    ("exclusiveMinimum", KeywordKind::Number),
    ("exclusiveMaximum", KeywordKind::Number),
    ("multipleOf", KeywordKind::Number),
    ("minLength", KeywordKind::Count),
    ("maxLength", KeywordKind::Count),
    ("minItems", KeywordKind::Count),
    ("maxItems", KeywordKind::Count),
    ("minContains", KeywordKind::Count),
    ("maxContains", KeywordKind::Count),
    ("minProperties", KeywordKind::Count),
    ("maxProperties", KeywordKind::Count),
    ("uniqueItems", KeywordKind::Flag),
    ("required", KeywordKind::Names),
    ("dependentRequired", KeywordKind::NamedNames),
    ("properties", KeywordKind::NamedSchemas),
    ("patternProperties", KeywordKind::NamedSchemas),
    ("additionalProperties", KeywordKind::Schema),
    ("propertyNames", KeywordKind::Schema),
    ("items", KeywordKind::Schema),
    ("prefixItems", KeywordKind::Schemas),
    ("contains", KeywordKind::Schema),
    ("allOf", KeywordKind::Schemas),
    ("anyOf", KeywordKind::Schemas),
    ("oneOf", KeywordKind::Schemas),
];

/// Keywords whose schemas speak of the same value as the schema they stand in.
const IN_PLACE: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// What a known keyword's value has to be.
pub(super) fn kind(keyword: &str) -> Option<KeywordKind> {
    let found = KEYWORDS.iter().find(|(name, _)| *name == keyword);
    found.map(|(_, kind)| *kind)
}

impl KeywordKind {
    /// The value is of this kind; what is inside schemas is not looked at.
    pub(super) fn fits(self, value: &Value) -> bool {
        let is_schema = |value: &Value| value.is_object() || value.is_boolean();
        match (self, value) {
            (KeywordKind::Data, _) => true,
            (KeywordKind::Text, it) => it.is_string(),
            (KeywordKind::Number, it) => it.is_number(),
            (KeywordKind::Count, it) => it.is_u64(),
            (KeywordKind::Flag, it) => it.is_boolean(),
            (KeywordKind::Values, Value::Array(list)) => !list.is_empty(),
            (KeywordKind::Names, Value::Array(list)) => list.iter().all(Value::is_string),
            (KeywordKind::Schema, it) => is_schema(it),
            (KeywordKind::Schemas, Value::Array(list)) => list.iter().any(is_schema),
            (KeywordKind::NamedSchemas, it) => it.is_object(),
            (KeywordKind::NamedNames, Value::Object(members)) => {
                members.values().all(|it| KeywordKind::Names.fits(it))
            }
            _ => false,
        }
    }

    /// Schemas stand in the value.
    pub(super) fn holds_schemas(self) -> bool {
        matches!(
            self,
            KeywordKind::Schema | KeywordKind::Schemas | KeywordKind::NamedSchemas
        )
    }
}

/// The schemas that stand directly in this one; with `in_place`, only those about the same value.
pub(super) fn children(schema: &Value, in_place: bool) -> Vec<&Value> {
    let members = schema.as_object().into_iter().flatten();
    let mut found = Vec::new();
    for (keyword, value) in members.filter(|(keyword, _)| is_followed(keyword, in_place)) {
        match (kind(keyword), value) {
            (Some(KeywordKind::Schema), value) => found.push(value),
            (Some(KeywordKind::Schemas), Value::Array(list)) => found.extend(list),
            (Some(KeywordKind::NamedSchemas), Value::Object(members)) => {
                found.extend(members.values());
            }
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
            (Some(KeywordKind::Schema), value) => found.push(value),
            (Some(KeywordKind::Schemas), Value::Array(list)) => found.extend(list),
            (Some(KeywordKind::NamedSchemas), Value::Object(members)) => {
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
