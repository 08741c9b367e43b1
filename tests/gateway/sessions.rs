//! Functions that a caller lends: the caller's side over real sockets, the agents' side through the session.

use std::{process::Stdio, sync::Arc, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::broadcast,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use toolway::gateway::{RequestSource, mcp_sessions::session::LendingSession};
use toolway_protocol::tool::{CallError, ToolResult};

use crate::{
    harness::{Toolway, eventually, toolway},
    model::{Model, PATIENCE, say},
};

/// One session as its caller knows it.
pub struct Lent {
    pub id: String,
    pub answer: Value,
    key: Option<&'static str>,
}

/// A caller that reads its events.
pub struct Reader {
    body: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    rest: String,
    /// The id of the event that was read last.
    pub last_id: Option<String>,
}

pub fn weather() -> Value {
    let parameters = json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    });
    json!([
        {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": parameters}},
        {"type": "function", "function": {"name": "a_time"}},
    ])
}

async fn start(config: &str) -> Toolway {
    let model = Model::start([]).await.then_always(say("ok"));
    toolway(model).config(config).start().await
}

/// Sends a request and reads its JSON.
pub async fn send(
    gw: &Toolway,
    method: Method,
    path: &str,
    key: Option<&str>,
    body: Option<Value>,
) -> (u16, Value) {
    let mut request = gw.http.request(method, format!("{}{path}", gw.base));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    if let Some(body) = body {
        request = request
            .header("content-type", "application/json")
            .body(body.to_string());
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}"));
    (status, body)
}

impl Lent {
    pub async fn open(gw: &Toolway, body: Value) -> Lent {
        Lent::open_as(gw, body, None).await
    }

    async fn open_as(gw: &Toolway, body: Value, key: Option<&'static str>) -> Lent {
        let (status, answer) = send(gw, Method::POST, "/v1/mcp_sessions", key, Some(body)).await;
        assert_eq!(status, 201, "{answer}");
        let id = answer["id"].as_str().unwrap().to_owned();
        Lent { id, answer, key }
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/mcp_sessions/{}{rest}", self.id)
    }

    async fn ask(&self, gw: &Toolway, method: Method) -> (u16, Value) {
        send(gw, method, &self.path(""), self.key, None).await
    }

    pub async fn events(&self, gw: &Toolway, last_id: Option<&str>) -> Reader {
        let url = format!("{}{}", gw.base, self.path("/events"));
        let mut request = gw.http.get(url);
        if let Some(last_id) = last_id {
            request = request.header("last-event-id", last_id);
        }
        if let Some(key) = self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        Reader {
            body: response.bytes_stream().boxed(),
            rest: String::new(),
            last_id: None,
        }
    }

    pub async fn respond(&self, gw: &Toolway, body: Value) -> Value {
        let path = self.path("/tool_responses");
        let (status, receipt) = send(gw, Method::POST, &path, self.key, Some(body)).await;
        assert_eq!(status, 200, "{receipt}");
        receipt
    }

    pub async fn answer(&self, gw: &Toolway, id: &str, output: Value) {
        let entry = json!({"tool_call_id": id, "output": output});
        let receipt = self.respond(gw, json!({"tool_responses": [entry]})).await;
        let expected = json!({"accepted": [id], "unknown": [], "answered_already": []});
        assert_eq!(receipt, expected);
    }

    pub fn token(&self) -> &str {
        let url = self.answer["url"].as_str().unwrap();
        url.rsplit_once("/mcp/s/").unwrap().1
    }

    fn session(&self, gw: &Toolway) -> Arc<LendingSession> {
        gw.gateway.mcp_sessions().find(self.token()).unwrap()
    }

    fn call(&self, gw: &Toolway, name: &'static str, arguments: Value) -> Calling {
        let session = self.session(gw);
        let arguments = arguments.as_object().unwrap().clone();
        tokio::spawn(async move {
            session
                .call(name, arguments, RequestSource::default())
                .await
        })
    }

    fn call_weather(&self, gw: &Toolway) -> Calling {
        self.call(gw, "weather", json!({"city": "Köln"}))
    }
}

type Calling = JoinHandle<Result<ToolResult, CallError>>;

