//! `/v1/conversations`: conversations that requests of `/v1/responses` name and add to. One that is not kept here may be
//! kept by the upstream, which is asked for it.
//!
//! A conversation is changed by one request at a time.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json,
    extract::{Path, Request, State},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{
    App, body,
    face::{Face, Received, failed, now, page, page_query, receive, refused},
    forward, headers,
};
use crate::{
    gateway::failure::Failure,
    store::{Principal, conversations::KeptConversation},
    upstream::read_text,
};
use toolway_core::translate::dialect::{
    Unsupported,
    responses::{conversation_items, list, read_metadata, read_new_items},
};
use toolway_protocol::tool::JsonObject;

/// Whose conversation it is, and its id.
type Key = (Principal, String);

/// The conversations that are being changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversations(Arc<Mutex<HashSet<Key>>>);

impl Conversations {
    /// Keeps others from changing a conversation.
    ///
    /// # Errors
    /// When another request changes it now.
    pub(super) fn lock(&self, principal: Principal, id: &str) -> Result<Locked, Unsupported> {
        let key = (principal, id.to_owned());
        match self.table().insert(key.clone()) {
            true => Ok(Locked {
                all: self.clone(),
                key,
            }),
            false => Err(Unsupported {
                param: "conversation".to_owned(),
                message: "another request is using this conversation; wait until it has ended"
                    .to_owned(),
                code: "conversation_locked",
            }),
        }
    }

    fn table(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A conversation that nobody else changes while this lives.
#[derive(Debug)]
pub(super) struct Locked {
    all: Conversations,
    key: Key,
}

impl Locked {
    /// Adds items to the conversation, if it is still there.
    pub(super) async fn append(&self, app: &App, items: Vec<Value>) {
        let (principal, id) = &self.key;
        let entries = app.gateway.entries();
        // The request that adds them has read as much before.
        let mut reserve = |_| true;
        let found = entries.find_conversation(*principal, id, &mut reserve);
        if let Ok(Some(mut kept)) = found.await {
            let before = kept.items.len();
            kept.items
                .extend(conversation_items(items, &new_id(app, "item")));
            if length(&kept.items) > app.config.max_body_bytes {
                // With them no request could name it any more.
                kept.items.truncate(before);
                tracing::warn!(id, "A conversation is full: the last response is not in it");
            }
            entries.keep_conversation(*principal, &kept).await;
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.all.table().remove(&self.key);
    }
}

/// The bytes of items as JSON.
fn length(items: &[Value]) -> usize {
    items.iter().map(|it| it.to_string().len()).sum()
}

fn new_id(app: &App, prefix: &str) -> String {
    let (first, second) = (app.gateway.seed(), app.gateway.seed());
    format!("{prefix}_{first:016x}{second:016x}")
}

/// Answers `POST /v1/conversations`.
pub(super) async fn create(State(app): State<Arc<App>>, request: Request) -> Response {
    let received = match receive(&app, request, Face::Responses).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let made = read(&received).and_then(|mut body| {
        let items = read_new_items(body.shift_remove("items")).map_err(refused)?;
        Ok(KeptConversation {
            id: new_id(&app, "conv"),
            created_at: now(),
            metadata: read_metadata(body.shift_remove("metadata")).map_err(refused)?,
            items: conversation_items(items, &new_id(&app, "item")),
        })
    });
    match made {
        Ok(kept) => {
            let entries = app.gateway.entries();
            entries.keep_conversation(received.principal(), &kept).await;
            Json(kept.resource()).into_response()
        }
        Err(failure) => failed(Face::Responses, failure),
    }
}

/// The members of a body; none of an empty one.
fn read(received: &Received) -> Result<JsonObject, Failure> {
    match received.body.is_empty() {
        true => Ok(JsonObject::new()),
        false => read_text(received.body.len(), || body::read_object(&received.body)),
    }
}

/// Answers `GET /v1/conversations/{id}`.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    with(app, &id, request, |kept| {
        Json(kept.resource()).into_response()
    })
    .await
}

/// Answers `GET /v1/conversations/{id}/items`.
pub(super) async fn items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let query = page_query(&request);
    with(app, &id, request, |kept| page(query, kept.items)).await
}

/// Answers `GET /v1/conversations/{id}/items/{item}`.
pub(super) async fn item(
    State(app): State<Arc<App>>,
    Path((id, item)): Path<(String, String)>,
    request: Request,
) -> Response {
    with(app, &id, request, |kept| {
        let found = kept.items.into_iter().find(|it| it["id"] == *item);
        match found {
            Some(found) => Json(found).into_response(),
            None => failed(Face::Responses, unknown_item(&item)),
        }
    })
    .await
}

