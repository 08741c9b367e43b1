//! The lists: tools, prompts, resources, templates, page by page, and what an endpoint says about itself.

use serde_json::{Map, Value, json};

use super::{Description, RequestContext, View, view::ViewEntry};
use toolway_core::{
    catalog::{self, Catalog, FeatureIndex},
    translate::era,
};
use toolway_protocol::{
    mcp::{rpc::RpcError, tools::write_tool, version::Version},
    tool::JsonObject,
};

/// Longest instructions that are joined from several servers, in bytes.
const LONGEST_INSTRUCTIONS: usize = 16 << 10;

/// `tools/list`.
pub(super) fn tools(
    context: &RequestContext,
    catalog: &Catalog,
    params: &JsonObject,
) -> Result<Value, RpcError> {
    let tools = context.view.tools(catalog);
    let (page, next) = page(&tools, params, |(name, _)| name)?;
    let fit = |(name, offered): &(&str, &std::sync::Arc<catalog::Offered>)| {
        Value::Object(era::fit_tool(
            write_tool(&offered.tool, name),
            context.version,
        ))
    };
    Ok(list(
        "tools",
        page.iter().map(fit).collect(),
        next,
        context.version,
    ))
}

/// `prompts/list`.
pub(super) fn prompts(
    context: &RequestContext,
    index: &FeatureIndex,
    params: &JsonObject,
) -> Result<Value, RpcError> {
    entries(context, "prompts", &context.view.prompts(index), params)
}

/// `resources/list`.
pub(super) fn resources(
    context: &RequestContext,
    index: &FeatureIndex,
    params: &JsonObject,
) -> Result<Value, RpcError> {
    entries(context, "resources", &context.view.resources(index), params)
}

/// `resources/templates/list`.
pub(super) fn templates(
    context: &RequestContext,
    index: &FeatureIndex,
    params: &JsonObject,
) -> Result<Value, RpcError> {
    entries(
        context,
        "resourceTemplates",
        &context.view.templates(index),
        params,
    )
}

fn entries(
    context: &RequestContext,
    key: &str,
    listed: &[ViewEntry<'_>],
    params: &JsonObject,
) -> Result<Value, RpcError> {
    let (page, next) = page(listed, params, |it| it.key)?;
    let fit = |it: &ViewEntry<'_>| Value::Object(era::fit_entry(it.entry.clone(), context.version));
    Ok(list(
        key,
        page.iter().map(fit).collect(),
        next,
        context.version,
    ))
}

fn page<'i, T>(
    items: &'i [T],
    params: &JsonObject,
    key: impl Fn(&T) -> &str,
) -> Result<(&'i [T], Option<String>), RpcError> {
    let cursor = match params.get("cursor") {
        None | Some(Value::Null) => None,
        Some(Value::String(cursor)) => Some(cursor.as_str()),
        Some(_) => return Err(RpcError::invalid_params("`cursor` must be a string")),
    };
    catalog::page(items, cursor, key).map_err(|error| RpcError::invalid_params(error.to_string()))
}

fn list(key: &str, page: Vec<Value>, next: Option<String>, version: Version) -> Value {
    let mut result = Map::new();
    result.insert(key.to_owned(), Value::Array(page));
    if let Some(next) = next {
        result.insert("nextCursor".to_owned(), Value::String(next));
    }
    era::cacheable(Value::Object(result), version)
}

/// What an endpoint says about itself. A server that is still being started may have everything.
pub(super) fn describe(view: &View, index: &FeatureIndex) -> Description {
    if let Some(session) = view.session() {
        let about = session.about();
        return Description {
            capabilities: json!({"tools": {}}),
            server_info: json!({
                "name": about.name.as_deref().unwrap_or("toolway"),
                "version": env!("CARGO_PKG_VERSION"),
            }),
            instructions: about.instructions.clone(),
        };
    }
    let any = |capability: &str| view.servers(index).any(|it| it.may_have(capability));
    let mut capabilities = json!({"tools": {"listChanged": true}});
    if any("prompts") {
        capabilities["prompts"] = json!({"listChanged": true});
    }
    if any("resources") {
        capabilities["resources"] = json!({"listChanged": true, "subscribe": true});
    }
    if any("completions") {
        capabilities["completions"] = json!({});
    }
    if any("logging") {
        capabilities["logging"] = json!({});
    }
    Description {
        capabilities,
        server_info: json!({
            "name": "toolway",
            "title": view.only_server().map_or("toolway".to_owned(), |it| format!("toolway: {it}")),
            "version": env!("CARGO_PKG_VERSION"),
        }),
        instructions: instructions(view, index),
    }
}

fn instructions(view: &View, index: &FeatureIndex) -> Option<String> {
    let said = view.servers(index).filter_map(|it| {
        let text = it.instructions.as_deref()?.trim();
        (!text.is_empty()).then_some((&it.server, text))
    });
    let mut together = String::new();
    for (server, text) in said {
        if view.only_server().is_some() {
            return Some(text.to_owned());
        }
        let part = format!("# {server}\n\n{text}\n\n");
        if together.len() + part.len() <= LONGEST_INSTRUCTIONS {
            together.push_str(&part);
        }
    }
    let together = together.trim_end();
    (!together.is_empty()).then(|| together.to_owned())
}
