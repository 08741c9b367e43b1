//! Lines of a byte stream, with a bound on what is kept of each.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt},
    time::sleep,
};

/// How much is kept of each end of a line that is too long.
const KEPT: usize = 4096;

/// One line, without its line break.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// All of it.
    Whole(Vec<u8>),
    /// The ends of a line that was longer than the limit; the rest was read and thrown away.
    Cut {
        /// Its first bytes, at most 4096.
        head: Vec<u8>,
        /// Its last bytes, at most 4096.
        tail: Vec<u8>,
    },
}

/// So many bytes are thrown away before the next [`PAUSE`].
const THROWN_AWAY: usize = 1 << 20;

/// The pause that bounds what is thrown away to 64 MiB in a second.
pub(crate) const PAUSE: Duration = Duration::from_millis(16);

/// Counts bytes that are thrown away; a pause is due.
pub(crate) fn is_due(counted: &mut usize, bytes: usize) -> bool {
    *counted += bytes;
    let is_due = *counted >= THROWN_AWAY;
    if is_due {
        *counted = 0;
    }
    is_due
}

impl Line {
    /// How many bytes were kept.
    pub(crate) fn len(&self) -> usize {
        match self {
            Line::Whole(line) => line.len(),
            Line::Cut { head, tail } => head.len() + tail.len(),
        }
    }
}

/// Reads the next line; `None` at the end of the stream. Not cancel safe: bytes read so far are lost.
pub(crate) async fn next_line(
    reader: &mut (impl AsyncBufRead + Unpin),
    limit: usize,
) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    loop {
        let chunk = reader.fill_buf().await?;
        if chunk.is_empty() {
            return Ok((!line.is_empty()).then_some(Line::Whole(line)));
        }
        let end = memchr::memchr(b'\n', chunk);
        let part = &chunk[..end.unwrap_or(chunk.len())];
        if line.len() + part.len() > limit {
            line.extend_from_slice(&part[..part.len().min(KEPT)]);
            line.truncate(KEPT);
            return Ok(Some(drain(reader, line).await?));
        }
        line.extend_from_slice(part);
        let used = part.len() + usize::from(end.is_some());
        reader.consume(used);
        if end.is_some() {
            return Ok(Some(Line::Whole(line)));
        }
    }
}

/// Reads on to the end of the line, keeping its last bytes.
async fn drain(reader: &mut (impl AsyncBufRead + Unpin), head: Vec<u8>) -> io::Result<Line> {
    let mut tail = Vec::with_capacity(2 * KEPT);
    let mut thrown_away = 0;
    loop {
        let chunk = reader.fill_buf().await?;
        let end = memchr::memchr(b'\n', chunk);
        let part = &chunk[..end.unwrap_or(chunk.len())];
        tail.extend_from_slice(&part[part.len().saturating_sub(KEPT)..]);
        tail.drain(..tail.len().saturating_sub(KEPT));
        let is_over = chunk.is_empty() || end.is_some();
        let used = part.len() + usize::from(end.is_some());
        reader.consume(used);
        if is_over {
            return Ok(Line::Cut { head, tail });
        }
        if is_due(&mut thrown_away, used) {
            let pause = Box::pin(sleep(PAUSE));
            pause.await;
        }
    }
}

/// What is kept of a line that is too long: its first and its last bytes.
pub(crate) fn ends(line: &[u8]) -> (&[u8], &[u8]) {
    let head = line.len().min(KEPT);
    (&line[..head], &line[line.len() - head..])
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    async fn all(text: &[u8], buffer: usize, limit: usize) -> Vec<Line> {
        let mut reader = BufReader::with_capacity(buffer, text);
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut reader, limit).await.unwrap() {
            lines.push(line);
        }
        lines
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn lines_come_out_whatever_the_chunks_are() {
        for buffer in 1..9 {
            let lines = all(b"one\n\ntwo\nthree", buffer, 10).await;
            assert_eq!(
                lines,
                [whole("one"), whole(""), whole("two"), whole("three")]
            );
        }
    }

    #[tokio::test]
    async fn a_line_of_exactly_the_limit_is_whole() {
        assert_eq!(all(b"12345\n123456\n", 4, 5).await[0], whole("12345"));
    }

    #[tokio::test]
    async fn a_line_over_the_limit_keeps_its_ends_and_costs_no_other() {
        let long = format!("{{start{}end}}\nnext\n", "x".repeat(50_000));
        for buffer in [7, 100, 8192, 100_000] {
            let lines = all(long.as_bytes(), buffer, 10_000).await;
            let Line::Cut { head, tail } = &lines[0] else {
                panic!("the line should be cut")
            };
            assert!(head.starts_with(b"{start") && head.len() <= KEPT);
            assert!(tail.ends_with(b"end}") && tail.len() <= KEPT);
            assert_eq!(lines[1], whole("next"));
        }
    }
}
