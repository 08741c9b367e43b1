//! The configuration: what was written, checked and completed, or a list of all its problems.
//!
//! [`RawConfig`] is the file as written; [`Config`] is checked and complete. Each module below owns its own `Config`;
//! this one puts them together, and nothing below imports it.
//!
//! Nothing here reads the environment or a file directly: both are passed in as [`Environment`], so that every rule can
//! be tested without them. Nothing is started and nothing is logged here.
//!
//! Where to read next: `raw` has every key with its meaning, `servers` and `upstreams` the rules,
//! `mcp_json` the files of other MCP clients.

mod audit;
mod check;
mod duration;
mod environment;
mod functions;
mod isolation;
mod jsonc;
mod keys;
mod listen;
mod mcp_json;
mod models;
mod policy;
mod problem;
mod profiles;
mod raw;
mod reference;
mod servers;
mod upstreams;
mod values;

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use self::{check::Check, models::Providers, servers::WrittenServer};
pub use self::{
    environment::{Environment, FileText},
    problem::Problem,
    raw::{
        RawApprovals, RawAudit, RawCondition, RawConfig, RawDuration, RawFunctions, RawKey,
        RawLoop, RawModel, RawPolicy, RawProfile, RawRule, RawServer, RawUpstream,
    },
    reference::reference,
};
use crate::{gateway, server, store, telemetry, upstream};
use toolway_core::policy::Policy;
use toolway_protocol::tool::{JsonObject, ServerId};

/// The file that is read when none is named.
pub const DEFAULT_FILE: &str = "toolway.toml";

/// The value of `data_dir` that keeps everything in memory, as SQLite has it.
const MEMORY: &str = ":memory:";

/// Everything toolway needs to know to run, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The listen address, and which clients are admitted.
    pub server: server::Config,
    /// The model providers, in the order they are tried; never empty.
    pub upstreams: Vec<upstream::model::Config>,
    /// Models under names of one's own; each name once.
    pub models: Vec<upstream::model::NamedModel>,
    /// The MCP servers that are switched on; each name once.
    pub servers: Vec<upstream::mcp::Config>,
    /// The groups of functions that are switched on; no name of one is that of a server.
    pub functions: Vec<upstream::function::Config>,
    /// What is behind `/mcp/NAME`; each name once.
    pub profiles: Vec<gateway::mcp::Profile>,
    /// Which calls may run.
    pub policy: Policy,
    /// The bounds of the tool loop.
    pub gateway: gateway::Config,
    /// Where is kept what outlives requests.
    pub data: store::DataDir,
    /// What is recorded of calls.
    pub audit: crate::audit::Config,
    /// What is logged, and how.
    pub telemetry: telemetry::Config,
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// Settings that work, but are probably mistakes.
    pub warnings: Vec<Problem>,
    /// Notes for `toolway check`.
    pub notes: Vec<Problem>,
    /// Values of `api_keys` and of upstreams that are not set, where [`Keys`] allows that.
    pub unset: Vec<Problem>,
}

/// What the command line adds to the file.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The configuration file; absent: [`DEFAULT_FILE`] in the working directory, if it is there.
    pub config: Option<PathBuf>,
    /// `mcpServers` files of other MCP clients.
    pub mcp: Vec<PathBuf>,
    /// Variables in which MCP Bridge finds servers (`MCP_SERVER_NAME_COMMAND` and so on); none if they are not to be read.
    pub mcp_variables: Vec<(String, String)>,
    /// The address to listen on; overrides the file.
    pub bind: Option<String>,
    /// The folder for what is kept between requests; overrides the file.
    pub data_dir: Option<PathBuf>,
    /// The one upstream; takes the place of those in the file.
    pub upstream: Option<String>,
    /// A definitions file: one more group of functions, which `endpoint` runs.
    pub functions: Option<PathBuf>,
    /// The webhook that runs `functions`.
    pub endpoint: Option<String>,
    /// Which keys must be there.
    pub keys: Keys,
}

/// Whether the values of `api_keys` and of upstreams must be set. Where those of an MCP server or a group of functions
/// are not, it counts as failed, in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// They must be set: clients and models are served.
    #[default]
    All,
    /// They need not be set: clients use no key, and models are used only by functions, which then count as failed.
    Used,
}

