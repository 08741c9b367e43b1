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
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};

use crate::{
    gateway::{
        chat::{ChatInput, ChatResponse},
        failure::Failure,
        record::Record,
        sink,
    },
    store::Principal,
    upstream::{
        model::{Api, Original},
        read_text,
    },
};
use toolway_core::{
    agent::parked::NoRoom,
    translate::dialect::{
        self, AnswerWriter, Delta, Unsupported,
        anthropic::{self, MessageWriter},
        chat::{self, ChunkReader},
        responses::ResponseWriter,
    },
};
use toolway_protocol::{
    openai::ErrorBody,
    sse::{self, Framer, SseEvent},
    tool::JsonObject,
};

use super::{
    App, body, chat as chat_face, error, forward, headers,
    mcp_items::{self, Shown},
    responses::{
        self,
        read::{self, Keep},
    },
};

/// Longest event that the gateway writes, in bytes.
pub(super) const MAX_EVENT_BYTES: usize = 64 << 20;

/// Room for the events of one piece, which most have enough of.
const ROOM: usize = 512;

/// The API of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Face {
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
    let face = Face::Messages;
    let received = match receive(&app, request, face).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let body = body::read_object(&received.body).unwrap_or_default();
    if model(&body).is_some_and(|model| face.is_native(&app, model)) {
        return forward::forward(State(app), received.into_request()).await;
    }
    Json(json!({"input_tokens": estimate(&received.body)})).into_response()
}

pub(super) fn estimate(body: &[u8]) -> usize {
    body.len().div_ceil(4)
}

/// An upstream has an answer of its own, be it an error, and not merely no such path.
pub(super) fn has_route(response: &Response) -> bool {
    !matches!(response.status().as_u16(), 404 | 405 | 501)
}

pub(super) fn model(body: &JsonObject) -> Option<&str> {
    body.get("model").and_then(Value::as_str)
}

/// A request whose body has come.
pub(super) struct Received {
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

impl Received {
    pub(super) fn principal(&self) -> Principal {
        headers::principal(&self.parts.headers)
    }

    /// Gives it another body.
    pub(super) fn replace(&mut self, body: JsonObject) {
        self.body = Value::Object(body).to_string().into();
        let length = self.body.len().into();
        self.parts.headers.insert(header::CONTENT_LENGTH, length);
    }

