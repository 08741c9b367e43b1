//! Framing of `text/event-stream` on the level of bytes: what came in, cut into whole events.
//!
//! Follows the event stream format of the HTML standard, § 9.2.5 and 9.2.6: LF, CRLF and CR end a line, one
//! leading byte-order mark is dropped, the space after a colon is optional. Comments and foreign fields stay
//! in [`SseEvent::raw`], so that an event can be passed on as the bytes that came.
//!
//! Every byte is looked at a fixed number of times, however small the chunks are. Nothing here knows JSON.

mod pattern;

use std::{borrow::Cow, collections::VecDeque, ops::Range};

use bytes::Bytes;
use memchr::{memchr, memchr2};

pub use self::pattern::{AlikeEvents, EventPattern};

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// How much is kept of each end of an event that is too long, in bytes.
const KEPT: usize = 4096;

/// A body that begins like this is an event stream, whatever its type says.
pub fn is_begun_by(start: &[u8]) -> bool {
    let start = start.strip_prefix(BOM).unwrap_or(start).trim_ascii_start();
    [&b"data:"[..], b"event:", b"id:", b"retry:", b"error:", b":"]
        .iter()
        .any(|field| start.starts_with(field))
}

/// Why a piece of a stream is not an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// An event is longer than the limit. The rest of the stream is lost, unless the framer
    /// [resumes](Framer::resuming).
    #[error("an event of the stream is longer than {limit} bytes")]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
        /// The first bytes of what was read of the event, at most 4096.
        head: Vec<u8>,
        /// The last bytes of what was read of the event, at most 4096. They may overlap `head`.
        tail: Vec<u8>,
    },
    /// An event is not UTF-8. The events after it can still be read.
    #[error("an event of the stream is not valid UTF-8")]
    InvalidUtf8 {
        /// The length of the event, in bytes.
        length: usize,
    },
}

/// One block of a stream, up to and with the blank line that ends it.
#[derive(Clone, Debug)]
pub struct SseEvent {
    raw: Bytes,
    data: Data,
    name: Option<Range<usize>>,
    plain: bool,
    terminated: bool,
}

/// Where an event's data stands in its bytes.
#[derive(Clone, Debug)]
enum Data {
    None,
    Line(Range<usize>),
    Joined(String),
}

impl SseEvent {
    /// An event of one `data:` line, as if a stream had carried it. `data` must not hold a line break;
    /// what follows one is read as further lines of the event.
    pub fn from_data(data: &str) -> SseEvent {
        let raw = Bytes::from(format!("data: {data}\n\n"));
        SseEvent::read(raw, true)
    }

    /// The bytes as they came, with the blank line; without it where the stream ended before.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The data lines, joined with LF; `None` where the block has none.
    pub fn data(&self) -> Option<Cow<'_, str>> {
        match &self.data {
            Data::None => None,
            Data::Line(range) => Some(Cow::Borrowed(self.text(range))),
            Data::Joined(text) => Some(Cow::Borrowed(text)),
        }
    }

    /// The value of the `event:` field, where there is one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|range| self.text(range))
    }

    /// The value of the first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        lines(&self.raw).find_map(|(line, start)| {
            let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b":")?;
            let value = value.strip_prefix(b" ").unwrap_or(value);
            let end = start + line.len();
            Some(self.text(&(end - value.len()..end)))
        })
    }

    /// The block holds comments, or fields that carry no data, and nothing else.
    pub fn is_dataless(&self) -> bool {
        matches!(self.data, Data::None)
    }

    /// The block holds comments only.
    pub fn is_comment(&self) -> bool {
        lines(&self.raw).all(|(line, _)| matches!(line.first(), None | Some(b':')))
    }

    /// The blank line that ends the block was there.
    pub fn is_terminated(&self) -> bool {
        self.terminated
    }

    /// The block is one `data:` line and the blank line after it, and nothing more.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    fn text(&self, range: &Range<usize>) -> &str {
        self.raw
            .get(range.clone())
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or("")
    }

    /// Reads a block that is known to be UTF-8.
    fn read(raw: Bytes, terminated: bool) -> SseEvent {
        let mut event = SseEvent {
            raw: Bytes::new(),
            data: Data::None,
            name: None,
            plain: false,
            terminated,
        };
        let mut others = 0;
        for (line, start) in lines(&raw) {
            if line.is_empty() {
                continue;
            }
            let colon = memchr(b':', line).unwrap_or(line.len());
            let mut value = (colon + 1).min(line.len());
            if line.get(value) == Some(&b' ') {
                value += 1;
            }
            let range = start + value..start + line.len();
            match &line[..colon] {
                b"data" => event.data = event.data.and(&raw, range),
                b"event" => {
                    event.name = Some(range);
                    others += 1;
                }
                _ => others += 1,
            }
        }
        event.plain = terminated && others == 0 && matches!(event.data, Data::Line(_));
        event.raw = raw;
        event
    }
}

