//! A scripted MCP server at a URL: Streamable HTTP of both eras, and HTTP+SSE.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use toolway::upstream::mcp::{Config, HttpKind, Transport};

use crate::harness::{id, scripted};

/// What a site does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// It answers `server/discover` with 2026-07-28 and knows no sessions.
    pub(crate) modern: bool,
    /// It answers 400 to a session it does not know, as servers on the TypeScript SDK do, and not 404.
    pub(crate) refuses_lost_sessions: bool,
    /// It answers in a stream of events, and not with JSON.
    pub(crate) answers_in_events: bool,
    /// It takes a while until it has read that a session is initialized, and refuses calls before, as servers on the
    /// Python SDK do.
    pub(crate) begins_slowly: bool,
    /// It keeps of an id no more than 32 bits, as servers on rmcp before 0.6.3 do.
    pub(crate) cuts_ids: bool,
    /// What it does on `server/discover`, unless `modern`.
    pub(crate) probe: Probe,
    /// The tools it lists, word for word; absent: one tool `act`.
    pub(crate) tools: Option<Value>,
    /// What it declares in the handshake; absent: tools.
    pub(crate) capabilities: Option<Value>,
    /// What the event stream of HTTP+SSE names as the endpoint.
    pub(crate) endpoint: Option<String>,
}

/// What an old server does on `server/discover`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Probe {
    #[default]
    BadRequest,
    ServerError,
    Html,
    Silence,
}

/// A running site.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    server: JoinHandle<()>,
}

/// What a site got, and its state.
#[derive(Default)]
pub(crate) struct Seen {
    script: Script,
    messages: Mutex<Vec<(HeaderMap, Value)>>,
    /// Counts the sessions; the last one is valid.
    sessions: AtomicUsize,
    /// The last session that was initialized.
    initialized: AtomicUsize,
    /// A call that hung was given up by its client.
    pub(crate) hang_was_dropped: AtomicBool,
    /// Where events that belong to no request go.
    listeners: Mutex<Vec<mpsc::UnboundedSender<String>>>,
    tools: Mutex<Option<Value>>,
    /// Calls that wait for the client's answer to a question, by the id of the question.
    asked: Mutex<HashMap<String, oneshot::Sender<Value>>>,
    /// What comes on the streams that are resumed from these events.
    broken_off: Mutex<HashMap<String, mpsc::UnboundedReceiver<String>>>,
}

impl Site {
    pub(crate) async fn start(script: Script) -> Site {
        Site::start_at("127.0.0.1:0".parse().expect("an address"), script).await
    }

    pub(crate) async fn start_at(address: SocketAddr, script: Script) -> Site {
        let tools = Mutex::new(script.tools.clone());
        let seen = Arc::new(Seen {
            script,
            tools,
            ..Seen::default()
        });
        let app = Router::new()
            .route(
                "/mcp",
                post(streamable)
                    .get(listen)
                    .delete(|| async { StatusCode::OK }),
            )
            .route("/sse", get(event_stream))
            .route("/messages", post(message))
            .route("/moved", post(moved))
            .route("/v1", any(other_api))
            .with_state(Arc::clone(&seen));
        let listener = bind(address).await;
        let address = listener.local_addr().expect("the listener has an address");
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Site {
            address,
            seen,
            server,
        }
    }

    /// The configuration of this site as the server `s`.
    pub(crate) fn config(&self, path: &str, kind: Option<HttpKind>) -> Config {
        let url = format!("http://{}{path}", self.address)
            .parse()
            .expect("a URL");
        let transport = Transport::Http {
            url,
            headers: Vec::new(),
            kind,
        };
        Config {
            server: id("s"),
            transport,
            ..scripted(json!({}))
        }
    }

    /// Takes the site down, open connections included.
    pub(crate) async fn stop(self) -> SocketAddr {
        self.server.abort();
        let _ = self.server.await;
        self.seen.listeners.lock().unwrap().clear();
        self.address
    }

