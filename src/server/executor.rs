//! `POST /v1/tool_calls`, `POST /tools/{name}` and `/tools/openapi.json`: tools for programs that keep their own loop.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use crate::{
    gateway::{failure::Failure, record::Record},
    upstream::read_text,
};
use toolway_core::{
    catalog::{Catalog, Selected},
    route::Order,
    translate::{
        stream::Round,
        tool_responses::{self, Executed, ResultForm},
    },
};
use toolway_protocol::tool::JsonObject;

use super::{App, body, chat, error, guard};

/// Answers `POST /v1/tool_calls`.
pub(super) async fn tool_calls(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = match body::receive(&app, &parts.headers, body, app.config.max_body_bytes).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    app.gateway.wait_for_start().await;
    let asked = read_text(body.len(), || body::read_object(&body));
    let asked =
        asked.and_then(|body| Ok((tools(&app, &parts.headers)?, ToolCallsRequest::read(&body)?)));
    let ((catalog, selected), asked) = match asked {
        Ok(asked) => asked,
        Err(failure) => return error::response(failure.into()),
    };
    let executed = app.gateway.execute(
        asked.round,
        catalog,
        selected,
        asked.order,
        guard::client(&app.config, &parts.headers, "tool_calls"),
    );
    let executed = executed.await;
    count(&parts, executed.as_ref().map_or(0, Vec::len));
    match executed {
        Ok(executed) => write(&executed, asked.form, &parts.headers),
        Err(failure) => error::response(failure.into()),
    }
}

/// Answers `POST /tools/{name}`: the body is the arguments, the response the result.
pub(super) async fn call(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = match body::receive(&app, &parts.headers, body, app.config.max_body_bytes).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    app.gateway.wait_for_start().await;
    let (catalog, selected) = match tools(&app, &parts.headers) {
        Ok(tools) => tools,
        Err(failure) => return error::response(failure.into()),
    };
    let arguments = String::from_utf8_lossy(&body).into_owned();
    let round = tool_responses::round_of(name, arguments);
    let executed = app.gateway.execute(
        round,
        catalog,
        selected,
        Order::Parallel,
        guard::client(&app.config, &parts.headers, "tool_calls"),
    );
    let executed = executed.await;
    count(&parts, 1);
    match executed.map(|executed| executed.into_iter().next()) {
        Ok(Some(executed)) => match executed.error() {
            None => result(executed.content),
            Some(error) => (status(&error), Json(json!({"error": error}))).into_response(),
        },
        Ok(None) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Err(failure) => error::response(failure.into()),
    }
}

/// Answers `GET /tools/openapi.json`: an operation for each tool.
pub(super) async fn openapi(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let (_, selected) = match tools(&app, &headers) {
        Ok(tools) => tools,
        Err(failure) => return error::response(failure.into()),
    };
    let paths = selected.tools.iter().map(|offered| {
        let tool = &offered.tool;
        let schema = Value::Object(tool.input_schema.clone());
        let result =
            json!({"description": "The result.", "content": {"application/json": {"schema": {}}}});
        let operation = json!({
            "operationId": offered.name.as_str(),
            "summary": tool.title.as_deref().unwrap_or(offered.name.as_str()),
            "description": tool.description.as_deref().unwrap_or_default(),
            "requestBody": {"required": true, "content": {"application/json": {"schema": schema}}},
            "responses": {"200": result},
        });
        (
            format!("/tools/{}", offered.name.as_str()),
            json!({"post": operation}),
        )
    });
    let paths: Map<String, Value> = paths.collect();
    Json(json!({
        "openapi": "3.1.0",
        "info": {"title": "toolway", "version": env!("CARGO_PKG_VERSION")},
        "servers": [{"url": "/"}],
        "paths": paths,
    }))
    .into_response()
}

/// Notes how many calls a request made, for its line in the log.
pub(super) fn count(parts: &Parts, calls: usize) {
    if let Some(record) = parts.extensions.get::<Arc<Record>>() {
        record.add_calls(calls);
    }
}

/// The tools that the headers of a request select.
pub(super) fn tools(
    app: &App,
    headers: &HeaderMap,
) -> Result<(Arc<Catalog>, Arc<Selected>), Failure> {
    let chosen = chat::Chosen::read(headers)?;
    let key = guard::position(&app.config, headers);
    let catalog = app.gateway.catalog_of(key);
    let (tools, servers) = (chosen.tools.as_deref(), chosen.servers.as_deref());
    let selected = app.gateway.select_tools(&catalog, tools, servers)?;
    Ok((catalog, selected))
}

/// What a body of `/v1/tool_calls` asks for.
struct ToolCallsRequest {
    round: Round,
    order: Order,
    form: ResultForm,
}

impl ToolCallsRequest {
    fn read(body: &JsonObject) -> Result<ToolCallsRequest, Failure> {
        let form = match body.get("format") {
            None | Some(Value::Null) => ResultForm::default(),
            Some(format) => format.as_str().and_then(ResultForm::parse).ok_or_else(|| {
                body::invalid("`format` is `tool_responses`, `messages` or `events`".to_owned())
            })?,
        };
        let is_sequential = body.get("parallel_tool_calls") == Some(&Value::Bool(false));
        Ok(ToolCallsRequest {
            round: tool_responses::read(body).map_err(|error| body::invalid(error.to_string()))?,
            order: if is_sequential {
                Order::Sequential
            } else {
                Order::Parallel
            },
            form,
        })
    }
}

/// The results; as lines or as an event stream where `Accept` asks for one of these.
fn write(executed: &[Executed], form: ResultForm, headers: &HeaderMap) -> Response {
    let accepts = |kind: &str| {
        let accept = headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok());
        accept.is_some_and(|accept| accept.contains(kind))
    };
    let (lines, events) = ("application/x-ndjson", "text/event-stream");
    let written = executed.iter().map(tool_responses::write_event);
    let (kind, body): (&str, String) = if accepts(lines) {
        (lines, written.map(|event| format!("{event}\n")).collect())
    } else if accepts(events) {
        (
            events,
            written.map(|event| format!("data: {event}\n\n")).collect(),
        )
    } else {
        return Json(tool_responses::write(executed, form)).into_response();
    };
    ([(header::CONTENT_TYPE, kind)], Body::from(body)).into_response()
}

/// A result that is JSON as it is, another as a JSON text.
fn result(content: String) -> Response {
    match serde_json::from_str::<Value>(&content) {
        Ok(_) => ([(header::CONTENT_TYPE, "application/json")], content).into_response(),
        Err(_) => Json(content).into_response(),
    }
}

/// What a client of an HTTP API expects. No status is one after which clients repeat a request by themselves.
fn status(error: &Value) -> StatusCode {
    match error["type"].as_str() {
        Some("unknown_tool") => StatusCode::NOT_FOUND,
        Some("denied") => StatusCode::FORBIDDEN,
        Some("invalid_params" | "invalid_arguments" | "invalid_arguments_json") => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    }
}
