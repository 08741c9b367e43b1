//! Calls over REST: a client that is no MCP client calls a server's tools, and reads from a failure what kind it is.
//!
//! A call that a person has to agree to is added to the list of confirmations, and made by the request that confirms it.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{Gateway, RequestContext, call};
use crate::{
    gateway::{
        RequestClient, RequestSource, calls,
        confirmations::{CallOrigin, Remember, Scope, Undecided, is_same_definition},
    },
    store::confirmations::{Confirmation, ConfirmationState},
    telemetry::rfc3339,
    upstream::mcp::Caller,
};
use toolway_core::{policy::Admitted, translate::era};
use toolway_protocol::{
    mcp::{rpc::RpcError, version::Version},
    tool::{CallError, JsonObject, ServerId},
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

/// A client that cannot be asked anything.
struct SilentCaller(Value);

impl Caller for SilentCaller {
    fn capabilities(&self) -> &Value {
        &self.0
    }

    fn ask<'a>(&'a self, method: &'a str, _: Value) -> BoxFuture<'a, Result<Value, RpcError>> {
        Box::pin(async move { Err(RpcError::method_not_found(method)) })
    }

    fn tell(&self, _: &str, _: Value) {}
}

impl Gateway {
    /// The context of a client's REST requests about one server.
    pub fn rest_context(&self, server: &ServerId, client: RequestClient) -> RequestContext {
        RequestContext {
            view: self.view_of(server).for_key(client.key),
            version: Version::V2025_11_25,
            caller: Arc::new(SilentCaller(json!({}))),
            logs: None,
            owner: String::new(),
            principal: client.principal,
            source: client.source,
            reservation: None,
        }
    }

    /// Calls the tool that the context's view shows under this name, on the path of every other call, or adds the call to
    /// the list of those that wait for a person. Arguments that do not fit are a result with `isError`, as most servers
    /// have it. Dropping the future cancels the call.
    ///
    /// # Errors
    /// What the call came to, [`CallError::UnknownTool`] and what the policy denies included.
    pub async fn call_over_rest(
        self: &Arc<Self>,
        context: &RequestContext,
        name: &str,
        arguments: JsonObject,
    ) -> Result<RestOutcome, CallError> {
        let tool = match self.admit_over_rest(context, name, &arguments).await {
            Err(misfit @ CallError::InvalidParams { .. }) => {
                let result = call::failed(&misfit, context.version);
                return Ok(RestOutcome::Result(result));
            }
            admitted => admitted?,
        };
        if tool.asked().is_some() {
            let origin = context.origin(self, REST);
            if !self
                .confirmations
                .is_granted(&origin, &tool, &arguments)
                .await
            {
                let opened = self.confirmations.open(&origin, &tool, &arguments, false);
                let opened = opened.await?;
                calls::unapproved((&tool, &arguments), (&origin, &self.audit), None);
                return Ok(RestOutcome::Waits(Box::new(opened)));
            }
        }
        let made = self.make_over_rest(context, &tool, arguments);
        Ok(RestOutcome::Result(made.await?))
    }

    /// Approves a call, at the request of `by`. One that came over REST is made now, and its outcome given; another is made when its client asks
    /// for it. Dropping the future of a call that is being made cancels it, and it is not made again.
    ///
    /// # Errors
    /// See [`Undecided`].
    pub async fn confirm(
        self: &Arc<Self>,
        by: &CallOrigin,
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
        let decided = self.confirmations.decide(by, scope, id, state, remember);
        let confirmation = decided.await?;
        let outcome = match is_rest {
            true => Some(self.make_confirmed(&confirmation, &by.source).await),
            false => None,
        };
        Ok((confirmation, outcome))
    }

    /// Makes a call that was confirmed: with the arguments that were shown, of the tool as it was described then.
    async fn make_confirmed(
        self: &Arc<Self>,
        confirmation: &Confirmation,
        source: &RequestSource,
    ) -> Result<Value, CallError> {
        let (server, name) = (&confirmation.server, &confirmation.tool);
        let server = ServerId::parse(server).map_err(|_| unknown(name))?;
        let client = RequestClient {
            principal: confirmation.principal,
            key: self.policy.key_of(confirmation.key.as_deref()),
            has_approved: false,
            face: REST,
            source: source.clone(),
        };
        let context = self.rest_context(&server, client);
        let arguments: JsonObject =
            serde_json::from_str(&confirmation.arguments).unwrap_or_default();
        let tool = self.admit_over_rest(&context, name, &arguments).await?;
        if !is_same_definition(&tool, confirmation) {
            let changed = "the tool has changed since the call was shown; make the call again";
            let error = CallError::Denied {
                reason: changed.to_owned(),
            };
            let origin = context.origin(self, REST);
            calls::unapproved((&tool, &arguments), (&origin, &self.audit), Some(&error));
            return Err(error);
        }
        self.make_over_rest(&context, &tool, arguments).await
    }

    async fn admit_over_rest(
        self: &Arc<Self>,
        context: &RequestContext,
        name: &str,
        arguments: &JsonObject,
    ) -> Result<Admitted, CallError> {
        let key = context.view.key();
        let mut catalog = self.catalog_of(key);
        if context.view.tool(&catalog, name).is_none() {
            self.started(&context.view).await;
            catalog = self.catalog_of(key);
        }
        let offered = context.view.tool(&catalog, name);
        let record = (&context.origin(self, REST), &self.audit);
        let offered = offered.ok_or_else(|| {
            calls::unknown(name, record);
            unknown(name)
        })?;
        calls::admit(offered, arguments, &self.policy_of(key), record)
    }

    async fn make_over_rest(
        self: &Arc<Self>,
        context: &RequestContext,
        tool: &Admitted,
        arguments: JsonObject,
    ) -> Result<Value, CallError> {
        let origin = context.origin(self, REST);
        let made = call::make_approved(self, context, &origin, tool, arguments);
        Ok(era::fit_call(made.await?, context.version))
    }
}

fn unknown(name: &str) -> CallError {
    CallError::UnknownTool {
        name: name.to_owned(),
        did_you_mean: Vec::new(),
    }
}
