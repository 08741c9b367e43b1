//! The servers after their start: their states and tools, as text and as JSON.

use serde::Serialize;
use serde_json::{Value, json};

use super::{problems, terminal};
use crate::{
    config::{Config, Problem},
    gateway::listing::SurplusTool,
    upstream::{
        function::BackendKind,
        mcp::Transport,
        model::{self, NamedModel},
    },
};
use toolway_core::translate::names::SEPARATOR;

/// A description is not cut below so many columns, however narrow the terminal.
const SHORTEST_DESCRIPTION: usize = 16;

/// Most tools that one line names.
const MAX_NAMED: usize = 20;

/// The servers and tools as they were found.
#[derive(Clone, Debug, Default)]
pub(super) struct Inventory {
    /// Each server, by name.
    pub(super) servers: Vec<ServerLine>,
    /// Each upstream that was tried.
    pub(super) upstreams: Vec<Tried>,
    /// Each name of one's own, with the models behind it.
    pub(super) models: Vec<NamedLine>,
    /// Each group of functions with a service of its own that was tried.
    pub(super) services: Vec<Tried>,
    /// Each group of functions, by name.
    pub(super) functions: Vec<ServerLine>,
    /// Each tool that is offered, in the order of the offer.
    pub(super) tools: Vec<ToolLine>,
    /// What a server listed and is not offered.
    pub(super) dropped: Vec<Dropped>,
    /// Patterns of profiles that match no tool, where every server that they could mean is ready.
    pub(super) unmatched: Vec<Problem>,
    /// What one of the upstreams is not given, because it takes fewer tools.
    pub(super) left_out: Vec<SurplusTool>,
    /// All of it as `GET /tools` has it.
    pub(super) listing: Value,
}

/// One server.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ServerLine {
    /// Its name.
    #[serde(rename = "name")]
    pub(super) server: String,
    /// `starting`, `ready`, `restarting`, `failed` or `stopped`.
    pub(super) state: String,
    /// It can be called.
    pub(super) is_ready: bool,
    /// `stdio`, `http` or `sse`.
    pub(super) transport: String,
    /// The protocol version it speaks with us.
    pub(super) protocol_version: Option<String>,
    /// How many tools it has.
    pub(super) tools: usize,
    /// Why it failed.
    pub(super) last_error: Option<String>,
    /// The end of what it wrote to standard error.
    pub(super) stderr_tail: Vec<String>,
    /// Patterns in its `tools` that match none of its tools.
    pub(super) unmatched_patterns: Vec<String>,
    /// The tool that is called and that its `tools` hide.
    #[serde(skip)]
    pub(super) hides: Option<String>,
}

/// The result of a connection check.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Tried {
    /// Its name.
    pub(super) name: String,
    /// Why it cannot be used; absent where it can.
    pub(super) error: Option<String>,
}

/// A model under a name of one's own.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct NamedLine {
    /// The name.
    pub(super) name: String,
    /// The models behind it, in their order.
    pub(super) targets: Vec<Tried>,
}

/// One offered tool.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ToolLine {
    /// The name models call it by.
    pub(super) name: String,
    /// Its server.
    pub(super) server: String,
    /// The server's own name for it.
    pub(super) tool: String,
    /// What the model is told about it.
    pub(super) description: Option<String>,
    /// `name` is not just `server__tool`.
    pub(super) renamed: bool,
    /// What the person who configured the server should know.
    pub(super) notes: Vec<String>,
}

/// A tool that is not offered.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Dropped {
    /// Its server.
    pub(super) server: String,
    /// The server's own name for it.
    pub(super) tool: String,
    /// What is wrong with it.
    pub(super) reason: String,
}

impl Inventory {
    /// Every server and every group of functions can be called.
    pub(super) fn are_all_ready(&self) -> bool {
        let mut all = self.servers.iter().chain(&self.functions);
        all.all(|it| it.is_ready)
    }

    /// A line about each server and each group of functions that cannot be called.
    pub(super) fn what_is_wrong(&self) -> String {
        let all = self.servers.iter().chain(&self.functions);
        let odd = all.filter(|it| !it.is_ready);
        odd.map(|it| {
            format!(
                "{}\n",
                terminal::error(&terminal::safe(&it.what_is_wrong()))
            )
        })
        .collect()
    }

