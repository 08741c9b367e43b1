//! The MCP servers: from `toolway.toml` and from the files of other MCP clients, by the same rules.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use super::{
    check::Check,
    keys::unknown,
    problem::Problem,
    raw::{RawDuration, RawServer},
    values::Origin,
};
use crate::secret::Secret;
use crate::upstream::{
    MAX_WAITING,
    mcp::{self, HttpKind, Transport},
};
use toolway_core::{
    catalog::{Risk, ServerRisk, ToolFilter},
    policy::Rule,
    route::cache::CacheRules,
};
use toolway_protocol::tool::ServerId;

/// The name that is reserved for the gateway's own tools.
const RESERVED: &str = "toolway";

/// One server as it was written, and where.
#[derive(Clone, Debug)]
pub(super) struct WrittenServer {
    /// Where it stands, for problems.
    pub(super) path: String,
    /// Its name; in the alphabet of [`ServerId`] unless it came from `toolway.toml`.
    pub(super) name: String,
    /// What it says.
    pub(super) raw: RawServer,
    /// Decides what its texts may refer to.
    pub(super) origin: Origin,
    /// What it says about its tools for the policy.
    pub(super) rules: Vec<Rule>,
    /// Values that it needs and that are not there.
    pub(super) missing: Vec<Problem>,
}

/// How a server is reached, as its `type` says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerKind {
    Stdio,
    Http(HttpKind),
}

impl WrittenServer {
    /// A `[servers.NAME]` table.
    pub(super) fn in_toml(name: String, raw: RawServer) -> WrittenServer {
        WrittenServer {
            path: format!("servers.{name}"),
            name,
            raw,
            origin: Origin::Toml,
            rules: Vec::new(),
            missing: Vec::new(),
        }
    }
}

/// A program that is started, as far as it is written.
pub(super) struct Started {
    pub(super) command: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, Secret)>,
    pub(super) cwd: Option<PathBuf>,
}

impl WrittenServer {
    /// The entry with which another MCP client starts or reaches toolway, as `toolway mcp --print-config` writes it.
    fn is_toolway_itself(&self) -> bool {
        if !matches!(self.origin, Origin::McpFile { .. }) {
            return false;
        }
        let program = self.raw.command.as_deref().map(std::path::Path::new);
        let is_program = program.is_some_and(|it| it.file_stem().is_some_and(|it| it == RESERVED));
        let first = self.raw.args.iter().flatten().next();
        self.name == RESERVED || (is_program && first.is_some_and(|it| it == "mcp"))
    }
}

