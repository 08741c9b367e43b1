//! The command line. The texts here are the manual: they are the output of `--help`, which the README quotes.

use std::{net::SocketAddr, path::PathBuf};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tracing::Level;

use super::approvals::Remembered;
use super::mcp::Show;
use crate::{
    config::{Given, Keys},
    telemetry::LogFilter,
};
use toolway_core::audit::params::AuditParams;

/// One gateway between OpenAI tool calls and the Model Context Protocol.
///
/// Point the base URL of any OpenAI client at toolway, and the model behind it gets the tools of every MCP
/// server you name. toolway runs the calls and streams one answer back.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  toolway demo                                      see it work; needs no key and no network
  toolway serve --mcp claude_desktop_config.json    the tools you already have, with OpenAI
  toolway serve --upstream http://localhost:11434   models of Ollama
  toolway check                                     what is wrong with toolway.toml?"
)]
pub struct Cli {
    #[command(flatten)]
    pub(super) log: LogArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

// How much is said on standard error. (No doc comment: clap would take it for the text of the command.)
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Log")]
pub(super) struct LogArgs {
    /// Log more: `-v` for details, `-vv` for everything.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with_all = ["quiet", "log"])]
    verbose: u8,
    /// Log less: `-q` for warnings, `-qq` for errors.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "log")]
    quiet: u8,
    /// A level, or a filter such as `info,toolway::upstream=debug`.
    #[arg(long, global = true, value_name = "FILTER", env = "TOOLWAY_LOG", hide_env_values = true, value_parser = LogFilter::parse)]
    log: Option<LogFilter>,
    /// What is logged unless something else is asked for; absent: what the configuration says.
    #[arg(skip)]
    default: Option<Level>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Serve(ServeArgs),
    Mcp(McpArgs),
    Check(CheckArgs),
    Tools(ToolsArgs),
    Call(CallArgs),
    Approvals(ApprovalsArgs),
    Approve(ApproveArgs),
    Deny(DenyArgs),
    Audit(AuditArgs),
    Demo(DemoArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "\
Examples:
  toolway completions bash > ~/.local/share/bash-completion/completions/toolway
  toolway completions zsh > \"${fpath[1]}/_toolway\"")]
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// The MCP server that `demo` starts.
    #[command(hide = true)]
    DemoServer,
}

/// Run the gateway until Ctrl-C.
///
/// Without options it reads toolway.toml in the working directory, if there is one; otherwise it
/// listens on 127.0.0.1:4242 and passes requests on to OpenAI with the client's own key.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway serve
  toolway serve --config toolway.toml --bind 127.0.0.1:8080
  toolway serve --upstream http://localhost:11434 --mcp ~/.cursor/mcp.json --mcp .vscode/mcp.json")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    pub(super) files: FileArgs,
    #[command(flatten)]
    pub(super) listen: ListenArgs,
}

/// Serve MCP on standard input and output, for a client that starts toolway.
///
/// Claude, Cursor, VS Code and every other MCP client sees everything behind toolway as one server. Standard output
/// carries only the protocol; no port is opened.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway mcp
  toolway mcp --print-config claude --config toolway.toml
  toolway mcp --functions billing.json --endpoint http://127.0.0.1:9000/tool_calls")]
pub(super) struct McpArgs {
    #[command(flatten)]
    pub(super) files: FileArgs,
    #[command(flatten)]
    pub(super) data: DataArgs,
    /// A file of OpenAI-style functions (a `tools` array) to add. Without any server they keep their own names.
    #[arg(short, long, value_name = "FILE", requires = "endpoint")]
    pub(super) functions: Option<PathBuf>,
    /// The webhook that runs these functions: it receives `tool_calls` and answers `tool_responses`.
    #[arg(short, long, value_name = "URL", requires = "functions")]
    pub(super) endpoint: Option<String>,
    /// Offer only what `[profiles.NAME]` shows.
    #[arg(short, long, value_name = "NAME")]
    pub(super) profile: Option<String>,
    /// Print the entry for a client's settings that starts toolway with these options.
    #[arg(long, value_name = "CLIENT")]
    pub(super) print_config: Option<KnownClient>,
}

