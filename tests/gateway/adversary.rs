//! What only somebody who means harm, or a peer in a very bad state, does.

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, PATIENCE, call, raw},
    tools::{Does, tools},
};

/// Sends bytes as they are and gives back the status.
async fn status(gw: &Toolway, request: &str) -> u16 {
    let mut stream = TcpStream::connect(gw.base.trim_start_matches("http://"))
        .await
        .unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .expect("it answers")
        .unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn no_path_leads_out_of_the_base_of_the_upstream() {
    let gw = toolway(Model::start([]).await).start().await;
    let get =
        |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(
        status(&gw, &get("/v1/files")).await,
        201,
        "the scripted upstream answers every path"
    );
    for path in [
        "/v1/../admin",
        "/v1/%2e%2E/admin",
        "/v1/a/.%2e/../admin",
        "/v1/..\\admin",
        "/v1/./files",
    ] {
        assert_eq!(status(&gw, &get(path)).await, 404, "{path}");
    }
    gw.join().await;
}

#[tokio::test]
async fn methods_of_proxies_are_not_passed_on() {
    let gw = toolway(Model::start([]).await).start().await;
    for method in ["TRACE", "CONNECT"] {
        let request =
            format!("{method} /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert_eq!(status(&gw, &request).await, 405, "{method}");
    }
    gw.join().await;
}

#[tokio::test]
async fn no_sdk_repeats_a_request_whose_tool_failed_at_once() {
    let refused = raw(429, "application/json", r#"{"error":{"message":"later"}}"#);
    let script = [
        call(&[("a", "s__fails", json!({}))]),
        raw(500, "application/json", r#"{"error":{"message":"no"}}"#),
        call(&[("a", "s__fails", json!({}))]),
        refused,
    ];
    let failed = json!({"isError": true, "content": [{"type": "text", "text": "no"}]});
    let gw = toolway(Model::start(script).await)
        .config("[[upstreams]]\nbase_url = \"MODEL\"\nretries = 0\n")
        .server("s", tools().tool("fails", Does::Answers(failed)))
        .start()
        .await;
    for expected in [500, 429] {
        let response = gw.send(json!({}), &[]).await;
        assert_eq!(response.status(), expected);
        assert_eq!(response.headers()["x-should-retry"], "false");
    }
    gw.join().await;
}
