//! A scripted model: an HTTP server that answers each request with the next reply of its script and keeps
//! what it was asked.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

use crate::native::{Native, refusal_of_chat};

/// One answer of the model.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A proper turn: pieces of text, then calls as (id, name, arguments).
    Turn {
        text: Vec<String>,
        calls: Vec<(String, String, String)>,
        finish: &'static str,
    },
    /// These bytes under this status and type, piece by piece, and then the end or silence.
    Raw {
        status: u16,
        content_type: &'static str,
        headers: Vec<(&'static str, String)>,
        pieces: Vec<Bytes>,
        then: Then,
    },
}

/// What follows the last piece of a raw reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The body ends.
    End,
    /// Nothing more comes, and the connection stays open.
    Silence,
    /// The connection breaks off.
    Break,
}

/// A piece of [`events`] that is not sent: the model stops there until [`Model::go_on`].
pub const HOLD: &str = "\0hold";

/// A turn of text.
pub fn say(text: &str) -> Reply {
    Reply::Turn {
        text: text.split_inclusive(' ').map(str::to_owned).collect(),
        calls: Vec::new(),
        finish: "stop",
    }
}

/// A turn of calls: (id, name, arguments).
pub fn call(calls: &[(&str, &str, Value)]) -> Reply {
    say_and_call("", calls)
}

/// A turn of text and calls.
pub fn say_and_call(text: &str, calls: &[(&str, &str, Value)]) -> Reply {
    let calls = calls.iter().map(|(id, name, arguments)| {
        let arguments = arguments
            .as_str()
            .map_or_else(|| arguments.to_string(), str::to_owned);
        ((*id).to_owned(), (*name).to_owned(), arguments)
    });
    let text = if text.is_empty() {
        Vec::new()
    } else {
        vec![text.to_owned()]
    };
    Reply::Turn {
        text,
        calls: calls.collect(),
        finish: "tool_calls",
    }
}

/// A turn that ends for another reason.
pub fn ending(mut reply: Reply, reason: &'static str) -> Reply {
    if let Reply::Turn { finish, .. } = &mut reply {
        *finish = reason;
    }
    reply
}

/// A body as it is.
pub fn raw(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    Reply::Raw {
        status,
        content_type,
        headers: Vec::new(),
        pieces: vec![body.into()],
        then: Then::End,
    }
}

/// Bytes of an event stream, and what follows them.
pub fn events(pieces: &[&str], then: Then) -> Reply {
    let pieces = pieces
        .iter()
        .map(|piece| Bytes::copy_from_slice(piece.as_bytes()))
        .collect();
    Reply::Raw {
        status: 200,
        content_type: "text/event-stream",
        headers: Vec::new(),
        pieces,
        then,
    }
}

/// The model, running.
#[derive(Clone)]
pub struct Model {
    /// Its base URL, with `/v1`.
    pub base: String,
    shared: Arc<Shared>,
}

struct Shared {
    script: Mutex<VecDeque<Reply>>,
    /// What follows when the script is at its end.
    forever: Mutex<Option<Reply>>,
    asked: watch::Sender<Vec<Asked>>,
    /// Bodies that were given up by the other side before their end.
    dropped: watch::Sender<usize>,
    models: Mutex<Vec<String>>,
    /// The headers of each request for the list of models.
    listed: Mutex<Vec<HeaderMap>>,
    follows: AtomicBool,
    refuses: Mutex<Vec<&'static str>>,
    /// A reply has come to its [`HOLD`].
    held: watch::Sender<bool>,
    goes_on: watch::Sender<bool>,
}

/// One request that the model got.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub headers: HeaderMap,
    pub raw: Bytes,
    pub body: Value,
}