impl Data {
    /// Adds one more line.
    fn and(self, raw: &[u8], line: Range<usize>) -> Data {
        let text = |range: Range<usize>| String::from_utf8_lossy(&raw[range]).into_owned();
        match self {
            Data::None => Data::Line(line),
            Data::Line(first) => Data::Joined(text(first) + "\n" + &text(line)),
            Data::Joined(mut joined) => {
                joined.push('\n');
                joined.push_str(&text(line));
                Data::Joined(joined)
            }
        }
    }
}

/// The lines of a block without their ends, each with the place where it starts.
fn lines(block: &[u8]) -> impl Iterator<Item = (&[u8], usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= block.len() {
            return None;
        }
        let start = at;
        let end = memchr2(b'\n', b'\r', &block[start..]).map_or(block.len(), |n| start + n);
        let crlf = block[end..].starts_with(b"\r\n");
        at = end + if crlf { 2 } else { 1 };
        Some((&block[start..end], start))
    })
}

/// Cuts a stream of bytes into [`SseEvent`]s.
///
/// Bytes go in with [`push`](Framer::push), whole events come out of [`next`](Framer::next) until it gives
/// `None`, and [`finish`](Framer::finish) gives what was left when the stream ended.
#[derive(Debug)]
pub struct Framer {
    max_event_bytes: usize,
    /// An event that is too long ends with its blank line, and not the stream with it.
    resumes: bool,
    /// The running block is too long; `carry` has its ends.
    is_discarding: bool,
    /// Chunks that were not begun yet.
    waiting: VecDeque<Bytes>,
    /// The chunk being read; all before `start` is used up, all before `at` is looked at.
    chunk: Bytes,
    start: usize,
    at: usize,
    /// The beginning of the running block, from chunks that are used up.
    carry: Vec<u8>,
    /// Nothing stands on the running line yet.
    line_is_empty: bool,
    /// The block has a line that is not blank.
    block_has_lines: bool,
    /// The last line ended with CR, and the next byte tells whether LF belongs to it.
    after_cr: bool,
    /// The blank line that ends the block was seen, and only that byte is waited for.
    block_is_whole: bool,
    /// The last line that was not blank ended with CR alone.
    lone_cr: bool,
    /// How many bytes of a byte-order mark were seen; `None` once the stream has begun.
    bom: Option<usize>,
    broken: bool,
}

impl Framer {
    /// A framer that takes events of up to `max_event_bytes` bytes, the blank line included.
    pub fn new(max_event_bytes: usize) -> Framer {
        Framer {
            max_event_bytes,
            resumes: false,
            is_discarding: false,
            waiting: VecDeque::new(),
            chunk: Bytes::new(),
            start: 0,
            at: 0,
            carry: Vec::new(),
            line_is_empty: true,
            block_has_lines: false,
            after_cr: false,
            block_is_whole: false,
            lone_cr: false,
            bom: Some(0),
            broken: false,
        }
    }

