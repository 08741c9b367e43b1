//! Whoever runs a tool: an MCP server or a group of functions. A name is one or the other, never both.

use std::sync::Arc;

use crate::{
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
            return self.functions.call(server, tool, &arguments, options).await;
        }
        self.servers.call(server, tool, arguments, options).await
    }
}
