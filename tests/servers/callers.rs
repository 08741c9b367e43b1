//! Servers that turn to whoever a request is made for, while it runs.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::{sync::Notify, task::JoinHandle};
use toolway::upstream::mcp::{CallOptions, Caller, Servers};
use toolway_protocol::{
    mcp::rpc::RpcError,
    tool::{CallError, JsonObject},
};

use crate::{
    harness::{PATIENCE, Rig, id, options},
    site::{Script, Site},
};

/// A client that notes what it is asked and told, and answers with its name.
pub(crate) struct Client {
    name: &'static str,
    capabilities: Value,
    /// It answers only after this was rung.
    gate: Option<Notify>,
    pub(crate) asked: Mutex<Vec<(String, Value)>>,
    pub(crate) told: Mutex<Vec<(String, Value)>>,
    /// Questions that were taken back.
    dropped: AtomicUsize,
}

impl Client {
    pub(crate) fn new(name: &'static str, capabilities: Value) -> Arc<Client> {
        Arc::new(Client::build(name, capabilities, None))
    }

    /// A client that does not answer until its gate is opened.
    fn gated(name: &'static str) -> Arc<Client> {
        Arc::new(Client::build(name, everything(), Some(Notify::new())))
    }

    fn build(name: &'static str, capabilities: Value, gate: Option<Notify>) -> Client {
        Client {
            name,
            capabilities,
            gate,
            asked: Mutex::default(),
            told: Mutex::default(),
            dropped: AtomicUsize::new(0),
        }
    }

    fn was_asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

struct CountDrop<'a>(&'a AtomicUsize, bool);

impl Drop for CountDrop<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Caller for Client {
    fn capabilities(&self) -> &Value {
        &self.capabilities
    }

    fn ask<'a>(&'a self, method: &'a str, params: Value) -> BoxFuture<'a, Result<Value, RpcError>> {
        Box::pin(async move {
            self.asked.lock().unwrap().push((method.to_owned(), params));
            let mut dropped = CountDrop(&self.dropped, false);
            if let Some(gate) = &self.gate {
                gate.notified().await;
            }
            dropped.1 = true;
            let roots = [json!({"uri": format!("file:///{}", self.name)})];
            Ok(json!({"by": self.name, "x-new": null, "roots": roots}))
        })
    }

    fn tell(&self, method: &str, params: Value) {
        self.told.lock().unwrap().push((method.to_owned(), params));
    }
}

