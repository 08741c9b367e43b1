//! `POST /v1/responses` and `POST /v1/messages`: chats of clients that speak another API than chat completions.
//!
//! A request becomes a chat and goes through the same loop; the answer is translated on its way back. Where the upstream
//! speaks the client's API and no tool is offered, requests are forwarded untouched.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};

use crate::{
    gateway::{chat::Answer, failure::Failure, record::Record, sink},
    store::{
        Principal,
        responses::{KeptResponse, OfClient},
    },
    upstream::{model::Api, read_text},
};
use toolway_core::translate::dialect::{
    self, AnswerWriter, Delta, Unsupported,
    anthropic::{self, MessageWriter},
    chat::{self, ChunkReader},
    responses::{self, ResponseWriter, ToolNames},
};
use toolway_protocol::{
    openai::ErrorBody,
    sse::{Event, Framer},
    tool::JsonObject,
};

use super::{App, body, chat as chat_face, error, forward, headers};

/// Longest event that the gateway writes, in bytes.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// The API of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Face {
    Responses,
    Messages,
}

/// The path is one of Anthropic's API, so that refusals have its form.
pub(super) fn is_messages(path: &str) -> bool {
    path.starts_with("/v1/messages")
}

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
    let (parts, body) = request.into_parts();
    let body = match body::receive(&app, &parts.headers, body, app.config.max_body_bytes).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response_in(Face::Messages.form()),
    };
    let model = body::read_object(&body)
        .ok()
        .and_then(|body| Some(body.get("model")?.as_str()?.to_owned()));
    if model.is_some_and(|model| Face::Messages.is_native(&app, &model)) {
        return forward::forward(State(app), Request::from_parts(parts, Body::from(body))).await;
    }
    Json(json!({"input_tokens": body.len().div_ceil(4)})).into_response()
}

/// Answers `GET /v1/responses/{id}`; what is not kept here may be kept by the upstream.
pub(super) async fn show_response(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    match app
        .responses
        .find(headers::principal(request.headers()), &id)
    {
        Some(kept) => Json(kept.response).into_response(),
        None => forward::forward(State(app), request).await,
    }
}

/// Answers `DELETE /v1/responses/{id}`.
pub(super) async fn delete_response(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    match app
        .responses
        .remove(headers::principal(request.headers()), &id)
    {
        true => Json(json!({"id": id, "object": "response", "deleted": true})).into_response(),
        false => forward::forward(State(app), request).await,
    }
}

/// Answers `GET /v1/responses/{id}/input_items`, all on one page.
pub(super) async fn input_items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    match app
        .responses
        .find(headers::principal(request.headers()), &id)
    {
        Some(kept) => {
            let items: Vec<Value> = kept.input.into_iter().rev().collect();
            let end = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
            let (first, last) = (end(items.first()), end(items.last()));
            let list = json!({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": false});
            Json(list).into_response()
        }
        None => forward::forward(State(app), request).await,
    }
}

/// Claude Code asks with HEAD whether anybody is there.
pub(super) async fn greet() -> StatusCode {
    StatusCode::OK
}

async fn complete(app: Arc<App>, request: Request, face: Face) -> Response {
    let (parts, body) = request.into_parts();
    let body = match body::receive(&app, &parts.headers, body, app.config.max_body_bytes).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response_in(face.form()),
    };
    let translated = read_text(body.len(), || {
        face.read(&app, headers::principal(&parts.headers), &body)
    });
    let (model, is_elsewhere) = match &translated {
        Ok(asked) => (Some(asked.model.as_str()), false),
        // What toolway cannot translate, the upstream may still understand.
        Err(unreadable) => (unreadable.model.as_deref(), unreadable.is_elsewhere),
    };
    if app.gateway.catalog().offered().is_empty() {
        app.gateway.wait_for_start().await;
    }
    let has_tools = !app.gateway.catalog().offered().is_empty();
    let is_native = model.is_some_and(|model| face.is_native(&app, model));
    if is_native && (!has_tools || is_elsewhere) {
        if let Some(record) = parts.extensions.get::<Arc<Record>>().filter(|_| has_tools) {
            record.warn("the upstream keeps this conversation: gateway tools were not offered");
        }
        let request = Request::from_parts(parts.clone(), Body::from(body));
        let response = forward::forward(State(Arc::clone(&app)), request).await;
        let has_route = !matches!(response.status().as_u16(), 404 | 405 | 501);
        if has_route || (translated.is_err() && !is_elsewhere) {
            return response;
        }
    }
    match translated {
        Ok(asked) => answer(app, parts, face, asked).await,
        Err(unreadable) => failed(face, unreadable.failure),
    }
}

