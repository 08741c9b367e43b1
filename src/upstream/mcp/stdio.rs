//! An MCP server that runs as a child process: one JSON-RPC message per line; the end of its standard error is kept for
//! diagnosis.

mod stderr;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rmcp::model::ServerJsonRpcMessage;
use serde_json::Value;
use tokio::{
    io::{AsyncWriteExt, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

pub(super) use self::stderr::StderrTail;
use super::raw_messages::{OutgoingMessage, Pending, Pipe, PipeEnd, pipe};
use crate::{
    lines::{Line, ends, next_line},
    secret::Secret,
    upstream::{
        check_values,
        child::{self, Process, Spawned},
        read_text, too_long,
    },
};
use toolway_core::policy::isolation::{CommandLine, Isolation};
use toolway_protocol::{
    mcp::deep::{is_too_deep, read_message},
    tool::ServerId,
};

/// How long to read on after the child has exited.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// How a child is started.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) command: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, Secret)>,
    pub(super) cwd: Option<PathBuf>,
    /// See [`CommandLine::cleanup`].
    pub(super) cleanup: Vec<String>,
}

impl Program {
    /// The program that runs this one, confined; it has another name each time.
    pub(super) fn isolated(self, server: &ServerId, isolation: &Isolation) -> Program {
        let random = getrandom::u64().unwrap_or_default();
        let name = format!("toolway-{server}-{random:016x}");
        let command = [&[self.command][..], &self.args].concat();
        let env: Vec<&str> = self.env.iter().map(|(name, _)| name.as_str()).collect();
        let cwd = self.cwd.as_deref().and_then(Path::to_str);
        let CommandLine {
            program,
            args,
            cleanup,
        } = isolation.wrap(&name, &command, &env, cwd);
        Program {
            command: program,
            args,
            env: self.env,
            // That one is inside.
            cwd: None,
            cleanup,
        }
    }
}

/// A child process and the tasks that serve its pipes. Dropping it kills the child and everything that it started.
pub(super) struct ChildLink {
    /// The id of the process that was started.
    pub(super) pid: Option<u32>,
    tasks: JoinSet<()>,
    minder: JoinHandle<()>,
    stop: CancellationToken,
    gone: CancellationToken,
    ending: Arc<std::sync::Mutex<Option<String>>>,
    pending: Pending,
}

/// Starts the program; `probe_timeout` is how long it may be silent on `server/discover`.
pub(super) async fn start(
    server: &ServerId,
    program: &Program,
    max_message_bytes: usize,
    probe_timeout: Duration,
    pending: Pending,
    stderr_tail: &Arc<StderrTail>,
) -> std::io::Result<(Pipe, ChildLink)> {
    let Spawned {
        process,
        stdin,
        stdout,
        stderr,
    } = child::spawn(
        &program.command,
        &program.args,
        &program.env,
        program.cwd.as_deref(),
        &program.cleanup,
    )
    .await?;
    let (
        pipe,
        PipeEnd {
            outgoing,
            incoming,
            pending,
        },
    ) = pipe(probe_timeout, pending);
    let (stop, gone) = (CancellationToken::new(), CancellationToken::new());
    let ending = Arc::default();

    let mut tasks = JoinSet::new();
    tasks.spawn(write_messages(outgoing, stdin, stop.clone()));
    let reader = StdoutReader {
        server: server.clone(),
        limit: max_message_bytes,
        pending: pending.clone(),
    };
    let gone_for_reader = gone.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = reader.run(stdout, incoming) => {}
            () = after(gone_for_reader, LAST_WORDS) => {}
        }
    });
    tasks.spawn(Arc::clone(stderr_tail).read(server.clone(), stderr));
    let pid = process.id();
    let minder = tokio::spawn(mind(
        process,
        stop.clone(),
        gone.clone(),
        Arc::clone(&ending),
    ));
    Ok((
        pipe,
        ChildLink {
            pid,
            tasks,
            minder,
            stop,
            gone,
            ending,
            pending,
        },
    ))
}

impl ChildLink {
    /// The server answered `server/discover` after it had been given up.
    pub(super) fn was_discovered_late(&self) -> bool {
        self.pending.was_answered_late()
    }

