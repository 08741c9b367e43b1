//! What requests may take of the process's memory, alone and together.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, PATIENCE, say},
    sessions::{send, weather},
};

async fn start(config: &str) -> Toolway {
    let model = Model::start([]).await.then_always(say("ok"));
    toolway(model).config(config).start().await
}

async fn post(gw: &Toolway, url: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
    let request = gw.http.post(url).header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream");
    let response = request.body(body).send().await.unwrap();
    let status = response.status().as_u16();
    if status == 503 {
        assert_eq!(response.headers()["retry-after"], "1");
    }
    (status, response.text().await.unwrap())
}

/// A `tools/call` with so many values in its arguments.
fn call_with(values: usize) -> String {
    let city = vec!["0"; values].join(",");
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"weather","arguments":{{"city":[{city}]}}}}}}"#
    )
}

#[tokio::test]
async fn bodies_that_do_not_end_share_a_budget_that_comes_back() {
    let config = "max_body_bytes = 100000\nmax_inflight_bytes = 150000\n";
    let gw = start(config).await;
    let chat = format!("{}/v1/chat/completions", gw.base);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(90_000)}]});
    let body = body.to_string();
    let (pieces, unfinished) = tokio::sync::mpsc::channel::<reqwest::Result<String>>(1);
    let unfinished = futures::stream::unfold(unfinished, async |mut rest| {
        Some((rest.recv().await?, rest))
    });
    let unfinished = reqwest::Body::wrap_stream(unfinished);
    let unfinished = tokio::spawn(gw.http.post(&chat).body(unfinished).send());
    pieces.send(Ok(body.clone())).await.unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (status, text) = post(&gw, &chat, body.clone()).await;
        if status == 503 {
            let error: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(error["error"]["code"], "overloaded");
            assert!(text.contains("bytes together"), "{text}");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{status}: {text}");
    }
    // A short one needs none of it.
    let short = r#"{"model":"m","messages":[]}"#;
    assert_eq!(post(&gw, &chat, short).await.0, 200);
    drop(pieces);
    assert_eq!(unfinished.await.unwrap().unwrap().status(), 200);
    assert_eq!(post(&gw, &chat, body).await.0, 200);
    gw.join().await;
}

/// A chat whose history has so many of the client's own calls, with the mark of a turn that is not parked any more.
fn chat_with_marked_calls(calls: usize) -> String {
    let pad = "x".repeat(1000);
    let turn = |call: usize| {
        let id = format!("call_{call}-toolway");
        let call =
            json!({"id": id, "type": "function", "function": {"name": "own", "arguments": "{}"}});
        let asked = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        format!(
            "{asked},{}",
            json!({"role": "tool", "tool_call_id": id, "content": pad})
        )
    };
    let turns: Vec<String> = (0..calls).map(turn).collect();
    format!(r#"{{"model":"m","messages":[{}]}}"#, turns.join(","))
}

#[tokio::test]
async fn a_history_that_has_to_be_restored_counts_against_the_budget() {
    let body = chat_with_marked_calls(100);
    let once = format!("max_inflight_bytes = {}\n", body.len() + 1000);
    let max = format!("max_body_bytes = {}\n", body.len());
    let gw = start(&format!("{once}{max}")).await;
    let chat = format!("{}/v1/chat/completions", gw.base);
    let (status, text) = post(&gw, &chat, body.clone()).await;
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("bytes together"), "{text}");
    // A history without marks takes nothing more than its body.
    assert_eq!(
        post(&gw, &chat, body.replace("-toolway", "-another"))
            .await
            .0,
        200
    );
    gw.join().await;

    let thrice = format!("max_inflight_bytes = {}\n", body.len() * 3);
    let gw = start(&format!("{thrice}{max}")).await;
    let chat = format!("{}/v1/chat/completions", gw.base);
    for _ in 0..4 {
        // The bytes come back when the request ends.
        assert_eq!(post(&gw, &chat, body.clone()).await.0, 200);
    }
    let messages = Value::from(gw.model.messages(3)).to_string();
    assert!(messages.contains("call_99") && !messages.contains("-toolway"));
    gw.join().await;
}

#[tokio::test]
async fn a_body_of_too_many_values_is_refused_at_every_face() {
    let gw = start("").await;
    let (_, lent) = send(
        &gw,
        Method::POST,
        "/v1/mcp_sessions",
        None,
        Some(json!({"tools": weather()})),
    )
    .await;
    let list = vec!["0"; 500_000].join(",");
    let session = format!("/v1/mcp_sessions/{}", lent["id"].as_str().unwrap());
    let bodies = [
        (
            "/v1/chat/completions".to_owned(),
            format!(r#"{{"model":"m","messages":[{list}]}}"#),
        ),
        ("/mcp".to_owned(), format!("[{list}]")),
        (
            format!("{session}/tool_responses"),
            format!(r#"{{"tool_responses":[{list}]}}"#),
        ),
        (
            "/v1/mcp_sessions".to_owned(),
            format!(r#"{{"tools":[{list}]}}"#),
        ),
    ];
    for (path, body) in bodies {
        let (status, text) = post(&gw, &format!("{}{path}", gw.base), body).await;
        assert_eq!(status, 400, "{path}: {text}");
        assert!(
            text.contains("more than") && text.contains("00000 JSON values"),
            "{path}: {text}"
        );
    }
    gw.join().await;
}

#[tokio::test]
async fn who_holds_only_a_url_of_lent_functions_sends_small_messages() {
    let gw = start("").await;
    let (_, lent) = send(
        &gw,
        Method::POST,
        "/v1/mcp_sessions",
        None,
        Some(json!({"tools": weather()})),
    )
    .await;
    let url = lent["url"].as_str().unwrap();
    let (status, text) = post(&gw, url, "x".repeat((1 << 20) + 1)).await;
    assert_eq!(status, 413, "{text}");
    assert!(text.contains("1048576 bytes"), "{text}");
    let (status, text) = post(&gw, url, call_with(50_000)).await;
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("more than 50000 JSON values"), "{text}");
    // The same is no matter at an endpoint that asks for a key where there are keys.
    let (status, text) = post(&gw, &format!("{}/mcp", gw.base), call_with(50_000)).await;
    assert!(!text.contains("JSON values"), "{status}: {text}");
    gw.join().await;
}

#[tokio::test]
async fn a_forwarded_body_is_streamed_and_may_be_longer_than_the_bound() {
    let second = "[[upstreams]]\nname = \"second\"\nbase_url = \"MODEL\"\n";
    for upstreams in [
        String::new(),
        format!("{second}{}", second.replace("second", "third")),
    ] {
        let gw = start(&format!("max_body_bytes = 5000\n{upstreams}")).await;
        let url = format!("{}/v1/files", gw.base);
        let chunked = |bytes: usize| {
            let pieces = (0..bytes / 1000).map(|_| Ok::<_, std::io::Error>("x".repeat(1000)));
            reqwest::Body::wrap_stream(futures::stream::iter(pieces))
        };
        for body in [reqwest::Body::from("x".repeat(9000)), chunked(9000)] {
            let (status, text) = post(&gw, &url, body).await;
            assert_eq!(status, 201, "{text}");
        }
        gw.join().await;
    }
}