    /// The same, but an event that is too long costs only itself: its ends are kept, and the next event is read.
    pub fn resuming(max_event_bytes: usize) -> Framer {
        Framer {
            resumes: true,
            ..Framer::new(max_event_bytes)
        }
    }

    /// The running event is too long, and what arrives of it is thrown away.
    pub fn is_discarding(&self) -> bool {
        self.is_discarding
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: Bytes) {
        if !self.broken {
            self.waiting.push_back(bytes);
        }
    }

    /// The next whole event, or `None` until more bytes are pushed. After [`FrameError::TooLong`] it is always `None`,
    /// unless the framer [resumes](Framer::resuming).
    #[expect(clippy::should_implement_trait, reason = "more may come after `None`")]
    pub fn next(&mut self) -> Option<Result<SseEvent, FrameError>> {
        while !self.broken {
            if self.at == self.chunk.len() {
                self.keep_rest();
                if self.carry.len() > self.max_event_bytes && !self.resumes {
                    let carry = std::mem::take(&mut self.carry);
                    return Some(Err(self.too_long(&carry)));
                }
                self.chunk = self.waiting.pop_front()?;
                (self.start, self.at) = (0, 0);
            } else if self.bom.is_some() {
                self.skip_bom();
            } else if self.step() {
                return Some(self.cut(true));
            }
        }
        None
    }

    /// The next event and its text, if it fits the pattern and is in one piece. It is still the next one until it is
    /// [skipped](Framer::skip).
    pub fn peek_like(&mut self, pattern: &EventPattern) -> Option<(&[u8], Cow<'_, str>)> {
        let is_between = self.line_is_empty && !self.block_has_lines && !self.after_cr;
        let is_plain = self.bom.is_none() && !self.is_discarding && !self.broken;
        if !is_between || !is_plain || !self.carry.is_empty() || self.start != self.at {
            return None;
        }
        if self.at == self.chunk.len() {
            self.chunk = self.waiting.pop_front()?;
            (self.start, self.at) = (0, 0);
        }
        let (length, text) = pattern.find(&self.chunk[self.at..])?;
        let raw = &self.chunk[self.at..self.at + length];
        (length <= self.max_event_bytes).then_some((raw, text))
    }

    /// Goes on after the event of this length that [`peek_like`](Framer::peek_like) gave.
    pub fn skip(&mut self, length: usize) {
        self.at = (self.at + length).min(self.chunk.len());
        self.start = self.at;
    }

    /// The event that the stream ended in the middle of, if there is one.
    /// To be called once, after [`next`](Framer::next) gave `None`.
    pub fn finish(&mut self) -> Option<Result<SseEvent, FrameError>> {
        let nothing = !self.block_has_lines && self.line_is_empty;
        if self.broken || nothing {
            return None;
        }
        let whole = self.block_is_whole;
        Some(self.cut(whole))
    }

    /// Drops one byte-order mark at the very start; anything else that looked like one stays.
    fn skip_bom(&mut self) {
        let seen = self.bom.unwrap_or(0);
        if self.chunk.get(self.at) != BOM.get(seen) {
            self.line_is_empty = seen == 0;
            self.bom = None;
            return;
        }
        self.at += 1;
        self.bom = Some(seen + 1);
        if seen + 1 == BOM.len() {
            self.bom = None;
            self.forget();
        }
    }

