//! The body that goes to the model: the client's own, with tools, messages and tool choice put in.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Value, json, value::RawValue};

use crate::{
    catalog::{Offered, Selected},
    openai::request::{Change, ChatRequest, ToolChoice, splice_messages},
};

use super::kept::read_more_tool;

/// One question to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The client's own `tool_choice` holds; later a forced choice becomes `auto`, or the loop would never end.
    pub first: bool,
    /// Messages added to the conversation, as JSON objects with commas between them.
    pub appended: String,
    /// Tools are offered; not in the last question, which wants an answer.
    pub with_tools: bool,
    /// The model may read on in a cut result.
    pub read_more: bool,
}

impl Ask {
    /// The first question of a request: the client's own.
    pub fn first() -> Ask {
        Ask {
            first: true,
            appended: String::new(),
            with_tools: true,
            read_more: false,
        }
    }
}

/// Writes the body of a question. `history` replaces the client's messages where parked calls were put back;
/// it holds messages with commas between them.
pub fn compose(
    request: &ChatRequest<'_>,
    ask: &Ask,
    selected: &Selected,
    history: Option<&str>,
) -> Vec<u8> {
    let messages = match history {
        Some(history) => Some(joined(history, &ask.appended)),
        None if ask.appended.is_empty() => None,
        None => Some(splice_messages(request.messages(), &ask.appended)),
    };
    let tools = ask
        .with_tools
        .then(|| request.tools_with(&offered(ask, selected)))
        .flatten();
    let choice = tool_choice(request, ask.first, selected);
    let mut changes = vec![("toolway", Change::Remove)];
    changes.extend(
        messages
            .as_deref()
            .map(|messages| ("messages", Change::Set(messages))),
    );
    match &tools {
        None => changes.extend(
            ["tools", "tool_choice", "parallel_tool_calls"].map(|name| (name, Change::Remove)),
        ),
        Some(tools) => {
            changes.push(("tools", Change::Set(tools)));
            changes.extend(
                choice
                    .as_deref()
                    .map(|choice| ("tool_choice", Change::Set(choice))),
            );
        }
    }
    request.compose(&changes)
}

/// The gateway's tools, with commas between them.
fn offered<'s>(ask: &Ask, selected: &'s Selected) -> Cow<'s, str> {
    match (ask.read_more, selected.json.is_empty()) {
        (false, _) => Cow::Borrowed(&*selected.json),
        (true, true) => Cow::Owned(read_more_tool()),
        (true, false) => Cow::Owned(format!("{},{}", selected.json, read_more_tool())),
    }
}

/// What `tool_choice` becomes, where it cannot stay as the client wrote it.
fn tool_choice(request: &ChatRequest<'_>, first: bool, selected: &Selected) -> Option<String> {
    let choice = match request.tool_choice() {
        ToolChoice::Absent | ToolChoice::Auto | ToolChoice::None | ToolChoice::Other(_) => {
            return None;
        }
        ToolChoice::AllowedTools { mcp, .. } if first && mcp.is_empty() => return None,
        ToolChoice::AllowedTools { .. } => {
            allowed_tools(request.member("tool_choice")?, first, selected)?
        }
        ToolChoice::Mcp(choice) if first => {
            let named = choice
                .name
                .as_deref()
                .and_then(|name| on_server(&choice.server_label, name, selected));
            named.unwrap_or_else(|| json!("required"))
        }
        ToolChoice::Required | ToolChoice::Function(_) | ToolChoice::Custom(_) if first => {
            return None;
        }
        ToolChoice::Required
        | ToolChoice::Function(_)
        | ToolChoice::Custom(_)
        | ToolChoice::Mcp(_) => {
            json!("auto")
        }
    };
    Some(choice.to_string())
}

/// `allowed_tools` with the gateway's tools under their offered names, and not forced after the first round.
fn allowed_tools(raw: &RawValue, first: bool, selected: &Selected) -> Option<Value> {
    let mut choice: Value = serde_json::from_str(raw.get()).ok()?;
    let allowed = choice.get_mut("allowed_tools")?.as_object_mut()?;
    if !first {
        allowed.insert("mode".into(), "auto".into());
    }
    let tools = allowed.get_mut("tools")?.as_array_mut()?;
    *tools = tools
        .drain(..)
        .flat_map(|tool| match tool["type"] == "mcp" {
            true => allowed_of(&tool, selected),
            false => vec![tool],
        })
        .collect();
    Some(choice)
}

/// What an `mcp` entry of `allowed_tools` allows: the tool it names, or all of its server. No upstream knows
/// such entries, so that one that means nothing is left out.
fn allowed_of(entry: &Value, selected: &Selected) -> Vec<Value> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str);
    let server = text("server_label").unwrap_or_default();
    if let Some(name) = text("name") {
        return on_server(server, name, selected).into_iter().collect();
    }
    let tools = selected.tools.iter();
    tools
        .filter(|offered| offered.server.as_str() == server)
        .map(|offered| function(offered))
        .collect()
}

/// A server's tool as `tool_choice` names a function.
fn on_server(server: &str, tool: &str, selected: &Selected) -> Option<Value> {
    let is_it =
        |offered: &&Arc<Offered>| offered.server.as_str() == server && offered.tool.name == tool;
    selected.tools.iter().find(is_it).map(|it| function(it))
}

fn function(offered: &Offered) -> Value {
    json!({"type": "function", "function": {"name": offered.name.as_str()}})
}

fn joined(history: &str, appended: &str) -> String {
    match (history.is_empty(), appended.is_empty()) {
        (false, false) => format!("[{history},{appended}]"),
        _ => format!("[{history}{appended}]"),
    }
}
