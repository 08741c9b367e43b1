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
    byte_budget::Reservation,
    gateway::{chat::ChatResponse, failure::Failure, record::Record, sink},
    store::{Principal, responses::KeptResponse},
    upstream::{model::Api, read_text},
};
use toolway_core::{
    agent::parked::NoRoom,
    translate::dialect::{
        self, AnswerWriter, Delta, GatewayCall, Unsupported,
        anthropic::{self, MessageWriter},
        chat::{self, ChunkReader},
        responses::{self, Earlier, References, ResponseWriter},
    },
};
use toolway_protocol::{
    openai::ErrorBody,
    sse::{Framer, SseEvent},
    tool::{JsonObject, ServerId},
};

use super::{
    App, body, chat as chat_face, error, forward, headers,
    mcp_items::{self, Shown},
};

/// Longest event that the gateway writes, in bytes.
pub(super) const MAX_EVENT_BYTES: usize = 64 << 20;

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

/// Answers `POST /v1/responses/input_tokens` in the same way. With no tool offered, an upstream that speaks Responses
/// counts itself.
pub(super) async fn input_tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    let face = Face::Responses;
    let received = match receive(&app, request, face).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let asked = face.read(&app, received.principal(), &received.body).await;
    let model = match &asked {
        Ok(asked) => Some(asked.model.as_str()),
        Err(unreadable) => unreadable.model.as_deref(),
    };
    let has_tools = !app.gateway.catalog().offered().is_empty();
    let is_here = asked.as_ref().is_ok_and(|asked| asked.is_here);
    if !has_tools && !is_here && model.is_some_and(|model| face.is_native(&app, model)) {
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

fn estimate(body: &[u8]) -> usize {
    body.len().div_ceil(4)
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
    let cannot = |message: String| {
        let param = Some("model".to_owned());
        let code = "unsupported_model";
        failed(
            face,
            Failure::Request {
                message,
                param,
                code,
            },
        )
    };
    let Some(model) = model(&body).map(str::to_owned) else {
        return cannot("`model` is missing".to_owned());
    };
    if app.gateway.models().choose(&model).is_none() {
        return failed(face, Failure::ModelNotFound { model });
    }
    let why = format!(
        "the upstream of `{model}` does not speak Responses, and only such an upstream compacts"
    );
    if !face.is_native(&app, &model) {
        return cannot(why);
    }
    let references = References::of(&body);
    if !references.is_empty() {
        let principal = received.principal();
        match find_earlier(&app, principal, references).await {
            Ok(found) => {
                // What is not here may be at the upstream.
                if responses::expand(&mut body, found.earlier, app.config.max_body_bytes).is_ok() {
                    body.shift_remove("previous_response_id");
                    if let Some(Value::Array(items)) = body.get_mut("input") {
                        *items = responses::for_upstream(std::mem::take(items));
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
        false => cannot(why),
    }
}

/// An upstream has an answer of its own, be it an error, and not merely no such path.
fn has_route(response: &Response) -> bool {
    !matches!(response.status().as_u16(), 404 | 405 | 501)
}

fn model(body: &JsonObject) -> Option<&str> {
    body.get("model").and_then(Value::as_str)
}

/// A request whose body has come.
struct Received {
    parts: Parts,
    body: Bytes,
}

impl Received {
    fn principal(&self) -> Principal {
        headers::principal(&self.parts.headers)
    }

    /// Gives it another body.
    fn replace(&mut self, body: JsonObject) {
        self.body = Value::Object(body).to_string().into();
        let length = self.body.len().into();
        self.parts.headers.insert(header::CONTENT_LENGTH, length);
    }

    fn into_request(self) -> Request {
        Request::from_parts(self.parts, Body::from(self.body))
    }
}

async fn receive(app: &App, request: Request, face: Face) -> Result<Received, Response> {
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
    if app.gateway.catalog().offered().is_empty() {
        app.gateway.wait_for_start().await;
    }
    let has_tools = !app.gateway.catalog().offered().is_empty();
    let is_native = model.is_some_and(|model| face.is_native(&app, model));
    let is_here = translated.as_ref().is_ok_and(|asked| asked.is_here);
    if is_native && !is_here && (!has_tools || is_elsewhere) {
        if let Some(record) = parts.extensions.get::<Arc<Record>>().filter(|_| has_tools) {
            record.warn("the upstream keeps this conversation: gateway tools were not offered");
        }
        let request = Request::from_parts(parts.clone(), Body::from(body));
        let response = forward::forward(State(Arc::clone(&app)), request).await;
        if has_route(&response) || (translated.is_err() && !is_elsewhere) {
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
    let writer = match asked.writer {
        Writer::Shown(writing, shown) => {
            return mcp_items::answer(app, input, writing, *shown).await;
        }
        Writer::Response(writing) => Some(writing),
        Writer::Message => None,
    };
    let principal = input.principal;
    match app.gateway.chat(input).await {
        Ok(ChatResponse::Plain { headers, body }) => {
            let deltas = read_text(body.len(), || read_chat(&body));
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
            let body = Translated::new(body, writer, keep).into_stream();
            chat_face::respond(Body::from_stream(body), headers, "text/event-stream")
        }
        Err(failure) => error::response_in(failure, face.form()),
    }
}

/// What a whole answer of the gateway says.
pub(super) fn read_chat(body: &[u8]) -> Vec<Delta> {
    match serde_json::from_slice(body) {
        Ok(chat) => ChunkReader::default().read(chat),
        Err(error) => {
            let error = ErrorBody::new("server_error", "internal_error", error.to_string());
            vec![Delta::Failed(error)]
        }
    }
}

pub(super) fn plain_response(
    headers: HeaderMap,
    written: Result<JsonObject, Box<ErrorBody>>,
) -> Response {
    plain(Face::Responses, headers, written)
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
    /// It refers to what toolway keeps, and the upstream does not.
    is_here: bool,
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
    fn form(self) -> error::ErrorForm {
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

    async fn read(self, app: &App, principal: Principal, body: &[u8]) -> Result<Asked, Unreadable> {
        let object = read_text(body.len(), || body::read_object(body));
        let object = object.map_err(|failure| Unreadable {
            model: None,
            failure,
            is_elsewhere: false,
        })?;
        let model = model(&object).map(str::to_owned);
        let read = match self {
            Face::Responses => read_response(app, principal, object, body.len()).await,
            Face::Messages => {
                let model = model.as_deref();
                let is_native = model.is_some_and(|model| self.is_native(app, model));
                read_text(body.len(), || read_message(object, is_native))
            }
        };
        read.map_err(|unread| match unread {
            Unread::Unsupported(unsupported) => Unreadable {
                model,
                is_elsewhere: matches!(
                    unsupported.code,
                    "previous_response_not_found" | "item_not_found"
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
enum Unread {
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

fn read_message(body: JsonObject, is_native: bool) -> Result<Asked, Unread> {
    let (request, dropped) = anthropic::read_request(body, is_native)?;
    Ok(Asked {
        chat: write_chat(&request),
        model: request.model,
        warnings: left_out(&dropped),
        writer: Writer::Message,
        is_here: false,
    })
}

/// Reads a request of `length` bytes, with what it refers to.
async fn read_response(
    app: &App,
    principal: Principal,
    mut body: JsonObject,
    length: usize,
) -> Result<Asked, Unread> {
    let catalog = app.gateway.catalog();
    let offered = |label: &str, name: &str| {
        let server = ServerId::parse(label).ok();
        let own = server.and_then(|server| catalog.find_own(&server, name));
        let tool = own.or_else(|| catalog.find(name))?;
        Some(tool.name.to_string())
    };
    let references = References::of(&body);
    let is_here = !references.is_empty();
    let found = find_earlier(app, principal, references).await?;
    let Found {
        earlier,
        ancestors,
        loaded,
        reservation,
    } = found;
    let id = format!("{:016x}{:016x}", app.gateway.seed(), app.gateway.seed());
    read_text(length + loaded, || {
        let input = responses::expand(&mut body, earlier, app.config.max_body_bytes)?;
        let mut read = responses::read_request(body, &offered)?;
        let keep = Keep {
            is_stored: read.resource.get("store") != Some(&Value::Bool(false)),
            ancestors,
            input: responses::with_ids(input, &format!("in_{id}")),
        };
        let writer = ResponseWriter::new(read.resource, read.names, id, now());
        let writing = Writing {
            writer: Box::new(writer),
            keep,
        };
        let is_streamed = read.request.stream;
        let is_shown = !read.mcp.labels.is_empty() || !read.mcp.approved.is_empty();
        // In a stream the order of texts and calls is kept, which a chat completion has no room for.
        read.request.stream |= is_shown;
        Ok(Asked {
            chat: body::held(write_chat(&read.request), reservation),
            model: read.request.model.clone(),
            warnings: left_out(&read.dropped),
            writer: match is_shown {
                false => Writer::Response(writing),
                true => Writer::Shown(
                    writing,
                    Box::new(Shown {
                        entries: read.mcp,
                        request: read.request,
                        is_streamed,
                    }),
                ),
            },
            is_here,
        })
    })
}

/// What a request refers to.
struct Found {
    earlier: Earlier,
    /// The responses that it continues.
    ancestors: Vec<String>,
    /// Bytes that were read.
    loaded: usize,
    /// Of the budget of bodies.
    reservation: Reservation,
}

async fn find_earlier(
    app: &App,
    principal: Principal,
    references: References,
) -> Result<Found, NoRoom> {
    let (mut reservation, mut loaded) = (app.bodies.take_nothing(), 0);
    let mut reserve = |bytes| {
        loaded += bytes;
        reservation.grow_to(loaded)
    };
    let entries = app.gateway.entries();
    let found = entries.find_earlier(principal, references, &mut reserve);
    let (earlier, ancestors) = found.await?;
    Ok(Found {
        earlier,
        ancestors,
        loaded,
        reservation,
    })
}

/// A warning where something was left out.
fn left_out(dropped: &[String]) -> Vec<String> {
    match dropped.is_empty() {
        true => Vec::new(),
        false => vec![format!(
            "not understood and left out: {}",
            dropped.join(", ")
        )],
    }
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
enum Writer {
    Message,
    Response(Writing),
    /// A response whose client sees the gateway's tools.
    Shown(Writing, Box<Shown>),
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
        let kept = self.keep.of(&*self.writer);
        kept.keep(app, principal).await;
        Ok(response)
    }
}

/// What is kept of a response when it is complete.
pub(super) struct Keep {
    /// Later requests may name it.
    is_stored: bool,
    ancestors: Vec<String>,
    input: Vec<Value>,
}

impl Keep {
    /// What is to be kept of an answer that is complete.
    fn of(self, writer: &dyn AnswerWriter) -> Kept {
        let response = self.is_stored.then(|| writer.kept()).flatten();
        Kept {
            asked: writer.asked(),
            response: response.map(|response| KeptResponse {
                ancestors: self.ancestors,
                input: self.input,
                response,
            }),
        }
    }
}

/// What is kept before the client reads the end of its answer.
struct Kept {
    /// The calls that it is asked to approve.
    asked: Vec<GatewayCall>,
    response: Option<KeptResponse>,
}

impl Kept {
    async fn keep(self, app: &App, principal: Principal) {
        app.gateway.ask_for_approval(principal, &self.asked).await;
        if let Some(response) = &self.response {
            let entries = app.gateway.entries();
            entries.keep_response(principal, response).await;
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A streamed answer that is translated while it is written.
pub(super) struct Translated {
    body: sink::ResponseBody,
    framer: Framer,
    reader: ChunkReader,
    writer: Box<dyn AnswerWriter>,
    keep: Option<(Keep, Arc<App>, Principal)>,
    is_complete: bool,
}

impl Translated {
    pub(super) fn new(
        body: sink::ResponseBody,
        writer: Box<dyn AnswerWriter>,
        keep: Option<(Keep, Arc<App>, Principal)>,
    ) -> Translated {
        Translated {
            body,
            framer: Framer::new(MAX_EVENT_BYTES),
            reader: ChunkReader::default(),
            writer,
            keep,
            is_complete: false,
        }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
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
            if self.is_complete
                && let Some((keep, app, principal)) = self.keep.take()
            {
                let kept = keep.of(&*self.writer);
                kept.keep(&app, principal).await;
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }

    fn write(&mut self, event: &SseEvent, out: &mut Vec<u8>) {
        if event.is_comment() {
            out.extend_from_slice(event.raw());
            return;
        }
        let Some(data) = event.data() else {
            return;
        };
        if data == "[DONE]" {
            self.writer.finish(out);
            self.is_complete = true;
            return;
        }
        let chunk = serde_json::from_str::<JsonObject>(&data);
        for delta in chunk.map_or_else(|_| Vec::new(), |chunk| self.reader.read(chunk)) {
            self.writer.write(delta, out);
        }
    }
}
