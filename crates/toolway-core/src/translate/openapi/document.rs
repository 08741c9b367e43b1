//! A document and what its references lead to. Nothing outside of it is ever looked at.

use serde_json::{Map, Value};

use super::ReadError;
use crate::translate::percent;

/// Most references that lead to nothing but another reference.
const MAX_HOPS: usize = 32;

/// Which rules a document's schemas follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAPI 3.0: a relative of JSON Schema draft 5, with `nullable`.
    V3_0,
    /// OpenAPI 3.1 and later: JSON Schema 2020-12.
    V3_1,
}

/// A document that says it is OpenAPI 3.x.
pub(super) struct Document<'d> {
    pub(super) root: &'d Map<String, Value>,
    pub(super) dialect: Dialect,
    whole: &'d Value,
}

impl<'d> Document<'d> {
    /// Tells the version, or why there is nothing to read.
    pub(super) fn open(whole: &'d Value) -> Result<Document<'d>, ReadError> {
        let root = match whole {
            Value::Object(root) => root,
            Value::Null => return Err(ReadError::NotAnObject("empty")),
            Value::Array(_) => return Err(ReadError::NotAnObject("a list")),
            Value::String(_) => return Err(ReadError::NotAnObject("a text")),
            Value::Bool(_) | Value::Number(_) => return Err(ReadError::NotAnObject("a number")),
        };
        if let Some(version) = root.get("swagger") {
            return Err(ReadError::Swagger(words(version)));
        }
        let version = words(root.get("openapi").ok_or(ReadError::NoVersion)?);
        let dialect = match version.split('.').take(2).collect::<Vec<&str>>()[..] {
            ["3", "0"] | ["3"] => Dialect::V3_0,
            ["3", _] => Dialect::V3_1,
            _ => return Err(ReadError::Version(version)),
        };
        Ok(Document {
            root,
            dialect,
            whole,
        })
    }

    /// The value itself, or what its `$ref` leads to, however many steps that takes.
    pub(super) fn resolve(&self, value: &'d Value) -> Result<&'d Value, String> {
        let mut value = value;
        for _ in 0..MAX_HOPS {
            match reference(value) {
                Some(target) => value = self.at(target)?,
                None => return Ok(value),
            }
        }
        let target = reference(value).unwrap_or_default();
        Err(format!("its reference `{target}` leads round in a circle"))
    }

    /// What a reference leads to; one that leaves the document is not followed.
    pub(super) fn at(&self, target: &str) -> Result<&'d Value, String> {
        let inside = target.strip_prefix('#').ok_or_else(|| {
            format!(
                "its reference `{target}` leads out of the document, where nothing is looked up"
            )
        })?;
        let missing = || format!("its reference `{target}` leads to nothing");
        if inside.starts_with('/') || inside.is_empty() {
            let pointer = percent::decode(inside).ok_or_else(missing)?;
            self.whole.pointer(&pointer).ok_or_else(missing)
        } else {
            Err(format!(
                "its reference `{target}` names an anchor; only pointers (`#/…`) are followed"
            ))
        }
    }
}

/// The `$ref` of a value that has one.
pub(super) fn reference(value: &Value) -> Option<&str> {
    value.get("$ref")?.as_str()
}

/// A version as text; YAML reads `3.1` as a number.
fn words(version: &Value) -> String {
    match version {
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    }
}
