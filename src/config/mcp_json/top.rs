//! The rest of another MCP client's file: where the servers are, the inputs of VS Code, and the lists with which Gemini
//! CLI switches servers off.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Check, FOR_PEOPLE};

/// Keys beside the servers that are understood, or that say nothing about which servers run and how.
const UNDERSTOOD: [&str; 11] = [
    "allowMCPServers",
    "excludeMCPServers",
    "inputs",
    "isUsingBuiltInNodeForMcp",
    "mcp",
    "mcp.allowed",
    "mcp.excluded",
    "mcp.inputs",
    "mcp.servers",
    "mcpServers",
    "servers",
];

/// Whether a list allows or excludes servers.
#[derive(Clone, Copy)]
pub(super) enum Names {
    /// The servers that are started.
    Allowed,
    /// The servers that are not started.
    Excluded,
}

/// A list of servers by name, and the key that it stands under.
pub(super) type ServerList = (&'static str, Names, Vec<String>);

/// Where the servers stand: `mcpServers`, VS Code's `servers`, or `mcp.servers` of its settings.
pub(super) fn server_tables(top: &Map<String, Value>) -> Vec<(&'static str, &Map<String, Value>)> {
    let in_settings = top.get("mcp").and_then(|mcp| mcp.get("servers"));
    let places = [
        ("mcpServers", top.get("mcpServers")),
        ("servers", top.get("servers")),
        ("mcp.servers", in_settings),
    ];
    places
        .into_iter()
        .filter_map(|(name, table)| Some((name, table?.as_object()?)))
        .collect()
}

/// The inputs that VS Code asks for: the id and the question.
pub(super) fn inputs(top: &Map<String, Value>) -> Vec<(String, String)> {
    let list = top.get("inputs").or_else(|| top.get("mcp")?.get("inputs"));
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|input| {
        let text = |key: &str| Some(input.get(key)?.as_str()?.to_owned());
        Some((text("id")?, text("description").unwrap_or_default()))
    })
    .filter(|(_, question)| !question.is_empty())
    .collect()
}

/// Why the lists leave this server out; `None` if they do not.
pub(super) fn why_off(lists: &[ServerList], server: &str) -> Option<String> {
    let names_it = |names: &[String]| {
        names
            .iter()
            .any(|it| it.trim().eq_ignore_ascii_case(server))
    };
    lists
        .iter()
        .find_map(|(key, which, names)| match (which, names_it(names)) {
            (Names::Allowed, false) => Some(format!("`{key}` does not name it")),
            (Names::Excluded, true) => Some(format!("`{key}` names it")),
            _ => None,
        })
}

impl Check<'_> {
    /// The lists of Gemini CLI, with their names of today and of before.
    pub(super) fn server_lists(
        &mut self,
        file: &Path,
        top: &Map<String, Value>,
    ) -> Vec<ServerList> {
        let in_mcp = |key| top.get("mcp").and_then(|mcp| mcp.get(key));
        [
            ("mcp.excluded", Names::Excluded, in_mcp("excluded")),
            (
                "excludeMCPServers",
                Names::Excluded,
                top.get("excludeMCPServers"),
            ),
            ("mcp.allowed", Names::Allowed, in_mcp("allowed")),
            (
                "allowMCPServers",
                Names::Allowed,
                top.get("allowMCPServers"),
            ),
        ]
        .into_iter()
        .filter_map(|(key, which, list)| {
            let list = list.filter(|list| !list.is_null())?;
            let names = self.list_of_texts(format_args!("{}: {key}", file.display()), list)?;
            Some((key, which, names))
        })
        .collect()
    }

    /// Warns of other keys that have no effect: of all of them in an MCP file, and in a program's general settings only
    /// of those that mention MCP.
    pub(super) fn name_odd_top_keys(&mut self, file: &Path, top: &Map<String, Value>) {
        let mentions_mcp = |text: &str| text.to_ascii_lowercase().contains("mcp");
        let is_about_mcp = file
            .file_name()
            .is_some_and(|name| mentions_mcp(&name.to_string_lossy()));
        let mcp = top.get("mcp").and_then(Value::as_object).into_iter();
        let odd: Vec<_> = top
            .keys()
            .cloned()
            .chain(mcp.flat_map(Map::keys).map(|key| format!("mcp.{key}")))
            .filter(|key| is_about_mcp || mentions_mcp(key))
            .filter(|key| {
                !UNDERSTOOD.contains(&key.as_str()) && !FOR_PEOPLE.contains(&key.as_str())
            })
            .filter(|key| !key.starts_with(['_', '/', '#']))
            .map(|key| format!("`{key}`"))
            .collect();
        if !odd.is_empty() {
            self.warn(
                file.display(),
                format_args!("not understood, and without effect: {}", odd.join(", ")),
            );
        }
    }
}
