//! `tools/call`: found, checked, run, and the result in the client's version.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Gateway, RequestContext,
    approve::{self, Asking},
    ask::Inquiry,
    parked::ParkedCall,
};
use crate::{
    gateway::{
        backends::Method,
        calls::{self, AdmittedCall, Approval, CallLimits},
        confirmations::CallOrigin,
    },
    upstream::mcp::CallOptions,
};
use toolway_core::{
    catalog::Offered,
    policy::Admitted,
    route::Retries,
    translate::{era, results, uris},
};
use toolway_protocol::{
    mcp::{
        results::{asks_for_input, write_result},
        rpc::{RpcError, code},
        version::Version,
    },
    tool::{CallError, JsonObject, Progress, ToolResult},
};

/// Answers a `tools/call`.
pub(super) async fn call(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    mut params: JsonObject,
    progress: Option<mpsc::Sender<Progress>>,
) -> Result<Value, RpcError> {
    let Some(Value::String(name)) = params.shift_remove("name") else {
        return Err(RpcError::invalid_params("`name` must be a string"));
    };
    let mut catalog = gateway.catalog_of(context.view.key());
    if context.view.tool(&catalog, &name).is_none() {
        let started = Box::pin(gateway.started(&context.view));
        started.await;
        catalog = gateway.catalog_of(context.view.key());
    }
    let Some(offered) = context.view.tool(&catalog, &name) else {
        calls::unknown(&name, (&context.origin(gateway, "mcp"), &gateway.audit));
        return Err(RpcError::invalid_params(format!("Unknown tool: {name}")));
    };
    let arguments = match params.shift_remove("arguments") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(RpcError::invalid_params("`arguments` must be an object")),
    };
    let outcome = match context.view.session() {
        // The session knows how long a call may wait.
        Some(session) => {
            let call = Box::pin(session.call(&name, arguments, context.source.clone()));
            call.await.map(write_result)
        }
        None => run(gateway, context, offered, arguments, params, progress).await,
    };
    match outcome {
        Ok(raw) if asks_for_input(&raw) => Ok(raw),
        Ok(mut raw) => {
            if context.view.is_prefixed() {
                uris::wrap_result(&offered.server, &mut raw);
            }
            Ok(era::fit_call(raw, context.version))
        }
        Err(CallError::Protocol {
            code,
            message,
            data,
        }) => Err(era::fit_error(
            RpcError {
                code,
                message,
                data,
            },
            context.version,
        )),
        Err(misfit @ CallError::InvalidParams { .. }) => refused(&misfit, context.version),
        Err(error) => Ok(failed(&error, context.version)),
    }
}

/// Calls a tool of a server, or a function.
pub(super) async fn run(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    offered: &Arc<Offered>,
    arguments: JsonObject,
    mut params: JsonObject,
    progress: Option<mpsc::Sender<Progress>>,
) -> Result<Value, CallError> {
    let origin = context.origin(gateway, "mcp");
    let policy = gateway.policy_of(context.view.key());
    let tool = calls::admit(offered, &arguments, &policy, (&origin, &gateway.audit))?;
    let state = params.get("requestState").and_then(Value::as_str);
    // The answer to a parked call can be used only once, so the call cannot be repeated. It was approved before it was
    // sent, and only its client can go on with it.
    let is_function = gateway.backends.functions().has(&offered.server);
    let is_resumed =
        !context.version.has_handshake() && !is_function && state.is_some_and(ParkedCall::is_key);
    let is_asked = tool.asked().is_some() && !is_resumed;
    let mut approval = match is_resumed {
        true => Approval::Given,
        false => Approval::From(&gateway.confirmations),
    };
    if is_asked && approve::can_be_asked(context) {
        let call = (&tool, &arguments);
        let asking = Box::pin(approve::ask(gateway, context, &origin, call, &mut params));
        approval = match asking.await {
            Ok(Asking::Approved) => Approval::Given,
            Ok(Asking::Result(question)) => {
                calls::unapproved(call, (&origin, &gateway.audit), None);
                return Ok(question);
            }
            Err(error) => {
                calls::unapproved(call, (&origin, &gateway.audit), Some(&error));
                return Err(error);
            }
        };
    }
    let way = Way {
        origin: &origin,
        approval,
        is_repeated: !is_resumed,
        progress,
    };
    let shown = is_asked.then(|| arguments.clone());
    let outcome = make(gateway, context, &tool, way, (arguments, params)).await;
    if let (Some(shown), Ok(raw)) = (&shown, &outcome)
        && asks_for_input(raw)
        && !raw["requestState"].as_str().is_some_and(ParkedCall::is_key)
    {
        let list = &gateway.confirmations;
        list.let_continue(&origin, &tool, shown).await;
    }
    outcome
}

