//! The one line that the log gets for each request when it ends.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use serde_json::{Map, Value, json};
use tracing::{
    Event, Subscriber,
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
    tools::tools,
};

/// What is logged on this thread; the runtime of a test has no other.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Map<String, Value>>>>);

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
    fn start() -> (Log, DefaultGuard) {
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
    fn ended(&self) -> Vec<Value> {
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
