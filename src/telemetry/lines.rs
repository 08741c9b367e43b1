//! Where the lines of the log go: to standard error, several in one write where many are written.
//!
//! A worker thread that is about to sleep writes out what there is ([`flush`] is called by the runtime then), so under
//! load the lines of all requests that one wake-up brought go out together, after the answers, and a line never waits
//! while nothing happens. Warnings and errors are written at once, and so is every line of a thread that never calls
//! [`flush`].

use std::{
    cell::Cell,
    io::{self, Write},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Most that waits to be written, in bytes.
const MAX_WAITING: usize = 16 << 10;

static WAITING: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Something waits; asked before the lock is taken.
static IS_WAITING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread calls [`flush`] whenever it is about to sleep.
    static FLUSHES: Cell<bool> = const { Cell::new(false) };
}

/// Writes out the lines that wait. Whoever calls it once calls it again before every sleep.
pub fn flush() {
    FLUSHES.set(true);
    write_out();
}

/// Writes out the lines that wait.
pub fn write_out() {
    if IS_WAITING.load(Ordering::Acquire) {
        drain(&mut waiting());
    }
}

fn waiting() -> MutexGuard<'static, Vec<u8>> {
    // Whoever panicked with it has added a whole line, or a part of one: better than none.
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last of so many waiting bytes is the end of a line that may wait, or of one that may not.
fn may_stay(may_wait: bool, waiting: usize) -> bool {
    may_wait && waiting < MAX_WAITING
}

fn drain(waiting: &mut Vec<u8>) {
    // Nobody can be told that the log cannot be written.
    let _ = io::stderr().write_all(waiting);
    waiting.clear();
    IS_WAITING.store(false, Ordering::Release);
}

/// Makes [`Line`]s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines;

/// One line on its way.
#[derive(Debug)]
pub(super) struct Line {
    may_wait: bool,
}

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line { may_wait: false }
    }

    fn make_writer_for(&self, metadata: &Metadata<'_>) -> Line {
        Line {
            may_wait: *metadata.level() >= Level::INFO && FLUSHES.get(),
        }
    }
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = waiting();
        waiting.extend_from_slice(line);
        if may_stay(self.may_wait, waiting.len()) {
            IS_WAITING.store(true, Ordering::Release);
        } else {
            drain(&mut waiting);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wait_until_there_are_too_many_or_one_that_may_not() {
        assert!(may_stay(true, 4));
        assert!(may_stay(true, MAX_WAITING - 1));
        assert!(!may_stay(true, MAX_WAITING));
        assert!(!may_stay(false, 4));
    }
}
