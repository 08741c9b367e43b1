//! A scripted MCP server in this process: Streamable HTTP, so that tests can hold a call, watch it being
//! cancelled, and let it go on.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{AppendHeaders, IntoResponse, Response},
    routing::post,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

/// What a tool does when it is called.
#[derive(Clone)]
pub enum Does {
    /// Answers with this result.
    Answers(Value),
    /// Answers with its arguments as text.
    Echoes,
    /// Fails with this JSON-RPC error.
    Refuses(Value),
    /// Reports progress, then waits until it is let go, then answers `done`.
    Holds,
    /// Reports progress every so often, so many times, then answers `done`.
    Reports(Duration, u32),
    /// Closes the connection without an answer.
    HangsUp,
    /// Answers the first call with this HTTP error and, where it is named, a header; every later one with `done`.
    FailsOnce(u16, Option<(&'static str, &'static str)>),
    /// The same after a while.
    HangsUpAfter(Duration),
}

/// Begins a server with no tools.
pub fn tools() -> Tools {
    Tools {
        list: Vec::new(),
        does: BTreeMap::new(),
    }
}

/// The tools of a server that is not running yet.
pub struct Tools {
    list: Vec<Value>,
    does: BTreeMap<String, Does>,
}

impl Tools {
    /// Adds a tool that takes anything.
    pub fn tool(self, name: &str, does: Does) -> Tools {
        self.listed(json!({"name": name, "description": format!("The tool {name}."), "inputSchema": {"type": "object"}}), does)
    }

    /// `add` takes two numbers `a` and `b` and answers `3`, whatever they are.
    pub fn add(self) -> Tools {
        let schema = json!({"type": "object", "required": ["a", "b"],
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}}});
        self.listed(
            json!({"name": "add", "description": "Adds.", "inputSchema": schema}),
            Does::Answers(json!({"content": [{"type": "text", "text": "3"}]})),
        )
    }

    /// Adds a tool as it stands in the list.
    pub fn listed(mut self, tool: Value, does: Does) -> Tools {
        self.does
            .insert(tool["name"].as_str().unwrap_or_default().to_owned(), does);
        self.list.push(tool);
        self
    }

    pub async fn start(self) -> Server {
        self.start_when(std::future::ready(())).await
    }

    /// A server that can be connected to, but answers nothing before this has ended.
    pub async fn start_when(self, begin: impl Future<Output = ()> + Send + 'static) -> Server {
        let shared = Arc::new(Shared {
            list: self.list,
            does: self.does,
            calls: watch::Sender::new(Vec::new()),
            cancelled: watch::Sender::new(0),
            going_on: watch::Sender::new(false),
            running: Mutex::new((0, 0)),
        });
        let router = Router::new()
            .route("/mcp", post(answer))
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        tokio::spawn(async move {
            begin.await;
            axum::serve(listener, router).await
        });
        Server { url, shared }
    }
}

/// The server, running.
#[derive(Clone)]
pub struct Server {
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    list: Vec<Value>,
    does: BTreeMap<String, Does>,
    /// The params of each `tools/call`.
    calls: watch::Sender<Vec<Value>>,
    cancelled: watch::Sender<usize>,
    going_on: watch::Sender<bool>,
    /// Calls that are running now, and the most there ever were.
    running: Mutex<(usize, usize)>,
}

impl Server {
    /// Name and arguments of each call so far.
    pub fn calls(&self) -> Vec<(String, Value)> {
        let calls = self.shared.calls.borrow();
        calls
            .iter()
            .map(|call| {
                (
                    call["name"].as_str().unwrap().to_owned(),
                    call["arguments"].clone(),
                )
            })
            .collect()
    }

    /// Waits for the `n`th call, from 1.
    pub async fn was_called(&self, n: usize) {
        let mut calls = self.shared.calls.subscribe();
        calls.wait_for(|calls| calls.len() >= n).await.unwrap();
    }

    /// Waits until a call was cancelled.
    pub async fn was_cancelled(&self) {
        let mut cancelled = self.shared.cancelled.subscribe();
        cancelled
            .wait_for(|cancelled| *cancelled > 0)
            .await
            .unwrap();
    }

    /// Lets every held call go on, now and later.
    pub fn let_go(&self) {
        self.shared.going_on.send_replace(true);
    }

