//! `GET /livez`, `/readyz`, `/health` and `/tools`: the state of toolway and its tools.

use std::sync::{Arc, atomic::Ordering};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde_json::{Value, json};

use super::{App, guard, servers};

/// 200 while the process runs.
pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// 200 when the start is over and every `required` server is ready; 503 before, when one is lost, and at the end.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    let is_stopping = app.is_stopping.load(Ordering::Relaxed);
    match !is_stopping && app.gateway.is_ready() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    }
}

/// 200 as soon as requests can be served. Shows the state of each server to clients with a valid key.
pub(super) async fn health(State(app): State<Arc<App>>, headers: HeaderMap) -> Json<Value> {
    let mut answer = json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")});
    if guard::key(&app.config, &headers).is_ok() {
        let upstreams = app
            .gateway
            .models()
            .all()
            .iter()
            .map(|upstream| json!({"name": upstream.config.name}));
        answer["upstreams"] = upstreams.collect();
        let servers = app.gateway.health();
        // As MCP Bridge counts and names them.
        answer["uptime"] = json!(app.started.elapsed().as_secs_f64());
        answer["serverCount"] = json!(servers.len());
        answer["servers"] = servers.iter().map(servers::in_health).collect();
        answer["functions"] = json!(app.gateway.functions());
        answer["store"] = json!(app.gateway.store());
        answer["audit"] = json!(app.gateway.audit().health());
        let (sessions, streams) = app.mcp.counts();
        answer["mcp"] = json!({"sessions": sessions, "streams": streams});
        answer["tools"] = json!(app.gateway.catalog().offered().len());
    }
    Json(answer)
}

/// Every tool that this client is offered, and every tool that it is not.
pub(super) async fn tools(State(app): State<Arc<App>>, headers: HeaderMap) -> Json<Value> {
    let key = guard::position(&app.config, &headers);
    Json(crate::gateway::listing::listing(
        &app.gateway.catalog_of(key),
        app.gateway.models(),
    ))
}
