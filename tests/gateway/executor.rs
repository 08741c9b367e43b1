//! Programs that keep their own loop: `/v1/tool_calls`, `/tools/{name}` and `/tools/openapi.json`.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::Model,
    tools::{Does, tools},
};

async fn start() -> Toolway {
    toolway(Model::start([]).await)
        .server("calc", tools().add())
        .start()
        .await
}

async fn post(gw: &Toolway, path: &str, accept: &str, body: &Value) -> (u16, String) {
    let request = gw
        .http
        .post(format!("{}{path}", gw.base))
        .header("accept", accept);
    let response = request.body(body.to_string()).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// A call that works, one whose arguments are no JSON, one whose arguments do not fit, and one of no tool.
fn calls() -> Value {
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    json!([
        call("a", "calc__add", "{\"a\": 1, \"b\": 2}"),
        call("b", "calc__add", "{\"a\": 1,"),
        call("c", "calc__add", "{\"a\": \"x\", \"b\": 2}"),
        call("d", "calc__ad", "{}"),
    ])
}

#[tokio::test]
async fn every_call_has_its_response_in_the_order_of_the_calls() {
    let gw = start().await;
    let (status, text) = post(
        &gw,
        "/v1/tool_calls",
        "*/*",
        &json!({"tool_calls": calls()}),
    )
    .await;
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let responses = answer["tool_responses"].as_array().unwrap();
    let ids: Vec<&str> = responses
        .iter()
        .map(|it| it["tool_call_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["a", "b", "c", "d"]);
    assert_eq!(responses[0]["output"], json!({"result": "3"}));
    let kinds: Vec<&str> = responses[1..]
        .iter()
        .map(|it| it["output"]["error"]["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["invalid_arguments_json", "invalid_params", "unknown_tool"]
    );
    assert_eq!(
        gw.servers[0].calls().len(),
        1,
        "what does not fit is not sent"
    );
    gw.join().await;
}

#[tokio::test]
async fn results_come_as_messages_or_events_where_they_are_asked_for() {
    let gw = start().await;
    let body = json!({"tool_calls": calls(), "format": "messages"});
    let (_, text) = post(&gw, "/v1/tool_calls", "application/json", &body).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        answer["messages"][0],
        json!({"role": "tool", "tool_call_id": "a", "content": "3"})
    );
    let body = json!({"tool_calls": calls()});
    for (accept, prefix, end) in [
        ("application/x-ndjson", "", "\n"),
        ("text/event-stream", "data: ", "\n\n"),
    ] {
        let (_, text) = post(&gw, "/v1/tool_calls", accept, &body).await;
        let events: Vec<Value> = text
            .split_terminator(end)
            .map(|line| serde_json::from_str(line.strip_prefix(prefix).unwrap()).unwrap())
            .collect();
        let kinds: Vec<&str> = events
            .iter()
            .map(|it| it["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds[..2], ["tool_use_succeeded", "tool_use_failed"]);
        assert_eq!(events[0]["content"]["prompt"], "3");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_request_that_makes_no_sense_is_refused_and_runs_nothing() {
    let gw = start().await;
    let twice = json!([calls()[0], calls()[0]]);
    for body in [
        json!([]),
        json!({}),
        json!({"tool_calls": 1}),
        json!({"tool_calls": twice}),
        json!({"tool_calls": calls(), "format": "xml"}),
    ] {
        let (status, text) = post(&gw, "/v1/tool_calls", "*/*", &body).await;
        assert_eq!(status, 400, "{text}");
    }
    assert!(gw.servers[0].calls().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn headers_narrow_what_can_be_called() {
    let gw = start().await;
    let request = gw.http.post(format!("{}/tools/calc__add", gw.base));
    let request = request
        .header("x-toolway-tools", "other__*")
        .body("{\"a\":1,\"b\":2}");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 403);
    assert!(gw.servers[0].calls().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn the_name_that_one_server_has_for_its_tool_is_enough() {
    let b = tools().add().tool("only_b", Does::Echoes);
    let gw = toolway(Model::start([]).await).server("a", tools().add());
    let gw = gw.server("b", b).start().await;
    let call =
        |id: &str, name: &str| json!({"id": id, "function": {"name": name, "arguments": "{}"}});
    let calls = [call("1", "only_b"), call("2", "add")];
    let body = json!({"tool_calls": calls});
    let (_, text) = post(&gw, "/v1/tool_calls", "*/*", &body).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    let outputs = answer["tool_responses"].as_array().unwrap();
    assert_eq!(outputs[0]["output"]["result"], "{}");
    assert_eq!(outputs[1]["output"]["error"]["type"], "unknown_tool");
    let request = gw.http.post(format!("{}/v1/tool_calls", gw.base));
    let request = request.header("x-toolway-tools", "a__*");
    let response = request.body(body.to_string()).send().await.unwrap();
    let answer: Value = response.json().await.unwrap();
    let outputs = answer["tool_responses"].as_array().unwrap();
    assert_eq!(outputs[0]["output"]["error"]["type"], "unknown_tool");
    assert_eq!(outputs[1]["output"]["error"]["type"], "invalid_params");
    gw.join().await;
}

#[tokio::test]
async fn each_tool_is_an_operation_that_works() {
    let gw = start().await;
    let document = gw.json("/tools/openapi.json").await;
    let operation = &document["paths"]["/tools/calc__add"]["post"];
    assert_eq!(operation["operationId"], "calc__add");
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    assert!(schema["properties"]["a"].is_object(), "{schema}");
    for (path, body, expected) in [
        ("/tools/calc__add", json!({"a": 1, "b": 2}), 200),
        ("/tools/calc__add", json!({"a": "x", "b": 2}), 400),
        ("/tools/none", json!({}), 404),
    ] {
        let (status, text) = post(&gw, path, "*/*", &body).await;
        assert_eq!(status, expected, "{text}");
        if status == 200 {
            assert_eq!(text, "3");
        }
    }
    gw.join().await;
}
