//! `tools/call`: found, checked, run, and the result in the client's version.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::{sync::mpsc, time::Instant};

use super::{Gateway, Visit, ask::Inquiry};
use crate::{
    catalog::Offered,
    mcp::{
        results::{asks_for_input, write_result},
        rpc::{RpcError, code},
        version::Version,
    },
    route,
    tool::{CallError, JsonObject, Progress, ToolResult, millis},
    translate::{era, results, uris},
    upstream::mcp::CallOptions,
};

/// Answers a `tools/call`.
pub(super) async fn call(
    gateway: &Arc<Gateway>,
    visit: &Visit,
    mut params: JsonObject,
    progress: Option<mpsc::Sender<Progress>>,
) -> Result<Value, RpcError> {
    let Some(Value::String(name)) = params.shift_remove("name") else {
        return Err(RpcError::invalid_params("`name` must be a string"));
    };
    let mut catalog = gateway.catalog();
    if visit.view.tool(&catalog, &name).is_none() {
        let started = Box::pin(gateway.started(&visit.view));
        started.await;
        catalog = gateway.catalog();
    }
    let Some(offered) = visit.view.tool(&catalog, &name) else {
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
        return refused(&misfit, visit.version);
    }
    if let Some(session) = visit.view.session() {
        // The caller said how long a call may wait, for a person may stand behind the answer.
        let deadline = session.about().expires;
        let call = Box::pin(session.call(&name, arguments, deadline));
        let outcome = call.await;
        return Ok(match outcome {
            Ok(result) => era::fit_call(write_result(result), visit.version),
            Err(error) => failed(&error, visit.version),
        });
    }
    let begun = Instant::now();
    // One for all attempts.
    let deadline = begun + gateway.config.request_timeout;
    let outcome = match gateway.backends.functions().has(&offered.server) {
        true => run_function(gateway, offered, &arguments, deadline).await,
        false => {
            let call = Attempts {
                visit,
                offered,
                deadline,
            };
            call.run(gateway, arguments, params, progress).await
        }
    };
    log(offered, &outcome, begun);
    match outcome {
        Ok(raw) if asks_for_input(&raw) => Ok(raw),
        Ok(mut raw) => {
            if visit.view.is_prefixed() {
                uris::wrap_result(&offered.server, &mut raw);
            }
            Ok(era::fit_call(raw, visit.version))
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
            visit.version,
        )),
        Err(error) => Ok(failed(&error, visit.version)),
    }
}

/// A function asks nothing and says nothing before its result.
async fn run_function(
    gateway: &Gateway,
    offered: &Offered,
    arguments: &JsonObject,
    deadline: Instant,
) -> Result<Value, CallError> {
    let (functions, name) = (gateway.backends.functions(), &offered.tool.name);
    let mut attempts = 1;
    loop {
        let options = CallOptions {
            silence: gateway.config.tool_timeout,
            deadline,
            progress: None,
            caller: None,
        };
        let call = functions.call(&offered.server, name, arguments, options);
        match call.await {
            Err(error) if route::may_repeat(&error, offered.tool.annotations, attempts) => {
                attempts += 1;
            }
            outcome => return outcome.map(write_result),
        }
    }
}

/// A call of a server's tool, which may be made more than once.
struct Attempts<'a> {
    visit: &'a Visit,
    offered: &'a Arc<Offered>,
    deadline: Instant,
}

impl Attempts<'_> {
    async fn run(
        self,
        gateway: &Arc<Gateway>,
        arguments: JsonObject,
        mut params: JsonObject,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Result<Value, CallError> {
        let Attempts {
            visit,
            offered,
            deadline,
        } = self;
        let mut attempts = 1;
        visit.ask_for_logs(&mut params);
        params.insert("name".to_owned(), json!(offered.tool.name));
        params.insert("arguments".to_owned(), Value::Object(arguments));
        let params = Arc::new(params);
        loop {
            let inquiry = Inquiry {
                server: offered.server.clone(),
                method: "tools/call",
                params: Arc::clone(&params),
                progress: progress.clone(),
                deadline,
            };
            match inquiry.make(gateway, visit).await {
                Err(error) if route::may_repeat(&error, offered.tool.annotations, attempts) => {
                    attempts += 1;
                }
                outcome => return outcome,
            }
        }
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
            tracing::info!(tool.name = %name, server.id = %server, duration_ms, status, "Called tool `{name}`");
        }
        Err(error) => {
            tracing::warn!(tool.name = %name, server.id = %server, duration_ms, status = error.kind(), %error, "Call of tool `{name}` failed");
        }
    }
}
