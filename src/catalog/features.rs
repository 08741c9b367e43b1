//! What a server has besides tools.

use serde_json::Value;

use crate::tool::{JsonObject, ServerId};

/// What one server says about itself, and what it has besides tools. Plain data: who offers it to whom, and under
/// which name, is decided elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerFeatures {
    /// Which server.
    pub server: ServerId,
    /// The version both sides agreed on; `None` until it was ready once.
    pub protocol_version: Option<String>,
    /// `ServerCapabilities` as the server declared them; `null` until it was ready once.
    pub capabilities: Value,
    /// What it tells models about itself.
    pub instructions: Option<String>,
    /// `Implementation` as the server declared it; `null` where it is not known.
    pub server_info: Value,
    /// Its prompts, each as listed; every one has a `name`, and no two the same.
    pub prompts: Vec<JsonObject>,
    /// Its resources, each as listed; every one has a `uri`, and no two the same.
    pub resources: Vec<JsonObject>,
    /// Its resource templates, each as listed; every one has a `uriTemplate`, and no two the same.
    pub templates: Vec<JsonObject>,
}

impl ServerFeatures {
    /// What is known about a server that was never ready.
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
