//! The `mcpServers` files of other MCP clients, taken as they are: Claude Desktop and Claude Code, Cursor,
//! VS Code (`servers` and `inputs`), Windsurf (`serverUrl`), Gemini CLI (`httpUrl`), Cline, MCP Bridge.
//!
//! Keys that are not known are named in a warning: every client has some of its own. What a server needs in order to
//! run must be right, and goes through the same rules as `[servers.NAME]`. What stands beside the servers is in `top`,
//! MCP Bridge's own keys are in `bridge`.

mod bridge;
mod top;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    check::Check, jsonc, keys::nearest, problem::Problem, raw::RawServer, servers::WrittenServer,
    values::Origin,
};
use toolway_core::{
    catalog::ToolFilter,
    policy::{Action, Rule},
};
use toolway_protocol::tool::{MAX_NAME, ServerId};

/// Keys that are understood.
const UNDERSTOOD: [&str; 22] = [
    "args",
    "command",
    "cwd",
    "disabled",
    "disabledTools",
    "docker",
    "enabled",
    "env",
    "envFile",
    "excludeTools",
    "headers",
    "httpUrl",
    "includeTools",
    "isActive",
    "riskLevel",
    "serverUrl",
    "tcp",
    "tools",
    "transport",
    "transportType",
    "type",
    "url",
];

/// Keys that switch a server off, and the value that does.
const SWITCHES: [(&str, bool); 3] = [("disabled", true), ("enabled", false), ("isActive", false)];

/// Keys that name the tools that run without approval, by the server's own names, or all of them.
const APPROVALS: [&str; 4] = ["alwaysAllow", "autoApprove", "autoApproveTools", "trust"];

/// Keys that are for people.
const FOR_PEOPLE: [&str; 8] = [
    "$schema",
    "description",
    "displayName",
    "gallery",
    "icon",
    "name",
    "title",
    "version",
];

