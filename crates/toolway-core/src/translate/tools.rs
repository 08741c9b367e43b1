//! A tool in the form OpenAI's `tools` has it.

use serde::Serialize;

use super::{cut::at_most, schema};
use toolway_protocol::tool::{FunctionName, JsonObject, Tool};

/// Most bytes of a description that models are given: it goes into every chat.
pub const MAX_DESCRIPTION: usize = 16 << 10;

/// A tool as it is offered.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// `{"type":"function","function":{"name":…,"description":…,"parameters":…}}`, members in this order.
    pub json: Box<str>,
    /// The description is longer than [`MAX_DESCRIPTION`] and ends there.
    pub is_cut: bool,
    /// Keywords of the tool's schema that the offered form does not say (see [`schema::Parameters`]).
    pub lost: Vec<&'static str>,
}

/// Writes a tool for the model under this name.
///
/// The description is the tool's own, else its title; at most [`MAX_DESCRIPTION`] bytes of it. `strict` is never set: it asks for more than MCP
/// schemas hold to.
pub fn to_openai(name: &FunctionName, tool: &Tool) -> Function {
    let parameters = schema::to_openai(&tool.input_schema);
    let texts = [&tool.description, &tool.title];
    let description = texts
        .into_iter()
        .flatten()
        .map(|text| text.trim())
        .find(|text| !text.is_empty());
    let shown = description.map(|text| at_most(text, MAX_DESCRIPTION));
    let is_cut = shown.map(str::len) < description.map(str::len);
    let entry = ToolEntry {
        kind: "function",
        function: FunctionObject {
            name: name.as_str(),
            description: shown,
            parameters: &parameters.schema,
        },
    };
    let json = serde_json::to_string(&entry).expect("texts and JSON values can be written as JSON");
    Function {
        json: json.into(),
        is_cut,
        lost: parameters.lost,
    }
}

#[derive(Serialize)]
struct ToolEntry<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionObject<'a>,
}

#[derive(Serialize)]
struct FunctionObject<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    parameters: &'a JsonObject,
}
