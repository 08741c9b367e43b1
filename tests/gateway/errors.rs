//! Every failure has a status, a type and a code; `docs/errors.md` says which, and this walks it.

use std::collections::BTreeSet;

use axum::http::{HeaderValue, header};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    harness::{Builder, Toolway, toolway},
    model::{Model, Then, events, raw, say},
    sessions::{send, weather},
    tools::{Does, tools},
};

const JSON: &str = "application/json";

async fn plain_model() -> Builder {
    toolway(Model::start([say("hi")]).await)
}

async fn upstream(reply: crate::model::Reply) -> Builder {
    toolway(Model::start([]).await.then_always(reply))
}

async fn post(gw: &Toolway, body: impl Into<reqwest::Body>) -> reqwest::Response {
    let request = gw
        .http
        .post(format!("{}/v1/chat/completions", gw.base))
        .header("content-type", JSON);
    request.body(body).send().await.unwrap()
}

/// The response as the table has it: status, type, code.
async fn row(gw: Toolway, response: reqwest::Response) -> String {
    let status = response.status().as_u16();
    assert!(response.headers().contains_key("x-request-id"));
    assert_eq!(response.headers()[header::CONTENT_TYPE], JSON);
    let text = response.text().await.unwrap();
    gw.join().await;
    row_of(status, &text)
}

fn row_of(status: u16, text: &str) -> String {
    let body: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    let error = body["error"].as_object().expect("an error object");
    let keys: Vec<&str> = error.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        ["message", "type", "param", "code"],
        "all four keys, always"
    );
    assert!(!error["message"].as_str().unwrap().is_empty());
    format!(
        "{status} {} {}",
        error["type"].as_str().unwrap(),
        error["code"].as_str().unwrap()
    )
}

async fn chat(builder: Builder, body: Value) -> String {
    let gw = builder.start().await;
    let response = gw.send(body, &[]).await;
    row(gw, response).await
}

async fn with_bytes(bytes: impl Into<reqwest::Body>) -> String {
    let gw = plain_model().await.start().await;
    let response = post(&gw, bytes).await;
    row(gw, response).await
}

async fn with_headers(
    builder: Builder,
    path: &str,
    headers: &[(&'static str, &'static str)],
) -> String {
    let gw = builder.start().await;
    let mut request = gw.http.get(format!("{}{path}", gw.base));
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_static(value));
    }
    let response = request.send().await.unwrap();
    row(gw, response).await
}

/// A body that breaks off.
/// The row of what no client library sends.
async fn bytes_row(gw: Toolway, (status, answer): (u16, String)) -> String {
    gw.join().await;
    row_of(status, answer.split("\r\n\r\n").nth(1).unwrap())
}

