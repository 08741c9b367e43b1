//! MCP servers over REST, with the routes, fields and status codes of MCP Bridge (docs/rest.md): their states, lists,
//! resources, prompts and calls.
//!
//! Errors are `{"error": "…"}`, with `code` and `data` where a server answered with a JSON-RPC error.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use serde_json::{Map, Value, json};
use url::form_urlencoded;

use crate::{
    gateway::{RestOutcome, failure::Outcome, mcp::RequestContext, risk_description},
    health::{ServerHealth, ServerState},
};
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    mcp::rpc::{RpcError, code},
    tool::{CallError, JsonObject, ServerId},
};

use super::{App, body, error::Refusal, executor, guard, request_log::Failing};

/// Most calls of one batch.
const MAX_CALLS: usize = 64;

/// Calls of one batch that run side by side.
const PARALLEL_CALLS: usize = 8;

/// An error in MCP Bridge's form.
#[derive(Debug)]
pub(super) struct RestError {
    status: StatusCode,
    message: String,
    /// Members beside `error`.
    more: JsonObject,
}

impl RestError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> RestError {
        RestError {
            status,
            message: message.into(),
            more: Map::new(),
        }
    }

    fn to_value(&self) -> Value {
        let mut value = json!({"error": self.message});
        if let Value::Object(value) = &mut value {
            value.extend(self.more.clone());
        }
        value
    }

    /// The same, with what was tried before the message.
    fn of(self, what: &str) -> RestError {
        RestError {
            message: format!("{what}: {}", self.message),
            ..self
        }
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_value())).into_response();
        let is_temporary = matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        if is_temporary {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(Failing {
            outcome: match self.status.is_server_error() {
                true => Outcome::UpstreamFailed,
                false => Outcome::Refused,
            },
            error: self.message,
        });
        response
    }
}

impl From<Refusal> for RestError {
    fn from(refusal: Refusal) -> RestError {
        let (status, message) = refusal.status_and_message();
        RestError::new(status, message)
    }
}