/// A client whose settings are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum KnownClient {
    /// Claude Desktop.
    Claude,
    /// Claude Code.
    ClaudeCode,
    /// Cursor.
    Cursor,
    /// Visual Studio Code.
    #[value(name = "vscode")]
    VsCode,
}

// Where the configuration is. (No doc comment, see above.)
#[derive(Clone, Debug, Args)]
pub(super) struct FileArgs {
    /// The configuration file [default: toolway.toml, if it is there].
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "TOOLWAY_CONFIG",
        hide_env_values = true
    )]
    config: Option<PathBuf>,
    /// An `mcpServers` file of another MCP client (Claude, Cursor, VS Code, Windsurf); may be repeated.
    #[arg(short, long, value_name = "FILE")]
    mcp: Vec<PathBuf>,
    /// Also takes servers from the variables of MCP Bridge: MCP_SERVER_NAME_COMMAND, _ARGS, _ENV, _RISK_LEVEL, _DOCKER_CONFIG.
    #[arg(long)]
    mcp_env: bool,
}

// What overrides the configuration. (No doc comment, see above.)
#[derive(Clone, Debug, Args)]
pub(super) struct ListenArgs {
    /// The address to listen on [default: 127.0.0.1:4242].
    #[arg(short, long, value_name = "ADDR")]
    bind: Option<String>,
    #[command(flatten)]
    data: DataArgs,
    /// The model provider, in place of those in the file; without a path it gets `/v1`, as `base_url` does.
    #[arg(short, long, value_name = "URL")]
    upstream: Option<String>,
}

// Where what is kept is. (No doc comment, see above.)
#[derive(Clone, Debug, Args)]
pub(super) struct DataArgs {
    /// The folder for what toolway keeps between requests; `:memory:` keeps it in memory.
    #[arg(
        long,
        value_name = "DIR",
        env = "TOOLWAY_DATA_DIR",
        hide_env_values = true
    )]
    pub(super) data_dir: Option<PathBuf>,
}

/// Check the configuration, the servers, the upstreams and the webhooks.
///
/// Prints every problem of the configuration with its path and exits 2. If there is none it starts the MCP servers,
/// tries to reach the upstreams and webhooks (no tool runs), and names the tools that were renamed, dropped or left
/// out; it exits 1 if a server is not ready or something cannot be reached.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway check
  toolway check --config toolway.toml --offline
  toolway check --json | jq '.problems[].path'
  toolway check --explain files__write '{\"path\": \"/etc/hosts\"}' --key alice")]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pub(super) files: FileArgs,
    #[command(flatten)]
    pub(super) listen: ListenArgs,
    /// Check only the configuration; start no server and connect to nothing.
    #[arg(long)]
    pub(super) offline: bool,
    /// Say whether a call of this tool would run, and which rules say so; ARGS is a JSON object.
    #[arg(long, num_args = 1..=2, value_names = ["TOOL", "ARGS"], conflicts_with = "offline")]
    pub(super) explain: Vec<String>,
    /// The key of the client for `--explain`: a name of `[keys.NAME]`, or `api_keys[0]`.
    #[arg(long, requires = "explain")]
    pub(super) key: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// List the tools that are offered to models.
///
/// Exits 1 if a server is not ready.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway tools
  toolway tools --mcp claude_desktop_config.json
  toolway tools --json | jq -r '.tools[].name'")]
pub(super) struct ToolsArgs {
    #[command(flatten)]
    pub(super) files: FileArgs,
    /// Print JSON, with the schemas.
    #[arg(long)]
    pub(super) json: bool,
}

