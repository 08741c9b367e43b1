//! A child process, and the termination of it and of everything that it started.
//!
//! `npx` and similar programs start the real server as a grandchild, and some servers start helpers that leave the
//! process group. So each program is started by its own [`reaper`]. Where toolway is a library, or not on Unix, the
//! program is started directly; then only its process group, or only the program, is stopped.

#[cfg(unix)]
pub mod reaper;

use std::{
    ffi::{OsStr, OsString},
    io::ErrorKind,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};
#[cfg(unix)]
use std::{
    io::Write,
    os::fd::AsRawFd,
    sync::{Mutex, PoisonError},
};

#[cfg(unix)]
use nix::unistd::dup;
#[cfg(unix)]
use tokio::{io::AsyncReadExt, net::unix::pipe};
use tokio::{
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::{Instant, sleep, timeout},
};

#[cfg(unix)]
use self::reaper::Report;
use crate::secret::Secret;

/// The variables of toolway's environment that a child inherits.
const INHERITED: [&str; 9] = [
    "PATH", "HOME", "LANG", "LC_ALL", "TERM", "USER", "LOGNAME", "SHELL", "TMPDIR",
];

/// Time for a child to exit after its input is closed.
const AFTER_EOF: Duration = Duration::from_secs(2);

/// How long the processes have to end after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(2);

/// How long the process that starts a program may take to say that the program runs.
#[cfg(unix)]
const TO_START: Duration = Duration::from_secs(10);

/// A running child and the far ends of its pipes.
pub(super) struct Spawned {
    pub(super) process: Process,
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// A running program. Dropping it kills the program and what it has started.
pub(super) struct Process {
    child: Child,
    hold: Hold,
}

/// How a program is stopped.
enum Hold {
    /// The child is the program, and the leader of its group.
    Direct(ProcessGroup),
    /// The child is a [`reaper`], which has started the program.
    #[cfg(unix)]
    Reaped(Reaped),
}

/// Starts a program with a clean environment, in a process group of its own. Dropping the future stops it.
/// When it has ended, `cleanup` is run where there is a [`reaper`]: a program with its arguments, or nothing.
pub(super) async fn spawn(
    command: &str,
    args: &[String],
    env: &[(String, Secret)],
    cwd: Option<&Path>,
    cleanup: &[String],
) -> std::io::Result<Spawned> {
    #[cfg(unix)]
    if let Some(program) = reaper::program() {
        let mut builder = builder(program, env, cwd);
        let (child, reaped) = Reaped::spawn(&mut builder, command, args, cleanup)?;
        let mut spawned = Spawned::of(child, Hold::Reaped(reaped))?;
        if let Hold::Reaped(reaped) = &mut spawned.process.hold {
            reaped.started().await?;
        }
        return Ok(spawned);
    }
    let child = builder(OsStr::new(command), env, cwd)
        .args(args)
        .kill_on_drop(true)
        .spawn()?;
    let group = ProcessGroup::of(&child);
    Spawned::of(child, Hold::Direct(group))
}

/// Finds out whether a program is there to be started, in this environment and folder, without starting it.
pub(super) fn find(
    command: &str,
    env: &[(String, Secret)],
    cwd: Option<&Path>,
) -> std::io::Result<()> {
    let folder = cwd.unwrap_or(Path::new(""));
    if command.contains('/') {
        return is_program(&folder.join(command));
    }
    let own = env.iter().rfind(|(name, _)| name == "PATH");
    let path = match own {
        Some((_, path)) => OsString::from(path.expose()),
        None => std::env::var_os("PATH").unwrap_or_default(),
    };
    let is_there =
        std::env::split_paths(&path).any(|it| is_program(&folder.join(it).join(command)).is_ok());
    let is_there = is_there && (cwd.is_none() || folder.is_dir());
    is_there.then_some(()).ok_or(ErrorKind::NotFound.into())
}

fn is_program(file: &Path) -> std::io::Result<()> {
    let about = std::fs::metadata(file)?;
    #[cfg(unix)]
    let is_executable = std::os::unix::fs::MetadataExt::mode(&about) & 0o111 != 0;
    #[cfg(not(unix))]
    let is_executable = true;
    match about.is_file() && is_executable {
        true => Ok(()),
        false => Err(ErrorKind::PermissionDenied.into()),
    }
}

/// Why a program cannot be started, with advice if there is any.
pub(super) fn not_started(command: &str, cwd: Option<&Path>, error: &std::io::Error) -> String {
    let is_path = command.contains('/');
    let why = match cwd {
        _ if error.kind() != ErrorKind::NotFound => error.to_string(),
        Some(cwd) if !cwd.is_dir() => {
            format!("there is no folder `{}` to run it in", cwd.display())
        }
        // For a script, the missing file may be its interpreter.
        _ if is_path => error.to_string(),
        _ => "it is not in `PATH`; is it installed?".to_owned(),
    };
    format!("`{command}` cannot be started: {why}")
}

fn builder(program: &OsStr, env: &[(String, Secret)], cwd: Option<&Path>) -> Command {
    let mut builder = Command::new(program);
    builder.env_clear();
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
    builder
}

impl Spawned {
    fn of(mut child: Child, hold: Hold) -> std::io::Result<Spawned> {
        let missing = || std::io::Error::other("the child has no pipes");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        Ok(Spawned {
            process: Process { child, hold },
            stdin,
            stdout,
            stderr,
        })
    }
}

impl Process {
    /// The id of the process that was started, while it runs.
    pub(super) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the program exits without a signal of ours, and returns how. Cancel safe.
    pub(super) async fn ended(&mut self) -> String {
        match self.wait().await {
            Ok(status) => format!("the process ended ({status})"),
            Err(error) => format!("the process was lost: {error}"),
        }
    }