impl Reader {
    /// The next event's data; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            let event = self.block().await?;
            if event.starts_with(':') {
                continue;
            }
            let (id, data) = event.split_once('\n').expect("an id and data");
            self.last_id = Some(id.strip_prefix("id: ").unwrap().to_owned());
            let data = data.strip_prefix("data: ").unwrap();
            return Some(serde_json::from_str(data).unwrap());
        }
    }

    /// Reads the comment that fills a silence.
    async fn silence(&mut self) {
        while self.block().await.expect("the stream goes on") != ": keep-alive" {}
    }

    /// The lines up to the next empty one.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.rest.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.rest = rest;
                return Some(block);
            }
            let piece = timeout(PATIENCE, self.body.next())
                .await
                .expect("nothing came")?;
            self.rest
                .push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
    }

    /// The ids of the calls in the next event.
    pub async fn calls(&mut self) -> Vec<String> {
        let data = self.next().await.expect("an event");
        assert_eq!(data["type"], "tool_calls", "{data}");
        let calls = data["tool_calls"].as_array().unwrap();
        let id = |call: &Value| call["id"].as_str().unwrap().to_owned();
        calls.iter().map(id).collect()
    }

    pub async fn one_call(&mut self) -> String {
        let mut calls = self.calls().await;
        assert_eq!(calls.len(), 1, "{calls:?}");
        calls.remove(0)
    }

    async fn ends_with(mut self, kind: &str) {
        assert_eq!(self.next().await, Some(json!({"type": kind})));
        assert_eq!(self.next().await, None);
    }
}

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_session_says_where_it_is_and_until_when() {
    let gw = start("").await;
    let body = json!({"tools": weather(), "expires_in": 60, "name": "job 7"});
    let lent = Lent::open(&gw, body).await;
    let (base, id, token) = (&gw.base, &lent.id, lent.token());
    assert!(token.len() >= 32 && !lent.id.contains(token));
    let created = lent.answer["created"].as_u64().unwrap();
    let expected = json!({
        "id": id,
        "object": "mcp_session",
        "url": format!("{base}/mcp/s/{token}"),
        "events_url": format!("{base}/v1/mcp_sessions/{id}/events"),
        "responses_url": format!("{base}/v1/mcp_sessions/{id}/tool_responses"),
        "created": created,
        "expires_at": created + 60,
        "name": "job 7",
        "tools": ["weather", "a_time"],
    });
    assert_eq!(lent.answer, expected);
    let calling = lent.call_weather(&gw);
    let mut reader = lent.events(&gw, None).await;
    let call = reader.one_call().await;
    let (status, shown) = lent.ask(&gw, Method::GET).await;
    let mut expected = expected;
    expected["open_calls"] = json!([{"id": call, "name": "weather"}]);
    expected["has_reader"] = json!(true);
    assert_eq!((status, shown), (200, expected));
    calling.abort();
    gw.join().await;
}

#[tokio::test]
async fn calls_are_answered_whatever_their_order() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let mut reader = lent.events(&gw, None).await;
    let first = lent.call(&gw, "a_time", json!({}));
    let first_id = reader.one_call().await;
    let second = lent.call(&gw, "weather", json!({"city": "Köln"}));
    let data = reader.next().await.unwrap();
    let call = &data["tool_calls"][0];
    assert_eq!(call["type"], "function");
    let function = json!({"name": "weather", "arguments": "{\"city\":\"Köln\"}"});
    assert_eq!(call["function"], function);
    let second_id = call["id"].as_str().unwrap();
    let receipt = lent
        .respond(
            &gw,
            json!([
                {"role": "assistant", "content": null},
                {"role": "tool", "tool_call_id": second_id, "content": "rain"},
                {"role": "tool", "tool_call_id": "call_x", "content": "?"},
                {"role": "tool", "tool_call_id": first_id, "content": "noon"},
                {"role": "tool", "tool_call_id": first_id, "content": "night"},
            ]),
        )
        .await;
    let expected = json!({
        "accepted": [second_id, first_id], "unknown": ["call_x"], "answered_already": [first_id],
    });
    assert_eq!(receipt, expected);
    assert_eq!(first.await.unwrap(), Ok(ToolResult::text("noon")));
    assert_eq!(second.await.unwrap(), Ok(ToolResult::text("rain")));
    gw.join().await;
}