    /// Somebody waits for events that belong to no request.
    pub(crate) fn is_listened_to(&self) -> bool {
        let listeners = self.seen.listeners.lock().unwrap();
        listeners.iter().any(|listener| !listener.is_closed())
    }

    /// The messages with this method, with their headers.
    pub(crate) fn got(&self, method: &str) -> Vec<(HeaderMap, Value)> {
        let messages = self.seen.messages.lock().unwrap();
        messages
            .iter()
            .filter(|(_, message)| message["method"] == method)
            .cloned()
            .collect()
    }
}

/// Binds an address that may have been in use a moment ago.
async fn bind(address: SocketAddr) -> TcpListener {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("the option can be set");
    socket.bind(address).expect("the address is free");
    socket.listen(64).expect("the socket listens")
}

async fn streamable(State(seen): State<Arc<Seen>>, headers: HeaderMap, body: Bytes) -> Response {
    let mut message: Value = serde_json::from_slice(&body).expect("the client writes JSON");
    seen.messages
        .lock()
        .unwrap()
        .push((headers.clone(), message.clone()));
    if seen.script.cuts_ids {
        seen.cut_ids(&mut message);
    }
    let id = message["id"].clone();
    let method = message["method"].as_str().unwrap_or_default();
    let is_handshake = matches!(method, "initialize" | "server/discover");
    if !seen.script.modern && !is_handshake && !seen.knows(&headers) {
        if !seen.script.refuses_lost_sessions {
            return StatusCode::NOT_FOUND.into_response();
        }
        let error = json!({"code": -32000, "message": "Bad Request: No valid session ID provided"});
        let body = json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
        let json = [(header::CONTENT_TYPE, "application/json")];
        return (StatusCode::BAD_REQUEST, json, body).into_response();
    }
    let version = &message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
    if seen.script.modern && !is_handshake && !id.is_null() && version != "2026-07-28" {
        let error = json!({"code": -32022, "message": "unsupported", "data": {"supported": ["2026-07-28"]}});
        let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
        let json = [(header::CONTENT_TYPE, "application/json")];
        return (StatusCode::BAD_REQUEST, json, body).into_response();
    }
    match method {
        "server/discover" if seen.script.modern => seen.reply(discovered(&id)),
        "server/discover" => seen.refuse_probe().await,
        "initialize" if !seen.script.modern => {
            let number = seen.sessions.fetch_add(1, Ordering::Relaxed) + 1;
            let mut hello = initialized(&id, "2025-06-18");
            if let Some(capabilities) = &seen.script.capabilities {
                hello["result"]["capabilities"] = capabilities.clone();
            }
            let mut response = seen.reply(hello);
            let session = format!("session-{number}").parse().expect("a header value");
            response.headers_mut().insert("mcp-session-id", session);
            response
        }
        "tools/list" => seen.reply(seen.list(&id)),
        "tools/call" if seen.script.begins_slowly && !seen.is_initialized() => {
            let error = json!({"code": -32602, "message": "Received request before initialization was complete"});
            seen.reply(json!({"jsonrpc": "2.0", "id": id, "error": error}))
        }
        "notifications/initialized" if seen.script.begins_slowly => {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            let session = seen.sessions.load(Ordering::Relaxed);
            seen.initialized.store(session, Ordering::Relaxed);
            StatusCode::ACCEPTED.into_response()
        }
        "tools/call" => seen.act(&message).await,
        "resources/subscribe" | "logging/setLevel" => {
            seen.reply(json!({"jsonrpc": "2.0", "id": id, "result": {}}))
        }
        "" => {
            seen.take_answer(message);
            StatusCode::ACCEPTED.into_response()
        }
        _ if id.is_null() => StatusCode::ACCEPTED.into_response(),
        _ => seen
            .reply(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}})),
    }
}

