//! What a request wishes of toolway itself: whether tools apply, which must be among them, what to be told.
//! Decides only.

use std::collections::HashSet;

use toolway_core::catalog::{Catalog, Selected, Selection};
use toolway_protocol::{
    openai::request::{
        ChatRequest, ClientToolKind, McpChoice, McpTool, RequestError, RequireApproval, ToolChoice,
    },
    tool::ServerId,
};

use super::{chat::ChatInput, failure::Failure, progress_mode::ProgressMode};

/// Most tools that one warning names.
const MAX_NAMED: usize = 10;

/// Gateway tools may apply. Not when the client forbids tools, nor when it speaks of the deprecated
/// `functions`, whose calls have another form.
pub(super) fn applies(request: &ChatRequest<'_>) -> bool {
    let is_legacy = request
        .client_tools()
        .iter()
        .any(|tool| tool.kind == ClientToolKind::LegacyFunction);
    !is_legacy && !matches!(request.tool_choice(), ToolChoice::None)
}

/// The names that the client's choice forces; a limit leaves others out first.
pub(super) fn forced(choice: &ToolChoice<'_>, catalog: &Catalog) -> Vec<String> {
    let meant = |choice: &McpChoice| -> Vec<String> {
        let everything = catalog.select(&Selection::everything(), &[], usize::MAX);
        let chosen = everything.chosen(choice).into_iter();
        chosen.map(|tool| tool.name.to_string()).collect()
    };
    match choice {
        ToolChoice::Function(name) => vec![name.clone()],
        ToolChoice::AllowedTools { names, mcp, .. } => {
            let meant = mcp.iter().flat_map(meant);
            names.iter().cloned().chain(meant).collect()
        }
        ToolChoice::Mcp(choice) => meant(choice),
        _ => Vec::new(),
    }
}

/// The offered names of the tools that are named somewhere in the conversation, in earlier calls or in what a message
/// says: as they are offered, or as their server calls them, unless that is a plain word of which texts are full.
pub(super) fn mentioned(messages: &str, catalog: &Catalog) -> Vec<String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let is_plain = |word: &str| !word.bytes().skip(1).any(|b| !b.is_ascii_lowercase());
    // The end of an escape, as in `\nname`, is no part of a word.
    let words = messages.split(|c| !is_of_name(c));
    let words = words.flat_map(|word| [Some(word), word.strip_prefix(['n', 'r', 't'])]);
    let words: HashSet<&str> = words.flatten().filter(|word| !is_plain(word)).collect();
    let tools = catalog.offered().iter();
    tools
        .filter(|it| words.contains(it.name.as_str()) || words.contains(it.tool.name.as_str()))
        .map(|it| it.name.to_string())
        .collect()
}

/// The warning for a request that is not offered every tool it may want.
pub(super) fn left_out(selected: &Selected, upstream: &str, max_tools: usize) -> Option<String> {
    let surplus = selected.surplus();
    let left = selected.left_out.iter().take(MAX_NAMED);
    let names: Vec<&str> = left.map(|it| it.name.as_str()).collect();
    let names = names.join(", ");
    (surplus > 0).then(|| {
        format!("tools left out: {surplus}, because upstream {upstream} takes {max_tools}: {names}")
    })
}

/// What does not go together with the tools that were selected.
pub(super) fn check(request: &ChatRequest<'_>, selected: &Selected) -> Result<(), Failure> {
    if let ToolChoice::Mcp(choice) = request.tool_choice()
        && selected.chosen(choice).is_empty()
    {
        // Passed on, it would force the model to call any other tool.
        let message = "Invalid value for 'tool_choice': this request offers no tool that it means.";
        return Err(fault(message, "tool_choice", "invalid_value"));
    }
    let is_own = |name: &str| request.client_names().contains(&name);
    if let ToolChoice::Function(name) = request.tool_choice()
        && !selected.tools.is_empty()
        && !is_own(name)
        && selected.find(name).is_none()
    {
        // Some upstreams refuse it, and others force a call of any tool.
        let message = format!("Tool choice '{name}' is not among the tools of this request.");
        return Err(fault(&message, "tool_choice", "invalid_value"));
    }
    Ok(())
}