/// Call one tool, the way a model would.
///
/// The arguments are checked against the tool's schema before anything is sent; if they do not fit, it exits 2.
/// Exits 1 if the tool fails or does not exist.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway call time__get_current_time '{\"timezone\": \"Europe/Berlin\"}'
  toolway call files__list_directory '{\"path\": \".\"}' --json")]
pub(super) struct CallArgs {
    #[command(flatten)]
    pub(super) files: FileArgs,
    #[command(flatten)]
    data: DataArgs,
    /// The tool's name, as `toolway tools` lists it.
    pub(super) name: String,
    /// The arguments, a JSON object.
    #[arg(default_value = "{}")]
    pub(super) arguments: String,
    /// Print JSON, as the tool returned it.
    #[arg(long)]
    pub(super) json: bool,
}

// The running gateway. (No doc comment, see above.)
#[derive(Clone, Debug, Args)]
pub(super) struct RunningArgs {
    #[command(flatten)]
    pub(super) files: FileArgs,
    /// The URL of the running gateway [default: `bind` of the configuration].
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// The name of the key to use, of `[keys.NAME]` or `api_keys[0]` [default: the first].
    #[arg(long, value_name = "NAME")]
    pub(super) key: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// List the calls that wait for approval at the running gateway.
///
/// The policy says which calls do (`action = "ask"`, `risk = 2`); docs/approvals.md tells more.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway approvals
  toolway approvals --json | jq -r '.confirmations[].confirmation_id'
  toolway approvals --remembered")]
pub(super) struct ApprovalsArgs {
    #[command(flatten)]
    pub(super) running: RunningArgs,
    /// List what was approved for later calls (`approve --remember`) instead.
    #[arg(long)]
    pub(super) remembered: bool,
    /// Take one of these back.
    #[arg(long, value_name = "ID", conflicts_with = "remembered")]
    pub(super) revoke: Option<String>,
}

/// Approve a call that waits at the running gateway; it is made once.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway approve cf_x8Yk
  toolway approve cf_x8Yk --remember tool --session")]
pub(super) struct ApproveArgs {
    #[command(flatten)]
    pub(super) running: RunningArgs,
    /// The id of the call, or its beginning, as `toolway approvals` lists it.
    pub(super) id: String,
    /// Approve later calls as well: the same call, or every call of the tool.
    #[arg(long, value_name = "WHAT")]
    pub(super) remember: Option<RememberWhat>,
    /// Only as long as the session of the request.
    #[arg(long, requires = "remember")]
    pub(super) session: bool,
}

/// Which later calls are approved as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RememberWhat {
    /// The same call.
    Call,
    /// Every call of the tool.
    Tool,
}

/// Deny a call that waits at the running gateway; the same call stays denied for `approvals.expires`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway deny cf_x8Yk")]
pub(super) struct DenyArgs {
    #[command(flatten)]
    pub(super) running: RunningArgs,
    /// The id of the call, or its beginning, as `toolway approvals` lists it.
    pub(super) id: String,
}

/// Show who called what: the records of calls, decisions and servers, the newest last.
///
/// Asks the running gateway; where none runs, reads the files of the audit. docs/audit.md tells more.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway audit --since 1h
  toolway audit --follow --tool 'files__*'
  toolway audit --verdict denied --csv > denied.csv")]
