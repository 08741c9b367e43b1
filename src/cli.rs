//! The command line: runs the commands and returns their exit codes.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 it worked, 1 it failed,
//! 2 the command line or the configuration is wrong (`clap` uses 2 as well), 130 it was stopped at once.
//!
//! `args` defines the command line, `run` starts the gateway, the others format results; they are pure functions from
//! values to texts.

mod announce;
mod approvals;
mod args;
mod audit;
mod call_output;
mod client_config;
mod demo;
mod explain;
mod inventory;
mod mcp;
mod open_files;
mod problems;
mod progress;
mod run;
mod serve;
mod terminal;

use std::{
    future::Future,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::CommandFactory;
use tokio_util::sync::CancellationToken;

pub use self::args::Cli;
use self::{args::Command, call_output::Output};
use crate::printable;
use crate::{
    config::{Config, Environment, Given, Keys, Problem},
    telemetry,
};
use toolway_protocol::tool::CallError;

/// Longest wait for blocked threads when everything else is done.
const AT_ONCE: Duration = Duration::from_secs(1);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// It worked.
    Done = 0,
    /// It was tried and failed.
    Failed = 1,
    /// The command line or the configuration is wrong; nothing was tried.
    Refused = 2,
    /// It was stopped before it was done.
    Stopped = 130,
}

/// Runs the command and returns its outcome.
pub fn run(cli: Cli) -> ExitCode {
    #[cfg(unix)]
    if let Some(program) = own_program() {
        crate::upstream::reaper::enable(program);
    }
    let exit = dispatch(cli).unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return Exit::Done;
        }
        say_error(&format!("{error:#}"));
        Exit::Failed
    });
    telemetry::lines::flush();
    ExitCode::from(exit as u8)
}

fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    let Cli { log, command } = cli;
    match command {
        Command::Serve(asked) => with_config(&asked.listen.over(&asked.files), &log, |config| {
            until_told_twice(|stop| serve::run(config, stop))
        }),
        Command::Mcp(asked) => match asked.print_config {
            Some(client) => print_client_config(client, &asked),
            None => serve_mcp(&asked, &log),
        },
        Command::Check(asked) => check(&asked, &log),
        Command::Tools(asked) => list_tools(&asked, &log),
        Command::Call(asked) => call(&asked, &log),
        Command::Approvals(asked) => at_running(&asked.running, &log, async |gateway| {
            match (&asked.revoke, asked.remembered) {
                (Some(id), _) => gateway.revoke(id).await,
                (None, true) => gateway.grants(asked.running.json).await,
                (None, false) => gateway.list(asked.running.json).await,
            }
        }),
        Command::Approve(asked) => at_running(&asked.running, &log, async |gateway| {
            let as_json = asked.running.json;
            gateway
                .decide(&asked.id, true, asked.remembered(), as_json)
                .await
        }),
        Command::Deny(asked) => at_running(&asked.running, &log, async |gateway| {
            gateway
                .decide(&asked.id, false, None, asked.running.json)
                .await
        }),
        Command::Audit(asked) => with_config(&asked.given(), &log.silent_by_default(), |config| {
            let work = audit::run(&config, &asked);
            let done = until(serve::signalled(), work)?;
            Ok(done.map_or(Exit::Stopped, |()| Exit::Done))
        }),
        Command::Demo(asked) => {
            start_log(&log.quiet_by_default(), telemetry::Config::default())?;
            until_told_twice(|stop| demo::run(asked.bind, asked.once, stop))
        }
        Command::DemoServer => {
            runtime()?.block_on(demo::server::run())?;
            Ok(Exit::Done)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "toolway", &mut script);
            io::stdout().write_all(&script)?;
            Ok(Exit::Done)
        }
    }
}

/// Runs a server until it ends. The first signal cancels the token, the second one ends it at once.
fn until_told_twice<F: Future<Output = anyhow::Result<()>>>(
    work: impl FnOnce(CancellationToken) -> F,
) -> anyhow::Result<Exit> {
    let stop = CancellationToken::new();
    let served = until(serve::told_twice(stop.clone()), work(stop))?;
    Ok(served.map_or(Exit::Stopped, |()| Exit::Done))
}