impl Model {
    pub async fn start(script: impl IntoIterator<Item = Reply>) -> Model {
        let shared = Arc::new(Shared {
            script: Mutex::new(script.into_iter().collect()),
            forever: Mutex::new(None),
            asked: watch::Sender::new(Vec::new()),
            dropped: watch::Sender::new(0),
            models: Mutex::new(vec!["m".to_owned()]),
            listed: Mutex::default(),
            follows: AtomicBool::new(false),
            refuses: Mutex::default(),
            held: watch::Sender::new(false),
            goes_on: watch::Sender::new(false),
        });
        let router = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/responses", post(complete))
            .route("/v1/messages", post(complete))
            .route("/v1/models", get(models))
            .route("/v1/models/{question}", post(complete).fallback(echo))
            .route("/v1/stalls", get(stall))
            .route("/v1/drips", get(drip))
            .route("/v1/silent", get(std::future::pending::<Response>))
            .fallback(echo)
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Model { base, shared }
    }

    /// What it answers when its script is at its end.
    pub fn then_always(self, reply: Reply) -> Model {
        *self.shared.forever.lock().unwrap() = Some(reply);
        self
    }

    /// Has it answer by what it reads: it calls `calc__echo` with the last user message, then says what it was told.
    pub fn following_the_conversation(self) -> Model {
        self.shared.follows.store(true, Ordering::Relaxed);
        self
    }

    /// Refuses what some models or upstreams refuse; see [`refusal_of_chat`] and [`Native::refusal`].
    pub fn refusing(self, what: &[&'static str]) -> Model {
        *self.shared.refuses.lock().unwrap() = what.to_vec();
        self
    }

    pub fn with_models(self, models: &[&str]) -> Model {
        *self.shared.models.lock().unwrap() = models.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// The headers of each request for its list of models.
    pub fn listed(&self) -> Vec<HeaderMap> {
        self.shared.listed.lock().unwrap().clone()
    }

    /// Everything it was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.borrow().clone()
    }

    /// The messages of its `n`th request, from 0.
    pub fn messages(&self, n: usize) -> Vec<Value> {
        self.asked()[n].body["messages"].as_array().unwrap().clone()
    }

    /// Waits until a reply has come to its [`HOLD`].
    pub async fn was_held(&self) {
        let mut held = self.shared.held.subscribe();
        held.wait_for(|held| *held).await.unwrap();
    }

    /// Lets a reply go on after its [`HOLD`].
    pub fn go_on(&self) {
        self.shared.goes_on.send_replace(true);
    }

    /// Waits until a body was given up by the other side before its end.
    pub async fn was_dropped(&self) {
        let mut dropped = self.shared.dropped.subscribe();
        dropped.wait_for(|dropped| *dropped > 0).await.unwrap();
    }
}

async fn models(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Json<Value> {
    let is_gemini = headers.contains_key("x-goog-api-key");
    shared.listed.lock().unwrap().push(headers);
    let models = shared.models.lock().unwrap();
    if is_gemini {
        let models = models.iter();
        let models = models.map(|id| json!({"name": format!("models/{id}"), "supportedGenerationMethods": ["generateContent"]}));
        let other = json!({"name": "models/other", "supportedGenerationMethods": ["embedContent"]});
        return Json(json!({"models": models.chain([other]).collect::<Vec<_>>()}));
    }
    let data: Vec<Value> = models
        .iter()
        .map(|id| json!({"id": id, "object": "model", "extra": 1}))
        .collect();
    Json(json!({"object": "list", "data": data}))
}

/// Begins a body and says no more.
async fn stall() -> Response {
    let begun = stream::iter([Ok::<_, std::io::Error>("begun")]);
    Response::new(Body::from_stream(begun.chain(stream::pending())))
}

/// A piece now and then, for ever.
async fn drip() -> Response {
    let pieces = stream::repeat("x").then(|piece| async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok::<_, std::io::Error>(piece)
    });
    Response::new(Body::from_stream(pieces))
}

/// Says what came, for everything that is passed through.
async fn echo(
    State(shared): State<Arc<Shared>>,
    method: axum::http::Method,
    uri: axum::http::Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let is_count = uri.path().ends_with("/count_tokens");
    if is_count && shared.refuses.lock().unwrap().contains(&"counts") {
        return StatusCode::NOT_FOUND.into_response();
    }
    let named: serde_json::Map<String, Value> = headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().into()))
        .collect();
    let said = json!({"method": method.as_str(), "uri": uri.to_string(), "headers": named,
        "body": String::from_utf8_lossy(&body)});
    Response::builder()
        .status(StatusCode::CREATED)
        .header("x-request-id", "theirs")
        .header("x-own", "1")
        .body(Body::from(said.to_string()))
        .unwrap()
}