pub(super) struct AuditArgs {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    data: DataArgs,
    /// The URL of the running gateway [default: `bind` of the configuration].
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// The name of the key to ask with, of `[keys.NAME]` or `api_keys[0]` [default: the first].
    #[arg(long = "as", value_name = "NAME")]
    pub(super) own_key: Option<String>,
    /// Only records from this time on: `2026-11-23T18:00:00Z`, or so long ago: `30m`, `1h`, `7d`.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only records before this time.
    #[arg(long, value_name = "TIME", conflicts_with = "follow")]
    until: Option<String>,
    /// Only tools that match, by their offered names.
    #[arg(long, value_name = "PATTERN")]
    tool: Option<String>,
    /// Only servers that match.
    #[arg(long, value_name = "PATTERN")]
    server: Option<String>,
    /// Only requests with this key.
    #[arg(long, value_name = "NAME")]
    key: Option<String>,
    /// Only this face: chat, responses, messages, mcp, mcp_session, rest, tool_calls, events, cli.
    #[arg(long, value_name = "FACE")]
    face: Option<String>,
    /// Only this verdict: allowed, denied, asked, confirmed, refused, expired.
    #[arg(long, value_name = "VERDICT")]
    verdict: Option<String>,
    /// Only this outcome, such as ok, tool_error or timeout.
    #[arg(long, value_name = "OUTCOME")]
    outcome: Option<String>,
    /// Only the request of this id.
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// Most records; the newest are shown.
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: u32,
    /// Show new records as they come.
    #[arg(long)]
    pub(super) follow: bool,
    /// Print JSON, one record a line.
    #[arg(long)]
    pub(super) json: bool,
    /// Print a table for spreadsheets.
    #[arg(long, conflicts_with_all = ["json", "follow"])]
    pub(super) csv: bool,
}

/// Try toolway with a built-in model and a built-in MCP server; needs no key and no network.
///
/// Sends a streamed chat completion through the gateway's own port, shows each step, and prints the commands
/// that do the same with curl, Python and Node. Serves until Ctrl-C.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  toolway demo
  toolway demo --once --bind 127.0.0.1:0")]
pub(super) struct DemoArgs {
    /// Exit after the first answer.
    #[arg(long)]
    pub(super) once: bool,
    /// The address to listen on.
    #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:4242")]
    pub(super) bind: SocketAddr,
}

impl McpArgs {
    /// The overrides for the configuration.
    pub(super) fn given(&self) -> Given {
        Given {
            functions: self.functions.clone(),
            endpoint: self.endpoint.clone(),
            ..self.data.over(&self.files)
        }
    }
}

impl CallArgs {
    /// The overrides for the configuration.
    pub(super) fn given(&self) -> Given {
        self.data.over(&self.files)
    }
}

impl DataArgs {
    /// The same, with what overrides the files.
    fn over(&self, files: &FileArgs) -> Given {
        Given {
            data_dir: self.data_dir.clone(),
            ..files.given()
        }
    }
}

impl FileArgs {
    /// The configuration file, if one is named.
    pub(super) fn config(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }

    /// The files of other clients.
    pub(super) fn mcp(&self) -> &[PathBuf] {
        &self.mcp
    }

    /// The overrides for the configuration.
    pub(super) fn given(&self) -> Given {
        Given {
            config: self.config.clone(),
            mcp: self.mcp.clone(),
            mcp_variables: match self.mcp_env {
                true => mcp_variables(),
                false => Vec::new(),
            },
            keys: Keys::Used,
            ..Given::default()
        }
    }
}

impl McpArgs {
    /// What the client is to see.
    pub(super) fn show(&self) -> Show {
        match (&self.profile, &self.functions) {
            (Some(name), _) => Show::Profile(name.clone()),
            (None, Some(_)) => Show::Functions,
            (None, None) => Show::Everything,
        }
    }
}

impl AuditArgs {
    /// The overrides for the configuration.
    pub(super) fn given(&self) -> Given {
        self.data.over(&self.files)
    }

    /// What is asked for.
    ///
    /// # Errors
    /// When there is no such verdict.
    pub(super) fn params(&self) -> anyhow::Result<AuditParams> {
        let verdict = self.verdict.as_deref().map(|verdict| {
            serde_json::from_value(verdict.into())
                .map_err(|_| anyhow::anyhow!("there is no verdict `{verdict}`"))
        });
        Ok(AuditParams {
            since: self.since.clone(),
            until: self.until.clone(),
            key: self.key.clone(),
            face: self.face.clone(),
            server: self.server.clone(),
            tool: self.tool.clone(),
            verdict: verdict.transpose()?,
            outcome: self.outcome.clone(),
            request: self.request.clone(),
            ..AuditParams::default()
        })
    }
}