/// Refuses entries that want the client to be asked before a call, for a face that cannot ask.
pub(super) fn check_approval(entries: &[McpTool]) -> Result<(), Failure> {
    let asks =
        |entry: &&McpTool| !matches!(entry.require_approval, None | Some(RequireApproval::Never));
    let Some(entry) = entries.iter().find(asks) else {
        return Ok(());
    };
    let param = format!("{}.require_approval", entry.param);
    let message = format!(
        "Invalid value for '{param}': only \"never\" is supported here, for chat completions have no way to ask. \
         The Responses API has one."
    );
    Err(fault(&message, &param, "invalid_value"))
}

/// Refuses a request for several answers that itself asks for tools of this catalog; another one goes without them.
pub(super) fn check_several(
    request: &ChatRequest<'_>,
    selection: &Selection,
    catalog: &Catalog,
) -> Result<(), Failure> {
    let is_gateways = |name: &String| catalog.find(name).is_some();
    let is_chosen = match request.tool_choice() {
        ToolChoice::Function(name) => is_gateways(name),
        ToolChoice::AllowedTools { names, mcp, .. } => {
            !mcp.is_empty() || names.iter().any(is_gateways)
        }
        ToolChoice::Mcp(_) => true,
        _ => false,
    };
    let has_options = request
        .member("toolway")
        .is_some_and(|raw| raw.get() != "null");
    if is_chosen || has_options || selection.asks_for_tools() {
        let message = "`n` above 1 does not go together with tools that the gateway runs; ask for one answer, \
                       or send `X-Toolway-Tools: none`";
        return Err(fault(message, "n", "unsupported_value"));
    }
    Ok(())
}

/// The warning for a request for several answers, which goes without gateway tools.
pub(super) fn not_offered(n: u64) -> String {
    format!("n is {n}: gateway tools were not offered")
}

/// The warning for a request that may miss tools of these servers.
pub(super) fn not_ready(servers: &[ServerId]) -> String {
    let names: Vec<&str> = servers.iter().map(ServerId::as_str).collect();
    format!("servers not ready: {}", names.join(", "))
}

/// The warning for a request that asks for tools and selects none.
pub(super) fn nothing_selected(
    request: &ChatRequest<'_>,
    input: &ChatInput,
    selection: &Selection,
    selected: &Selected,
) -> Option<String> {
    if !selected.tools.is_empty() || selection.is_nothing() || selection.is_everything() {
        return None;
    }
    let asked = [
        (input.tools.is_some(), "X-Toolway-Tools"),
        (input.servers.is_some(), "X-Toolway-Servers"),
        (
            !request.mcp_tools().is_empty(),
            "the mcp entries of the body",
        ),
    ];
    let asked = asked.iter().filter(|(is_there, _)| *is_there);
    let asked: Vec<&str> = asked.map(|(_, name)| *name).collect();
    let asked = asked.join(" and ");
    Some(format!(
        "no tool matches {asked}; GET /tools lists those that are offered"
    ))
}

/// Reads the body's own field `toolway`.
pub(super) fn options(request: &ChatRequest<'_>) -> Result<Option<ProgressMode>, Failure> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Options {
        progress: Option<String>,
    }
    let Some(raw) = request.member("toolway").filter(|raw| raw.get() != "null") else {
        return Ok(None);
    };
    let wrong = || {
        let message = r#"`toolway` must be an object such as {"progress": "on"}, with "on", "open-webui" or "off""#;
        fault(message, "toolway", "invalid_value")
    };
    let options: Options = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
    options
        .progress
        .map(|text| ProgressMode::parse(&text).ok_or_else(wrong))
        .transpose()
}

/// A body that cannot be read, or asks for tools in a way that makes no sense.
pub(super) fn refused(error: RequestError) -> Failure {
    Failure::Request {
        message: error.message,
        param: error.param,
        code: error.code.unwrap_or("invalid_request"),
    }
}

fn fault(message: &str, param: &str, code: &'static str) -> Failure {
    Failure::Request {
        message: message.to_owned(),
        param: Some(param.to_owned()),
        code,
    }
}
