//! MCP servers added, changed, restarted and removed over REST, with MCP Bridge's fields and status codes
//! (docs/rest.md).
//!
//! Every request here is checked by [`guard::administers`], and one with a body says that it is JSON, so that no web page
//! can send it without being asked first.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode, header},
};
use serde_json::{Value, json};

use crate::gateway::{Gateway, servers::ChangeError};
use toolway_protocol::tool::JsonObject;

use super::{
    App, guard,
    servers::{self, RestError},
};

type Answer = Result<(StatusCode, Json<Value>), RestError>;

impl From<ChangeError> for RestError {
    fn from(error: ChangeError) -> RestError {
        let status = match error {
            ChangeError::Invalid(_) => StatusCode::BAD_REQUEST,
            ChangeError::Unknown(_) => StatusCode::NOT_FOUND,
            ChangeError::Taken(_) | ChangeError::Configured(_) | ChangeError::TooMany => {
                StatusCode::CONFLICT
            }
            ChangeError::NotStarted { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        RestError::new(status, error.to_string())
    }
}

/// `POST /servers`.
pub(super) async fn add(State(app): State<Arc<App>>, request: Request) -> Answer {
    let mut body = definition(&app, request).await?;
    let name = body.shift_remove("id");
    let name = name.as_ref().and_then(Value::as_str).unwrap_or_default();
    let is_reached = ["command", "url"].iter().any(|key| body.contains_key(*key));
    if name.is_empty() || !is_reached {
        let message = "Server ID and command are required";
        return Err(RestError::new(StatusCode::BAD_REQUEST, message));
    }
    let definition = in_our_words(body)?;
    let name = name.to_owned();
    let health = complete(&app, |gateway| async move {
        gateway.add_server(&name, definition).await
    })
    .await?;
    let mut added = json!({"id": health.server.as_str(), "status": "connected", "pid": health.pid});
    servers::show_risk(&mut added, &health);
    Ok((StatusCode::CREATED, Json(added)))
}

/// `PATCH /servers/{id}`: a merge patch for the definition.
pub(super) async fn change(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let patch = in_our_words(definition(&app, request).await?)?;
    let health = complete(&app, |gateway| async move {
        gateway.change_server(&id, patch).await
    })
    .await?;
    Ok((StatusCode::OK, Json(servers::described(&health))))
}

/// `DELETE /servers/{id}`.
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Answer {
    check(&app, &headers)?;
    complete(
        &app,
        |gateway| async move { gateway.remove_server(&id).await },
    )
    .await?;
    Ok((StatusCode::OK, Json(json!({"status": "disconnected"}))))
}

/// `POST /servers/{id}/restart`.
pub(super) async fn restart(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Answer {
    check(&app, &headers)?;
    app.gateway.restart_server(&id)?;
    Ok((StatusCode::ACCEPTED, Json(json!({"status": "restarting"}))))
}

/// Makes a change to its end, even if the client leaves.
async fn complete<T: Send + 'static, F>(
    app: &App,
    change: impl FnOnce(Arc<Gateway>) -> F,
) -> Result<T, RestError>
where
    F: Future<Output = Result<T, ChangeError>> + Send + 'static,
{
    let made = tokio::spawn(change(Arc::clone(&app.gateway))).await;
    let failed = |_| RestError::new(StatusCode::INTERNAL_SERVER_ERROR, "the change was not made");
    Ok(made.map_err(failed)??)
}

fn check(app: &App, headers: &HeaderMap) -> Result<(), RestError> {
    match guard::administers(&app.config, headers) {
        true => Ok(()),
        false => Err(RestError::new(
            StatusCode::FORBIDDEN,
            "servers are changed with a key that has `admin = true`, or on loopback where there are no keys, and not by \
             pages of other origins",
        )),
    }
}

/// The body of a request that may change servers.
async fn definition(app: &App, request: Request) -> Result<JsonObject, RestError> {
    let (parts, body) = request.into_parts();
    check(app, &parts.headers)?;
    let kind = parts.headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_json = ["application/json", "application/merge-patch+json"];
    if !is_json.iter().any(|it| kind.eq_ignore_ascii_case(it)) {
        let message = "the body needs `Content-Type: application/json`";
        return Err(RestError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    servers::read(app, &parts.headers, body).await
}

/// MCP Bridge's `riskLevel` and `docker` as `risk` and `isolation`.
fn in_our_words(mut definition: JsonObject) -> Result<JsonObject, RestError> {
    let invalid = |message: String| RestError::new(StatusCode::BAD_REQUEST, message);
    let docker = definition.shift_remove("docker");
    if let Some(level) = definition.shift_remove("riskLevel") {
        if !matches!(level.as_i64(), Some(1..=3)) {
            return Err(invalid(format!(
                "Invalid risk level: {level}. Valid values are: 1 (low), 2 (medium), 3 (high)"
            )));
        }
        let image = docker.as_ref().map(|docker| &docker["image"]);
        if level == 3 && !image.is_some_and(Value::is_string) {
            let message = "Docker configuration with 'image' property is required for high risk level servers";
            return Err(invalid(message.to_owned()));
        }
        definition.insert("risk".to_owned(), level);
    }
    if let Some(docker) = docker {
        let mut isolation = json!({"kind": "docker"});
        for (theirs, ours) in [
            ("image", "image"),
            ("network", "network"),
            ("volumes", "mounts"),
        ] {
            if let Some(value) = docker.get(theirs) {
                isolation[ours] = value.clone();
            }
        }
        definition.insert("isolation".to_owned(), isolation);
    }
    Ok(definition)
}
