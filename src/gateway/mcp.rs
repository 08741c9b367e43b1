//! The MCP server side: what each endpoint shows, and how each request is answered.
//!
//! The faces (`server::mcp` over HTTP and pipes) handle the protocol: versions, sessions, streams, ids. They pass each
//! request with its [`RequestContext`] and get the raw result, already in the form of the client's version.
//!
//! Read next: `view`, what an endpoint shows; `ask`, how a server turns to the client while it works.

mod approve;
mod ask;
mod call;
mod forward;
mod lists;
pub(super) mod notification_hub;
mod over_rest;
pub(super) mod parked;
mod view;

use std::sync::Arc;

use serde_json::Value;
use tokio::{
    sync::{broadcast, mpsc},
    time::{Instant, timeout_at},
};

pub use self::{
    notification_hub::{BackendEvent, LogInterest, ResourceSubscription},
    over_rest::{RestOutcome, risk_description},
    view::{Profile, ProfileShows, View},
};
use super::{
    Gateway, RequestClient, RequestSource,
    confirmations::{self, CallOrigin, WhenAsked},
};
use crate::{byte_budget::Reservation, store::Principal, upstream::mcp::Caller};
use toolway_core::catalog::{FeatureIndex, Offered};
use toolway_protocol::{
    mcp::{level::Level, rpc::RpcError, stateless, version::Version},
    tool::{JsonObject, Progress, ServerId},
};

/// One MCP client at one endpoint, as far as its requests differ by it.
#[derive(Clone)]
pub struct RequestContext {
    /// What the endpoint shows.
    pub view: Arc<View>,
    /// The version that client and face speak.
    pub version: Version,
    /// The client that answers a server's requests. On a version without a handshake only its capabilities count:
    /// [`Gateway::request`] then returns an `input_required` result.
    pub caller: Arc<dyn Caller>,
    /// The log level for messages of servers during its requests, if the requests do not carry one.
    pub logs: Option<Level>,
    /// Separates clients that must not answer for each other: a session, or the key of the request.
    pub owner: String,
    /// Whose calls its requests make.
    pub principal: Principal,
    /// Where the request comes from.
    pub source: RequestSource,
    /// The request's reservation in the byte budget. Whatever keeps the parameters keeps this.
    pub(crate) reservation: Option<Arc<Reservation>>,
}

impl RequestContext {
    /// A name of its session that may be shown, unlike the session's id.
    fn session_name(&self) -> Option<String> {
        let has_session = self.version.has_handshake();
        has_session.then(|| confirmations::hash(&[&self.owner]))
    }

    /// The client, as the maker of its calls.
    fn origin(&self, gateway: &Gateway, face: &'static str) -> CallOrigin {
        let client = RequestClient {
            principal: self.principal,
            key: self.view.key(),
            has_approved: false,
            face,
            source: self.source.clone(),
        };
        CallOrigin {
            session: self.session_name(),
            when_asked: WhenAsked::Ends,
            ..gateway.origin_of(&client)
        }
    }

    /// Writes the log level that the client wants into a request for a server.
    fn ask_for_logs(&self, params: &mut JsonObject) {
        if let Some(level) = self.logs {
            stateless::ask_for_logs(params, level);
        }
    }
}

/// Longest URI of a resource that a client subscribes to, in bytes. It is kept for as long as the subscription.
const MAX_WATCHED_URI: usize = 8 << 10;

/// What an endpoint says about itself in `initialize` and `server/discover`.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// `ServerCapabilities`.
    pub capabilities: Value,
    /// `Implementation`.
    pub server_info: Value,
    /// For the model of the client.
    pub instructions: Option<String>,
}

/// What a notification is about, and so which clients receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topic {
    /// `notifications/tools/list_changed`.
    Tools,
    /// `notifications/prompts/list_changed`.
    Prompts,
    /// `notifications/resources/list_changed`.
    Resources,
    /// `notifications/resources/updated` of this URI, as the client knows it.
    Resource(String),
    /// `notifications/message` of this level, as the server wrote it.
    Log(String),
}

/// A notification for the clients of a topic.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// What it is about.
    pub topic: Topic,
    /// The notification's method.
    pub method: String,
    /// Its params.
    pub params: Value,
}

impl Gateway {
    /// What the endpoint `/mcp` shows, or `/mcp/PROFILE`; `None` if there is no such profile.
    pub fn view(&self, profile: Option<&str>) -> Option<Arc<View>> {
        match profile {
            None => Some(Arc::clone(&self.everything)),
            Some(name) => self.profiles.get(name).cloned(),
        }
    }

    /// One server or group of functions with all it has, under its own names.
    pub fn view_of(&self, server: &ServerId) -> Arc<View> {
        Arc::new(View::profile(ProfileShows::Server(server.clone())))
    }

