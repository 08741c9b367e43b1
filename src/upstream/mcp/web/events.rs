//! The event stream of a server, one event at a time, and the fields of an event.
//!
//! [`Framer`] finds where events begin and end, with a bound on what is kept of each. `eventsource-stream` reads the
//! fields of an event that is framed: it has no bound itself.

use std::{collections::VecDeque, convert::Infallible};

use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures::{FutureExt, Stream, StreamExt, stream};
use tokio::time::sleep;
use toolway_protocol::sse::{FrameError, Framer, SseEvent};

use crate::lines::{PAUSE, is_due};

/// One event, or why it cannot be read; later events can still be read.
pub(in crate::upstream::mcp) type Framed = Result<SseEvent, FrameError>;

/// The events of a stream of bytes. What follows the last blank line is an event too.
pub(in crate::upstream::mcp) fn events<S, E>(
    bytes: S,
    limit: usize,
) -> impl Stream<Item = Result<Framed, E>>
where
    S: Stream<Item = Result<Bytes, E>> + Send + 'static,
{
    Events::new(Box::pin(bytes), limit).into_stream()
}

/// The events of a stream of bytes, one at a time.
pub(in crate::upstream::mcp) struct Events<S, E> {
    bytes: S,
    is_over: bool,
    framer: Framer,
    put_back: VecDeque<Result<Framed, E>>,
    thrown_away: usize,
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
            framer: Framer::resuming(limit),
            put_back: VecDeque::new(),
            thrown_away: 0,
        }
    }

    /// The next event, or why the stream broke; `None` at its end. Cancel safe.
    pub(in crate::upstream::mcp) async fn next(&mut self) -> Option<Result<Framed, E>> {
        if let Some(next) = self.put_back.pop_front() {
            return Some(next);
        }
        loop {
            if let Some(event) = self.framer.next() {
                return Some(Ok(event));
            }
            if self.is_over {
                return None;
            }
            match self.bytes.next().await {
                Some(Ok(chunk)) => {
                    let length = chunk.len();
                    self.framer.push(chunk);
                    // Discarding must not cost more than reading.
                    if self.framer.is_discarding() && is_due(&mut self.thrown_away, length) {
                        let pause = Box::pin(sleep(PAUSE));
                        pause.await;
                    }
                }
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    self.is_over = true;
                    return self.framer.finish().map(Ok);
                }
            }
        }
    }

    /// Undoes [`Events::next`]: this event comes next.
    pub(in crate::upstream::mcp) fn put_back(&mut self, next: Result<Framed, E>) {
        self.put_back.push_front(next);
    }

    /// What was not framed yet.
    pub(in crate::upstream::mcp) fn into_bytes(self) -> S {
        self.bytes
    }

    /// The events that are left.
    pub(in crate::upstream::mcp) fn into_stream(self) -> impl Stream<Item = Result<Framed, E>> {
        stream::unfold(self, |mut events| async move {
            let next = events.next().await?;
            Some((next, events))
        })
    }
}

/// How many bytes an event had, as far as they were kept.
pub(in crate::upstream::mcp) fn length(event: &Framed) -> usize {
    match event {
        Ok(event) => event.raw().len(),
        Err(FrameError::TooLong { head, tail, .. }) => head.len() + tail.len(),
        Err(FrameError::InvalidUtf8 { length }) => *length,
    }
}

/// The fields of an event, with empty data where it has none; `None` for comments.
pub(in crate::upstream::mcp) fn fields(event: &SseEvent) -> Option<eventsource_stream::Event> {
    if event.is_comment() {
        return None;
    }
    // The parser gives out no event without data, and cannot begin with a byte-order mark. It copies the rest of a
    // piece for every line in it, so each line is a piece.
    let first: &[u8] = if event.is_dataless() {
        b"data\n"
    } else {
        b":\n"
    };
    let lines = event
        .raw()
        .split_inclusive(|byte| matches!(byte, b'\n' | b'\r'));
    let pieces = [first].into_iter().chain(lines).chain([&b"\n\n"[..]]);
    let pieces = stream::iter(pieces.map(Ok::<_, Infallible>));
    pieces.eventsource().next().now_or_never()??.ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn read(text: &[u8], chunk: usize) -> Vec<Framed> {
        let chunks: Vec<_> = text.chunks(chunk).map(Bytes::copy_from_slice).collect();
        let chunks = stream::iter(chunks).map(Ok::<_, Infallible>);
        let events = events(chunks, 10_000);
        events.map(|event| event.unwrap()).collect().await
    }

    #[tokio::test]
    async fn an_event_over_the_limit_costs_no_other_and_the_last_may_lack_its_blank_line() {
        let text = format!("data: {}\n\ndata: next", "x".repeat(50_000));
        for chunk in [7, 9000, 100_000] {
            let events = read(text.as_bytes(), chunk).await;
            assert!(
                matches!(&events[0], Err(FrameError::TooLong { head, .. }) if head.starts_with(b"data: x"))
            );
            let last = fields(events[1].as_ref().unwrap()).unwrap();
            assert_eq!((last.data.as_str(), events.len()), ("next", 2));
        }
    }

    #[tokio::test]
    async fn the_fields_of_an_event_are_read() {
        for line_break in ["\n", "\r\n", "\r"] {
            let text = [
                "id: 7",
                "event: e",
                "retry: 50",
                "data: a",
                "data:b",
                "x: y",
                "",
                "",
            ];
            let events = read(text.join(line_break).as_bytes(), 5).await;
            let read = fields(events[0].as_ref().unwrap()).unwrap();
            assert_eq!((&*read.id, &*read.event, &*read.data), ("7", "e", "a\nb"));
            assert_eq!(read.retry, Some(Duration::from_millis(50)));
        }
    }

    #[tokio::test]
    async fn an_event_without_data_has_an_id_and_comments_are_no_event() {
        let text = "id: 7\n\n: x\n\n\u{feff}data: a\n\n\u{feff}\n\ndata: b\n\n";
        let events = read(text.as_bytes(), 100).await;
        let events: Vec<_> = events
            .iter()
            .map(|it| fields(it.as_ref().unwrap()))
            .collect();
        let data = |at: usize| events[at].as_ref().map(|event| event.data.as_str());
        assert_eq!(events[0].as_ref().unwrap().id, "7");
        assert_eq!(events[1], None);
        assert_eq!([data(2), data(3), data(4)], [Some(""), Some(""), Some("b")]);
    }
}
