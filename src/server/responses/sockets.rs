//! `GET /v1/responses` as a WebSocket: a connection on which one response is made after the other.
//!
//! Each `response.create` is a request of its own, with its id, its place and its line in the log, and is answered as
//! `POST /v1/responses` with `stream` is; the data of each event is a text. The connection knows its last response, so
//! that one with `store: false` can be continued, by its client and on this connection only.

use std::{borrow::Cow, future::ready, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, Uri, header},
    response::Response,
};
use futures::{StreamExt, future::BoxFuture};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    byte_budget::{ByteBudget, Reservation},
    gateway::failure::Failure,
    server::{
        App, REQUEST_ID,
        answer_stream::MAX_EVENT_BYTES,
        body, chat,
        connections::Connection,
        dialects, error,
        face::{self, Face, now, refused},
        front,
        websocket::{self, CloseReason, Gone, Socket},
    },
    upstream::read_text,
};
use toolway_core::translate::dialect::{
    AnswerWriter, Unsupported,
    responses::{ResponseWriter, continue_from, read_request},
};
use toolway_protocol::{
    openai::ErrorBody,
    sse::{Framer, SseEvent},
    tool::JsonObject,
};

/// How long a connection takes requests.
const LIFETIME: Duration = Duration::from_secs(60 * 60);

/// Most bytes of the conversations that all connections remember.
const MAX_REMEMBERED: usize = 64 << 20;

/// Longest error that is read, in bytes.
const MAX_ERROR: usize = 64 << 10;

/// The open connections.
pub(in crate::server) struct Sockets {
    stopping: CancellationToken,
    tasks: TaskTracker,
    /// The budget of what they remember.
    remembered: ByteBudget,
}

impl Sockets {
    pub(in crate::server) fn new() -> Sockets {
        Sockets {
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            remembered: ByteBudget::new(MAX_REMEMBERED),
        }
    }

    /// Ends each of them when its response has ended.
    pub(in crate::server) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Ends when all of them have ended.
    pub(in crate::server) async fn join(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// The request is for a connection here.
pub(in crate::server) fn is_meant(request: &Request) -> bool {
    request.method() == Method::GET && request.uri().path() == "/v1/responses"
}

/// Answers the request for a connection, which begins when this is sent.
pub(in crate::server) fn open(
    app: &Arc<App>,
    mut request: Request,
    connection: &Arc<Connection>,
) -> Response {
    let (response, upgrade) = match websocket::accept(&mut request) {
        Ok(accepted) => accepted,
        Err(failure) => return error::response(failure.into()),
    };
    let (parts, _) = request.into_parts();
    let session = Session {
        app: Arc::clone(app),
        connection: Arc::clone(connection),
        uri: parts.uri,
        id: id(&parts.headers),
        headers: of_requests(parts.headers),
        requests: 0,
        last: None,
    };
    let work = async move {
        // Without it the client left before it had its answer.
        if let Ok(upgraded) = upgrade.await {
            session.serve(TokioIo::new(upgraded)).await;
        }
    };
    connection.upgrade(Box::pin(app.sockets.tasks.track_future(work)));
    response
}

fn id(headers: &HeaderMap) -> String {
    let id = headers.get(&REQUEST_ID);
    let id = id.and_then(|id| id.to_str().ok());
    id.unwrap_or_default().to_owned()
}

/// The headers of each request on a connection: those that it began with, but for those of the handshake.
fn of_requests(mut headers: HeaderMap) -> HeaderMap {
    for name in [
        header::CONNECTION,
        header::UPGRADE,
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_VERSION,
        header::SEC_WEBSOCKET_EXTENSIONS,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::ACCEPT_ENCODING,
        header::CONTENT_ENCODING,
        header::TRANSFER_ENCODING,
    ] {
        headers.remove(name);
    }
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers
}

/// One connection.
struct Session {
    app: Arc<App>,
    connection: Arc<Connection>,
    uri: Uri,
    headers: HeaderMap,
    /// The id of the request that it began with.
    id: String,
    /// How many requests have come.
    requests: u64,
    /// The last response, if it is not stored.
    last: Option<Conversation>,
}

/// A conversation that only this connection knows.
#[derive(Debug)]
struct Conversation {
    /// The id of its last response.
    response: String,
    /// The stored response that it continues.
    base: Option<String>,
    /// Its items from there on: JSON, with commas between them.
    items: String,
    reservation: Reservation,
}

impl Conversation {
    /// Adds items; false if there is no room.
    fn add(&mut self, items: &[Value]) -> bool {
        for item in items {
            if !self.items.is_empty() {
                self.items.push(',');
            }
            self.items.push_str(&item.to_string());
        }
        self.reservation.grow_to(self.items.len())
    }
}

/// What a message asks for.
#[derive(Default)]
struct Create {
    /// The body of the request.
    body: String,
    /// The answer, where no model is asked.
    answer: Option<Response>,
    /// The response that it continues, if only this connection knows it.
    previous: Option<String>,
    /// Its input, if its response is to be remembered.
    remembered: Option<Conversation>,
}

impl Session {
    async fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(mut self, connection: S) {
        let (max, budget) = (self.app.config.max_body_bytes, self.app.bodies.clone());
        let mut socket = Socket::new(connection, max, budget);
        let stopping = self.app.sockets.stopping.clone();
        let mut lifetime = Box::pin(sleep(LIFETIME));
        let reason = loop {
            let received = tokio::select! {
                biased;
                () = stopping.cancelled() => break CloseReason::GoingAway,
                () = &mut lifetime => {
                    let message = "a connection takes requests for 60 minutes; open another one";
                    let code = "websocket_connection_limit_reached";
                    let error = ErrorBody::new("invalid_request_error", code, message);
                    socket.push(&error_event(400, &error));
                    break CloseReason::GoingAway;
                }
                received = socket.receive() => received,
            };
            let answered = match received {
                Ok(Ok(message)) => self.answer(&mut socket, message).await,
                Ok(Err(violation)) => break violation,
                Err(Gone) => Err(Gone),
            };
            if answered.is_err() {
                return;
            }
        };
        socket.close(reason).await;
    }

    /// Answers a message. If the client goes away, what runs for it is cancelled.
    async fn answer<S: AsyncRead + AsyncWrite + Send + 'static>(
        &mut self,
        socket: &mut Socket<S>,
        message: Bytes,
    ) -> Result<(), Gone> {
        let read = read_text(message.len(), || self.read(&message));
        drop(message);
        let mut create = read.unwrap_or_else(|failure| Create {
            answer: Some(error::response(failure.into())),
            ..Create::default()
        });
        let request = self.request(std::mem::take(&mut create.body));
        let own = create.answer.take();
        let work = |app: &Arc<App>, request, _: &_| -> BoxFuture<'static, Response> {
            match own {
                Some(answer) => Box::pin(ready(answer)),
                None => Box::pin(dialects::responses(State(Arc::clone(app)), request)),
            }
        };
        let ticket = self.connection.begin_whole();
        let answering = front::answer(Arc::clone(&self.app), request, ticket, work);
        let response = socket.run(answering).await?;
        match is_stream(&response) {
            true => self.stream(socket, response, create).await,
            false => refuse(socket, response).await,
        }
    }

