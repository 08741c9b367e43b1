//! The last lines that a server wrote to its standard error.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::BufReader,
    process::ChildStderr,
    time::{Instant, sleep},
};
use tracing::debug;

use crate::{
    lines::{Line, next_line},
    secret::Secret,
    upstream::mcp::{faults::shorten, pace::Pace},
};
use toolway_protocol::tool::ServerId;

/// Lines that are kept.
const LINES: usize = 20;

/// Longest line that is kept, in bytes.
const LINE_BYTES: usize = 500;

/// Configured values shorter than this are ordinary words rather than secrets, and are left readable.
const SHORTEST_SECRET: usize = 8;

/// The last 20 lines, each of at most 500 bytes, with the configured secrets removed.
///
/// They belong to one process: the first line of a new process clears the old lines.
#[derive(Debug, Default)]
pub(in crate::upstream::mcp) struct StderrTail {
    lines: Mutex<VecDeque<String>>,
    secrets: Vec<Secret>,
}

impl StderrTail {
    /// An empty tail that removes these secrets from what arrives.
    pub(in crate::upstream::mcp) fn new(secrets: impl IntoIterator<Item = Secret>) -> StderrTail {
        let is_secret = |secret: &Secret| secret.expose().len() >= SHORTEST_SECRET;
        StderrTail {
            lines: Mutex::default(),
            secrets: secrets.into_iter().filter(is_secret).collect(),
        }
    }

    /// The lines, the oldest first.
    pub(in crate::upstream::mcp) fn lines(&self) -> Vec<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }

    /// Reads a child's standard error to its end, so that the child never waits for it, unless it floods it.
    pub(in crate::upstream::mcp) async fn read(
        self: Arc<Self>,
        server: ServerId,
        stderr: ChildStderr,
    ) {
        let mut reader = BufReader::new(stderr);
        let (mut is_first, mut pace) = (true, Pace::new());
        while let Ok(Some(line)) = next_line(&mut reader, LINE_BYTES).await {
            let pause = pace.count(line.len(), Instant::now());
            let line = self.strike_out(line);
            debug!(server.id = %server, line, "A server wrote to standard error");
            if std::mem::take(&mut is_first) {
                self.clear();
            }
            self.push(line);
            if let Some(pause) = pause {
                sleep(pause).await;
            }
        }
    }

    fn clear(&self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.clear();
    }

    fn strike_out(&self, line: Line) -> String {
        let bytes = match line {
            Line::Whole(line) => line,
            Line::Cut { head, .. } => head,
        };
        // A secret may begin before the cut, so the search covers everything that was kept.
        let mut text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        for secret in &self.secrets {
            if text.contains(secret.expose()) {
                text = text.replace(secret.expose(), "[redacted]");
            }
        }
        shorten(&mut text, LINE_BYTES);
        text
    }

    fn push(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck_out(tail: &StderrTail, line: &str) -> String {
        tail.strike_out(Line::Whole(line.as_bytes().to_vec()))
    }

    #[test]
    fn secrets_are_struck_out_and_words_are_not() {
        let tail = StderrTail::new([Secret::new("tok-123456"), Secret::new("info")]);
        assert_eq!(
            struck_out(&tail, "info: key tok-123456!\r"),
            "info: key [redacted]!"
        );
    }

    #[test]
    fn a_long_line_is_cut_at_a_character() {
        let line = struck_out(&StderrTail::default(), &"ä".repeat(300));
        assert_eq!(line, "ä".repeat(250));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_new_process_ends_what_the_old_one_said() {
        let tail = Arc::new(StderrTail::default());
        for script in ["echo old >&2; echo older >&2", "true", "echo new >&2"] {
            let mut child = tokio::process::Command::new("sh")
                .args(["-c", script])
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let stderr = child.stderr.take().unwrap();
            let server = ServerId::parse("s").unwrap();
            Arc::clone(&tail).read(server, stderr).await;
            child.wait().await.unwrap();
            if script == "true" {
                assert_eq!(
                    tail.lines(),
                    ["old", "older"],
                    "who says nothing ends nothing"
                );
            }
        }
        assert_eq!(tail.lines(), ["new"]);
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let tail = StderrTail::default();
        for n in 0..30 {
            tail.push(n.to_string());
        }
        assert_eq!(tail.lines().len(), LINES);
        assert_eq!(tail.lines()[0], "10");
    }
}