pub(crate) fn everything() -> Value {
    json!({"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {}})
}

pub(crate) fn made_for(client: &Arc<Client>) -> CallOptions {
    CallOptions {
        caller: Some(Arc::clone(client) as Arc<dyn Caller>),
        ..options()
    }
}

fn object(value: Value) -> JsonObject {
    value.as_object().cloned().unwrap_or_default()
}

async fn call(
    servers: &Servers,
    arguments: Value,
    options: CallOptions,
) -> Result<Value, CallError> {
    let params = object(json!({"name": "act", "arguments": arguments}));
    let server = id("s");
    let request = servers.request(&server, "tools/call", &params, options);
    let done = tokio::time::timeout(PATIENCE, request).await;
    done.expect("the request ends")
}

/// The one text of a raw result, which is JSON.
#[track_caller]
fn told_back(result: Result<Value, CallError>) -> Value {
    let result = result.unwrap();
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

fn beside(
    rig: &Rig,
    arguments: Value,
    client: &Arc<Client>,
) -> JoinHandle<Result<Value, CallError>> {
    let (servers, options) = (Arc::clone(&rig.servers), made_for(client));
    tokio::spawn(async move { call(&servers, arguments, options).await })
}

/// What a server asks, with members that nobody has heard of.
fn elicitation() -> Value {
    json!({"do": "ask", "method": "elicitation/create", "params": {
        "message": "?", "x-new": [null, {"a": 1}], "_meta": {"b": 2},
        "requestedSchema": {"type": "object", "properties": {"n": {"type": "string", "default": "x", "x-unknown": 1}}},
    }})
}

fn sampling() -> Value {
    json!({"do": "ask", "method": "sampling/createMessage", "params": {
        "messages": [{"role": "user", "content": {"type": "video", "x": 1}}], "maxTokens": 1, "x-new": 1,
    }})
}

#[tokio::test]
async fn a_server_asks_the_caller_and_nothing_is_lost_either_way() {
    for script in [json!({}), json!({"versions": ["2024-11-05"]})] {
        let rig = Rig::scripted(script).await;
        for arguments in [elicitation(), sampling()] {
            let client = Client::new("one", everything());
            let answer = call(&rig.servers, arguments.clone(), made_for(&client)).await;
            assert_eq!(
                told_back(answer)["result"],
                json!({"by": "one", "x-new": null, "roots": [{"uri": "file:///one"}]})
            );
            let method = arguments["method"].as_str().unwrap().to_owned();
            let asked = client.asked.lock().unwrap().clone();
            assert_eq!(asked, [(method, arguments["params"].clone())]);
        }
    }
}

#[tokio::test]
async fn over_http_the_stream_tells_which_caller_is_asked() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let (one, other) = (Client::gated("one"), Client::gated("other"));
    let calls = [
        beside(&rig, elicitation(), &one),
        beside(&rig, sampling(), &other),
    ];
    rig.until("both are asked", |_| {
        one.was_asked() == 1 && other.was_asked() == 1
    })
    .await;
    for (client, call) in [&one, &other].into_iter().zip(calls) {
        client.gate.as_ref().unwrap().notify_one();
        assert_eq!(told_back(call.await.unwrap())["result"]["by"], client.name);
    }
    assert_eq!(one.asked.lock().unwrap()[0].0, "elicitation/create");
    assert_eq!(one.asked.lock().unwrap()[0].1, elicitation()["params"]);
    assert_eq!(other.asked.lock().unwrap()[0].0, "sampling/createMessage");
}

#[tokio::test]
async fn over_http_a_stream_that_was_resumed_still_tells_which_caller_is_asked() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let (one, other) = (Client::gated("one"), Client::gated("other"));
    let calls = [&one, &other].map(|client| {
        let mut arguments = elicitation();
        arguments["resumed"] = json!(true);
        beside(&rig, arguments, client)
    });
    rig.until("both are asked", |_| {
        one.was_asked() == 1 && other.was_asked() == 1
    })
    .await;
    for (client, call) in [one, other].into_iter().zip(calls) {
        client.gate.as_ref().unwrap().notify_one();
        assert_eq!(told_back(call.await.unwrap())["result"]["by"], client.name);
    }
}

#[tokio::test]
async fn over_http_a_stream_of_no_request_asks_the_only_caller() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    rig.until("somebody listens", |_| site.is_listened_to())
        .await;
    let client = Client::new("one", everything());
    let mut arguments = elicitation();
    arguments["aside"] = json!(true);
    let answer = call(&rig.servers, arguments, made_for(&client)).await;
    assert_eq!(told_back(answer)["result"]["by"], "one");
}

#[tokio::test]
async fn over_legacy_sse_the_only_caller_is_asked() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/sse", None)]).await;
    let client = Client::new("one", everything());
    let answer = call(&rig.servers, elicitation(), made_for(&client)).await;
    assert_eq!(told_back(answer)["result"]["by"], "one");
    assert_eq!(client.asked.lock().unwrap()[0].1, elicitation()["params"]);
}

#[tokio::test]
async fn on_a_pipe_nobody_is_asked_for_another() {
    let rig = Rig::scripted(json!({})).await;
    let (one, other) = (
        Client::new("one", everything()),
        Client::new("other", everything()),
    );
    let flag = rig.dir.path().join("flag");
    let waiting = json!({"do": "wait", "file": flag});
    let first = beside(&rig, waiting, &one);
    // Answers only after the one before it was read.
    call(&rig.servers, json!({}), made_for(&other))
        .await
        .unwrap();
    let refused = told_back(call(&rig.servers, elicitation(), made_for(&other)).await);
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains("stateful")
    );

    // A call that is made for no client counts, too.
    let refused = told_back(call(&rig.servers, elicitation(), options()).await);
    assert_eq!(refused["error"]["code"], -32600, "{refused}");

    // The same caller with two calls is no question.
    let answer = told_back(call(&rig.servers, elicitation(), made_for(&one)).await);
    assert_eq!(answer["result"]["by"], "one");
    std::fs::write(flag, "").unwrap();
    first.await.unwrap().unwrap();
    assert_eq!(other.was_asked(), 0);

    // And the next who is alone is asked.
    let answer = told_back(call(&rig.servers, elicitation(), made_for(&other)).await);
    assert_eq!(answer["result"]["by"], "other");
}

