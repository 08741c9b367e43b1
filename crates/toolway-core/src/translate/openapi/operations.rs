//! The operations of a document, one by one.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    Fixed, MAX_OPERATIONS, Operation, ReadError, Skipped, arguments, body,
    document::Document,
    naming,
    parameters::{self, Parameter, ParameterLocation, PathTemplatePart},
    plan::{OperationInput, PathPart, Plan, Sent},
    servers,
};
use crate::translate::cut;
use toolway_protocol::tool::{Annotations, JsonObject, Tool};

/// Longest description of a tool, in bytes; OpenAI refuses longer ones.
const MAX_DESCRIPTION: usize = 1020;

/// Longest title of a tool, in bytes.
const MAX_TITLE: usize = 200;

/// Longest place and longest reason of an operation that is skipped, in bytes.
const MAX_REASON: usize = 500;

const METHODS: [(&str, &str); 9] = [
    ("get", "GET"),
    ("put", "PUT"),
    ("post", "POST"),
    ("delete", "DELETE"),
    ("options", "OPTIONS"),
    ("head", "HEAD"),
    ("patch", "PATCH"),
    ("trace", "TRACE"),
    ("query", "QUERY"),
];

/// Where an operation is in its document.
struct At<'d> {
    method: &'static str,
    path: &'d str,
    path_item: &'d Value,
    operation: &'d Value,
}

/// Every operation of the document that can be called, and why the others cannot.
pub(super) fn all(
    document: &Document<'_>,
    fixed: &Fixed,
    hosts: &[&str],
) -> Result<(Vec<Operation>, Vec<Skipped>), ReadError> {
    let paths = document.root.get("paths").and_then(Value::as_object);
    let paths = paths.ok_or(ReadError::NoPaths)?;
    let mut found = Vec::new();
    let mut skipped = Vec::new();
    let mut taken = HashSet::new();
    let mut left = 0_usize;
    for (path, item) in paths.iter().filter(|(path, _)| !path.starts_with("x-")) {
        let path_item = match document.resolve(item) {
            Ok(item) => item,
            Err(reason) => {
                skipped.push(skip(path, None, &reason));
                continue;
            }
        };
        for (key, method) in METHODS {
            let Some(operation) = path_item.get(key) else {
                continue;
            };
            if found.len() >= MAX_OPERATIONS {
                left += 1;
                continue;
            }
            let at = At {
                method,
                path,
                path_item,
                operation,
            };
            match one(document, &at, fixed, hosts, &mut taken) {
                Ok(operation) => found.push(operation),
                Err(reason) => skipped.push(skip(&at.place(), Some(at.name()), &reason)),
            }
        }
    }
    if left > 0 {
        skipped.push(Skipped {
            place: format!("{left} more operations"),
            name: None,
            reason: format!("at most {MAX_OPERATIONS} operations of a document are offered"),
        });
    }
    Ok((found, skipped))
}

/// What is said here goes to terminals and logs, so nothing of the document may act there.
fn skip(place: &str, name: Option<String>, reason: &str) -> Skipped {
    let harmless = |text: &str| {
        let text = text.replace(char::is_control, "\u{fffd}");
        cut::bounded(&text, MAX_REASON)
    };
    Skipped {
        place: harmless(place),
        name,
        reason: harmless(reason),
    }
}

/// The server of the first path or operation that has one of its own.
pub(super) fn first_server(document: &Document<'_>) -> Option<String> {
    let paths = document.root.get("paths")?.as_object()?;
    let of_item = |item: &Value| {
        let operations = METHODS.into_iter().filter_map(|(key, _)| item.get(key));
        std::iter::once(item)
            .chain(operations)
            .find_map(|owner| servers::base_url(owner.get("servers")))
    };
    paths
        .values()
        .filter_map(|item| document.resolve(item).ok())
        .find_map(of_item)
}

impl At<'_> {
    fn place(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// `operationId`, where it is a text.
    fn id(&self) -> Option<&str> {
        let id = self.operation.get("operationId").and_then(Value::as_str);
        id.map(str::trim).filter(|id| !id.is_empty())
    }

    fn name(&self) -> String {
        naming::operation(self.id(), self.method, self.path)
    }
}

