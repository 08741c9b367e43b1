//! `/confirmations` and `/grants`: the calls that wait for a person, decisions on them, and what is approved for later.
//!
//! Fields, statuses and errors are those of MCP Bridge (docs/approvals.md). A client sees and decides on its own calls;
//! who may do so for every client is for [`guard::scope`] to say.

use std::sync::Arc;

use axum::{
    Json,
    body::Bytes,
    extract::{Path, Query, Request, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderName, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    gateway::confirmations::{CallOrigin, Remember, Scope, Undecided},
    secret::Secret,
    store::confirmations::{Confirmation, ConfirmationState, Grant},
    telemetry::rfc3339,
};
use toolway_protocol::tool::JsonObject;

use super::{App, body, guard};

/// What a decision may have to bring.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-toolway-approval-token");

/// What a list shows.
#[derive(Deserialize)]
pub(super) struct ListQuery {
    /// Only confirmations in this state.
    state: Option<ConfirmationState>,
}

/// Answers `GET /confirmations`.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    query: Result<Query<ListQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let Query(query) = match query {
        Ok(query) => query,
        Err(error) => return failed(error.status(), &error.body_text()),
    };
    let scope = guard::scope(&app.config, &headers);
    let mut all = app.gateway.confirmations().list(scope).await;
    all.retain(|it| query.state.is_none_or(|state| it.state == state));
    let all: Vec<Value> = all.iter().map(written).collect();
    Json(json!({"confirmations": all})).into_response()
}

/// Answers `GET /confirmations/{id}`.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let scope = guard::scope(&app.config, &headers);
    match app.gateway.confirmations().find(scope, &id).await {
        Some(found) => Json(written(&found)).into_response(),
        None => unknown(&id),
    }
}

/// Answers `POST /confirmations/{id}`.
pub(super) async fn decide(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    if !brings_token(&app, &parts.headers) {
        let message =
            "A decision needs the token of `[approvals]` in the header `X-Toolway-Approval-Token`";
        return failed(StatusCode::FORBIDDEN, message);
    }
    let received = body::receive(&app, &parts.headers, body, app.config.max_body_bytes);
    let body = match received.await {
        Ok(body) => body,
        Err(refusal) => {
            let (status, message) = refusal.status_and_message();
            return failed(status, &message);
        }
    };
    let decision = match Asked::read(&body) {
        Ok(decision) => decision,
        Err(message) => return failed(StatusCode::BAD_REQUEST, message),
    };
    let scope = guard::scope(&app.config, &parts.headers);
    let client = guard::client(&app.config, &parts.headers, "rest");
    let by = app.gateway.origin_of(&client);
    // The request goes on when its client has left: what was used up for the call must not be lost.
    let deciding = tokio::spawn(async move { decision.carry_out(&app, &by, scope, &id).await });
    match deciding.await {
        Ok(response) => response,
        Err(_) => failed(StatusCode::INTERNAL_SERVER_ERROR, "the call failed"),
    }
}

fn brings_token(app: &App, headers: &HeaderMap) -> bool {
    app.config.approval_token.as_ref().is_none_or(|token| {
        let shown = headers.get(TOKEN).and_then(|it| it.to_str().ok());
        Secret::new(shown.unwrap_or_default()) == *token
    })
}

/// Answers `GET /grants`.
pub(super) async fn grants(State(app): State<Arc<App>>, headers: HeaderMap) -> Json<Value> {
    let scope = guard::scope(&app.config, &headers);
    let all = app.gateway.confirmations().grants(scope).await;
    let all: Vec<Value> = all.iter().map(written_grant).collect();
    Json(json!({"grants": all}))
}

/// Answers `DELETE /grants/{id}`.
pub(super) async fn revoke(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let scope = guard::scope(&app.config, &headers);
    match app.gateway.confirmations().revoke(scope, &id).await {
        true => Json(json!({"status": "revoked"})).into_response(),
        false => failed(StatusCode::NOT_FOUND, &format!("Grant '{id}' not found")),
    }
}

/// What a body of `POST /confirmations/{id}` asks for.
struct Asked {
    confirms: bool,
    remember: Option<Remember>,
}

