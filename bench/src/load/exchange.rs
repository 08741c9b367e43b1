//! One request and its reply, plain or streamed, over and over on one connection.

use memchr::memmem;
use tokio::time::Instant;

use crate::{
    http::{Connection, Target, shown},
    report::Done,
};

/// What a reply has to be.
#[derive(Clone)]
pub(crate) struct Expected {
    /// The text that it has.
    pub(crate) text: String,
    /// How often it has it, or once at least.
    pub(crate) times: Option<usize>,
    /// It is a stream: its last event has this text, and the first `text` is its first chunk.
    pub(crate) end: Option<String>,
}

/// A client that sends one request again and again.
pub(crate) struct Exchange {
    connection: Connection,
    request: Vec<u8>,
    expected: Expected,
}

impl Exchange {
    pub(crate) async fn open(
        target: &Target,
        body: &[u8],
        expected: &Expected,
    ) -> Result<Self, String> {
        Ok(Exchange {
            connection: Connection::open(target).await?,
            request: target.post(body),
            expected: expected.clone(),
        })
    }

    pub(crate) async fn once(&mut self) -> Result<Done, String> {
        let Expected { text, end, .. } = &self.expected;
        let begun = Instant::now();
        let mut first = None;
        let watch = |body: &[u8]| {
            if end.is_some() && first.is_none() && memmem::find(body, text.as_bytes()).is_some() {
                first = Some(begun.elapsed());
            }
        };
        self.connection
            .watched_exchange(&self.request, watch)
            .await?;
        let body = &self.connection.body;
        self.expected.check(body)?;
        Ok(Done {
            bytes: body.len(),
            first,
        })
    }
}

impl Expected {
    fn check(&self, body: &[u8]) -> Result<(), String> {
        let found = match self.times {
            Some(_) => memmem::find_iter(body, &self.text).count(),
            None => usize::from(memmem::find(body, self.text.as_bytes()).is_some()),
        };
        if found != self.times.unwrap_or(1) {
            return Err(format!(
                "{:?} is there {found} times: {}",
                self.text,
                shown(body)
            ));
        }
        if let Some(end) = &self.end
            && memmem::find(last_event(body), end.as_bytes()).is_none()
        {
            return Err(format!("the stream is cut off: {}", shown(body)));
        }
        Ok(())
    }
}

fn last_event(body: &[u8]) -> &[u8] {
    let body = body.trim_ascii_end();
    let from = memmem::rfind(body, b"\n\n").map_or(0, |at| at + 2);
    &body[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(times: Option<usize>, streamed: bool, body: &str, fits: bool) {
        let expected = Expected {
            text: "fox".to_owned(),
            times,
            end: streamed.then(|| "[DONE]".to_owned()),
        };
        assert_eq!(expected.check(body.as_bytes()).is_ok(), fits);
    }

    #[test]
    fn a_reply_without_the_text_is_wrong() {
        check(None, false, "a fox, a fox", true);
        check(None, false, "a dog", false);
    }

    #[test]
    fn a_lost_chunk_is_seen() {
        check(Some(2), true, "fox fox data: [DONE]\n\n", true);
        check(Some(3), true, "fox fox data: [DONE]\n\n", false);
    }

    #[test]
    fn a_stream_without_its_end_is_wrong() {
        check(Some(2), true, "fox fox", false);
        check(Some(2), true, "fox fox [DONE]\n\ndata: fo", false);
    }
}