    /// Reads on to the end of a line or of the chunk. True: the block is whole.
    fn step(&mut self) -> bool {
        if self.after_cr {
            self.after_cr = false;
            let lf = self.chunk[self.at] == b'\n';
            self.at += usize::from(lf);
            self.lone_cr = !lf;
            return self.block_is_whole;
        }
        let Some(length) = memchr2(b'\n', b'\r', &self.chunk[self.at..]) else {
            self.line_is_empty = false;
            self.at = self.chunk.len();
            return false;
        };
        let cr = self.chunk[self.at + length] == b'\r';
        let blank = self.line_is_empty && length == 0;
        self.at += length + 1;
        self.line_is_empty = true;
        if blank && !self.block_has_lines {
            self.forget();
            return false;
        }
        if blank && (!cr || self.lone_cr) {
            return true;
        }
        // With CR alone as line end it is not known whether LF follows, so that an event is given out at once
        // and an LF after it is a blank line of the next. Where lines end with CRLF it is waited for.
        self.block_has_lines = true;
        self.block_is_whole = blank;
        self.after_cr = cr;
        self.lone_cr = false;
        false
    }

    /// Gives out the running block.
    fn cut(&mut self, terminated: bool) -> Result<SseEvent, FrameError> {
        let raw = if self.carry.is_empty() {
            self.chunk.slice(self.start..self.at)
        } else {
            self.carry
                .extend_from_slice(&self.chunk[self.start..self.at]);
            Bytes::from(std::mem::take(&mut self.carry))
        };
        self.start = self.at;
        self.line_is_empty = true;
        self.block_has_lines = false;
        self.block_is_whole = false;
        self.lone_cr = false;
        if std::mem::take(&mut self.is_discarding) || raw.len() > self.max_event_bytes {
            return Err(self.too_long(&raw));
        }
        match std::str::from_utf8(&raw) {
            Ok(_) => Ok(SseEvent::read(raw, terminated)),
            Err(_) => Err(FrameError::InvalidUtf8 { length: raw.len() }),
        }
    }

    /// Moves what a used-up chunk holds of the running block aside.
    fn keep_rest(&mut self) {
        self.carry
            .extend_from_slice(&self.chunk[self.start..self.at]);
        self.chunk = Bytes::new();
        (self.start, self.at) = (0, 0);
        if self.resumes && (self.is_discarding || self.carry.len() > self.max_event_bytes) {
            self.is_discarding = true;
            let (head, tail) = (KEPT, self.carry.len().saturating_sub(KEPT));
            if head < tail {
                self.carry = [&self.carry[..head], &self.carry[tail..]].concat();
            }
        }
    }

    /// Drops what was read and belongs to no block.
    fn forget(&mut self) {
        self.carry.clear();
        self.start = self.at;
    }

