//! What a server has besides tools.

use serde_json::Value;

use toolway_protocol::tool::{JsonObject, ServerId};

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

    /// Takes up what the server said in the handshake: the result of its `initialize` or `server/discover`. What it
    /// does not have any more goes; what it still has stays until it is listed again.
    pub fn introduce(&mut self, protocol_version: Option<String>, hello: &Value) {
        self.protocol_version = protocol_version;
        self.capabilities = hello["capabilities"].clone();
        self.instructions = hello["instructions"].as_str().map(str::to_owned);
        self.server_info = match &hello["serverInfo"] {
            Value::Null => hello["_meta"]["io.modelcontextprotocol/serverInfo"].clone(),
            info => info.clone(),
        };
        if !self.has("prompts") {
            self.prompts.clear();
        }
        if !self.has("resources") {
            self.resources.clear();
            self.templates.clear();
        }
    }

    /// It declared this capability, or may still do so.
    pub fn may_have(&self, capability: &str) -> bool {
        self.protocol_version.is_none() || self.capabilities.get(capability).is_some()
    }

    /// The server declared this capability.
    pub fn has(&self, capability: &str) -> bool {
        !self.capabilities[capability].is_null()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn introduced(hello: &Value) -> ServerFeatures {
        let mut features = ServerFeatures::unknown(ServerId::parse("s").unwrap());
        features.prompts = vec![JsonObject::new()];
        features.resources = vec![JsonObject::new()];
        features.introduce(Some("2025-11-25".to_owned()), hello);
        features
    }

    #[test]
    fn a_server_is_known_by_what_it_said_in_the_handshake() {
        let info = json!({"name": "n", "version": "1", "x": 1});
        let features = introduced(&json!({
            "capabilities": {"prompts": {}, "x": 1}, "serverInfo": info, "instructions": "use it",
        }));
        assert_eq!(features.capabilities, json!({"prompts": {}, "x": 1}));
        assert_eq!(features.instructions.as_deref(), Some("use it"));
        assert_eq!(features.server_info, info);
        assert_eq!(
            (features.prompts.len(), features.resources.len()),
            (1, 0),
            "what it does not have any more goes"
        );
    }

    #[test]
    fn a_server_without_a_handshake_tells_its_name_in_the_meta() {
        let meta = json!({"io.modelcontextprotocol/serverInfo": {"name": "n"}});
        let features = introduced(&json!({"capabilities": {}, "_meta": meta}));
        assert_eq!(features.server_info, json!({"name": "n"}));
    }
}
