//! Responses in the background: what a client sees that leaves and comes back.

use serde_json::{Value, json};

use crate::{
    dialects::{over, plain, post, streamed, upstream},
    harness::{Toolway, toolway},
    model::{Model, Reply, Then, events, raw, say, say_and_call},
    tools::tools,
};

/// An answer that begins and is never complete.
fn unending() -> Reply {
    let chunk = r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":"so far"}}]}"#;
    events(&[&format!("{chunk}\n\n")], Then::Silence)
}

fn body() -> Value {
    json!({"model": "m", "input": "hello", "background": true})
}

fn path(response: &Value) -> String {
    format!("/v1/responses/{}", response["id"].as_str().unwrap())
}

/// The events after a number, until the response has ended, as they are sent.
async fn events_after(gw: &Toolway, response: &Value, after: &str) -> String {
    let resumed = gw
        .get(&format!("{}?stream=true{after}", path(response)))
        .await;
    assert_eq!(resumed.status(), 200);
    assert_eq!(resumed.headers()["content-type"], "text/event-stream");
    resumed.text().await.unwrap()
}

/// Starts a response that does not end, and reads it until its text comes.
async fn started(gw: &Toolway) -> Value {
    let mut body = body();
    body["stream"] = true.into();
    let mut response = post(gw, "/v1/responses", &body).await;
    let mut text = String::new();
    while !text.contains("so far") {
        let piece = response.chunk().await.unwrap().expect("it goes on");
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
    let created = text.split_once("data: ").unwrap().1;
    let created = created.split_once('\n').unwrap().0;
    let created: Value = serde_json::from_str(created).unwrap();
    assert_eq!(created["type"], "response.created");
    // With this its client leaves.
    drop(response);
    created["response"].clone()
}

#[tokio::test]
async fn a_response_in_the_background_is_there_at_once_and_complete_later() {
    let calls = say_and_call(
        "Let me see. ",
        &[("c", "calc__add", json!({"a": 1, "b": 2}))],
    );
    let gw = over("chat", vec![calls, say("It is 3.")]).await;
    let queued = plain(&gw, "/v1/responses", body()).await;
    let status = queued["status"].as_str().unwrap();
    assert!(["queued", "in_progress"].contains(&status), "{status}");
    assert_eq!(
        (&queued["background"], &queued["model"]),
        (&json!(true), &json!("m"))
    );
    let text = events_after(&gw, &queued, "").await;
    assert!(text.contains("event: response.queued\n"), "{text}");
    assert!(text.ends_with("\n\n") && text.contains("event: response.completed\n"));
    let response = gw.json(&path(&queued)).await;
    assert_eq!(response["status"], "completed");
    assert!(response["output"].to_string().contains("It is 3."));
    assert_eq!(response["id"], queued["id"]);
    let next = json!({"model": "m", "input": "and?", "previous_response_id": queued["id"]});
    assert_eq!(
        post(&gw, "/v1/responses", &next).await.status(),
        418,
        "the model is asked"
    );
    assert_eq!(gw.model.messages(2).len(), 4 - 1);
    gw.join().await;
}

#[tokio::test]
async fn a_stream_is_taken_up_again_behind_any_of_its_events() {
    let gw = over("chat", vec![say("one two three")]).await;
    let events = streamed(&gw, "/v1/responses", body()).await;
    let response = &events[0]["response"];
    let whole = events_after(&gw, response, "").await;
    let whole: Vec<&str> = whole.split_inclusive("\n\n").collect();
    assert_eq!(whole.len(), events.len());
    for after in 0..events.len() {
        let rest = events_after(&gw, response, &format!("&starting_after={after}")).await;
        assert_eq!(rest, whole[after + 1..].concat(), "{after}");
    }
    let refused = gw
        .get(&format!("{}?stream=true&starting_after=x", path(response)))
        .await;
    assert_eq!(refused.status(), 400);
    gw.join().await;
}

#[tokio::test]
async fn a_response_goes_on_without_its_client_until_it_is_cancelled() {
    let gw = over("chat", vec![unending()]).await;
    let response = started(&gw).await;
    let path = path(&response);
    assert_eq!(gw.json(&path).await["status"], "in_progress");
    let next = json!({"model": "m", "input": "and?", "previous_response_id": response["id"]});
    let refused = post(&gw, "/v1/responses", &next).await;
    assert_eq!(refused.status(), 400);
    let error: Value = refused.json().await.unwrap();
    assert_eq!(error["error"]["code"], "previous_response_not_completed");

    let cancel = format!("{path}/cancel");
    let cancelled = plain(&gw, &cancel, json!({})).await;
    assert_eq!(cancelled["status"], "cancelled");
    assert!(cancelled["output"].to_string().contains("so far"));
    gw.model.was_dropped().await;
    assert_eq!(gw.json(&path).await, cancelled);
    assert_eq!(plain(&gw, &cancel, json!({})).await, cancelled, "once more");
    let text = events_after(&gw, &response, "").await;
    assert!(text.contains("event: response.incomplete\n"), "{text}");
    gw.join().await;
}

#[tokio::test]
async fn only_a_response_in_the_background_can_be_cancelled_or_streamed_again() {
    let gw = over("chat", vec![say("hi")]).await;
    let response = plain(&gw, "/v1/responses", json!({"model": "m", "input": "x"})).await;
    let cancelled = post(&gw, &format!("{}/cancel", path(&response)), &json!({})).await;
    assert_eq!(cancelled.status(), 400);
    let resumed = gw.get(&format!("{}?stream=true", path(&response))).await;
    assert_eq!(resumed.status(), 400);
    let error: Value = resumed.json().await.unwrap();
    assert_eq!(error["error"]["param"], "stream");
    let unknown = post(&gw, "/v1/responses/resp_1/cancel", &json!({})).await;
    assert_eq!(unknown.status(), 201, "the upstream is asked");
    gw.join().await;
}

#[tokio::test]
async fn another_client_neither_finds_nor_cancels_a_response() {
    let gw = over("chat", vec![unending()]).await;
    let response = started(&gw).await;
    let url = format!("{}{}", gw.base, path(&response));
    for request in [
        gw.http.get(&url),
        gw.http.post(format!("{url}/cancel")),
        gw.http.delete(&url),
    ] {
        let other = request.header("authorization", "Bearer other");
        assert_eq!(
            other.send().await.unwrap().status(),
            201,
            "the upstream is asked"
        );
    }
    assert_eq!(gw.json(&path(&response)).await["status"], "in_progress");
    gw.http.delete(&url).send().await.unwrap();
    gw.model.was_dropped().await;
    assert_eq!(
        gw.get(&path(&response)).await.status(),
        201,
        "it is forgotten"
    );
    gw.join().await;
}

#[tokio::test]
async fn a_response_fails_as_its_model_does() {
    let refusal = r#"{"error":{"message":"slow down","type":"rate_limit","code":"x"}}"#;
    let gw = over("chat", vec![raw(429, "application/json", refusal)]).await;
    let queued = plain(&gw, "/v1/responses", body()).await;
    let text = events_after(&gw, &queued, "").await;
    assert!(text.contains("event: response.failed\n"), "{text}");
    let response = gw.json(&path(&queued)).await;
    assert_eq!(response["status"], "failed");
    assert_eq!(response["error"]["message"], "slow down");
    gw.join().await;
}

#[tokio::test]
async fn a_response_that_runs_when_toolway_stops_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!(
        "data_dir = '{}'\nshutdown_grace = \"10ms\"\n",
        folder.path().display()
    );
    let config = format!("{data}{}", upstream("chat"));
    let start = async |script: Vec<Reply>| {
        let gw = toolway(Model::start(script).await).config(&config);
        gw.server("calc", tools().add()).start().await
    };
    let gw = start(vec![unending()]).await;
    let response = started(&gw).await;
    gw.join().await;
    let gw = start(Vec::new()).await;
    let response = gw.json(&path(&response)).await;
    assert_eq!(response["status"], "failed");
    assert_eq!(response["error"]["code"], "shutting_down");
    assert!(response["output"].to_string().contains("so far"));
    gw.join().await;
}