impl Check<'_> {
    /// The servers of one file.
    pub(super) fn read_mcp_file(&mut self, path: &Path) -> Vec<WrittenServer> {
        let file = path.display();
        let text = match (self.environment.read)(&self.environment.folder.join(path)) {
            Ok(found) => found.text,
            Err(error) => {
                self.problem(file, format_args!("cannot be read: {error}"));
                return Vec::new();
            }
        };
        let top: Map<String, Value> = match serde_json::from_str(&jsonc::to_json(&text)) {
            Ok(top) => top,
            Err(error) => {
                self.problem(file, format_args!("is no JSON object: {error}"));
                return Vec::new();
            }
        };
        self.mcp_servers(path, &top)
    }

    /// The servers of a file of this name that holds this.
    fn mcp_servers(&mut self, path: &Path, top: &Map<String, Value>) -> Vec<WrittenServer> {
        let file = path.display();
        let tables = top::server_tables(top);
        if tables.is_empty() {
            self.problem(&file, "has neither an `mcpServers` nor a `servers` object");
        }
        self.name_odd_top_keys(path, top);
        let lists = self.server_lists(path, top);
        let origin = Origin::McpFile {
            workspace: self.workspace(path),
            inputs: top::inputs(top),
        };
        let mut taken = BTreeSet::new();
        let mut servers = Vec::new();
        for (table, entries) in tables {
            for (name, entry) in entries {
                let path = format!("{file}: {table}.{name}");
                let raw = match top::why_off(&lists, name) {
                    Some(why) => Some(self.switched_off(&path, why)),
                    None => self.entry(&path, entry),
                };
                let Some(mut raw) = raw else {
                    continue;
                };
                if raw.enabled != Some(false) {
                    self.add_env_file(&path, entry, &origin, &mut raw);
                }
                let missing = std::mem::take(&mut self.missing);
                let name = self.fitting_name(&path, name, &mut taken);
                let rules = self.approved_tools(&path, &name, entry);
                servers.push(WrittenServer {
                    path,
                    name,
                    raw,
                    origin: origin.clone(),
                    rules,
                    missing,
                });
            }
        }
        servers
    }

    /// The value of `${workspaceFolder}`: the folder above `.vscode` or `.cursor`, else toolway's working directory.
    fn workspace(&self, file: &Path) -> PathBuf {
        let path = self.environment.folder.join(file);
        let editor = path
            .parent()
            .filter(|folder| folder.ends_with(".vscode") || folder.ends_with(".cursor"));
        editor
            .and_then(Path::parent)
            .unwrap_or(&self.environment.folder)
            .to_owned()
    }

    /// One server; nothing if it is unreadable.
    fn entry(&mut self, path: &str, entry: &Value) -> Option<RawServer> {
        let Some(entry) = entry.as_object() else {
            self.problem(path, "must be an object");
            return None;
        };
        for (key, off) in SWITCHES {
            let Some(value) = entry.get(key).filter(|value| !value.is_null()) else {
                continue;
            };
            match as_bool(value) {
                Some(is) if is == off => {
                    return Some(self.switched_off(path, format_args!("`{key}` is {value} there")));
                }
                Some(_) => {}
                // It may have been meant to be switched off.
                None => self.missing(format_args!("{path}.{key}"), "must be true or false"),
            }
        }
        self.name_odd_keys(path, entry);
        let mut raw = RawServer {
            command: self.string(path, entry, "command"),
            args: self.strings(path, entry, "args"),
            env: self.string_map(path, entry, "env"),
            cwd: self.string(path, entry, "cwd"),
            headers: self.string_map(path, entry, "headers"),
            tools: self.offered_tools(path, entry),
            ..RawServer::default()
        };
        let kind = ["type", "transport", "transportType"].iter();
        let kind = kind.filter_map(|key| entry.get(*key)?.as_str()).next();
        raw.kind = kind.and_then(known_kind);
        for key in ["url", "serverUrl", "httpUrl"] {
            if let Some(url) = self.string(path, entry, key) {
                raw.url = Some(url);
            }
        }
        if raw.kind.is_none() && entry.contains_key("httpUrl") {
            raw.kind = Some("http".into());
        }
        if entry.contains_key("tcp") && raw.command.is_none() && raw.url.is_none() {
            raw.kind = Some("tcp".into());
        }
        self.read_risk(path, entry, &mut raw);
        self.name_bare_variables(path, &raw);
        Some(raw)
    }

    /// A server that is not started, because the file says so.
    fn switched_off(&mut self, path: &str, why: impl Display) -> RawServer {
        self.notes.push(Problem {
            path: path.to_owned(),
            message: format!("is not started: {why}"),
        });
        RawServer {
            enabled: Some(false),
            ..RawServer::default()
        }
    }

    /// Warns of `$NAME`, a variable for Gemini CLI only. It stays as it is, because passwords contain `$` too; for the
    /// same reason it is not repeated.
    fn name_bare_variables(&mut self, path: &str, raw: &RawServer) {
        let maps = [("env", &raw.env), ("headers", &raw.headers)];
        let values = maps
            .iter()
            .flat_map(|(key, map)| map.iter().flatten().map(move |it| (key, it)));
        let mut found: Vec<_> = values
            .filter(|(_, (_, text))| text.split(|c| !is_of_variable(c)).any(is_bare_variable))
            .map(|(key, (name, _))| format!("{path}.{key}.{name}"))
            .collect();
        let args = raw.args.iter().flatten().enumerate();
        found.extend(
            args.filter(|(_, text)| is_bare_variable(text))
                .map(|(i, _)| format!("{path}.args[{i}]")),
        );
        for path in found {
            self.warn(
                path,
                "a `$` without braces stands for itself; a variable is written `${NAME}`",
            );
        }
    }

    /// Warns of keys that have no effect.
    fn name_odd_keys(&mut self, path: &str, entry: &Map<String, Value>) {
        for key in entry.keys() {
            let path = format!("{path}.{key}");
            if !APPROVALS.contains(&key.as_str())
                && !UNDERSTOOD.contains(&key.as_str())
                && !FOR_PEOPLE.contains(&key.as_str())
                && !key.starts_with(['_', '/', '#'])
            {
                let near = nearest(key, &UNDERSTOOD);
                let near = near.map(|near| format!("; did you mean `{near}`?"));
                let near = near.unwrap_or_default();
                self.warn(
                    path,
                    format_args!("is not understood, and has no effect{near}"),
                );
            }
        }
    }

    /// The rules that allow the tools which run without approval there. The names are the server's own, which are offered
    /// behind the name of the server.
    fn approved_tools(&mut self, path: &str, name: &str, entry: &Value) -> Vec<Rule> {
        let mut rules = Vec::new();
        for key in APPROVALS {
            let rule = format!("{path}.{key}");
            let tools = match entry.get(key) {
                None | Some(Value::Null | Value::Bool(false)) => continue,
                Some(Value::Bool(true)) => Vec::new(),
                Some(list) => match self.list_of_texts(&rule, list) {
                    Some(tools) if !tools.is_empty() => tools,
                    _ => continue,
                },
            };
            let offered: Vec<String> = tools.iter().map(|it| format!("{name}__{it}")).collect();
            rules.push(Rule {
                name: rule,
                servers: ToolFilter::new(&[name.to_owned()]),
                tools: ToolFilter::new(&offered),
                keys: None,
                args: Vec::new(),
                action: Action::Allow,
                reason: None,
            });
        }
        rules
    }

    /// Patterns of the tools that are offered: `includeTools` of Gemini CLI and `tools` of Copilot show, `excludeTools`
    /// and `disabledTools` hide.
    fn offered_tools(&mut self, path: &str, entry: &Map<String, Value>) -> Option<Vec<String>> {
        let mut patterns = Vec::new();
        for key in ["includeTools", "tools"] {
            match self.strings(path, entry, key) {
                Some(names) if names.is_empty() => patterns.push("!*".to_owned()),
                Some(names) => patterns.extend(names),
                None => {}
            }
        }
        for key in ["excludeTools", "disabledTools"] {
            let names = self.strings(path, entry, key).unwrap_or_default();
            patterns.extend(names.iter().map(|name| format!("!{name}")));
        }
        (!patterns.is_empty()).then_some(patterns)
    }

    /// Adds the variables of a VS Code `envFile`, in which `${` stands for itself; `env` goes before it.
    fn add_env_file(&mut self, path: &str, entry: &Value, origin: &Origin, raw: &mut RawServer) {
        let Some(file) = entry.get("envFile").and_then(Value::as_str) else {
            return;
        };
        let path = format!("{path}.envFile");
        let Some(name) = self.text(&path, file, origin) else {
            return;
        };
        let Some(text) = self.file(&path, &name, origin) else {
            return;
        };
        let env = raw.env.get_or_insert_default();
        for (name, value) in text.lines().filter_map(env_line) {
            env.entry(name).or_insert(value);
        }
    }

    fn string(&mut self, path: &str, entry: &Map<String, Value>, key: &str) -> Option<String> {
        let value = entry.get(key).filter(|value| !value.is_null())?;
        let text = as_text(value);
        if text.is_none() {
            self.problem(format_args!("{path}.{key}"), "must be a text");
        }
        text
    }

    fn strings(
        &mut self,
        path: &str,
        entry: &Map<String, Value>,
        key: &str,
    ) -> Option<Vec<String>> {
        let value = entry.get(key).filter(|value| !value.is_null())?;
        self.list_of_texts(format_args!("{path}.{key}"), value)
    }

    fn list_of_texts(&mut self, path: impl Display, value: &Value) -> Option<Vec<String>> {
        let texts = value
            .as_array()
            .and_then(|list| list.iter().map(as_text).collect());
        if texts.is_none() {
            self.problem(path, "must be a list of texts");
        }
        texts
    }

    /// Texts by name; `null` means "not set", as in VS Code.
    fn string_map(
        &mut self,
        path: &str,
        entry: &Map<String, Value>,
        key: &str,
    ) -> Option<BTreeMap<String, String>> {
        let value = entry.get(key).filter(|value| !value.is_null())?;
        let Some(object) = value.as_object() else {
            self.problem(format_args!("{path}.{key}"), "must be an object of texts");
            return None;
        };
        let mut texts = BTreeMap::new();
        for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
            match as_text(value) {
                Some(text) => _ = texts.insert(name.clone(), text),
                None => self.problem(format_args!("{path}.{key}.{name}"), "must be a text"),
            }
        }
        Some(texts)
    }

    /// A valid name that differs from those before it.
    fn fitting_name(&mut self, path: &str, name: &str, taken: &mut BTreeSet<String>) -> String {
        let mut fitting = fit(name);
        let mut number = 2;
        while !taken.insert(fitting.clone()) {
            let end = format!("_{number}");
            fitting = fit(name);
            fitting.truncate(MAX_NAME - end.len());
            fitting.push_str(&end);
            number += 1;
        }
        if fitting != name {
            self.warn(
                path,
                format_args!("is called `{fitting}` here, to fit into tool names"),
            );
        }
        fitting
    }
}