/// `toolway mcp --print-config`: what to write into the configuration of another client.
fn print_client_config(client: args::KnownClient, asked: &args::McpArgs) -> anyhow::Result<Exit> {
    let config = match Config::load(&asked.given(), &Environment::real()) {
        Ok(config) => config,
        Err(problems) => {
            print("", &printable::line(&problems::text(&problems)))?;
            return Ok(Exit::Refused);
        }
    };
    if let Some(why) = mcp::missing_profile(&config, asked.profile.as_deref()) {
        say_error(&why);
        return Ok(Exit::Refused);
    }
    match client_config::lines(client, asked, &config) {
        Ok((settings, place)) => {
            print(&settings, &place)?;
            Ok(Exit::Done)
        }
        Err(error) => {
            say_error(&format!("{error:#}"));
            Ok(Exit::Refused)
        }
    }
}

/// `toolway mcp`: an MCP server over standard input and output.
fn serve_mcp(asked: &args::McpArgs, log: &args::LogArgs) -> anyhow::Result<Exit> {
    with_config(&asked.given(), &log.quiet_by_default(), |config| {
        if let Some(why) = mcp::missing_profile(&config, asked.profile.as_deref()) {
            say_error(&why);
            return Ok(Exit::Refused);
        }
        if io::stdin().is_terminal() {
            write!(anstream::stderr(), "{}", mcp::FOR_PEOPLE)?;
        }
        until_told_twice(|stop| mcp::run(config, asked.show(), stop))
    })
}

/// `toolway tools`: what is offered, and which servers are not ready.
fn list_tools(asked: &args::ToolsArgs, log: &args::LogArgs) -> anyhow::Result<Exit> {
    with_config(&asked.files.given(), &log.silent_by_default(), |config| {
        // The answer reports the same as the log, and the line on the terminal is not interrupted.
        let warnings: String = config.warnings.iter().map(problems::warning).collect();
        let warnings = printable::line(&warnings).into_owned();
        let work = async {
            show(String::new(), warnings).await?;
            let inventory = run::inventory(&config).await?;
            let (text, wrong) = match asked.json {
                // Whoever filters the JSON does not see why a server has no tools.
                true => {
                    let json = inventory.tools_json()?;
                    let wrong = inventory.what_is_wrong();
                    (printable::json(&json).into_owned(), wrong)
                }
                false => {
                    let text = inventory.tools_text(terminal::width(&io::stdout()));
                    (printable::line(&text).into_owned(), String::new())
                }
            };
            show(text, printable::line(&wrong).into_owned()).await?;
            Ok(match inventory.are_all_ready() {
                true => Exit::Done,
                false => Exit::Failed,
            })
        };
        Ok(until(serve::signalled(), work)?.unwrap_or(Exit::Stopped))
    })
}

/// `toolway call`: one call of one tool.
fn call(asked: &args::CallArgs, log: &args::LogArgs) -> anyhow::Result<Exit> {
    with_config(&asked.given(), &log.silent_by_default(), |config| {
        let work = async {
            let (outcome, servers) = run::call(&config, &asked.name, &asked.arguments).await?;
            if asked.json {
                let json = call_output::json(&outcome)?;
                show(printable::json(&json).into_owned(), String::new()).await?;
            } else if io::stdout().is_terminal() {
                let answer = call_output::text(&outcome, &servers, Output::Terminal);
                show(answer.out, answer.err).await?;
            } else {
                let answer = call_output::text(&outcome, &servers, Output::Pipe);
                show_raw(answer.out).await?;
                show(String::new(), answer.err).await?;
            }
            Ok(match &outcome {
                Err(CallError::InvalidArgumentsJson { .. } | CallError::InvalidParams { .. }) => {
                    Exit::Refused
                }
                outcome if call_output::has_worked(outcome) => Exit::Done,
                _ => Exit::Failed,
            })
        };
        Ok(until(serve::signalled(), work)?.unwrap_or(Exit::Stopped))
    })
}

/// Asks the running gateway, and prints what comes of it.
fn at_running(
    asked: &args::RunningArgs,
    log: &args::LogArgs,
    ask: impl AsyncFnOnce(approvals::Running) -> anyhow::Result<String>,
) -> anyhow::Result<Exit> {
    with_config(&asked.files.given(), &log.silent_by_default(), |config| {
        let (url, key) = (asked.url.as_deref(), asked.key.as_deref());
        let gateway = approvals::Running::new(&config, url, key)?;
        let work = async {
            let text = ask(gateway).await?;
            let text = match asked.json {
                true => printable::json(&text),
                false => printable::line(&text),
            };
            show(text.into_owned(), String::new()).await?;
            Ok(Exit::Done)
        };
        Ok(until(serve::signalled(), work)?.unwrap_or(Exit::Stopped))
    })
}

