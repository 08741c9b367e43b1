//! rmcp's callback for the requests that a server makes.
//!
//! Notifications do not reach it; `pending` removes them from the stream.

use rmcp::{
    RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ClientResult, CustomResult, ErrorCode, ErrorData,
        Implementation, ProtocolVersion, ServerNotification, ServerRequest,
    },
    service::{NotificationContext, RequestContext, Service},
};
use tracing::warn;

use super::pending::Pending;
use toolway_protocol::{
    mcp::{
        asks,
        rpc::{RpcError, code},
    },
    tool::ServerId,
};

/// The client side of a connection.
#[derive(Clone, Debug)]
pub(in crate::upstream::mcp) struct ClientHandler {
    pub(in crate::upstream::mcp) server: ServerId,
    pub(in crate::upstream::mcp) pending: Pending,
}

impl Service<RoleClient> for ClientHandler {
    async fn handle_request(
        &self,
        request: ServerRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        let request = match request {
            ServerRequest::PingRequest(_) => return Ok(ClientResult::empty(())),
            ServerRequest::CustomRequest(request) => request,
            _ => return Err(to_data(RpcError::method_not_found("this"))),
        };
        let question = self.pending.take_question(&request).map_err(to_data)?;
        if question.is_ambiguous() {
            let (server, method) = (&self.server, question.method.as_str());
            warn!(server.id = %server, method, "A server asks something while requests of several clients run, and does not say for which; refused");
        }
        tokio::select! {
            biased;
            // The server took its question back.
            () = context.ct.cancelled() => Err(to_data(RpcError::new(code::INTERNAL_ERROR, "cancelled"))),
            answer = question.answer() => match answer {
                Ok(raw) => Ok(ClientResult::CustomResult(CustomResult::new(raw))),
                Err(error) => Err(to_data(error)),
            },
        }
    }

    async fn handle_notification(
        &self,
        _: ServerNotification,
        _: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn get_info(&self) -> ClientConfig {
        let this = Implementation::new("toolway", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(everything(), this)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

/// What the handshake declares, which comes before any client. On 2026-07-28 each request declares what its own caller
/// can do.
fn everything() -> ClientCapabilities {
    serde_json::from_value(asks::everything()).unwrap_or_default()
}

fn to_data(error: RpcError) -> ErrorData {
    let code = i32::try_from(error.code).map_or(ErrorCode::INTERNAL_ERROR, ErrorCode);
    ErrorData::new(code, error.message, error.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rmcp_declares_everything_that_is_ours_to_declare() {
        assert_eq!(
            serde_json::to_value(everything()).unwrap(),
            asks::everything()
        );
    }
}
