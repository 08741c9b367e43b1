//! Functions that are a program, started for each call: the arguments as JSON on its standard input, the
//! result on its standard output, and exit code and standard error where it fails.
//!
//! No shell is involved. The program gets a clean environment and its own process group. When the call ends, for
//! whatever reason, the program and everything that it started is killed.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::ChildStdin,
    time::timeout,
};

use crate::secret::Secret;
use crate::upstream::{
    child::{self, Process, Spawned},
    too_long,
};
use toolway_core::translate::functions::{
    command::{failure, read_output},
    output,
};
use toolway_protocol::tool::{CallError, JsonObject, ServerId, ToolResult};

/// The variable that names the function.
const VARIABLE: &str = "TOOLWAY_FUNCTION";

/// The placeholder for the function's name in an argument. Other braces are left alone: `awk '{print}'`.
const PLACE: &str = "{function}";

/// Most of the standard error that is kept, in bytes: its end.
const STDERR: usize = 16 << 10;

/// How long to read on after the program has exited. A program that it left behind may hold the pipe open for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Configured values shorter than this are ordinary words rather than secrets, and are left readable.
const SHORTEST_SECRET: usize = 8;

/// A program, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The program, looked up in `PATH`.
    pub command: String,
    /// Its arguments; `{function}` stands for the function's name.
    pub args: Vec<String>,
    /// Added to the clean environment that children get.
    pub env: Vec<(String, Secret)>,
    /// Its working directory. Default: toolway's own.
    pub cwd: Option<PathBuf>,
}

impl Config {
    /// Finds out whether the program is there, without starting it.
    pub(super) fn probe(&self) -> Result<(), String> {
        let Config {
            command, env, cwd, ..
        } = self;
        let found = child::find(command, env, cwd.as_deref());
        found.map_err(|error| child::not_started(command, cwd.as_deref(), &error))
    }
}

/// A program, ready to be started.
pub(super) struct CommandRunner {
    group: ServerId,
    config: Config,
    limit: usize,
}

/// What a program wrote so far.
#[derive(Default)]
struct CommandOutput {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// It wrote more than it may.
struct Flooded;

impl CommandRunner {
    /// `limit` is the longest output, in bytes.
    pub(super) fn new(group: ServerId, config: Config, limit: usize) -> CommandRunner {
        CommandRunner {
            group,
            config,
            limit,
        }
    }

    /// Calls a function. Dropping the future kills the program and what it started.
    pub(super) async fn call(
        &self,
        function: &str,
        arguments: &JsonObject,
    ) -> Result<ToolResult, CallError> {
        let spawned = self.spawn(function).await.map_err(|error| {
            let group = &self.group;
            tracing::warn!(functions.group = %group, %error, "The command of a function cannot be started");
            CallError::UpstreamUnavailable {
                message: "the function's command cannot be started".to_owned(),
                unsent: true,
            }
        })?;
        let input = serde_json::to_vec(arguments).unwrap_or_default();
        let mut written = CommandOutput::default();
        let Spawned {
            mut process,
            stdin,
            stdout,
            stderr,
        } = spawned;
        let talked = talk(
            &mut process,
            write_input(stdin, &input),
            read_all(stdout, self.limit, &mut written.stdout),
            read_tail(stderr, &mut written.stderr),
        )
        .await;
        // This also kills what the program left behind.
        drop(process);
        Ok(match talked {
            Err(Flooded) => output::failure(format!(
                "{}, and the command was stopped",
                too_long(self.limit)
            )),
            Ok(Ok(status)) if status.success() => read_output(function, written.stdout),
            Ok(Ok(status)) => self.failed(&status.to_string(), &written),
            Ok(Err(error)) => self.failed(&format!("it was lost: {error}"), &written),
        })
    }

    async fn spawn(&self, function: &str) -> io::Result<Spawned> {
        let args = self.config.args.iter();
        let args: Vec<String> = args.map(|arg| arg.replace(PLACE, function)).collect();
        let mut env = self.config.env.clone();
        env.push((VARIABLE.to_owned(), Secret::new(function)));
        child::spawn(
            &self.config.command,
            &args,
            &env,
            self.config.cwd.as_deref(),
            &[],
        )
        .await
    }

    fn failed(&self, ended: &str, written: &CommandOutput) -> ToolResult {
        let stderr = self.strike_out(&written.stderr);
        let stdout = self.strike_out(&written.stdout);
        let group = &self.group;
        tracing::warn!(functions.group = %group, ended, "The command of a function failed");
        tracing::debug!(functions.group = %group, stderr, "The command of a function wrote to standard error");
        failure(ended, stderr.as_bytes(), stdout.as_bytes())
    }

    /// The text without the configured secrets.
    fn strike_out(&self, bytes: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        for (_, secret) in &self.config.env {
            if secret.expose().len() >= SHORTEST_SECRET && text.contains(secret.expose()) {
                text = text.replace(secret.expose(), "[redacted]");
            }
        }
        text
    }
}

/// Feeds a program and reads what it writes until it has ended, and for a moment longer.
async fn talk(
    process: &mut Process,
    write: impl Future<Output = ()>,
    read: impl Future<Output = Result<(), Flooded>>,
    read_errors: impl Future<Output = ()>,
) -> Result<io::Result<ExitStatus>, Flooded> {
    let write = async {
        write.await;
        Ok(())
    };
    let read_errors = async {
        read_errors.await;
        Ok(())
    };
    let all = async { tokio::try_join!(write, read, read_errors).map(drop) };
    let mut all = std::pin::pin!(all);
    tokio::select! {
        read = &mut all => {
            read?;
            Ok(process.wait().await)
        }
        ended = process.wait() => {
            // Processes that still hold the pipes are not waited for; the output so far counts.
            timeout(LAST_WORDS, all).await.unwrap_or(Ok(()))?;
            Ok(ended)
        }
    }
}

/// A program need not read all of its input.
async fn write_input(mut stdin: ChildStdin, input: &[u8]) {
    let _ = stdin.write_all(input).await;
    let _ = stdin.shutdown().await;
}

async fn read_all(
    mut from: impl AsyncRead + Unpin,
    limit: usize,
    into: &mut Vec<u8>,
) -> Result<(), Flooded> {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        if into.len() + count > limit {
            return Err(Flooded);
        }
        into.extend_from_slice(&chunk[..count]);
    }
    Ok(())
}

/// Reads to the end and keeps the last [`STDERR`] bytes, so that the program never waits for us.
async fn read_tail(mut from: impl AsyncRead + Unpin, into: &mut Vec<u8>) {
    let mut chunk = vec![0; 8 << 10];
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        into.extend_from_slice(&chunk[..count]);
        if into.len() > 2 * STDERR {
            into.drain(..into.len() - STDERR);
        }
    }
}
