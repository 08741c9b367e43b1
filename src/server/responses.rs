//! `/v1/responses/{id}`: responses that were kept. Read `dialects` for how one is made.
//!
//! What is not kept here may be kept by the upstream, which is asked for it.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Request, State},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{App, dialects::refused, error, forward, headers};
use crate::{gateway::failure::Failure, store::responses::KeptResponse};
use toolway_core::translate::dialect::{Unsupported, responses::PageQuery};

/// Answers `GET /v1/responses/{id}`.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    with(app, &id, request, |kept| {
        Json(kept.response).into_response()
    })
    .await
}

/// Answers `DELETE /v1/responses/{id}`.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let principal = headers::principal(request.headers());
    match app.gateway.entries().remove_response(principal, &id).await {
        true => Json(json!({"id": id, "object": "response", "deleted": true})).into_response(),
        false => forward::forward(State(app), request).await,
    }
}

/// Answers `GET /v1/responses/{id}/input_items`.
pub(super) async fn input_items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let query = page_query(&request);
    with(app, &id, request, |kept| page(query, kept.input)).await
}

/// Which page of a list the parameters of a request ask for.
pub(super) fn page_query(request: &Request) -> Result<PageQuery, Unsupported> {
    let query = request.uri().query().unwrap_or_default();
    PageQuery::read(url::form_urlencoded::parse(query.as_bytes()))
}

/// Answers with a page of items.
pub(super) fn page(query: Result<PageQuery, Unsupported>, items: Vec<Value>) -> Response {
    match query.and_then(|query| query.page(items)) {
        Ok(page) => Json(page).into_response(),
        Err(unsupported) => error::response(refused(unsupported).into()),
    }
}

/// Answers with a response that is kept here, or has the upstream answer.
async fn with(
    app: Arc<App>,
    id: &str,
    request: Request,
    answer: impl FnOnce(KeptResponse) -> Response,
) -> Response {
    let principal = headers::principal(request.headers());
    let mut reservation = app.bodies.take_nothing();
    let mut reserve = |bytes| reservation.grow_to(bytes);
    let entries = app.gateway.entries();
    let found = entries.find_response(principal, id, &mut reserve).await;
    match found {
        Ok(Some(kept)) => answer(kept),
        Ok(None) => forward::forward(State(app), request).await,
        Err(_) => error::response(Failure::OverBudget.into()),
    }
}