    /// The most calls that ran side by side.
    pub fn most_side_by_side(&self) -> usize {
        self.shared.running.lock().unwrap().1
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Json(message): Json<Value>,
) -> Response {
    let _ = headers;
    let id = message["id"].clone();
    let params = &message["params"];
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "scripted", "version": "1"}}),
        "tools/list" => json!({"tools": shared.list}),
        "tools/call" => return call(shared, id, params.clone()).await,
        "notifications/cancelled" => {
            shared.cancelled.send_modify(|cancelled| *cancelled += 1);
            return StatusCode::ACCEPTED.into_response();
        }
        _ if id.is_null() => return StatusCode::ACCEPTED.into_response(),
        _ => return Json(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}})).into_response(),
    };
    Json(json!({"jsonrpc": "2.0", "id": id, "result": result})).into_response()
}

async fn call(shared: Arc<Shared>, id: Value, params: Value) -> Response {
    let name = params["name"].as_str().unwrap_or_default();
    let does = shared.does.get(name).cloned();
    let echo = params["arguments"].to_string();
    let token = params["_meta"]["progressToken"].clone();
    let mut is_first = false;
    shared.calls.send_modify(|calls| {
        is_first = !calls.iter().any(|call| call["name"] == params["name"]);
        calls.push(params);
    });
    let result = match does {
        Some(Does::Answers(result)) => result,
        Some(Does::Echoes) => json!({"content": [{"type": "text", "text": echo}]}),
        Some(Does::Refuses(error)) => {
            return Json(json!({"jsonrpc": "2.0", "id": id, "error": error})).into_response();
        }
        Some(Does::Holds) => return hold(shared, id, token),
        Some(Does::Reports(every, times)) => return report(id, token, every, times),
        Some(Does::HangsUp) => return hang_up(),
        Some(Does::HangsUpAfter(pause)) => {
            // Time is what is tested here.
            tokio::time::sleep(pause).await;
            return hang_up();
        }
        Some(Does::FailsOnce(status, header)) if is_first => {
            let status = StatusCode::from_u16(status).unwrap();
            return (status, AppendHeaders(header), "<html>an error</html>").into_response();
        }
        Some(Does::FailsOnce(..)) => json!({"content": [{"type": "text", "text": "done"}]}),
        None => json!({"content": [{"type": "text", "text": "no such tool"}], "isError": true}),
    };
    Json(json!({"jsonrpc": "2.0", "id": id, "result": result})).into_response()
}

fn hang_up() -> Response {
    let broken = stream::iter([Err::<Bytes, _>(std::io::Error::other("hung up"))]);
    Response::new(Body::from_stream(broken))
}

fn event(message: &Value) -> Result<Bytes, std::io::Error> {
    Ok(Bytes::from(format!("event: message\ndata: {message}\n\n")))
}

fn progress(token: &Value, done: u32) -> Result<Bytes, std::io::Error> {
    event(
        &json!({"jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": token, "progress": done, "total": 2, "message": "half way"}}),
    )
}

fn done(id: &Value) -> Result<Bytes, std::io::Error> {
    let result = json!({"content": [{"type": "text", "text": "done"}]});
    event(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn streamed(
    events: impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static,
) -> Response {
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(Body::from_stream(events.boxed()))
        .unwrap()
}

fn report(id: Value, token: Value, every: Duration, times: u32) -> Response {
    // Time is what is tested here: a server that works and says so.
    streamed(stream::iter(0..=times).then(move |n| {
        let (id, token) = (id.clone(), token.clone());
        async move {
            tokio::time::sleep(every).await;
            if n == times {
                done(&id)
            } else {
                progress(&token, n)
            }
        }
    }))
}

fn hold(shared: Arc<Shared>, id: Value, token: Value) -> Response {
    {
        let mut running = shared.running.lock().unwrap();
        running.0 += 1;
        running.1 = running.1.max(running.0);
    }
    let place = Place(shared);
    let start = stream::iter((!token.is_null()).then(|| progress(&token, 1)));
    let end = stream::once(async move {
        let mut going_on = place.0.going_on.subscribe();
        let _ = going_on.wait_for(|going_on| *going_on).await;
        done(&id)
    });
    streamed(start.chain(end))
}

struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.running.lock().unwrap().0 -= 1;
    }
}