/// The stream of events that belong to no request.
async fn listen(State(seen): State<Arc<Seen>>, headers: HeaderMap) -> Response {
    if seen.script.modern {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    if let Some(event) = headers.get("last-event-id") {
        let event = event.to_str().unwrap_or_default();
        return match seen.broken_off.lock().unwrap().remove(event) {
            Some(rest) => events(received(rest)),
            None => StatusCode::NOT_FOUND.into_response(),
        };
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    seen.listeners.lock().unwrap().push(sender);
    events(received(receiver))
}

/// HTTP+SSE: the stream on which every answer comes.
async fn event_stream(State(seen): State<Arc<Seen>>) -> Response {
    let (sender, receiver) = mpsc::unbounded_channel();
    let endpoint = seen
        .script
        .endpoint
        .as_deref()
        .unwrap_or("/messages?session=1");
    // A byte-order mark and a comment, as some servers send.
    let _ = sender.send(format!(
        "\u{feff}: hello\r\n\r\nevent: endpoint\r\ndata: {endpoint}\r\n\r\n"
    ));
    seen.listeners.lock().unwrap().push(sender);
    events(received(receiver))
}

/// HTTP+SSE: one message to the server.
async fn message(State(seen): State<Arc<Seen>>, headers: HeaderMap, body: Bytes) -> Response {
    let message: Value = serde_json::from_slice(&body).expect("the client writes JSON");
    seen.messages
        .lock()
        .unwrap()
        .push((headers, message.clone()));
    let id = &message["id"];
    let answer = match message["method"].as_str() {
        Some("initialize") => Some(initialized(id, "2024-11-05")),
        Some("tools/list") => Some(seen.list(id)),
        Some("tools/call") => match message["params"]["arguments"]["do"].as_str() {
            Some("refuse") => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            Some("hang") => None,
            Some("ask") => {
                let (question, answer) = seen.ask(&message);
                let (seen, id) = (Arc::clone(&seen), id.clone());
                seen.tell(&format!("event: message\r\ndata: {question}\r\n\r\n"));
                tokio::spawn(async move {
                    let answer = answered(&id, answer).await;
                    seen.tell(&format!("event: message\r\ndata: {answer}\r\n\r\n"));
                });
                None
            }
            Some("disconnect") => {
                seen.listeners.lock().unwrap().clear();
                None
            }
            _ => seen.result(&message),
        },
        None => {
            seen.take_answer(message);
            None
        }
        _ => None,
    };
    if let Some(answer) = answer {
        seen.tell(&format!("event: message\r\ndata: {answer}\r\n\r\n"));
    }
    (StatusCode::ACCEPTED, "Accepted").into_response()
}

/// An API that is not MCP, and answers in JSON.
async fn other_api() -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    let body = r#"{"error": {"message": "no such path", "type": "x", "code": 404}}"#;
    (StatusCode::NOT_FOUND, json, body).into_response()
}

async fn moved() -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "/mcp")]).into_response()
}

impl Seen {
    fn knows(&self, headers: &HeaderMap) -> bool {
        let current = format!("session-{}", self.sessions.load(Ordering::Relaxed));
        headers
            .get("mcp-session-id")
            .is_some_and(|session| *session == current)
    }

    fn is_initialized(&self) -> bool {
        let session = self.sessions.load(Ordering::Relaxed);
        self.initialized.load(Ordering::Relaxed) == session
    }

    fn cut_ids(&self, message: &mut Value) {
        for place in ["/id", "/params/_meta/progressToken"] {
            let cut = |id: &mut Value| id.as_u64().map(|whole| *id = (whole as u32).into());
            message.pointer_mut(place).and_then(cut);
        }
    }

    fn reply(&self, message: Value) -> Response {
        if self.script.answers_in_events {
            return one_event(&message);
        }
        (
            [(header::CONTENT_TYPE, "application/json")],
            message.to_string(),
        )
            .into_response()
    }

    async fn refuse_probe(&self) -> Response {
        match self.script.probe {
            Probe::BadRequest => (StatusCode::BAD_REQUEST, "no session").into_response(),
            Probe::ServerError => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            Probe::Html => ([(header::CONTENT_TYPE, "text/html")], "<html>").into_response(),
            Probe::Silence => std::future::pending().await,
        }
    }