#[tokio::test]
async fn an_output_can_be_an_object_or_a_failure() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let mut reader = lent.events(&gw, None).await;
    let calling = lent.call_weather(&gw);
    let id = reader.one_call().await;
    lent.answer(&gw, &id, json!({"degrees": 7})).await;
    let result = calling.await.unwrap().unwrap();
    assert_eq!(result.structured_content, Some(json!({"degrees": 7})));
    assert!(!result.is_error);
    let calling = lent.call_weather(&gw);
    let id = reader.one_call().await;
    let failed = json!({"tool_responses": [{"tool_call_id": id, "error": "no such city"}]});
    lent.respond(&gw, failed).await;
    let result = calling.await.unwrap().unwrap();
    assert!(result.is_error);
    assert_eq!(result.content, ToolResult::text("no such city").content);
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_is_taken_back_from_the_caller() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let mut reader = lent.events(&gw, None).await;
    let calling = lent.call_weather(&gw);
    let id = reader.one_call().await;
    calling.abort();
    let cancelled = json!({"type": "tool_call.cancelled", "tool_call_id": id});
    assert_eq!(reader.next().await, Some(cancelled));
    let receipt = lent
        .respond(&gw, json!([{"tool_call_id": id, "output": 1}]))
        .await;
    assert_eq!(receipt["unknown"], json!([id]));
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_nobody_answers_ends_in_time() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather(), "call_timeout": 1})).await;
    let mut reader = lent.events(&gw, None).await;
    let calling = lent.call_weather(&gw);
    let id = reader.one_call().await;
    let cancelled = json!({"type": "tool_call.cancelled", "tool_call_id": id});
    assert_eq!(reader.next().await, Some(cancelled));
    assert!(matches!(
        calling.await.unwrap(),
        Err(CallError::Timeout { .. })
    ));
    gw.join().await;
}

#[tokio::test]
async fn a_caller_that_comes_back_is_told_of_what_is_open_and_what_is_gone() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let mut reader = lent.events(&gw, None).await;
    let stays = lent.call_weather(&gw);
    let stays_id = reader.one_call().await;
    let goes = lent.call_weather(&gw);
    let goes_id = reader.one_call().await;
    let last_id = reader.last_id.clone();
    drop(reader);
    let session = lent.session(&gw);
    eventually("the reader is gone", || !session.has_reader()).await;
    goes.abort();
    eventually("one call is open", || session.open_calls().len() == 1).await;
    let mut reader = lent.events(&gw, last_id.as_deref()).await;
    assert_eq!(reader.one_call().await, stays_id);
    let cancelled = json!({"type": "tool_call.cancelled", "tool_call_id": goes_id});
    assert_eq!(reader.next().await, Some(cancelled));
    lent.answer(&gw, &stays_id, json!("rain")).await;
    assert_eq!(stays.await.unwrap(), Ok(ToolResult::text("rain")));
    gw.join().await;
}

#[tokio::test]
async fn the_newest_reader_takes_over() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let first = lent.events(&gw, None).await;
    let mut second = lent.events(&gw, Some("garbage")).await;
    first.ends_with("reader.replaced").await;
    let calling = lent.call_weather(&gw);
    let id = second.one_call().await;
    lent.answer(&gw, &id, json!("rain")).await;
    assert!(calling.await.unwrap().is_ok());
    gw.join().await;
}

#[tokio::test]
async fn a_reader_with_nothing_to_read_is_kept_awake() {
    let gw = start("[loop]\nkeepalive = \"50ms\"\n").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let mut reader = lent.events(&gw, None).await;
    reader.silence().await;
    reader.silence().await;
    let calling = lent.call_weather(&gw);
    reader.one_call().await;
    calling.abort();
    gw.join().await;
}