impl ApproveArgs {
    /// Which later calls are approved as well.
    pub(super) fn remembered(&self) -> Option<Remembered> {
        let what = match self.remember? {
            RememberWhat::Call => "call",
            RememberWhat::Tool => "tool",
        };
        let until = match self.session {
            true => "session",
            false => "forever",
        };
        Some(Remembered { what, until })
    }
}

impl ListenArgs {
    /// The same, with what overrides the files.
    pub(super) fn over(&self, files: &FileArgs) -> Given {
        Given {
            bind: self.bind.clone(),
            data_dir: self.data.data_dir.clone(),
            upstream: self.upstream.clone(),
            keys: Keys::All,
            ..files.given()
        }
    }
}

impl LogArgs {
    /// The same, for commands whose result is the message.
    pub(super) fn quiet_by_default(&self) -> LogArgs {
        LogArgs {
            default: Some(Level::WARN),
            ..self.clone()
        }
    }

    /// The same, for commands that say what matters themselves, and would only repeat it or tell of other servers.
    pub(super) fn silent_by_default(&self) -> LogArgs {
        LogArgs {
            default: Some(Level::ERROR),
            ..self.clone()
        }
    }

    /// What was asked for; nothing leaves it to the configuration.
    pub(super) fn filter(&self) -> Option<LogFilter> {
        let level = match (self.verbose, self.quiet) {
            (0, 0) => match self.default {
                Some(level) => level,
                None => return self.log.clone(),
            },
            (1, _) => Level::DEBUG,
            // A default that says less still does.
            (0, 1) => self.default.map_or(Level::WARN, |it| it.min(Level::WARN)),
            (0, _) => Level::ERROR,
            (_, _) => Level::TRACE,
        };
        Some(self.log.clone().unwrap_or_else(|| LogFilter::level(level)))
    }
}

/// The variables in which MCP Bridge finds servers, in the order of their names.
fn mcp_variables() -> Vec<(String, String)> {
    let all = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        name.starts_with("MCP_SERVER_").then_some((name, value))
    });
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[track_caller]
    fn check(line: &str, filter: Option<&LogFilter>) {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        assert_eq!(cli.log.filter().as_ref(), filter);
    }

    #[test]
    fn more_and_less_is_said_when_asked_for() {
        check("toolway serve", None);
        check("toolway serve -v", Some(&LogFilter::level(Level::DEBUG)));
        check("toolway -vv serve", Some(&LogFilter::level(Level::TRACE)));
        check("toolway serve -q", Some(&LogFilter::level(Level::WARN)));
        check("toolway serve -qq", Some(&LogFilter::level(Level::ERROR)));
        check(
            "toolway serve --log debug",
            Some(&LogFilter::level(Level::DEBUG)),
        );
    }

    #[test]
    fn a_command_whose_result_is_the_message_logs_warnings_only() {
        let cli = Cli::try_parse_from(["toolway", "tools"]).unwrap();
        assert_eq!(
            cli.log.quiet_by_default().filter(),
            Some(LogFilter::level(Level::WARN))
        );
        let cli = Cli::try_parse_from(["toolway", "tools", "-v"]).unwrap();
        assert_eq!(
            cli.log.quiet_by_default().filter(),
            Some(LogFilter::level(Level::DEBUG))
        );
    }

    #[test]
    fn files_of_other_clients_can_be_several() {
        let cli = Cli::try_parse_from(["toolway", "serve", "-m", "a", "--mcp", "b"]).unwrap();
        let Command::Serve(asked) = cli.command else {
            panic!("serve")
        };
        assert_eq!(
            asked.files.given().mcp,
            [PathBuf::from("a"), PathBuf::from("b")]
        );
    }
}
