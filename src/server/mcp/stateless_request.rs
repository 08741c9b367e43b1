//! One request of 2026-07-28, independent of the transport: it carries the client's capabilities itself.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::{
    outbox::{Outbox, notification},
    work,
};
use crate::{
    byte_budget::Reservation,
    gateway::{
        Gateway, RequestSource,
        mcp::{RequestContext, View},
    },
    store::Principal,
    upstream::mcp::Caller,
};
use toolway_protocol::{
    mcp::{
        level::Level,
        rpc::RpcError,
        stateless::{self, RequestMeta},
        version::Version,
    },
    tool::JsonObject,
};

/// One request, with its gateway, view and client.
pub(in crate::server) struct StatelessRequest {
    /// Who answers.
    pub(in crate::server) gateway: Arc<Gateway>,
    /// What the endpoint shows.
    pub(in crate::server) view: Arc<View>,
    /// Tells clients apart that must not answer for each other.
    pub(in crate::server) owner: String,
    /// Whose calls it makes.
    pub(in crate::server) principal: Principal,
    /// Where the request comes from.
    pub(in crate::server) source: RequestSource,
    /// What the request says about its client.
    pub(in crate::server) about: RequestMeta,
    /// Where something can be said before the result.
    pub(in crate::server) outbox: Option<Arc<Outbox>>,
    /// What it takes of the budget of bytes.
    pub(in crate::server) reservation: Option<Arc<Reservation>>,
}

impl StatelessRequest {
    /// Answers the request. Dropping the future cancels it.
    ///
    /// # Errors
    /// `Method not found` also for what only handshake versions have.
    pub(in crate::server) async fn outcome(
        self,
        method: String,
        params: JsonObject,
    ) -> Result<Value, RpcError> {
        match method.as_str() {
            "server/discover" => {
                let about = self.gateway.describe(&self.view);
                Ok(stateless::discovered(
                    about.capabilities,
                    about.server_info,
                    about.instructions,
                ))
            }
            "initialize"
            | "ping"
            | "logging/setLevel"
            | "resources/subscribe"
            | "resources/unsubscribe" => Err(RpcError::method_not_found(&method)),
            method => {
                let context = self.context();
                // Keeps the servers' log level as this request wants it.
                let _interest = self
                    .about
                    .level
                    .map(|level| self.gateway.log_interest(level));
                work::run(
                    &self.gateway,
                    &context,
                    method,
                    params,
                    self.outbox.as_deref(),
                )
                .await
            }
        }
    }

    /// Itself, as the gateway sees it.
    pub(super) fn context(&self) -> RequestContext {
        RequestContext {
            view: Arc::clone(&self.view),
            version: Version::V2026_07_28,
            caller: Arc::new(StatelessCaller {
                capabilities: self.about.capabilities.clone(),
                level: self.about.level,
                outbox: self.outbox.clone(),
            }),
            logs: None,
            owner: self.owner.clone(),
            principal: self.principal,
            source: self.source.clone(),
            reservation: self.reservation.clone(),
        }
    }
}

/// The client, as the caller of its request. Questions reach it in results, never as requests.
struct StatelessCaller {
    capabilities: Value,
    level: Option<Level>,
    outbox: Option<Arc<Outbox>>,
}

impl Caller for StatelessCaller {
    fn capabilities(&self) -> &Value {
        &self.capabilities
    }

    /// On a pipe all requests are of one client, and share its feed; over HTTP each has a feed of its own.
    fn client(&self) -> Option<usize> {
        self.outbox
            .as_ref()
            .map(|outbox| Arc::as_ptr(outbox).addr())
    }

    fn ask<'a>(&'a self, method: &'a str, _: Value) -> BoxFuture<'a, Result<Value, RpcError>> {
        Box::pin(async move { Err(RpcError::method_not_found(method)) })
    }

    fn tell(&self, method: &str, params: Value) {
        let Some(outbox) = &self.outbox else { return };
        let level = params["level"].as_str().unwrap_or_default();
        if method != "notifications/message" || self.level.is_some_and(|it| it.hears(level)) {
            outbox.say(notification(method, params));
        }
    }
}
