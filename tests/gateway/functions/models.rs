//! A model as a tool.

use serde_json::json;
use toolway_protocol::tool::{CallError, ToolResult};

use super::{check_failed, definitions};
use crate::{
    harness::{Toolway, toolway},
    model::{Model, Reply, Then, events, raw, say},
};

async fn start(model: Model, keys: &str) -> Toolway {
    toolway(model)
        .config(&format!("[functions.brief]\nmodel = 'small'\n{keys}"))
        .start()
        .await
}

/// What becomes of a question that the model answers like this.
async fn outcome(reply: Reply) -> Result<ToolResult, CallError> {
    let model = Model::start([reply]).await;
    let upstream = "prompt = 'Sum up: {input}'\n[[upstreams]]\nname = 'u'\nbase_url = 'MODEL'\nretries = 0\nthink_tags = true\n";
    let gw = start(model, upstream).await;
    let outcome = gw
        .gateway
        .call_tool("brief__brief", r#"{"input": "x"}"#)
        .await;
    gw.join().await;
    outcome
}

#[tokio::test]
async fn a_model_is_asked_once_and_without_tools() {
    let model = Model::start([say("short")]).await;
    let gw = start(
        model,
        "prompt = 'Sum up: {input}'\ndescription = 'Sums up.'",
    )
    .await;
    let tools = gw.json("/tools").await;
    assert_eq!(tools["tools"][0]["name"], "brief__brief");
    assert_eq!(tools["tools"][0]["description"], "Sums up.");
    let outcome = gw
        .gateway
        .call_tool("brief__brief", r#"{"input": "a {long} text"}"#)
        .await;
    assert_eq!(outcome.unwrap(), ToolResult::text("short"));
    let asked = gw.model.asked();
    let body = json!({
        "model": "small",
        "messages": [{"role": "user", "content": "Sum up: a {long} text"}],
        "stream": false,
    });
    assert_eq!((asked.len(), &asked[0].body), (1, &body));
    gw.join().await;
}

#[tokio::test]
async fn functions_can_share_a_prompt() {
    let (_folder, file) = definitions(&["weather", "mayor"]);
    let model = Model::start([say("Raggi")]).await;
    let gw = start(
        model,
        &format!("{file}prompt = 'The {{function}} of {{city}}?'"),
    )
    .await;
    let outcome = gw
        .gateway
        .call_tool("brief__mayor", r#"{"city": "Rome"}"#)
        .await;
    assert_eq!(outcome.unwrap(), ToolResult::text("Raggi"));
    assert_eq!(gw.model.messages(0)[0]["content"], "The mayor of Rome?");
    gw.join().await;
}

#[tokio::test]
async fn only_the_text_of_the_answer_is_the_result() {
    let message = |message: serde_json::Value| {
        let body = json!({"id": "x", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]});
        raw(200, "application/json", body.to_string())
    };
    let thought = message(json!({"role": "assistant", "content": "<think>hm</think>short"}));
    assert_eq!(outcome(thought).await.unwrap(), ToolResult::text("short"));
    let streamed = events(
        &[
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"short\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        ],
        Then::End,
    );
    assert_eq!(outcome(streamed).await.unwrap(), ToolResult::text("short"));
    let refusal = message(json!({"role": "assistant", "content": null, "refusal": "no"}));
    check_failed(outcome(refusal).await, "the model refuses: no");
    let nothing = message(json!({"role": "assistant", "content": " "}));
    check_failed(outcome(nothing).await, "the model answered without a text");
}

#[tokio::test]
async fn a_model_that_fails_is_an_error_without_its_words() {
    let refused = raw(
        401,
        "application/json",
        r#"{"error": {"message": "bad key sk-1"}}"#,
    );
    check_failed(
        outcome(refused).await,
        "the function's model answered with HTTP 401",
    );
    check_failed(
        outcome(raw(200, "application/json", "{")).await,
        "the model's answer could not be read",
    );
    check_failed(
        outcome(raw(200, "text/html", "<html>")).await,
        "the model's answer could not be read",
    );
    let broken = events(&["data: {\"choi"], Then::Break);
    assert_eq!(
        outcome(broken).await.unwrap_err().kind(),
        "upstream_unavailable"
    );
}
