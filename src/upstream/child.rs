//! A child process in a group of its own, and the end of the whole group.
//!
//! `npx` and its like start the real server as a grandchild, so it is always the group that is stopped.

use std::{
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::{Instant, sleep, timeout},
};

use crate::secret::Secret;

/// What a child gets of toolway's own environment.
const INHERITED: [&str; 9] = [
    "PATH", "HOME", "LANG", "LC_ALL", "TERM", "USER", "LOGNAME", "SHELL", "TMPDIR",
];

/// How long a child has to end by itself once its input is closed.
const AFTER_EOF: Duration = Duration::from_secs(2);

/// How long the group has to end after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(2);

/// A running child and the far ends of its pipes.
pub(super) struct Spawned {
    pub(super) process: Process,
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// A running child. Dropping it kills its whole group at once.
pub(super) struct Process {
    child: Child,
    group: Group,
}

/// Starts a program with a clean environment, in a process group of its own.
pub(super) fn spawn(
    command: &str,
    args: &[String],
    env: &[(String, Secret)],
    cwd: Option<&Path>,
) -> std::io::Result<Spawned> {
    let mut builder = Command::new(command);
    builder.args(args).env_clear().kill_on_drop(true);
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            builder.env(name, value);
        }
    }
    builder.envs(env.iter().map(|(name, value)| (name, value.expose())));
    if let Some(cwd) = cwd {
        builder.current_dir(cwd);
    }
    builder
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    #[cfg(unix)]
    builder.process_group(0);
    let mut child = builder.spawn()?;
    let group = Group::of(&child);
    let missing = || std::io::Error::other("the child has no pipes");
    let stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    let stderr = child.stderr.take().ok_or_else(missing)?;
    Ok(Spawned {
        process: Process { child, group },
        stdin,
        stdout,
        stderr,
    })
}

impl Process {
    /// Waits until the child ends by itself and says how. Cancel safe.
    pub(super) async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => format!("the process ended ({status})"),
            Err(error) => format!("the process was lost: {error}"),
        }
    }

    /// Waits until the child ends by itself. Cancel safe.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends the child and everything in its group, within about 5 s. Its input must have been closed.
    pub(super) async fn stop(mut self) {
        let _ = timeout(AFTER_EOF, self.child.wait()).await;
        if self.group.terminate() {
            let deadline = Instant::now() + AFTER_TERM;
            while self.group.is_alive() && Instant::now() < deadline {
                // Reaping the child is what lets the group become empty.
                let _ = self.child.try_wait();
                sleep(Duration::from_millis(20)).await;
            }
        }
        self.group.kill();
        let _ = timeout(Duration::from_secs(1), self.child.wait()).await;
    }
}

/// A process group, killed when dropped.
#[cfg(unix)]
struct Group(Option<nix::unistd::Pid>);

#[cfg(unix)]
impl Group {
    fn of(child: &Child) -> Group {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Group(id.map(nix::unistd::Pid::from_raw))
    }

    /// Asks every process of the group to end; false when there is none.
    fn terminate(&self) -> bool {
        self.signal(nix::sys::signal::Signal::SIGTERM)
    }

    fn is_alive(&self) -> bool {
        self.signal(None)
    }

    /// Kills what is left, once: afterwards the number may belong to somebody else.
    fn kill(&mut self) {
        self.signal(nix::sys::signal::Signal::SIGKILL);
        self.0 = None;
    }

    fn signal(&self, signal: impl Into<Option<nix::sys::signal::Signal>>) -> bool {
        self.0
            .is_some_and(|group| nix::sys::signal::killpg(group, signal).is_ok())
    }
}

#[cfg(unix)]
impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where there are no process groups, only the child itself is stopped, by tokio's `kill_on_drop`.
#[cfg(not(unix))]
struct Group;

#[cfg(not(unix))]
impl Group {
    fn of(_child: &Child) -> Group {
        Group
    }

    fn terminate(&self) -> bool {
        false
    }

    fn is_alive(&self) -> bool {
        false
    }

    fn kill(&mut self) {}
}
