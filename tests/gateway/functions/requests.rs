//! Functions that are one HTTP request each.

use serde_json::{Value, json};
use toolway_protocol::tool::{CallError, Content, ToolResult};

use super::{check_failed, definitions};
use crate::{
    harness::{Toolway, toolway},
    model::Model,
    webhook::{Got, Reply, Webhook, answer, webhook},
};

/// A toolway whose group `town` has the functions `weather` and `mayor`, which are requests to the webhook;
/// `BASE` stands for its address.
async fn town(webhook: &Webhook, keys: &str) -> Toolway {
    let (_folder, file) = definitions(&["weather", "mayor"]);
    let keys = keys.replace("BASE", &webhook.base);
    toolway(Model::start([]).await)
        .config(&format!("[functions.town]\n{file}{keys}"))
        .start()
        .await
}

async fn call(gw: &Toolway, function: &str, arguments: Value) -> Result<ToolResult, CallError> {
    let name = format!("town__{function}");
    gw.gateway.call_tool(&name, &arguments.to_string()).await
}

/// What becomes of a request that is answered like this.
async fn outcome(
    reply: impl Fn(&Got) -> Reply + Send + Sync + 'static,
) -> Result<ToolResult, CallError> {
    let webhook = webhook(reply).await;
    let gw = town(
        &webhook,
        "url = 'BASE/{function}'\nmax_response_bytes = 65536",
    )
    .await;
    let outcome = call(&gw, "weather", json!({"city": "Rome"})).await;
    gw.join().await;
    outcome
}

#[tokio::test]
async fn arguments_go_where_the_template_says() {
    let webhook = webhook(|got| answer(json!({"path": got.path, "body": got.body}))).await;
    let keys = "url = 'BASE/{function}/{city}?unit=c'\nheaders = {X-Key = 'k'}\n\
                [functions.town.urls]\nmayor = 'GET BASE/people?in={city}'";
    let gw = town(&webhook, keys).await;
    let result = call(&gw, "weather", json!({"city": "a/b ?ü", "days": 3}))
        .await
        .unwrap();
    let said = json!({"path": "/weather/a%2Fb%20%3F%C3%BC?unit=c", "body": "{\"days\":3}"});
    assert_eq!(result.structured_content, Some(said.clone()));
    assert_eq!(result.content, [Content::Text(said.to_string())]);

    let result = call(&gw, "mayor", json!({"city": "Rome", "tags": ["a", "b"]}))
        .await
        .unwrap();
    let said = json!({"path": "/people?in=Rome&tags=a&tags=b", "body": ""});
    assert_eq!(result.structured_content, Some(said));

    let got = webhook.got();
    assert_eq!(
        (got[0].method.as_str(), got[1].method.as_str()),
        ("POST", "GET")
    );
    assert_eq!(got[0].headers["content-type"], "application/json");
    assert!(!got[1].headers.contains_key("content-type"));
    assert!(got.iter().all(|got| got.headers["x-key"] == "k"));
    gw.join().await;
}

#[tokio::test]
async fn an_argument_that_would_leave_its_place_is_not_sent() {
    let webhook = webhook(|_| answer(json!(1))).await;
    let gw = town(&webhook, "url = 'BASE/{city}/x'").await;
    let said = "/city: a part of the path cannot be `.` or `..`, whichever way it is written";
    for city in ["..", "../../admin", "%2e%2e%2fadmin"] {
        let error = call(&gw, "weather", json!({"city": city}))
            .await
            .unwrap_err();
        let found = (error.kind(), error.to_string());
        assert_eq!(found, ("invalid_params", said.to_owned()), "{city}");
    }
    assert_eq!(webhook.got().len(), 0);
    gw.join().await;
}

#[tokio::test]
async fn the_reply_is_the_result() {
    let reply = |content_type: &'static str, body: &'static [u8]| {
        outcome(move |_| Reply::Answers(200, content_type, body.to_vec()))
    };
    let text = reply("text/plain", b"sunny").await.unwrap();
    assert_eq!(text, ToolResult::text("sunny"));
    let image = reply("image/png", b"ABC").await.unwrap();
    let png = Content::Image {
        mime_type: "image/png".into(),
        data: "QUJD".into(),
    };
    assert_eq!(image.content, [png]);
    let file = reply("application/pdf", b"ABC").await.unwrap();
    let pdf = Content::BlobResource {
        uri: "attachment:weather".into(),
        mime_type: Some("application/pdf".into()),
        blob: "QUJD".into(),
    };
    assert_eq!(file.content, [pdf]);
    let nothing = reply("text/plain", b"").await.unwrap();
    assert_eq!(nothing, ToolResult::default());
}

#[tokio::test]
async fn an_error_status_is_an_error_result_without_the_page() {
    let page = |_: &Got| {
        Reply::Answers(
            404,
            "text/html",
            b"<html><h1>nginx on db.internal</h1></html>".to_vec(),
        )
    };
    check_failed(
        outcome(page).await,
        "the service answered with HTTP 404 (not found)",
    );
    let json = |_: &Got| {
        Reply::Answers(
            422,
            "application/json",
            br#"{"detail": "no such city"}"#.to_vec(),
        )
    };
    check_failed(
        outcome(json).await,
        "the service answered with HTTP 422: no such city",
    );
    let elsewhere = |_: &Got| Reply::Redirects("http://127.0.0.1:9/".into());
    check_failed(
        outcome(elsewhere).await,
        "the service answered with HTTP 307 (a redirect, which is not followed)",
    );
}

#[tokio::test]
async fn an_endless_or_broken_reply_is_an_error() {
    check_failed(
        outcome(|_| Reply::Floods).await,
        "the result is larger than 65536 bytes",
    );
    let error = outcome(|_| Reply::BreaksOff).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.is_unsent()),
        ("upstream_unavailable", false)
    );
}
