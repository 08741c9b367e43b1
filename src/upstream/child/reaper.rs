//! The process between toolway and a program it has started, so that nothing of the program outlives toolway.
//!
//! A killed toolway cannot stop its children, and helpers that call `setsid` leave the process group. So a program is
//! started by `toolway __child`, which adopts whatever its descendants leave behind (a "subreaper", on Linux) and
//! notices toolway's end because a pipe ends with it. The program has the standard streams, environment and working directory
//! that toolway gave it; this process touches none of them.
//!
//! There is no runtime here: one thread waits for processes to end, another one for orders. The pipe reports toolway's
//! end, not the death signal of Linux (`PR_SET_PDEATHSIG`), because that signal is sent when the *thread* that started
//! the child ends.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{fd::RawFd, unix::process::ExitStatusExt},
    path::PathBuf,
    process::{Command, ExitCode, ExitStatus},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, kill},
        wait::{WaitStatus, wait},
    },
    unistd::{Pid, close, dup2_stderr, dup2_stdin, dup2_stdout},
};

/// The subcommand, for internal use.
pub(super) const SUBCOMMAND: &str = "__child";

/// The order to send SIGTERM to every process. When the pipe of orders closes, they are killed.
pub(super) const TERMINATE: u8 = b't';

/// Pause between two looks for processes that are left to be killed.
const AGAIN: Duration = Duration::from_millis(10);

/// The number of such looks; what cannot be killed by then never can.
const MOST_LOOKS: u32 = 1000;

/// Everything that the program has started has ended, so that nothing is to be killed.
static NOTHING_IS_LEFT: AtomicBool = AtomicBool::new(false);

/// toolway's own program.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Starts every child from now on through this program, which is toolway.
///
/// On Linux `/proc/self/exe` is still the same program when its file was replaced or deleted.
pub fn enable(program: impl Into<PathBuf>) {
    let _ = PROGRAM.set(program.into());
}

/// The program that starts children, if one was named.
pub(super) fn program() -> Option<&'static OsStr> {
    PROGRAM.get().map(|path| path.as_os_str())
}

/// A report to toolway, of [`Report::LENGTH`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The program cannot be started, for this reason.
    Failed(i32),
    /// The program runs.
    Started,
    /// The program has ended like this.
    Ended(ExitStatus),
}

impl Report {
    pub(super) const LENGTH: usize = 5;

    fn write(self) -> [u8; Report::LENGTH] {
        let (kind, number) = match self {
            Report::Failed(errno) => (b'f', errno),
            Report::Started => (b's', 0),
            Report::Ended(status) => (b'e', status.into_raw()),
        };
        let [a, b, c, d] = number.to_le_bytes();
        [kind, a, b, c, d]
    }

    pub(super) fn read([kind, number @ ..]: [u8; Report::LENGTH]) -> Option<Report> {
        let number = i32::from_le_bytes(number);
        match kind {
            b'f' => Some(Report::Failed(number)),
            b's' => Some(Report::Started),
            b'e' => Some(Report::Ended(ExitStatus::from_raw(number))),
            _ => None,
        }
    }
}

/// Runs as a reaper if this process was started as one. Call it before anything else.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != SUBCOMMAND {
        return None;
    }
    let run = run(args);
    Some(run.map_or(ExitCode::from(2), |()| ExitCode::SUCCESS))
}

/// `ORDERS REPORTS LENGTH [CLEANUP…] PROGRAM [ARGUMENT…]`: two file descriptors, and the length of the command that is
/// run when everything has ended.
fn run(mut args: impl Iterator<Item = OsString>) -> io::Result<()> {
    let mut next = || args.next().ok_or(io::ErrorKind::InvalidInput);
    let orders = reopen(&next()?, OpenOptions::new().read(true))?;
    let mut reports = reopen(&next()?, OpenOptions::new().write(true))?;
    let length = next()?.to_str().and_then(|length| length.parse().ok());
    let length: usize = length.ok_or(io::ErrorKind::InvalidInput)?;
    let cleanup: Vec<OsString> = (0..length).map(|_| next()).collect::<Result<_, _>>()?;
    let program = next()?;
    #[cfg(target_os = "linux")]
    // If that is forbidden, descendants whose parents still run are found anyway.
    let _ = nix::sys::prctl::set_child_subreaper(true);
    let obeying = thread::Builder::new().stack_size(128 << 10);
    obeying.spawn(move || obey(orders))?;
    let child = match Command::new(program).args(args).spawn() {
        Ok(child) => Pid::from_raw(child.id().cast_signed()),
        Err(error) => {
            let reason = error.raw_os_error().unwrap_or_default();
            return reports.write_all(&Report::Failed(reason).write());
        }
    };
    // From here on nothing ends this process while the program runs: neither a closed pipe for the reports nor a
    // signal. A signal to the whole group is meant for the program, which would have inherited the setting if this were
    // done before.
    let _ = SigSet::all().thread_block();
    let _ = let_go_of_streams();
    let _ = reports.write_all(&Report::Started.write());
    let mut is_known = false;
    loop {
        match wait() {
            Ok(ended) if ended.pid() == Some(child) => {
                is_known = true;
                let _ = reports.write_all(&Report::Ended(status(ended)).write());
            }
            Err(Errno::ECHILD) if is_known => {
                clean_up(&cleanup);
                return Ok(());
            }
            Err(Errno::ECHILD) => return Err(io::ErrorKind::Other.into()),
            // A process that ended by an unnamed signal is an error here too.
            Ok(_) | Err(_) => {}
        }
    }
}

