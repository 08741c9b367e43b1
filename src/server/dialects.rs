//! `POST /v1/responses` and `POST /v1/messages`: chats of clients that speak another API than chat completions.
//!
//! A request becomes a chat and goes through the same loop; the answer is translated on its way back. Where the upstream
//! speaks the client's API and no tool is offered, requests are forwarded untouched.

use std::sync::Arc;

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{
    App,
    answer_stream::{ChatEvents, FaceWriter, Translated, Writing, read_chat},
    asked::{AnswerMode, Asked, Unread, Unreadable},
    body, chat as chat_face, error,
    face::{
        Face, Received, ask_for_events, estimate, failed, has_route, has_tools, model, plain,
        receive, refused, write_chat,
    },
    forward, headers, mcp_items,
    responses::{self, read::request as read_response},
};
use crate::{
    gateway::{chat::ChatResponse, failure::Failure, record::Record},
    store::Principal,
    upstream::{
        model::{Api, Original},
        read_text,
    },
};
use toolway_core::translate::dialect::{
    AnswerWriter,
    anthropic::{self, MessageWriter},
};
use toolway_protocol::tool::JsonObject;

/// Answers `POST /v1/responses`.
pub(super) async fn responses(State(app): State<Arc<App>>, request: Request) -> Response {
    complete(app, request, Face::Responses).await
}

/// Answers `POST /v1/messages`.
pub(super) async fn messages(State(app): State<Arc<App>>, request: Request) -> Response {
    complete(app, request, Face::Messages).await
}

/// Answers `POST /v1/messages/count_tokens` with an estimate: four bytes of the request count as a token. Where the
/// upstream is Anthropic's, it counts itself.
pub(super) async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    let face = Face::Messages;
    let received = match receive(&app, request, face).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let body = body::read_object(&received.body).unwrap_or_default();
    let estimated = estimate(&received.body);
    if model(&body).is_some_and(|model| face.is_native(&app, model)) {
        let response = forward::forward(State(app), received.into_request()).await;
        // Other servers that speak Messages seldom count.
        if has_route(&response) {
            return response;
        }
    }
    Json(json!({"input_tokens": estimated})).into_response()
}

/// Answers `POST /v1/responses/input_tokens` with an estimate. With no tool offered, an upstream that
/// speaks Responses counts itself.
pub(super) async fn input_tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    let face = Face::Responses;
    let received = match receive(&app, request, face).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let asked = read(&app, face, received.principal(), &received.body).await;
    let model = match &asked {
        Ok(asked) => Some(asked.model.as_str()),
        Err(unreadable) => unreadable.model.as_deref(),
    };
    let is_native = model.is_some_and(|model| face.is_native(&app, model));
    let is_untouched = is_native
        && match &asked {
            Ok(asked) => {
                let headers = &received.parts.headers;
                asked.needs_nothing(&app, headers, None).await
            }
            Err(_) => !has_tools(&app, &received.parts.headers).await,
        };
    if is_untouched {
        let response = forward::forward(State(Arc::clone(&app)), received.into_request()).await;
        if has_route(&response) {
            return response;
        }
    }
    match asked {
        Ok(asked) => {
            let tokens = estimate(&asked.chat);
            let counted = json!({"object": "response.input_tokens", "input_tokens": tokens});
            Json(counted).into_response()
        }
        Err(unreadable) => failed(face, unreadable.failure),
    }
}

/// Claude Code asks with HEAD whether anybody is there.
pub(super) async fn greet() -> StatusCode {
    StatusCode::OK
}

async fn complete(app: Arc<App>, request: Request, face: Face) -> Response {
    let Received { parts, body } = match receive(&app, request, face).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let principal = headers::principal(&parts.headers);
    let translated = read(&app, face, principal, &body).await;
    let (model, is_elsewhere) = match &translated {
        Ok(asked) => (Some(asked.model.as_str()), false),
        // What toolway cannot translate, the upstream may still understand.
        Err(unreadable) => (unreadable.model.as_deref(), unreadable.is_elsewhere),
    };
    let is_native = model.is_some_and(|model| face.is_native(&app, model));
    let record = parts.extensions.get::<Arc<Record>>();
    let is_untouched = is_native
        && match &translated {
            Ok(asked) => asked.needs_nothing(&app, &parts.headers, record).await,
            Err(_) => is_elsewhere || !has_tools(&app, &parts.headers).await,
        };
    if is_untouched {
        if is_elsewhere && has_tools(&app, &parts.headers).await {
            record.inspect(|record| {
                record.warn("the upstream keeps this conversation: gateway tools were not offered");
            });
        }
        let request = Request::from_parts(parts.clone(), Body::from(body));
        let response = forward::forward(State(Arc::clone(&app)), request).await;
        if has_route(&response) || (translated.is_err() && !is_elsewhere) {
            return response;
        }
    }
    match translated {
        Ok(asked) if asked.mode != AnswerMode::Foreground => {
            responses::create_in_background(app, parts, asked).await
        }
        Ok(asked) => answer(app, parts, face, asked).await,
        Err(unreadable) => failed(face, unreadable.failure),
    }
}