async fn complete(
    State(shared): State<Arc<Shared>>,
    uri: axum::http::Uri,
    headers: HeaderMap,
    raw: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&raw).unwrap_or_default();
    let path = uri.path().to_owned();
    let native = Native::of(&path);
    let refusal = match &native {
        Some(native) => native.refusal(&uri, &headers, &body, &shared.refuses.lock().unwrap()),
        None => refusal_of_chat(&body, &shared.refuses.lock().unwrap()),
    };
    if let Some((status, error)) = refusal {
        let asked = Asked {
            path,
            headers,
            raw,
            body,
        };
        shared.asked.send_modify(|all| all.push(asked));
        let body = vec![Bytes::from(error.to_string())];
        return respond(&shared, status, "application/json", &[], body, Then::End);
    }
    let is_streamed = Native::is_streamed(&uri, &body);
    let wants_usage = body["stream_options"]["include_usage"] == json!(true);
    let next = if shared.follows.load(Ordering::Relaxed) {
        Some(follow(&body))
    } else {
        shared.script.lock().unwrap().pop_front()
    };
    let reply = next.or_else(|| shared.forever.lock().unwrap().clone());
    shared.asked.send_modify(|asked| {
        asked.push(Asked {
            path,
            headers,
            raw,
            body,
        });
    });
    if let (Some(native), Some(Reply::Turn { text, calls, .. })) = (&native, &reply) {
        let n = shared.asked.borrow().len();
        let (content_type, pieces) = native.answer(n, text, calls, is_streamed);
        return respond(&shared, 200, content_type, &[], pieces, Then::End);
    }
    match reply {
        None => {
            let error = json!({"error": {"message": "the script is at its end", "type": "test", "param": null, "code": "script_ended"}});
            Response::builder()
                .status(418)
                .body(Body::from(error.to_string()))
                .unwrap()
        }
        Some(Reply::Turn {
            text,
            calls,
            finish,
        }) if is_streamed => {
            let n = shared.asked.borrow().len();
            let body = turn_events(n, &text, &calls, finish, wants_usage);
            let pieces: Vec<Bytes> = body.into_iter().map(Bytes::from).collect();
            respond(&shared, 200, "text/event-stream", &[], pieces, Then::End)
        }
        Some(Reply::Turn {
            text,
            calls,
            finish,
        }) => {
            let n = shared.asked.borrow().len();
            let body = turn_body(n, &text, &calls, finish);
            respond(
                &shared,
                200,
                "application/json",
                &[],
                vec![Bytes::from(body.to_string())],
                Then::End,
            )
        }
        Some(Reply::Raw {
            status,
            content_type,
            headers,
            pieces,
            then,
        }) => respond(&shared, status, content_type, &headers, pieces, then),
    }
}

fn follow(body: &Value) -> Reply {
    let messages = body["messages"].as_array().unwrap();
    let last = messages.last().unwrap();
    let text = last["content"].as_str().unwrap();
    match last["role"].as_str().unwrap() {
        "tool" => say(&format!("told {text}")),
        _ => say_and_call("calling ", &[("c", "calc__echo", json!({"marker": text}))]),
    }
}