    /// Why a block of this beginning and end is no event; the end of everything for a framer that does not resume.
    fn too_long(&mut self, raw: &[u8]) -> FrameError {
        if !self.resumes {
            self.broken = true;
            self.waiting.clear();
            self.chunk = Bytes::new();
        }
        let kept = raw.len().min(KEPT);
        FrameError::TooLong {
            limit: self.max_event_bytes,
            head: raw[..kept].to_vec(),
            tail: raw[raw.len() - kept..].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a stream holds: name and data of each event, or the error.
    fn read(bytes: &[u8], chunk: usize, max: usize) -> Vec<String> {
        let mut framer = Framer::new(max);
        let mut seen = Vec::new();
        for piece in bytes.chunks(chunk.max(1)) {
            framer.push(Bytes::copy_from_slice(piece));
            while let Some(event) = framer.next() {
                seen.push(show(event));
            }
        }
        seen.extend(framer.finish().map(show));
        seen
    }

    fn show(event: Result<SseEvent, FrameError>) -> String {
        match event {
            Ok(event) => match (event.name(), event.data()) {
                (None, None) => "-".into(),
                (None, Some(data)) => data.into_owned(),
                (Some(name), data) => format!("{name}={}", data.unwrap_or_default()),
            },
            Err(error) => error.to_string(),
        }
    }

    #[track_caller]
    fn check(bytes: &[u8], expected: &[&str]) {
        for chunk in 1..=bytes.len() {
            assert_eq!(read(bytes, chunk, 1000), expected, "in chunks of {chunk}");
        }
    }

    #[test]
    fn lf_crlf_and_cr_end_lines() {
        check(b"data: a\n\ndata: b\n\n", &["a", "b"]);
        check(b"data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]);
        check(b"data: a\r\rdata: b\r\r", &["a", "b"]);
        check(b"data: a\r\n\rdata: b\r\n\r", &["a", "b"]);
        check(b"data: a\n\r\ndata: b\r\r\ndata: c\n\n", &["a", "b", "c"]);
    }

    #[test]
    fn one_byte_order_mark_is_dropped() {
        check(
            b"\xEF\xBB\xBFdata: a\n\ndata: \xEF\xBB\xBFb\n\n",
            &["a", "\u{feff}b"],
        );
        check(b"\xEF\xBB\xBF\xEF\xBB\xBFdata: a\n\n", &["-"]);
        check("\u{fe00}: x\n\n".as_bytes(), &["-"]);
    }

    #[test]
    fn the_space_after_the_colon_is_optional_and_one() {
        check(b"data:a\n\ndata:  b\n\n", &["a", " b"]);
    }

    #[test]
    fn several_data_lines_are_joined() {
        check(b"data: a\ndata: b\ndata\ndata:c\n\n", &["a\nb\n\nc"]);
    }

    #[test]
    fn comments_and_unknown_fields_carry_no_data() {
        check(b": hi\n\n:\n\nid: 3\nretry: 5\n\n", &["-", "-", "-"]);
        check(b": hi\nevent: x\ndata: a\n\n", &["x=a"]);
    }

    #[test]
    fn blank_lines_alone_are_no_event() {
        check(b"\n\n\r\n\r\r\ndata: a\n\n\n\n", &["a"]);
    }

    #[test]
    fn the_last_event_may_lack_its_blank_line() {
        check(b"data: a\n\ndata: b", &["a", "b"]);
        check(b"data: a\r\n\r\ndata: b\r\n\r", &["a", "b"]);
        check(b"data: a\ndata: b\n", &["a\nb"]);
    }

    #[test]
    fn invalid_utf8_costs_one_event() {
        check(
            b"data: \xff\n\ndata: b\n\n",
            &["an event of the stream is not valid UTF-8", "b"],
        );
    }

    #[test]
    fn an_event_over_the_bound_ends_the_stream() {
        let message = "an event of the stream is longer than 12 bytes";
        for chunk in 1..40 {
            let given = b"data: 1234\n\ndata: 12345\n\ndata: 1\n\n";
            assert_eq!(
                read(given, chunk, 12),
                ["1234", message],
                "in chunks of {chunk}"
            );
            let endless = [b'x'; 100];
            assert_eq!(read(&endless, chunk, 12), [message], "in chunks of {chunk}");
        }
    }

    #[test]
    fn where_the_framer_resumes_an_event_over_the_bound_keeps_its_ends_and_costs_no_other() {
        let text = format!("data: {{{}}}\n\ndata: next\n\n", "x".repeat(50_000));
        for chunk in [7, 100, 9000, 100_000] {
            let mut framer = Framer::resuming(10_000);
            let mut events = Vec::new();
            for piece in text.as_bytes().chunks(chunk) {
                framer.push(Bytes::copy_from_slice(piece));
                events.extend(std::iter::from_fn(|| framer.next()));
                assert!(framer.carry.len() < 30_000, "{}", framer.carry.len());
            }
            let Err(FrameError::TooLong { head, tail, .. }) = events.remove(0) else {
                panic!("should be too long")
            };
            assert!(head.starts_with(b"data: {x") && head.len() == KEPT);
            assert!(tail.ends_with(b"x}\n\n") && tail.len() == KEPT);
            assert_eq!(events.remove(0).unwrap().data().unwrap(), "next");
            assert!(events.is_empty() && !framer.is_discarding());
        }
    }

    #[test]
    fn the_end_of_a_stream_ends_an_event_that_is_too_long() {
        let mut framer = Framer::resuming(5);
        framer.push(Bytes::from_static(b"data: abc"));
        assert!(framer.next().is_none() && framer.is_discarding());
        let error = framer.finish().unwrap().unwrap_err();
        let (head, tail) = (b"data: abc".to_vec(), b"data: abc".to_vec());
        let limit = 5;
        assert_eq!(error, FrameError::TooLong { limit, head, tail });
    }

    proptest! {
        #[test]
        fn chunks_make_no_difference(
            parts in proptest::collection::vec("(data: a|\u{feff}|: b|x|\r\n|\r|\n)", 0..12),
            chunk in 1_usize..9,
            max in 1_usize..40,
        ) {
            let text = parts.concat();
            let read = |chunk: usize| {
                let mut framer = Framer::resuming(max);
                let mut seen = Vec::new();
                for piece in text.as_bytes().chunks(chunk) {
                    framer.push(Bytes::copy_from_slice(piece));
                    seen.extend(std::iter::from_fn(|| framer.next()));
                }
                seen.extend(framer.finish());
                let raw = |event: Result<SseEvent, FrameError>| event.map(|it| it.raw().clone());
                seen.into_iter().map(raw).collect::<Vec<_>>()
            };
            prop_assert_eq!(read(chunk), read(text.len().max(1)));
        }
    }

    #[test]
    fn the_bytes_come_out_as_they_went_in() {
        let given = b": a\n\ndata: b\r\n\r\nevent: c\rdata: d\r\rdata:e";
        for chunk in 1..given.len() {
            let mut framer = Framer::new(100);
            let mut out = Vec::new();
            for piece in given.chunks(chunk) {
                framer.push(Bytes::copy_from_slice(piece));
                while let Some(event) = framer.next() {
                    out.extend_from_slice(event.unwrap().raw());
                }
            }
            out.extend_from_slice(framer.finish().unwrap().unwrap().raw());
            assert_eq!(out, given, "in chunks of {chunk}");
        }
    }

    #[test]
    fn an_event_within_one_chunk_is_not_copied() {
        let chunk = Bytes::from_static(b"data: a\n\ndata: b\n\n");
        let mut framer = Framer::new(100);
        framer.push(chunk.clone());
        framer.next();
        let second = framer.next().unwrap().unwrap();
        assert_eq!(second.raw().as_ptr(), chunk[9..].as_ptr());
    }

    #[test]
    fn only_one_data_line_is_plain() {
        let plain = |text: &'static str| {
            let mut framer = Framer::new(100);
            framer.push(Bytes::from_static(text.as_bytes()));
            framer
                .next()
                .or_else(|| framer.finish())
                .unwrap()
                .unwrap()
                .is_plain()
        };
        assert!(plain("data: a\n\n"));
        assert!(plain("data:a\r\n\r\n"));
        assert!(!plain("data: a"));
        assert!(!plain(": x\ndata: a\n\n"));
        assert!(!plain("event: x\ndata: a\n\n"));
        assert!(!plain("data: a\ndata: b\n\n"));
    }

    #[test]
    fn chunks_may_be_pushed_before_events_are_taken() {
        let mut framer = Framer::new(100);
        for piece in ["data: ", "a\n", "\ndata: b\n\nda", "ta: c\n\n"] {
            framer.push(Bytes::from_static(piece.as_bytes()));
        }
        let seen: Vec<String> = std::iter::from_fn(|| framer.next().map(show)).collect();
        assert_eq!(seen, ["a", "b", "c"]);
    }

    #[test]
    fn a_stream_is_known_by_its_first_bytes() {
        for stream in [
            "data: {}",
            "event: x",
            ": comment",
            "\r\n id: 1",
            "\u{feff}retry: 5",
            "error: {}",
        ] {
            assert!(is_begun_by(stream.as_bytes()), "{stream}");
        }
        for other in ["{\"data:\": 1}", "", "<html>", "dat"] {
            assert!(!is_begun_by(other.as_bytes()), "{other}");
        }
    }
}
