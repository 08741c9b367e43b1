//! What a server has besides tools, as it listed it.

use serde_json::Value;

use crate::tool::{JsonObject, ServerId};

/// What one server has besides tools. Entries are as they were listed, unknown members included.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerFeatures {
    /// Which server.
    pub server: ServerId,
    /// The protocol version it speaks with us; absent until it was ready once.
    pub protocol_version: Option<String>,
    /// `ServerCapabilities` as it declared them.
    pub capabilities: Value,
    /// What it says to the model, if anything.
    pub instructions: Option<String>,
    /// `Implementation` as it declared it.
    pub server_info: Value,
    /// `Prompt`s, in its own order.
    pub prompts: Vec<JsonObject>,
    /// `Resource`s, in its own order.
    pub resources: Vec<JsonObject>,
    /// `ResourceTemplate`s, in its own order.
    pub templates: Vec<JsonObject>,
}

impl ServerFeatures {
    /// A server of which nothing is known yet.
    pub fn unknown(server: ServerId) -> ServerFeatures {
        ServerFeatures {
            server,
            protocol_version: None,
            capabilities: Value::Null,
            instructions: None,
            server_info: Value::Null,
            prompts: Vec::new(),
            resources: Vec::new(),
            templates: Vec::new(),
        }
    }

    /// It declared this capability, or may still do so.
    pub fn may_have(&self, capability: &str) -> bool {
        self.protocol_version.is_none() || self.capabilities.get(capability).is_some()
    }
}
