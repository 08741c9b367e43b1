//! Whoever stands behind a request, as far as a server may turn to them while it runs.

use futures::future::BoxFuture;
use serde_json::Value;

use crate::mcp::rpc::RpcError;

/// Whoever a request is made for, as far as a server may turn to them while it runs.
pub trait Caller: Send + Sync + 'static {
    /// What they can do: MCP `ClientCapabilities` (`{}`: nothing).
    fn capabilities(&self) -> &Value;

    /// Asks them: `sampling/createMessage`, `elicitation/create` or `roots/list`, with its params as they came.
    ///
    /// Dropping the future takes the question back.
    fn ask<'a>(&'a self, method: &'a str, params: Value) -> BoxFuture<'a, Result<Value, RpcError>>;

    /// Tells them something that belongs to the request, such as `notifications/message`. Never waits; what
    /// does not fit in is left out.
    fn tell(&self, method: &str, params: Value);
}
