//! Server-sent events on the level of bytes: whole events, one at a time, with a bound on what is kept of each.
//!
//! The parsers above only ever see one whole event: `eventsource-stream` reads a pending line anew at every chunk and
//! panics on a byte-order mark, and `sse-stream` has no bound.

use std::{collections::VecDeque, mem};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use memchr::memchr2;
use tokio::time::sleep;

use crate::lines::{PAUSE, is_due};

/// How much is kept of each end of an event that is too long.
const KEPT: usize = 4096;

/// One event, with the blank line that ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::upstream::mcp) enum RawEvent {
    /// All of it.
    Whole(Bytes),
    /// The ends of an event that was longer than the limit; the rest was thrown away.
    Cut {
        /// Its first bytes, at most 4096.
        head: Vec<u8>,
        /// Its last bytes, at most 4096.
        tail: Vec<u8>,
    },
}

/// Splits a stream of bytes into events. What follows the last blank line is an event too.
pub(in crate::upstream::mcp) fn raw_events<S, E>(
    bytes: S,
    limit: usize,
) -> impl Stream<Item = Result<RawEvent, E>>
where
    S: Stream<Item = Result<Bytes, E>> + Send + 'static,
{
    Events::new(Box::pin(bytes), limit).into_stream()
}

/// The events of a stream of bytes, one at a time.
pub(in crate::upstream::mcp) struct Events<S, E> {
    bytes: S,
    is_over: bool,
    splitter: Splitter,
    ready: VecDeque<RawEvent>,
    fault: Option<E>,
    thrown_away: usize,
}

impl RawEvent {
    /// How many bytes were kept.
    pub(in crate::upstream::mcp) fn len(&self) -> usize {
        match self {
            RawEvent::Whole(bytes) => bytes.len(),
            RawEvent::Cut { head, tail } => head.len() + tail.len(),
        }
    }
}

impl<S, E> Events<S, E>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    /// Nothing is read yet; of an event that is longer than this only the ends are kept.
    pub(in crate::upstream::mcp) fn new(bytes: S, limit: usize) -> Events<S, E> {
        Events {
            bytes,
            is_over: false,
            splitter: Splitter::new(limit),
            ready: VecDeque::new(),
            fault: None,
            thrown_away: 0,
        }
    }

    /// The next event, or why the stream broke; `None` at its end. Cancel safe.
    pub(in crate::upstream::mcp) async fn next(&mut self) -> Option<Result<RawEvent, E>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if let Some(fault) = self.fault.take() {
                return Some(Err(fault));
            }
            if self.is_over {
                return None;
            }
            match self.bytes.next().await {
                Some(Ok(chunk)) => {
                    self.splitter.push(&chunk, &mut self.ready);
                    // What is thrown away must not cost more than what is read.
                    if self.splitter.tail.is_some() && is_due(&mut self.thrown_away, chunk.len()) {
                        let pause = Box::pin(sleep(PAUSE));
                        pause.await;
                    }
                }
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    self.is_over = true;
                    self.ready.extend(self.splitter.finish());
                }
            }
        }
    }

    /// Undoes [`Events::next`]: this comes next.
    pub(in crate::upstream::mcp) fn put_back(&mut self, next: Result<RawEvent, E>) {
        match next {
            Ok(event) => self.ready.push_front(event),
            Err(fault) => self.fault = Some(fault),
        }
    }

    /// What was not split yet.
    pub(in crate::upstream::mcp) fn into_bytes(self) -> S {
        self.bytes
    }

    /// The events that are left.
    pub(in crate::upstream::mcp) fn into_stream(self) -> impl Stream<Item = Result<RawEvent, E>> {
        stream::unfold(self, |mut events| async move {
            let next = events.next().await?;
            Some((next, events))
        })
    }
}

/// Finds the blank lines, whatever line breaks they are made of.
struct Splitter {
    limit: usize,
    event: Vec<u8>,
    /// The end of an event whose beginning is in `event`, once that is full.
    tail: Option<Vec<u8>>,
    line_is_empty: bool,
    after_cr: bool,
    at_start: bool,
}

impl Splitter {
    fn new(limit: usize) -> Splitter {
        Splitter {
            limit,
            event: Vec::new(),
            tail: None,
            line_is_empty: true,
            after_cr: false,
            at_start: true,
        }
    }