    /// What the endpoint `/mcp/s/TOKEN` shows; `None` if no session has this token, or it is over.
    pub fn view_of_session(&self, token: &str) -> Option<Arc<View>> {
        let session = self.mcp_sessions.find(token)?;
        Some(Arc::new(View::mcp_sessions(session)))
    }

    /// What an endpoint says about itself.
    pub fn describe(&self, view: &View) -> Description {
        lists::describe(view, &self.index())
    }

    /// Answers one request of a client: every method but those of the face itself, which are `initialize`,
    /// `server/discover`, `ping`, `logging/setLevel`, `resources/subscribe`, `resources/unsubscribe` and
    /// `subscriptions/listen`. Dropping the future cancels what runs.
    ///
    /// What cannot be read in time from `progress` is left out.
    ///
    /// # Errors
    /// JSON-RPC errors, those of servers included. A tool that fails is a result with `isError`.
    pub async fn request(
        self: &Arc<Self>,
        context: &RequestContext,
        method: &str,
        params: JsonObject,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Result<Value, RpcError> {
        // The futures of rare methods are boxed, because they would enlarge the future of every call.
        match method {
            "tools/call" => call::call(self, context, params, progress).await,
            "tools/list" => {
                self.started(&context.view).await;
                lists::tools(context, &self.catalog_of(context.view.key()), &params)
            }
            "prompts/list" => {
                self.acquainted(&context.view).await;
                lists::prompts(context, &self.index(), &params)
            }
            "resources/list" => {
                self.acquainted(&context.view).await;
                lists::resources(context, &self.index(), &params)
            }
            "resources/templates/list" => {
                self.acquainted(&context.view).await;
                lists::templates(context, &self.index(), &params)
            }
            "prompts/get" => {
                let name = params.get("name").and_then(Value::as_str);
                if name.is_some_and(|name| context.view.prompt(&self.index(), name).is_none()) {
                    self.acquainted(&context.view).await;
                }
                let forward = Box::pin(forward::prompt(self, context, params, progress));
                forward.await
            }
            "resources/read" => {
                let uri = params.get("uri").and_then(Value::as_str);
                if uri.is_some_and(|uri| context.view.resource(&self.index(), uri).is_none()) {
                    self.acquainted(&context.view).await;
                }
                let forward = Box::pin(forward::resource(self, context, params, progress));
                forward.await
            }
            "completion/complete" => {
                let forward = Box::pin(forward::completion(self, context, params, progress));
                forward.await
            }
            other => Err(RpcError::method_not_found(other)),
        }
    }

    /// The tool that is called by this name at an endpoint, for the headers that its schema asks for (`x-mcp-header`).
    pub fn offered(&self, view: &View, name: &str) -> Option<Arc<Offered>> {
        view.tool(&self.catalog_of(view.key()), name).cloned()
    }

    /// Events from now on. Bounded: a receiver that is too slow learns how many it missed.
    pub fn events(&self) -> broadcast::Receiver<Arc<BackendEvent>> {
        self.notifications.subscribe()
    }

    /// The notification for the clients of an endpoint, if it concerns them.
    pub fn notice(&self, view: &View, event: &BackendEvent) -> Option<Notice> {
        event.notice(view)
    }

    /// Subscribes to a resource. Its changes arrive as [`BackendEvent`].
    ///
    /// # Errors
    /// When there is no such resource, or its server cannot be asked.
    pub async fn watch(
        &self,
        context: &RequestContext,
        uri: &str,
    ) -> Result<ResourceSubscription, RpcError> {
        if uri.len() > MAX_WATCHED_URI {
            return Err(RpcError::invalid_params(format!(
                "Invalid params: `uri` is longer than {MAX_WATCHED_URI} bytes"
            )));
        }
        let Some((server, own)) = context.view.resource(&self.index(), uri) else {
            return Err(forward::not_found(context, uri));
        };
        let watch = self.servers.watch_resource(&server, &own).await;
        let watch = watch.map_err(forward::to_rpc)?;
        Ok(ResourceSubscription { _watch: watch })
    }

    /// Has servers log at least this level.
    pub fn log_interest(&self, level: Level) -> LogInterest {
        LogInterest::take(level, &self.log_interests, &self.servers)
    }

    /// Prompts, resources and templates of all servers.
    fn index(&self) -> Arc<FeatureIndex> {
        self.current.index()
    }

    /// Waits until every server is ready or has failed, but not for long after the start of the gateway.
    async fn started(&self, view: &View) {
        self.wait_at_start(view, self.servers.settled()).await;
    }

    /// Waits for the prompts and resources of every server, too.
    async fn acquainted(&self, view: &View) {
        self.wait_at_start(view, self.servers.acquainted()).await;
    }

    /// Many clients list only once, or use a name that they know from earlier.
    async fn wait_at_start(&self, view: &View, known: impl Future<Output = ()>) {
        if view.session().is_none() && Instant::now() < self.start_ends {
            let _ = timeout_at(self.start_ends, known).await;
            self.current.renew().await;
        }
    }
}
