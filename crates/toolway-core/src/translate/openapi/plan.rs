//! From arguments to an HTTP request.
//!
//! No argument leaves its place: what goes into a path stays one segment, what goes into a query is one
//! parameter's, and nothing with a line end gets into a header.
//! A path that has a segment `.` or `..` or a control character after any number of decodings is refused, because many
//! servers decode a path before they split it.

use serde_json::Value;

use super::{
    body::{self, Payload, RequestBody},
    parameters::ParameterLocation,
    styles::{self, ValueForm},
};
use crate::translate::paths::flaw;
use toolway_protocol::tool::{CallError, JsonObject};

/// Longest path and query, in bytes. HTTP libraries refuse what is longer than 64 KiB.
const MAX_URL: usize = 32 << 10;

/// How an operation is called.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(super) method: &'static str,
    /// The path before this operation's, where that is not the API's.
    pub(super) base_path: Option<String>,
    pub(super) path: Vec<PathPart>,
    pub(super) inputs: Vec<OperationInput>,
    pub(super) body: Option<Sent>,
}

/// A part of the path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PathPart {
    /// Encoded.
    Literal(String),
    /// The input with this number.
    Input(usize),
}

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OperationInput {
    pub(super) argument: String,
    /// The name that is sent.
    pub(super) name: String,
    pub(super) place: ParameterLocation,
    pub(super) is_required: bool,
    pub(super) form: ValueForm,
}

/// The body.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sent {
    pub(super) source: BodySource,
    /// A body is sent even if no argument is for it.
    pub(super) is_required: bool,
    pub(super) content_type: String,
    pub(super) payload: Payload,
}

/// Where a body comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BodySource {
    /// This argument.
    Whole(String),
    /// An object of these: the argument, and the property it becomes.
    Members(Vec<(String, String)>),
}

/// A request that is ready to be sent; every text in it is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// `GET` and so on.
    pub method: &'static str,
    /// Begins with `/`, and goes after the base URL; see [`HttpRequest::url`].
    pub path_and_query: String,
    /// Of the operation's parameters only; visible ASCII, spaces and tabs.
    pub headers: Vec<(String, String)>,
    /// The body, where there is one.
    pub body: Option<RequestBody>,
    base_path: Option<String>,
}

impl HttpRequest {
    /// The whole URL, for an API at this base URL: an absolute one without query.
    pub fn url(&self, base_url: &str) -> String {
        let mut base = base_url.trim_end_matches('/');
        let Some(own) = &self.base_path else {
            return format!("{base}{}", self.path_and_query);
        };
        let host = base.find("://").map_or(0, |at| at + 3);
        if let Some(end) = base[host..].find('/') {
            base = &base[..host + end];
        }
        format!("{base}{own}{}", self.path_and_query)
    }
}

