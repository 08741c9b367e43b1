//! Calls as events: `POST /v1/events`, and the state that they change (issue 12, D-02 to D-29).

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, call, say},
    tools::{Does, Tools, tools},
};

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const STREAM: &str = "text/event-stream";

async fn start(server: Tools) -> Toolway {
    let model = Model::start([]).await;
    toolway(model).server("s", server).start().await
}

async fn post(gw: &Toolway, body: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let mut request = gw.http.post(format!("{}/v1/events", gw.base));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.body(body.to_owned()).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// The events that these come to.
async fn events(gw: &Toolway, events: Value, headers: &[(&str, &str)]) -> Vec<Value> {
    let headers = [&[("accept", LINES)], headers].concat();
    let (status, text) = post(gw, &events.to_string(), &headers).await;
    assert_eq!(status, 200, "{text}");
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn requested(id: &str, tool: &str) -> Value {
    json!({"type": "tool_use_requested", "tool_call_id": id, "tool": tool, "args": {"a": 1, "b": 2}})
}

fn with(mut event: Value, member: &str, value: Value) -> Value {
    event[member] = value;
    event
}

fn answers(result: Value) -> Does {
    Does::Answers(result)
}

fn reads(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}})
}

#[tokio::test]
async fn another_method_is_told_which_one_the_path_takes() {
    let gw = start(tools().add()).await;
    let url = format!("{}/v1/events", gw.base);
    let answer = gw.http.get(url).send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["allow"]),
        (405, &"POST".parse().unwrap())
    );
    let text = answer.text().await.unwrap();
    assert!(text.contains("the header `Allow` names"), "{text}");
    gw.join().await;
}

#[tokio::test]
async fn one_event_comes_to_one_event_d_02_d_05() {
    let gw = start(tools().add()).await;
    let event = requested("toolcall-456", "s__add");
    let (status, text) = post(&gw, &event.to_string(), &[("accept", JSON)]).await;
    assert_eq!(status, 200, "{text}");
    let expected = json!({"type": "tool_use_succeeded", "tool_call_id": "toolcall-456", "content": {"prompt": "3"}});
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    assert_eq!(gw.servers[0].calls()[0].1, json!({"a": 1, "b": 2}));
    gw.join().await;
}

