//! Calls of one server's tools by a client that is no MCP client and reads from the failure what kind it is.

use std::sync::Arc;

use serde_json::Value;

use super::{Gateway, RequestContext, call};
use toolway_core::translate::era;
use toolway_protocol::tool::{CallError, JsonObject};

impl Gateway {
    /// Calls the tool that the view shows under this name, on the path of every other call, and gives its
    /// `CallToolResult`. Arguments that do not fit are a result with `isError`, as most servers have it. Dropping the
    /// future cancels the call.
    ///
    /// # Errors
    /// What the call came to, [`CallError::UnknownTool`] included.
    pub async fn call_directly(
        self: &Arc<Self>,
        context: &RequestContext,
        name: &str,
        arguments: JsonObject,
    ) -> Result<Value, CallError> {
        let mut catalog = self.catalog_of(context.view.key());
        if context.view.tool(&catalog, name).is_none() {
            self.started(&context.view).await;
            catalog = self.catalog_of(context.view.key());
        }
        let offered = context.view.tool(&catalog, name);
        let offered = offered.ok_or_else(|| CallError::UnknownTool {
            name: name.to_owned(),
            did_you_mean: Vec::new(),
        })?;
        let params = JsonObject::new();
        match call::run(self, context, offered, arguments, params, None).await {
            Ok(raw) => Ok(era::fit_call(raw, context.version)),
            Err(misfit @ CallError::InvalidParams { .. }) => {
                Ok(call::failed(&misfit, context.version))
            }
            Err(error) => Err(error),
        }
    }
}
