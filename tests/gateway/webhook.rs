//! A scripted webhook in this process: it keeps what it was sent, and answers as the test says.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::HeaderMap,
    response::Response,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

/// What the webhook does with one request.
pub enum Reply {
    /// Answers with this status, type and body.
    Answers(u16, &'static str, Vec<u8>),
    /// Sends its head and the start of a body, and breaks the connection.
    BreaksOff,
    /// Says nothing until the caller goes away.
    Holds,
    /// Sends a body without end.
    Floods,
    /// Sends the client elsewhere.
    Redirects(String),
}

/// A JSON answer.
pub fn answer(body: Value) -> Reply {
    Reply::Answers(200, "application/json", body.to_string().into_bytes())
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Got {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

impl Got {
    /// The body, which should be JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The calls in it, as whoever writes a webhook reads them: (id, name, arguments).
    pub fn calls(&self) -> Vec<(String, String, Value)> {
        let body = self.json();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let call = |call: &Value| {
            assert_eq!(call["type"], "function");
            let function = &call["function"];
            let arguments = text(&function["arguments"]);
            (
                text(&call["id"]),
                text(&function["name"]),
                serde_json::from_str(&arguments).expect("arguments are JSON"),
            )
        };
        body["tool_calls"]
            .as_array()
            .expect("calls")
            .iter()
            .map(call)
            .collect()
    }
}

type Script = Box<dyn Fn(&Got) -> Reply + Send + Sync>;

/// The webhook, running.
pub struct Webhook {
    pub base: String,
    shared: Arc<Shared>,
}

struct Shared {
    script: Script,
    got: Mutex<Vec<Got>>,
    /// Requests whose caller went away while they were held.
    left: watch::Sender<usize>,
}

/// A webhook that answers each request as the script says.
pub async fn webhook(script: impl Fn(&Got) -> Reply + Send + Sync + 'static) -> Webhook {
    let shared = Arc::new(Shared {
        script: Box::new(script),
        got: Mutex::default(),
        left: watch::Sender::new(0),
    });
    let router = Router::new().fallback(serve).with_state(shared.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Webhook { base, shared }
}

/// A webhook that answers every call with `{"name": …, "arguments": …}`.
pub async fn echo() -> Webhook {
    webhook(|got| answer(json!({"tool_responses": echoed(got)}))).await
}

/// The answers to all calls, in their order.
pub fn echoed(got: &Got) -> Vec<Value> {
    let answer = |(id, name, arguments)| json!({"tool_call_id": id, "output": {"name": name, "arguments": arguments}});
    got.calls().into_iter().map(answer).collect()
}

impl Webhook {
    /// What it was sent so far.
    pub fn got(&self) -> Vec<Got> {
        self.shared.got.lock().unwrap().clone()
    }

    /// Waits until the callers of so many held requests went away.
    pub async fn left(&self, count: usize) {
        let mut left = self.shared.left.subscribe();
        left.wait_for(|it| *it >= count).await.unwrap();
    }
}

struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.left.send_modify(|left| *left += 1);
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let got = Got {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    shared.got.lock().unwrap().push(got.clone());
    let response = Response::builder();
    match (shared.script)(&got) {
        Reply::Answers(status, content_type, body) => response
            .status(status)
            .header("content-type", content_type)
            .body(Body::from(body))
            .unwrap(),
        Reply::BreaksOff => {
            let pieces = [Ok(Bytes::from_static(b"{\"tool_")), Err("broken")];
            response
                .body(Body::from_stream(stream::iter(pieces)))
                .unwrap()
        }
        Reply::Holds => {
            let _held = Held(shared.clone());
            std::future::pending().await
        }
        Reply::Floods => {
            let pieces = stream::repeat_with(|| Ok::<_, String>(Bytes::from(vec![b' '; 64 << 10])));
            response.body(Body::from_stream(pieces.boxed())).unwrap()
        }
        Reply::Redirects(to) => response
            .status(307)
            .header("location", to)
            .body(Body::empty())
            .unwrap(),
    }
}
