//! The only place that runs a tool, for every face: admission by `policy`, approval where it asks for one, attempts with a pause between them, and
//! one line in the log.
//!
//! In a chat `agent` asks `policy`, because a refusal is a decision of the loop; what it admits is run here.
//! Read next: `lanes`, the calls of one turn of a chat side by side; `kept_results`, results that serve again.

mod kept_results;
mod lanes;

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep};

pub(super) use self::{
    kept_results::KeptResults,
    lanes::{CallEvent, CallsOf, RunningCalls},
};
use super::confirmations::{CallOrigin, Confirmations};
use crate::{store::confirmations::Confirmation, upstream::mcp::Sends};
use toolway_core::{
    catalog::Offered,
    policy::{Admitted, Asked, CallRequest, ClientPolicy, Verdict},
    route::{self, Retries},
};
use toolway_protocol::{
    mcp::results::asks_for_input,
    tool::{CallError, JsonObject, ToolResult, millis},
};

/// The limits of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimits {
    /// Longest silence of an attempt.
    pub silence: Duration,
    /// When the last attempt ends.
    pub deadline: Instant,
}

/// One call of a tool that may run.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmittedCall<'a> {
    /// The tool.
    pub tool: &'a Admitted,
    /// Its arguments.
    pub arguments: &'a JsonObject,
    /// How it is approved, if a person has to agree to it.
    pub approval: Approval<'a>,
    /// Its limits if it may be repeated; `None` if it may not.
    pub repeat_within: Option<CallLimits>,
    /// How often it is tried.
    pub retries: Retries,
    /// The number of the session whose caller lends the tool.
    pub session: Option<u64>,
    /// Where results are kept that the call may make untrue.
    pub kept: Option<&'a KeptResults>,
}

/// A call that has ended.
#[derive(Debug)]
pub(super) struct FinishedCall<T> {
    /// What came of it.
    pub outcome: Result<T, CallError>,
    /// From its beginning to its end.
    pub duration_ms: u64,
    /// How often it was tried.
    pub attempts: u32,
}

/// The result of a call, in the form in which it travels.
pub(super) trait LoggedResult {
    /// The status that the log shows.
    fn status(&self) -> &'static str;
}

impl LoggedResult for ToolResult {
    fn status(&self) -> &'static str {
        match self.is_error {
            true => "tool_error",
            false => "ok",
        }
    }
}

/// `CallToolResult` or `InputRequiredResult`, as a server wrote it.
impl LoggedResult for Value {
    fn status(&self) -> &'static str {
        match self.get("isError") {
            Some(Value::Bool(true)) => "tool_error",
            _ if asks_for_input(self) => "input_required",
            _ => "ok",
        }
    }
}

/// Asks `policy` whether a tool that the client is shown may be called.
///
/// # Errors
/// [`CallError::Denied`].
pub(super) fn admit(
    tool: &Arc<Offered>,
    arguments: &JsonObject,
    client: &ClientPolicy,
) -> Result<Admitted, CallError> {
    let request = CallRequest {
        tool,
        is_shown: true,
        key: client.key,
        arguments,
    };
    match client.policy.evaluate(&request) {
        Verdict::Allow(tool) | Verdict::Ask(tool) => Ok(tool),
        Verdict::Deny { reason, .. } => Err(CallError::Denied { reason }),
    }
}

/// How a call gets the approval that it may need.
#[derive(Clone, Copy, Debug)]
pub(super) enum Approval<'a> {
    /// Through the list of confirmations.
    From(&'a Confirmations, &'a CallOrigin),
    /// The face has used one up for this call.
    Given,
    /// No person can be asked.
    Impossible,
}

/// What is told of a call before it ends.
#[derive(Debug)]
pub(super) enum Announcement {
    /// It waits for approval.
    Waits(Confirmation),
    /// An attempt, of this number, has failed, and there will be another one.
    Repeats(u32, CallError),
}

