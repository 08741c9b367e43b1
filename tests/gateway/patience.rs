//! Upstreams that keep everybody waiting: who is told, and when they are given up.

use serde_json::json;

use crate::{
    harness::{Builder, toolway},
    model::{Model, Reply, Then, call, events, say},
    tools::tools,
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