impl From<RpcError> for RestError {
    fn from(error: RpcError) -> RestError {
        let status = match error.code {
            code::INVALID_PARAMS => StatusCode::BAD_REQUEST,
            code::METHOD_NOT_FOUND | code::RESOURCE_NOT_FOUND => StatusCode::NOT_FOUND,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut more = Map::new();
        more.insert("code".to_owned(), error.code.into());
        if let Some(data) = error.data {
            more.insert("data".to_owned(), data);
        }
        RestError {
            more,
            ..RestError::new(status, error.message)
        }
    }
}

impl From<CallError> for RestError {
    fn from(error: CallError) -> RestError {
        let status = match &error {
            CallError::InvalidArgumentsJson { .. } | CallError::InvalidParams { .. } => {
                StatusCode::BAD_REQUEST
            }
            CallError::UnknownTool { name, .. } => {
                let message = format!("Tool '{name}' not found");
                return RestError::new(StatusCode::NOT_FOUND, message);
            }
            CallError::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            CallError::Denied { .. } => StatusCode::FORBIDDEN,
            CallError::Busy => StatusCode::TOO_MANY_REQUESTS,
            // Nothing was sent, so the request may be repeated.
            CallError::UpstreamUnavailable { unsent: true, .. } => StatusCode::SERVICE_UNAVAILABLE,
            CallError::UpstreamUnavailable { .. } | CallError::Refused { .. } => {
                StatusCode::BAD_GATEWAY
            }
            CallError::Protocol { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            // A call that waits is no failure over REST.
            CallError::WaitingForApproval { .. } | CallError::Cancelled => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        match error {
            CallError::Protocol {
                code,
                message,
                data,
            } => RpcError {
                code,
                message,
                data,
            }
            .into(),
            error => RestError::new(status, error.to_string()),
        }
    }
}

type Answer = Result<Json<Value>, RestError>;

/// `GET /servers`.
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let servers: Vec<Value> = app.gateway.health().iter().map(described).collect();
    Json(json!({"servers": servers}))
}

/// `GET /servers/{id}`.
pub(super) async fn show(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    let server = found(&app, &id)?;
    let mut shown = described(&server);
    if let (Value::Object(shown), Ok(Value::Object(health))) =
        (&mut shown, serde_json::to_value(&server))
    {
        let known = health.into_iter().filter(|(key, _)| {
            !matches!(
                key.as_str(),
                "name" | "state" | "stderr_tail" | "last_error"
            )
        });
        shown.extend(known.filter(|(key, _)| key != "pid"));
    }
    Ok(Json(shown))
}

/// `GET /servers/{id}/logs`: the last lines of its standard error.
pub(super) async fn logs(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    let server = found(&app, &id)?;
    Ok(Json(json!({"lines": server.stderr_tail})))
}

/// `GET /servers/{id}/tools`.
pub(super) async fn tools(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    page(&app, &id, "tools/list", &uri, &headers).await
}

/// `GET /servers/{id}/resources`.
pub(super) async fn resources(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    page(&app, &id, "resources/list", &uri, &headers).await
}

/// `GET /servers/{id}/resource_templates`.
pub(super) async fn resource_templates(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    page(&app, &id, "resources/templates/list", &uri, &headers).await
}

/// `GET /servers/{id}/prompts`.
pub(super) async fn prompts(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    page(&app, &id, "prompts/list", &uri, &headers).await
}

/// `GET /servers/{id}/resources/{uri}`.
pub(super) async fn read_resource(
    State(app): State<Arc<App>>,
    Path((id, uri)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer {
    let params = json!({"uri": uri});
    ask(&app, &id, &headers, "resources/read", params).await
}

/// `POST /servers/{id}/prompts/{name}`: the body is the arguments.
pub(super) async fn get_prompt(
    State(app): State<Arc<App>>,
    Path((id, name)): Path<(String, String)>,
    request: Request,
) -> Answer {
    found(&app, &id)?;
    let (headers, arguments) = object(&app, request).await?;
    let params = json!({"name": name, "arguments": arguments});
    let answer = ask(&app, &id, &headers, "prompts/get", params).await;
    answer.map_err(|error| error.of(&format!("Error executing prompt {name}")))
}

/// `POST /servers/{id}/completions`: the body is the params of `completion/complete`.
pub(super) async fn complete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    found(&app, &id)?;
    let (headers, params) = object(&app, request).await?;
    let params = Value::Object(params);
    ask(&app, &id, &headers, "completion/complete", params).await
}

/// `POST /servers/{id}/tools/{name}`: the body is the arguments.
pub(super) async fn call_tool(
    State(app): State<Arc<App>>,
    Path((id, name)): Path<(String, String)>,
    request: Request,
) -> Answer {
    let server = found(&app, &id)?.server;
    let (parts, body) = request.into_parts();
    let arguments = read(&app, &parts.headers, body).await?;
    executor::count(&parts, 1);
    let context = context(&app, &server, &parts.headers);
    call(&app, &context, &name, arguments).await.map(Json)
}

/// `POST /servers/{id}/calls`: several calls, side by side.
pub(super) async fn call_tools(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let server = found(&app, &id)?.server;
    let (parts, body) = request.into_parts();
    let body = read(&app, &parts.headers, body).await?;
    let calls = read_calls(body)?;
    executor::count(&parts, calls.len());
    let context = context(&app, &server, &parts.headers);
    let (app, context) = (&app, &context);
    let running = calls.into_iter().map(|(name, arguments)| async move {
        match call(app, context, &name, arguments).await {
            Ok(result) => json!({"status": 200, "result": result}),
            Err(error) => {
                let mut failed = error.to_value();
                failed["status"] = error.status.as_u16().into();
                failed
            }
        }
    });
    let results = stream::iter(running).buffered(PARALLEL_CALLS);
    let results: Vec<Value> = results.collect().await;
    Ok(Json(json!({"results": results})))
}

/// `{"calls": [{"name": …, "arguments": {…}}]}`.
fn read_calls(mut body: JsonObject) -> Result<Vec<(String, JsonObject)>, RestError> {
    let invalid = |message: String| RestError::new(StatusCode::BAD_REQUEST, message);
    let Some(Value::Array(calls)) = body.remove("calls") else {
        return Err(invalid("`calls` must be a list".to_owned()));
    };
    if calls.len() > MAX_CALLS {
        return Err(invalid(format!("`calls` has more than {MAX_CALLS} calls")));
    }
    let read = |(i, mut call): (usize, Value)| {
        let name = call["name"].as_str().map(str::to_owned);
        let name = name.ok_or_else(|| invalid(format!("`calls[{i}].name` must be a text")))?;
        match call.get_mut("arguments").map(Value::take) {
            None | Some(Value::Null) => Ok((name, Map::new())),
            Some(Value::Object(arguments)) => Ok((name, arguments)),
            Some(_) => Err(invalid(format!("`calls[{i}].arguments` must be an object"))),
        }
    };
    calls.into_iter().enumerate().map(read).collect()
}

/// One call. What the policy refuses is not made, and what it asks about waits for its confirmation.
async fn call(
    app: &App,
    context: &RequestContext,
    name: &str,
    arguments: JsonObject,
) -> Result<Value, RestError> {
    let calling = app.gateway.call_over_rest(context, name, arguments);
    let called = app.gateway.ending().run_until_cancelled(calling).await;
    let called = called.ok_or(Refusal::ShuttingDown)?;
    called
        .map(RestOutcome::into_json)
        .map_err(|error| match error {
            unknown @ CallError::UnknownTool { .. } => unknown.into(),
            error => RestError::from(error).of(&format!("Error executing tool {name}")),
        })
}

/// One page of a list, after the `cursor` of the query.
async fn page(app: &App, id: &str, method: &str, uri: &Uri, headers: &HeaderMap) -> Answer {
    let query = uri.query().unwrap_or_default();
    let mut query = form_urlencoded::parse(query.as_bytes());
    let cursor = query.find(|(key, _)| key == "cursor");
    let params = match cursor {
        Some((_, cursor)) => json!({"cursor": cursor}),
        None => json!({}),
    };
    ask(app, id, headers, method, params).await
}

/// The answer to an MCP request about one server.
async fn ask(app: &App, id: &str, headers: &HeaderMap, method: &str, params: Value) -> Answer {
    let server = found(app, id)?.server;
    let context = context(app, &server, headers);
    let Value::Object(params) = params else {
        return Ok(Json(Value::Null));
    };
    let asking = app.gateway.request(&context, method, params, None);
    let answer = app.gateway.ending().run_until_cancelled(asking).await;
    Ok(Json(answer.ok_or(Refusal::ShuttingDown)??))
}

/// The server of this id.
fn found(app: &App, id: &str) -> Result<ServerHealth, RestError> {
    let mut servers = app.gateway.health().into_iter();
    servers.find(|it| it.server.as_str() == id).ok_or_else(|| {
        let message = format!("Server '{id}' not found or not connected");
        RestError::new(StatusCode::NOT_FOUND, message)
    })
}

fn context(app: &App, server: &ServerId, headers: &HeaderMap) -> RequestContext {
    let client = guard::client(&app.config, headers, "rest");
    app.gateway.rest_context(server, client)
}

/// The headers of a request, and its body as [`read`] has it.
async fn object(app: &App, request: Request) -> Result<(HeaderMap, JsonObject), RestError> {
    let (parts, body) = request.into_parts();
    let object = read(app, &parts.headers, body).await?;
    Ok((parts.headers, object))
}

/// The object that a body is; no body is an empty one.
pub(super) async fn read(
    app: &App,
    headers: &HeaderMap,
    body: axum::body::Body,
) -> Result<JsonObject, RestError> {
    let body = body::receive(app, headers, body, app.config.max_body_bytes).await?;
    if body.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    let invalid = |message: String| RestError::new(StatusCode::BAD_REQUEST, message);
    check_values(&body, MAX_VALUES).map_err(|error| invalid(format!("the body has {error}")))?;
    serde_json::from_slice(&body)
        .map_err(|error| invalid(format!("the body is not a JSON object: {error}")))
}

/// A server as `/servers` has it.
pub(super) fn described(server: &ServerHealth) -> Value {
    let mut described = json!({
        "id": server.server.as_str(),
        "connected": server.state == ServerState::Ready,
        "pid": server.pid,
        "initialization_state": initialization_state(server),
        "state": state(server.state),
    });
    match server.state {
        ServerState::Ready => {}
        ServerState::Idle => described["reason"] = json!("not in use; the next call starts it"),
        _ => described["reason"] = json!(server.last_error),
    }
    show_risk(&mut described, server);
    described
}

/// MCP Bridge's members about the risk of a server, where one is configured.
pub(super) fn show_risk(shown: &mut Value, server: &ServerHealth) {
    if let Some(level) = server.risk {
        shown["risk_level"] = level.into();
        shown["risk_description"] = risk_description(level).into();
    }
}

/// A server as `/health` has it: toolway's members and MCP Bridge's.
pub(super) fn in_health(server: &ServerHealth) -> Value {
    let mut shown = json!(server);
    shown["id"] = json!(server.server.as_str());
    shown["initialization_state"] = json!(initialization_state(server));
    show_risk(&mut shown, server);
    shown
}

/// MCP Bridge's word.
fn initialization_state(server: &ServerHealth) -> &'static str {
    match server.state {
        ServerState::Ready | ServerState::Idle => "initialized",
        ServerState::Starting | ServerState::Restarting => "starting",
        ServerState::Failed | ServerState::Stopped => "error",
    }
}

/// The state of the connection. One that is `degraded` shows what it had, and its calls wait for the restart.
fn state(state: ServerState) -> &'static str {
    match state {
        ServerState::Starting => "connecting",
        ServerState::Ready => "ready",
        ServerState::Restarting => "degraded",
        ServerState::Failed => "error",
        ServerState::Stopped | ServerState::Idle => "disconnected",
    }
}
