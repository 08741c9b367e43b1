//! The one line that the log gets for each request when it ends.

use std::{
    fmt,
    sync::{Arc, LazyLock, Mutex},
};

use reqwest::header::HeaderValue;
use serde_json::{Map, Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tracing::{
    Dispatch, Event, Subscriber,
    field::{Field, Visit},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt},
};

use crate::{
    harness::{Toolway, eventually, toolway},
    model::{Model, Reply, Then, call, events, raw, say},
    tools::{Does, tools},
};

/// What is logged on this thread; the runtime of a test has no other.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Map<String, Value>>>>);

/// The fields of an event, the message among them.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = Value::from(format!("{value:?}"));
        self.0.insert(field.name().to_owned(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level().to_string();
        fields.0.insert("level".to_owned(), level.into());
        if event.metadata().target().starts_with("toolway") {
            self.0.lock().unwrap().push(fields.0);
        }
    }
}

impl Log {
    pub fn start() -> (Log, DefaultGuard) {
        // With one subscriber alone, `tracing` asks the thread's own whether an event is of interest, and remembers for
        // all threads what a thread without one says.
        static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Registry::default()));
        LazyLock::force(&SECOND);
        let log = Log::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
        (log, guard)
    }

    /// The messages, in order.
    fn messages(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        let messages = lines.iter().filter_map(|line| line.get("message"));
        messages.map(|it| it.as_str().unwrap().to_owned()).collect()
    }

    /// The lines of requests that have ended.
    pub fn ended(&self) -> Vec<Value> {
        let lines = self.0.lock().unwrap();
        let ended = lines.iter().filter(|line| line["message"] == "Ended");
        ended.cloned().map(Value::Object).collect()
    }

    /// The one line of the one request; without its duration, which must be there.
    async fn only(&self) -> Value {
        eventually("the line", || !self.ended().is_empty()).await;
        let mut ended = self.ended();
        assert_eq!(ended.len(), 1, "{ended:?}");
        let mut line = ended.remove(0);
        let duration = line.as_object_mut().unwrap().remove("duration_ms");
        assert!(duration.unwrap().is_u64(), "{line}");
        line
    }
}

async fn start(script: impl IntoIterator<Item = Reply>) -> Toolway {
    let model = Model::start(script).await;
    let gw = toolway(model).server("calc", tools().add());
    gw.start().await
}

fn line(level: &str, outcome: &str, status: u16, more: Value) -> Value {
    let mut line =
        json!({"message": "Ended", "level": level, "outcome": outcome, "status": status});
    line.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    line
}

#[tokio::test]
async fn a_chat_is_one_line_with_what_it_cost() {
    let (log, _guard) = Log::start();
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"});
    let answer = json!({"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}});
    let gw = start([raw(200, "application/json", answer.to_string())]).await;
    gw.plain(json!({})).await;
    let more = json!({"model": "m", "upstream": "scripted", "rounds": 1, "calls": 0,
        "prompt_tokens": 7, "completion_tokens": 2});
    assert_eq!(log.only().await, line("INFO", "completed", 200, more));
    gw.join().await;
}

#[tokio::test]
async fn calls_that_no_model_made_are_counted() {
    let add = json!({"tool_call_id": "a", "tool": "calc__add", "args": {"a": 1, "b": 2}});
    let mut event = add.clone();
    event["type"] = json!("tool_use_requested");
    let function = json!({"name": "calc__add", "arguments": "{\"a\": 1, \"b\": 2}"});
    let call = json!({"id": "a", "type": "function", "function": function});
    for (path, body) in [
        ("/v1/events", json!([event])),
        ("/v1/tool_calls", json!({"tool_calls": [call]})),
        ("/tools/calc__add", add["args"].clone()),
        ("/servers/calc/tools/add", add["args"].clone()),
    ] {
        let (log, _guard) = Log::start();
        let gw = start([]).await;
        let request = gw.http.post(format!("{}{path}", gw.base));
        let answer = request.body(body.to_string()).send().await.unwrap();
        answer.bytes().await.unwrap();
        let expected = line("INFO", "completed", 200, json!({"calls": 1}));
        assert_eq!(log.only().await, expected, "{path}");
        gw.join().await;
    }
}

#[tokio::test]
async fn an_approved_call_is_counted() {
    let (log, _guard) = Log::start();
    let add = crate::model::call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]);
    let gw = start([add, say("It is 3.")]).await;
    let entry = json!([{"type": "mcp", "server_label": "calc"}]);
    let first = json!({"model": "m", "input": "1 + 2?", "tools": entry});
    let first = crate::dialects::plain(&gw, "/v1/responses", first).await;
    let said = json!({"type": "mcp_approval_response", "approve": true,
        "approval_request_id": first["output"][1]["id"]});
    let next =
        json!({"model": "m", "input": [said], "tools": entry, "previous_response_id": first["id"]});
    crate::dialects::plain(&gw, "/v1/responses", next).await;
    eventually("both lines", || log.ended().len() == 2).await;
    let calls: Vec<Value> = log.ended().iter().map(|it| it["calls"].clone()).collect();
    assert_eq!(calls, [0, 1]);
    gw.join().await;
}

