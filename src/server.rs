//! The HTTP face: the router on one screen, one file per face, `error` maps errors to responses.
//!
//! The OpenAI side speaks OpenAI's words and envelope; `/health` and `/tools` are toolway's own.

mod admission;
mod answer_stream;
mod asked;
mod audit;
mod body;
mod chat;
mod confirmations;
mod connections;
mod conversations;
mod cors;
mod dialects;
mod dispatch;
pub mod error;
mod events;
mod executor;
mod explain;
mod face;
mod forward;
mod front;
mod guard;
mod headers;
mod listener;
pub mod mcp;
mod mcp_items;
mod mcp_sessions;
mod models;
mod places;
mod request_log;
mod responses;
mod server_changes;
mod servers;
mod stalled;
mod status;
pub mod stdio;
mod values;
mod websocket;

pub(crate) use self::confirmations::TOKEN as APPROVAL_TOKEN;
pub use self::listener::bind;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    http::{HeaderName, Uri},
    response::Response,
    routing::{any, delete, get, head, post},
};
use tokio::{net::TcpListener, sync::Semaphore, time::Instant};

use crate::gateway::Gateway;
use crate::{byte_budget::ByteBudget, secret::Secret};

use self::{
    connections::{Connections, Ticket},
    conversations::Conversations,
    error::Refusal,
    mcp::McpFace,
    responses::{background::Runs, sockets::Sockets},
};

/// A key of clients.
#[derive(Clone, Debug)]
pub struct ApiKey {
    /// Its name for the log and the policy: of `[keys.NAME]`, or its place in `api_keys`.
    pub name: String,
    /// The key.
    pub secret: Secret,
    /// Its clients may change servers.
    pub admin: bool,
}

/// The listen address, and which clients are admitted.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address. Default: 127.0.0.1:4242.
    pub bind: SocketAddr,
    /// Keys that clients must send as `Authorization: Bearer …`. If empty, every client is admitted on loopback and
    /// none elsewhere.
    pub api_keys: Vec<ApiKey>,
    /// What a decision on a call has to bring beside a key. Default: nothing.
    pub approval_token: Option<Secret>,
    /// Without `api_keys`, admits every client on any address. Default: false.
    pub allow_anonymous: bool,
    /// Names besides loopback and IP addresses that the `Host` header may have. `*` for any. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Origins of pages elsewhere that may call and read the answers. `*` for any. Default: none.
    pub cors_origins: Vec<String>,
    /// Longest request body, in bytes. Default: 32 MiB.
    pub max_body_bytes: usize,
    /// Deepest nesting of a request body. Default: 128.
    pub max_body_depth: usize,
    /// Bytes of request bodies that are held at one time, by all requests together. Default: 256 MiB.
    pub max_inflight_bytes: usize,
    /// Most requests at a time, streams included; further ones get 503. Default: 4096.
    pub max_requests: usize,
    /// Connections that are kept beside those with a request. Default: 1024.
    pub max_idle: usize,
    /// How long requests may take to end when toolway stops; then they end with an error. Default: 10 s.
    pub shutdown_grace: Duration,
    /// The bounds of the face for MCP clients.
    pub mcp: mcp::Config,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            bind: SocketAddr::from(([127, 0, 0, 1], 4242)),
            api_keys: Vec::new(),
            approval_token: None,
            allow_anonymous: false,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            max_body_bytes: 32 << 20,
            max_body_depth: 128,
            max_inflight_bytes: 256 << 20,
            max_requests: 4096,
            max_idle: 1024,
            shutdown_grace: Duration::from_secs(10),
            mcp: mcp::Config::default(),
        }
    }
}

