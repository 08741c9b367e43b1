//! What becomes of the client's `tool_choice` in the questions of a loop.
//!
//! A choice that forces a call would keep the model calling for ever, so it ends when it is met:
//!
//! | the client forces | holds | the last question offers |
//! |---|---|---|
//! | a call (`required`), and has functions of its own | until one of them is called | the client's functions |
//! | a function of its own, alone or in `allowed_tools` | until one of its own is called | the client's functions |
//! | a call, and has no function of its own | for the first question | no tools |
//! | tools of the gateway only | for the first question | no tools |
//!
//! A call of the client's own function ends the request, so "until" means: in every question of the request.
//! After that the choice is `auto`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::catalog::{Offered, Selected};
use toolway_protocol::openai::request::{
    AllowedToolsMode, ChatRequest, ClientToolKind, McpChoice, ToolChoice,
};

/// Which tools go with a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The client's own and the gateway's.
    All,
    /// The client's own: the last question to a model that has to call one of them.
    Own,
    /// None: the last question, which wants an answer.
    None,
}

/// The client forces a call that one of its own functions can meet, so that its choice holds until one of
/// them is called.
pub fn forces_own_call(request: &ChatRequest<'_>) -> bool {
    match request.tool_choice() {
        ToolChoice::Required => request
            .client_tools()
            .iter()
            .any(|tool| matches!(tool.kind, ClientToolKind::Function | ClientToolKind::Custom)),
        ToolChoice::Function(name) | ToolChoice::Custom(name) => is_own(request, name),
        ToolChoice::AllowedTools {
            mode: AllowedToolsMode::Required,
            names,
            ..
        } => names.iter().any(|name| is_own(request, name)),
        _ => false,
    }
}

fn is_own(request: &ChatRequest<'_>, name: &str) -> bool {
    let mut own = request.client_tools().iter();
    own.any(|tool| tool.name.as_deref() == Some(name))
}

/// What `tool_choice` becomes in a question that offers tools; `None` where it stays as the client wrote it.
pub(super) fn tool_choice(
    request: &ChatRequest<'_>,
    offer: Offer,
    is_forced: bool,
    selected: &Selected,
) -> Option<String> {
    let choice = match request.tool_choice() {
        ToolChoice::Absent | ToolChoice::Auto | ToolChoice::None | ToolChoice::Other(_) => {
            return None;
        }
        ToolChoice::Required | ToolChoice::Function(_) | ToolChoice::Custom(_) if is_forced => {
            return None;
        }
        ToolChoice::Mcp(choice) if is_forced => match selected.chosen(choice).as_slice() {
            [one] => named(one),
            _ => json!("required"),
        },
        ToolChoice::AllowedTools { mcp, .. }
            if is_forced && mcp.is_empty() && offer == Offer::All =>
        {
            return None;
        }
        ToolChoice::AllowedTools { .. } => allowed_tools(request, offer, is_forced, selected)?,
        ToolChoice::Required
        | ToolChoice::Function(_)
        | ToolChoice::Custom(_)
        | ToolChoice::Mcp(_) => json!("auto"),
    };
    Some(choice.to_string())
}

/// `allowed_tools` with the tools that the question offers, the gateway's under their offered names.
fn allowed_tools(
    request: &ChatRequest<'_>,
    offer: Offer,
    is_forced: bool,
    selected: &Selected,
) -> Option<Value> {
    let raw = request.member("tool_choice")?;
    let mut choice: Value = serde_json::from_str(raw.get()).ok()?;
    let allowed = choice.get_mut("allowed_tools")?.as_object_mut()?;
    if !is_forced {
        allowed.insert("mode".into(), "auto".into());
    }
    let tools = allowed.get_mut("tools")?.as_array_mut()?;
    if offer == Offer::Own {
        tools.retain(|tool| name_of(tool).is_some_and(|name| is_own(request, name)));
    }
    *tools = std::mem::take(tools)
        .into_iter()
        .flat_map(|tool| match mcp_choice(&tool) {
            Some(choice) => selected.chosen(&choice).into_iter().map(named).collect(),
            None => vec![tool],
        })
        .collect();
    Some(choice)
}

/// The name of a function or custom tool in `allowed_tools`.
fn name_of(tool: &Value) -> Option<&str> {
    let nested = ["function", "custom"]
        .iter()
        .find_map(|kind| tool.get(*kind));
    let is_server = tool["type"] == "mcp";
    nested
        .or((!is_server).then_some(tool))?
        .get("name")?
        .as_str()
}

/// An element of `allowed_tools` that means tools of a server.
fn mcp_choice(tool: &Value) -> Option<McpChoice> {
    let text = |name: &str| tool.get(name)?.as_str().map(str::to_owned);
    let server_label = text("server_label").filter(|_| tool["type"] == "mcp")?;
    let name = text("name");
    Some(McpChoice { server_label, name })
}

/// A tool as `tool_choice` names a function.
fn named(offered: &Arc<Offered>) -> Value {
    json!({"type": "function", "function": {"name": offered.name.as_str()}})
}

#[cfg(test)]
mod tests;
