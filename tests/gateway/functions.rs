mod batches;
mod commands;
mod models;
mod requests;

use std::{fs, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolway_protocol::tool::{CallError, Content, ToolResult};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, call, say},
    webhook::{Got, Reply, Webhook, answer, echo, echoed, webhook},
};

/// Definitions of these functions, which take a `city`, in a file of its own.
pub fn definitions(names: &[&str]) -> (TempDir, String) {
    let schema =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let function = |name: &&str| json!({"type": "function", "function": {"name": name, "description": format!("The {name}."), "parameters": schema, "strict": true}});
    let tools: Vec<Value> = names.iter().map(function).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("functions.json");
    fs::write(&file, Value::from(tools).to_string()).unwrap();
    let line = format!("definitions = {:?}\n", file.display().to_string());
    (folder, line)
}

/// A toolway whose group `town` has the functions `weather` and `mayor`, run by the webhook.
async fn town(webhook: &Webhook, keys: &str) -> Toolway {
    town_with(Model::start([]).await, webhook, keys).await
}

async fn town_with(model: Model, webhook: &Webhook, keys: &str) -> Toolway {
    let (_folder, file) = definitions(&["weather", "mayor"]);
    let endpoint = format!("endpoint = \"{}/tool_calls\"\n", webhook.base);
    toolway(model)
        .config(&format!("[functions.town]\n{file}{endpoint}{keys}"))
        .start()
        .await
}

