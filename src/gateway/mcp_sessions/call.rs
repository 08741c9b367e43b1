//! One call of a lent function, from the agent's side.

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::session::{LendingSession, SessionEnd, gone};
use crate::gateway::{
    RequestSource,
    calls::{self, AdmittedCall, Approval},
    confirmations::{CallOrigin, WhenAsked},
    random::unguessable,
};
use toolway_core::{policy::Admitted, route::Retries};
use toolway_protocol::tool::{CallError, JsonObject, ToolCall, ToolResult};

/// Longest arguments of one call, in bytes.
const MAX_ARGUMENTS: usize = 1 << 20;

impl LendingSession {
    /// Calls a function by its own name, for a request from there: hands the call to the caller and waits for the answer, until the
    /// session's `call_timeout`, or the end of the session.
    ///
    /// Dropping the future cancels the call, and the caller gets an event.
    ///
    /// # Errors
    /// Unknown name, arguments that do not fit, too many open calls, no answer in time, end of the session.
    /// A failure that the caller answers with is an `Ok` with `is_error`.
    pub async fn call(
        &self,
        name: &str,
        arguments: JsonObject,
        source: RequestSource,
    ) -> Result<ToolResult, CallError> {
        // Whoever has the token borrows from the owner of the session, who decides.
        let origin = CallOrigin {
            principal: self.owner,
            key: None,
            face: "mcp_session",
            session: None,
            when_asked: WhenAsked::Waits,
            source,
        };
        let audit = self.confirmations.audit();
        let lent = self.tool(name).ok_or_else(|| {
            calls::unknown(name, (&origin, audit));
            self.unknown(name)
        })?;
        let tool = calls::admit(lent, &arguments, &self.policy, (&origin, audit))?;
        let call = AdmittedCall {
            tool: &tool,
            arguments: &arguments,
            origin: &origin,
            audit,
            approval: Approval::From(&self.confirmations),
            repeat_within: None,
            retries: Retries::default(),
            session: Some(self.number()),
            kept: None,
        };
        let ended = call.run(|_| self.hand_over(&tool, &arguments));
        ended.await.outcome
    }

    async fn hand_over(
        &self,
        tool: &Admitted,
        arguments: &JsonObject,
    ) -> Result<ToolResult, CallError> {
        let arguments = serde_json::to_string(arguments).unwrap_or_default();
        if arguments.len() > MAX_ARGUMENTS {
            return Err(CallError::InvalidParams {
                path: String::new(),
                message: format!("the arguments are longer than {MAX_ARGUMENTS} bytes"),
                input_schema: serde_json::Value::Null,
            });
        }
        let _taken = self
            .arguments
            .take(arguments.len())
            .ok_or(CallError::Busy)?;
        let (open, answer) = self.open(tool, arguments)?;
        let begun = Instant::now();
        let (after, expires) = (self.about().call_timeout, self.about().expires);
        let until = expires.min(begun + after);
        let outcome = tokio::select! {
            biased;
            answer = answer => answer.unwrap_or(Err(CallError::Cancelled)),
            () = sleep_until(until) => Err(match until < expires {
                true => CallError::Timeout { after },
                false => gone(SessionEnd::Expired, false),
            }),
        };
        // Who did not get an answer takes the call back.
        drop(open);
        outcome
    }

    fn open(
        &self,
        tool: &Admitted,
        arguments: String,
    ) -> Result<(OpenCallGuard<'_>, ResultReceiver), CallError> {
        let id = unguessable().map_err(|_| CallError::Busy)?;
        let call = ToolCall {
            id: format!("call_{id}"),
            name: tool.tool.name.clone(),
            arguments,
        };
        let open = OpenCallGuard {
            session: self,
            id: call.id.clone(),
        };
        let (waiter, waiting) = oneshot::channel();
        {
            let mut state = self.lock();
            if let Some(ended) = state.ended {
                return Err(gone(ended, true));
            }
            let opened = state.ledger.open(call, waiter);
            opened.map_err(|_| CallError::Busy)?;
        }
        self.notify();
        Ok((open, waiting))
    }

    fn unknown(&self, name: &str) -> CallError {
        let alike = self.catalog().suggest(name);
        let own = |alike: &String| Some(self.catalog().find(alike)?.tool.name.clone());
        CallError::UnknownTool {
            name: name.to_owned(),
            did_you_mean: alike.iter().filter_map(own).collect(),
        }
    }
}

type ResultReceiver = oneshot::Receiver<Result<ToolResult, CallError>>;

/// A call that is open as long as its answer is waited for.
struct OpenCallGuard<'s> {
    session: &'s LendingSession,
    id: String,
}

impl Drop for OpenCallGuard<'_> {
    fn drop(&mut self) {
        let was_open = self.session.lock().ledger.take_back(&self.id);
        if was_open {
            self.session.notify();
        }
    }
}