    /// Every server can be called, and everything else that was tried can be reached.
    pub(super) fn is_all_well(&self) -> bool {
        self.are_all_ready() && self.upstreams.iter().all(|it| it.error.is_none())
    }

    /// `toolway tools` for people, within so many columns.
    pub(super) fn tools_text(&self, width: Option<usize>) -> String {
        let mut out = String::new();
        for server in self.servers.iter().chain(&self.functions) {
            let state = terminal::count(server.tools, "tool");
            let state = match &server.last_error {
                _ if server.is_ready => terminal::dim(&state),
                Some(error) => format!("{}  {}", server.state_in_words(), terminal::safe(error)),
                None => server.state_in_words(),
            };
            out.push_str(&format!("{}  {state}\n", terminal::bold(&server.server)));
            let own = self
                .tools
                .iter()
                .filter(|tool| tool.server == server.server);
            let own: Vec<&ToolLine> = own.collect();
            let names = own
                .iter()
                .map(|tool| terminal::columns_of(&tool.name))
                .max();
            let left = width.map(|width| {
                // Two spaces before each column.
                let left = width.saturating_sub(names.unwrap_or_default() + 4);
                left.max(SHORTEST_DESCRIPTION)
            });
            let rows: Vec<_> = own.iter().map(|tool| tool.row(left)).collect();
            out.push_str(&terminal::columns(&rows));
        }
        if self.servers.is_empty() && self.functions.is_empty() {
            out.push_str("no MCP server is configured; `toolway tools --mcp FILE` takes the file of another client\n");
        }
        out
    }

    /// `toolway tools --json`: what `GET /tools` has, and how each server and each group of functions is.
    pub(super) fn tools_json(&self) -> serde_json::Result<String> {
        let mut all = self.listing.clone();
        all["servers"] = json!(self.servers);
        all["functions"] = json!(self.functions);
        Ok(serde_json::to_string_pretty(&all)? + "\n")
    }
}

impl ServerLine {
    /// Why it cannot be called, in a sentence.
    pub(super) fn what_is_wrong(&self) -> String {
        let why = self.last_error.as_deref().unwrap_or("it is still awaited");
        format!(
            "server `{}` is not ready ({}): {why}; `toolway check` says more",
            self.server, self.state
        )
    }

    /// Why a tool of this name cannot be called, where it is one of this server's.
    pub(super) fn why_not(&self, name: &str) -> Option<String> {
        let own = name.strip_prefix(&self.server)?;
        own.strip_prefix(SEPARATOR)?;
        match &self.hides {
            _ if !self.is_ready => Some(self.what_is_wrong()),
            Some(tool) => Some(format!(
                "`tools` of server `{}` hides `{tool}`, or the server has no such tool",
                self.server
            )),
            None => None,
        }
    }

    fn state_in_words(&self) -> String {
        if self.is_ready {
            terminal::good(&self.state)
        } else {
            terminal::bad(&self.state)
        }
    }

    fn row(&self) -> Vec<String> {
        let about = match &self.last_error {
            Some(error) if !self.is_ready => terminal::safe(error),
            _ => terminal::count(self.tools, "tool"),
        };
        vec![
            terminal::safe(&self.server),
            self.state_in_words(),
            terminal::safe(&self.transport),
            self.protocol_version
                .as_deref()
                .map(terminal::safe)
                .unwrap_or_default(),
            about,
        ]
    }
}

impl ToolLine {
    fn row(&self, width: Option<usize>) -> Vec<String> {
        let about = self.description.as_deref().unwrap_or_default();
        let about = terminal::brief(about, width.unwrap_or(usize::MAX));
        vec![terminal::safe(&self.name), terminal::dim(&about)]
    }
}

