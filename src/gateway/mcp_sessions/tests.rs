use std::time::Duration;

use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};

use super::{answers::FunctionOutput, events::SessionEvents, session::Receipt, *};
use crate::gateway::RequestSource;
use toolway_protocol::tool::{CallError, ToolResult};

const HOUR: Duration = Duration::from_secs(3600);

/// A body that orders two functions for so many seconds.
fn weather(expires_in: u64) -> Bytes {
    let parameters = json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    });
    let body = json!({"call_timeout": 60, "expires_in": expires_in, "tools": [
        {"type": "function", "function": {"name": "weather", "parameters": parameters}},
        {"type": "function", "function": {"name": "a_tool"}},
    ]});
    body.to_string().into()
}

async fn open() -> (McpSessions, Arc<LendingSession>) {
    let all = McpSessions::start(Arc::default(), Arc::default());
    let session = all.open(weather(3600), 0).await.unwrap();
    (all, session)
}

type Outcome = Result<ToolResult, CallError>;

fn call(session: &Arc<LendingSession>, name: &str, arguments: Value) -> JoinHandle<Outcome> {
    let (session, name) = (session.clone(), name.to_owned());
    let Value::Object(arguments) = arguments else {
        panic!("arguments are an object");
    };
    tokio::spawn(async move {
        session
            .call(&name, arguments, RequestSource::default())
            .await
    })
}

fn call_weather(session: &Arc<LendingSession>) -> JoinHandle<Outcome> {
    call(session, "weather", json!({"city": "Köln"}))
}

/// The next event's data; with a paused clock this waits as long as it takes.
async fn next(events: &mut SessionEvents) -> Value {
    events.next().await.expect("an event").data
}

/// The ids of the calls that the next event hands over.
async fn ids(events: &mut SessionEvents) -> Vec<String> {
    let data = next(events).await;
    assert_eq!(data["type"], "tool_calls", "{data}");
    let calls = data["tool_calls"].as_array().unwrap();
    calls
        .iter()
        .map(|call| call["id"].as_str().unwrap().to_owned())
        .collect()
}

fn answer(session: &LendingSession, id: &str, text: &str) -> Receipt {
    session.respond(vec![FunctionOutput {
        id: id.to_owned(),
        result: ToolResult::text(text),
    }])
}

fn gone(message: &str, unsent: bool) -> Outcome {
    Err(CallError::UpstreamUnavailable {
        message: message.to_owned(),
        unsent,
    })
}