/// Sends the chat through the gateway, and its answer back in the client's words.
async fn answer(app: Arc<App>, mut parts: Parts, face: Face, asked: Asked) -> Response {
    let record = parts.extensions.remove::<Arc<Record>>();
    if face == Face::Messages {
        headers::move_key(&mut parts.headers);
    }
    let mut input = match asked.input(&app, &parts.headers, record) {
        Ok(input) => input,
        Err(failure) => return failed(face, failure),
    };
    drop(parts);
    let writer = match (asked.writer, asked.shown) {
        (FaceWriter::Response(writing), Some(shown)) => {
            return mcp_items::answer(app, input, writing, *shown).await;
        }
        (FaceWriter::Response(writing), None) => Some(writing),
        (FaceWriter::Message, _) => None,
    };
    let principal = input.principal;
    input.is_whole = asked.is_whole;
    // These APIs have no place for it.
    input.progress = None;
    match app.gateway.chat(input).await {
        Ok(ChatResponse::Plain { headers, body }) => {
            let deltas = read_text(body.len(), || read_chat(body.clone()));
            let written = match writer {
                None => anthropic::write_message(deltas),
                Some(writing) => writing.write_whole(&app, principal, deltas).await,
            };
            plain(face, headers, written)
        }
        Ok(ChatResponse::Stream { headers, body }) => {
            let (writer, keep): (Box<dyn AnswerWriter>, _) = match writer {
                None => (Box::new(MessageWriter::default()), None),
                Some(Writing { writer, keep }) => (writer, Some((keep, app, principal))),
            };
            let body = Translated {
                events: ChatEvents::new(body),
                piece: Vec::new(),
                writer,
                keep,
            };
            chat_face::respond(
                Body::from_stream(body.into_stream()),
                headers,
                "text/event-stream",
            )
        }
        Err(failure) => error::response_in(failure, face.form()),
    }
}

/// Reads a request of a client.
async fn read(
    app: &App,
    face: Face,
    principal: Principal,
    body: &Bytes,
) -> Result<Asked, Unreadable> {
    let object = read_text(body.len(), || body::read_object(body));
    let object = object.map_err(|failure| Unreadable {
        model: None,
        failure,
        is_elsewhere: false,
    })?;
    let model = model(&object).map(str::to_owned);
    let read = match face {
        Face::Responses => {
            let model = model.as_deref();
            let is_native = model.is_some_and(|model| face.is_native(app, model));
            read_response(app, principal, object, body, is_native).await
        }
        Face::Messages => read_text(body.len(), || read_message(app, object, body)),
    };
    read.map_err(|unread| match unread {
        Unread::Unsupported(unsupported) => Unreadable {
            model,
            is_elsewhere: matches!(
                unsupported.code,
                "previous_response_not_found" | "conversation_not_found" | "item_not_found"
            ),
            failure: refused(unsupported),
        },
        Unread::NoRoom => Unreadable {
            model,
            is_elsewhere: false,
            failure: Failure::OverBudget,
        },
    })
}

fn read_message(app: &App, object: JsonObject, body: &Bytes) -> Result<Asked, Unread> {
    let anthropic::Read {
        mut request,
        dropped,
        deferred,
    } = anthropic::read_request(object)?;
    let is_whole = ask_for_events(app, &mut request);
    Ok(Asked {
        chat: write_chat(&request),
        original: Original {
            api: Api::Anthropic,
            body: body.clone(),
            left_out: dropped,
            deferred,
        },
        model: request.model,
        writer: FaceWriter::Message,
        is_here: false,
        mode: AnswerMode::Foreground,
        is_whole,
        max_tool_calls: None,
        shown: None,
    })
}
