//! What goes into the loop and what comes out of it.

use crate::{
    policy::Admitted,
    route::Retries,
    translate::stream::{Round, RoundCall},
};
use toolway_protocol::{
    openai::FinishReason,
    tool::{CallError, JsonObject, ToolResult},
};

use super::{ask::Ask, parked::Parked};

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// The model's answer is complete.
    Answered(Round),
    /// A call came to an end.
    Finished {
        /// The call's place in its turn, from [`Job::place`].
        place: usize,
        /// What came of it.
        outcome: Result<ToolResult, CallError>,
        /// How long it took, for the record of calls.
        duration_ms: u64,
    },
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Send this to the model.
    Ask(Ask),
    /// Run these calls: lanes side by side, the jobs of a lane one after another.
    Run(Vec<Vec<Job>>),
    /// The answer is complete.
    Finish(Finish),
    /// There is no answer: at the last question, which offered no gateway tool, the model called one and said nothing.
    NoAnswer,
}

/// One call that may run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its place in the turn.
    pub place: usize,
    /// The id the model gave it.
    pub id: String,
    /// The tool.
    pub offered: Admitted,
    /// Its arguments, checked.
    pub arguments: JsonObject,
    /// How often it is tried.
    pub retries: Retries,
    /// It was begun before its turn was complete, by [`Turn::begin_early`](super::Turn::begin_early).
    pub is_early: bool,
}

/// How an answer ends.
#[derive(Debug)]
pub struct Finish {
    /// The one finish reason that the client sees.
    pub reason: FinishReason,
    /// Usage summed over all rounds, where the upstream gave any.
    pub usage: Option<JsonObject>,
    /// The calls that are the client's own to run, with the ids that it is shown at the end of a plain answer.
    pub client_calls: Vec<RoundCall>,
    /// What must be put back when the client comes with its answers.
    pub parked: Option<Parked>,
}

/// One call that the gateway ran or refused to run, for clients that want to know.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// The id the model gave it.
    pub id: String,
    /// The offered name, or what the model wrote.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
    /// `ok`, the `type` of the error, or `repeated` for a call that was stopped because it failed before.
    pub status: &'static str,
    /// How long it took; 0 when nothing was sent.
    pub duration_ms: u64,
}

/// What came of a call, in a word: `ok`, or the `type` of the error.
pub fn status(outcome: &Result<ToolResult, CallError>) -> &'static str {
    match outcome {
        Ok(result) if result.is_error => "tool_error",
        Ok(_) => "ok",
        Err(error) => error.kind(),
    }
}