/// Sends the chat through the gateway, and its answer back in the client's words.
async fn answer(app: Arc<App>, mut parts: Parts, face: Face, asked: Asked) -> Response {
    let record = parts.extensions.remove::<Arc<Record>>();
    if let Some(record) = &record {
        for warning in &asked.warnings {
            record.warn(warning);
        }
    }
    if face == Face::Messages {
        headers::move_key(&mut parts.headers);
    }
    let input = match chat_face::input(&app, &parts.headers, asked.chat, record) {
        Ok(input) => input,
        Err(failure) => return failed(face, failure),
    };
    drop(parts);
    let principal = input.principal;
    match app.gateway.chat(input).await {
        Ok(Answer::Plain { headers, body }) => {
            let written = read_text(body.len(), || {
                asked.writer.write_whole(&app, principal, read_chat(&body))
            });
            plain(face, headers, written)
        }
        Ok(Answer::Stream { headers, body }) => {
            let (writer, keep) = asked.writer.into_stream();
            let body = Translated {
                body,
                framer: Framer::new(MAX_EVENT_BYTES),
                reader: ChunkReader::default(),
                writer,
                keep: keep.map(|keep| (keep, app, principal)),
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

/// What a whole answer of the gateway says.
fn read_chat(body: &[u8]) -> Vec<Delta> {
    match serde_json::from_slice(body) {
        Ok(chat) => ChunkReader::default().read(chat),
        Err(error) => {
            let error = ErrorBody::new("server_error", "internal_error", error.to_string());
            vec![Delta::Failed(error)]
        }
    }
}

fn plain(face: Face, headers: HeaderMap, written: Result<JsonObject, Box<ErrorBody>>) -> Response {
    match written {
        Ok(body) => {
            let body = Body::from(Value::Object(body).to_string());
            chat_face::respond(body, headers, "application/json")
        }
        Err(error) => {
            let body = Json(face.form()(502, &error));
            (StatusCode::BAD_GATEWAY, body).into_response()
        }
    }
}

fn failed(face: Face, failure: Failure) -> Response {
    error::response_in(failure.into(), face.form())
}

/// A request in the words of chat completions.
struct Asked {
    model: String,
    chat: Bytes,
    warnings: Vec<String>,
    writer: Writer,
}

/// A request that cannot be translated.
struct Unreadable {
    model: Option<String>,
    failure: Failure,
    /// It refers to what toolway does not keep; the upstream may.
    is_elsewhere: bool,
}

impl Face {
    /// How errors are written.
    fn form(self) -> error::Form {
        match self {
            Face::Responses => |_, error| error.to_value(),
            Face::Messages => anthropic::write_error,
        }
    }

    /// Every upstream that may answer speaks this API, so that a request needs no translation where toolway has nothing
    /// to add.
    fn is_native(self, app: &App, model: &str) -> bool {
        app.gateway.models().all_of(model, |upstream| match self {
            Face::Responses => matches!(upstream.api, Api::Auto | Api::Responses),
            Face::Messages => upstream.api == Api::Anthropic,
        })
    }

    fn read(self, app: &App, principal: Principal, body: &[u8]) -> Result<Asked, Unreadable> {
        let mut body = body::read_object(body).map_err(|failure| Unreadable {
            model: None,
            failure,
            is_elsewhere: false,
        })?;
        let model = body.get("model").and_then(Value::as_str).map(str::to_owned);
        let is_native = model
            .as_deref()
            .is_some_and(|model| self.is_native(app, model));
        let translated = match self {
            Face::Responses => {
                let earlier = OfClient(&app.responses, principal);
                responses::expand(&mut body, &earlier, app.config.max_body_bytes).and_then(
                    |input| {
                        let id = format!("{:016x}{:016x}", app.gateway.seed(), app.gateway.seed());
                        read_response(body, input, id)
                    },
                )
            }
            Face::Messages => anthropic::read_request(body, is_native)
                .map(|(request, dropped)| (request, dropped, Writer::Message)),
        };
        let (request, dropped, writer) = translated.map_err(|unsupported| Unreadable {
            model: model.clone(),
            is_elsewhere: matches!(
                unsupported.code,
                "previous_response_not_found" | "item_not_found"
            ),
            failure: refused(unsupported),
        })?;
        let warnings = match dropped.is_empty() {
            true => Vec::new(),
            false => vec![format!(
                "not understood and left out: {}",
                dropped.join(", ")
            )],
        };
        Ok(Asked {
            model: model.unwrap_or_default(),
            chat: write_chat(&request),
            warnings,
            writer,
        })
    }
}

fn read_response(
    body: JsonObject,
    input: Vec<Value>,
    id: String,
) -> Result<(dialect::Request, Vec<String>, Writer), Unsupported> {
    let read = responses::read_request(body)?;
    let previous = read
        .resource
        .get("previous_response_id")
        .and_then(Value::as_str);
    let is_kept = read.resource.get("store") != Some(&Value::Bool(false));
    let keep = is_kept.then(|| Keep {
        previous: previous.map(str::to_owned),
        input: named(input, &id),
    });
    let writer = Writer::Response {
        resource: read.resource,
        names: read.names,
        id,
        keep,
    };
    Ok((read.request, read.dropped, writer))
}

/// Items with an id each, because clients name them by it.
fn named(mut items: Vec<Value>, id: &str) -> Vec<Value> {
    for (at, item) in items.iter_mut().enumerate() {
        if item.is_object() && item.get("id").is_none() {
            item["id"] = format!("in_{id}_{at}").into();
        }
    }
    items
}

fn refused(unsupported: Unsupported) -> Failure {
    Failure::Request {
        message: unsupported.message,
        param: Some(unsupported.param),
        code: unsupported.code,
    }
}

/// The body of the chat. A stream always tells its tokens, because these APIs do.
fn write_chat(request: &dialect::Request) -> Bytes {
    let mut chat = chat::write_request(request);
    if !dialect::thinks(&request.model) {
        chat.shift_remove("reasoning_effort");
    }
    if request.stream {
        chat.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    Value::Object(chat).to_string().into()
}

/// What writes the answer.
enum Writer {
    Message,
    Response {
        resource: JsonObject,
        names: ToolNames,
        id: String,
        keep: Option<Keep>,
    },
}

/// A response that is kept when it is complete.
struct Keep {
    previous: Option<String>,
    input: Vec<Value>,
}

impl Keep {
    fn keep(self, app: &App, principal: Principal, response: JsonObject) {
        let Keep { previous, input } = self;
        let kept = KeptResponse {
            previous,
            input,
            response,
        };
        app.responses.keep(principal, kept);
    }
}

impl Writer {
    fn into_stream(self) -> (Box<dyn AnswerWriter>, Option<Keep>) {
        match self {
            Writer::Message => (Box::new(MessageWriter::default()), None),
            Writer::Response {
                resource,
                names,
                id,
                keep,
            } => (
                Box::new(ResponseWriter::new(resource, names, id, now())),
                keep,
            ),
        }
    }

    fn write_whole(
        self,
        app: &App,
        principal: Principal,
        deltas: Vec<Delta>,
    ) -> Result<JsonObject, Box<ErrorBody>> {
        match self {
            Writer::Message => anthropic::write_message(deltas),
            Writer::Response {
                resource,
                names,
                id,
                keep,
            } => {
                let writer = ResponseWriter::new(resource, names, id, now());
                let response = writer.write_response(deltas)?;
                if let Some(keep) = keep {
                    keep.keep(app, principal, response.clone());
                }
                Ok(response)
            }
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A streamed answer that is translated while it is written.
struct Translated {
    body: sink::Body,
    framer: Framer,
    reader: ChunkReader,
    writer: Box<dyn AnswerWriter>,
    keep: Option<(Keep, Arc<App>, Principal)>,
}

impl Translated {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        stream::unfold(self, |mut translated| async {
            let piece = translated.next().await?;
            Some((Ok(piece), translated))
        })
    }

    /// The next events; those of one piece go out in one write, because some clients lose an event that is torn.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let Ok(piece) = self.body.next().await?;
            self.framer.push(piece);
            let mut out = Vec::new();
            while let Some(Ok(event)) = self.framer.next() {
                self.write(&event, &mut out);
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }

    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if event.is_comment() {
            out.extend_from_slice(event.raw());
            return;
        }
        let Some(data) = event.data() else {
            return;
        };
        if data == "[DONE]" {
            self.writer.finish(out);
            if let (Some(response), Some((keep, app, principal))) =
                (self.writer.kept(), self.keep.take())
            {
                keep.keep(&app, principal, response);
            }
            return;
        }
        let chunk = serde_json::from_str::<JsonObject>(&data);
        for delta in chunk.map_or_else(|_| Vec::new(), |chunk| self.reader.read(chunk)) {
            self.writer.write(delta, out);
        }
    }
}