impl Asked {
    fn read(body: &Bytes) -> Result<Asked, &'static str> {
        let body: JsonObject = serde_json::from_slice(body).map_err(
            |_| "The body must be a JSON object: {\"confirm\": true} or {\"confirm\": false}",
        )?;
        let confirms = match body.get("confirm") {
            None => false,
            Some(Value::Bool(confirms)) => *confirms,
            Some(_) => return Err("`confirm` must be true or false"),
        };
        let remember = match body.get("remember") {
            None | Some(Value::Null) => None,
            Some(remember) => Some(remembered(remember).ok_or(
                "`remember` is such as {\"what\": \"call\", \"until\": \"session\"}: \"call\" or \"tool\", \"session\" or \"forever\"",
            )?),
        };
        Ok(Asked { confirms, remember })
    }

    async fn carry_out(self, app: &App, by: &CallOrigin, scope: Scope, id: &str) -> Response {
        let confirmations = app.gateway.confirmations();
        if !self.confirms {
            let denied = ConfirmationState::Denied;
            return match confirmations.decide(by, scope, id, denied, None).await {
                Ok(_) => Json(json!({
                    "status": "rejected",
                    "message": "Request was rejected by the user",
                }))
                .into_response(),
                Err(undecided) => refused(id, undecided),
            };
        }
        match app.gateway.confirm(by, scope, id, self.remember).await {
            Err(undecided) => refused(id, undecided),
            Ok((_, None)) => Json(json!({
                "status": "approved",
                "message": "The call is made when its client asks for it",
            }))
            .into_response(),
            Ok((_, Some(Ok(result)))) => Json(result).into_response(),
            Ok((confirmation, Some(Err(error)))) => failed(
                StatusCode::INTERNAL_SERVER_ERROR,
                &format!("Error executing tool {}: {error}", confirmation.tool),
            ),
        }
    }
}

fn remembered(remember: &Value) -> Option<Remember> {
    Some(Remember {
        whole_tool: match remember["what"].as_str()? {
            "call" => false,
            "tool" => true,
            _ => return None,
        },
        for_ever: match remember["until"].as_str()? {
            "session" => false,
            "forever" => true,
            _ => return None,
        },
    })
}

fn refused(id: &str, undecided: Undecided) -> Response {
    match undecided {
        Undecided::Unknown => unknown(id),
        Undecided::Expired => failed(
            StatusCode::GONE,
            &format!("Confirmation '{id}' has expired"),
        ),
        Undecided::NoSession => failed(
            StatusCode::BAD_REQUEST,
            "the call has no session for which it could be remembered",
        ),
    }
}

fn unknown(id: &str) -> Response {
    failed(
        StatusCode::NOT_FOUND,
        &format!("Confirmation '{id}' not found or expired"),
    )
}

fn failed(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": message}))).into_response()
}

fn written(confirmation: &Confirmation) -> Value {
    let arguments: Value = serde_json::from_str(&confirmation.arguments).unwrap_or_default();
    json!({
        "confirmation_id": confirmation.id,
        "state": confirmation.state,
        "name": confirmation.name,
        "server_id": confirmation.server,
        "tool_name": confirmation.tool,
        "arguments": arguments,
        "rule": confirmation.rule,
        "reason": confirmation.reason,
        "risk_level": confirmation.risk,
        "face": confirmation.face,
        "key": confirmation.key,
        "has_session": confirmation.session.is_some(),
        "created_at": rfc3339(confirmation.created),
        "expires_at": rfc3339(confirmation.expires),
    })
}

fn written_grant(grant: &Grant) -> Value {
    let arguments = grant.arguments.as_deref();
    let arguments: Option<Value> = arguments.and_then(|it| serde_json::from_str(it).ok());
    json!({
        "id": grant.id,
        "name": grant.name,
        "what": if grant.arguments.is_some() { "call" } else { "tool" },
        "until": if grant.session.is_some() { "session" } else { "forever" },
        "arguments": arguments,
        "created_at": rfc3339(grant.created),
    })
}
