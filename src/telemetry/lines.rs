//! Where the lines of the log go: to standard error, which one thread of its own writes.
//!
//! A thread that logs appends its line to a bounded queue and continues. It never waits for the reader of standard
//! error: when the queue is full, lines are dropped and counted, and the log says how many as soon as it is read again.
//!
//! What a terminal would not show is escaped here, since values of the log come from servers and clients as well.
//!
//! After each write the thread gathers lines for a moment, so that under load it writes many at once and is woken
//! seldom. Warnings and errors end that moment.

use std::{
    borrow::Cow,
    io::{self, ErrorKind, Write},
    mem,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::printable;

/// When this much waits to be written, in bytes, further lines are dropped.
const MAX_WAITING: usize = 1 << 20;

/// Memory that is kept between two writes, in bytes.
const KEPT: usize = 64 << 10;

/// How long lines are gathered after a write.
const GATHERING: Duration = Duration::from_millis(10);

/// Longest wait of a process that ends for the reader of its log.
const LAST_LINES: Duration = Duration::from_millis(200);

/// Pause before the next try where standard error is a pipe that does not block and is full.
const PAUSE: Duration = Duration::from_millis(10);

static LOG: Log = Log {
    queue: Mutex::new(LogQueue {
        text: Vec::new(),
        dropped: 0,
        writer: WriterState::Absent,
    }),
    work: Condvar::new(),
    written: Condvar::new(),
};

struct Log {
    queue: Mutex<LogQueue>,
    /// Wakes the writing thread.
    work: Condvar,
    /// Signalled after each write.
    written: Condvar,
}

/// Lines that wait for the writing thread.
struct LogQueue {
    /// Whole lines.
    text: Vec<u8>,
    /// How many lines were dropped and not reported yet.
    dropped: u64,
    writer: WriterState,
}

/// What the writing thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterState {
    /// It was not started.
    Absent,
    /// It waits for a line.
    Idle,
    /// It has just written, and lets lines gather.
    Gathering,
    /// It writes, or was woken to.
    Busy,
}

impl LogQueue {
    /// Adds a line or drops it; whether the writing thread must be woken.
    fn push(&mut self, line: &[u8], is_urgent: bool) -> bool {
        if self.text.len() >= MAX_WAITING {
            self.dropped += 1;
            return false;
        }
        self.text.extend_from_slice(line);
        let wakes = match self.writer {
            WriterState::Idle => true,
            WriterState::Gathering => is_urgent,
            WriterState::Absent | WriterState::Busy => false,
        };
        if wakes {
            self.writer = WriterState::Busy;
        }
        wakes
    }

    /// The lines that were dropped, once there is room for a line that says so.
    fn take_dropped(&mut self) -> u64 {
        match self.text.len() < MAX_WAITING / 2 {
            true => mem::take(&mut self.dropped),
            false => 0,
        }
    }
}

/// Starts the thread that writes. A second start changes nothing.
pub(super) fn start() -> io::Result<()> {
    let mut queue = queue();
    if queue.writer == WriterState::Absent {
        let out = standard_error()?;
        let writer = thread::Builder::new().name("log".to_owned());
        writer.spawn(move || write_lines(out))?;
        queue.writer = WriterState::Busy;
    }
    Ok(())
}

/// Waits until what was logged so far is written, for a short time at most.
pub fn flush() {
    let mut queue = queue();
    match queue.writer {
        WriterState::Absent => return,
        WriterState::Idle | WriterState::Gathering if queue.text.is_empty() => return,
        WriterState::Idle | WriterState::Gathering => {
            queue.writer = WriterState::Busy;
            LOG.work.notify_one();
        }
        WriterState::Busy => {}
    }
    let is_pending =
        |queue: &mut LogQueue| queue.writer == WriterState::Busy || !queue.text.is_empty();
    let _ = LOG
        .written
        .wait_timeout_while(queue, LAST_LINES, is_pending);
}

/// Writes a text between the lines of the log; without a log, directly to standard error.
pub fn say(text: &str) {
    let mut queue = queue();
    if queue.writer == WriterState::Absent {
        drop(queue);
        // A standard error that cannot be written leaves no place to say so.
        let _ = io::stderr().write_all(text.as_bytes());
    } else if queue.push(text.as_bytes(), true) {
        LOG.work.notify_one();
    }
}

fn queue() -> MutexGuard<'static, LogQueue> {
    // Nothing panics with it between two halves of a change.
    LOG.queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard error without the lock of [`io::stderr`], which would be held for as long as a write blocks.
#[cfg(unix)]
fn standard_error() -> io::Result<impl Write + Send + 'static> {
    use std::{fs::File, os::fd::AsFd};
    let owned = io::stderr().as_fd().try_clone_to_owned()?;
    Ok(File::from(owned))
}

/// Standard error, which transcodes for the console.
#[cfg(not(unix))]
fn standard_error() -> io::Result<impl Write + Send + 'static> {
    Ok(io::stderr())
}

/// The writing thread; it ends with the process.
fn write_lines(mut out: impl Write) {
    let mut text = Vec::new();
    loop {
        next_lines(&mut text);
        write_all(&mut out, &text);
        text.clear();
        text.shrink_to(KEPT);
        let dropped = queue().take_dropped();
        if dropped > 0 {
            tracing::warn!(
                lines = dropped,
                "Lines of the log were dropped, because nobody read it"
            );
        }
    }
}