impl Check<'_> {
    /// All servers that are switched on; each name once.
    pub(super) fn servers(
        &mut self,
        written: impl Iterator<Item = WrittenServer>,
    ) -> Vec<mcp::Config> {
        let mut before: BTreeMap<String, (String, RawServer)> = BTreeMap::new();
        let mut servers = Vec::new();
        for one in written.filter(|one| one.raw.enabled != Some(false)) {
            if one.is_toolway_itself() {
                // toolway would start itself again and again.
                self.warn(&one.path, "is toolway itself, and left out");
                continue;
            }
            match before.get(&one.name) {
                Some((first, raw)) if *raw == one.raw => {
                    self.warn(
                        &one.path,
                        format_args!("is the same as {first}, and used once"),
                    );
                }
                Some((first, _)) => {
                    let message = format!(
                        "the name `{}` is taken by {first}; rename or remove one of them",
                        one.name
                    );
                    self.problem(&one.path, message);
                }
                None => {
                    let place = match one.origin {
                        Origin::Toml => format!("`{}` in the configuration file", one.path),
                        Origin::McpFile { .. } => one.path.clone(),
                    };
                    before.insert(one.name.clone(), (place, one.raw.clone()));
                    servers.extend(self.server(one));
                }
            }
        }
        servers
    }

    fn server(&mut self, written: WrittenServer) -> Option<mcp::Config> {
        let WrittenServer {
            path,
            name,
            raw,
            origin,
            rules: _,
            missing,
        } = written;
        let server = self.name(&path, &name);
        let key = |key: &str| format!("{path}.{key}");
        let stateful = raw.stateful.unwrap_or(false);
        let beside = if stateful { 1 } else { 16 };
        let parallel_calls =
            self.number(key("parallel_calls"), raw.parallel_calls, 1..=1000, beside);
        if stateful && parallel_calls > 1 {
            self.problem(
                key("parallel_calls"),
                "calls on a `stateful` server run one after another; leave this out",
            );
        }
        let idle_stop = self.idle_stop(&path, &raw);
        let instances = self.number(key("instances"), raw.instances, 1..=64, 1);
        if stateful && instances > 1 {
            let message = "a `stateful` server has one instance; leave this out";
            self.problem(key("instances"), message);
        }
        let queue = self.number(key("queue"), raw.queue, 0..=10_000, MAX_WAITING);
        let queue_wait = raw
            .queue_wait
            .map(|wait| self.time(key("queue_wait"), Some(wait), Duration::ZERO));
        let start_timeout = self.time(
            key("start_timeout"),
            raw.start_timeout,
            Duration::from_secs(60),
        );
        let max_message_bytes = self.number(
            key("max_message_bytes"),
            raw.max_message_bytes,
            1024..=1 << 30,
            16 << 20,
        );
        let required = raw.required.unwrap_or(false);
        let tools = self.tools(&key("tools"), raw.tools.as_deref());
        let cache = self.cache_rules(&key("cache"), raw.cache.as_ref());
        let risk = self.risk(&path, &raw);
        let kind = match (&raw.command, raw.kind.as_deref()) {
            (Some(_), _) => "stdio",
            (None, Some("sse")) => "sse",
            (None, _) => "http",
        };
        let (transport, more) = self.reading(|check| check.transport(&path, raw, &origin));
        let missing = [missing, more].concat();
        let transport = match missing.is_empty() {
            true => transport,
            false => Some(Transport::Unavailable {
                kind,
                reason: missing_values(&path, &missing),
            }),
        };
        Some(mcp::Config {
            server: server?,
            transport: transport?,
            stateful,
            start_timeout,
            idle_stop,
            instances,
            parallel_calls,
            queue,
            queue_wait,
            max_message_bytes,
            required,
            tools,
            risk,
            cache,
        })
    }

    /// How long the server runs without use; `None`: always.
    fn idle_stop(&mut self, path: &str, raw: &RawServer) -> Option<Duration> {
        let is_on_demand = match raw.start.as_deref() {
            None | Some("eager") => false,
            Some("on_demand") => true,
            Some(other) => {
                let message = format_args!("must be \"eager\" or \"on_demand\", not \"{other}\"");
                self.problem(format_args!("{path}.start"), message);
                return None;
            }
        };
        let path = format_args!("{path}.idle_stop").to_string();
        if raw.idle_stop.is_some() && !is_on_demand {
            self.problem(&path, "is for servers with `start = \"on_demand\"`");
        }
        let idle_stop = self.time(&path, raw.idle_stop, Duration::from_secs(600));
        is_on_demand.then_some(idle_stop)
    }

    fn risk(&mut self, path: &str, raw: &RawServer) -> ServerRisk {
        let server = raw.risk.map(|it| (format!("{path}.risk"), it));
        let server = server.and_then(|(path, number)| self.risk_level(&path, number));
        let tools = raw
            .risk_of
            .iter()
            .flatten()
            .filter_map(|(pattern, number)| {
                let level = self.risk_level(&format!("{path}.risk_of.\"{pattern}\""), *number)?;
                Some((pattern.clone(), level))
            });
        ServerRisk {
            server,
            tools: tools.collect(),
            is_isolated: raw.isolation.is_some() && raw.command.is_some(),
        }
    }

    fn risk_level(&mut self, path: &str, number: i64) -> Option<Risk> {
        let level = Risk::of_number(number);
        if level.is_none() {
            let message = format_args!("must be 1 (low), 2 (medium) or 3 (high), not {number}");
            self.problem(path, message);
        }
        level
    }

    fn cache_rules(
        &mut self,
        path: &str,
        raw: Option<&BTreeMap<String, RawDuration>>,
    ) -> CacheRules {
        let rules = raw.into_iter().flatten().map(|(pattern, lasts)| {
            let path = format_args!("{path}.\"{pattern}\"");
            let lasts = match lasts.0.is_zero() {
                true => Duration::ZERO,
                false => self.time(path, Some(*lasts), Duration::ZERO),
            };
            (pattern.clone(), lasts)
        });
        CacheRules::new(rules.collect())
    }

    fn tools(&mut self, path: &str, patterns: Option<&[String]>) -> ToolFilter {
        if patterns.is_some_and(<[_]>::is_empty) {
            let advice =
                "is empty; leave it out for every tool, or write `enabled = false` for no server";
            self.problem(path, advice);
        }
        let patterns = patterns.unwrap_or_default();
        for (i, pattern) in patterns.iter().enumerate() {
            if pattern.trim_start_matches('!').is_empty() {
                self.problem(format_args!("{path}[{i}]"), "must not be empty");
            }
        }
        ToolFilter::new(patterns)
    }

    /// The name of a server or of a group of functions.
    pub(super) fn name(&mut self, path: &str, name: &str) -> Option<ServerId> {
        if name == RESERVED {
            self.problem(
                path,
                "`toolway` is the name of the gateway's own tools; choose another",
            );
            return None;
        }
        let parsed = ServerId::parse(name);
        parsed.map_err(|error| self.problem(path, error)).ok()
    }

    fn transport(&mut self, path: &str, raw: RawServer, origin: &Origin) -> Option<Transport> {
        let kind = match &raw.kind {
            Some(kind) => Some(self.kind(path, kind, origin)?),
            None => None,
        };
        match (&raw.command, &raw.url) {
            (None, None) => {
                self.problem(path, "needs a `command` to start or a `url` to connect to");
                None
            }
            (Some(_), Some(_)) => {
                self.problem(path, "has both `command` and `url`; give one of them");
                None
            }
            (Some(command), None) => {
                if matches!(kind, Some(ServerKind::Http(_))) {
                    self.problem(
                        format_args!("{path}.type"),
                        "is for a `url`, not for a `command`",
                    );
                }
                self.unused(path, origin, "headers", raw.headers.is_some(), "url");
                self.stdio(path, command, &raw, origin)
            }
            (None, Some(url)) => {
                if kind == Some(ServerKind::Stdio) {
                    self.problem(
                        format_args!("{path}.type"),
                        "is for a `command`, not for a `url`",
                    );
                }
                self.unused(path, origin, "args", raw.args.is_some(), "command");
                self.unused(path, origin, "env", raw.env.is_some(), "command");
                self.unused(path, origin, "cwd", raw.cwd.is_some(), "command");
                let inherits = raw.inherit_env.is_some();
                self.unused(path, origin, "inherit_env", inherits, "command");
                let is_isolated = raw.isolation.is_some();
                self.unused(path, origin, "isolation", is_isolated, "command");
                let at = format!("{path}.url");
                let url = self
                    .text(&at, url, origin)
                    .and_then(|url| self.url(&at, &url));
                let headers = self.headers(&format!("{path}.headers"), raw.headers, origin);
                let kind = match kind {
                    Some(ServerKind::Http(kind)) => Some(kind),
                    Some(ServerKind::Stdio) | None => None,
                };
                Some(Transport::Http {
                    url: url?,
                    headers,
                    kind,
                })
            }
        }
    }

    /// Other clients have transports that toolway does not support; a server with one of them is skipped, the rest
    /// still work.
    fn kind(&mut self, path: &str, written: &str, origin: &Origin) -> Option<ServerKind> {
        match written {
            "stdio" => Some(ServerKind::Stdio),
            "http" | "streamable-http" => Some(ServerKind::Http(HttpKind::Streamable)),
            "sse" => Some(ServerKind::Http(HttpKind::Sse)),
            other => {
                let message = unknown("type", other, &["stdio", "http", "streamable-http", "sse"]);
                let path = format!("{path}.type");
                match origin {
                    Origin::Toml => self.problem(path, message),
                    Origin::McpFile { .. } => self.missing(path, message),
                }
                None
            }
        }
    }

    /// In `toolway.toml` a key that has no effect is a problem; other clients' files are taken as they are.
    fn unused(&mut self, path: &str, origin: &Origin, key: &str, is_there: bool, belongs_to: &str) {
        if is_there && matches!(origin, Origin::Toml) {
            self.problem(
                format_args!("{path}.{key}"),
                format_args!("belongs to a server with a `{belongs_to}`"),
            );
        }
    }

    fn stdio(
        &mut self,
        path: &str,
        command: &str,
        raw: &RawServer,
        origin: &Origin,
    ) -> Option<Transport> {
        let (args, env) = (raw.args.as_ref(), raw.env.as_ref());
        let program = self.started(path, command, args, env, raw.cwd.as_ref(), origin)?;
        let mut env = self.inherited(&format!("{path}.inherit_env"), raw.inherit_env.as_deref());
        // What is set here wins, because it comes later.
        env.extend(program.env);
        let isolation = match &raw.isolation {
            Some(isolation) => {
                Some(self.isolation(&format!("{path}.isolation"), isolation, origin)?)
            }
            None => None,
        };
        Some(Transport::Stdio {
            command: program.command,
            args: program.args,
            env,
            cwd: program.cwd,
            isolation: isolation.map(Box::new),
        })
    }

    /// The variables of toolway's own environment that a process gets, where they are set.
    fn inherited(&mut self, path: &str, names: Option<&[String]>) -> Vec<(String, Secret)> {
        let mut env = Vec::new();
        for (i, name) in names.unwrap_or_default().iter().enumerate() {
            if name.is_empty() || name.contains(['=', '\0', '*']) {
                let path = format!("{path}[{i}]");
                self.problem(
                    path,
                    format_args!("`{name}` is no name of an environment variable"),
                );
            } else if let Some(value) = (self.environment.env)(name) {
                env.push((name.clone(), Secret::new(value)));
            }
        }
        env
    }

    /// A program that is started: an MCP server, or what runs functions.
    pub(super) fn started(
        &mut self,
        path: &str,
        command: &str,
        args: Option<&Vec<String>>,
        env: Option<&BTreeMap<String, String>>,
        cwd: Option<&String>,
        origin: &Origin,
    ) -> Option<Started> {
        let key = |key: &str| format!("{path}.{key}");
        let command = self.text(&key("command"), command, origin);
        if let Some(command) = &command {
            self.check_command(&key("command"), command, args.is_some());
        }
        let written = args.into_iter().flatten().enumerate();
        let args: Vec<Option<String>> = written
            .map(|(i, arg)| self.text(&key(&format!("args[{i}]")), arg, origin))
            .collect();
        let env = self.env(&key("env"), env, origin);
        let cwd = match cwd {
            Some(cwd) => Some(self.folder(&key("cwd"), cwd, origin)?),
            None => None,
        };
        Some(Started {
            command: command.filter(|command| !command.trim().is_empty())?,
            args: args.into_iter().collect::<Option<_>>()?,
            env,
            cwd,
        })
    }

    fn check_command(&mut self, path: &str, command: &str, has_args: bool) {
        if command.trim().is_empty() {
            self.problem(path, "must not be empty");
        } else if !has_args && command.contains(' ') && !command.contains(['/', '\\']) {
            let (program, rest) = command.trim().split_once(' ').unwrap_or((command, ""));
            self.warn(
                path,
                format_args!(
                    "is one program named `{command}`; if `{rest}` are arguments of `{program}`, \
                     write them in `args`"
                ),
            );
        }
    }

    pub(super) fn env(
        &mut self,
        path: &str,
        written: Option<&BTreeMap<String, String>>,
        origin: &Origin,
    ) -> Vec<(String, Secret)> {
        let mut env = Vec::new();
        for (name, value) in written.into_iter().flatten() {
            let path = format!("{path}.{name}");
            if name.is_empty() || name.contains(['=', '\0']) {
                self.problem(&path, "is no name of an environment variable");
                continue;
            }
            let Some(value) = self.value(&path, value, origin) else {
                continue;
            };
            if value.contains('\0') {
                self.problem(&path, "holds a zero byte, which no environment can");
                continue;
            }
            env.push((name.clone(), Secret::new(value)));
        }
        env
    }

    pub(super) fn folder(&mut self, path: &str, written: &str, origin: &Origin) -> Option<PathBuf> {
        let text = self.text(path, written, origin)?;
        if text.is_empty() {
            self.problem(path, "must not be empty");
            return None;
        }
        Some(self.folder_of(origin).join(text))
    }
}

/// Why a server or a group of functions is unavailable: its missing values, by their paths within its entry.
pub(super) fn missing_values(path: &str, missing: &[Problem]) -> String {
    let within = |problem: &Problem| {
        let place = problem.path.strip_prefix(path).unwrap_or(&problem.path);
        let place = place.trim_start_matches('.');
        match place.is_empty() {
            true => problem.message.clone(),
            false => format!("`{place}`: {}", problem.message),
        }
    };
    missing.iter().map(within).collect::<Vec<_>>().join("; ")
}