    fn list(&self, id: &Value) -> Value {
        let default = json!([{"name": "act", "inputSchema": {"type": "object"}}]);
        let tools = self.tools.lock().unwrap().clone().unwrap_or(default);
        json!({"jsonrpc": "2.0", "id": id, "result": {"tools": tools, "ttlMs": 0, "cacheScope": "private"}})
    }

    /// The answer to a call that needs nothing but its arguments.
    fn result(&self, message: &Value) -> Option<Value> {
        let arguments = &message["params"]["arguments"];
        let result = match arguments["do"].as_str() {
            Some("result") => arguments["result"].clone(),
            Some("big") => text(&"x".repeat(arguments["bytes"].as_u64()? as usize)),
            Some("change") => {
                *self.tools.lock().unwrap() = Some(arguments["tools"].clone());
                let changed =
                    json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
                self.tell(&format!("data: {changed}\n\n"));
                text("changed")
            }
            _ => text(&arguments.to_string()),
        };
        Some(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))
    }

    async fn act(self: &Arc<Self>, message: &Value) -> Response {
        let arguments = &message["params"]["arguments"];
        match arguments["do"].as_str() {
            // Answers with this status and an HTML page.
            Some("status") => {
                let status = arguments["status"]
                    .as_u64()
                    .and_then(|n| u16::try_from(n).ok());
                let status = StatusCode::from_u16(status.unwrap_or(500)).expect("a status");
                let page = "<html>at Secret.java:5</html>";
                (status, [(header::CONTENT_TYPE, "text/html")], page).into_response()
            }
            // Answers well, in spite of this status.
            Some("answer") => {
                let status = arguments["status"].as_u64().expect("a status");
                let status = StatusCode::from_u16(status as u16).expect("a status");
                let json = [(header::CONTENT_TYPE, "application/json")];
                let body =
                    json!({"jsonrpc": "2.0", "id": message["id"], "result": text("answered")});
                (status, json, body.to_string()).into_response()
            }
            // Refuses with 400 and a JSON-RPC error, as some servers do whatever went wrong.
            Some("refuse") => {
                let why = arguments["message"].as_str().unwrap_or("no such thing");
                let error = json!({"code": -32602, "message": why});
                let body = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
                let json = [(header::CONTENT_TYPE, "application/json")];
                (StatusCode::BAD_REQUEST, json, body.to_string()).into_response()
            }
            Some("look elsewhere") => {
                let elsewhere = [(header::LOCATION, "/elsewhere")];
                (StatusCode::SEE_OTHER, elsewhere).into_response()
            }
            // Answers nothing, within an answer that has begun; with `progress`, with that.
            Some("hang") => {
                let token = &message["params"]["_meta"]["progressToken"];
                let step = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}});
                let step = format!("data: {step}\n\n");
                let said = (arguments["progress"] == true).then_some(step);
                events(stream::iter(said).chain(hanging(Arc::clone(self))))
            }
            // Answers on the stream that belongs to no request; with `open`, the one that does stays open.
            Some("answer aside") => {
                let answer = self.result(message).expect("an answer");
                if arguments["open"] == true {
                    self.tell(&format!("data: {answer}\n\n"));
                    return events(hanging(Arc::clone(self)));
                }
                let seen = Arc::clone(self);
                tokio::spawn(async move {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    seen.tell(&format!("data: {answer}\n\n"));
                });
                StatusCode::ACCEPTED.into_response()
            }
            // Ends every session, then answers.
            Some("forget") => {
                let response = self.reply(self.result(message).expect("an answer"));
                self.sessions.fetch_add(1, Ordering::Relaxed);
                response
            }
            // Tells of progress, then answers.
            Some("progress") => {
                let token = &message["params"]["_meta"]["progressToken"];
                let step = |n: u32| json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": n, "total": 2}});
                let answer = self.result(message).expect("an answer");
                let parts = [step(1), step(2), answer].map(|part| format!("data: {part}\n\n"));
                events(stream::iter(parts))
            }
            // Says `log`, asks the client, and answers with what came back; with `aside`, on the stream that belongs to
            // no request; with `resumed`, once the stream that broke off was resumed.
            Some("ask") => {
                let (question, answer) = self.ask(message);
                let id = message["id"].clone();
                let answered =
                    stream::once(
                        async move { format!("data: {}\n\n", answered(&id, answer).await) },
                    );
                let first = format!("data: {question}\n\n");
                if arguments["aside"] == true {
                    self.tell(&first);
                    return events(answered);
                }
                if arguments["resumed"] == true {
                    let (sender, rest) = mpsc::unbounded_channel();
                    let event = format!("event-{}", message["id"]);
                    self.broken_off.lock().unwrap().insert(event.clone(), rest);
                    tokio::spawn(async move {
                        let _ = sender.send(first);
                        let mut answered = std::pin::pin!(answered);
                        while let Some(event) = answered.next().await {
                            let _ = sender.send(event);
                        }
                    });
                    let begun = format!("id: {event}\nretry: 10\ndata:\n\n");
                    return events(stream::iter([begun]));
                }
                let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": arguments["log"]}});
                let log = format!("data: {log}\n\n");
                events(stream::iter([log, first]).chain(answered))
            }
            // Breaks off within an answer that has begun.
            Some("break") => events(stream::iter([": nothing\n\n".to_owned()])),
            _ => self.reply(self.result(message).expect("an answer")),
        }
    }

    /// The question that the arguments of a call say, and where its answer comes.
    fn ask(&self, message: &Value) -> (Value, oneshot::Receiver<Value>) {
        let arguments = &message["params"]["arguments"];
        let question = format!("ask-{}", message["id"]);
        let (sender, answer) = oneshot::channel();
        self.asked.lock().unwrap().insert(question.clone(), sender);
        let question = json!({"jsonrpc": "2.0", "id": question, "method": arguments["method"], "params": arguments["params"]});
        (question, answer)
    }

    fn take_answer(&self, message: Value) {
        let id = message["id"].as_str().unwrap_or_default();
        if let Some(waiting) = self.asked.lock().unwrap().remove(id) {
            let _ = waiting.send(message);
        }
    }

    fn tell(&self, event: &str) {
        self.listeners
            .lock()
            .unwrap()
            .retain(|listener| listener.send(event.to_owned()).is_ok());
    }
}

