//! The only place that runs a tool, for every face: admission by `policy`, approval where it asks for one, attempts with a pause between them, and
//! one line in the log and one record of the audit.
//!
//! In a chat `agent` asks `policy`, because a refusal is a decision of the loop; what it admits is run here.
//! Read next: `lanes`, the calls of one turn of a chat side by side; `kept_results`, results that serve again.

mod kept_results;
mod lanes;
mod recorded;

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use self::recorded::{CallRecording, RecordedEnd, outcome_of};
pub(super) use self::{
    kept_results::KeptResults,
    lanes::{CallEvent, CallsOf, RunningCalls},
    recorded::{Unsent, unapproved, unknown},
};
use super::confirmations::{CallOrigin, Confirmations};
use crate::{audit::Audit, store::confirmations::Confirmation, upstream::mcp::Sends};
use toolway_core::{
    audit::{self, AuditVerdict},
    catalog::Offered,
    policy::{Admitted, Asked, CallRequest, ClientPolicy, Verdict},
    route::{self, Retries},
};
use toolway_protocol::{
    mcp::results::{asks_for_input, write_result},
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
    /// Whose it is.
    pub origin: &'a CallOrigin,
    /// What is recorded of it goes here.
    pub audit: &'a Audit,
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

    /// About how large it is.
    fn text_bytes(&self) -> u64;

    /// `CallToolResult`.
    fn to_json(&self) -> Value;
}

impl LoggedResult for ToolResult {
    fn status(&self) -> &'static str {
        match self.is_error {
            true => "tool_error",
            false => "ok",
        }
    }

    fn text_bytes(&self) -> u64 {
        let structured = self.structured_content.as_ref();
        let content = self.content.iter().map(|it| it.text_bytes() as u64);
        content.sum::<u64>() + structured.map_or(0, audit::text_bytes)
    }

    fn to_json(&self) -> Value {
        write_result(self.clone())
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

    fn text_bytes(&self) -> u64 {
        audit::text_bytes(self)
    }

    fn to_json(&self) -> Value {
        self.clone()
    }
}

/// Asks `policy` whether a tool that the client is shown may be called, and whether the arguments fit. What may not be sent
/// is recorded.
///
/// # Errors
/// [`CallError::Denied`], [`CallError::InvalidParams`].
pub(super) fn admit(
    tool: &Arc<Offered>,
    arguments: &JsonObject,
    client: &ClientPolicy,
    (origin, audit): (&CallOrigin, &Audit),
) -> Result<Admitted, CallError> {
    let request = CallRequest {
        tool,
        is_shown: true,
        key: client.key,
        arguments,
    };
    let (error, rule, verdict) = match client.policy.evaluate(&request) {
        Verdict::Allow(admitted) | Verdict::Ask(admitted) => {
            let validator = tool.validator.as_ref();
            match validator.map_or(Ok(()), |it| it.check(arguments)) {
                Ok(()) => return Ok(admitted),
                Err(misfit) => {
                    let rule = admitted.rule().to_owned();
                    (misfit, rule, AuditVerdict::Allowed)
                }
            }
        }
        Verdict::Deny { reason, rule } => {
            (CallError::Denied { reason }, rule, AuditVerdict::Denied)
        }
    };
    let unsent = Unsent {
        name: tool.name.as_str(),
        tool: Some(tool),
        arguments: Some(arguments),
        verdict,
        rule: Some(&rule),
        outcome: outcome_of(&error),
        error: &error.for_log(),
    };
    unsent.record(audit, origin);
    Err(error)
}

/// How a call gets the approval that it may need.
#[derive(Clone, Copy, Debug)]
pub(super) enum Approval<'a> {
    /// Through the list of confirmations.
    From(&'a Confirmations),
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
        let mut recording = CallRecording::new(&self);
        // Rare, so it has no room in the future of every call.
        if let Err(error) = match self.tool.asked() {
            Some(asked) => Box::pin(self.approve(asked, &mut announce)).await,
            None => Ok(()),
        } {
            let outcome = Err(error);
            self.log(&outcome, 0, 0);
            recording.end(self.recorded(&outcome));
            return FinishedCall {
                outcome,
                duration_ms: 0,
                attempts: 0,
            };
        }
        let begun = Instant::now();
        recording.begin(begun);
        let _forget = self.kept.map(|kept| kept.forget_after(self.tool));
        let (mut attempts, sends) = (1, Sends::default());
        let outcome = loop {
            recording.attempts = attempts;
            let outcome = attempt(sends.clone()).await;
            attempts = attempts.max(sends.so_far());
            recording.attempts = attempts;
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
        recording.end(self.recorded(&outcome));
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
            Approval::From(confirmations) => {
                let announce = |waiting| announce(Announcement::Waits(waiting));
                let settled =
                    confirmations.settle(self.origin, self.tool, self.arguments, announce);
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

    /// A person can be asked before it.
    fn can_be_asked(&self) -> bool {
        !matches!(self.approval, Approval::Impossible)
    }

    fn recorded<'e, T: LoggedResult>(&self, outcome: &'e Result<T, CallError>) -> RecordedEnd<'e> {
        let result = outcome.as_ref().ok();
        RecordedEnd {
            outcome: match outcome {
                Ok(result) => result.status(),
                Err(error) => outcome_of(error),
            },
            error: outcome.as_ref().err(),
            result_bytes: result.map(LoggedResult::text_bytes),
            result: result.and_then(|result| self.audit.result(|| result.to_json())),
        }
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