    /// The request for a body.
    fn request(&mut self, body: String) -> Request {
        self.requests += 1;
        let mut headers = self.headers.clone();
        let id = format!("{}.{}", self.id, self.requests);
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(REQUEST_ID, id);
        }
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        request
    }

    fn read(&mut self, message: &[u8]) -> Result<Create, Failure> {
        let mut body = body::read_object(message)?;
        if body.shift_remove("type") != Some("response.create".into()) {
            let message = "the `type` of a message is `response.create`";
            return Err(invalid("type", message));
        }
        if body.shift_remove("background") == Some(Value::Bool(true)) {
            let message = "a response on a WebSocket is not in the background";
            return Err(invalid("background", message));
        }
        let generates = body.shift_remove("generate") != Some(Value::Bool(false));
        body.shift_remove("stream_options");
        body.insert("stream".to_owned(), true.into());
        let is_stored = body.get("store") != Some(&Value::Bool(false));
        let previous = body.get("previous_response_id").and_then(Value::as_str);
        let previous = previous.map(str::to_owned);
        let known = self
            .last
            .take_if(|it| Some(&it.response) == previous.as_ref());
        let is_known = known.is_some();
        if let Some(known) = known {
            self.continue_known(&mut body, known).map_err(refused)?;
        }
        let has_conversation = body.get("conversation").is_some_and(|it| !it.is_null());
        let remembered = match (is_stored && generates) || has_conversation {
            true => None,
            false => self.remember(&mut body).map_err(refused)?,
        };
        let mut create = Create {
            previous: previous.filter(|_| is_known),
            remembered,
            ..Create::default()
        };
        match generates {
            true => create.body = Value::Object(body).to_string(),
            false => create.answer = Some(self.prepared(body).map_err(refused)?),
        }
        Ok(create)
    }

    /// Puts a conversation before the input of a request.
    fn continue_known(
        &self,
        body: &mut JsonObject,
        known: Conversation,
    ) -> Result<(), Unsupported> {
        match known.base {
            Some(base) => body.insert("previous_response_id".to_owned(), base.into()),
            None => body.shift_remove("previous_response_id"),
        };
        let items = serde_json::from_str(&format!("[{}]", known.items));
        let mut items: Vec<Value> = items.unwrap_or_default();
        let is_native =
            face::model(body).is_some_and(|it| Face::Responses.is_native(&self.app, it));
        if is_native {
            // The upstream does not know what it has not stored.
            items.retain(|it| it["type"] != "reasoning" || it["encrypted_content"].is_string());
        }
        continue_from(body, items)
    }

    /// The conversation so far; none if there is no room for it.
    fn remember(&self, body: &mut JsonObject) -> Result<Option<Conversation>, Unsupported> {
        continue_from(body, Vec::new())?;
        let base = body.get("previous_response_id").and_then(Value::as_str);
        let mut conversation = Conversation {
            response: String::new(),
            base: base.map(str::to_owned),
            items: String::new(),
            reservation: self.app.sockets.remembered.take_nothing(),
        };
        let input = body.get("input").and_then(Value::as_array);
        let has_room = conversation.add(input.map_or(&[], Vec::as_slice));
        Ok(has_room.then_some(conversation))
    }

    /// A response without output, for a request that is only to be remembered (`generate: false`).
    fn prepared(&self, body: JsonObject) -> Result<Response, Unsupported> {
        let read = read_request(body, &|_, _| None, false)?;
        let id = format!(
            "{:016x}{:016x}",
            self.app.gateway.seed(),
            self.app.gateway.seed()
        );
        let mut events = Vec::new();
        ResponseWriter::new(read.resource, read.names, id, now()).finish(&mut events);
        Ok(chat::respond(
            events.into(),
            HeaderMap::new(),
            "text/event-stream",
        ))
    }

    /// Sends the events of a response, and remembers it when it is complete.
    async fn stream<S: AsyncRead + AsyncWrite + Send + 'static>(
        &mut self,
        socket: &mut Socket<S>,
        response: Response,
        mut create: Create,
    ) -> Result<(), Gone> {
        let mut pieces = response.into_body().into_data_stream();
        let mut framer = Framer::new(MAX_EVENT_BYTES);
        let mut is_over = false;
        while let Some(Ok(piece)) = socket.run(pieces.next()).await? {
            framer.push(piece);
            while let Some(Ok(event)) = framer.next() {
                let Some(data) = event.data().filter(|data| data != "[DONE]") else {
                    continue;
                };
                let kind = kind(&event, &data);
                is_over |= matches!(
                    &*kind,
                    "response.completed" | "response.incomplete" | "response.failed" | "error"
                );
                match self.translated(&kind, &data, &mut create) {
                    Some(changed) => socket.push(&changed),
                    None => socket.push(&data),
                }
            }
        }
        if !is_over {
            let (status, error) = match self.app.gateway.ending().is_cancelled() {
                true => (503, error::in_band(Failure::ShuttingDown)),
                false => {
                    let message = "the upstream ended its answer before it was complete";
                    (
                        502,
                        ErrorBody::new("server_error", "upstream_broken", message),
                    )
                }
            };
            socket.push(&error_event(status, &error));
        }
        socket.run(ready(())).await
    }

    /// An event that tells of a response, if it is to be changed. The last one is remembered.
    fn translated(&mut self, kind: &str, data: &str, create: &mut Create) -> Option<String> {
        let is_complete = matches!(kind, "response.completed" | "response.incomplete");
        let is_begun = matches!(
            kind,
            "response.created" | "response.queued" | "response.in_progress"
        );
        let is_continued = create.previous.is_some();
        if !is_complete && !(is_continued && (is_begun || kind == "response.failed")) {
            return None;
        }
        let mut event: Value = read_text(data.len(), || serde_json::from_str(data)).ok()?;
        if is_complete {
            let response = &event["response"];
            let output = response["output"].as_array();
            self.last = create.remembered.take().and_then(|mut conversation| {
                conversation.response = response["id"].as_str()?.to_owned();
                let has_room = conversation.add(output.map_or(&[], Vec::as_slice));
                has_room.then_some(conversation)
            });
        }
        let response = event.get_mut("response").and_then(Value::as_object_mut)?;
        let previous = create.previous.as_deref()?.into();
        response.insert("previous_response_id".to_owned(), previous);
        Some(event.to_string())
    }
}

