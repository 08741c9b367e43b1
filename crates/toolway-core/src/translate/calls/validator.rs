//! A tool's input schema, compiled once, and what it says about arguments.

use jsonschema::{PatternOptions, ValidationError};
use serde_json::Value;

use self::shape::Shape;
use super::super::cut::bounded;
use toolway_protocol::tool::{CallError, JsonObject};

mod shape;

/// Most bytes of a message about arguments.
const MAX_MESSAGE: usize = 300;

/// Most bytes of a schema fragment in an error.
const MAX_FRAGMENT: usize = 4096;

/// Most bytes that one pattern of a schema may take when compiled.
const MAX_PATTERN: usize = 1 << 20;

/// How often a pattern with look-around may step back before it counts as not met.
const MAX_BACKTRACKS: usize = 100_000;

/// A compiled input schema.
///
/// Neither compiling nor checking opens a file or a connection, whatever the schema refers to.
#[derive(Debug)]
pub struct Validator {
    compiled: jsonschema::Validator,
    shape: Shape,
    schema: Value,
}

impl Validator {
    /// Compiles a schema. The error says why it cannot be, for the person who configured the server; such a
    /// tool can still be offered, its server checks the arguments.
    ///
    /// `format` is not checked: whether it means anything differs between drafts and between servers.
    pub fn compile(schema: &JsonObject) -> Result<Validator, String> {
        let schema = Value::Object(schema.clone());
        let shape = shape::measure(&schema)?;
        let patterns = PatternOptions::fancy_regex()
            .size_limit(MAX_PATTERN)
            .dfa_size_limit(MAX_PATTERN)
            .backtrack_limit(MAX_BACKTRACKS);
        let compiled = jsonschema::options()
            .offline()
            .should_validate_formats(false)
            .with_pattern_options(patterns)
            .build(&schema)
            .map_err(|error| bounded(&error.to_string(), MAX_MESSAGE))?;
        Ok(Validator {
            compiled,
            shape,
            schema,
        })
    }

    /// Checks arguments. What does not fit is [`CallError::InvalidParams`] with the path to it and the part
    /// of the schema that was not met, both bounded.
    pub fn check(&self, arguments: &JsonObject) -> Result<(), CallError> {
        let arguments = Value::Object(arguments.clone());
        let refused = |message: String| CallError::InvalidParams {
            path: String::new(),
            message,
            input_schema: Value::Null,
        };
        if let Some(max) = self.shape.max_depth {
            let depth = shape::depth(&arguments);
            if depth > max {
                let why = format!("the arguments are nested more than {max} levels deep");
                return Err(refused(why));
            }
            if depth > self.shape.max_told {
                let why = "the arguments do not fit the schema, in too many ways to tell";
                return match self.compiled.is_valid(&arguments) {
                    true => Ok(()),
                    false => Err(refused(why.to_owned())),
                };
            }
        }
        self.compiled
            .validate(&arguments)
            .map_err(|error| CallError::InvalidParams {
                path: bounded(error.instance_path().as_str(), MAX_MESSAGE),
                message: message(&error),
                input_schema: self.fragment(&error),
            })
    }

    /// The schema that holds the keyword that was not met; where that is too long, the keyword alone.
    fn fragment(&self, error: &ValidationError<'_>) -> Value {
        let path = error.schema_path().as_str();
        let (parent, keyword) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.schema.pointer(parent).unwrap_or(&self.schema);
        if fits(parent) {
            return parent.clone();
        }
        match parent.get(keyword) {
            Some(value) if fits(value) => {
                Value::Object([(keyword.to_owned(), value.clone())].into_iter().collect())
            }
            _ => Value::Null,
        }
    }
}

/// What is wrong; a value that is too long to be repeated is not.
fn message(error: &ValidationError<'_>) -> String {
    let message = error.to_string();
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    bounded(&error.masked_with("the value").to_string(), MAX_MESSAGE)
}

fn fits(value: &Value) -> bool {
    value.to_string().len() <= MAX_FRAGMENT
}

#[cfg(test)]
mod tests;
