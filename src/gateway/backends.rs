//! What runs tools: MCP servers and groups of functions. A name belongs to one or the other, never both.
//!
//! This is the only module of `gateway` that calls them (`tests/cli/layers.rs` checks it), and no tool is called unless
//! [`policy`](toolway_core::policy) admits it.

use std::sync::Arc;

use serde_json::Value;

use crate::upstream::{
    function::Functions,
    mcp::{CallOptions, Servers},
};
use toolway_core::policy::Admitted;
use toolway_protocol::tool::{CallError, JsonObject, ServerId, ToolResult};

/// All backends.
pub(super) struct Backends {
    servers: Arc<Servers>,
    functions: Functions,
}

/// A request of an MCP client, and the server it is for.
#[derive(Clone, Debug)]
pub(super) enum Method {
    /// `tools/call` of this tool.
    CallTool(Admitted),
    /// `prompts/get`.
    GetPrompt(ServerId),
    /// `resources/read`.
    ReadResource(ServerId),
    /// `completion/complete`.
    Complete(ServerId),
}

impl Method {
    /// Its name in the protocol.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Method::CallTool(_) => "tools/call",
            Method::GetPrompt(_) => "prompts/get",
            Method::ReadResource(_) => "resources/read",
            Method::Complete(_) => "completion/complete",
        }
    }

    /// The server that is asked.
    pub(super) fn server(&self) -> &ServerId {
        match self {
            Method::CallTool(tool) => &tool.server,
            Method::GetPrompt(server) | Method::ReadResource(server) | Method::Complete(server) => {
                server
            }
        }
    }
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

    /// Calls a tool at its backend. Dropping the future cancels the call.
    pub(super) async fn call(
        &self,
        tool: &Admitted,
        arguments: JsonObject,
        options: CallOptions,
    ) -> Result<ToolResult, CallError> {
        if self.functions.has(&tool.server) {
            return self.functions.call(tool, &arguments, options).await;
        }
        let name = tool.tool.name.as_str();
        self.servers
            .call(&tool.server, name, arguments, options)
            .await
    }

    /// Calls a function.
    pub(super) fn call_function(
        &self,
        tool: &Admitted,
        arguments: &JsonObject,
        options: CallOptions,
    ) -> impl Future<Output = Result<ToolResult, CallError>> {
        self.functions.call(tool, arguments, options)
    }

    /// Sends a request to a server and returns the raw result. Dropping the future cancels the request.
    pub(super) fn request(
        &self,
        method: &Method,
        params: &JsonObject,
        options: CallOptions,
    ) -> impl Future<Output = Result<Value, CallError>> {
        self.servers
            .request(method.server(), method.name(), params, options)
    }
}