/// The header that names a request in answers and logs.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Time for sending the final errors to requests that are cut off at the end of [`Config::shutdown_grace`].
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The state that all handlers share.
pub(crate) struct App {
    gateway: Arc<Gateway>,
    config: Config,
    /// The budget of all request bodies and of the values that are built from them.
    bodies: ByteBudget,
    /// Free places for long bodies that are read into values.
    parsing: Arc<Semaphore>,
    mcp: McpFace,
    /// Responses in the background.
    runs: Runs,
    /// WebSockets for responses.
    sockets: Sockets,
    /// Conversations that are being changed.
    conversations: Conversations,
    /// toolway is shutting down, and new requests are refused.
    is_stopping: AtomicBool,
    started: Instant,
}

/// Serves until `shutdown` ends, then lets running requests end for a while; those that do not end with an error.
pub async fn serve(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    config: Config,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let requests = config.max_requests.saturating_add(config.mcp.max_streams);
    let connections = Connections::new(connections::Config {
        max: requests.saturating_add(config.max_idle),
        max_requests: config.max_requests,
        keys: config.api_keys.len(),
        stall: listener::STALL.min(gateway.request_timeout()),
    });
    let grace = config.shutdown_grace;
    let app = app(gateway, config);
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let told = app.clone();
    let shutdown = async move {
        shutdown.await;
        told.is_stopping.store(true, Ordering::Relaxed);
        // Streams of notifications never end by themselves.
        told.mcp.stop();
        told.sockets.stop();
        told.gateway.mcp_sessions().close();
        let _ = stopping.send(());
    };
    let (routes, front) = (routes(app.clone()), app.clone());
    let answer = move |request: Request, ticket: Arc<Ticket>| {
        dispatch::answer(front.clone(), routes.clone(), request, ticket)
    };
    let listening = listener::serve(listener, answer, Arc::clone(&connections), shutdown);
    let serving = async {
        listening.await;
        app.sockets.join().await;
        app.runs.join().await;
    };
    let overdue = async {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(grace).await;
        tracing::warn!("Ending the requests that are still running");
        app.gateway.end_requests();
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        () = serving => {}
        () = overdue => {}
        () = app.mcp.sweep() => {}
    }
    connections.close_all();
}

fn app(gateway: Arc<Gateway>, config: Config) -> Arc<App> {
    let keys = config.api_keys.len();
    gateway.mcp_sessions().share_among(keys);
    Arc::new(App {
        bodies: ByteBudget::new(config.max_inflight_bytes),
        parsing: Arc::new(Semaphore::new(values::AT_ONCE)),
        mcp: McpFace::new(gateway.clone(), config.mcp.clone(), keys),
        runs: Runs::new(config.max_requests, keys),
        sockets: Sockets::new(),
        conversations: Conversations::default(),
        is_stopping: AtomicBool::new(false),
        started: Instant::now(),
        gateway,
        config,
    })
}