/// The type of an event.
fn kind<'e>(event: &'e SseEvent, data: &str) -> Cow<'e, str> {
    if let Some(name) = event.name() {
        return Cow::Borrowed(name);
    }
    let data: Value = serde_json::from_str(data).unwrap_or_default();
    Cow::Owned(data["type"].as_str().unwrap_or_default().to_owned())
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let kind = kind.map_or(&b""[..], HeaderValue::as_bytes);
    response.status().is_success() && kind.starts_with(b"text/event-stream")
}

/// Sends an answer that is no stream as an error.
async fn refuse<S: AsyncRead + AsyncWrite + Send + 'static>(
    socket: &mut Socket<S>,
    response: Response,
) -> Result<(), Gone> {
    let status = response.status().as_u16();
    let reading = Limited::new(response.into_body(), MAX_ERROR).collect();
    let body = socket.run(reading).await?;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let error = ErrorBody::from_upstream(status, None, &body);
    let status = if status < 400 { 502 } else { status };
    socket.push(&error_event(status, &error));
    socket.run(ready(())).await
}

/// An error that is not of a response that has begun.
fn error_event(status: u16, error: &ErrorBody) -> String {
    let mut event = error.to_value();
    event["type"] = "error".into();
    event["status"] = status.into();
    event.to_string()
}

fn invalid(param: &str, message: &str) -> Failure {
    refused(Unsupported {
        param: param.to_owned(),
        message: message.to_owned(),
        code: "invalid_value",
    })
}