    /// How the child exited, if it did so without a signal of ours. Waits a moment, because the report may be on its
    /// way.
    pub(super) async fn ending(&self) -> Option<String> {
        let _ = timeout(LAST_WORDS, self.gone.cancelled()).await;
        self.ending
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// Stops the child and everything it started, within about 5 s.
    pub(super) async fn close(mut self) {
        self.stop.cancel();
        let _ = (&mut self.minder).await;
        // What the child wrote last, and why it died, is still to be read.
        let read_on = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(LAST_WORDS, read_on).await;
        self.tasks.shutdown().await;
    }
}

impl Drop for ChildLink {
    fn drop(&mut self) {
        self.minder.abort();
    }
}

/// Owns the child: notices its exit, or stops it.
async fn mind(
    mut process: Process,
    stop: CancellationToken,
    gone: CancellationToken,
    ending: Arc<std::sync::Mutex<Option<String>>>,
) {
    tokio::select! {
        how = process.ended() => {
            *ending.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(how);
        }
        () = stop.cancelled() => {}
    }
    gone.cancel();
    process.stop().await;
}

async fn after(token: CancellationToken, pause: Duration) {
    token.cancelled().await;
    tokio::time::sleep(pause).await;
}

/// Writes one message a line until there are no more; the child's input is closed then, or on `stop`.
async fn write_messages(
    mut outgoing: mpsc::Receiver<OutgoingMessage>,
    mut stdin: ChildStdin,
    stop: CancellationToken,
) {
    let write_all = async {
        while let Some(message) = outgoing.recv().await {
            let (message, sending) = message.begin();
            let Ok(mut line) = serde_json::to_vec(&message) else {
                continue;
            };
            line.push(b'\n');
            if stdin.write_all(&line).await.is_err() || stdin.flush().await.is_err() {
                return sending.give_up();
            }
            sending.finish(Ok(()));
        }
    };
    tokio::select! {
        () = write_all => {}
        () = stop.cancelled() => {}
    }
}

/// Reads the child's output, one message a line.
struct StdoutReader {
    server: ServerId,
    limit: usize,
    pending: Pending,
}

impl StdoutReader {
    /// Runs until the output ends or its reader is dropped.
    async fn run(self, stdout: ChildStdout, incoming: mpsc::Sender<ServerJsonRpcMessage>) {
        let mut reader = BufReader::with_capacity(64 << 10, stdout);
        let mut warned = false;
        while let Ok(Some(line)) = next_line(&mut reader, self.limit).await {
            let (bytes, answers) = (line.len(), self.pending.answers());
            let (messages, is_sound) = read_text(bytes, || self.read(line));
            if !is_sound && !warned {
                warned = true;
                warn!(server.id = %self.server, "A server writes something other than MCP messages to its standard output; ignored");
            }
            for message in messages {
                if incoming.send(message).await.is_err() {
                    return;
                }
            }
            if self.pending.answers() == answers {
                self.pending.slow_down(bytes).await;
            }
            if self.pending.was_answered_late() {
                // Tell the client first, and give the process time to exit before it is killed.
                drop(incoming);
                let _ = tokio::io::copy(&mut reader, &mut tokio::io::sink()).await;
                return;
            }
        }
        debug!(server.id = %self.server, "A server closed its standard output");
    }

    /// The messages of one line, and whether the line was one that belongs there.
    fn read(&self, line: Line) -> (Vec<ServerJsonRpcMessage>, bool) {
        let line = match line {
            Line::Whole(line) => line,
            Line::Cut { head, tail } => {
                let answer = self.pending.read_cut(&head, &tail, &too_long(self.limit));
                let is_sound = answer.is_some();
                return (answer.into_iter().collect(), is_sound);
            }
        };
        let text = line.trim_ascii();
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let (head, tail) = ends(text);
        if let Err(why) = check_values(text) {
            let answer = self.pending.read_cut(head, tail, &why);
            return (answer.into_iter().collect(), true);
        }
        match read_message(text) {
            // Batches were allowed in 2025-03-26 only.
            Ok(Value::Array(batch)) => (
                batch
                    .into_iter()
                    .filter_map(|message| self.pending.read(message, None))
                    .collect(),
                true,
            ),
            Ok(message) => {
                let is_sound = message.is_object();
                (
                    self.pending.read(message, None).into_iter().collect(),
                    is_sound,
                )
            }
            Err(_) if text.is_empty() => (Vec::new(), true),
            Err(error) => {
                let why = match is_too_deep(&error) {
                    true => "the server's answer is nested too deep",
                    false => "the server's answer is not valid JSON",
                };
                (
                    self.pending.read_cut(head, tail, why).into_iter().collect(),
                    false,
                )
            }
        }
    }
}