fn respond(
    shared: &Arc<Shared>,
    status: u16,
    content_type: &str,
    headers: &[(&'static str, String)],
    pieces: Vec<Bytes>,
    then: Then,
) -> Response {
    let guard = Guard {
        shared: shared.clone(),
        armed: true,
    };
    let end = stream::once(async move {
        match then {
            Then::End => None,
            Then::Break => {
                // A reset overtakes bytes that nobody has read yet; they are to be read first.
                tokio::time::sleep(Duration::from_millis(50)).await;
                Some(Err(std::io::Error::other("broken")))
            }
            Then::Silence => std::future::pending().await,
        }
    });
    let waits = shared.clone();
    let pieces = stream::iter(pieces).then(move |piece| {
        let waits = waits.clone();
        async move {
            // Each piece is a write of its own.
            tokio::task::yield_now().await;
            if piece == HOLD {
                waits.held.send_replace(true);
                let mut goes_on = waits.goes_on.subscribe();
                goes_on.wait_for(|goes_on| *goes_on).await.unwrap();
                return None;
            }
            Some(Ok::<Bytes, std::io::Error>(piece))
        }
    });
    let guarded = pieces
        .chain(end)
        .filter_map(async |piece| piece)
        .chain(stream::once(async move {
            let mut guard = guard;
            guard.armed = false;
            Ok(Bytes::new())
        }));
    let mut response = Response::builder()
        .status(status)
        .header("content-type", content_type);
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Body::from_stream(guarded)).unwrap()
}

/// Notes a body that is dropped before its end.
struct Guard {
    shared: Arc<Shared>,
    armed: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.armed {
            self.shared.dropped.send_modify(|dropped| *dropped += 1);
        }
    }
}

fn turn_events(
    n: usize,
    text: &[String],
    calls: &[(String, String, String)],
    finish: &str,
    wants_usage: bool,
) -> Vec<String> {
    let chunk = |delta: Value, finish: Value| {
        json!({"id": format!("chatcmpl-{n}"), "object": "chat.completion.chunk", "created": 1000 + n, "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    };
    let mut chunks = vec![chunk(
        json!({"role": "assistant", "content": ""}),
        Value::Null,
    )];
    chunks.extend(
        text.iter()
            .map(|text| chunk(json!({"content": text}), Value::Null)),
    );
    for (at, (id, name, arguments)) in calls.iter().enumerate() {
        let head = json!({"index": at, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        chunks.push(chunk(json!({"tool_calls": [head]}), Value::Null));
        let half = arguments.len() / 2;
        let half = (0..=half)
            .rev()
            .find(|&at| arguments.is_char_boundary(at))
            .unwrap_or(0);
        for part in [&arguments[..half], &arguments[half..]] {
            let more = json!({"index": at, "function": {"arguments": part}});
            chunks.push(chunk(json!({"tool_calls": [more]}), Value::Null));
        }
    }
    chunks.push(chunk(json!({}), json!(finish)));
    if wants_usage {
        let mut last = chunk(json!({}), Value::Null);
        last["choices"] = json!([]);
        last["usage"] = usage(n);
        chunks.push(last);
    }
    chunks
        .into_iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .chain(["data: [DONE]\n\n".to_owned()])
        .collect()
}

fn turn_body(n: usize, text: &[String], calls: &[(String, String, String)], finish: &str) -> Value {
    let calls: Vec<Value> = calls
        .iter()
        .map(|(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
        .collect();
    let content = if text.is_empty() {
        Value::Null
    } else {
        text.concat().into()
    };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    json!({"id": format!("chatcmpl-{n}"), "object": "chat.completion", "created": 1000 + n, "model": "m",
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish}], "usage": usage(n)})
}

/// The `n`th request costs 10·n tokens in and 1 out.
fn usage(n: usize) -> Value {
    json!({"prompt_tokens": 10 * n, "completion_tokens": 1, "total_tokens": 10 * n + 1,
        "prompt_tokens_details": {"cached_tokens": n}})
}

/// Longest time a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);