async fn weather(gw: &Toolway) -> Result<ToolResult, CallError> {
    gw.gateway
        .call_tool("town__weather", r#"{"city": "Rome"}"#)
        .await
}

/// What becomes of a call to a webhook that does this.
async fn outcome(
    script: impl Fn(&Got) -> Reply + Send + Sync + 'static,
) -> Result<ToolResult, CallError> {
    let webhook = webhook(script).await;
    let gw = town(&webhook, "max_response_bytes = 65536\ntimeout = '2s'").await;
    let outcome = weather(&gw).await;
    gw.join().await;
    outcome
}

#[track_caller]
fn check_failed(outcome: Result<ToolResult, CallError>, text: &str) {
    let result = outcome.expect("a result");
    assert!(result.is_error, "{result:?}");
    assert_eq!(result.content, [Content::Text(text.to_owned())]);
}

#[tokio::test]
async fn a_model_calls_a_function_through_the_webhook() {
    let script = vec![
        call(&[("c1", "town__weather", json!({"city": "Köln"}))]),
        say("Sunny."),
    ];
    let webhook = echo().await;
    let model = Model::start(script).await;
    let gw = town_with(model, &webhook, "headers = {X-Key = 'k'}").await;
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.text(), "Sunny.");

    let offered = &gw.model.asked()[0].body["tools"];
    assert_eq!(offered[1]["function"]["name"], "town__weather");
    assert_eq!(offered[1]["function"]["description"], "The weather.");
    let got = &webhook.got()[0];
    assert_eq!(
        (got.method.as_str(), got.path.as_str()),
        ("POST", "/tool_calls")
    );
    assert_eq!(got.headers["content-type"], "application/json");
    assert_eq!(got.headers["x-key"], "k");
    let (id, name, arguments) = got.calls().remove(0);
    assert!(id.starts_with("call_"), "{id}");
    assert_eq!(
        (name.as_str(), arguments),
        ("weather", json!({"city": "Köln"}))
    );
    let messages = &gw.model.asked()[1].body["messages"];
    let message = messages.as_array().unwrap().last().unwrap();
    assert_eq!(message["tool_call_id"], "c1");
    assert_eq!(
        message["content"],
        r#"{"name":"weather","arguments":{"city":"Köln"}}"#
    );
    gw.join().await;
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_not_sent() {
    let webhook = echo().await;
    let gw = town(&webhook, "").await;
    let error = gw
        .gateway
        .call_tool("town__weather", r#"{"city": 5}"#)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "invalid_params");
    assert_eq!(webhook.got().len(), 0);
    gw.join().await;
}

#[tokio::test]
async fn health_and_tools_know_the_group() {
    let webhook = echo().await;
    let gw = town(&webhook, "").await;
    let health = gw.json("/health").await;
    assert_eq!(
        health["functions"],
        json!([{"name": "town", "kind": "endpoint", "state": "ready", "tools": 2, "last_error": null}])
    );
    assert_eq!(health["tools"], 2);
    let tools = gw.json("/tools").await;
    assert_eq!(tools["tools"][0]["name"], "town__mayor");
    assert_eq!(tools["tools"][0]["server"], "town");
    gw.join().await;
}

#[tokio::test]
async fn a_webhook_that_answers_html_is_an_error_result() {
    let html = |_: &Got| Reply::Answers(200, "text/html", b"<html><h1>Login</h1></html>".to_vec());
    check_failed(
        outcome(html).await,
        "the function's endpoint answered with a web page instead of JSON",
    );
}

#[tokio::test]
async fn a_webhook_that_fails_says_its_status_and_no_page() {
    let page = |_: &Got| Reply::Answers(500, "text/html", b"<html>at 10.0.0.1</html>".to_vec());
    check_failed(
        outcome(page).await,
        "the function's endpoint answered with HTTP 500",
    );
    let said = |_: &Got| {
        Reply::Answers(
            503,
            "application/json",
            br#"{"error": {"message": "no stock"}}"#.to_vec(),
        )
    };
    check_failed(
        outcome(said).await,
        "the function's endpoint answered with HTTP 503: no stock",
    );
}

#[tokio::test]
async fn a_call_that_is_answered_twice_is_an_error_result() {
    let twice = |got: &Got| answer(json!([echoed(got)[0], echoed(got)[0]]));
    check_failed(
        outcome(twice).await,
        "the function's endpoint answered this call more than once",
    );
}

#[tokio::test]
async fn a_call_that_is_not_answered_is_an_error_result() {
    let nobody = |_: &Got| answer(json!({"tool_responses": []}));
    check_failed(
        outcome(nobody).await,
        "the function's endpoint did not answer this call",
    );
    let stranger =
        |_: &Got| answer(json!({"tool_responses": [{"tool_call_id": "x", "output": 1}]}));
    check_failed(
        outcome(stranger).await,
        "the function's endpoint did not answer this call",
    );
}

#[tokio::test]
async fn a_stranger_among_the_answers_does_no_harm() {
    let both = |got: &Got| answer(json!([{"tool_call_id": "x", "output": 1}, echoed(got)[0]]));
    let result = outcome(both).await.unwrap();
    assert_eq!(result.structured_content.unwrap()["name"], "weather");
}

#[tokio::test]
async fn a_body_without_end_is_cut_off_at_the_limit() {
    check_failed(
        outcome(|_| Reply::Floods).await,
        "the result is larger than 65536 bytes",
    );
}

#[tokio::test]
async fn a_connection_that_breaks_may_have_carried_the_call_out() {
    let error = outcome(|_| Reply::BreaksOff).await.unwrap_err();
    assert_eq!(error.kind(), "upstream_unavailable");
    assert!(!error.is_unsent());
    assert!(
        error.to_string().contains("may have been carried out"),
        "{error}"
    );
}

#[tokio::test]
async fn a_webhook_that_is_not_there_is_named_by_no_address() {
    let gone = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let (_folder, file) = definitions(&["weather"]);
    let gw = toolway(Model::start([]).await)
        .config(&format!(
            "[functions.town]\n{file}endpoint = 'http://{gone}'\n"
        ))
        .start()
        .await;
    let error = weather(&gw).await.unwrap_err();
    assert!(error.is_unsent());
    assert_eq!(
        error.to_string(),
        "the function's service cannot be reached right now; try again later"
    );
    gw.join().await;
}

#[tokio::test]
async fn a_webhook_that_hangs_costs_its_time_and_nobody_elses() {
    let webhook = webhook(|got| match got.calls()[0].1.as_str() {
        "weather" => Reply::Holds,
        _ => answer(json!(echoed(got))),
    })
    .await;
    let gw = town(&webhook, "timeout = '300ms'").await;
    let mayor = gw.gateway.call_tool("town__mayor", r#"{"city": "Rome"}"#);
    let (slow, quick) = tokio::join!(weather(&gw), mayor);
    let after = Duration::from_millis(300);
    assert_eq!(slow.unwrap_err(), CallError::Timeout { after });
    assert!(!quick.unwrap().is_error);
    webhook.left(1).await;
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_is_given_up_is_given_up_at_the_webhook() {
    let webhook = webhook(|_| Reply::Holds).await;
    let gw = town(&webhook, "").await;
    let given_up = async {
        while webhook.got().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = weather(&gw) => panic!("it should hold"),
        () = given_up => {}
    }
    webhook.left(1).await;
    gw.join().await;
}

#[tokio::test]
async fn a_redirect_within_the_origin_that_keeps_the_method_is_followed() {
    let webhook = webhook(|got| match got.path.as_str() {
        "/tool_calls" => Reply::Redirects("/moved".into()),
        _ => answer(json!(echoed(got))),
    })
    .await;
    let gw = town(&webhook, "headers = {X-Key = 'k'}").await;
    assert!(!weather(&gw).await.unwrap().is_error);
    let got = &webhook.got()[1];
    assert_eq!((got.method.as_str(), got.path.as_str()), ("POST", "/moved"));
    assert_eq!(got.headers["x-key"], "k");
    gw.join().await;
}

#[tokio::test]
async fn one_group_that_is_busy_keeps_no_other_waiting() {
    let webhook = webhook(|got| match got.calls()[0].1.as_str() {
        "weather" => Reply::Holds,
        _ => answer(json!(echoed(got))),
    })
    .await;
    let (_folder, file) = definitions(&["weather", "mayor"]);
    let group = |name: &str| {
        format!(
            "[functions.{name}]\n{file}endpoint = '{}'\nparallel_calls = 1\ntimeout = '300ms'\n",
            webhook.base
        )
    };
    let gw = toolway(Model::start([]).await)
        .config(&(group("town") + &group("other")))
        .start()
        .await;
    let other = gw.gateway.call_tool("other__mayor", r#"{"city": "Rome"}"#);
    let (first, second, other) = tokio::join!(weather(&gw), weather(&gw), other);
    assert_eq!(first.unwrap_err().kind(), "timeout");
    assert_eq!(
        second.unwrap_err().kind(),
        "timeout",
        "it waited for its turn"
    );
    assert!(!other.unwrap().is_error);
    assert_eq!(webhook.got().len(), 3);
    gw.join().await;
}

#[tokio::test]
async fn a_redirect_takes_no_header_to_another_origin() {
    let elsewhere = echo().await;
    let to = elsewhere.base.clone();
    let webhook = webhook(move |_| Reply::Redirects(to.clone())).await;
    let gw = town(&webhook, "headers = {X-Key = 'k'}").await;
    check_failed(
        weather(&gw).await,
        "the function's endpoint answered with HTTP 307",
    );
    assert_eq!(elsewhere.got().len(), 0);
    gw.join().await;
}