/// `toolway check`: every problem, then, unless offline, the state of the servers.
fn check(asked: &args::CheckArgs, log: &args::LogArgs) -> anyhow::Result<Exit> {
    let mut given = asked.listen.over(&asked.files);
    if asked.offline {
        given.keys = Keys::Used;
    }
    let config = match Config::load(&given, &Environment::real()) {
        Ok(config) => config,
        Err(problems) => {
            let text = match asked.json {
                true => printable::json(&problems::json(&problems)?).into_owned(),
                false => printable::line(&problems::text(&problems)).into_owned(),
            };
            print(&text, "")?;
            return Ok(Exit::Refused);
        }
    };
    start_log(&log.silent_by_default(), config.telemetry.clone())?;
    if let [tool, arguments @ ..] = &asked.explain[..] {
        let question = explain::Question {
            tool,
            arguments: arguments.first().map_or("{}", String::as_str),
            key: asked.key.as_deref(),
        };
        let work = async {
            let text = explain::explain(&config, question, asked.json).await?;
            show(printable::line(&text).into_owned(), String::new()).await?;
            Ok(Exit::Done)
        };
        return Ok(until(serve::signalled(), work)?.unwrap_or(Exit::Stopped));
    }
    let work = async {
        let inventory = match asked.offline {
            true => None,
            false => Some(run::survey_all(&config).await?),
        };
        let text =
            match asked.json {
                true => printable::json(&inventory::check_json(&config, inventory.as_ref())?)
                    .into_owned(),
                false => printable::line(&inventory::check_text(&config, inventory.as_ref()))
                    .into_owned(),
            };
        show(text, String::new()).await?;
        let is_well = inventory.is_none_or(|inventory| inventory.is_all_well());
        Ok(if is_well { Exit::Done } else { Exit::Failed })
    };
    Ok(until(serve::signalled(), work)?.unwrap_or(Exit::Stopped))
}

/// The path of this program; on Linux it stays valid when the file has been replaced.
#[cfg(unix)]
fn own_program() -> Option<PathBuf> {
    match cfg!(target_os = "linux") {
        true => Some(PathBuf::from("/proc/self/exe")).filter(|it| it.exists()),
        false => std::env::current_exe().ok(),
    }
}

/// Loads the configuration and starts the log. Prints warnings and continues, or prints the problems.
fn with_config(
    given: &Given,
    log: &args::LogArgs,
    then: impl FnOnce(Config) -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    match Config::load(given, &Environment::real()) {
        Ok(config) => {
            start_log(log, config.telemetry.clone())?;
            for Problem { path, message } in &config.warnings {
                tracing::warn!("{path}: {message}");
            }
            then(config)
        }
        Err(problems) => {
            print("", &printable::line(&problems::text(&problems)))?;
            Ok(Exit::Refused)
        }
    }
}

fn start_log(asked: &args::LogArgs, mut config: telemetry::Config) -> io::Result<()> {
    if let Some(filter) = asked.filter() {
        config.filter = filter;
    }
    config.colours = has_colours();
    telemetry::start(&config)
}

/// Standard error is a terminal that shows colours.
fn has_colours() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

/// Runs the work; `None` if it was stopped before the end. Nothing is left running: unfinished work is dropped with the
/// runtime, and every child is killed with its process group.
fn until<T>(
    told: impl Future<Output = ()>,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        tokio::select! {
            // First, so that the signal handler exists before the work starts anything.
            biased;
            () = told => Ok(None),
            done = work => done.map(Some),
        }
    });
    runtime.shutdown_timeout(AT_ONCE);
    done
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
}

/// Writes a result to standard output and messages to standard error; colours only on a terminal.
fn print(out: &str, err: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout();
    stdout.write_all(out.as_bytes())?;
    stdout.flush()?;
    anstream::stderr().write_all(err.as_bytes())
}

/// The same on a separate thread, so that signals are handled while a reader stalls.
async fn show(out: String, err: String) -> anyhow::Result<()> {
    Ok(tokio::task::spawn_blocking(move || print(&out, &err)).await??)
}

/// The same for bytes that must not be changed.
async fn show_raw(out: String) -> anyhow::Result<()> {
    let write = move || {
        let mut stdout = io::stdout().lock();
        stdout.write_all(out.as_bytes())?;
        stdout.flush()
    };
    Ok(tokio::task::spawn_blocking(write).await??)
}

/// Prints why a command failed, without waiting for a reader that stalls.
fn say_error(why: &str) {
    let text = format!("{}\n", terminal::error(why));
    match has_colours() {
        true => telemetry::lines::say(&text),
        false => telemetry::lines::say(&anstream::adapter::strip_str(&text).to_string()),
    }
}

/// The reader of our output has closed it (`toolway tools | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
