use reqwest::Method;
use serde_json::{Value, json};

use crate::mcp::{
    client::{Client, initialize, request},
    harness::{acting, toolway, tuned},
};

const PARSE: i64 = -32700;
const INVALID: i64 = -32600;
const PARAMS: i64 = -32602;
const UNKNOWN: i64 = -32601;
const NO_SESSION: i64 = -32001;
const UNSUPPORTED: i64 = -32022;

#[tokio::test]
async fn every_malformed_message_is_answered_with_its_code_and_400() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    for (body, code, id) in [
        ("", PARSE, Value::Null),
        ("{", PARSE, Value::Null),
        ("\u{feff}{}", PARSE, Value::Null),
        ("5", INVALID, Value::Null),
        ("{}", INVALID, Value::Null),
        ("[]", INVALID, Value::Null),
        (
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            INVALID,
            json!(1),
        ),
        (
            r#"{"jsonrpc":"2.0","id":"a","method":5}"#,
            INVALID,
            json!("a"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            INVALID,
            Value::Null,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            INVALID,
            Value::Null,
        ),
        (
            r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}"#,
            PARAMS,
            json!(7),
        ),
        (r#"{"jsonrpc":"2.0","id":7}"#, INVALID, json!(7)),
        (
            r#"{"jsonrpc":"2.0","id":7,"result":1,"error":{}}"#,
            INVALID,
            json!(7),
        ),
        (
            r#"[{"jsonrpc":"2.0","id":7,"method":"ping"}]"#,
            INVALID,
            Value::Null,
        ),
    ] {
        let got = client.post_text(body).await;
        assert_eq!(
            (got.refusal(), &got.json()["id"]),
            ((400, code), &id),
            "{body}"
        );
    }
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"ping","params":{{"a":{}"#,
        "[".repeat(10_000)
    );
    assert_eq!(client.post_text(deep).await.refusal(), (400, PARSE));
    assert_eq!(client.call(request(8, "ping", json!({}))).await, json!({}));
    gw.join().await;
}

#[tokio::test]
async fn a_request_that_nobody_knows_is_answered_in_its_session() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    for (method, params, code) in [
        ("no/such", json!({}), UNKNOWN),
        ("server/discovery", json!({}), UNKNOWN),
        ("subscriptions/listen", json!({}), UNKNOWN),
        ("initialize", json!({"protocolVersion": 5}), PARAMS),
        ("logging/setLevel", json!({"level": "loud"}), PARAMS),
        ("logging/setLevel", json!({}), PARAMS),
        ("resources/subscribe", json!({}), PARAMS),
        ("resources/unsubscribe", json!({"uri": 1}), PARAMS),
        ("tools/call", json!({}), PARAMS),
        ("tools/call", json!({"name": "no_such"}), PARAMS),
    ] {
        let got = client.post(request("x", method, params.clone())).await;
        assert_eq!(
            (got.refusal(), &got.json()["id"]),
            ((200, code), &json!("x")),
            "{method} {params}"
        );
    }
    gw.join().await;
}

#[tokio::test]
async fn wrong_headers_have_their_status() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let ping = || request(1, "ping", json!({}));
    for (name, value, expected) in [
        ("content-type", "text/plain", (415, INVALID)),
        ("content-type", "-", (415, INVALID)),
        ("accept", "text/html", (406, INVALID)),
        ("mcp-session-id", "-", (400, INVALID)),
        (
            "mcp-session-id",
            "0123456789abcdef0123456789abcdef",
            (404, NO_SESSION),
        ),
        ("mcp-protocol-version", "1999-01-01", (400, UNSUPPORTED)),
        ("host", "evil.example", (403, INVALID)),
        ("origin", "https://evil.example", (403, INVALID)),
    ] {
        let got = client.with(name, value).post(ping()).await;
        assert_eq!(got.refusal(), expected, "{name}: {value}");
    }
    for (name, value) in [
        ("accept", "*/*"),
        ("accept", "application/json"),
        ("content-type", "Application/JSON; charset=utf-8"),
        ("mcp-protocol-version", "-"),
        ("origin", "http://localhost:3000"),
    ] {
        assert_eq!(
            client.with(name, value).post(ping()).await.status,
            200,
            "{name}: {value}"
        );
    }
    let got = client
        .with("accept", "application/json")
        .send(Method::GET)
        .await;
    assert_eq!(got.refusal(), (406, INVALID));
    assert_eq!(client.send(Method::PUT).await.status, 405);
    gw.join().await;
}