#[tokio::test]
async fn a_stream_has_its_line_at_its_end() {
    let (log, _guard) = Log::start();
    let add = ("c", "calc__add", json!({"a": 1, "b": 2}));
    let gw = start([call(&[add]), say("3")]).await;
    gw.streamed(json!({})).await;
    let found = log.only().await;
    for (member, expected) in [
        ("outcome", json!("completed")),
        ("rounds", json!(2)),
        ("calls", json!(1)),
    ] {
        assert_eq!(found[member], expected, "{found}");
    }
    let messages = log.messages();
    let at = |message: &str| messages.iter().position(|it| it == message);
    assert!(at("Called a tool").unwrap() < at("Ended").unwrap());
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_a_stream_has_its_line() {
    let (log, _guard) = Log::start();
    let chunk = r#"data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"hi"}}]}"#;
    let gw = start([events(&[&format!("{chunk}\n\n")], Then::Silence)]).await;
    let mut live = gw.live(json!({}), &[]).await;
    live.until("hi").await;
    assert!(log.ended().is_empty(), "it has not ended");
    drop(live);
    let more = json!({"model": "m", "upstream": "scripted", "rounds": 1, "calls": 0});
    assert_eq!(log.only().await, line("INFO", "client_left", 200, more));
    gw.join().await;
}

#[tokio::test]
async fn what_is_sent_to_the_upstream_again_is_counted_from_1() {
    let (log, _guard) = Log::start();
    let busy = raw(503, "application/json", r#"{"error":{"message":"no"}}"#);
    let gw = start([busy, say("hi")]).await;
    gw.plain(json!({})).await;
    let lines = log.0.lock().unwrap().clone();
    let again: Vec<_> = lines
        .iter()
        .filter(|it| it["message"] == "Asking the upstream again")
        .collect();
    assert_eq!(again.len(), 1, "{lines:?}");
    assert_eq!(again[0]["attempt"], 1);
    gw.join().await;
}

#[tokio::test]
async fn an_upstream_that_fails_is_named_with_its_reason() {
    let chunk = r#"data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"hi"}}]}"#;
    let broken = || events(&[&format!("{chunk}\n\n")], Then::Break);
    let refused = || raw(400, "application/json", r#"{"error":{"message":"no"}}"#);
    for (reply, streams, status) in [(broken(), true, 200), (refused(), false, 400)] {
        let (log, _guard) = Log::start();
        let gw = start([reply]).await;
        let answer = gw.send(json!({"stream": streams}), &[]).await;
        assert_eq!(answer.status(), status);
        let _ = answer.text().await;
        let found = log.only().await;
        assert_eq!(found["outcome"], "upstream_failed", "{found}");
        assert_eq!(found["level"], "WARN");
        assert_eq!(found["status"], status);
        assert_eq!(found["upstream"], "scripted");
        let error = found["error"].as_str().unwrap();
        assert!(
            error.contains("the upstream ") && !error.contains("scripted"),
            "{error}"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn a_key_is_named_by_its_place_and_never_shown() {
    let (log, _guard) = Log::start();
    let gw = toolway(Model::start([say("hi")]).await).config("api_keys = [\"key-a\", \"key-b\"]\n");
    let gw = gw.start().await;
    let key = ("authorization", "Bearer key-b");
    let answer = gw.send(json!({}), &[key]).await;
    answer.text().await.unwrap();
    assert_eq!(log.only().await["key"], "api_keys[1]");
    let wrong = gw
        .send(json!({}), &[("authorization", "Bearer key-c")])
        .await;
    wrong.text().await.unwrap();
    eventually("the second line", || log.ended().len() == 2).await;
    let second = &log.ended()[1];
    assert_eq!(second["outcome"], "refused", "{second}");
    assert_eq!(second["error"], "invalid_api_key");
    assert_eq!(second["key"], Value::Null);
    let all = json!(*log.0.lock().unwrap()).to_string();
    assert!(!all.contains("key-b") && !all.contains("key-c"), "{all}");
    gw.join().await;
}

#[tokio::test]
async fn a_forwarded_request_has_its_line_when_its_answer_was_passed_on() {
    let (log, _guard) = Log::start();
    let gw = start([]).await;
    let answer = gw.get("/v1/files").await;
    let status = answer.status().as_u16();
    answer.text().await.unwrap();
    let more = json!({"upstream": "scripted"});
    assert_eq!(log.only().await, line("INFO", "completed", status, more));
    gw.join().await;
}

#[tokio::test]
async fn a_header_that_selects_nothing_is_a_warning_to_the_client_and_in_the_log() {
    for (header, value, warns) in [
        ("x-toolway-servers", "typo", true),
        ("x-toolway-tools", "typo__*", true),
        ("x-toolway-servers", "calc", false),
        ("x-toolway-tools", "none", false),
    ] {
        let (log, _guard) = Log::start();
        let gw = start([say("hi")]).await;
        let answer = gw.send(json!({"stream": true}), &[(header, value)]).await;
        let warning = answer.headers().get("x-toolway-warning").cloned();
        answer.text().await.unwrap();
        let found = log.only().await;
        assert_eq!(warning.is_some(), warns, "{value}");
        if let Some(warning) = warning {
            let warning = warning.to_str().unwrap();
            assert!(warning.to_ascii_lowercase().contains(header), "{warning}");
            assert_eq!(found["warning"], warning);
        }
        gw.join().await;
    }
}

/// Sends a request that breaks off in its body, and goes.
async fn break_off(gw: &Toolway, path: &str) {
    let address = gw.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_in_its_own_body_has_left() {
    for path in ["/v1/chat/completions", "/v1/files", "/mcp"] {
        let (log, _guard) = Log::start();
        let gw = start([]).await;
        break_off(&gw, path).await;
        let found = log.only().await;
        assert_eq!(found["outcome"], "client_left", "{path}: {found}");
        assert_eq!(found["level"], "INFO");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_body_that_is_no_http_is_refused() {
    for path in ["/v1/chat/completions", "/v1/files"] {
        let (log, _guard) = Log::start();
        let gw = start([]).await;
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"
        );
        let (status, answer) = gw.raw(&request).await;
        assert_eq!(status, 408, "{answer}");
        assert_eq!(log.only().await["outcome"], "refused");
        gw.join().await;
    }
}

#[tokio::test]
async fn what_mcp_refuses_has_its_reason() {
    let json = ("content-type", "application/json");
    let (both, text) = (
        ("accept", "application/json, text/event-stream"),
        ("content-type", "text/plain"),
    );
    for (path, headers, body, status, error) in [
        ("/mcp", [json, both], "{bad", 400, "JSON-RPC error -32700"),
        ("/mcp", [json, both], "{}", 400, "JSON-RPC error -32600"),
        ("/mcp", [text, both], "{}", 415, "application/json"),
        ("/sse", [json, both], "{}", 404, "JSON-RPC error -32001"),
        ("/mcp/s/", [text, both], "{}", 415, "application/json"),
        (
            "/mcp/s/",
            [json, both],
            "{bad",
            400,
            "JSON-RPC error -32700",
        ),
    ] {
        let (log, _guard) = Log::start();
        let gw = start([]).await;
        let order = br#"{"tools": [{"name": "f"}]}"#.as_slice();
        let lent = gw
            .gateway
            .mcp_sessions()
            .open(order.into(), 0)
            .await
            .unwrap();
        let path = match path {
            "/mcp/s/" => format!("{path}{}", lent.token()),
            path => path.to_owned(),
        };
        let mut request = gw.http.post(format!("{}{path}", gw.base)).body(body);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        assert_eq!(request.send().await.unwrap().status(), status, "{body}");
        let found = log.only().await;
        assert_eq!(found["outcome"], "refused", "{found}");
        assert!(found["error"].as_str().unwrap().contains(error), "{found}");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_stream_that_ends_because_toolway_stops_says_so() {
    for path in ["/sse", "/v1/mcp_sessions/ID/events"] {
        let (log, _guard) = Log::start();
        let mut gw = start([]).await;
        let order = br#"{"tools": [{"name": "f"}]}"#.as_slice();
        let lent = gw
            .gateway
            .mcp_sessions()
            .open(order.into(), 0)
            .await
            .unwrap();
        let path = path.replace("ID", lent.id());
        let stream = gw.http.get(format!("{}{path}", gw.base));
        let stream = stream.header("accept", "text/event-stream");
        let stream = stream.send().await.unwrap();
        gw.stop();
        stream.text().await.unwrap();
        let found = log.only().await;
        assert_eq!(found["outcome"], "stopped", "{found}");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_chat_that_ends_because_toolway_stops_says_so() {
    for has_tools in [true, false] {
        let (log, _guard) = Log::start();
        let gw = toolway(Model::start([events(&[crate::stopping::TEXT], Then::Silence)]).await);
        let gw = gw.config("shutdown_grace = \"100ms\"\n");
        let gw = match has_tools {
            true => gw.server("calc", tools().add()),
            false => gw,
        };
        let mut gw = gw.start().await;
        let mut live = gw.live(json!({}), &[]).await;
        live.until("first").await;
        gw.stop();
        live.end().await;
        let found = log.only().await;
        assert_eq!(found["outcome"], "stopped", "{found}");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_call_over_mcp_that_ends_because_toolway_stops_says_so() {
    let (log, _guard) = Log::start();
    let gw = toolway(Model::start([]).await).config("shutdown_grace = \"100ms\"\n");
    let mut gw = gw
        .server("s", tools().tool("holds", Does::Holds))
        .start()
        .await;
    let post = |gw: &Toolway, body: Value, session: Option<&HeaderValue>| {
        let request = gw
            .http
            .post(format!("{}/mcp", gw.base))
            .body(body.to_string());
        let request = request.header("accept", "application/json, text/event-stream");
        let request = request.header("content-type", "application/json");
        match session {
            Some(id) => request.header("mcp-session-id", id).send(),
            None => request.send(),
        }
    };
    let begin = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}});
    let begun = post(&gw, begin, None).await.unwrap();
    let session = begun.headers().get("mcp-session-id");
    let call =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "s__holds"}});
    let calling = tokio::spawn(post(&gw, call, session));
    eventually("the call", || !gw.servers[0].calls().is_empty()).await;
    gw.stop();
    let answer = calling.await.unwrap().unwrap().text().await.unwrap();
    assert!(answer.contains("shutting down"), "{answer}");
    eventually("the lines", || log.ended().len() == 2).await;
    let [begun, called] = &log.ended()[..] else {
        panic!("{:?}", log.ended())
    };
    assert_eq!(called["outcome"], "stopped");
    assert_eq!(begun["rpc_method"], "initialize");
    assert_eq!(
        (&called["rpc_method"], &called["calls"]),
        (&json!("tools/call"), &json!(1))
    );
    gw.join().await;
}

const KEY: &str = "sk-proj-4f9aB7";

#[tokio::test]
async fn the_words_of_an_upstream_reach_the_client_and_not_the_log() {
    let error = json!({"error": {"message": format!("Incorrect API key provided: {KEY}"),
        "type": "invalid_request_error", "param": null, "code": "invalid_api_key"}});
    let refused = || raw(401, "application/json", error.to_string());
    let event = format!("data: {error}\n\n");
    let streamed = || events(&[&event], Then::End);
    for (reply, streams) in [(refused(), false), (refused(), true), (streamed(), true)] {
        let (log, _guard) = Log::start();
        let gw = start([reply]).await;
        let answer = gw.send(json!({"stream": streams}), &[]).await;
        let answer = answer.text().await.unwrap();
        assert!(answer.contains(KEY), "{answer}");
        let found = log.only().await;
        let why = found["error"].as_str().unwrap();
        assert!(why.contains("invalid_api_key"), "{why}");
        let all = json!(*log.0.lock().unwrap()).to_string();
        assert!(!all.contains(KEY), "{all}");
        gw.join().await;
    }
}

#[tokio::test]
async fn the_words_of_a_tool_server_reach_the_model_and_not_the_log() {
    let (log, _guard) = Log::start();
    let model = Model::start([call(&[("c", "s__fails", json!({}))]), say("no")]).await;
    let error = json!({"code": -32000, "message": format!("bad key {KEY}")});
    let fails = tools().tool("fails", Does::Refuses(error));
    let gw = toolway(model).server("s", fails).start().await;
    gw.plain(json!({})).await;
    let told = gw.model.messages(1).last().unwrap().to_string();
    assert!(told.contains(KEY), "{told}");
    let all = json!(*log.0.lock().unwrap()).to_string();
    assert!(all.contains("-32000") && !all.contains(KEY), "{all}");
    gw.join().await;
}
