//! The HTTP face: the router on one screen, one file per face, `error` maps errors to responses.
//!
//! The OpenAI side speaks OpenAI's words and envelope; `/health` and `/tools` are toolway's own.

mod body;
mod chat;
mod cors;
pub mod error;
mod forward;
mod front;
mod guard;
mod headers;
mod listener;
pub mod mcp;
mod mcp_sessions;
mod models;
mod status;
pub mod stdio;

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Request,
    http::{HeaderName, Uri},
    routing::{any, get, post},
};
use tokio::{net::TcpListener, sync::Semaphore};

use crate::{gateway::Gateway, secret::Secret};

use self::{error::Refusal, mcp::Face};

/// Where and for whom toolway listens.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address. Default: 127.0.0.1:4242.
    pub bind: SocketAddr,
    /// Keys that clients must show as `Authorization: Bearer …`; empty: anybody on loopback, nobody elsewhere.
    pub api_keys: Vec<Secret>,
    /// Without `api_keys`, anybody may use it, wherever it listens. Default: false.
    pub allow_anonymous: bool,
    /// Names besides loopback and IP addresses that the `Host` header may have. `*` for any. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Origins of pages elsewhere that may call and read the answers. `*` for any. Default: none.
    pub cors_origins: Vec<String>,
    /// Longest request body, in bytes. Default: 32 MiB.
    pub max_body_bytes: usize,
    /// Deepest nesting of a request body. Default: 128.
    pub max_body_depth: usize,
    /// Requests that are served side by side, streams included; more are told to come back. Default: 4096.
    pub max_requests: usize,
    /// The bounds of the face for MCP clients.
    pub mcp: mcp::Config,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            bind: SocketAddr::from(([127, 0, 0, 1], 4242)),
            api_keys: Vec::new(),
            allow_anonymous: false,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            max_body_bytes: 32 << 20,
            max_body_depth: 128,
            max_requests: 4096,
            mcp: mcp::Config::default(),
        }
    }
}

/// The header that names a request in answers and logs.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How long requests may take to end when toolway stops.
const DRAIN: Duration = Duration::from_secs(5);

/// What every handler can reach.
pub(crate) struct App {
    gateway: Arc<Gateway>,
    config: Config,
    /// Free places for requests.
    places: Arc<Semaphore>,
    mcp: Face,
}

/// Serves until `shutdown` ends, then lets running requests end, for a while.
pub async fn serve(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    config: Config,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let connections = config.max_requests.saturating_add(config.mcp.max_streams);
    let app = app(gateway, config);
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let told = app.clone();
    let shutdown = async move {
        shutdown.await;
        // Whoever reads what may come at any time would not end by itself.
        told.mcp.stop();
        told.gateway.handed().close();
        let _ = stopping.send(());
    };
    let (routes, front) = (routes(app.clone()), app.clone());
    let answer = move |request: Request| front::answer(front.clone(), routes.clone(), request);
    let serving = listener::serve(listener, answer, connections, shutdown);
    let overdue = async {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        () = serving => {}
        () = overdue => {}
        () = app.mcp.sweep() => {}
    }
}

fn app(gateway: Arc<Gateway>, config: Config) -> Arc<App> {
    Arc::new(App {
        places: Arc::new(Semaphore::new(config.max_requests)),
        mcp: Face::new(gateway.clone(), config.mcp.clone()),
        gateway,
        config,
    })
}

/// The routes; every request comes to them through [`front`], which answers chats and messages to `/mcp` itself.
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
        .route("/v1/{*path}", any(forward::forward))
        // The Model Context Protocol.
        .route(
            "/mcp",
            post(mcp::everything)
                .get(mcp::everything)
                .delete(mcp::everything),
        )
        .route(
            "/mcp/{profile}",
            post(mcp::profile).get(mcp::profile).delete(mcp::profile),
        )
        .route(
            "/mcp/s/{token}",
            post(mcp::lent).get(mcp::lent).delete(mcp::lent),
        )
        // Its transport of 2024-11-05.
        .route(
            "/sse",
            post(mcp::legacy_sse::everything).get(mcp::legacy_sse::everything),
        )
        .route(
            "/sse/{profile}",
            post(mcp::legacy_sse::profile).get(mcp::legacy_sse::profile),
        )
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
        .route("/health", get(status::health))
        .route("/tools", get(status::tools))
        .fallback(async |uri: Uri| Refusal::NotFound(uri.path().to_owned()))
        .method_not_allowed_fallback(async || Refusal::MethodNotAllowed)
        .with_state(app)
}