#[tokio::test]
async fn a_session_that_is_ended_fails_its_calls_and_is_gone() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let mut reader = lent.events(&gw, None).await;
    let calling = lent.call_weather(&gw);
    reader.one_call().await;
    let (status, answer) = lent.ask(&gw, Method::DELETE).await;
    let deleted = json!({"id": lent.id, "object": "mcp_session.deleted", "deleted": true});
    assert_eq!((status, answer), (200, deleted));
    reader.ends_with("session.deleted").await;
    let error = calling.await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the session that lent this tool was ended by its owner"
    );
    for method in [Method::GET, Method::DELETE] {
        let (status, answer) = lent.ask(&gw, method).await;
        assert_eq!((status, code(&answer)), (404, "mcp_session_not_found"));
    }
    assert!(gw.gateway.mcp_sessions().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn a_gateway_that_stops_tells_its_readers_and_does_not_wait_for_them() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let reader = lent.events(&gw, None).await;
    let begun = Instant::now();
    gw.join().await;
    assert!(begun.elapsed() < Duration::from_secs(4), "it waited");
    reader.ends_with("session.stopped").await;
}

#[tokio::test]
async fn only_the_key_that_opened_a_session_gets_at_it() {
    let gw = start("api_keys = [\"one\", \"two\"]\n").await;
    let lent = Lent::open_as(&gw, json!({"tools": weather()}), Some("one")).await;
    let body = || Some(json!({"tool_responses": []}));
    for (method, path, body) in [
        (Method::POST, "/v1/mcp_sessions".to_owned(), body()),
        (Method::GET, lent.path(""), None),
        (Method::GET, lent.path("/events"), None),
        (Method::POST, lent.path("/tool_responses"), body()),
        (Method::DELETE, lent.path(""), None),
    ] {
        for key in [None, Some("three"), Some(lent.token())] {
            let (status, answer) = send(&gw, method.clone(), &path, key, body.clone()).await;
            assert_eq!(
                (status, code(&answer)),
                (401, "invalid_api_key"),
                "{method} {path}"
            );
        }
        if path != "/v1/mcp_sessions" {
            let (status, answer) =
                send(&gw, method.clone(), &path, Some("two"), body.clone()).await;
            assert_eq!(
                (status, code(&answer)),
                (404, "mcp_session_not_found"),
                "{method} {path}"
            );
        }
    }
    let url = format!("{}{}", gw.base, lent.path(""));
    let request = gw.http.get(url).header("authorization", "bearer  one");
    assert_eq!(request.send().await.unwrap().status(), 200);
    let mut reader = lent.events(&gw, None).await;
    let _calling = lent.call_weather(&gw);
    reader.one_call().await;
    gw.join().await;
}

#[tokio::test]
async fn the_token_opens_nothing_of_the_callers_and_the_id_nothing_of_the_agents() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let path = format!("/v1/mcp_sessions/{}", lent.token());
    let (status, answer) = send(&gw, Method::GET, &path, None, None).await;
    assert_eq!((status, code(&answer)), (404, "mcp_session_not_found"));
    let path = format!("/mcp/s/{}", lent.id);
    let (status, answer) = send(&gw, Method::POST, &path, None, Some(json!({}))).await;
    assert_eq!((status, code(&answer)), (404, "mcp_session_not_found"));
    gw.join().await;
}

#[tokio::test]
async fn an_agent_with_an_unknown_token_is_told_so_before_its_body_is_read() {
    let gw = start("api_keys = [\"one\"]\n").await;
    let silent = reqwest::Body::wrap_stream(futures::stream::pending::<reqwest::Result<&str>>());
    let request = gw.http.post(format!("{}/mcp/s/unknown", gw.base));
    let response = request.body(silent).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    gw.join().await;
}

