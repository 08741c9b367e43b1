//! `prompts/get`, `resources/read` and `completion/complete`: to the server that has it, and back.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

use super::{Gateway, RequestContext, ask::Inquiry};
use crate::{gateway::backends::Method, upstream::mcp::Sends};
use toolway_core::translate::{era, uris};
use toolway_protocol::{
    mcp::{
        results::asks_for_input,
        rpc::{RpcError, code},
    },
    tool::{CallError, JsonObject, Progress, ServerId},
};

/// `prompts/get`.
pub(super) async fn prompt(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    mut params: JsonObject,
    progress: Option<mpsc::Sender<Progress>>,
) -> Result<Value, RpcError> {
    let name = text(&params, "name")?;
    let Some((server, own)) = context.view.prompt(&gateway.index(), &name) else {
        return Err(RpcError::invalid_params(format!("Unknown prompt: {name}")));
    };
    params.insert("name".to_owned(), Value::String(own));
    let method = Method::GetPrompt(server.clone());
    let raw = ask(gateway, context, method, params, progress).await?;
    Ok(back(context, &server, raw, era::fit_prompt))
}

/// `resources/read`.
pub(super) async fn resource(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    mut params: JsonObject,
    progress: Option<mpsc::Sender<Progress>>,
) -> Result<Value, RpcError> {
    let uri = text(&params, "uri")?;
    let Some((server, own)) = context.view.resource(&gateway.index(), &uri) else {
        return Err(not_found(context, &uri));
    };
    params.insert("uri".to_owned(), Value::String(own));
    let method = Method::ReadResource(server.clone());
    let raw = ask(gateway, context, method, params, progress).await?;
    Ok(back(context, &server, raw, era::cacheable))
}

/// `completion/complete`, of a prompt's argument or a template's variable.
pub(super) async fn completion(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    mut params: JsonObject,
    progress: Option<mpsc::Sender<Progress>>,
) -> Result<Value, RpcError> {
    let index = gateway.index();
    let reference = params
        .get_mut("ref")
        .and_then(Value::as_object_mut)
        .ok_or_else(|| RpcError::invalid_params("`ref` must be an object"))?;
    let kind = text(reference, "type")?;
    let (key, located) = match kind.as_str() {
        "ref/prompt" => {
            let name = text(reference, "name")?;
            ("name", context.view.prompt(&index, &name).ok_or(name))
        }
        "ref/resource" => {
            let uri = text(reference, "uri")?;
            ("uri", context.view.resource(&index, &uri).ok_or(uri))
        }
        other => {
            let message = format!("`ref.type` must be ref/prompt or ref/resource, not {other}");
            return Err(RpcError::invalid_params(message));
        }
    };
    let (server, own) = located
        .map_err(|unknown| RpcError::invalid_params(format!("Unknown reference: {unknown}")))?;
    reference.insert(key.to_owned(), Value::String(own));
    let can_complete = index
        .of(&server)
        .is_some_and(|it| it.may_have("completions"));
    if !can_complete {
        // Other servers behind the endpoint have completions, so the client asks; this one has none, so the list is
        // empty.
        let nothing = json!({"completion": {"values": [], "total": 0, "hasMore": false}});
        return Ok(era::complete(nothing, context.version));
    }
    let raw = ask(gateway, context, Method::Complete(server), params, progress).await?;
    Ok(era::complete(raw, context.version))
}

/// A resource that is not there; the code changed with 2026-07-28.
pub(super) fn not_found(context: &RequestContext, uri: &str) -> RpcError {
    let error = RpcError::new(
        code::RESOURCE_NOT_FOUND,
        format!("Resource not found: {uri}"),
    );
    era::fit_error(error.with_data(json!({"uri": uri})), context.version)
}

async fn ask(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    method: Method,
    mut params: JsonObject,
    progress: Option<mpsc::Sender<Progress>>,
) -> Result<Value, RpcError> {
    context.ask_for_logs(&mut params);
    let (name, server) = (method.name(), method.server().clone());
    let inquiry = Inquiry {
        method,
        params: Arc::new(params),
        progress,
        deadline: Instant::now() + gateway.config.request_timeout,
        sends: Sends::default(),
    };
    inquiry.make(gateway, context).await.map_err(|error| {
        tracing::warn!(server.id = %server, method = name, error = &*error.for_log(), "A request to a server failed");
        era::fit_error(to_rpc(error), context.version)
    })
}

/// The error of a request whose result has no `isError`.
pub(super) fn to_rpc(error: CallError) -> RpcError {
    match error {
        CallError::Protocol {
            code,
            message,
            data,
        } => RpcError {
            code,
            message,
            data,
        },
        other => RpcError::new(code::INTERNAL_ERROR, other.to_string()),
    }
}

fn back(
    context: &RequestContext,
    server: &ServerId,
    mut raw: Value,
    fit: fn(Value, toolway_protocol::mcp::version::Version) -> Value,
) -> Value {
    if asks_for_input(&raw) {
        return raw;
    }
    if context.view.is_prefixed() {
        uris::wrap_result(server, &mut raw);
    }
    fit(raw, context.version)
}

fn text(params: &JsonObject, key: &str) -> Result<String, RpcError> {
    match params.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        _ => Err(RpcError::invalid_params(format!(
            "`{key}` must be a string"
        ))),
    }
}