    fn push(&mut self, chunk: &[u8], ready: &mut VecDeque<RawEvent>) {
        let (mut from, mut seen) = (0, 0);
        while let Some(text) = memchr2(b'\n', b'\r', &chunk[seen..]) {
            let at = seen + text;
            seen = at + 1;
            if text > 0 {
                self.line_goes_on();
            }
            if chunk[at] == b'\n' && mem::take(&mut self.after_cr) {
                // The second half of a line break that has been seen.
                if self.event.is_empty() && self.tail.is_none() && from == at {
                    from = seen;
                }
                continue;
            }
            self.after_cr = chunk[at] == b'\r';
            if self.line_is_empty {
                self.keep(&chunk[from..seen]);
                from = seen;
                ready.extend(self.finish());
            }
            self.line_is_empty = true;
        }
        if seen < chunk.len() {
            self.line_goes_on();
        }
        self.keep(&chunk[from..]);
    }

    fn line_goes_on(&mut self) {
        self.line_is_empty = false;
        self.after_cr = false;
    }

    fn keep(&mut self, part: &[u8]) {
        if self.tail.is_none() && self.event.len() + part.len() > self.limit {
            let whole_tail = self.event.split_off(self.event.len().min(KEPT));
            self.tail = Some(whole_tail);
            let room = KEPT.saturating_sub(self.event.len()).min(part.len());
            self.event.extend_from_slice(&part[..room]);
        }
        match &mut self.tail {
            None => self.event.extend_from_slice(part),
            Some(tail) => {
                tail.extend_from_slice(&part[part.len().saturating_sub(KEPT)..]);
                tail.drain(..tail.len().saturating_sub(KEPT));
            }
        }
    }

    /// Takes what was kept as an event, if it is more than line breaks.
    fn finish(&mut self) -> Option<RawEvent> {
        self.line_is_empty = true;
        let mut event = mem::take(&mut self.event);
        if mem::take(&mut self.at_start) && event.starts_with(b"\xef\xbb\xbf") {
            event.drain(..3);
        }
        if let Some(tail) = self.tail.take() {
            return Some(RawEvent::Cut { head: event, tail });
        }
        if event.trim_ascii().is_empty() {
            return None;
        }
        if !event.ends_with(b"\n\n") {
            event.extend_from_slice(b"\n\n");
        }
        Some(RawEvent::Whole(event.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;

    async fn split(text: &[u8], chunk: usize, limit: usize) -> Vec<RawEvent> {
        let chunks: Vec<_> = text
            .chunks(chunk)
            .map(|part| Ok::<_, Infallible>(Bytes::copy_from_slice(part)))
            .collect();
        raw_events(stream::iter(chunks), limit)
            .map(|event| event.unwrap())
            .collect()
            .await
    }

    #[track_caller]
    fn parsed(events: Vec<RawEvent>) -> Vec<String> {
        let texts = events.into_iter().map(|event| match event {
            RawEvent::Whole(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            RawEvent::Cut { .. } => panic!("nothing should be cut"),
        });
        texts
            .map(|text| {
                text.replace("\r\n", "\n")
                    .replace('\r', "\n")
                    .trim_end()
                    .to_owned()
            })
            .collect()
    }

    #[tokio::test]
    async fn events_come_out_whatever_the_chunks_and_line_breaks_are() {
        for line_break in ["\n", "\r\n", "\r"] {
            let text =
                ["id: 1", "data: a", "", "", "data: b", "data: c", "", ": d"].join(line_break);
            for chunk in 1..text.len() {
                let events = parsed(split(text.as_bytes(), chunk, 100).await);
                assert_eq!(events, ["id: 1\ndata: a", "data: b\ndata: c", ": d"]);
            }
        }
    }

    #[tokio::test]
    async fn a_byte_order_mark_goes() {
        for chunk in 1..8 {
            assert_eq!(
                parsed(split(b"\xef\xbb\xbfdata: a\n\n", chunk, 100).await),
                ["data: a"]
            );
        }
    }

    proptest! {
        #[test]
        fn chunks_make_no_difference(
            parts in proptest::collection::vec("(data: a|\u{feff}|: b|x|\r\n|\r|\n)", 0..12),
            chunk in 1_usize..9,
        ) {
            let text = parts.concat();
            let whole = split(text.as_bytes(), text.len().max(1), 1000).now_or_never();
            prop_assert!(whole.is_some());
            prop_assert_eq!(split(text.as_bytes(), chunk, 1000).now_or_never(), whole);
        }
    }

    #[tokio::test]
    async fn an_event_over_the_limit_keeps_its_ends_and_costs_no_other() {
        let text = format!("data: {{{}}}\n\ndata: next\n\n", "x".repeat(50_000));
        for chunk in [7, 100, 9000, 100_000] {
            let events = split(text.as_bytes(), chunk, 10_000).await;
            let RawEvent::Cut { head, tail } = &events[0] else {
                panic!("should be cut")
            };
            assert!(head.starts_with(b"data: {x") && head.len() <= KEPT);
            assert!(tail.ends_with(b"x}\n\n") && tail.len() <= KEPT);
            assert_eq!(parsed(events[1..].to_vec()), ["data: next"]);
        }
    }
}
