//! `GET /policy/explain`: what would happen to a call, and which rule says so (docs/policy.md).

use std::sync::Arc;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::Value;

use toolway_core::translate::calls;

use super::{App, guard, servers::RestError};

/// The call that is asked about.
#[derive(Deserialize)]
pub(super) struct Asked {
    /// The offered name of the tool.
    tool: Option<String>,
    /// Its arguments, as a JSON text.
    args: Option<String>,
    /// The name of the client's key, if it is not that of the request.
    key: Option<String>,
}

/// Answers `GET /policy/explain`. Who may not change servers is told of its own calls only.
pub(super) async fn explain(
    State(app): State<Arc<App>>,
    asked: Result<Query<Asked>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<Value>, RestError> {
    let invalid = |message: String| RestError::new(StatusCode::BAD_REQUEST, message);
    let Query(asked) = asked.map_err(|error| invalid(error.body_text()))?;
    let name = asked.tool.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| invalid("`tool` is missing".to_owned()))?;
    let arguments = calls::parse_arguments(asked.args.as_deref().unwrap_or_default())
        .map_err(|error| invalid(format!("`args` is no JSON object: {error}")))?;
    let own = guard::position(&app.config, &headers);
    let is_admin = guard::administers(&app.config, &headers);
    let key = match asked.key {
        None => own,
        Some(name) => {
            let found = app.gateway.key_of(&name);
            let allowed = found.filter(|found| is_admin || Some(*found) == own);
            let refused = || {
                let message = format!("there is no key `{name}`, or it is not yours to ask about");
                RestError::new(StatusCode::FORBIDDEN, message)
            };
            Some(allowed.ok_or_else(refused)?)
        }
    };
    app.gateway.wait_for_start().await;
    let catalog = match is_admin {
        true => app.gateway.catalog(),
        false => app.gateway.catalog_of(key),
    };
    let tool = catalog.find(&name).ok_or_else(|| {
        let message = format!("Tool '{name}' not found");
        RestError::new(StatusCode::NOT_FOUND, message)
    })?;
    Ok(Json(app.gateway.explain(tool, &arguments, key).to_json()))
}