async fn half_a_body() -> String {
    let gw = plain_model().await.start().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{\"mod";
    let answer = gw.cut_off(head).await;
    bytes_row(gw, answer).await
}

async fn two_hosts() -> String {
    let gw = plain_model().await.start().await;
    let head =
        "GET /health HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let answer = gw.raw(head).await;
    bytes_row(gw, answer).await
}

async fn overloaded() -> String {
    let model = Model::start([events(
        &["data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"],
        Then::Silence,
    )])
    .await;
    let gw = toolway(model).config("max_requests = 1\n").start().await;
    let mut live = gw.live(json!({}), &[]).await;
    live.until("\"a\"").await;
    let response = gw.get("/tools").await;
    assert_eq!(response.headers()["retry-after"], "1");
    let status = response.status().as_u16();
    let row = row_of(status, &response.text().await.unwrap());
    drop(live);
    gw.join().await;
    row
}

/// One session more than the share of a key; another key still gets one.
async fn one_session_more_than_the_share() -> String {
    let gw = plain_model().await;
    let gw = gw.config("api_keys = [\"a\", \"b\"]\n").start().await;
    let body = json!({"tools": weather()});
    let open = |key| {
        let body = Some(body.clone());
        send(&gw, Method::POST, "/v1/mcp_sessions", Some(key), body)
    };
    for _ in 0..500 {
        assert_eq!(open("a").await.0, 201);
    }
    let (status, refused) = open("a").await;
    assert_eq!(open("b").await.0, 201);
    gw.join().await;
    row_of(status, &refused.to_string())
}

async fn shutting_down() -> String {
    let model = Model::start([events(&[], Then::Silence)]).await;
    let config = "shutdown_grace = \"100ms\"\n";
    let mut gw = toolway(model).config(config).start().await;
    let request = gw.http.post(format!("{}/v1/chat/completions", gw.base));
    let body = r#"{"model":"m","messages":[]}"#;
    let asking = tokio::spawn(request.body(body).send());
    while gw.model.asked().is_empty() {
        tokio::task::yield_now().await;
    }
    gw.stop();
    row(gw, asking.await.unwrap().unwrap()).await
}

/// One session more than there can be.
async fn one_session_too_many() -> String {
    let gw = plain_model().await.start().await;
    let body = json!({"tools": weather()});
    for _ in 0..1000 {
        let body = body.to_string().into();
        gw.gateway.mcp_sessions().open(body, 0).await.unwrap();
    }
    session_row(gw, Method::POST, "/v1/mcp_sessions", Some(body)).await
}

async fn session_row(gw: Toolway, method: Method, path: &str, body: Option<Value>) -> String {
    let (status, answer) = send(&gw, method, path, None, body).await;
    gw.join().await;
    row_of(status, &answer.to_string())
}

/// A tool that holds for longer than the whole request may take.
async fn too_long() -> String {
    let model = Model::start([crate::model::call(&[("c", "s__hold", json!({}))])]).await;
    let config = "[loop]\nrequest_timeout = \"1s\"\ntool_timeout = \"1s\"\n";
    chat(
        toolway(model)
            .config(config)
            .server("s", tools().tool("hold", Does::Holds)),
        json!({}),
    )
    .await
}

fn deep() -> String {
    format!(
        "{{\"model\": \"m\", \"messages\": {}{}}}",
        "[".repeat(1000),
        "]".repeat(1000)
    )
}

fn first(config: &str) -> String {
    format!("[[upstreams]]\nname = \"u\"\nbase_url = \"MODEL\"\n{config}")
}

/// Provokes every failure; rows as in the table.
async fn provoked() -> Vec<String> {
    let big = format!(
        "{{\"model\": \"m\", \"messages\": [\"{}\"]}}",
        "x".repeat(5000)
    );
    let gw_keyed = || async { plain_model().await.config("api_keys = [\"k\"]\n") };
    let silent =
        first("first_byte_timeout = \"200ms\"\nsilence_timeout = \"200ms\"\nretries = 0\n");
    let big_event = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n",
        "x".repeat(17 << 20)
    );
    vec![
        with_bytes("{\"model\": ").await,
        with_bytes(b"{\"model\": \"\xff\"}".as_slice()).await,
        with_bytes("[]").await,
        with_bytes(deep()).await,
        with_bytes("{\"model\": \"m\"}").await,
        with_bytes("{\"model\": 1, \"messages\": []}").await,
        with_bytes("{\"model\": \"m\", \"messages\": {}}").await,
        chat(plain_model().await, json!({"stream": "yes"})).await,
        chat(
            plain_model().await,
            json!({"tools": [{"type": "mcp", "server_label": "nobody"}]}),
        )
        .await,
        chat(
            plain_model().await,
            json!({"toolway": {"progress": "loud"}}),
        )
        .await,
        chat(
            plain_model().await.server("s", tools().add()),
            json!({"n": 2, "tools": [{"type": "mcp", "server_label": "s"}]}),
        )
        .await,
        with_headers(
            plain_model().await,
            "/v1/files",
            &[("x-toolway-upstream", "nobody")],
        )
        .await,
        with_headers(gw_keyed().await, "/v1/models", &[]).await,
        with_headers(
            gw_keyed().await,
            "/tools",
            &[("authorization", "Bearer wrong")],
        )
        .await,
        with_headers(plain_model().await, "/health", &[("host", "evil.example")]).await,
        with_headers(
            plain_model().await,
            "/health",
            &[("origin", "https://evil.example")],
        )
        .await,
        chat(
            plain_model().await.config(&first("models = [\"x\"]\n")),
            json!({}),
        )
        .await,
        with_headers(plain_model().await, "/v1/models/none", &[]).await,
        with_headers(plain_model().await, "/chat/completions", &[]).await,
        {
            let gw = plain_model().await.start().await;
            let response = gw
                .http
                .post(format!("{}/health", gw.base))
                .send()
                .await
                .unwrap();
            row(gw, response).await
        },
        half_a_body().await,
        two_hosts().await,
        {
            let gw = plain_model()
                .await
                .config("max_body_bytes = 4096\n")
                .start()
                .await;
            let response = post(&gw, big).await;
            row(gw, response).await
        },
        {
            let gw = plain_model().await.start().await;
            let response = gw.send(json!({}), &[("content-encoding", "gzip")]).await;
            row(gw, response).await
        },
        {
            let gone =
                "[[upstreams]]\nname = \"u\"\nbase_url = \"http://127.0.0.1:1/v1\"\nretries = 0\n";
            chat(plain_model().await.config(gone), json!({})).await
        },
        chat(
            upstream(events(&["{\"choices\": "], Then::Break)).await,
            json!({}),
        )
        .await,
        chat(
            upstream(raw(200, "text/html", "<html>hello</html>")).await,
            json!({}),
        )
        .await,
        chat(upstream(raw(200, JSON, "hello")).await, json!({})).await,
        chat(
            upstream(raw(200, JSON, "{\"choices\": []}")).await,
            json!({}),
        )
        .await,
        chat(upstream(raw(302, "text/plain", "")).await, json!({})).await,
        chat(upstream(raw(200, JSON, "")).await, json!({})).await,
        chat(
            upstream(raw(200, "text/event-stream", "")).await,
            json!({"stream": true}),
        )
        .await,
        chat(
            upstream(raw(200, "text/event-stream", "data: {\"cho")).await,
            json!({"stream": true}),
        )
        .await,
        chat(
            upstream(raw(200, "text/event-stream", big_event)).await,
            json!({"stream": true}),
        )
        .await,
        overloaded().await,
        shutting_down().await,
        chat(
            upstream(events(&["data: "], Then::Silence))
                .await
                .config(&silent),
            json!({}),
        )
        .await,
        too_long().await,
        session_row(
            plain_model().await.start().await,
            Method::POST,
            "/v1/mcp_sessions",
            Some(json!({"tools": weather(), "expire_in": 60})),
        )
        .await,
        session_row(
            plain_model().await.start().await,
            Method::GET,
            "/v1/mcp_sessions/none/events",
            None,
        )
        .await,
        one_session_more_than_the_share().await,
        one_session_too_many().await,
    ]
}

