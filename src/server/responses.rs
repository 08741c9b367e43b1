//! What is below `/v1/responses`: responses that were kept or run in the background. Read `dialects` for how one is made.
//!
//! What is not kept here may be kept by the upstream, which is asked for it.

pub(super) mod background;
pub(super) mod keep;
pub(super) mod read;
pub(super) mod sockets;

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderMap, request::Parts},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use self::background::{Run, Start};
use super::{
    App,
    answer_stream::{FaceWriter, Writing},
    asked::{AnswerMode, Asked},
    body, chat,
    error::{self, Refusal},
    face::{Face, failed, has_route, model, page, page_query, receive, refused},
    forward, guard, headers,
    mcp_items::Making,
    request_log::RequestLog,
};
use crate::{
    gateway::{failure::Failure, record::Record},
    store::responses::KeptResponse,
    upstream::read_text,
};
use toolway_core::{
    agent::parked::NoRoom,
    translate::dialect::responses::{
        References, StreamQuery, expand, for_upstream, interrupted, is_unfinished,
    },
};
use toolway_protocol::tool::JsonObject;

/// Answers `POST /v1/responses` with `background`: at once, or with the events, which the client may leave.
pub(super) async fn create_in_background(app: Arc<App>, parts: Parts, asked: Asked) -> Response {
    if let Some(record) = parts.extensions.get::<Arc<Record>>()
        && let Some(warning) = asked.original.warning()
        && !Face::Responses.is_native(&app, &asked.model)
    {
        record.warn(&warning);
    }
    let holder = guard::holder_of(&app.config, parts.uri.path(), &parts.headers);
    let place = match app.runs.place(holder) {
        Ok(place) => place,
        Err(refusal) => return refusal.into_response(),
    };
    let key = guard::position(&app.config, &parts.headers);
    let ended = RequestLog::of_background(Arc::clone(&app), key);
    let input = asked.input(&app, &parts.headers, Some(ended.record()));
    let mut input = match input {
        Ok(input) => input,
        Err(failure) => return error::response(failure.into()),
    };
    drop(parts);
    let (
        FaceWriter::Response(Writing {
            mut writer,
            mut keep,
        }),
        AnswerMode::Background { is_streamed },
    ) = (asked.writer, asked.mode)
    else {
        return Refusal::Internal.into_response();
    };
    let making = match asked.shown {
        Some(shown) => {
            let shows = shown.show(&app, &mut input, &mut writer, &mut keep);
            let selected = shows.await;
            shown.making(&app, input, selected).await
        }
        None => Making::nothing(&app, input),
    };
    let start = Start {
        app: Arc::clone(&app),
        making,
        model: asked.model,
        writer: *writer,
        keep,
        place,
        ended,
    };
    let run = app.runs.start(start).await;
    match is_streamed {
        true => events(&app, run, 0),
        false => Json(run.response().await).into_response(),
    }
}

/// Answers `GET /v1/responses/{id}`.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let from = match StreamQuery::read(url::form_urlencoded::parse(query.as_bytes())) {
        Ok(query) => query.from,
        Err(unsupported) => return error::response(refused(unsupported).into()),
    };
    let principal = headers::principal(request.headers());
    match (app.runs.find(principal, &id), from) {
        (Some(run), Some(from)) => events(&app, run, from),
        (Some(run), None) => Json(run.response().await).into_response(),
        (None, Some(_)) => with(app, &id, request, |_| {
            let message =
                "the events of this response are not kept, or no longer; get it without `stream`";
            invalid("stream", message.to_owned())
        })
        .await,
        (None, None) => with(app, &id, request, |kept| Json(ended(kept)).into_response()).await,
    }
}

/// A response that does not run.
fn ended(kept: KeptResponse) -> JsonObject {
    match is_unfinished(&kept.response) {
        true => interrupted(kept.response),
        false => kept.response,
    }
}

/// The events of a response from this number on.
fn events(app: &App, run: Arc<Run>, from: u64) -> Response {
    match run.events(from, app.gateway.keepalive()) {
        Ok(events) => {
            let body = Body::from_stream(events);
            chat::respond(body, HeaderMap::new(), "text/event-stream")
        }
        Err(expired) => invalid("starting_after", expired.to_string()),
    }
}

fn invalid(param: &str, message: String) -> Response {
    let failure = Failure::Request {
        message,
        param: Some(param.to_owned()),
        code: "invalid_value",
    };
    error::response(failure.into())
}

/// Answers `POST /v1/responses/{id}/cancel`. One that has ended stays as it is.
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let principal = headers::principal(request.headers());
    if let Some(run) = app.runs.find(principal, &id) {
        run.cancel().await;
        return Json(run.response().await).into_response();
    }
    with(app, &id, request, |kept| {
        match kept.response.get("background") {
            Some(Value::Bool(true)) => Json(ended(kept)).into_response(),
            _ => invalid(
                "id",
                "only a response in the background can be cancelled".to_owned(),
            ),
        }
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
    app.runs.remove(principal, &id);
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

/// Answers `POST /v1/responses/compact`, which only an upstream that speaks Responses can: what it makes is for its own
/// eyes.
pub(super) async fn compact(State(app): State<Arc<App>>, request: Request) -> Response {
    let face = Face::Responses;
    let mut received = match receive(&app, request, face).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let body = read_text(received.body.len(), || body::read_object(&received.body));
    let mut body = match body {
        Ok(body) => body,
        Err(failure) => return failed(face, failure),
    };
    let Some(model) = model(&body).map(str::to_owned) else {
        return invalid("model", "`model` is missing".to_owned());
    };
    if app.gateway.models().choose(&model).is_none() {
        return failed(face, Failure::ModelNotFound { model });
    }
    let why = format!(
        "the upstream of `{model}` does not speak Responses, and only such an upstream compacts"
    );
    if !face.is_native(&app, &model) {
        return invalid("model", why);
    }
    let references = References::of(&body);
    if !references.is_empty() {
        let principal = received.principal();
        match read::find_earlier(&app, principal, references).await {
            Ok(found) => {
                // What is not here may be at the upstream.
                if expand(&mut body, found.earlier, app.config.max_body_bytes).is_ok() {
                    body.shift_remove("previous_response_id");
                    body.shift_remove("conversation");
                    if let Some(Value::Array(items)) = body.get_mut("input") {
                        *items = for_upstream(std::mem::take(items));
                    }
                    received.replace(body);
                }
            }
            Err(NoRoom) => return failed(face, Failure::OverBudget),
        }
    }
    let response = forward::forward(State(app), received.into_request()).await;
    match has_route(&response) {
        true => response,
        false => invalid("model", why),
    }
}
