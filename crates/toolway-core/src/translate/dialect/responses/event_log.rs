//! The events of a response that runs in the background, so that a client can take up its stream again.

use std::collections::VecDeque;

use bytes::Bytes;

/// Most events of one response.
const MAX_EVENTS: usize = 10_000;

/// The last events of a response, as they are written to clients. The first one of a response has the number 0.
#[derive(Debug, Default)]
pub struct EventLog {
    events: VecDeque<Bytes>,
    /// The number of the first that is kept.
    first: u64,
    bytes: usize,
}

/// Events that a reader has not read are not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events up to number {before} are no longer kept")]
pub struct Expired {
    /// The last that is gone.
    pub before: u64,
}

impl EventLog {
    /// Adds whole events.
    pub fn append(&mut self, written: &[u8]) {
        let text = Bytes::copy_from_slice(written);
        let mut from = 0;
        for end in memchr::memmem::find_iter(written, b"\n\n") {
            let event = text.slice(from..end + 2);
            from = end + 2;
            self.bytes += event.len();
            self.events.push_back(event);
        }
        while self.events.len() > MAX_EVENTS {
            self.drop_oldest();
        }
    }

    /// Drops the oldest event. Returns false if the log is empty.
    pub fn drop_oldest(&mut self) -> bool {
        let Some(event) = self.events.pop_front() else {
            return false;
        };
        self.bytes -= event.len();
        self.first += 1;
        true
    }

    /// How many bytes are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of the next event.
    pub fn next(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// The events from this number on, in one piece, and the number of the next one. At most about `max` bytes, but one
    /// event.
    ///
    /// # Errors
    /// When some of them are no longer kept.
    pub fn from(&self, number: u64, max: usize) -> Result<(Vec<u8>, u64), Expired> {
        let Some(at) = number.checked_sub(self.first) else {
            let before = self.first - 1;
            return Err(Expired { before });
        };
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let (mut piece, mut next) = (Vec::new(), number);
        for event in self.events.iter().skip(at) {
            if !piece.is_empty() && piece.len() + event.len() > max {
                break;
            }
            piece.extend_from_slice(event);
            next += 1;
        }
        Ok((piece, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(events: &[&str]) -> EventLog {
        let mut log = EventLog::default();
        log.append(events.concat().as_bytes());
        log
    }

    #[track_caller]
    fn check(log: &EventLog, number: u64, max: usize, expected: Result<(&str, u64), u64>) {
        let found = log.from(number, max);
        let found = found.map(|(piece, next)| (String::from_utf8(piece).unwrap(), next));
        let expected = expected.map(|(piece, next)| (piece.to_owned(), next));
        assert_eq!(found, expected.map_err(|before| Expired { before }));
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let log = log(&["a\n\n", "b\n\n", "c\n\n"]);
        assert_eq!((log.bytes(), log.next()), (9, 3));
        check(&log, 0, 100, Ok(("a\n\nb\n\nc\n\n", 3)));
        check(&log, 1, 100, Ok(("b\n\nc\n\n", 3)));
        check(&log, 1, 1, Ok(("b\n\n", 2)));
        check(&log, 3, 100, Ok(("", 3)));
        check(&log, 9, 100, Ok(("", 9)));
    }

    #[test]
    fn a_reader_that_comes_too_late_is_told_so() {
        let mut log = log(&["a\n\n", "b\n\n", "c\n\n"]);
        assert!(log.drop_oldest());
        assert!(log.drop_oldest());
        check(&log, 1, 100, Err(1));
        check(&log, 2, 100, Ok(("c\n\n", 3)));
        assert!(log.drop_oldest());
        assert!(!log.drop_oldest());
        assert_eq!((log.bytes(), log.next()), (0, 3));
    }

    #[test]
    fn the_number_of_events_is_bounded() {
        let log = log(&vec!["a\n\n"; MAX_EVENTS + 2]);
        check(&log, 1, 100, Err(1));
        assert_eq!(log.next(), MAX_EVENTS as u64 + 2);
    }
}