/// The routes; every request comes to them through [`dispatch`], which answers chats and messages to `/mcp` itself.
fn routes(app: Arc<App>) -> Router {
    Router::new()
        // The OpenAI API.
        .route(
            "/v1/chat/completions",
            post(chat::complete).fallback(forward::forward),
        )
        .route("/v1/models", get(models::list).fallback(forward::forward))
        .route(
            "/v1/models/{*id}",
            get(models::show).fallback(forward::forward),
        )
        // Other APIs of models.
        .route("/", head(dialects::greet).get(not_found))
        .route(
            "/v1/responses",
            post(dialects::responses).fallback(forward::forward),
        )
        .route(
            "/v1/responses/input_tokens",
            post(dialects::input_tokens).fallback(forward::forward),
        )
        .route(
            "/v1/responses/compact",
            post(responses::compact).fallback(forward::forward),
        )
        .route(
            "/v1/responses/{id}",
            get(responses::show)
                .delete(responses::delete)
                .fallback(forward::forward),
        )
        .route(
            "/v1/responses/{id}/cancel",
            post(responses::cancel).fallback(forward::forward),
        )
        .route(
            "/v1/responses/{id}/input_items",
            get(responses::input_items).fallback(forward::forward),
        )
        .route(
            "/v1/conversations",
            post(conversations::create).fallback(forward::forward),
        )
        .route(
            "/v1/conversations/{id}",
            get(conversations::show)
                .post(conversations::update)
                .delete(conversations::delete)
                .fallback(forward::forward),
        )
        .route(
            "/v1/conversations/{id}/items",
            get(conversations::items)
                .post(conversations::add)
                .fallback(forward::forward),
        )
        .route(
            "/v1/conversations/{id}/items/{item}",
            get(conversations::item)
                .delete(conversations::remove_item)
                .fallback(forward::forward),
        )
        .route("/v1/messages", post(dialects::messages))
        .route("/v1/messages/count_tokens", post(dialects::count_tokens))
        .route("/v1/{*path}", any(forward::forward))
        // The Model Context Protocol.
        .route("/mcp", any(mcp::everything))
        .route("/mcp/{profile}", any(mcp::profile))
        .route("/mcp/s/{token}", any(mcp::lent))
        // Its transport of 2024-11-05.
        .route("/sse", any(mcp::legacy_sse::everything))
        .route("/sse/{profile}", any(mcp::legacy_sse::profile))
        // Functions that a caller lends.
        .route("/v1/mcp_sessions", post(mcp_sessions::open))
        .route(
            "/v1/mcp_sessions/{id}",
            get(mcp_sessions::show).delete(mcp_sessions::end),
        )
        .route("/v1/mcp_sessions/{id}/events", get(mcp_sessions::events))
        .route(
            "/v1/mcp_sessions/{id}/tool_responses",
            post(mcp_sessions::respond),
        )
        // toolway's own.
        .route("/livez", get(status::livez))
        .route("/readyz", get(status::readyz))
        .route("/health", get(status::health))
        .route("/tools", get(status::tools))
        // MCP servers one by one, as MCP Bridge has them.
        .route("/servers", get(servers::list).post(server_changes::add))
        .route(
            "/servers/{id}",
            get(servers::show)
                .patch(server_changes::change)
                .delete(server_changes::remove),
        )
        .route("/servers/{id}/restart", post(server_changes::restart))
        .route("/servers/{id}/logs", get(servers::logs))
        .route("/servers/{id}/tools", get(servers::tools))
        .route("/servers/{id}/tools/{name}", post(servers::call_tool))
        .route("/servers/{id}/calls", post(servers::call_tools))
        .route("/servers/{id}/resources", get(servers::resources))
        .route("/servers/{id}/resources/{uri}", get(servers::read_resource))
        .route(
            "/servers/{id}/resource_templates",
            get(servers::resource_templates),
        )
        .route("/servers/{id}/prompts", get(servers::prompts))
        .route("/servers/{id}/prompts/{name}", post(servers::get_prompt))
        .route("/servers/{id}/completions", post(servers::complete))
        // Tools for programs that keep their own loop.
        .route("/tools/openapi.json", get(executor::openapi))
        .route("/tools/{name}", post(executor::call))
        .route("/v1/tool_calls", post(executor::tool_calls))
        .route("/v1/events", post(events::take_in))
        .route("/v1/sessions/{id}/state", get(events::show_state))
        .route("/policy/explain", get(explain::explain))
        // Calls that wait for a person.
        .route("/confirmations", get(confirmations::list))
        .route(
            "/confirmations/{id}",
            get(confirmations::show).post(confirmations::decide),
        )
        .route("/grants", get(confirmations::grants))
        .route("/grants/{id}", delete(confirmations::revoke))
        .route("/audit", get(audit::list))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app)
}

async fn not_found(uri: Uri) -> Response {
    let form = error::form_of(uri.path());
    Refusal::NotFound(uri.path().to_owned()).into_response_in(form)
}

async fn method_not_allowed(uri: Uri) -> Response {
    Refusal::MethodNotAllowed.into_response_in(error::form_of(uri.path()))
}
