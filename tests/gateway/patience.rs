//! Upstreams that keep everybody waiting: who is told, and when they are given up.

use std::time::Duration;

use axum::body::Bytes;
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use crate::{
    harness::{Builder, toolway},
    model::{Model, Reply, Then, call, events, say},
    tools::{Does, tools},
};

const TEXT: &str = "data: {\"id\":\"a\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
     \"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"first\"}}]}\n\n";

/// A body whose head comes at once, and then these pieces and nothing more.
fn stalls(pieces: &[&str]) -> Reply {
    events(pieces, Then::Silence)
}

async fn in_front_of(script: impl IntoIterator<Item = Reply>, config: &str) -> Builder {
    let upstream = "[[upstreams]]\nname = \"u\"\nbase_url = \"MODEL\"\nretries = 0\n";
    toolway(Model::start(script).await).config(&format!("{config}\n{upstream}"))
}

#[tokio::test]
async fn an_upstream_that_falls_silent_is_given_up_although_comments_go_out() {
    let config = "[loop]\nkeepalive = \"100ms\"\n";
    let gw = in_front_of([stalls(&[TEXT])], config)
        .await
        .config("silence_timeout = \"500ms\"\n")
        .server("calc", tools().add())
        .start()
        .await;
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.text(), "first");
    assert!(answer.raw.contains(": keep-alive"), "{}", answer.raw);
    assert_eq!(answer.error().unwrap()["code"], "upstream_timeout");
    gw.join().await;
}

#[tokio::test]
async fn comments_go_out_while_a_later_answer_has_a_head_and_no_body() {
    let add = call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]);
    let gw = in_front_of([add, stalls(&[])], "[loop]\nkeepalive = \"100ms\"\n")
        .await
        .server("calc", tools().add())
        .start()
        .await;
    let mut live = gw.live(json!({}), &[]).await;
    live.until(": keep-alive\n\n: keep-alive\n\n: keep-alive\n\n")
        .await;
    assert_eq!(gw.model.asked().len(), 2);
    drop(live);
    gw.join().await;
}

#[tokio::test]
async fn a_request_without_tools_of_the_gateway_ends_in_time_too() {
    for is_streamed in [true, false] {
        let config = "[loop]\nrequest_timeout = \"1s\"\ntool_timeout = \"1s\"\n";
        let gw = in_front_of([stalls(&[])], config).await.start().await;
        let response = gw.send(json!({"stream": is_streamed}), &[]).await;
        assert_eq!(response.status(), 504);
        let body = response.text().await.unwrap();
        assert!(body.contains("request_timeout"), "{body}");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_stream_that_passes_through_is_told_within_it_that_the_time_is_up() {
    let config = "[loop]\nrequest_timeout = \"1s\"\ntool_timeout = \"1s\"\n";
    let gw = in_front_of([stalls(&[TEXT]), say("x")], config)
        .await
        .start()
        .await;
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.text(), "first");
    assert_eq!(answer.error().unwrap()["code"], "request_timeout");
    gw.join().await;
}

#[tokio::test]
async fn what_is_forwarded_is_given_up_when_the_upstream_falls_silent() {
    let gw = in_front_of([], "")
        .await
        .config("silence_timeout = \"300ms\"\n")
        .start()
        .await;
    let response = gw.get("/v1/stalls").await;
    assert_eq!(response.status(), 200);
    let broken = response.text().await.unwrap_err();
    assert!(
        !broken.is_timeout(),
        "it is the gateway that ends it: {broken:?}"
    );
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_is_made_again_has_no_more_time_than_its_request() {
    let config = "[loop]\nrequest_timeout = \"3s\"\ntool_timeout = \"3s\"\n";
    let tool = json!({
        "name": "f", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true},
    });
    let gw = in_front_of([], config)
        .await
        .server(
            "s",
            tools().listed(tool, Does::HangsUpAfter(Duration::from_secs(2))),
        )
        .start()
        .await;
    let params = json!({
        "name": "s__f", "arguments": {},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    });
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = gw.http.post(format!("{}/mcp", gw.base));
    let request = request
        .header("content-type", "application/json")
        .header("accept", "application/json")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "s__f");
    let answer = request.body(message.to_string()).send().await.unwrap();
    let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("did not answer"),
        "not what came of a second attempt: {text}"
    );
    gw.join().await;
}

#[tokio::test]
async fn what_is_forwarded_ends_with_the_time_of_the_request() {
    let config = "[loop]\nrequest_timeout = \"1s\"\ntool_timeout = \"1s\"\n";
    let gw = in_front_of([], config).await.start().await;
    let response = gw.get("/v1/drips").await;
    assert_eq!(response.status(), 200);
    let broken = response.text().await.unwrap_err();
    assert!(!broken.is_timeout(), "the gateway ends it: {broken:?}");
    let response = gw.get("/v1/silent").await;
    assert_eq!(response.status(), 504);
    let body = response.text().await.unwrap();
    assert!(body.contains("request_timeout"), "{body}");
    gw.join().await;
}

#[tokio::test]
async fn an_upload_does_not_count_as_a_wait_for_the_answer() {
    let gw = in_front_of([], "")
        .await
        .config("first_byte_timeout = \"1s\"\n")
        .start()
        .await;
    let pieces = stream::iter(0..8).then(|_| async {
        // Time is what is tested here.
        tokio::time::sleep(Duration::from_millis(250)).await;
        Ok::<_, std::io::Error>(Bytes::from_static(b"x"))
    });
    let request = gw.http.post(format!("{}/v1/takes", gw.base));
    let request = request.header("content-type", "application/octet-stream");
    let body = reqwest::Body::wrap_stream(pieces);
    let response = request.body(body).send().await.unwrap();
    assert_eq!(response.status(), 201, "it was taken");
    let response = gw.get("/v1/silent").await;
    assert_eq!(response.status(), 504);
    let body = response.text().await.unwrap();
    assert!(body.contains("upstream_timeout"), "{body}");
    gw.join().await;
}
