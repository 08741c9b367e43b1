//! Calls over REST: made by the request that confirms them.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Gateway, RequestClient,
    calls::{self, AdmittedCall, Approval, CallLimits},
    confirmations::{CallOrigin, Remember, Scope, Undecided, WhenAsked, is_same_definition},
};
use crate::{
    store::confirmations::{Confirmation, ConfirmationState},
    telemetry::rfc3339,
    upstream::mcp::CallOptions,
};
use toolway_core::{catalog::Offered, policy::Admitted, route::Retries};
use toolway_protocol::{
    mcp::results::write_result,
    tool::{CallError, JsonObject},
};

/// The face whose calls are made when they are confirmed.
const REST: &str = "rest";

/// What a call over REST comes to.
#[derive(Debug)]
pub enum RestOutcome {
    /// `CallToolResult`.
    Result(Value),
    /// A person has to agree to it.
    Waits(Box<Confirmation>),
}

impl RestOutcome {
    /// The body of the answer, as MCP Bridge has it. A call that waits is made by the request that confirms it.
    pub fn into_json(self) -> Value {
        let confirmation = match self {
            RestOutcome::Result(result) => return result,
            RestOutcome::Waits(confirmation) => confirmation,
        };
        let mut answer = json!({
            "requires_confirmation": true,
            "confirmation_id": confirmation.id,
        });
        if let Some(level) = confirmation.risk {
            answer["risk_level"] = level.into();
            answer["risk_description"] = risk_description(level).into();
        }
        answer["server_id"] = confirmation.server.as_str().into();
        answer["method"] = "tools/call".into();
        answer["tool_name"] = confirmation.tool.as_str().into();
        answer["expires_at"] = rfc3339(confirmation.expires).into();
        answer
    }
}

/// The words of MCP Bridge for a level of risk.
pub fn risk_description(level: u8) -> &'static str {
    match level {
        1 => "Low risk - Standard execution",
        2 => "Medium risk - Requires confirmation",
        _ => "High risk - Docker execution required",
    }
}

impl Gateway {
    /// Calls a tool for a client over REST, or adds the call to the list of those that wait for a person.
    ///
    /// # Errors
    /// What the policy denies, arguments that do not fit, and failures of the server.
    pub async fn call_over_rest(
        &self,
        tool: &Arc<Offered>,
        arguments: JsonObject,
        client: RequestClient,
    ) -> Result<RestOutcome, CallError> {
        let tool = calls::admit(tool, &arguments, &self.policy_of(client.key))?;
        if let Some(validator) = &tool.validator {
            validator.check(&arguments)?;
        }
        if tool.asked().is_some() {
            let origin = CallOrigin {
                when_asked: WhenAsked::Ends,
                ..self.origin_of(client.principal, client.key, REST)
            };
            let opened = self.confirmations.open(&origin, &tool, &arguments, false);
            return Ok(RestOutcome::Waits(Box::new(opened.await?)));
        }
        let made = self.make_over_rest(&tool, arguments);
        Ok(RestOutcome::Result(made.await?))
    }

    /// Approves a call. One that came over REST is made now, and its outcome given; another is made when its client asks
    /// for it. Dropping the future of a call that is being made cancels it, and it is not made again.
    ///
    /// # Errors
    /// See [`Undecided`].
    pub async fn confirm(
        &self,
        scope: Scope,
        id: &str,
        remember: Option<Remember>,
    ) -> Result<(Confirmation, Option<Result<Value, CallError>>), Undecided> {
        let found = self.confirmations.find(scope, id).await;
        let found = found.ok_or(Undecided::Unknown)?;
        let is_rest = found.face == REST;
        let state = match is_rest {
            true => ConfirmationState::Used,
            false => ConfirmationState::Approved,
        };
        let decided = self.confirmations.decide(scope, id, state, remember);
        let confirmation = decided.await?;
        let outcome = match is_rest {
            true => Some(self.make_confirmed(&confirmation).await),
            false => None,
        };
        Ok((confirmation, outcome))
    }

    /// Makes a call that was confirmed: with the arguments that were shown, of the tool as it was described then.
    async fn make_confirmed(&self, confirmation: &Confirmation) -> Result<Value, CallError> {
        let catalog = self.catalog();
        let gone = || CallError::UnknownTool {
            name: confirmation.name.clone(),
            did_you_mean: Vec::new(),
        };
        let tool = catalog.find(&confirmation.name).ok_or_else(gone)?;
        let arguments: JsonObject =
            serde_json::from_str(&confirmation.arguments).unwrap_or_default();
        let key = self.policy.key_of(confirmation.key.as_deref());
        let tool = calls::admit(tool, &arguments, &self.policy_of(key))?;
        if !is_same_definition(&tool, confirmation) {
            return Err(CallError::Denied {
                reason: "the tool has changed since the call was shown; make the call again"
                    .to_owned(),
            });
        }
        self.make_over_rest(&tool, arguments).await
    }

    async fn make_over_rest(
        &self,
        tool: &Admitted,
        arguments: JsonObject,
    ) -> Result<Value, CallError> {
        let limits = CallLimits {
            silence: self.config.tool_timeout,
            deadline: Instant::now() + self.config.request_timeout,
        };
        let call = AdmittedCall {
            tool,
            arguments: &arguments,
            approval: Approval::Given,
            repeat_within: Some(limits),
            retries: Retries::default(),
            session: None,
            kept: Some(&self.kept_results),
        };
        let options = |sends| CallOptions {
            silence: limits.silence,
            deadline: limits.deadline,
            progress: None,
            caller: None,
            sends,
        };
        let ended = call.run(|sends| self.backends.call(tool, arguments.clone(), options(sends)));
        ended.await.outcome.map(write_result)
    }
}
