//! What is kept of a response when it is complete.

use serde_json::Value;

use crate::{
    gateway::RequestClient,
    server::{App, conversations::Locked},
    store::{Principal, responses::KeptResponse},
};
use toolway_core::translate::dialect::{GatewayCall, responses::is_unfinished};
use toolway_protocol::tool::JsonObject;

/// A response that is kept when it is complete.
pub(in crate::server) struct Keep {
    /// Later requests may name it.
    pub(super) is_stored: bool,
    pub(super) kept: KeptResponse,
    /// The conversation that it belongs to.
    pub(super) conversation: Option<Locked>,
    /// The client, if it may be asked about calls.
    pub(in crate::server) asks: Option<Box<RequestClient>>,
}

impl Keep {
    /// Keeps the response as it is now, and the calls that it asks the client to approve.
    pub(in crate::server) async fn keep(
        &mut self,
        app: &App,
        principal: Principal,
        asked: &[GatewayCall],
        response: JsonObject,
    ) {
        if let Some(client) = &self.asks {
            app.gateway.ask_for_approval(client, asked).await;
        }
        if let Some(conversation) = self.conversation.take_if(|_| !is_unfinished(&response)) {
            self.append(app, &conversation, &response).await;
        }
        if self.is_stored {
            self.kept.response = response;
            let entries = app.gateway.entries();
            entries.keep_response(principal, &self.kept).await;
        }
    }

    /// Adds what was asked and answered to the conversation, if the answer is one.
    async fn append(&self, app: &App, conversation: &Locked, response: &JsonObject) {
        let status = response.get("status").and_then(Value::as_str);
        if !matches!(status, Some("completed" | "incomplete")) {
            return;
        }
        let output = response.get("output").and_then(Value::as_array);
        let items = self.kept.input.iter().chain(output.into_iter().flatten());
        conversation.append(app, items.cloned().collect()).await;
    }
}