#[tokio::test]
async fn only_what_is_there_can_be_connected_to() {
    let gw =
        toolway("[profiles.one]\nserver = \"gone\"\n[servers.gone]\ncommand = \"/no/such\"").await;
    for (path, status) in [
        ("/mcp", 200),
        ("/mcp/one", 200),
        ("/mcp/two", 404),
        ("/mcp/s/0123", 404),
        ("/mcp/one/x", 404),
    ] {
        let got = Client::at(&gw, path)
            .post(initialize("2025-11-25", json!({})))
            .await;
        assert_eq!(got.status, status, "{path}");
        if path == "/mcp/two" {
            assert_eq!(got.json()["id"], 0, "the request is answered");
        }
    }
    gw.join().await;
}

#[tokio::test]
async fn a_body_over_the_bound_is_refused_and_half_a_body_keeps_nobody_out() {
    let gw = toolway("max_body_bytes = 2000\nmax_requests = 1").await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let big = request(1, "ping", json!({"x": "x".repeat(3000)}));
    let too_large = (413, "body_too_large".to_owned());
    assert_eq!(client.post(big).await.turned_away(), too_large);
    let packed = client.with("content-encoding", "gzip");
    let got = packed.post(request(1, "ping", json!({}))).await;
    assert_eq!(got.turned_away(), (415, "unsupported_encoding".to_owned()));
    // There is one place, and a request takes it when its body is complete.
    let (pieces, body) = tokio::sync::mpsc::channel::<reqwest::Result<&str>>(1);
    let body = futures::stream::unfold(body, async |mut body| Some((body.recv().await?, body)));
    let slow = client
        .build(Method::POST)
        .body(reqwest::Body::wrap_stream(body));
    let slow = tokio::spawn(slow.send());
    pieces.send(Ok("{")).await.unwrap();
    for _ in 0..5 {
        let got = client.post(request(1, "ping", json!({}))).await;
        assert_eq!(got.status, 200, "{got:?}");
    }
    drop(pieces);
    assert_eq!(slow.await.unwrap().unwrap().status(), 400);
    gw.join().await;
}

#[tokio::test]
async fn a_key_is_asked_for_where_there_are_keys() {
    let gw = toolway("api_keys = [\"k\", \"l\"]").await;
    let stranger = Client::at(&gw, "/mcp");
    let got = stranger.post(initialize("2025-11-25", json!({}))).await;
    assert_eq!(got.refusal(), (401, INVALID));
    assert_eq!(got.headers["www-authenticate"], "Bearer");
    let known = stranger.with("authorization", "Bearer k");
    let session = known.initialized("2025-11-25", json!({})).await;
    let other = session.with("authorization", "Bearer l");
    let got = other.post(request(1, "ping", json!({}))).await;
    assert_eq!(
        got.refusal(),
        (404, NO_SESSION),
        "another key does not get the session"
    );
    gw.join().await;
}

#[tokio::test]
async fn batches_are_for_those_versions_that_have_them() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-03-26", json!({})).await;
    let batch = json!([
        request(1, "ping", json!({})), 5, {"jsonrpc": "2.0", "method": "notifications/x"}, request("b", "no/such", json!({})),
    ]);
    let got = client.post(batch).await;
    let codes: Vec<_> = got
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["id"].clone(), it["error"]["code"].clone()))
        .collect();
    let expected = [
        (json!(1), Value::Null),
        (Value::Null, json!(INVALID)),
        (json!("b"), json!(UNKNOWN)),
    ];
    assert_eq!(codes, expected);
    let told = json!([{"jsonrpc": "2.0", "method": "notifications/x"}]);
    assert_eq!(client.post(told).await.status, 202);
    let many = Value::from(vec![request(1, "ping", json!({})); 65]);
    assert_eq!(client.post(many).await.refusal(), (400, INVALID));
    let first = Client::at(&gw, "/mcp")
        .post(json!([initialize("2025-03-26", json!({}))]))
        .await;
    assert_eq!(first.refusal(), (400, INVALID));
    gw.join().await;
}

#[tokio::test]
async fn every_version_with_a_handshake_is_agreed_on_and_any_other_answered_with_the_newest() {
    let gw = tuned("", |_| {}).await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        Client::begin(&gw, version, json!({})).await;
    }
    for version in ["2024-10-07", "2099-01-01", "x"] {
        let got = Client::at(&gw, "/mcp")
            .post(initialize(version, json!({})))
            .await;
        assert_eq!(got.json()["result"]["protocolVersion"], "2025-11-25");
    }
    gw.join().await;
}
