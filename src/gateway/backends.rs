//! Whoever runs a tool: an MCP server or a group of functions. A name is one or the other, never both.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    mcp::{results::write_result, rpc::RpcError},
    tool::{CallError, JsonObject, ServerId, ToolResult},
    upstream::{
        function::Functions,
        mcp::{CallOptions, Servers},
    },
};

/// Everything that calls can go to.
pub(super) struct Backends {
    servers: Arc<Servers>,
    functions: Functions,
}

impl Backends {
    /// Calls go to these.
    pub(super) fn new(servers: Arc<Servers>, functions: Functions) -> Backends {
        Backends { servers, functions }
    }

    /// The groups of functions.
    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Calls a tool where it is. Dropping the future cancels the call.
    pub(super) async fn call(
        &self,
        server: &ServerId,
        tool: &str,
        arguments: JsonObject,
        options: CallOptions,
    ) -> Result<ToolResult, CallError> {
        if self.functions.has(server) {
            return self.functions.call(server, tool, arguments, options).await;
        }
        self.servers.call(server, tool, arguments, options).await
    }

    /// Makes any request that a client may make of a server, with its params as they are to arrive. A group of
    /// functions knows `tools/call` alone. Dropping the future cancels the request.
    pub(super) async fn request(
        &self,
        server: &ServerId,
        method: &str,
        params: &JsonObject,
        options: CallOptions,
    ) -> Result<Value, CallError> {
        if !self.functions.has(server) {
            return self.servers.request(server, method, params, options).await;
        }
        let (Some(Value::String(name)), "tools/call") = (params.get("name"), method) else {
            let error = RpcError::method_not_found(method);
            return Err(CallError::Protocol {
                code: error.code,
                message: error.message,
                data: None,
            });
        };
        let arguments = match params.get("arguments") {
            Some(Value::Object(arguments)) => arguments.clone(),
            _ => JsonObject::new(),
        };
        let result = self
            .functions
            .call(server, name, arguments, options)
            .await?;
        Ok(write_result(&result))
    }
}