#[tokio::test(start_paused = true)]
async fn a_call_is_all_over_and_its_answer_comes_back() {
    let (_all, session) = open().await;
    let mut events = session.events(None);
    let calling = call_weather(&session);
    let event = events.next().await.unwrap();
    let id = event.data["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.starts_with("call_"), "{id}");
    let expected = json!({"type": "tool_calls", "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Köln\"}"}},
    ]});
    assert_eq!((event.id, &event.data), (1, &expected));
    let accepted = Receipt {
        accepted: vec![id.to_owned()],
        ..Receipt::default()
    };
    assert_eq!(answer(&session, id, "rain"), accepted);
    assert_eq!(calling.await.unwrap(), Ok(ToolResult::text("rain")));
    let again = Receipt {
        answered_already: vec![id.to_owned()],
        ..Receipt::default()
    };
    assert_eq!(answer(&session, id, "sun"), again);
    assert_eq!(session.open_calls(), []);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_not_all_over() {
    let (_all, session) = open().await;
    let wrong = call(&session, "weather", json!({"city": 7})).await.unwrap();
    assert!(
        matches!(&wrong, Err(CallError::InvalidParams { path, .. }) if path == "/city"),
        "{wrong:?}"
    );
    let unknown = call(&session, "wether", json!({})).await.unwrap();
    let expected = CallError::UnknownTool {
        name: "wether".into(),
        did_you_mean: vec!["weather".into()],
    };
    assert_eq!(unknown, Err(expected));
    let long = call(&session, "a_tool", json!({"x": "x".repeat(2 << 20)}));
    assert!(matches!(
        long.await.unwrap(),
        Err(CallError::InvalidParams { .. })
    ));
    assert_eq!(session.open_calls(), []);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_is_taken_back_and_the_reader_is_told() {
    let (_all, session) = open().await;
    let mut events = session.events(None);
    let calling = call_weather(&session);
    let id = ids(&mut events).await.remove(0);
    calling.abort();
    let expected = json!({"type": "tool_call.cancelled", "tool_call_id": id});
    assert_eq!(next(&mut events).await, expected);
    let unknown = Receipt {
        unknown: vec![id.clone()],
        ..Receipt::default()
    };
    assert_eq!(answer(&session, &id, "late"), unknown);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_ends_after_its_time() {
    let (_all, session) = open().await;
    let begun = Instant::now();
    let calling = call_weather(&session);
    let after = Duration::from_secs(60);
    assert_eq!(calling.await.unwrap(), Err(CallError::Timeout { after }));
    assert_eq!(begun.elapsed(), after);
}

#[tokio::test(start_paused = true)]
async fn too_many_open_calls_are_busy_and_cost_the_others_nothing() {
    let (_all, session) = open().await;
    let mut events = session.events(None);
    let calls: Vec<_> = (0..64).map(|_| call_weather(&session)).collect();
    let mut open = Vec::new();
    while open.len() < 64 {
        open.extend(ids(&mut events).await);
    }
    assert_eq!(call_weather(&session).await.unwrap(), Err(CallError::Busy));
    for id in &open {
        answer(&session, id, "ok");
    }
    for call in calls {
        assert_eq!(call.await.unwrap(), Ok(ToolResult::text("ok")));
    }
}

#[tokio::test(start_paused = true)]
async fn the_newest_reader_wins_and_gets_what_is_open() {
    let (_all, session) = open().await;
    let mut first = session.events(None);
    let _calling = call_weather(&session);
    let id = ids(&mut first).await;
    let mut second = session.events(None);
    assert_eq!(ids(&mut second).await, id);
    assert_eq!(next(&mut first).await, json!({"type": "reader.replaced"}));
    assert_eq!(first.next().await, None);
    drop(first);
    assert!(session.has_reader(), "the second still reads");
    drop(second);
    assert!(!session.has_reader());
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_comes_back_hears_what_it_missed() {
    let (_all, session) = open().await;
    let mut events = session.events(None);
    let stays = call_weather(&session);
    let first = ids(&mut events).await;
    let goes = call_weather(&session);
    let second = events.next().await.unwrap();
    drop(events);
    goes.abort();
    let _ = goes.await;
    let mut events = session.events(Some(second.id));
    assert_eq!(ids(&mut events).await, first);
    let expected = json!({
        "type": "tool_call.cancelled", "tool_call_id": second.data["tool_calls"][0]["id"],
    });
    assert_eq!(next(&mut events).await, expected);
    stays.abort();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_fails_its_calls_and_is_told() {
    for (why, kind, message) in [
        (
            SessionEnd::Expired,
            "session.expired",
            "the session that lent this tool has expired",
        ),
        (
            SessionEnd::Deleted,
            "session.deleted",
            "the session that lent this tool was ended by its owner",
        ),
        (
            SessionEnd::Stopped,
            "session.stopped",
            "the gateway is stopping",
        ),
    ] {
        let all = McpSessions::start(Arc::default(), Arc::default());
        let session = all.open(weather(20), 0).await.unwrap();
        let mut events = session.events(None);
        let calling = call_weather(&session);
        ids(&mut events).await;
        let mut ends = all.ends();
        match why {
            // The clock does it.
            SessionEnd::Expired => {}
            SessionEnd::Deleted => assert!(all.end(session.id(), 0)),
            SessionEnd::Stopped => all.close(),
        }
        assert_eq!(next(&mut events).await, json!({"type": kind}));
        assert_eq!(events.next().await, None);
        assert_eq!(calling.await.unwrap(), gone(message, false));
        assert_eq!(session.over().await, why);
        ends.changed().await.unwrap();
        assert_eq!(call_weather(&session).await.unwrap(), gone(message, true));
        assert_eq!(all.len(), 0);
        assert!(all.find(session.token()).is_none());
        assert!(all.find_own(session.id(), 0).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_to_the_second() {
    let (all, session) = open().await;
    tokio::time::sleep(HOUR - Duration::from_millis(1)).await;
    assert!(all.find(session.token()).is_some());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(all.find(session.token()).is_none());
    assert_eq!(session.ended(), Some(SessionEnd::Expired));
}

#[tokio::test(start_paused = true)]
async fn neither_name_leads_to_the_other_and_only_the_owner_gets_in() {
    let (all, session) = open().await;
    assert!(all.find(session.id()).is_none());
    assert!(all.find_own(session.token(), 0).is_none());
    assert!(all.find_own(session.id(), 1).is_none());
    assert!(!all.end(session.id(), 1));
    assert!(!all.end("mcps_x", 0));
    assert!(all.find("").is_none());
    assert!(all.find(session.token()).is_some());
    assert!(!format!("{session:?}").contains(session.token()));
}

#[tokio::test(start_paused = true)]
async fn functions_keep_the_callers_order_and_names() {
    let (_all, session) = open().await;
    let names: Vec<&str> = session
        .tools()
        .iter()
        .map(|offered| offered.tool.name.as_str())
        .collect();
    assert_eq!(names, ["weather", "a_tool"]);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_sessions_opened_and_dropped_leave_nothing_behind() {
    let all = McpSessions::start(Arc::default(), Arc::default());
    let free = (all.inner.definitions.free(), all.inner.arguments.free());
    for how in [
        SessionEnd::Deleted,
        SessionEnd::Expired,
        SessionEnd::Stopped,
    ] {
        let mut calls = Vec::new();
        let mut weak = Vec::new();
        for n in 0..MAX_SESSIONS {
            let body = weather(10 + n as u64 % 40);
            let session = all.open(body, 0).await.unwrap();
            calls.push(call_weather(&session));
            let mut events = session.events(None);
            ids(&mut events).await;
            weak.push(Arc::downgrade(&session));
        }
        let full = all.open(weather(60), 0).await;
        assert!(matches!(full, Err(OpenSessionError::Full)));
        assert_eq!(all.len(), MAX_SESSIONS);
        match how {
            SessionEnd::Deleted => {
                for session in weak.iter().filter_map(Weak::upgrade) {
                    assert!(all.end(session.id(), 0));
                }
            }
            SessionEnd::Expired => tokio::time::sleep(Duration::from_secs(50)).await,
            SessionEnd::Stopped => all.close(),
        }
        for call in calls {
            let outcome = call.await.unwrap();
            assert!(
                matches!(outcome, Err(CallError::UpstreamUnavailable { .. })),
                "{outcome:?}"
            );
        }
        let left = weak.iter().filter(|weak| weak.strong_count() > 0).count();
        assert_eq!((how, left), (how, 0), "nobody holds on to them");
        let sessions = all.inner.lock();
        let tables = (
            sessions.by_id.len(),
            sessions.by_token.len(),
            sessions.by_end.len(),
        );
        assert_eq!(tables, (0, 0, 0));
        let free_now = (all.inner.definitions.free(), all.inner.arguments.free());
        assert_eq!(free_now, free);
    }
    let closed = all.open(weather(60), 0).await;
    assert!(matches!(closed, Err(OpenSessionError::Stopping)));
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_all_definitions_are_bounded() {
    let all = McpSessions::start(Arc::default(), Arc::default());
    let free = all.inner.definitions.free();
    let mut big = br#"{"tools": [{"name": "a"}]}"#.to_vec();
    big.resize(session_request::MAX_BYTES, b' ');
    let big = Bytes::from(big);
    let mut sessions = Vec::new();
    for _ in 0..8 {
        sessions.push(all.open(big.clone(), 0).await.unwrap());
    }
    let full = all.open(big.clone(), 0).await;
    assert!(matches!(full, Err(OpenSessionError::Full)));
    for session in sessions {
        assert!(all.end(session.id(), 0));
    }
    assert_eq!(all.inner.definitions.free(), free);
    let wrong = all.open("{}".into(), 0).await;
    assert!(matches!(wrong, Err(OpenSessionError::SessionRequest(_))));
    assert_eq!(all.inner.definitions.free(), free);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_waits_is_woken_by_a_call() {
    let (_all, session) = open().await;
    let mut events = session.events(None);
    let silence = timeout(Duration::from_secs(5), events.next()).await;
    assert!(silence.is_err(), "nothing has happened");
    let reading = tokio::spawn(async move { ids(&mut events).await });
    let _calling = call_weather(&session);
    assert_eq!(reading.await.unwrap().len(), 1);
}