#[tokio::test]
async fn what_cannot_be_offered_is_refused_with_its_place() {
    let gw = start("").await;
    let twice = json!([weather()[0], weather()[0]]);
    let broken = json!([weather()[0], {"type": "function", "function": {
        "name": "b", "parameters": {"type": "object", "properties": {"x": {"type": "strin"}}},
    }}]);
    let many: Vec<Value> = (0..5001)
        .map(|n| json!({"name": format!("f{n}")}))
        .collect();
    for (body, its_code, param) in [
        (json!({}), "missing_required_parameter", "tools"),
        (json!({"tools": 1}), "invalid_type", "tools"),
        (
            json!({"tools": twice}),
            "invalid_value",
            "tools[1].function.name",
        ),
        (
            json!({"tools": broken}),
            "invalid_value",
            "tools[1].function.parameters",
        ),
        (json!({"tools": many}), "invalid_value", "tools"),
        (
            json!({"tools": weather(), "expires_in": 5}),
            "invalid_value",
            "expires_in",
        ),
        (
            json!({"tools": weather(), "x": 5}),
            "unknown_parameter",
            "x",
        ),
    ] {
        let (status, answer) = send(&gw, Method::POST, "/v1/mcp_sessions", None, Some(body)).await;
        assert_eq!((status, code(&answer)), (400, its_code), "{answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
    }
    assert!(gw.gateway.mcp_sessions().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn five_thousand_functions_can_be_lent() {
    let gw = start("").await;
    let all: Vec<Value> = (0..5000)
        .map(|n| json!({"name": format!("f{n}")}))
        .collect();
    let lent = Lent::open(&gw, json!({"functions": all})).await;
    let calling = lent.call(&gw, "f4999", json!({}));
    let mut reader = lent.events(&gw, None).await;
    let id = reader.one_call().await;
    lent.answer(&gw, &id, json!("ok")).await;
    assert!(calling.await.unwrap().is_ok());
    gw.join().await;
}

#[tokio::test]
async fn what_is_below_a_session_is_never_passed_on_to_an_upstream() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    for path in [
        lent.path("/event"),
        lent.path("/events/x"),
        lent.path("").replace("sessions/", "sessions%2F"),
        lent.path("").replace("mcp", "MCP"),
    ] {
        let (status, answer) = send(&gw, Method::GET, &path, None, None).await;
        assert_eq!((status, code(&answer)), (404, "unknown_url"), "{path}");
    }
    let (status, answer) = send(&gw, Method::GET, "/v1/mcp_sessions", None, None).await;
    assert_eq!((status, code(&answer)), (405, "method_not_allowed"));
    assert_eq!(gw.model.asked().len(), 0);
    gw.join().await;
}

/// A way to toolway whose connections break when they are told to.
struct Frail {
    base: String,
    cuts: broadcast::Sender<()>,
    _accepting: AbortOnDropHandle<()>,
}

impl Frail {
    async fn to(gw: &Toolway) -> Frail {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let target = gw.base.strip_prefix("http://").unwrap().to_owned();
        let cuts = broadcast::Sender::new(1);
        let accepting = tokio::spawn({
            let cuts = cuts.clone();
            async move {
                loop {
                    let (mut near, _) = listener.accept().await.unwrap();
                    let mut far = TcpStream::connect(&target).await.unwrap();
                    let mut cut = cuts.subscribe();
                    tokio::spawn(async move {
                        tokio::select! {
                            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                            _ = cut.recv() => {}
                        }
                    });
                }
            }
        });
        Frail {
            base,
            cuts,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }
}

/// The first block of this language in the page on sessions.
fn example(language: &str) -> &'static str {
    let page = include_str!("../../docs/mcp-sessions.md");
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

#[tokio::test]
#[ignore = "needs Python 3 and Node 18 or newer"]
async fn the_examples_of_the_docs_work() {
    let gw = start("").await;
    let way = Frail::to(&gw).await;
    for (language, program, arguments) in [
        ("python", "python3", ["-u", "-c"]),
        ("js", "node", ["--input-type=module", "-e"]),
    ] {
        let code = example(language).replace("http://127.0.0.1:4242", &way.base);
        let mut child = tokio::process::Command::new(program)
            .args(arguments)
            .arg(code)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap();
        let line = line.unwrap().expect("the URL");
        let (start, token) = line.rsplit_once("/mcp/s/").expect("a URL");
        assert!(start.ends_with(&way.base), "{line}");
        let session = gw.gateway.mcp_sessions().find(token).unwrap();
        for number in [7, 8] {
            let arguments = json!({"number": number}).as_object().unwrap().clone();
            let result = session
                .call("get_order", arguments, RequestSource::default())
                .await
                .unwrap();
            let order = json!({"number": number, "status": "shipped"});
            assert_eq!(result.structured_content, Some(order), "{language}");
            // The next call finds nobody at first.
            way.cuts.send(()).unwrap();
            eventually("the reader is gone", || !session.has_reader()).await;
        }
        eventually("the reader is back", || session.has_reader()).await;
        assert!(gw.gateway.mcp_sessions().end(session.id(), 0));
        let status = timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{language}: {status}");
    }
    gw.join().await;
}
