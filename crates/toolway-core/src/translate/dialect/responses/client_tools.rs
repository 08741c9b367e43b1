//! The tools of a client, which models know otherwise than the client.

use std::collections::HashMap;

use serde_json::json;

use crate::translate::{
    dialect::{ToolDefinition, no_parameters, take, take_text},
    stream::CallKind,
};
use toolway_protocol::tool::JsonObject;

/// The provider's search for tools.
pub(super) const SEARCH: &str = "tool_search";

/// What the tools of a request are called by the client, where models know them otherwise: custom tools as functions with
/// one text, tools of a namespace by both names.
#[derive(Clone, Debug, Default)]
pub struct ToolNames(HashMap<String, NamedTool>);

/// The client's side of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedTool {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) is_custom: bool,
}

impl ToolNames {
    pub(super) fn insert(&mut self, name: String, named: NamedTool) {
        self.0.insert(name, named);
    }

    /// The client's side of the tool that models know by this name; none if it is the same.
    pub(super) fn find(&self, name: &str) -> Option<&NamedTool> {
        self.0.get(name)
    }
}

/// The name of a tool for models.
pub(super) fn offered(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}__{name}"),
        None => name.to_owned(),
    }
}

/// A tool as a function. A custom tool takes one text; its grammar is told in words, since few models can be held to it.
pub(super) fn read_tool(mut tool: JsonObject, name: String, is_custom: bool) -> ToolDefinition {
    let mut description = take_text(&mut tool, "description");
    let parameters = match is_custom {
        false => take(&mut tool, "parameters").unwrap_or_else(no_parameters),
        true => {
            if let Some(definition) = tool.get("format").and_then(|it| it["definition"].as_str()) {
                let described = description.unwrap_or_default();
                description = Some(format!(
                    "{described}\n\nThe input must match this grammar:\n{definition}"
                ));
            }
            json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})
        }
    };
    ToolDefinition {
        name,
        description,
        parameters: Some(parameters),
        strict: take(&mut tool, "strict").and_then(|strict| strict.as_bool()),
        kind: CallKind::Function,
    }
}