#[tokio::test]
async fn events_come_back_in_the_framing_in_which_they_came() {
    let gw = start(tools().add()).await;
    let (a, b) = (requested("a", "s__add"), requested("b", "s__none"));
    for (body, prefix, end) in [
        (format!("{a}\n{b}\n"), "", "\n"),
        (format!("data: {a}\n\ndata: {b}\n\n"), "data: ", "\n\n"),
    ] {
        let (status, text) = post(&gw, &body, &[]).await;
        assert_eq!(status, 200, "{text}");
        let events = text.split_terminator(end).map(|event| {
            let event = event.strip_prefix(prefix).unwrap();
            serde_json::from_str::<Value>(event).unwrap()
        });
        let mut ids: Vec<String> = events.map(|it| it["tool_call_id"].to_string()).collect();
        ids.sort();
        assert_eq!(ids, ["\"a\"", "\"b\""]);
    }
    let (_, text) = post(&gw, &json!([a, b]).to_string(), &[]).await;
    let all: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(all["events"].as_array().unwrap().len(), 2);
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_cannot_run_fails_and_the_others_run_d_08_d_14() {
    let gw = start(tools().add()).await;
    let misfit = with(requested("b", "s__add"), "args", json!({"a": "x"}));
    let all = json!([requested("a", "s__ad"), misfit, requested("c", "s__add")]);
    let events = events(&gw, all, &[]).await;
    let of = |id: &str| events.iter().find(|it| it["tool_call_id"] == id).unwrap();
    assert_eq!(of("a")["error"]["type"], "unknown_tool");
    assert_eq!(of("b")["error"]["type"], "invalid_params");
    assert_eq!(
        (&of("a")["type"], &of("a")["isError"]),
        (&json!("tool_use_failed"), &json!(true))
    );
    assert_eq!(of("c")["content"]["prompt"], "3");
    assert_eq!(gw.servers[0].calls().len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn results_of_the_clients_own_are_put_together_and_run_nothing_d_20_d_22() {
    let gw = start(tools().add()).await;
    let part = |seq: u64, text: &str, is_partial: bool| {
        json!({"type": "tool_use_succeeded", "tool_call_id": "a", "seq": seq, "partial": is_partial,
            "content": {"prompt": text}})
    };
    let all = json!([
        requested("a", "s__add"),
        part(2, "", false),
        part(1, "2 orders", true),
        part(0, "Fetched ", true),
        part(0, "again", false),
    ]);
    let events = events(&gw, all, &[]).await;
    assert_eq!(events[0]["content"]["prompt"], "Fetched 2 orders");
    assert_eq!(events[1]["error"]["type"], "tool_call_ended");
    assert_eq!(events.len(), 2);
    assert!(gw.servers[0].calls().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn progress_is_an_event_before_the_result_d_21() {
    let every = std::time::Duration::from_millis(1);
    let gw = start(tools().tool("work", Does::Reports(every, 2))).await;
    let events = events(&gw, json!([requested("a", "s__work")]), &[]).await;
    let kinds: Vec<&str> = events
        .iter()
        .map(|it| it["type"].as_str().unwrap())
        .collect();
    let (last, progress) = kinds.split_last().unwrap();
    assert_eq!(*last, "tool_use_succeeded");
    assert!(!progress.is_empty() && progress.iter().all(|it| *it == "tool_use_progress"));
    assert_eq!(
        (&events[0]["total"], &events[0]["message"]),
        (&json!(2.0), &json!("half way"))
    );
    gw.join().await;
}

#[tokio::test]
async fn an_attempt_that_failed_is_announced_and_counted_d_23() {
    let flaky = Does::FailsOnce(502, None);
    let gw = start(tools().listed(reads("t"), flaky.clone()).tool("w", flaky)).await;
    let retry = json!({"max_attempts": 3, "backoff_ms": [1]});
    let all = json!([with(requested("a", "s__t"), "retry", retry.clone())]);
    let told = events(&gw, all, &[]).await;
    assert_eq!(told.len(), 2);
    let failed = &told[0];
    assert_eq!(failed["type"], "tool_use_failed");
    assert_eq!(
        (&failed["attempt"], &failed["will_retry"]),
        (&json!(1), &json!(true))
    );
    assert!(failed["reason"].is_string());
    assert_eq!(
        (&told[1]["content"]["prompt"], &told[1]["attempts"]),
        (&json!("done"), &json!(2))
    );
    // It may have happened, and the tool does not say that twice does no harm.
    let told = events(
        &gw,
        json!([with(requested("b", "s__w"), "retry", retry)]),
        &[],
    )
    .await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["error"]["type"], "upstream_unavailable");
    gw.join().await;
}

#[tokio::test]
async fn one_attempt_is_one_attempt_d_23() {
    let gw = start(tools().listed(reads("t"), Does::FailsOnce(502, None))).await;
    let once = with(requested("a", "s__t"), "retry", json!({"max_attempts": 1}));
    let told = events(&gw, json!([once]), &[]).await;
    assert_eq!(
        (told.len(), &told[0]["type"]),
        (1, &json!("tool_use_failed"))
    );
    assert_eq!(gw.servers[0].calls().len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn another_attempt_of_the_models_names_the_first_d_24() {
    let gw = start(tools().add()).await;
    let again = json!({"type": "tool_use_requested", "tool": "s__add", "args": {"a": 1, "b": 2}, "retry_of": "c1"});
    let told = events(&gw, json!([again]), &[]).await;
    assert_eq!(
        (&told[0]["tool_call_id"], &told[0]["retry_of"]),
        (&json!("call_0"), &json!("c1"))
    );
    gw.join().await;
}

#[tokio::test]
async fn a_summary_comes_with_the_original_where_it_is_asked_for_d_25() {
    let orders =
        json!({"content": [{"type": "text", "text": "{\"orders\":[\"Order A\",\"Order B\"]}"}]});
    let gw = start(tools().tool("get_orders", answers(orders))).await;
    let plain = events(&gw, json!([requested("a", "s__get_orders")]), &[]).await;
    assert_eq!(
        plain[0]["content"],
        json!({"prompt": "{\"orders\":[\"Order A\",\"Order B\"]}"})
    );
    let asked = with(requested("a", "s__get_orders"), "summary", json!(true));
    let told = events(&gw, json!([asked]), &[]).await;
    let expected = json!({"prompt": "s__get_orders returned 2 orders: Order A, Order B.",
        "data": {"orders": ["Order A", "Order B"]}});
    assert_eq!(told[0]["content"], expected);
    gw.join().await;
}

fn cart() -> Tools {
    let result = |delta: Value| json!({"content": [{"type": "text", "text": "ok"}], "_meta": {"state_delta": delta}});
    let put = result(json!({"set": {"cart.items": 3}, "unset": ["coupon"]}));
    tools().tool("put", answers(put))
}

async fn state(gw: &Toolway, session: &str, key: &str) -> Value {
    let url = format!("{}/v1/sessions/{session}/state", gw.base);
    let response = gw.http.get(url).bearer_auth(key).send().await.unwrap();
    assert_eq!(response.status(), 200);
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

const KEY: (&str, &str) = ("authorization", "Bearer k");

#[tokio::test]
async fn results_and_events_change_the_state_of_their_session_alone_d_26_d_28() {
    let gw = start(cart()).await;
    let session = [("x-toolway-session", "one"), KEY];
    let all = json!([
        {"type": "state_delta", "delta": {"coupon": "x", "user": {"id": 1}}},
        requested("a", "s__put"),
    ]);
    let told = events(&gw, all, &session).await;
    let versions: Vec<&Value> = told
        .iter()
        .filter(|it| it["type"] == "state_delta")
        .map(|it| &it["version"])
        .collect();
    assert_eq!(versions, [1, 2]);
    let expected = json!({"version": 2, "state": {"user": {"id": 1}, "cart": {"items": 3}}});
    assert_eq!(state(&gw, "one", "k").await, expected);
    let url = format!("{}/v1/sessions/one/state", gw.base);
    let same_key = gw.http.get(url).header("x-api-key", "k").send();
    let same_key = same_key.await.unwrap().text().await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&same_key).unwrap(), expected);
    let nothing = json!({"version": 0, "state": {}});
    assert_eq!(state(&gw, "two", "k").await, nothing);
    assert_eq!(state(&gw, "one", "another").await, nothing);
    let named = json!([with(requested("a", "s__put"), "session", json!("two"))]);
    events(&gw, named, &session).await;
    assert_eq!(state(&gw, "two", "k").await["version"], 1);
    gw.join().await;
}

#[tokio::test]
async fn without_a_session_a_result_changes_nothing_d_28() {
    let gw = start(cart()).await;
    let told = events(&gw, json!([requested("a", "s__put")]), &[]).await;
    assert_eq!(
        (told.len(), &told[0]["content"]["prompt"]),
        (1, &json!("ok"))
    );
    let told = events(&gw, json!([{"type": "state_delta", "delta": {}}]), &[]).await;
    assert_eq!(told[0]["error"]["type"], "invalid_session");
    gw.join().await;
}

#[tokio::test]
async fn the_model_is_shown_the_state_where_the_request_asks_for_it_d_26_d_27() {
    for is_streamed in [false, true] {
        let model = Model::start([call(&[("c", "s__put", json!({}))]), say("put")]).await;
        let gw = toolway(model.then_always(say("ok")))
            .server("s", cart())
            .start()
            .await;
        let body = || json!({"stream": is_streamed});
        let session = ("x-toolway-session", "one");
        let show = ("x-toolway-state", "show");
        let response = gw.send(body(), &[session, show, KEY]).await;
        response.text().await.unwrap();
        let expected = json!({"version": 1, "state": {"cart": {"items": 3}}});
        assert_eq!(state(&gw, "one", "k").await, expected);
        for headers in [&[session, KEY][..], &[show, KEY], &[session, show]] {
            gw.send(body(), headers).await.text().await.unwrap();
            let asked = gw.model.asked().pop().unwrap();
            assert_eq!(
                asked.body["messages"].as_array().unwrap().len(),
                1,
                "off by default"
            );
        }
        for tools in [&[][..], &[("x-toolway-tools", "none")]] {
            let headers = [&[session, show, KEY][..], tools].concat();
            gw.send(body(), &headers).await.text().await.unwrap();
            let asked = gw.model.asked().pop().unwrap();
            let expected = json!([
                {"role": "system", "content": "[state] {\"cart\":{\"items\":3}}"},
                {"role": "user", "content": "hello"},
            ]);
            assert_eq!(asked.body["messages"], expected);
        }
        gw.join().await;
    }
}

#[tokio::test]
async fn a_minimal_client_gets_results_alone_d_29() {
    let server = cart().listed(reads("t"), Does::FailsOnce(502, None));
    let gw = start(server).await;
    let headers = [
        ("x-toolway-events", "minimal"),
        ("x-toolway-session", "one"),
    ];
    let all = json!([
        requested("a", "s__put"),
        requested("b", "s__t"),
        requested("c", "s__none")
    ]);
    let told = events(&gw, all, &headers).await;
    assert_eq!(told.len(), 3);
    for event in told {
        let members = event.as_object().unwrap().len();
        assert_eq!(members, 3, "{event}");
    }
    gw.join().await;
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_and_runs_nothing_d_36() {
    let gw = start(tools().add()).await;
    let event = requested("a", "s__add");
    for body in [
        String::new(),
        "{}".to_owned(),
        format!("{event}\n{{"),
        json!([event, {"type": "other"}]).to_string(),
        "[".repeat(1_000_000),
    ] {
        let (status, text) = post(&gw, &body, &[]).await;
        assert!(
            status == 400 || (status == 200 && body.is_empty()),
            "{text}"
        );
    }
    let odd = [("x-toolway-session", "a b")];
    assert_eq!(post(&gw, &event.to_string(), &odd).await.0, 400);
    assert!(gw.servers[0].calls().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_leaves_cancels_what_is_running() {
    let gw = start(tools().tool("slow", Does::Holds)).await;
    let request = gw.http.post(format!("{}/v1/events", gw.base));
    let request = request.header("accept", STREAM);
    let response = request.body(requested("a", "s__slow").to_string());
    let response = response.send().await.unwrap();
    gw.servers[0].was_called(1).await;
    drop(response);
    gw.servers[0].was_cancelled().await;
    gw.join().await;
}