    /// Waits until the program ends by itself. Cancel safe.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        #[cfg(unix)]
        if let Hold::Reaped(reaped) = &mut self.hold {
            if let Some(status) = reaped.ended().await {
                return Ok(status);
            }
            // The reaper was killed. Its process id is not reused before it is waited for.
            reaped.group.kill();
        }
        self.child.wait().await
    }

    /// Ends the program and everything it has started, within about 5 s. Its input must have been closed.
    pub(super) async fn stop(mut self) {
        let _ = timeout(AFTER_EOF, self.wait()).await;
        match &mut self.hold {
            Hold::Direct(group) => {
                if group.terminate() {
                    let deadline = Instant::now() + AFTER_TERM;
                    while group.is_alive() && Instant::now() < deadline {
                        // The group becomes empty only when the child is reaped.
                        let _ = self.child.try_wait();
                        sleep(Duration::from_millis(20)).await;
                    }
                }
                group.kill();
            }
            #[cfg(unix)]
            Hold::Reaped(reaped) => {
                // The reaper ends when nothing is left.
                if reaped.terminate() {
                    let _ = timeout(AFTER_TERM, self.child.wait()).await;
                }
                reaped.kill();
            }
        }
        let _ = timeout(Duration::from_secs(1), self.child.wait()).await;
    }
}

/// A program that was started by a [`reaper`], as toolway sees it. Dropping it kills everything that the program has
/// started.
#[cfg(unix)]
struct Reaped {
    /// `None` once everything is to be killed.
    orders: Option<std::io::PipeWriter>,
    reports: pipe::Receiver,
    ended: Option<ExitStatus>,
    /// Of the reaper and the program, in case another process kills the reaper.
    group: GroupNumber,
}

#[cfg(unix)]
impl Reaped {
    fn spawn(
        builder: &mut Command,
        command: &str,
        args: &[String],
        cleanup: &[String],
    ) -> std::io::Result<(Child, Reaped)> {
        /// No other child may inherit the descriptors of this one.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

        let (orders, our_orders) = std::io::pipe()?;
        let (our_reports, reports) = std::io::pipe()?;
        let our_reports = pipe::Receiver::from_owned_fd(our_reports.into())?;
        let child = {
            let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            // Unlike the originals, these copies are inherited.
            let (orders, reports) = (dup(&orders)?, dup(&reports)?);
            let numbers = [orders.as_raw_fd(), reports.as_raw_fd()];
            builder
                .arg0("toolway")
                .arg(reaper::SUBCOMMAND)
                .args(numbers.map(|number| number.to_string()))
                .arg(cleanup.len().to_string())
                .args(cleanup)
                .arg(command)
                .args(args)
                .spawn()?
        };
        let reaped = Reaped {
            orders: Some(our_orders),
            reports: our_reports,
            ended: None,
            group: GroupNumber::of(&child),
        };
        Ok((child, reaped))
    }

    /// Waits until the program runs, at most 10 s.
    async fn started(&mut self) -> std::io::Result<()> {
        let error = match timeout(TO_START, self.report()).await {
            Ok(Some(Report::Started)) => return Ok(()),
            Ok(Some(Report::Failed(reason))) => {
                return Err(std::io::Error::from_raw_os_error(reason));
            }
            Ok(_) => std::io::Error::other("the process that starts it has ended"),
            Err(_) => {
                let late = "the process that starts it does not answer";
                std::io::Error::new(ErrorKind::TimedOut, late)
            }
        };
        self.group.kill();
        Err(error)
    }

