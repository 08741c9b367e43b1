//! `tools/call`: found, checked, run, and the result in the client's version.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{Gateway, RequestContext, ask::Inquiry, parked::Parked};
use crate::{
    gateway::backends::Method,
    upstream::mcp::{CallOptions, Sends},
};
use toolway_core::{
    catalog::Offered,
    policy::{self, Admitted, Request, Verdict},
    route,
    translate::{era, results, uris},
};
use toolway_protocol::{
    mcp::{
        results::{asks_for_input, write_result},
        rpc::{RpcError, code},
        version::Version,
    },
    tool::{CallError, JsonObject, Progress, ToolResult, millis},
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
    let mut catalog = gateway.catalog();
    if context.view.tool(&catalog, &name).is_none() {
        let started = Box::pin(gateway.started(&context.view));
        started.await;
        catalog = gateway.catalog();
    }
    let Some(offered) = context.view.tool(&catalog, &name) else {
        return Err(RpcError::invalid_params(format!("Unknown tool: {name}")));
    };
    let arguments = match params.shift_remove("arguments") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(RpcError::invalid_params("`arguments` must be an object")),
    };
    if let Some(validator) = &offered.validator
        && let Err(misfit) = validator.check(&arguments)
    {
        return refused(&misfit, context.version);
    }
    if let Some(session) = context.view.session() {
        // The session asks `policy` itself. The caller said how long a call may wait, for a person may stand behind the answer.
        let deadline = session.about().expires;
        let call = Box::pin(session.call(&name, arguments, deadline));
        let outcome = call.await;
        return Ok(match outcome {
            Ok(result) => era::fit_call(write_result(result), context.version),
            Err(error) => failed(&error, context.version),
        });
    }
    let is_shown = true;
    let tool = match policy::evaluate(&Request {
        tool: offered,
        is_shown,
    }) {
        Verdict::Allow(tool) => tool,
        Verdict::Deny { reason, .. } => {
            return Ok(failed(&CallError::Denied { reason }, context.version));
        }
    };
    let begun = Instant::now();
    let call = Attempts {
        context,
        tool: &tool,
        deadline: begun + gateway.config.request_timeout,
    };
    let outcome = match gateway.backends.functions().has(&offered.server) {
        true => call.run_function(gateway, &arguments).await,
        false => call.run(gateway, arguments, params, progress).await,
    };
    log(offered, &outcome, begun);
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
        Err(error) => Ok(failed(&error, context.version)),
    }
}

/// A call of a tool, which may be made more than once.
struct Attempts<'a> {
    context: &'a RequestContext,
    tool: &'a Admitted,
    /// When the last attempt ends.
    deadline: Instant,
}

impl Attempts<'_> {
    /// A function asks nothing and says nothing before its result.
    async fn run_function(
        self,
        gateway: &Gateway,
        arguments: &JsonObject,
    ) -> Result<Value, CallError> {
        let mut attempts = 1;
        loop {
            let options = CallOptions {
                silence: gateway.config.tool_timeout,
                deadline: self.deadline,
                progress: None,
                caller: None,
                sends: Sends::default(),
            };
            let call = gateway
                .backends
                .call_function(self.tool, arguments, options);
            let outcome = call.await;
            match self.pause(gateway, &outcome, attempts) {
                Some(pause) => Box::pin(sleep(pause)).await,
                None => return outcome.map(write_result),
            }
            attempts += 1;
        }
    }

    async fn run(
        self,
        gateway: &Arc<Gateway>,
        arguments: JsonObject,
        mut params: JsonObject,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Result<Value, CallError> {
        let (mut attempts, sends) = (1, Sends::default());
        let state = params.get("requestState").and_then(Value::as_str);
        // The answer for a call that waited is used up, so that the call cannot be repeated.
        let is_resumed = state.is_some_and(Parked::is_key);
        self.context.ask_for_logs(&mut params);
        params.insert("name".to_owned(), json!(self.tool.tool.name));
        params.insert("arguments".to_owned(), Value::Object(arguments));
        let params = Arc::new(params);
        loop {
            let inquiry = Inquiry {
                method: Method::CallTool(self.tool.clone()),
                params: Arc::clone(&params),
                progress: progress.clone(),
                deadline: self.deadline,
                sends: sends.clone(),
            };
            let outcome = inquiry.make(gateway, self.context).await;
            attempts = attempts.max(sends.so_far());
            let pause = self.pause(gateway, &outcome, attempts);
            match pause.filter(|_| !is_resumed) {
                // Rare, so its timer has no room in the future of every call.
                Some(pause) => Box::pin(sleep(pause)).await,
                None => return outcome,
            }
            attempts += 1;
        }
    }

    /// The pause before the call is made again, if it is.
    fn pause<T>(
        &self,
        gateway: &Gateway,
        outcome: &Result<T, CallError>,
        attempts: u32,
    ) -> Option<Duration> {
        let error = outcome.as_ref().err()?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = left.min(gateway.config.tool_timeout);
        route::repeat_after(error, self.tool.tool.annotations, attempts, left)
    }
}

/// Arguments that do not fit. Nothing was sent.
///
/// Since 2025-11-25 the model is to read it ("Tools", "Error Handling"), before it was the client.
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

/// A call that failed, as a result that says so in words.
fn failed(error: &CallError, version: Version) -> Value {
    let result = ToolResult {
        is_error: true,
        ..ToolResult::text(results::error_to_text(error))
    };
    era::fit_call(write_result(result), version)
}

fn log(offered: &Offered, outcome: &Result<Value, CallError>, begun: Instant) {
    let (name, server) = (&offered.name, &offered.server);
    let duration_ms = millis(begun.elapsed());
    match outcome {
        Ok(raw) => {
            let status = match raw.get("isError") {
                Some(Value::Bool(true)) => "tool_error",
                _ if asks_for_input(raw) => "input_required",
                _ => "ok",
            };
            tracing::info!(tool.name = %name, server.id = %server, duration_ms, status, "Called a tool");
        }
        Err(error) => {
            tracing::warn!(tool.name = %name, server.id = %server, duration_ms, status = error.kind(), error = &*error.for_log(), "The call of a tool failed");
        }
    }
}