/// Makes a call that was approved where that was necessary.
pub(super) async fn make_approved(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    origin: &CallOrigin,
    tool: &Admitted,
    arguments: JsonObject,
) -> Result<Value, CallError> {
    let way = Way {
        origin,
        approval: Approval::Given,
        is_repeated: true,
        progress: None,
    };
    make(gateway, context, tool, way, (arguments, JsonObject::new())).await
}

/// How a call is made.
struct Way<'a> {
    origin: &'a CallOrigin,
    approval: Approval<'a>,
    /// It may be sent again after a failure that allows it.
    is_repeated: bool,
    progress: Option<mpsc::Sender<Progress>>,
}

/// Makes a call with these arguments and the other members of its params.
async fn make(
    gateway: &Arc<Gateway>,
    context: &RequestContext,
    tool: &Admitted,
    way: Way<'_>,
    (arguments, mut params): (JsonObject, JsonObject),
) -> Result<Value, CallError> {
    let limits = CallLimits {
        silence: gateway.config.tool_timeout,
        deadline: Instant::now() + gateway.config.request_timeout,
    };
    let made = |arguments| AdmittedCall {
        tool,
        arguments,
        origin: way.origin,
        audit: &gateway.audit,
        approval: way.approval,
        repeat_within: Some(limits).filter(|_| way.is_repeated),
        retries: Retries::default(),
        session: None,
        kept: Some(&gateway.kept_results),
    };
    if gateway.backends.functions().has(&tool.server) {
        // A function sends no questions and no notifications.
        let options = |sends| CallOptions {
            silence: limits.silence,
            deadline: limits.deadline,
            progress: None,
            caller: None,
            sends,
        };
        let functions = &gateway.backends;
        let call = made(&arguments);
        let ended = call.run(|sends| functions.call_function(tool, &arguments, options(sends)));
        return ended.await.outcome.map(write_result);
    }
    context.ask_for_logs(&mut params);
    params.insert("name".to_owned(), json!(tool.tool.name));
    params.insert("arguments".to_owned(), Value::Object(arguments));
    let params = Arc::new(params);
    let arguments = params.get("arguments").and_then(Value::as_object);
    let nothing = JsonObject::new();
    let arguments = arguments.unwrap_or(&nothing);
    let call = made(arguments);
    let attempt = |sends| {
        let inquiry = Inquiry {
            method: Method::CallTool(tool.clone()),
            params: Arc::clone(&params),
            progress: way.progress.clone(),
            deadline: limits.deadline,
            sends,
        };
        inquiry.make(gateway, context)
    };
    call.run(attempt).await.outcome
}

/// Arguments that do not fit. Nothing was sent.
///
/// Since 2025-11-25 the error is for the model ("Tools", "Error Handling"); before, it was for the client.
fn refused(misfit: &CallError, version: Version) -> Result<Value, RpcError> {
    if version >= Version::V2025_11_25 {
        return Ok(failed(misfit, version));
    }
    let mut error = RpcError::new(code::INVALID_PARAMS, format!("Invalid arguments: {misfit}"));
    if let CallError::InvalidParams {
        path, input_schema, ..
    } = misfit
    {
        error = error.with_data(json!({"path": path, "inputSchema": input_schema}));
    }
    Err(error)
}

/// A failed call, as a result with `isError` and a message.
pub(super) fn failed(error: &CallError, version: Version) -> Value {
    let result = ToolResult {
        is_error: true,
        ..ToolResult::text(results::error_to_text(error))
    };
    era::fit_call(write_result(result), version)
}
