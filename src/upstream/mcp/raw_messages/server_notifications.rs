//! Notifications that belong to no single request: counted, published, or forwarded to the client they concern.

use serde_json::Value;
use tokio::sync::{broadcast, watch};

use super::running::Recipient;
use toolway_protocol::tool::ServerId;

/// A notification for every client, not for one caller alone.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerEvent {
    /// `notifications/resources/updated`: a watched resource, or one below it, changed.
    ResourceUpdated {
        /// Whose resource.
        server: ServerId,
        /// Which.
        uri: String,
        /// The notification's params as they came.
        params: Value,
    },
    /// `notifications/message`: a line of the server's log that belongs to no single request.
    Log {
        /// Whose log.
        server: ServerId,
        /// The notification's params as they came.
        params: Value,
    },
    /// Any other notification that is not toolway's own business.
    Other {
        /// The server that sent it.
        server: ServerId,
        /// The notification's method.
        method: String,
        /// Its params as they came; `null` if there are none.
        params: Value,
    },
}

/// Counts how often the server said that one of its lists changed.
#[derive(Clone, Debug, Default)]
pub(in crate::upstream::mcp) struct Changes {
    pub(in crate::upstream::mcp) tools: watch::Sender<u64>,
    pub(in crate::upstream::mcp) prompts: watch::Sender<u64>,
    /// Resources and resource templates.
    pub(in crate::upstream::mcp) resources: watch::Sender<u64>,
}

impl Changes {
    /// Every list may have changed.
    pub(in crate::upstream::mcp) fn everything(&self) {
        for list in [&self.tools, &self.prompts, &self.resources] {
            list.send_modify(|count| *count += 1);
        }
    }
}

/// Where the notifications of one connection go.
#[derive(Clone, Debug)]
pub(in crate::upstream::mcp) struct ServerNotifications {
    pub(in crate::upstream::mcp) server: ServerId,
    pub(in crate::upstream::mcp) changes: Changes,
    pub(in crate::upstream::mcp) events: broadcast::Sender<ServerEvent>,
}

impl ServerNotifications {
    /// Passes one notification on. `meant` is whose request it belongs to as far as the transport tells, and is asked
    /// only where that counts.
    pub(super) fn note(&self, method: &str, params: Value, meant: impl FnOnce() -> Recipient) {
        let changed = |list: &watch::Sender<u64>| list.send_modify(|count| *count += 1);
        match method {
            "notifications/tools/list_changed" => changed(&self.changes.tools),
            "notifications/prompts/list_changed" => changed(&self.changes.prompts),
            "notifications/resources/list_changed" => changed(&self.changes.resources),
            "notifications/resources/updated" => {
                if let Some(uri) = params["uri"].as_str().map(str::to_owned) {
                    let server = self.server.clone();
                    self.publish(ServerEvent::ResourceUpdated {
                        server,
                        uri,
                        params,
                    });
                }
            }
            _ => match meant() {
                Recipient::Client(requests) => {
                    if let Some(caller) = requests.caller() {
                        caller.tell(method, params);
                    }
                }
                // A notification about a chat's call has no client to go to. One that may concern a client's request
                // must not reach another client.
                Recipient::NoCaller | Recipient::OneOfSeveral => {}
                Recipient::Idle => self.publish(self.event(method, params)),
            },
        }
    }

    fn event(&self, method: &str, params: Value) -> ServerEvent {
        let server = self.server.clone();
        match method {
            "notifications/message" => ServerEvent::Log { server, params },
            method => ServerEvent::Other {
                server,
                method: method.to_owned(),
                params,
            },
        }
    }

    fn publish(&self, event: ServerEvent) {
        // There may be no receiver.
        let _ = self.events.send(event);
    }
}