    pub(super) fn into_request(self) -> Request {
        Request::from_parts(self.parts, Body::from(self.body))
    }
}

pub(super) async fn receive(app: &App, request: Request, face: Face) -> Result<Received, Response> {
    let (parts, body) = request.into_parts();
    let body = body::receive(app, &parts.headers, body, app.config.max_body_bytes).await;
    let body = body.map_err(|refusal| refusal.into_response_in(face.form()))?;
    Ok(Received { parts, body })
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
    let translated = face.read(&app, principal, &body).await;
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
            Err(_) => is_elsewhere || !has_tools(&app).await,
        };
    if is_untouched {
        if is_elsewhere && has_tools(&app).await {
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

/// The gateway offers tools.
pub(super) async fn has_tools(app: &App) -> bool {
    if app.gateway.catalog().offered().is_empty() {
        app.gateway.wait_for_start().await;
    }
    !app.gateway.catalog().offered().is_empty()
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

/// What a whole answer of the gateway says, be it one completion or the events of one.
pub(super) fn read_chat(body: Bytes) -> Vec<Delta> {
    let mut reader = ChunkReader::default();
    if sse::is_begun_by(&body) {
        let mut framer = Framer::new(MAX_EVENT_BYTES);
        framer.push(body);
        let events = std::iter::from_fn(|| framer.next()?.ok());
        let deltas = events.filter_map(|event| reader.read_event(&event.data()?));
        return deltas.flatten().collect();
    }
    match serde_json::from_slice(&body) {
        Ok(chat) => reader.read(chat),
        Err(error) => {
            let error = ErrorBody::new("server_error", "internal_error", error.to_string());
            vec![Delta::Failed(error)]
        }
    }
}

pub(super) fn plain(
    face: Face,
    headers: HeaderMap,
    written: Result<JsonObject, Box<ErrorBody>>,
) -> Response {
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

pub(super) fn failed(face: Face, failure: Failure) -> Response {
    error::response_in(failure.into(), face.form())
}

/// A request in the words of chat completions.
pub(super) struct Asked {
    pub(super) model: String,
    pub(super) chat: Bytes,
    /// The same in the client's words.
    pub(super) original: Original,
    pub(super) writer: FaceWriter,
    /// It refers to what toolway keeps, and the upstream does not.
    pub(super) is_here: bool,
    pub(super) mode: AnswerMode,
    /// The client wants no stream, though the chat asks for one, see [`Face::read`].
    pub(super) is_whole: bool,
    /// The client sees the gateway's tools.
    pub(super) shown: Option<Box<Shown>>,
}

impl Asked {
    /// The gateway would add nothing to it, so that an upstream of the client's API may have it as it came.
    pub(super) async fn needs_nothing(
        &self,
        app: &App,
        headers: &HeaderMap,
        record: Option<&Arc<Record>>,
    ) -> bool {
        if self.is_here || !has_tools(app).await {
            return !self.is_here;
        }
        if self.shown.is_some() {
            return false;
        }
        match self.input(app, headers, record.cloned()) {
            Ok(input) => app.gateway.adds_nothing(&input).await,
            Err(_) => false,
        }
    }

    /// The chat for the gateway.
    ///
    /// # Errors
    /// When a header is not valid.
    pub(super) fn input(
        &self,
        app: &App,
        headers: &HeaderMap,
        record: Option<Arc<Record>>,
    ) -> Result<ChatInput, Failure> {
        let mut input = chat_face::input(app, headers, self.chat.clone(), record)?;
        input.headers = input.headers.with_original(self.original.clone());
        Ok(input)
    }
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerMode {
    /// While its client waits.
    Foreground,
    /// Whether its client waits or not.
    Background { is_streamed: bool },
}

/// A request that cannot be translated.
pub(super) struct Unreadable {
    pub(super) model: Option<String>,
    pub(super) failure: Failure,
    /// It refers to what toolway does not keep; the upstream may.
    is_elsewhere: bool,
}

impl Face {
    /// How errors are written.
    fn form(self) -> error::ErrorForm {
        match self {
            Face::Responses => |_, error| error.to_value(),
            Face::Messages => anthropic::write_error,
        }
    }

    /// Every upstream that may answer speaks this API, so that a request needs no translation where toolway has nothing
    /// to add.
    pub(super) fn is_native(self, app: &App, model: &str) -> bool {
        app.gateway.models().all_of(model, |upstream| match self {
            Face::Responses => matches!(upstream.api, Api::Auto | Api::Responses),
            Face::Messages => upstream.api == Api::Anthropic,
        })
    }

    pub(super) async fn read(
        self,
        app: &App,
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
        let read = match self {
            Face::Responses => {
                let model = model.as_deref();
                let is_native = model.is_some_and(|model| self.is_native(app, model));
                read::request(app, principal, object, body, is_native).await
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
}

/// Why a request was not read.
pub(super) enum Unread {
    Unsupported(Unsupported),
    NoRoom,
}

impl From<Unsupported> for Unread {
    fn from(unsupported: Unsupported) -> Unread {
        Unread::Unsupported(unsupported)
    }
}

impl From<NoRoom> for Unread {
    fn from(_: NoRoom) -> Unread {
        Unread::NoRoom
    }
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
        shown: None,
    })
}

/// A chat completion has no room for the order of thoughts, texts and calls, but the events of a stream have. Where the
/// model's API keeps that order, the chat is a stream in any case. Whether the client wants none.
pub(super) fn ask_for_events(app: &App, request: &mut dialect::Request) -> bool {
    let is_whole = !request.stream && !app.gateway.models().is_asked_in_chat(&request.model);
    request.stream |= is_whole;
    is_whole
}

pub(super) fn refused(unsupported: Unsupported) -> Failure {
    Failure::Request {
        message: unsupported.message,
        param: Some(unsupported.param),
        code: unsupported.code,
    }
}

/// The body of the chat. A stream always tells its tokens, because these APIs do.
pub(super) fn write_chat(request: &dialect::Request) -> Bytes {
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
pub(super) enum FaceWriter {
    Message,
    Response(Writing),
}

/// A response that is being written.
pub(super) struct Writing {
    pub(super) writer: Box<ResponseWriter>,
    pub(super) keep: Keep,
}

impl Writing {
    /// The whole response, kept before the client can name it.
    pub(super) async fn write_whole(
        mut self,
        app: &App,
        principal: Principal,
        deltas: Vec<Delta>,
    ) -> Result<JsonObject, Box<ErrorBody>> {
        let response = self.writer.write_response(deltas)?;
        let asked = self.writer.asked();
        let keeping = self.keep.keep(app, principal, &asked, response.clone());
        keeping.await;
        Ok(response)
    }
}

pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What a stream of the gateway's says.
pub(super) enum ChatEvent {
    Comment(SseEvent),
    Deltas(Vec<Delta>),
    Done,
}

impl ChatEvent {
    fn is_failure(&self) -> bool {
        let is_failure = |delta: &Delta| matches!(delta, Delta::Failed(_));
        matches!(self, ChatEvent::Deltas(deltas) if deltas.iter().any(is_failure))
    }

    /// Appends the events for it.
    pub(super) fn write(self, writer: &mut dyn AnswerWriter, out: &mut Vec<u8>) {
        match self {
            ChatEvent::Comment(event) => out.extend_from_slice(event.raw()),
            ChatEvent::Deltas(deltas) => {
                for delta in deltas {
                    writer.write(delta, out);
                }
            }
            ChatEvent::Done => writer.finish(out),
        }
    }
}

/// A stream of the gateway's that is read as it comes.
pub(super) struct ChatEvents {
    body: sink::ResponseBody,
    framer: Framer,
    reader: ChunkReader,
}

impl ChatEvents {
    pub(super) fn new(body: sink::ResponseBody) -> ChatEvents {
        ChatEvents {
            body,
            framer: Framer::new(MAX_EVENT_BYTES),
            reader: ChunkReader::default(),
        }
    }

    /// The events of the next piece, of which there may be none.
    pub(super) async fn next(&mut self) -> Option<Vec<ChatEvent>> {
        let Ok(piece) = self.body.next().await?;
        self.framer.push(piece);
        let mut events = Vec::new();
        while let Some(Ok(event)) = self.framer.next() {
            events.extend(self.read(event));
        }
        Some(events)
    }

    fn read(&mut self, event: SseEvent) -> Option<ChatEvent> {
        if event.is_comment() {
            return Some(ChatEvent::Comment(event));
        }
        let data = event.data()?;
        if data == "[DONE]" {
            return Some(ChatEvent::Done);
        }
        self.reader.read_event(&data).map(ChatEvent::Deltas)
    }
}

/// A streamed answer that is translated while it is written.
pub(super) struct Translated {
    pub(super) events: ChatEvents,
    pub(super) writer: Box<dyn AnswerWriter>,
    /// What is kept of the answer when it is complete.
    pub(super) keep: Option<(Keep, Arc<App>, Principal)>,
}

impl Translated {
    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        stream::unfold(self, |mut translated| async {
            let piece = translated.next().await?;
            Some((Ok(piece), translated))
        })
    }

    /// The next events; those of one piece go out in one write, because some clients lose an event that is torn.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let mut out = Vec::with_capacity(ROOM);
            for event in self.events.next().await? {
                if event.is_failure() {
                    // A failed response is not kept, and its conversation is free before the client reads of it.
                    self.keep = None;
                }
                event.write(&mut *self.writer, &mut out);
            }
            if let Some(response) = self.writer.kept()
                && let Some((mut keep, app, principal)) = self.keep.take()
            {
                // Before the client can name it.
                let asked = self.writer.asked();
                keep.keep(&app, principal, &asked, response).await;
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }
}