/// A stream that never says anything, and notes when nobody listens any more.
fn hanging(seen: Arc<Seen>) -> impl Stream<Item = String> {
    struct Note(Arc<Seen>);
    impl Drop for Note {
        fn drop(&mut self) {
            self.0.hang_was_dropped.store(true, Ordering::Relaxed);
        }
    }
    let note = Note(seen);
    stream::unfold((note, true), |(note, is_first)| async move {
        if !is_first {
            std::future::pending::<()>().await;
        }
        Some((": still here\n\n".to_owned(), (note, false)))
    })
}

/// The answer to a call that waited for an answer of the client's.
async fn answered(id: &Value, answer: oneshot::Receiver<Value>) -> Value {
    let answer = answer.await.unwrap_or_default().to_string();
    json!({"jsonrpc": "2.0", "id": id, "result": text(&answer)})
}

fn received(receiver: mpsc::UnboundedReceiver<String>) -> impl Stream<Item = String> {
    stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|event| (event, receiver))
    })
}

fn events(parts: impl Stream<Item = String> + Send + 'static) -> Response {
    let body = Body::from_stream(parts.map(Ok::<_, Infallible>));
    (
        [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")],
        body,
    )
        .into_response()
}

fn one_event(message: &Value) -> Response {
    events(stream::iter([format!(
        "event: message\ndata: {message}\n\n"
    )]))
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn discovered(id: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {
        "resultType": "complete", "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}}, "serverInfo": {"name": "site", "version": "1"},
        "ttlMs": 0, "cacheScope": "private",
    }})
}

fn initialized(id: &Value, version: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {
        "protocolVersion": version, "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": "site", "version": "1"},
    }})
}
