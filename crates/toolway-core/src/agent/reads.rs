//! Results of read-only calls, so that a request makes each of them once.
//!
//! A result is used again until a call runs that may change something, and for [`FRESH`] at most: a model that asks
//! again later wants to know what has changed.

use std::time::Duration;

use super::{Job, transcript::ToolAnswer};
use toolway_protocol::tool::{FunctionName, JsonObject};

/// How long a result is used again.
pub const FRESH: Duration = Duration::from_secs(10);

/// Most bytes of text that are kept for one request.
const MAX_BYTES: usize = 1 << 20;

/// The results of one request.
#[derive(Debug, Default)]
pub struct Reads {
    kept: Vec<KeptRead>,
}

#[derive(Debug)]
struct KeptRead {
    call: ReadCall,
    answer: ToolAnswer,
    /// When it came, since the request began.
    at: Duration,
}

/// A read-only call, by what it asks.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadCall {
    name: FunctionName,
    arguments: JsonObject,
}

impl ReadCall {
    /// What a job asks; `None` if its tool does not say that it changes nothing.
    pub fn of(job: &Job) -> Option<ReadCall> {
        job.offered.is_read_only().then(|| ReadCall {
            name: job.offered.name.clone(),
            arguments: job.arguments.clone(),
        })
    }
}

impl Reads {
    /// The result of the same call, if it is not older than [`FRESH`].
    pub fn find(&self, call: &ReadCall, now: Duration) -> Option<&ToolAnswer> {
        let is_same = |kept: &&KeptRead| kept.call == *call && now.saturating_sub(kept.at) <= FRESH;
        self.kept.iter().rfind(is_same).map(|kept| &kept.answer)
    }

    /// Keeps a result; one with pictures or sounds, or without room for it, is not kept.
    pub fn keep(&mut self, call: ReadCall, answer: &ToolAnswer, now: Duration) {
        let held: usize = self.kept.iter().map(|kept| kept.answer.text.len()).sum();
        if answer.parts.is_empty() && held + answer.text.len() <= MAX_BYTES {
            self.kept.push(KeptRead {
                call,
                answer: answer.clone(),
                at: now,
            });
        }
    }

    /// Forgets everything, because something may have changed.
    pub fn clear(&mut self) {
        self.kept.clear();
    }
}