impl Plan {
    /// `GET` and so on.
    pub fn method(&self) -> &'static str {
        self.method
    }

    /// Makes the request of a call.
    ///
    /// The arguments should have been checked against the tool's schema before. What cannot be sent is
    /// [`CallError::InvalidParams`]: an argument that there is none of, a required one that is missing or,
    /// in a path, empty, a path segment of dots, a character that a header cannot have.
    pub fn request(&self, arguments: &JsonObject) -> Result<HttpRequest, CallError> {
        self.know_all(arguments)?;
        let mut query: Vec<String> = Vec::new();
        let mut headers: Vec<(String, String)> = Vec::new();
        let mut cookies: Vec<String> = Vec::new();
        for input in self
            .inputs
            .iter()
            .filter(|it| it.place != ParameterLocation::Path)
        {
            let Some(value) = input.value(arguments)? else {
                continue;
            };
            match input.place {
                ParameterLocation::Header => {
                    headers.push((input.name.clone(), input.header(value)?));
                }
                ParameterLocation::Cookie => {
                    cookies.extend(styles::pairs(&input.name, value, &input.form));
                }
                ParameterLocation::Query | ParameterLocation::Path => {
                    query.extend(styles::pairs(&input.name, value, &input.form));
                }
            }
        }
        if !cookies.is_empty() {
            headers.push(("Cookie".to_owned(), cookies.join("; ")));
        }
        let mut path_and_query = self.path(arguments)?;
        if !query.is_empty() {
            path_and_query.push(if path_and_query.contains('?') {
                '&'
            } else {
                '?'
            });
            path_and_query.push_str(&query.join("&"));
        }
        if path_and_query.len() > MAX_URL {
            return Err(invalid(
                "",
                format!(
                    "the URL would have {} bytes, more than {MAX_URL}",
                    path_and_query.len()
                ),
            ));
        }
        Ok(HttpRequest {
            method: self.method,
            path_and_query,
            headers,
            body: self.body(arguments)?,
            base_path: self.base_path.clone(),
        })
    }

    /// Refuses arguments that would be lost.
    fn know_all(&self, arguments: &JsonObject) -> Result<(), CallError> {
        let of_body = |name: &String| match self.body.as_ref().map(|body| &body.source) {
            Some(BodySource::Whole(argument)) => argument == name,
            Some(BodySource::Members(members)) => {
                members.iter().any(|(argument, _)| argument == name)
            }
            None => false,
        };
        let is_known =
            |name: &String| self.inputs.iter().any(|it| it.argument == *name) || of_body(name);
        match arguments.keys().find(|name| !is_known(name)) {
            Some(name) => Err(invalid(name, "there is no such argument")),
            None => Ok(()),
        }
    }

    fn path(&self, arguments: &JsonObject) -> Result<String, CallError> {
        let mut path = String::new();
        // The argument that ends at this place of the path.
        let mut ends: Vec<(usize, &str)> = Vec::new();
        for step in &self.path {
            match step {
                PathPart::Literal(text) => path.push_str(text),
                PathPart::Input(number) => {
                    let Some(input) = self.inputs.get(*number) else {
                        continue;
                    };
                    let name = input.argument.as_str();
                    let value = input.value(arguments)?.unwrap_or(&Value::Null);
                    if styles::text(value).is_empty() || is_empty(value) {
                        return Err(invalid(
                            name,
                            "it is a part of the path and must not be empty",
                        ));
                    }
                    path.push_str(&styles::segment(&input.name, value, &input.form));
                    ends.push((path.len(), name));
                }
            }
        }
        let mut end = 0;
        for segment in path.split('?').next().unwrap_or_default().split('/') {
            end += segment.len();
            if let Some(message) = flaw(segment) {
                let name = ends.iter().find(|it| it.0 >= end).map_or("", |it| it.1);
                return Err(invalid(name, message));
            }
            end += 1;
        }
        Ok(path)
    }

    fn body(&self, arguments: &JsonObject) -> Result<Option<RequestBody>, CallError> {
        let Some(sent) = &self.body else {
            return Ok(None);
        };
        let value = match &sent.source {
            BodySource::Whole(argument) => match arguments.get(argument) {
                Some(value) => value.clone(),
                None if sent.is_required => return Err(invalid(argument, "it is required")),
                None => return Ok(None),
            },
            BodySource::Members(members) => {
                let given = |(argument, property): &(String, String)| {
                    Some((property.clone(), arguments.get(argument)?.clone()))
                };
                let object: JsonObject = members.iter().filter_map(given).collect();
                if object.is_empty() && !sent.is_required {
                    return Ok(None);
                }
                Value::Object(object)
            }
        };
        Ok(Some(body::write(&sent.payload, &sent.content_type, value)))
    }
}

impl OperationInput {
    /// The argument, if it is there; `null` counts as none.
    fn value<'a>(&self, arguments: &'a JsonObject) -> Result<Option<&'a Value>, CallError> {
        let value = arguments
            .get(&self.argument)
            .filter(|value| !value.is_null());
        match value {
            None if self.is_required => Err(invalid(&self.argument, "it is required")),
            value => Ok(value),
        }
    }

    fn header(&self, value: &Value) -> Result<String, CallError> {
        let text = styles::header(value, &self.form);
        match text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
            true => Ok(text),
            false => Err(invalid(
                &self.argument,
                "it is sent as a header, which can have visible ASCII characters, spaces and tabs only",
            )),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(|item| styles::text(item).is_empty()),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

fn invalid(argument: &str, message: impl Into<String>) -> CallError {
    let path = match argument {
        "" => String::new(),
        name => format!("/{}", name.replace('~', "~0").replace('/', "~1")),
    };
    CallError::InvalidParams {
        path,
        message: message.into(),
        input_schema: Value::Null,
    }
}

#[cfg(test)]
mod tests;