impl Config {
    /// Checks everything and reports every problem, not only the first.
    ///
    /// Relative paths in `raw` are taken from `environment.folder`.
    pub fn from_raw(raw: RawConfig, environment: &Environment<'_>) -> Result<Config, Vec<Problem>> {
        Check::new(environment).config(raw, Vec::new(), Vec::new())
    }

    /// Checks the definition of a server that is added while toolway runs: the keys of `[servers.NAME]`.
    ///
    /// # Errors
    /// Every problem, in one text.
    pub fn server(
        name: &str,
        definition: &JsonObject,
        environment: &Environment<'_>,
    ) -> Result<upstream::mcp::Config, String> {
        if definition.contains_key("cache") {
            return Err("`cache` is for servers of the configuration file".to_owned());
        }
        let raw = serde_json::Value::Object(definition.clone());
        let raw: RawServer = serde_json::from_value(raw).map_err(|error| error.to_string())?;
        let mut check = Check::new(environment);
        let written = WrittenServer::in_toml(name.to_owned(), raw);
        let mut servers = check.servers(std::iter::once(written));
        let problems = check.problems.iter();
        let problems: Vec<_> = problems
            .map(|it| format!("{}: {}", it.path, it.message))
            .collect();
        match servers.pop() {
            Some(server) if problems.is_empty() => Ok(server),
            None if problems.is_empty() => Err("`enabled` is false".to_owned()),
            _ => Err(problems.join("; ")),
        }
    }

    /// Reads the files that are named, or the default one, and checks everything together.
    pub fn load(given: &Given, environment: &Environment<'_>) -> Result<Config, Vec<Problem>> {
        let mut check = Check::new(environment);
        check.keys = given.keys;
        let mut files = Vec::new();
        let mut raw = match read_config(given, &mut check) {
            Some((path, text)) => {
                let raw = check.read_toml(&path, &text);
                let folder = path.parent().filter(|folder| *folder != Path::new(""));
                check.base =
                    folder.map_or(environment.folder.clone(), |it| environment.folder.join(it));
                files.push(path);
                raw
            }
            None => RawConfig::default(),
        };
        let mut written = Vec::new();
        for path in &given.mcp {
            written.extend(check.read_mcp_file(path));
            files.push(path.clone());
        }
        written.extend(check.servers_of_variables(&given.mcp_variables));
        if let Some(bind) = &given.bind {
            raw.bind = Some(bind.clone());
        }
        if let Some(folder) = &given.data_dir {
            let folder = match folder.to_str() {
                Some(MEMORY) => folder.clone(),
                _ => environment.folder.join(folder),
            };
            raw.data_dir = Some(folder.display().to_string());
        }
        if let Some(url) = &given.upstream {
            raw.upstreams = vec![upstreams::from_url(url)];
        }
        let group = given.group(&raw);
        if let (Some(name), Some(file)) = (&group, &given.functions) {
            let group = RawFunctions {
                definitions: Some(environment.folder.join(file).display().to_string()),
                endpoint: given.endpoint.clone(),
                ..RawFunctions::default()
            };
            raw.functions.insert(name.clone(), group);
            files.push(file.clone());
        }
        let checked = check.config(raw, written, files);
        let place = |it| given.place(it, group.as_deref());
        checked.map_err(|problems| problems.into_iter().map(place).collect())
    }
}

impl Given {
    /// The name of the group that `functions` makes: the file's, if it can be one and is free.
    fn group(&self, raw: &RawConfig) -> Option<String> {
        let stem = self.functions.as_ref()?.file_stem()?.to_str();
        let is_free = |name: &&str| {
            ServerId::parse(name).is_ok()
                && !raw.functions.contains_key(*name)
                && !raw.servers.contains_key(*name)
        };
        Some(stem.filter(is_free).unwrap_or("functions").to_owned())
    }

    /// A problem with an option names the option, not the key that it sets.
    fn place(&self, problem: Problem, group: Option<&str>) -> Problem {
        let in_group =
            |key: &str| group.is_some_and(|name| problem.path == format!("functions.{name}.{key}"));
        let option = match problem.path.as_str() {
            "bind" if self.bind.is_some() => "--bind",
            "data_dir" if self.data_dir.is_some() => "--data-dir",
            "upstreams[0].base_url" if self.upstream.is_some() => "--upstream",
            _ if in_group("definitions") => "--functions",
            _ if in_group("endpoint") => "--endpoint",
            _ => return problem,
        };
        Problem {
            path: option.to_owned(),
            ..problem
        }
    }
}