#[tokio::test]
async fn the_capability_that_a_caller_lacks_is_named() {
    let rig = Rig::scripted(json!({})).await;
    let client = Client::new("one", json!({"roots": {}}));
    let answer = told_back(call(&rig.servers, sampling(), made_for(&client)).await);
    assert_eq!(answer["error"]["code"], -32601);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("`sampling`")
    );
    assert_eq!(client.was_asked(), 0);
}

#[tokio::test]
async fn silence_rests_while_the_caller_thinks() {
    let rig = Rig::scripted(json!({})).await;
    let client = Client::gated("one");
    let silence = Duration::from_millis(200);
    let options = CallOptions {
        silence,
        ..made_for(&client)
    };
    let servers = Arc::clone(&rig.servers);
    let running = tokio::spawn(async move { call(&servers, elicitation(), options).await });
    rig.until("the client is asked", |_| client.was_asked() == 1)
        .await;
    tokio::time::sleep(3 * silence).await;
    assert!(!running.is_finished(), "a thinking caller is no silence");
    client.gate.as_ref().unwrap().notify_one();
    assert_eq!(told_back(running.await.unwrap())["result"]["by"], "one");
}

#[tokio::test]
async fn the_deadline_holds_while_the_caller_thinks() {
    let rig = Rig::scripted(json!({})).await;
    let client = Client::gated("one");
    let options = CallOptions {
        deadline: tokio::time::Instant::now() + Duration::from_millis(300),
        ..made_for(&client)
    };
    let error = call(&rig.servers, elicitation(), options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "timeout");
    rig.until("the question is taken back", |_| {
        client.dropped.load(Ordering::Relaxed) == 1
    })
    .await;
}

#[tokio::test]
async fn a_question_that_the_server_takes_back_is_taken_back() {
    let rig = Rig::scripted(json!({})).await;
    let client = Client::gated("one");
    let running = beside(&rig, elicitation(), &client);
    rig.until("the client is asked", |_| client.was_asked() == 1)
        .await;
    call(&rig.servers, json!({"do": "take_back"}), made_for(&client))
        .await
        .unwrap();
    rig.until("the question is taken back", |_| {
        client.dropped.load(Ordering::Relaxed) == 1
    })
    .await;
    let result = running.await.unwrap().unwrap();
    assert_eq!(result["content"][0]["text"], "taken back");
}

