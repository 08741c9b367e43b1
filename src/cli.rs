//! The command line: what is asked for, done, said and turned into an exit code.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 it worked, 1 it failed,
//! 2 the command line or the configuration is wrong (`clap` uses 2 as well), 130 it was stopped at once.
//!
//! `args` says what can be asked for, `run` starts what does the work, the others put what came out into
//! words; they are plain functions from values to texts.

mod announce;
mod answer;
mod args;
mod demo;
mod mcp;
mod paste;
mod problems;
mod progress;
mod run;
mod serve;
mod survey;
mod words;

use std::{
    future::Future,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use clap::CommandFactory;
use tokio_util::sync::CancellationToken;

pub use self::args::Cli;
use self::args::Command;
use crate::{
    config::{Around, Config, Given, Keys, Problem},
    telemetry,
};

/// Longest wait for threads that do not let go when everything else is done.
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

/// Does what was asked for and says how it went.
pub fn run(cli: Cli) -> ExitCode {
    let exit = dispatch(cli).unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return Exit::Done;
        }
        _ = writeln!(
            anstream::stderr(),
            "{}",
            words::error(&format!("{error:#}"))
        );
        Exit::Failed
    });
    telemetry::lines::write_out();
    ExitCode::from(exit as u8)
}

fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    let Cli { log, command } = cli;
    match command {
        Command::Serve(asked) => with_config(&asked.listen.over(&asked.files), &log, |config| {
            let stop = CancellationToken::new();
            let served = until(serve::told_twice(stop.clone()), serve::run(config, stop))?;
            Ok(served.map_or(Exit::Stopped, |()| Exit::Done))
        }),
        Command::Mcp(asked) => {
            if let Some(client) = asked.print_config {
                if asked.profile.is_some() {
                    let config = match Config::load(&asked.given(), &Around::real()) {
                        Ok(config) => config,
                        Err(problems) => {
                            write!(anstream::stderr(), "{}", problems::text(&problems))?;
                            return Ok(Exit::Refused);
                        }
                    };
                    if let Some(why) = mcp::missing_profile(&config, asked.profile.as_deref()) {
                        writeln!(anstream::stderr(), "{}", words::error(&why))?;
                        return Ok(Exit::Refused);
                    }
                }
                let (settings, place) = match paste::lines(client, &asked) {
                    Ok(lines) => lines,
                    Err(error) => {
                        writeln!(
                            anstream::stderr(),
                            "{}",
                            words::error(&format!("{error:#}"))
                        )?;
                        return Ok(Exit::Refused);
                    }
                };
                write!(anstream::stderr(), "{place}")?;
                print(&settings)?;
                return Ok(Exit::Done);
            }
            with_config(&asked.given(), &log.quiet_by_default(), |config| {
                if let Some(why) = mcp::missing_profile(&config, asked.profile.as_deref()) {
                    writeln!(anstream::stderr(), "{}", words::error(&why))?;
                    return Ok(Exit::Refused);
                }
                if io::stdin().is_terminal() {
                    write!(anstream::stderr(), "{}", mcp::FOR_PEOPLE)?;
                }
                let stop = CancellationToken::new();
                let work = mcp::run(config, asked.show(), stop.clone());
                let served = until(serve::told_twice(stop), work)?;
                Ok(served.map_or(Exit::Stopped, |()| Exit::Done))
            })
        }
        Command::Check(asked) => check(&asked, &log),
        Command::Tools(asked) => {
            with_config(&asked.files.given(), &log.silent_by_default(), |config| {
                // The answer says what the log would, and the line on the terminal stays whole.
                let warnings = config.warnings.iter();
                let warnings: String = warnings.map(problems::warning).collect();
                write!(anstream::stderr(), "{warnings}")?;
                let Some(survey) = until(serve::signalled(), run::survey(&config))? else {
                    return Ok(Exit::Stopped);
                };
                print(&if asked.json {
                    survey.tools_json()?
                } else {
                    survey.tools_text(words::width(&io::stdout()))
                })?;
                Ok(if survey.are_all_ready() {
                    Exit::Done
                } else {
                    Exit::Failed
                })
            })
        }
        Command::Call(asked) => {
            with_config(&asked.files.given(), &log.silent_by_default(), |config| {
                let call = run::call(&config, &asked.name, &asked.arguments);
                let Some((outcome, servers)) = until(serve::signalled(), call)? else {
                    return Ok(Exit::Stopped);
                };
                if asked.json {
                    print(&answer::json(&outcome)?)?;
                } else {
                    let answer = answer::text(&outcome, &servers);
                    print(&answer.out)?;
                    write!(anstream::stderr(), "{}", answer.err)?;
                }
                Ok(if answer::has_worked(&outcome) {
                    Exit::Done
                } else {
                    Exit::Failed
                })
            })
        }
        Command::Demo(asked) => {
            start_log(&log.quiet_by_default(), telemetry::Config::default());
            let stop = CancellationToken::new();
            let demo = demo::run(asked.bind, asked.once, stop.clone());
            let shown = until(serve::told_twice(stop), demo)?;
            Ok(shown.map_or(Exit::Stopped, |()| Exit::Done))
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

/// `toolway check`: every problem, then, unless offline, what the servers make of it.
fn check(asked: &args::CheckArgs, log: &args::LogArgs) -> anyhow::Result<Exit> {
    let mut given = asked.listen.over(&asked.files);
    if asked.offline {
        given.keys = Keys::None;
    }
    let config = match Config::load(&given, &Around::real()) {
        Ok(config) => config,
        Err(problems) => {
            print(&if asked.json {
                problems::json(&problems)?
            } else {
                problems::text(&problems)
            })?;
            return Ok(Exit::Refused);
        }
    };
    start_log(&log.silent_by_default(), config.telemetry.clone());
    let survey = match asked.offline {
        true => None,
        false => match until(serve::signalled(), run::survey_all(&config))? {
            Some(survey) => Some(survey),
            None => return Ok(Exit::Stopped),
        },
    };
    print(&if asked.json {
        survey::check_json(&config, survey.as_ref())?
    } else {
        survey::check_text(&config, survey.as_ref())
    })?;
    let is_well = survey.is_none_or(|survey| survey.is_all_well());
    Ok(if is_well { Exit::Done } else { Exit::Failed })
}

/// Loads the configuration, starts the log, says what is odd, and goes on; or says what is wrong.
fn with_config(
    given: &Given,
    log: &args::LogArgs,
    then: impl FnOnce(Config) -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    match Config::load(given, &Around::real()) {
        Ok(config) => {
            start_log(log, config.telemetry.clone());
            for Problem { path, message } in &config.warnings {
                tracing::warn!("{path}: {message}");
            }
            then(config)
        }
        Err(problems) => {
            write!(anstream::stderr(), "{}", problems::text(&problems))?;
            Ok(Exit::Refused)
        }
    }
}

fn start_log(asked: &args::LogArgs, mut config: telemetry::Config) {
    if let Some(filter) = asked.filter() {
        config.filter = filter;
    }
    let choice = anstream::AutoStream::choice(&io::stderr());
    config.colours = choice != anstream::ColorChoice::Never;
    telemetry::start(&config);
}

/// Does the work; `None` when it was told to stop before the end. Nothing is left running: what is not done by
/// then is dropped with the runtime, and with it every child is killed, its group included.
fn until<T>(
    told: impl Future<Output = ()>,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        tokio::select! {
            // First, so that it listens before the work has started anything.
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
        .on_thread_park(telemetry::lines::flush)
        .build()
}

/// Writes a result; colours only where somebody sees them.
fn print(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whoever reads our output has heard enough (`toolway tools | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