/// Answers with a conversation that is kept here, or has the upstream answer.
async fn with(
    app: Arc<App>,
    id: &str,
    request: Request,
    answer: impl FnOnce(KeptConversation) -> Response,
) -> Response {
    match find(&app, headers::principal(request.headers()), id).await {
        Ok(Some(kept)) => answer(kept),
        Ok(None) => forward::forward(State(app), request).await,
        Err(failure) => failed(Face::Responses, failure),
    }
}

async fn find(
    app: &App,
    principal: Principal,
    id: &str,
) -> Result<Option<KeptConversation>, Failure> {
    let mut reservation = app.bodies.take_nothing();
    let mut reserve = |bytes| reservation.grow_to(bytes);
    let entries = app.gateway.entries();
    let found = entries.find_conversation(principal, id, &mut reserve).await;
    found.map_err(|_| Failure::OverBudget)
}

/// Answers `POST /v1/conversations/{id}`: other metadata.
pub(super) async fn update(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    change(app, &id, request, |_, kept, mut body| {
        kept.metadata = read_metadata(body.shift_remove("metadata")).map_err(refused)?;
        Ok(kept.resource())
    })
    .await
}

/// Answers `POST /v1/conversations/{id}/items`.
pub(super) async fn add(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    change(app, &id, request, |app, kept, mut body| {
        let new = read_new_items(body.shift_remove("items")).map_err(refused)?;
        let new = conversation_items(new, &new_id(app, "item"));
        let taken = |it: &Value| kept.items.iter().any(|old| old["id"] == it["id"]);
        if new.iter().any(taken) {
            let message = "the conversation has an item of this id already";
            return Err(invalid("items", message.to_owned()));
        }
        kept.items.extend(new.iter().cloned());
        if length(&kept.items) > app.config.max_body_bytes {
            let message = "the conversation would be longer than `max_body_bytes`";
            return Err(invalid("items", message.to_owned()));
        }
        Ok(list(&new, false))
    })
    .await
}

/// Answers `DELETE /v1/conversations/{id}/items/{item}`.
pub(super) async fn remove_item(
    State(app): State<Arc<App>>,
    Path((id, item)): Path<(String, String)>,
    request: Request,
) -> Response {
    change(app, &id, request, |_, kept, _| {
        let before = kept.items.len();
        kept.items.retain(|it| it["id"] != *item);
        match kept.items.len() < before {
            true => Ok(kept.resource()),
            false => Err(unknown_item(&item)),
        }
    })
    .await
}

/// Answers `DELETE /v1/conversations/{id}`.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let principal = headers::principal(request.headers());
    let _locked = match app.conversations.lock(principal, &id) {
        Ok(locked) => locked,
        Err(unsupported) => return failed(Face::Responses, refused(unsupported)),
    };
    let entries = app.gateway.entries();
    match entries.remove_conversation(principal, &id).await {
        true => Json(json!({"id": id, "object": "conversation.deleted", "deleted": true}))
            .into_response(),
        false => forward::forward(State(app), request).await,
    }
}

/// Changes a conversation that is kept here, or has the upstream do so.
async fn change(
    app: Arc<App>,
    id: &str,
    request: Request,
    change: impl FnOnce(&App, &mut KeptConversation, JsonObject) -> Result<Value, Failure>,
) -> Response {
    let received = match receive(&app, request, Face::Responses).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    match changed(&app, id, &received, change).await {
        Ok(Some(answer)) => Json(answer).into_response(),
        Ok(None) => forward::forward(State(app), received.into_request()).await,
        Err(failure) => failed(Face::Responses, failure),
    }
}

async fn changed(
    app: &App,
    id: &str,
    received: &Received,
    change: impl FnOnce(&App, &mut KeptConversation, JsonObject) -> Result<Value, Failure>,
) -> Result<Option<Value>, Failure> {
    let principal = received.principal();
    let _locked = app.conversations.lock(principal, id).map_err(refused)?;
    let Some(mut kept) = find(app, principal, id).await? else {
        return Ok(None);
    };
    let answer = change(app, &mut kept, read(received)?)?;
    app.gateway
        .entries()
        .keep_conversation(principal, &kept)
        .await;
    Ok(Some(answer))
}

fn unknown_item(id: &str) -> Failure {
    let message = format!("Item with id '{id}' not found.");
    Failure::Request {
        message,
        param: Some("item_id".to_owned()),
        code: "item_not_found",
    }
}

fn invalid(param: &str, message: String) -> Failure {
    Failure::Request {
        message,
        param: Some(param.to_owned()),
        code: "invalid_value",
    }
}