fn one(
    document: &Document<'_>,
    at: &At<'_>,
    fixed: &Fixed,
    hosts: &[&str],
    taken: &mut HashSet<String>,
) -> Result<Operation, String> {
    if !at.operation.is_object() {
        return Err("it is no object".to_owned());
    }
    if at.method == "TRACE" {
        return Err("TRACE answers with the request, and thereby with the keys in it".to_owned());
    }
    let servers = at
        .operation
        .get("servers")
        .or_else(|| at.path_item.get("servers"));
    let base_path = servers::own_path(servers, hosts)?;
    let template = parameters::template(at.path)?;
    let parameters = parameters::all(document, at.path_item, at.operation, &template, fixed)?;
    let body = match at.method {
        "HEAD" => None,
        _ => body::of(document, at.operation)?,
    };
    let (arguments, source) = arguments::of(document, &parameters, body.as_ref());
    let input_schema = arguments::schema(document, &arguments)?;
    let plan = Plan {
        method: at.method,
        base_path,
        path: steps(template, &parameters),
        inputs: parameters
            .iter()
            .zip(&arguments)
            .map(|(parameter, argument)| OperationInput {
                argument: argument.name.clone(),
                name: parameter.name.to_owned(),
                place: parameter.place,
                is_required: parameter.is_required,
                form: parameter.form.clone(),
            })
            .collect(),
        body: body.zip(source).map(|(body, source)| Sent {
            source,
            is_required: body.required == Some(true),
            content_type: body.content_type,
            payload: body.payload,
        }),
    };
    let text = |keyword: &str| {
        let text = at.operation.get(keyword).and_then(Value::as_str);
        text.map(str::trim).filter(|text| !text.is_empty())
    };
    let name = naming::unused(&at.name(), taken);
    let summary = text("summary");
    let is_deprecated = at.operation.get("deprecated") == Some(&Value::Bool(true));
    Ok(Operation {
        place: at.place(),
        id: at.id().map(str::to_owned),
        tool: Tool {
            name,
            title: summary.map(|text| cut::bounded(text, MAX_TITLE)),
            description: Some(description(
                summary,
                text("description"),
                is_deprecated,
                &at.place(),
            )),
            input_schema,
            output_schema: None,
            annotations: annotations(at.method),
            extra: JsonObject::new(),
        },
        plan,
    })
}

fn steps(template: Vec<PathTemplatePart<'_>>, parameters: &[Parameter<'_>]) -> Vec<PathPart> {
    let number = |name: &str| {
        let is_it = |it: &Parameter<'_>| it.place == ParameterLocation::Path && it.name == name;
        parameters.iter().position(is_it)
    };
    let steps = template.into_iter().filter_map(|piece| match piece {
        PathTemplatePart::Literal(text) => Some(PathPart::Literal(text)),
        PathTemplatePart::Parameter(name) => number(name).map(PathPart::Input),
    });
    steps.collect()
}

/// The description for the model: the summary and then the description, where that does not begin with it.
fn description(
    summary: Option<&str>,
    description: Option<&str>,
    is_deprecated: bool,
    place: &str,
) -> String {
    let text = match (summary, description) {
        (None, None) => place.to_owned(),
        (Some(text), None) | (None, Some(text)) => text.to_owned(),
        (Some(summary), Some(text)) if text.starts_with(summary) => text.to_owned(),
        (Some(summary), Some(text)) => format!("{summary}\n\n{text}"),
    };
    let before = if is_deprecated { "Deprecated. " } else { "" };
    cut::bounded(&format!("{before}{text}"), MAX_DESCRIPTION)
}

/// What HTTP says of methods (RFC 9110, 9.2), as far as a tool can say it.
fn annotations(method: &str) -> Annotations {
    let is_read_only = matches!(method, "GET" | "HEAD" | "OPTIONS" | "QUERY");
    let is_idempotent = matches!(method, "PUT" | "DELETE");
    Annotations {
        read_only: Some(is_read_only),
        destructive: (method == "DELETE").then_some(true),
        idempotent: is_idempotent.then_some(true),
        open_world: None,
    }
}
