//! Clients that would keep others out: none gets further than its share.

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, Then, events},
};

const BODY: &str = r#"{"model":"m","messages":[]}"#;

/// A chat of which a part of the body has come.
async fn half_a_chat(gw: &Toolway) -> TcpStream {
    let address = gw.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (half, length) = (&BODY[..5], BODY.len());
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{half}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// A model whose streams do not end.
async fn endless() -> Model {
    let piece = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let model = Model::start([]).await;
    model.then_always(events(&[piece], Then::Silence))
}

#[tokio::test]
async fn half_a_body_takes_no_place_and_a_whole_one_needs_one() {
    let gw = toolway(endless().await)
        .config("max_requests = 1\n")
        .start()
        .await;
    let mut halves = Vec::new();
    for _ in 0..5 {
        halves.push(half_a_chat(&gw).await);
    }
    assert_eq!(gw.get("/tools").await.status(), 200);
    let mut live = gw.live(json!({}), &[]).await;
    live.until("\"a\"").await;
    let mut half = halves.pop().unwrap();
    half.write_all(&BODY.as_bytes()[5..]).await.unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("\"overloaded\""), "{answer}");
    drop((live, halves));
    gw.join().await;
}

#[tokio::test]
async fn one_key_leaves_places_for_another() {
    let gw = toolway(endless().await)
        .config("max_requests = 4\napi_keys = [\"greedy\", \"other\"]\n")
        .start()
        .await;
    let keys = ["Bearer greedy", "Bearer other"].map(|key| [("authorization", key)]);
    let mut taken = Vec::new();
    for _ in 0..3 {
        let mut live = gw.live(json!({}), &keys[0]).await;
        live.until("\"a\"").await;
        taken.push(live);
    }
    let refused = gw.send(json!({}), &keys[0]).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    let text = refused.text().await.unwrap();
    assert!(text.contains("with this key"), "{text}");
    let mut live = gw.live(json!({"stream": true}), &keys[1]).await;
    live.until("\"a\"").await;
    drop((taken, live));
    gw.join().await;
}