/// The transport by toolway's name. `local` and `remote` say no more than `command` and `url` do.
fn known_kind(written: &str) -> Option<String> {
    let plain = written.to_ascii_lowercase().replace(['-', '_', ' '], "");
    let ours = match plain.as_str() {
        "streamablehttp" | "http" => "http",
        "local" | "remote" | "command" | "" => return None,
        _ => written,
    };
    Some(ours.to_owned())
}

/// `NAME=value`, `export NAME="value"`; nothing for a comment or an empty line.
fn env_line(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let (name, value) = line
        .strip_prefix("export ")
        .unwrap_or(line)
        .split_once('=')?;
    let value = value.trim();
    let quoted = ['"', '\'']
        .iter()
        .find_map(|q| value.strip_prefix(*q)?.strip_suffix(*q));
    let text = quoted.unwrap_or(value).replace("${", "$${");
    let name = name.trim();
    (!name.is_empty() && !name.starts_with('#')).then(|| (name.to_owned(), text))
}

fn is_of_variable(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

/// `$NAME`, as environment variables are called.
fn is_bare_variable(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.strip_prefix('$').is_some_and(|name| {
        name.len() > 1 && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(fits)
    })
}

/// A boolean, also in its other spellings.
fn as_bool(value: &Value) -> Option<bool> {
    match as_text(value)?.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(b) => Some(b.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn fit(name: &str) -> String {
    if ServerId::parse(name).is_ok() {
        return name.to_owned();
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let text: String = name
        .trim()
        .chars()
        .map(|c| if fits(c) { c } else { '_' })
        .collect();
    let text = text.trim_matches('_');
    if text.is_empty() {
        "server".into()
    } else {
        text.chars().take(MAX_NAME).collect()
    }
}