/// The text of the configuration file; a missing default file is no problem, a missing named one is.
fn read_config(given: &Given, check: &mut Check<'_>) -> Option<(PathBuf, String)> {
    let path = given.config.clone().unwrap_or_else(|| DEFAULT_FILE.into());
    match (check.environment.read)(&check.environment.folder.join(&path)) {
        Ok(file) => Some((path, file.text)),
        Err(error) if given.config.is_none() && error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            check.problem(path.display(), format!("cannot be read: {error}"));
            None
        }
    }
}

impl Check<'_> {
    /// Builds the configuration, or returns all its problems.
    fn config(
        mut self,
        raw: RawConfig,
        written: Vec<WrittenServer>,
        files: Vec<PathBuf>,
    ) -> Result<Config, Vec<Problem>> {
        let (api_keys, scopes) = self.keys(&raw).into_iter().unzip();
        let server = self.listen(&raw, api_keys);
        let mut policy = self.policy(&raw, scopes);
        self.settle_missing();
        let telemetry = self.telemetry(&raw);
        let data = self.data(raw.data_dir.as_deref());
        let audit = self.audit(&raw.audit);
        let upstreams = self.upstreams(raw.upstreams, &raw.models);
        let models = self.named_models(raw.models, &upstreams);
        self.settle_missing();
        let mut gateway = self.bounds(&raw.limits);
        gateway.approvals = self.approvals(&raw.approvals);
        gateway.start_wait = self.time("start_wait", raw.start_wait, gateway.start_wait);
        let in_file = raw
            .servers
            .into_iter()
            .map(|(name, raw)| WrittenServer::in_toml(name, raw));
        let written: Vec<_> = in_file.chain(written).collect();
        let imported = written.iter().filter(|it| it.raw.enabled != Some(false));
        policy
            .rules
            .extend(imported.flat_map(|it| it.rules.clone()));
        let switched_off = switched_off(&written, &raw.functions);
        let servers = self.servers(written.into_iter());
        let providers = Providers {
            upstreams: &upstreams,
            models: &models,
        };
        let functions = self.functions(raw.functions, &servers, providers);
        let groups = functions.iter().map(|it| it.group.clone());
        let known: Vec<_> = servers
            .iter()
            .map(|it| it.server.clone())
            .chain(groups)
            .collect();
        let profiles = self.profiles(raw.profiles, &known, &switched_off);
        if self.keys == Keys::All {
            self.compare_keys(&server, &upstreams);
        }
        if self.problems.is_empty() {
            let mut config = Config {
                server,
                upstreams,
                models,
                servers,
                functions,
                profiles,
                policy,
                gateway,
                data,
                audit,
                telemetry,
                files,
                warnings: self.warnings,
                notes: self.notes,
                unset: self.unset,
            };
            config.audit.redaction.secrets = config.secrets();
            Ok(config)
        } else {
            Err(self.problems)
        }
    }
}

impl Check<'_> {
    /// Where is kept what outlives requests.
    fn data(&mut self, written: Option<&str>) -> store::DataDir {
        match written {
            None => store::DataDir::Default,
            Some(MEMORY) => store::DataDir::Memory,
            Some("") => {
                self.problem(
                    "data_dir",
                    format_args!("must name a folder, or be \"{MEMORY}\""),
                );
                store::DataDir::Default
            }
            Some(folder) => store::DataDir::Folder(self.base.join(folder)),
        }
    }
}

/// The names of servers and groups that have `enabled = false`.
fn switched_off(
    servers: &[WrittenServer],
    functions: &BTreeMap<String, RawFunctions>,
) -> Vec<ServerId> {
    let servers = servers.iter().map(|it| (&it.name, it.raw.enabled));
    let functions = functions.iter().map(|(name, raw)| (name, raw.enabled));
    let off = servers.chain(functions).filter(|it| it.1 == Some(false));
    off.filter_map(|(name, _)| ServerId::parse(name).ok())
        .collect()
}

#[cfg(test)]
mod tests;