#[tokio::test]
async fn what_a_server_logs_on_a_pipe_goes_to_the_only_caller_and_never_to_another() {
    let rig = Rig::scripted(json!({})).await;
    let mut events = rig.servers.events();
    let params = json!({"level": "info", "data": {"x": 1}, "x-new": 1});
    let log = json!({"do": "notify", "method": "notifications/message", "params": params});
    let client = Client::new("one", json!({}));
    call(&rig.servers, log.clone(), made_for(&client))
        .await
        .unwrap();
    let told = client.told.lock().unwrap().clone();
    assert_eq!(told, [("notifications/message".to_owned(), params)]);

    // What is logged for a chat is for nobody.
    call(&rig.servers, log.clone(), options()).await.unwrap();
    assert!(events.try_recv().is_err());

    let flag = rig.dir.path().join("flag");
    let waiting = beside(&rig, json!({"do": "wait", "file": flag}), &client);
    let other = Client::new("other", json!({}));
    call(&rig.servers, json!({}), made_for(&other))
        .await
        .unwrap();
    call(&rig.servers, log, made_for(&other)).await.unwrap();
    assert!(
        events.try_recv().is_err(),
        "it may be about the other's call"
    );
    assert!(other.told.lock().unwrap().is_empty());
    std::fs::write(flag, "").unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(client.told.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn over_http_a_log_belongs_to_the_call_on_whose_stream_it_comes() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let (one, other) = (
        Client::new("one", everything()),
        Client::new("other", everything()),
    );
    let calls = [&one, &other].map(|client| {
        let mut arguments = elicitation();
        arguments["log"] = json!(client.name);
        beside(&rig, arguments, client)
    });
    for call in calls {
        call.await.unwrap().unwrap();
    }
    for client in [one, other] {
        let told = client.told.lock().unwrap().clone();
        let params = json!({"level": "info", "data": client.name});
        assert_eq!(told, [("notifications/message".to_owned(), params)]);
    }
}

#[tokio::test]
async fn a_modern_server_hears_what_the_caller_can_do_and_not_what_others_can() {
    let rig = Rig::scripted(json!({"modern": true, "versions": []})).await;
    let can = |client: Option<&Arc<Client>>| {
        let options = client.map_or_else(options, made_for);
        let rig = &rig;
        async move {
            let params = told_back(call(&rig.servers, json!({"do": "params"}), options).await);
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"].clone()
        }
    };
    let capabilities = json!({"elicitation": {}, "x-new": {"a": 1}});
    let client = Client::new("one", capabilities.clone());
    assert_eq!(can(Some(&client)).await, capabilities);
    assert_eq!(can(None).await, json!({}));
}

#[tokio::test]
async fn what_a_client_sends_arrives_and_what_concerns_its_connection_does_not() {
    for script in [json!({}), json!({"modern": true, "versions": []})] {
        let is_modern = script["modern"] == true;
        let rig = Rig::scripted(script).await;
        let params = json!({
            "name": "act", "arguments": {"do": "params"}, "x-new": {"a": [null]},
            "inputResponses": {"q": {"action": "accept"}}, "requestState": "s",
            "_meta": {
                "traceparent": "00-1-2-01", "io.modelcontextprotocol/logLevel": "debug", "progressToken": "theirs",
                "io.modelcontextprotocol/protocolVersion": "2099-01-01",
                "io.modelcontextprotocol/clientInfo": {"name": "them"},
                "io.modelcontextprotocol/clientCapabilities": {"sampling": {}},
            },
        });
        let result = rig
            .servers
            .request(&id("s"), "tools/call", &object(params), options())
            .await;
        let mut got = told_back(result);
        let meta = got["_meta"].take();
        assert_eq!(meta["traceparent"], "00-1-2-01");
        assert_eq!(meta["io.modelcontextprotocol/logLevel"], "debug");
        assert_ne!(meta["progressToken"], "theirs");
        assert_ne!(meta["io.modelcontextprotocol/clientInfo"]["name"], "them");
        let version = meta["io.modelcontextprotocol/protocolVersion"].as_str();
        assert_eq!(version, is_modern.then_some("2026-07-28"));
        assert_eq!(got["x-new"], json!({"a": [null]}));
        assert_eq!(got["inputResponses"], json!({"q": {"action": "accept"}}));
        assert_eq!(got["requestState"], "s");
    }
}

#[tokio::test]
async fn a_server_that_wants_input_says_so_word_for_word() {
    let rig = Rig::scripted(json!({"modern": true, "versions": []})).await;
    let result = json!({
        "resultType": "input_required", "requestState": "opaque",
        "inputRequests": {"q": {"method": "elicitation/create", "params": {"x": 1}}},
    });
    let arguments = json!({"do": "result", "result": result});
    let raw = call(&rig.servers, arguments, options()).await.unwrap();
    assert_eq!(raw, result);
}

#[tokio::test]
async fn every_handshake_declares_what_some_client_could_do() {
    let rig = Rig::recording(json!({})).await;
    let record = rig.record();
    let hello = record.iter().find(|it| it["method"] == "initialize");
    let declared = &hello.unwrap()["params"]["capabilities"];
    for capability in ["sampling", "elicitation", "roots"] {
        assert!(declared[capability].is_object(), "{declared}");
    }
}
