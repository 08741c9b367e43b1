//! What an operation's parameters and body are called as arguments of one tool, and the schema of these.
//!
//! - A parameter keeps its name; what is outside of `A-Z a-z 0-9 _ - .`, which some models refuse in names of
//!   properties, becomes `_`.
//! - Where two would have one name, path goes before query, query before header, header before cookie; the
//!   later one is `query_id` and so on.
//! - A body that is an object of known properties has these as arguments, unless one of them would have the
//!   name of a parameter or of another; then, and for every other body, it is the argument `body`.
//! - Other arguments than these are refused.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{
    body::{self, Payload, Taken},
    definitions,
    document::Document,
    naming,
    parameters::Parameter,
    plan::BodySource,
    schemas::{Limits, SchemaError, Schemas},
};
use toolway_protocol::tool::{JsonObject, MAX_NAME};

/// Longest input schema, in bytes of JSON; a longer one is cut down to what is less deep.
const MAX_SCHEMA: usize = 64 << 10;

/// How many schemas may be in each other, and how long their descriptions; tried until the whole is short
/// enough.
const LIMITS: [(usize, usize); 8] = [
    (60, 600),
    (8, 600),
    (6, 400),
    (4, 300),
    (3, 200),
    (2, 100),
    (1, 60),
    (1, 0),
];

/// One argument of the tool.
pub(super) struct Argument<'d> {
    pub(super) name: String,
    /// `None`: `otherwise` alone.
    pub(super) schema: Option<&'d Value>,
    pub(super) otherwise: Value,
    /// Said in place of what the schema says about itself.
    pub(super) description: Option<&'d str>,
    pub(super) is_required: bool,
}

/// Names the arguments: one for each parameter, in their order, then those of the body.
pub(super) fn of<'d>(
    document: &Document<'d>,
    parameters: &[Parameter<'d>],
    body: Option<&Taken<'d>>,
) -> (Vec<Argument<'d>>, Option<BodySource>) {
    let mut taken: HashSet<String> = HashSet::new();
    let mut arguments: Vec<Argument<'d>> = Vec::new();
    for parameter in parameters {
        let mut name = spelled(parameter.name);
        if taken.contains(&name) {
            name = format!("{}_{name}", parameter.place.as_str());
            name.truncate(MAX_NAME);
        }
        arguments.push(Argument {
            name: naming::unused(&name, &mut taken),
            schema: parameter.schema,
            otherwise: json!({"type": "string"}),
            description: parameter.description,
            is_required: parameter.is_required,
        });
    }
    let source = body.map(|body| of_body(document, body, &mut taken, &mut arguments));
    (arguments, source)
}

fn of_body<'d>(
    document: &Document<'d>,
    body: &Taken<'d>,
    taken: &mut HashSet<String>,
    arguments: &mut Vec<Argument<'d>>,
) -> BodySource {
    let members = body.schema.filter(|_| body.payload != Payload::Text);
    let members = members.and_then(|schema| body::members(document, schema));
    // A response-only property takes no argument's name.
    let readers = Schemas::new(document, limits((0, 0)));
    let members = members.map(|mut members| {
        members
            .properties
            .retain(|(_, schema)| !readers.is_read_only(schema));
        members
    });
    if let Some(members) = members
        && let Some(names) = free_names(&members, taken)
    {
        // Many documents forget to say that a body is required; its required properties say so, too.
        let is_required = body.required != Some(false);
        let mut fields = Vec::new();
        for ((property, schema), name) in members.properties.iter().zip(names) {
            fields.push((name.clone(), (*property).to_owned()));
            arguments.push(Argument {
                name,
                schema: Some(schema),
                otherwise: json!({}),
                description: None,
                is_required: is_required && members.required.contains(property),
            });
        }
        return BodySource::Members(fields);
    }
    let free = ["body", "request_body"]
        .into_iter()
        .find(|name| !taken.contains(*name));
    let name = naming::unused(free.unwrap_or("request_body"), taken);
    let otherwise = match body.payload {
        Payload::Json => json!({}),
        Payload::Text => json!({"type": "string"}),
        Payload::Form(_) | Payload::Multipart(_) => json!({"type": "object"}),
    };
    arguments.push(Argument {
        name: name.clone(),
        schema: body.schema.filter(|_| body.payload != Payload::Text),
        otherwise,
        description: body.description,
        is_required: body.required == Some(true),
    });
    BodySource::Whole(name)
}

/// The names of a body's properties as arguments, where all of them are free.
fn free_names(members: &body::BodyMembers<'_>, taken: &mut HashSet<String>) -> Option<Vec<String>> {
    if members.properties.is_empty() {
        return None;
    }
    let names: Vec<String> = members
        .properties
        .iter()
        .map(|(name, _)| spelled(name))
        .collect();
    let all: HashSet<&String> = names.iter().collect();
    if all.len() < names.len() || names.iter().any(|name| taken.contains(name)) {
        return None;
    }
    taken.extend(names.iter().cloned());
    Some(names)
}

fn spelled(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(fits) {
        return name.to_owned();
    }
    naming::spelled(name, "argument")
}

/// The schema of the arguments. One that is too long loses first what is deepest in it: where it ends,
/// everything is allowed.
pub(super) fn schema<'d>(
    document: &Document<'d>,
    arguments: &[Argument<'d>],
) -> Result<JsonObject, String> {
    for tried in LIMITS {
        match with_limits(document, arguments, limits(tried)) {
            Ok(schema) => return Ok(schema),
            Err(SchemaError::TooLong) => {}
            Err(SchemaError::Broken(why)) => return Err(why),
        }
    }
    Err(format!(
        "the schema of its arguments is longer than {} KiB",
        MAX_SCHEMA >> 10
    ))
}

fn limits((depth, description): (usize, usize)) -> Limits {
    Limits {
        depth,
        description,
        room: MAX_SCHEMA,
    }
}

fn with_limits<'d>(
    document: &Document<'d>,
    arguments: &[Argument<'d>],
    limits: Limits,
) -> Result<JsonObject, SchemaError> {
    let mut schemas = Schemas::new(document, limits);
    let mut properties = Map::new();
    let mut required: Vec<Value> = Vec::new();
    for argument in arguments {
        let schema = match argument.schema {
            Some(schema) => schemas.convert(schema, 1)?,
            None => argument.otherwise.clone(),
        };
        properties.insert(
            argument.name.clone(),
            described(schema, argument.description, limits.description),
        );
        if argument.is_required {
            required.push(argument.name.as_str().into());
        }
    }
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), Value::Object(properties));
    if !required.is_empty() {
        schema.insert("required".to_owned(), Value::Array(required));
    }
    schema.insert("additionalProperties".to_owned(), false.into());
    let schema = definitions::tidy(schema, schemas.definitions()?);
    match serde_json::to_string(&schema) {
        Ok(text) if text.len() <= MAX_SCHEMA => Ok(schema),
        _ => Err(SchemaError::TooLong),
    }
}

/// The schema with a description of its own.
fn described(mut schema: Value, description: Option<&str>, longest: usize) -> Value {
    let description = description
        .map(str::trim)
        .filter(|text| !text.is_empty() && longest > 0);
    if let (Some(members), Some(text)) = (schema.as_object_mut(), description) {
        let text = crate::translate::cut::bounded(text, longest);
        members.insert("description".to_owned(), text.into());
    }
    schema
}