#[tokio::test]
async fn a_response_whose_process_was_killed_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!(
        "data_dir = '{}'\n{}",
        folder.path().display(),
        upstream("chat")
    );
    let start = async |script: Vec<Reply>| {
        let gw = toolway(Model::start(script).await).config(&data);
        gw.server("calc", tools().add()).start().await
    };
    let gw = start(vec![unending()]).await;
    let response = started(&gw).await;
    // What another process finds while this one still runs is what is left of it after `kill -9`.
    let other = start(Vec::new()).await;
    for shown in [
        other.json(&path(&response)).await,
        plain(&other, &format!("{}/cancel", path(&response)), json!({})).await,
    ] {
        assert_eq!(shown["status"], "failed");
        assert!(
            shown["error"]["message"]
                .as_str()
                .unwrap()
                .contains("ended before")
        );
    }
    other.join().await;
    gw.http
        .delete(format!("{}{}", gw.base, path(&response)))
        .send()
        .await
        .unwrap();
    gw.join().await;
}

#[tokio::test]
async fn responses_in_the_background_have_half_as_many_places_as_requests() {
    let script = [unending(), say("hi"), say("hi")];
    let gw = toolway(Model::start(script).await)
        .config(&format!("max_requests = 2\n{}", upstream("chat")));
    let gw = gw.server("calc", tools().add()).start().await;
    let response = started(&gw).await;
    let refused = post(&gw, "/v1/responses", &body()).await;
    assert_eq!(refused.status(), 503);
    let error: Value = refused.json().await.unwrap();
    assert_eq!(error["error"]["code"], "overloaded");
    plain(&gw, "/v1/responses", json!({"model": "m", "input": "x"})).await;
    plain(&gw, &format!("{}/cancel", path(&response)), json!({})).await;
    let queued = plain(&gw, "/v1/responses", body()).await;
    assert!(
        events_after(&gw, &queued, "")
            .await
            .contains("response.completed")
    );
    gw.join().await;
}
