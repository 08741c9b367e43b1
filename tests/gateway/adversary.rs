//! What only somebody who means harm, or a peer in a very bad state, does.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::timeout,
};

use crate::{
    harness::toolway,
    model::{Model, PATIENCE, Then, call, events, raw, say},
    tools::{Does, tools},
};

#[tokio::test]
async fn no_path_leads_out_of_the_base_of_the_upstream() {
    let gw = toolway(Model::start([]).await).start().await;
    let get =
        |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(
        gw.raw(&get("/v1/files")).await.0,
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
        assert_eq!(gw.raw(&get(path)).await.0, 404, "{path}");
    }
    gw.join().await;
}

#[tokio::test]
async fn methods_of_proxies_are_not_passed_on() {
    let gw = toolway(Model::start([]).await).start().await;
    for method in ["TRACE", "CONNECT"] {
        let request =
            format!("{method} /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert_eq!(gw.raw(&request).await.0, 405, "{method}");
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

/// An upstream that ends the body of each answer only when it is told to, after the client has `[DONE]`.
/// Counts its connections.
async fn slow_to_end(told: Arc<Notify>, connections: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(answer_slowly(stream, told.clone()));
        }
    });
    base
}

async fn answer_slowly(mut stream: TcpStream, told: Arc<Notify>) {
    let events = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut asked = [0; 4096];
    while stream.read(&mut asked).await.is_ok_and(|read| read > 0) {
        let answer = format!("{head}{:x}\r\n{events}\r\n", events.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
        told.notified().await;
        if stream.write_all(b"0\r\n\r\n").await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn the_connection_to_an_upstream_that_is_slow_to_end_is_used_again() {
    let (told, connections) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let base = slow_to_end(told.clone(), connections.clone()).await;
    let gw = toolway(Model::start([]).await)
        .config(&format!("[[upstreams]]\nbase_url = \"{base}\"\n"))
        .start()
        .await;
    for _ in 0..5 {
        let mut live = gw.live(json!({}), &[]).await;
        live.until("[DONE]").await;
        told.notify_one();
        live.end().await;
    }
    // On a very busy machine the end may come too late once; without a wait for it, it always does.
    assert!(connections.load(Ordering::SeqCst) < 5);
    gw.join().await;
}

#[tokio::test]
async fn a_model_behind_a_long_input_chooses_its_upstream_all_the_same() {
    let (first, second) = (Model::start([]).await, Model::start([]).await);
    let gw = toolway(first)
        .config(&format!(
            "[[upstreams]]\nname = \"first\"\nbase_url = \"MODEL\"\nmodels = [\"one\"]\n\
             [[upstreams]]\nname = \"second\"\nbase_url = \"{}\"\n",
            second.base
        ))
        .start()
        .await;
    let input = "x".repeat(1 << 20);
    let form = format!(
        "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n{input}\r\n\
         --b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntwo\r\n--b--\r\n"
    );
    for body in [format!(r#"{{"input":"{input}","model":"two"}}"#), form] {
        let request = gw.http.post(format!("{}/v1/embeddings", gw.base));
        let answer = request.body(body).send().await.unwrap();
        let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        let host = answer["headers"]["host"].as_str().unwrap();
        assert!(second.base.contains(host), "it went to {host}");
    }
    gw.join().await;
}

#[tokio::test]
async fn one_that_is_busy_is_not_ill() {
    let model = Model::start([events(&[": hi\n\n"], Then::Silence)]).await;
    let gw = toolway(model).config("max_requests = 1\n").start().await;
    let held = tokio::spawn(
        gw.http
            .post(format!("{}/v1/chat/completions", gw.base))
            .body(r#"{"model":"m","messages":[],"stream":true}"#)
            .send(),
    );
    let asked = async {
        while gw.model.asked().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, asked).await.unwrap();
    assert_eq!(gw.get("/v1/models").await.status(), 503);
    assert_eq!(gw.get("/health").await.status(), 200);
    held.abort();
    gw.join().await;
}

#[tokio::test]
async fn a_field_that_is_null_is_not_there() {
    let gw = toolway(Model::start([say("x")]).await).start().await;
    gw.plain(json!({"toolway": null})).await;
    assert!(gw.model.asked()[0].body.get("toolway").is_none());
    gw.join().await;
}