/// The rows of the table in the docs.
fn documented() -> BTreeSet<String> {
    let docs = include_str!("../../docs/errors.md");
    let rows = docs
        .lines()
        .filter(|line| line.starts_with("| ") && line.matches('|').count() == 5)
        .filter(|line| !line.starts_with("| what happened"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        format!("{} {} {}", cells[1], cells[2], cells[3])
    })
    .collect()
}

#[tokio::test]
async fn every_row_of_the_table_is_provoked_and_nothing_else() {
    let provoked: BTreeSet<String> = provoked().await.into_iter().collect();
    let mut documented = documented();
    // A defect cannot be provoked from outside; `a_panic_is_an_internal_error` in src/server.rs has that row.
    assert!(documented.remove("500 server_error internal_error"));
    assert_eq!(provoked, documented);
}

#[tokio::test]
async fn an_upstream_error_keeps_its_status_and_gets_the_envelope() {
    for (body, message) in [
        (
            r#"{"error": {"message": "Rate limit reached", "type": "requests", "param": null, "code": "rate_limit_exceeded"}}"#,
            "Rate limit reached",
        ),
        (
            r#"{"error":"model does not support tools"}"#,
            "model does not support tools",
        ),
        (
            r#"{"detail": [{"loc": ["body", "tools"], "msg": "field required", "type": "value_error.missing"}]}"#,
            "field required",
        ),
    ] {
        for streamed in [true, false] {
            let gw = upstream(raw(422, JSON, body)).await.start().await;
            let response = gw.send(json!({"stream": streamed}), &[]).await;
            assert_eq!(response.status(), 422);
            let error: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
            assert!(
                error["error"]["message"]
                    .as_str()
                    .unwrap()
                    .contains(message),
                "{error}"
            );
            assert_eq!(error["error"].as_object().unwrap().len(), 4);
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn html_never_comes_through() {
    let gw = upstream(raw(
        502,
        "text/html",
        "<html><head><title>502 Bad Gateway</title></head></html>",
    ))
    .await
    .start()
    .await;
    let response = gw.send(json!({}), &[]).await;
    assert_eq!(response.status(), 502);
    assert!(!response.text().await.unwrap().contains('<'));
    gw.join().await;
}

#[tokio::test]
async fn retry_after_is_kept_and_forwarded() {
    let limited = |seconds: &str| crate::model::Reply::Raw {
        status: 429,
        content_type: JSON,
        headers: vec![
            ("retry-after", seconds.to_owned()),
            ("x-ratelimit-remaining-requests", "0".to_owned()),
        ],
        pieces: vec![r#"{"error":{"message":"slow down"}}"#.into()],
        then: Then::End,
    };
    // A short pause is waited for.
    let model = Model::start([limited("0"), say("hi")]).await;
    let gw = toolway(model).start().await;
    assert_eq!(gw.streamed(json!({})).await.text(), "hi");
    assert_eq!(gw.model.asked().len(), 2);
    gw.join().await;
    // A long one is the client's.
    let model = Model::start([limited("60")]).await;
    let gw = toolway(model).start().await;
    let response = gw.send(json!({}), &[]).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "60");
    assert_eq!(response.headers()["x-ratelimit-remaining-requests"], "0");
    gw.join().await;
}

#[tokio::test]
async fn an_error_in_the_first_event_is_a_status() {
    let body = "data: {\"error\": {\"message\": \"overloaded\", \"type\": \"overloaded_error\", \"code\": 529}}\n\n";
    for with_tools in [true, false] {
        let mut builder = upstream(raw(200, "text/event-stream", body)).await;
        if with_tools {
            builder = builder.server("s", tools().add());
        }
        let gw = builder.start().await;
        let response = gw.send(json!({"stream": true}), &[]).await;
        assert_eq!(response.status(), 529);
        assert!(response.text().await.unwrap().contains("overloaded"));
        gw.join().await;
    }
}

#[tokio::test]
async fn a_failure_in_a_later_round_is_told_within_the_stream() {
    let model = Model::start([
        crate::model::say_and_call("Wait. ", &[("c", "s__add", json!({"a": 1, "b": 2}))]),
        raw(400, JSON, r#"{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":"context_length_exceeded"}}"#),
    ])
    .await;
    let gw = toolway(model).server("s", tools().add()).start().await;
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.text(), "Wait. ");
    assert_eq!(answer.error().unwrap()["code"], "context_length_exceeded");
    assert!(!answer.done, "nothing after the error");
    assert_eq!(answer.finishes(), Vec::<String>::new());
    gw.join().await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_never_a_silent_success() {
    for with_tools in [true, false] {
        for then in [Then::End, Then::Break] {
            let piece = "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"half\"},\"finish_reason\":null}]}\n\n";
            let mut builder = upstream(events(&[piece], then)).await;
            if with_tools {
                builder = builder.server("s", tools().add());
            }
            let gw = builder.start().await;
            let answer = gw.streamed(json!({})).await;
            assert_eq!(answer.text(), "half");
            assert!(answer.error().is_some(), "tools: {with_tools}, {then:?}");
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn a_request_id_that_the_log_cannot_show_is_replaced() {
    let gw = plain_model().await.start().await;
    for theirs in [&b""[..], &b"\xff\xfe"[..], &[b'x'; 257][..]] {
        let request = gw.http.get(format!("{}/health", gw.base));
        let request = request.header("x-request-id", theirs);
        let response = request.send().await.unwrap();
        let id = response.headers()["x-request-id"].to_str().unwrap();
        assert!(id.starts_with("req_"), "{id}");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_request_id_is_taken_over_and_given_back() {
    let gw = plain_model().await.start().await;
    let response = gw.send(json!({}), &[("x-request-id", "mine")]).await;
    assert_eq!(response.headers()["x-request-id"], "mine");
    assert_eq!(gw.model.asked()[0].headers["x-request-id"], "mine");
    gw.join().await;
}
