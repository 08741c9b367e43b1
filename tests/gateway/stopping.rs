//! toolway is stopped while requests are running: each gets an answer, or an error that it can read.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, Reply, Then, call, events},
    tools::tools,
};

pub const TEXT: &str = "data: {\"id\":\"a\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
     \"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"first\"}}]}\n\n";

async fn with_little_grace(script: impl IntoIterator<Item = Reply>, has_tools: bool) -> Toolway {
    let gw = toolway(Model::start(script).await).config("shutdown_grace = \"300ms\"\n");
    let gw = match has_tools {
        true => gw.server("calc", tools().add()),
        false => gw,
    };
    gw.start().await
}

#[tokio::test]
async fn a_stream_that_is_still_running_ends_with_an_error_in_it() {
    for has_tools in [true, false] {
        let script = [events(&[TEXT], Then::Silence)];
        let mut gw = with_little_grace(script, has_tools).await;
        let mut live = gw.live(json!({}), &[]).await;
        live.until("first").await;
        gw.stop();
        let answer = live.end().await;
        assert_eq!(answer.error().unwrap()["code"], "shutting_down");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_plain_answer_that_is_not_there_yet_is_a_503() {
    let add = call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]);
    for (script, may_retry) in [
        (vec![events(&[], Then::Silence)], true),
        (vec![add, events(&[], Then::Silence)], false),
    ] {
        let questions = script.len();
        let mut gw = with_little_grace(script, true).await;
        let request = gw.http.post(format!("{}/v1/chat/completions", gw.base));
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
        let asking = tokio::spawn(request.body(body.to_string()).send());
        while gw.model.asked().len() < questions {
            tokio::task::yield_now().await;
        }
        gw.stop();
        let response = asking.await.unwrap().unwrap();
        assert_eq!(response.status(), 503);
        let headers = response.headers().clone();
        assert_eq!(headers.contains_key("retry-after"), may_retry);
        assert_eq!(headers.contains_key("x-should-retry"), !may_retry);
        let body: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert_eq!(body["error"]["code"], "shutting_down");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_request_whose_body_is_not_complete_is_a_503() {
    let one = "";
    // The body says which of them is meant.
    let two = "[[upstreams]]\nname = \"a\"\nbase_url = \"MODEL\"\napi_key = \"k\"\n\
               [[upstreams]]\nname = \"b\"\nbase_url = \"MODEL\"\napi_key = \"k\"\n";
    for (upstreams, path) in [
        (one, "/v1/chat/completions"),
        (one, "/v1/mcp_sessions"),
        (one, "/mcp"),
        (one, "/v1/embeddings"),
        (two, "/v1/embeddings"),
    ] {
        let gw = toolway(Model::start([]).await).server("calc", tools().add());
        let config = format!("shutdown_grace = \"300ms\"\n{upstreams}");
        let mut gw = gw.config(&config).start().await;
        let address = gw.base.strip_prefix("http://").unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: 100\r\n\
             expect: 100-continue\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let mut interim = [0; 12];
        client.read_exact(&mut interim).await.unwrap();
        assert_eq!(&interim, b"HTTP/1.1 100", "the body is waited for");
        gw.stop();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("HTTP/1.1 503"), "{path}: {answer}");
        assert!(answer.contains("shutting_down"), "{path}: {answer}");
        gw.join().await;
    }
}
