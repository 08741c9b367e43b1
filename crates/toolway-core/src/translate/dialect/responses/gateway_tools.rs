//! The gateway's tools in the terms of Responses: the `mcp` entries of a request, and the items that show what the gateway
//! does with them. Only requests with such an entry get these items.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::translate::dialect::{GatewayError, object};
use toolway_protocol::tool::JsonObject;

/// A tool of the gateway that the model is offered.
#[derive(Clone, Debug)]
pub struct ListedTool<'a> {
    /// The name that the model knows it by.
    pub offered: &'a str,
    /// Its server.
    pub server: &'a str,
    /// The label of the request's `mcp` entry that names it.
    pub label: &'a str,
    /// Its name on that server.
    pub name: &'a str,
    /// What it does.
    pub description: Option<&'a str>,
    /// The JSON Schema of its arguments.
    pub input_schema: &'a JsonObject,
    /// Its annotations.
    pub annotations: Value,
}

/// The gateway's tools that a client is shown the calls of.
#[derive(Clone, Debug, Default)]
pub struct GatewayTools {
    /// By the name that models know.
    names: HashMap<String, Labelled>,
    /// The tools of each label, as `mcp_list_tools` has them.
    lists: Vec<(String, Vec<Value>)>,
}

/// What the client calls a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Labelled {
    pub(super) label: String,
    pub(super) name: String,
}

impl GatewayTools {
    /// The tools under their labels.
    ///
    /// A tool has its own name under the label of its server, and the name that the model knows under a label that stands
    /// for several.
    pub fn new<'a>(tools: impl IntoIterator<Item = ListedTool<'a>>) -> GatewayTools {
        let mut shown = GatewayTools::default();
        for tool in tools {
            let label = tool.label;
            let name = match label == tool.server {
                true => tool.name,
                false => tool.offered,
            };
            let listed = object([
                ("name", Some(name.into())),
                ("description", tool.description.map(Value::from)),
                ("input_schema", Some(tool.input_schema.clone().into())),
                ("annotations", Some(tool.annotations)),
            ]);
            match shown.lists.iter_mut().find(|(other, _)| other == label) {
                Some((_, tools)) => tools.push(listed.into()),
                None => shown.lists.push((label.to_owned(), vec![listed.into()])),
            }
            let labelled = Labelled {
                label: label.to_owned(),
                name: name.to_owned(),
            };
            shown.names.insert(tool.offered.to_owned(), labelled);
        }
        shown
    }

    /// What the client calls the tool that models know by this name.
    pub(super) fn find(&self, offered: &str) -> Option<&Labelled> {
        self.names.get(offered)
    }

    /// The lists that the conversation does not have yet.
    pub(super) fn take_lists(&mut self, listed: &[String]) -> Vec<(String, Vec<Value>)> {
        let mut lists = std::mem::take(&mut self.lists);
        lists.retain(|(label, _)| !listed.contains(label));
        lists
    }
}

/// What ids of requests for approval begin with. The id of the response follows, because some models use ids of calls
/// again, and the id of the call, so that a client that keeps nothing but the item brings it back.
const APPROVAL: &str = "mcpr_";

/// The id of the request to approve a call of this response.
pub(super) fn approval_id(response: &str, call: &str) -> String {
    format!("{APPROVAL}{response}_{call}")
}

/// The id of the call in an [`approval_id`].
pub(super) fn call_of(approval: &str) -> &str {
    let ids = approval.strip_prefix(APPROVAL).unwrap_or(approval);
    ids.split_once('_').map_or(ids, |(_, call)| call)
}

/// The `error` of an `mcp_call` item.
pub(super) fn write_error(error: &GatewayError) -> Value {
    match error {
        GatewayError::Tool(text) => {
            json!({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]})
        }
        GatewayError::Protocol { code, message } => {
            json!({"type": "mcp_protocol_error", "code": code, "message": message})
        }
    }
}

/// What a finished `mcp_call` item of an earlier response returned, for the model; true if it failed.
pub(super) fn read_outcome(item: &JsonObject) -> (String, bool) {
    let error = item.get("error").filter(|error| !error.is_null());
    let Some(error) = error else {
        let output = item.get("output").and_then(Value::as_str);
        return (output.unwrap_or_default().to_owned(), false);
    };
    let texts = error["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = texts.filter_map(|part| part["text"].as_str()).collect();
    let text = match (texts.is_empty(), error["message"].as_str(), error.as_str()) {
        (false, ..) => texts.join("\n"),
        (true, Some(message), _) | (true, None, Some(message)) => message.to_owned(),
        (true, None, None) => error.to_string(),
    };
    (text, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(labels: [&str; 2]) -> GatewayTools {
        let schema = JsonObject::new();
        let listed = ["calc__add", "files__read"].into_iter().zip(labels);
        GatewayTools::new(listed.map(|(offered, label)| {
            let (server, name) = offered.split_once("__").unwrap();
            ListedTool {
                offered,
                server,
                label,
                name,
                description: None,
                input_schema: &schema,
                annotations: json!({}),
            }
        }))
    }

    fn name(tools: &GatewayTools, offered: &str) -> Option<(String, String)> {
        let found = tools.find(offered)?;
        Some((found.label.clone(), found.name.clone()))
    }

    fn pair(label: &str, name: &str) -> Option<(String, String)> {
        Some((label.to_owned(), name.to_owned()))
    }

    #[test]
    fn a_tool_has_its_own_name_under_the_label_of_its_server_only() {
        let tools = tools(["toolway", "files"]);
        assert_eq!(name(&tools, "files__read"), pair("files", "read"));
        assert_eq!(name(&tools, "calc__add"), pair("toolway", "calc__add"));
    }

    #[test]
    fn what_the_conversation_has_listed_is_not_listed_again() {
        let labels = |lists: Vec<(String, Vec<Value>)>| -> Vec<String> {
            lists.into_iter().map(|(label, _)| label).collect()
        };
        let mut shown = tools(["calc", "files"]);
        assert_eq!(labels(shown.take_lists(&["calc".to_owned()])), ["files"]);
    }

    #[test]
    fn an_outcome_is_read_whatever_its_form() {
        let read = |item: Value| read_outcome(item.as_object().unwrap());
        for (item, expected) in [
            (json!({"output": "3", "error": null}), ("3", false)),
            (json!({"error": "gone"}), ("gone", true)),
            (
                json!({"error": write_error(&GatewayError::Tool("no".to_owned()))}),
                ("no", true),
            ),
            (
                json!({"error": {"type": "http_error", "code": 500, "message": "down"}}),
                ("down", true),
            ),
        ] {
            assert_eq!(read(item), (expected.0.to_owned(), expected.1));
        }
    }
}