    /// Waits for the program's end; `None` if it cannot be known any more. Cancel safe.
    async fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none()
            && let Some(Report::Ended(status)) = self.report().await
        {
            self.ended = Some(status);
        }
        self.ended
    }

    /// Cancel safe, because a report is written and so read as one.
    async fn report(&mut self) -> Option<Report> {
        let mut report = [0; Report::LENGTH];
        match self.reports.read(&mut report).await {
            Ok(Report::LENGTH) => Report::read(report),
            _ => None,
        }
    }

    /// Sends SIGTERM to everything; returns false when nothing is left.
    fn terminate(&mut self) -> bool {
        let orders = self.orders.as_mut();
        orders.is_some_and(|orders| orders.write_all(&[reaper::TERMINATE]).is_ok())
    }

    fn kill(&mut self) {
        self.orders = None;
    }
}

/// The number of a process group.
#[cfg(unix)]
struct GroupNumber(Option<nix::unistd::Pid>);

#[cfg(unix)]
impl GroupNumber {
    fn of(child: &Child) -> GroupNumber {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        GroupNumber(id.map(nix::unistd::Pid::from_raw))
    }

    /// Kills what is left, once: afterwards the number may belong to another group.
    fn kill(&mut self) {
        self.signal(nix::sys::signal::Signal::SIGKILL);
        self.0 = None;
    }

    fn signal(&self, signal: impl Into<Option<nix::sys::signal::Signal>>) -> bool {
        self.0
            .is_some_and(|group| nix::sys::signal::killpg(group, signal).is_ok())
    }
}

/// A process group, killed when dropped.
#[cfg(unix)]
struct ProcessGroup(GroupNumber);

#[cfg(unix)]
impl ProcessGroup {
    fn of(child: &Child) -> ProcessGroup {
        ProcessGroup(GroupNumber::of(child))
    }

    /// Sends SIGTERM to every process of the group; returns false when there is none.
    fn terminate(&self) -> bool {
        self.0.signal(nix::sys::signal::Signal::SIGTERM)
    }

    fn is_alive(&self) -> bool {
        self.0.signal(None)
    }

    fn kill(&mut self) {
        self.0.kill();
    }
}

#[cfg(unix)]
impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where there are no process groups, only the child itself is stopped, by tokio's `kill_on_drop`.
#[cfg(not(unix))]
struct ProcessGroup;

#[cfg(not(unix))]
impl ProcessGroup {
    fn of(_child: &Child) -> ProcessGroup {
        ProcessGroup
    }

    fn terminate(&self) -> bool {
        false
    }

    fn is_alive(&self) -> bool {
        false
    }

    fn kill(&mut self) {}
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &str, cwd: Option<&str>, message: &str) {
        let error = find(command, &[], cwd.map(Path::new)).unwrap_err();
        assert_eq!(not_started(command, cwd.map(Path::new), &error), message);
    }

    #[test]
    fn a_program_that_is_there_is_found() {
        let path = |text: &str| [("PATH".to_owned(), Secret::new(text.to_owned()))];
        assert!(find("sh", &[], None).is_ok());
        assert!(find("sh", &path("/bin"), Some(Path::new("/"))).is_ok());
        assert!(find("sh", &path("/no/such"), None).is_err());
        assert!(find("/bin/sh", &[], None).is_ok());
        assert!(find("bin/sh", &[], Some(Path::new("/"))).is_ok());
        assert!(find("/etc/passwd", &[], None).is_err());
    }

    #[test]
    fn a_program_that_is_not_there_comes_with_what_to_do() {
        let advice = "`no-such-program` cannot be started: it is not in `PATH`; is it installed?";
        check("no-such-program", None, advice);
        let gone = "`/no/such` cannot be started: No such file or directory (os error 2)";
        check("/no/such", None, gone);
        let no_folder = "`sh` cannot be started: there is no folder `/no/such` to run it in";
        check("sh", Some("/no/such"), no_folder);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_nobody_reports_is_given_up() {
        let mut builder = builder(OsStr::new("sh"), &[], None);
        builder.args(["-c", "exec sleep 1000"]);
        let (mut child, mut reaped) = Reaped::spawn(&mut builder, "x", &[], &[]).unwrap();
        let error = reaped.started().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(!child.wait().await.unwrap().success());
    }
}