/// Takes what is to be written next, in exchange for an empty buffer.
fn next_lines(text: &mut Vec<u8>) {
    let mut queue = queue();
    queue.writer = WriterState::Gathering;
    LOG.written.notify_all();
    let gathering = |queue: &mut LogQueue| queue.writer == WriterState::Gathering;
    let gathered = LOG.work.wait_timeout_while(queue, GATHERING, gathering);
    (queue, _) = gathered.unwrap_or_else(PoisonError::into_inner);
    if queue.text.is_empty() {
        queue.writer = WriterState::Idle;
        let idle = |queue: &mut LogQueue| queue.writer == WriterState::Idle;
        let woken = LOG.work.wait_while(queue, idle);
        queue = woken.unwrap_or_else(PoisonError::into_inner);
    }
    queue.writer = WriterState::Busy;
    mem::swap(text, &mut queue.text);
}

/// Writes everything, however long the reader takes. A standard error that is closed loses it.
fn write_all(out: &mut impl Write, mut text: &[u8]) {
    while !text.is_empty() {
        match out.write(text) {
            Ok(0) => return,
            Ok(written) => text = text.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The other end of the pipe has set it so, for both.
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
            Err(_) => return,
        }
    }
}

/// Makes [`LogLine`]s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    /// They are JSON.
    pub(super) json: bool,
}

/// One line on its way.
#[derive(Debug)]
pub(super) struct LogLine {
    is_urgent: bool,
    json: bool,
}

impl MakeWriter<'_> for Lines {
    type Writer = LogLine;

    fn make_writer(&self) -> LogLine {
        LogLine {
            is_urgent: true,
            json: self.json,
        }
    }

    fn make_writer_for(&self, metadata: &Metadata<'_>) -> LogLine {
        LogLine {
            is_urgent: *metadata.level() <= Level::WARN,
            json: self.json,
        }
    }
}

impl Write for LogLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let wakes = queue().push(&shown(line, self.json), self.is_urgent);
        if wakes {
            LOG.work.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line as it is written: what a terminal would not show is escaped. Control characters are the formatter's.
fn shown(line: &[u8], json: bool) -> Cow<'_, [u8]> {
    if line.is_ascii() && memchr::memchr(0x7f, line).is_none() {
        return Cow::Borrowed(line);
    }
    let text = String::from_utf8_lossy(line);
    let text = match json {
        true => printable::json(&text),
        false => printable::line(&text),
    };
    Cow::Owned(text.into_owned().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(writer: WriterState) -> LogQueue {
        LogQueue {
            text: Vec::new(),
            dropped: 0,
            writer,
        }
    }

    #[track_caller]
    fn check(writer: WriterState, is_urgent: bool, wakes: bool) {
        let mut queue = queue(writer);
        assert_eq!(queue.push(b"a\n", is_urgent), wakes);
        assert!(!queue.push(
            b"b\n",
            is_urgent && !wakes && writer != WriterState::Gathering
        ));
        assert_eq!(queue.text, b"a\nb\n");
    }

    #[test]
    fn the_writing_thread_is_woken_once_and_only_where_it_sleeps() {
        check(WriterState::Idle, false, true);
        check(WriterState::Idle, true, true);
        check(WriterState::Gathering, false, false);
        check(WriterState::Gathering, true, true);
        check(WriterState::Busy, true, false);
    }

    #[test]
    fn lines_over_the_bound_are_dropped_and_counted() {
        let mut queue = queue(WriterState::Busy);
        let line = [b'x'; 1000];
        for _ in 0..2000 {
            queue.push(&line, false);
        }
        assert!(queue.text.len() < MAX_WAITING + line.len());
        assert_eq!(queue.text.len() % line.len(), 0);
        assert_eq!(queue.take_dropped(), 0, "there is no room to say so");
        let dropped = 2000 - (queue.text.len() / line.len()) as u64;
        queue.text.clear();
        assert_eq!(queue.take_dropped(), dropped);
        assert_eq!(queue.take_dropped(), 0);
    }

    #[test]
    fn what_a_terminal_would_not_show_is_escaped_in_every_format() {
        let line = "\u{1b}[1m\u{202e}\u{9b}grün\u{e0041}\n".as_bytes();
        let text = "\u{1b}[1m\\u{202e}\\u{9b}grün\\u{e0041}\n".as_bytes();
        let json = "\u{1b}[1m\\u202e\\u009bgrün\\udb40\\udc41\n".as_bytes();
        assert_eq!(shown(line, false), text);
        assert_eq!(shown(line, true), json);
        assert_eq!(shown(b"\x7f\n", true), &b"\\u007f\n"[..]);
        assert_eq!(shown(b"plain\n", true), &b"plain\n"[..]);
    }

    /// Takes a byte at a time, and now and then none.
    struct Slow(Vec<u8>, usize);

    impl Write for Slow {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            match self.1 % 3 {
                0 => Err(ErrorKind::WouldBlock.into()),
                1 => Err(ErrorKind::Interrupted.into()),
                _ => self.0.write(&text[..1]),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_pipe_that_does_not_block_loses_nothing() {
        let mut slow = Slow(Vec::new(), 0);
        write_all(&mut slow, b"abc\n");
        assert_eq!(slow.0, b"abc\n");
    }
}