impl AdmittedCall<'_> {
    /// Makes the call with `attempt` once it is approved, again where [`route::repeat_after`] allows it; attempts share the counter of
    /// their sends. Dropping the future cancels it.
    pub(super) async fn run<T: LoggedResult, F: Future<Output = Result<T, CallError>>>(
        self,
        attempt: impl FnMut(Sends) -> F,
    ) -> FinishedCall<T> {
        self.run_announced(attempt, |_| std::future::ready(()))
            .await
    }

    /// The same, and tells `announce` that it waits for approval, and of each failed attempt before the next one.
    pub(super) async fn run_announced<
        T: LoggedResult,
        F: Future<Output = Result<T, CallError>>,
        A: Future<Output = ()>,
    >(
        self,
        mut attempt: impl FnMut(Sends) -> F,
        mut announce: impl FnMut(Announcement) -> A,
    ) -> FinishedCall<T> {
        // Rare, so it has no room in the future of every call.
        if let Err(error) = match self.tool.asked() {
            Some(asked) => Box::pin(self.approve(asked, &mut announce)).await,
            None => Ok(()),
        } {
            let outcome = Err(error);
            self.log(&outcome, 0, 0);
            return FinishedCall {
                outcome,
                duration_ms: 0,
                attempts: 0,
            };
        }
        let begun = Instant::now();
        let _forget = self.kept.map(|kept| kept.forget_after(self.tool));
        let (mut attempts, sends) = (1, Sends::default());
        let outcome = loop {
            let outcome = attempt(sends.clone()).await;
            attempts = attempts.max(sends.so_far());
            let pause = self.pause(&outcome, attempts);
            match (pause, outcome) {
                // Rare, so its timer has no room in the future of every call.
                (Some(pause), Err(error)) => {
                    Box::pin(async {
                        announce(Announcement::Repeats(attempts, error)).await;
                        sleep(pause).await;
                    })
                    .await;
                }
                (_, outcome) => break outcome,
            }
            attempts += 1;
        };
        let duration_ms = millis(begun.elapsed());
        self.log(&outcome, duration_ms, attempts);
        FinishedCall {
            outcome,
            duration_ms,
            attempts,
        }
    }

    /// Returns when a person has agreed to the call.
    async fn approve<A: Future<Output = ()>>(
        &self,
        asked: &Asked,
        announce: &mut impl FnMut(Announcement) -> A,
    ) -> Result<(), CallError> {
        match self.approval {
            Approval::Given => Ok(()),
            Approval::From(confirmations, origin) => {
                let announce = |waiting| announce(Announcement::Waits(waiting));
                let settled = confirmations.settle(origin, self.tool, self.arguments, announce);
                settled.await
            }
            Approval::Impossible => Err(CallError::Denied {
                reason: format!(
                    "a person has to agree to this call ({}), and cannot be asked here",
                    asked.rule
                ),
            }),
        }
    }

    /// The pause before the call is repeated, or `None` if it is not repeated.
    fn pause<T>(&self, outcome: &Result<T, CallError>, attempts: u32) -> Option<Duration> {
        let (error, limits) = (outcome.as_ref().err()?, self.repeat_within?);
        let left = limits.deadline.saturating_duration_since(Instant::now());
        let left = left.min(limits.silence);
        let annotations = self.tool.tool.annotations;
        route::repeat_after(error, annotations, self.retries, attempts, left)
    }

    fn log<T: LoggedResult>(
        &self,
        outcome: &Result<T, CallError>,
        duration_ms: u64,
        attempts: u32,
    ) {
        let (name, server, session) = (&self.tool.name, &self.tool.server, self.session);
        match outcome {
            Ok(result) => {
                tracing::info!(tool.name = %name, server.id = %server, session, duration_ms, attempts,
                status = result.status(), "Called a tool");
            }
            Err(error) => {
                tracing::warn!(tool.name = %name, server.id = %server, session, duration_ms, attempts,
                status = error.kind(), error = &*error.for_log(), "The call of a tool failed");
            }
        }
    }
}
