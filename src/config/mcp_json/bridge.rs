//! What MCP Bridge's file says of a server's risk (`riskLevel`) and its container (`docker`), and the variables in which it
//! finds servers.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::{
    check::Check,
    raw::{RawIsolation, RawServer},
    servers::WrittenServer,
};

/// The name of every such variable begins with this.
const PREFIX: &str = "MCP_SERVER_";

impl Check<'_> {
    /// The servers of `MCP_SERVER_NAME_COMMAND`, `_ARGS` (with commas between them), `_ENV` (a JSON object), `_RISK_LEVEL` and
    /// `_DOCKER_CONFIG` (a JSON object) among these variables, in small letters.
    pub(in crate::config) fn servers_of_variables(
        &mut self,
        variables: &[(String, String)],
    ) -> Vec<WrittenServer> {
        let value = |name: &str| {
            let found = variables.iter().find(|(it, _)| it == name);
            found.map(|(_, value)| value.as_str())
        };
        let names = variables.iter().filter_map(|(variable, _)| {
            let name = variable.strip_prefix(PREFIX)?.strip_suffix("_COMMAND")?;
            (!name.is_empty()).then_some(name)
        });
        let mut servers = Map::new();
        for name in names {
            let of = |part: &str| format!("{PREFIX}{name}_{part}");
            let mut json_of = |part: &str| {
                let text = value(&of(part))?;
                let read = serde_json::from_str::<Value>(text).ok();
                if read.is_none() {
                    // The value may be a secret.
                    self.problem(of(part), "is no JSON");
                }
                read
            };
            let mut server = json!({"command": value(&of("COMMAND"))});
            for (key, part) in [
                ("env", "ENV"),
                ("riskLevel", "RISK_LEVEL"),
                ("docker", "DOCKER_CONFIG"),
            ] {
                if let Some(value) = json_of(part) {
                    server[key] = value;
                }
            }
            if let Some(args) = value(&of("ARGS")).filter(|args| !args.is_empty()) {
                server["args"] = args.split(',').collect();
            }
            servers.insert(name.to_lowercase(), server);
        }
        if servers.is_empty() {
            return Vec::new();
        }
        let mut top = Map::new();
        top.insert("mcpServers".to_owned(), servers.into());
        self.mcp_servers(Path::new("MCP_SERVER_*"), &top)
    }

    /// Reads both. MCP Bridge drops a level that is none, and runs a server of level 3 without an image at level 2; here
    /// the first is a problem, and the calls of the second are refused.
    pub(super) fn read_risk(
        &mut self,
        path: &str,
        entry: &Map<String, Value>,
        raw: &mut RawServer,
    ) {
        if let Some(level) = entry.get("riskLevel").filter(|level| !level.is_null()) {
            raw.risk = level.as_i64();
            if raw.risk.is_none() {
                let message = format_args!("must be 1 (low), 2 (medium) or 3 (high), not {level}");
                self.problem(format_args!("{path}.riskLevel"), message);
            }
        }
        match entry.get("docker") {
            None | Some(Value::Null) => {}
            Some(Value::Object(docker)) => {
                let path = format!("{path}.docker");
                raw.isolation = Some(RawIsolation {
                    kind: Some("docker".to_owned()),
                    image: self.string(&path, docker, "image"),
                    network: self.string(&path, docker, "network"),
                    mounts: self.strings(&path, docker, "volumes"),
                    ..RawIsolation::default()
                });
            }
            Some(_) => self.problem(format_args!("{path}.docker"), "must be an object"),
        }
    }
}