fn clean_up(command: &[OsString]) {
    NOTHING_IS_LEFT.store(true, Ordering::Release);
    if let Some((program, args)) = command.split_first() {
        // What it says nobody reads: the standard streams lead nowhere.
        let _ = Command::new(program).args(args).status();
    }
}

/// The standard streams are the program's alone.
fn let_go_of_streams() -> io::Result<()> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    Ok(())
}

/// An inherited pipe, under a descriptor that the program does not inherit.
fn reopen(descriptor: &OsStr, how: &OpenOptions) -> io::Result<File> {
    let invalid = io::ErrorKind::InvalidInput;
    let descriptor: RawFd = descriptor
        .to_str()
        .and_then(|it| it.parse().ok())
        .ok_or(invalid)?;
    let folder = match cfg!(target_os = "linux") {
        true => "/proc/self/fd",
        false => "/dev/fd",
    };
    let file = how.open(format!("{folder}/{descriptor}"))?;
    close(descriptor)?;
    Ok(file)
}

fn status(ended: WaitStatus) -> ExitStatus {
    ExitStatus::from_raw(match ended {
        WaitStatus::Exited(_, code) => code << 8,
        WaitStatus::Signaled(_, signal, _) => signal as i32,
        _ => 0,
    })
}

/// Executes toolway's orders, and kills everything when their pipe closes.
fn obey(mut orders: File) {
    let _ = SigSet::all().thread_block();
    while matches!(orders.read(&mut [0]), Ok(1..)) {
        signal_all(Signal::SIGTERM);
    }
    for _ in 0..MOST_LOOKS {
        if NOTHING_IS_LEFT.load(Ordering::Acquire) {
            return;
        }
        signal_all(Signal::SIGKILL);
        thread::sleep(AGAIN);
    }
    std::process::exit(1);
}

/// Every process that the program has started, and the program.
#[cfg(target_os = "linux")]
fn signal_all(signal: Signal) {
    for process in descendants(Pid::this(), &parents()) {
        let _ = kill(process, signal);
    }
}

/// Every process that is still in the group; this process has blocked the signals that can be blocked.
#[cfg(not(target_os = "linux"))]
fn signal_all(signal: Signal) {
    let _ = kill(Pid::from_raw(0), signal);
}

/// Every process and its parent.
#[cfg(target_os = "linux")]
fn parents() -> Vec<(Pid, Pid)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|it| it.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|process: i32| {
            let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
            Some((Pid::from_raw(process), Pid::from_raw(parent(&stat)?)))
        })
        .collect()
}

/// The parent in `/proc/PID/stat`: `PID (NAME) STATE PARENT …`, where the name may have any bytes.
#[cfg(any(target_os = "linux", test))]
fn parent(stat: &[u8]) -> Option<i32> {
    let (_, rest) = stat.split_at(memchr::memrchr(b')', stat)? + 1);
    let mut fields = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
    fields.nth(1)?.parse().ok()
}

/// The descendants of a process, the nearest first.
#[cfg(any(target_os = "linux", test))]
fn descendants(of: Pid, parents: &[(Pid, Pid)]) -> Vec<Pid> {
    let mut found = vec![of];
    let mut at = 0;
    while let Some(process) = found.get(at).copied() {
        let children = parents
            .iter()
            .filter(|(it, parent)| *parent == process && *it != of);
        found.extend(children.map(|(it, _)| *it));
        at += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        for report in [
            Report::Failed(2),
            Report::Started,
            Report::Ended(ExitStatus::from_raw(7 << 8)),
            Report::Ended(ExitStatus::from_raw(9)),
        ] {
            assert_eq!(Report::read(report.write()), Some(report));
        }
        assert_eq!(Report::read(*b"?1234"), None);
    }

    #[test]
    fn an_end_is_passed_on_as_it_was() {
        let process = Pid::from_raw(5);
        let exited = status(WaitStatus::Exited(process, 7));
        assert_eq!(exited.code(), Some(7));
        let killed = status(WaitStatus::Signaled(process, Signal::SIGKILL, false));
        assert_eq!(killed.signal(), Some(9));
    }

    #[test]
    fn a_parent_is_found_whatever_the_process_calls_itself() {
        assert_eq!(parent(b"12 (a) b) 9 (c) S 7 12 12 0"), Some(7));
        assert_eq!(parent(b"12 (\xff) R 1 1"), Some(1));
        assert_eq!(parent(b"12 (a"), None);
    }

    #[test]
    fn descendants_are_children_and_theirs() {
        let pid = Pid::from_raw;
        let parents = [(2, 1), (5, 2), (3, 2), (9, 8), (7, 5), (8, 1)];
        let parents = parents.map(|(it, parent)| (pid(it), pid(parent)));
        assert_eq!(descendants(pid(2), &parents), [5, 3, 7].map(pid));
        assert_eq!(descendants(pid(7), &parents), []);
    }
}