/// `toolway check` for people, when nothing is wrong with the configuration itself.
pub(super) fn check_text(config: &Config, inventory: Option<&Inventory>) -> String {
    let files: Vec<_> = config
        .files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let files = if files.is_empty() {
        "none, all defaults".to_owned()
    } else {
        files.join(", ")
    };
    let on = format!("{} ({})", config.server.bind, access(config));
    let mut out = format!("{}  {files}\n", terminal::bold("configuration"));
    out.push_str(&format!("{}  {}\n", terminal::bold("listens on"), on));
    out.push_str(&format!("{}\n", terminal::bold("upstreams")));
    let tried = inventory.map_or(&[][..], |inventory| &inventory.upstreams);
    let rows = upstreams_in_words(config).map(|row| {
        let tried = tried.iter().find(|it| it.name == row[0]);
        let error = tried.and_then(|it| it.error.as_deref()).map(terminal::bad);
        row.into_iter().chain(error).collect()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    out.push_str(&terminal::columns(&rows));
    for upstream in &config.upstreams {
        if let Some(text) = not_taken(upstream) {
            out.push_str(&note("note", &upstream.name, &text));
        }
    }
    if !config.models.is_empty() {
        let tried = inventory.map_or(&[][..], |inventory| &inventory.models);
        out.push_str(&format!("{}\n", terminal::bold("models")));
        let rows: Vec<_> = config
            .models
            .iter()
            .flat_map(|it| model_rows(it, tried))
            .collect();
        out.push_str(&terminal::columns(&rows));
    }
    let none = match (config.servers.is_empty(), config.functions.is_empty()) {
        (true, true) => {
            "  none; add `[servers.NAME]`, or `--mcp FILE` with the file of another client"
        }
        (true, false) => "  none",
        (false, _) => "",
    };
    out.push_str(&format!("{}{none}\n", terminal::bold("servers")));
    match inventory {
        Some(inventory) => out.push_str(&inventory_text(inventory)),
        None => {
            let names = config
                .servers
                .iter()
                .map(|server| vec![server.server.to_string()]);
            out.push_str(&terminal::columns(&names.collect::<Vec<_>>()));
            let groups = config.functions.iter();
            let groups: Vec<_> = groups.map(|it| vec![it.group.to_string()]).collect();
            if !groups.is_empty() {
                out.push_str(&format!("{}\n", terminal::bold("functions")));
                out.push_str(&terminal::columns(&groups));
            }
        }
    }
    for Problem { path, message } in &config.notes {
        let message = terminal::safe(message);
        out.push_str(&format!("{} {path}: {message}\n", terminal::dim("note:")));
    }
    let warnings = warnings(config, inventory);
    out.extend(warnings.iter().map(problems::warning));
    out
}

/// What the upstream's API does not take of a chat completion.
fn not_taken(upstream: &model::Config) -> Option<String> {
    let names = upstream.api.not_taken();
    let names = names.iter().map(|name| match *name {
        "n" => "n above 1",
        name => name,
    });
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then(|| format!("its API takes no {}", names.join(", ")))
}

/// A name of one's own, and a row for each model behind it.
fn model_rows(model: &NamedModel, tried: &[NamedLine]) -> Vec<Vec<String>> {
    let tried = tried.iter().find(|it| it.name == model.name);
    let tried = tried.map_or(&[][..], |it| &it.targets);
    let rows = model.targets.iter().enumerate().map(|(at, target)| {
        let name = if at == 0 { model.name.as_str() } else { "" };
        let weight = model.weights.get(at).map(|it| format!("weight {it}"));
        let error = tried.get(at).and_then(|it| it.error.as_deref());
        let mut row = vec![name.to_owned(), target.to_string()];
        row.extend(weight);
        row.extend(error.map(terminal::bad));
        row
    });
    rows.collect()
}

/// The warnings, with the patterns that match no tool; offline also the missing values.
fn warnings(config: &Config, inventory: Option<&Inventory>) -> Vec<Problem> {
    let problem = |path: String, message: String| Problem { path, message };
    let mut all = config.warnings.clone();
    let Some(inventory) = inventory else {
        let unset = config.unset.iter().cloned();
        all.extend(unset.map(|Problem { path, message }| {
            problem(path, format!("{message}; `toolway serve` needs it"))
        }));
        all.extend(config.servers.iter().filter_map(|it| match &it.transport {
            Transport::Unavailable { reason, .. } => Some(problem(
                format!("servers.{}", it.server),
                format!("is not started: {reason}"),
            )),
            _ => None,
        }));
        all.extend(config.functions.iter().filter_map(|it| match &it.kind {
            BackendKind::Unavailable { reason, .. } => Some(problem(
                format!("functions.{}", it.group),
                format!("is not offered: {reason}"),
            )),
            _ => None,
        }));
        return all;
    };
    for server in &inventory.servers {
        let path = format!("servers.{}", server.server);
        let patterns = server.unmatched_patterns.iter();
        all.extend(patterns.map(|it| problem(path.clone(), unmatched(it))));
    }
    all.extend(inventory.unmatched.iter().cloned());
    all
}

/// The message for a pattern in `tools` or `cache`.
pub(super) fn unmatched(pattern: &str) -> String {
    format!("pattern `{pattern}` matches no tool")
}

/// Who may send requests.
pub(super) fn access(config: &Config) -> String {
    let is_key = |it: &&Problem| it.path.starts_with("api_keys[") || it.path.starts_with("keys.");
    let unset = config.unset.iter().filter(is_key).count();
    let keys = config.server.api_keys.len() + unset;
    match (keys, unset) {
        (0, _) if config.server.allow_anonymous => "no API keys, open to every client".to_owned(),
        (0, _) => "no API keys, this machine only".to_owned(),
        (_, 0) => terminal::count(keys, "API key"),
        (1, _) => "1 API key, which is not set".to_owned(),
        (_, 1) => format!("{keys} API keys, 1 of them is not set"),
        _ => format!("{keys} API keys, {unset} of them are not set"),
    }
}

/// Each upstream: its name, address and models, and whose key goes there.
pub(super) fn upstreams_in_words(config: &Config) -> impl Iterator<Item = [String; 4]> {
    config.upstreams.iter().enumerate().map(|(i, upstream)| {
        let (key, headers) = (
            format!("upstreams[{i}].api_key"),
            format!("upstreams[{i}].headers."),
        );
        let is_key = |path: &str| {
            let header = path.strip_prefix(&headers);
            path == key || header.is_some_and(model::is_credential_name)
        };
        let is_unset = config.unset.iter().any(|it| is_key(&it.path));
        let models = match upstream.models.is_empty() {
            true => "every model".to_owned(),
            false => upstream.models.join(", "),
        };
        let takes_clients = upstream.client_key && config.server.api_keys.is_empty();
        let key = match (upstream.has_own_key(), takes_clients) {
            _ if is_unset => "with its own key, which is not set",
            (true, _) => "with its own key",
            (false, true) => "with the client's key",
            (false, false) if !upstream.headers.is_empty() => "with its own headers",
            (false, false) => "without a key",
        };
        [
            upstream.name.clone(),
            upstream.base_url.to_string(),
            models,
            key.to_owned(),
        ]
    })
}

fn inventory_text(inventory: &Inventory) -> String {
    let rows: Vec<_> = inventory.servers.iter().map(ServerLine::row).collect();
    let mut out = terminal::columns(&rows);
    if !inventory.functions.is_empty() {
        let rows: Vec<_> = inventory.functions.iter().map(ServerLine::row).collect();
        out.push_str(&format!("{}\n", terminal::bold("functions")));
        out.push_str(&terminal::columns(&rows));
    }
    for server in inventory.servers.iter().filter(|server| !server.is_ready) {
        for line in &server.stderr_tail {
            out.push_str(&format!(
                "  {} {}\n",
                terminal::dim(&server.server),
                terminal::safe(line)
            ));
        }
    }
    out.push_str(&format!(
        "{}  {} offered\n",
        terminal::bold("tools"),
        inventory.tools.len()
    ));
    for tool in &inventory.tools {
        if tool.renamed {
            let own = format!("{}/{}", tool.server, tool.tool);
            out.push_str(&note(
                "renamed",
                &own,
                &format!("is offered as {}", tool.name),
            ));
        }
        for text in &tool.notes {
            out.push_str(&note("note", &tool.name, text));
        }
    }
    for Dropped {
        server,
        tool,
        reason,
    } in &inventory.dropped
    {
        out.push_str(&note("dropped", &format!("{server}/{tool}"), reason));
    }
    for group in inventory.left_out.chunk_by(|a, b| a.upstream == b.upstream) {
        let Some(SurplusTool {
            upstream, reason, ..
        }) = group.first()
        else {
            continue;
        };
        let named = group.iter().take(MAX_NAMED).map(|it| it.name.as_str());
        let mut named = named.collect::<Vec<_>>().join(", ");
        if group.len() > MAX_NAMED {
            named.push_str(&format!(" and {} more", group.len() - MAX_NAMED));
        }
        let what = format!("{} for {upstream}", terminal::count(group.len(), "tool"));
        out.push_str(&note("left out", &what, &format!("{reason}: {named}")));
    }
    out
}

fn note(what: &str, name: &str, text: &str) -> String {
    format!(
        "  {} {}: {}\n",
        terminal::odd(what),
        terminal::safe(name),
        terminal::safe(text)
    )
}

/// `toolway check --json`, when nothing is wrong with the configuration itself.
pub(super) fn check_json(
    config: &Config,
    inventory: Option<&Inventory>,
) -> serde_json::Result<String> {
    let warnings: Vec<_> = warnings(config, inventory)
        .iter()
        .map(problems::as_json)
        .collect();
    let mut all = json!({
        "ok": inventory.is_none_or(Inventory::is_all_well),
        "files": config.files,
        "problems": [],
        "warnings": warnings,
        "notes": config.notes.iter().map(problems::as_json).collect::<Vec<_>>(),
    });
    let not_taken = config.upstreams.iter();
    let not_taken = not_taken.map(|it| (it.name.clone(), json!(it.api.not_taken())));
    all["not_taken"] = Value::Object(not_taken.collect());
    if let Some(inventory) = inventory {
        let renamed: Vec<&ToolLine> = inventory.tools.iter().filter(|tool| tool.renamed).collect();
        all["upstreams"] = json!(inventory.upstreams);
        all["models"] = json!(inventory.models);
        all["services"] = json!(inventory.services);
        all["servers"] = json!(inventory.servers);
        all["functions"] = json!(inventory.functions);
        all["tools"] = json!(inventory.tools.len());
        all["renamed"] = json!(renamed);
        all["dropped"] = json!(inventory.dropped);
        all["left_out"] = json!(inventory.left_out);
    }
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

#[cfg(test)]
mod tests {
    use std::io;

    use indoc::indoc;

    use super::*;
    use crate::config::{Environment, FileText, Given, Keys};

    fn config(text: &str) -> Config {
        load(text, &Given::default())
    }

    /// As `check --offline` reads it.
    fn config_offline(text: &str) -> Config {
        let keys = Keys::Used;
        load(
            text,
            &Given {
                keys,
                ..Given::default()
            },
        )
    }

    fn load(text: &str, given: &Given) -> Config {
        let read = |path: &std::path::Path| match path.ends_with("toolway.toml") {
            true => Ok(FileText {
                text: text.to_owned(),
                open_to_all: false,
            }),
            false => Err(io::ErrorKind::NotFound.into()),
        };
        let environment = Environment {
            env: &|_| None,
            read: &read,
            folder: "/w".into(),
        };
        Config::load(given, &environment).unwrap()
    }

    fn inventory() -> Inventory {
        let files = ServerLine {
            server: "files".into(),
            state: "ready".into(),
            is_ready: true,
            transport: "stdio".into(),
            protocol_version: Some("2025-11-25".into()),
            tools: 2,
            ..ServerLine::default()
        };
        let gone = ServerLine {
            server: "gone".into(),
            state: "failed".into(),
            transport: "stdio".into(),
            last_error: Some("`nope` was not found".into()),
            stderr_tail: vec!["sh: nope".into()],
            ..ServerLine::default()
        };
        let tool = |name: &str, own: &str, renamed| ToolLine {
            name: name.into(),
            server: "files".into(),
            tool: own.into(),
            description: Some("Reads a file.\nMore.".into()),
            renamed,
            ..ToolLine::default()
        };
        let dropped = Dropped {
            server: "files".into(),
            tool: "broken".into(),
            reason: "its schema is no object".into(),
        };
        let left_out = SurplusTool {
            upstream: "a".into(),
            name: "files__read".into(),
            reason: "it takes 1 tool".into(),
        };
        Inventory {
            servers: vec![files, gone],
            upstreams: vec![Tried {
                name: "a".into(),
                error: Some("it refuses the key".into()),
            }],
            models: Vec::new(),
            services: Vec::new(),
            functions: Vec::new(),
            unmatched: Vec::new(),
            tools: vec![
                tool("files__read", "read", false),
                tool("files__a_b_1f", "a.b", true),
            ],
            dropped: vec![dropped],
            left_out: vec![left_out],
            listing: Value::Null,
        }
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn tools_stand_under_their_server() {
        assert_eq!(
            plain(&inventory().tools_text(None)),
            indoc! {"
                files  2 tools
                  files__read    Reads a file.
                  files__a_b_1f  Reads a file.
                gone  failed  `nope` was not found
            "}
        );
    }

    #[test]
    fn descriptions_are_cut_to_the_width_of_the_terminal() {
        let text = plain(&inventory().tools_text(Some(33)));
        assert!(text.contains("  files__a_b_1f  Reads a file.\n"), "{text}");
        let mut long = inventory();
        long.tools[0].description = Some("Reads a file and says what is in it.".to_owned());
        let text = plain(&long.tools_text(Some(36)));
        assert!(
            text.contains("  files__read    Reads a file and s…\n"),
            "{text}"
        );
        let text = plain(&long.tools_text(None));
        assert!(text.contains("what is in it.\n"), "{text}");
    }

    #[test]
    fn no_server_at_all_says_what_to_do() {
        assert!(
            plain(&Inventory::default().tools_text(None))
                .starts_with("no MCP server is configured")
        );
    }

    #[test]
    fn check_names_what_is_odd() {
        let text = "[servers.files]\ncommand = 'x'\n[[upstreams]]\nbase_url = 'http://a/v1'\napi_key = 'sk'";
        assert_eq!(
            plain(&check_text(&config(text), Some(&inventory()))),
            indoc! {"
                configuration  toolway.toml
                listens on  127.0.0.1:4242 (no API keys, this machine only)
                upstreams
                  a  http://a/v1  every model  with its own key  it refuses the key
                servers
                  files  ready   stdio  2025-11-25  2 tools
                  gone   failed  stdio              `nope` was not found
                  gone sh: nope
                tools  2 offered
                  renamed files/a.b: is offered as files__a_b_1f
                  dropped files/broken: its schema is no object
                  left out 1 tool for a: it takes 1 tool: files__read
                warning: upstreams[0].api_key: a key in plain text; better write `env:NAME` or `file:PATH`
            "}
        );
    }

    #[test]
    fn check_lists_the_models_behind_a_name_and_what_an_api_does_not_take() {
        let text = indoc! {"
            [[upstreams]]
            name = 'a'
            base_url = 'http://a'
            api = 'responses'
            [models.fast]
            use = ['a/x', 'a/y']
            weights = [3, 1]
        "};
        let target = |name: &str, error: Option<&str>| Tried {
            name: name.to_owned(),
            error: error.map(str::to_owned),
        };
        let fast = NamedLine {
            name: "fast".to_owned(),
            targets: vec![target("a/x", None), target("a/y", Some("is silent"))],
        };
        let inventory = Inventory {
            models: vec![fast],
            ..Inventory::default()
        };
        let text = plain(&check_text(&config(text), Some(&inventory)));
        let expected = indoc! {"
              a  http://a/v1  every model  with the client's key
              note a: its API takes no n above 1, stop, seed, logit_bias, logprobs, top_logprobs, frequency_penalty, presence_penalty, prediction, audio, web_search_options
            models
              fast  a/x  weight 3
                    a/y  weight 1  is silent
        "};
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn a_key_in_the_headers_is_the_own_key_of_an_upstream() {
        let text = indoc! {"
            [[upstreams]]
            name = 'set'
            base_url = 'http://a'
            models = ['a*']
            headers = { Authorization = 'Bearer sk' }
            [[upstreams]]
            name = 'unset'
            base_url = 'http://a'
            models = ['b*']
            headers = { X-Goog-Api-Key = 'env:NOT_SET' }
            [[upstreams]]
            name = 'other'
            base_url = 'http://a'
            headers = { X-Team = 'one' }
        "};
        let config = config_offline(text);
        let keys = upstreams_in_words(&config).map(|[.., key]| key);
        let expected = [
            "with its own key",
            "with its own key, which is not set",
            "with its own headers",
        ];
        assert_eq!(keys.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_server_that_is_not_ready_is_not_ok() {
        let value: Value =
            serde_json::from_str(&check_json(&config(""), Some(&inventory())).unwrap()).unwrap();
        assert_eq!(value["ok"], false);
        assert_eq!(value["renamed"][0]["tool"], "a.b");
        let value: Value = serde_json::from_str(&check_json(&config(""), None).unwrap()).unwrap();
        assert_eq!(value["ok"], true);
        assert_eq!(value.get("servers"), None);
    }
}
