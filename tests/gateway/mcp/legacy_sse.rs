use serde_json::{Value, json};

use crate::mcp::{
    client::{Client, Events, act, initialize, request},
    harness::{Toolway, acting, scripted, toolway, tuned},
};

/// A client's two ends: where it posts, and what it reads.
struct Legacy {
    posts: Client,
    stream: Events,
}

impl Legacy {
    /// A session at this path, of a client that sends this header.
    async fn open(gw: &Toolway, path: &str, header: (&str, &str)) -> Legacy {
        let mut stream = Client::at(gw, path)
            .with("accept", "text/event-stream")
            .with(header.0, header.1)
            .listen()
            .await;
        let endpoint = stream.endpoint().await;
        assert!(
            endpoint.starts_with(&format!("{path}?session_id=")),
            "{endpoint}"
        );
        let posts = Client::at(gw, &endpoint).with(header.0, header.1);
        Legacy { posts, stream }
    }

    async fn begin(gw: &Toolway, path: &str, capabilities: Value) -> Legacy {
        let mut client = Legacy::open(gw, path, ("x-none", "1")).await;
        let answer = client.ask(initialize("2024-11-05", capabilities)).await;
        assert_eq!(answer["result"]["protocolVersion"], "2024-11-05");
        client
            .say(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        client
    }

    async fn say(&self, message: Value) {
        let got = self.posts.post(message).await;
        assert_eq!((got.status, got.body.as_str()), (202, ""));
    }

    async fn ask(&mut self, message: Value) -> Value {
        self.say(message).await;
        self.stream.next().await.expect("the stream goes on")
    }
}

#[tokio::test]
async fn a_client_of_2024_lists_calls_and_is_asked() {
    let gw = acting().await;
    let mut client = Legacy::begin(&gw, "/sse", json!({"roots": {}})).await;
    let listed = client.ask(request(1, "tools/list", json!({}))).await;
    assert_eq!(listed["result"]["tools"][0]["name"], "s__act");
    let mut call = act(2, json!({"do": "progress", "steps": 1}));
    call["params"]["_meta"] = json!({"progressToken": "p"});
    client.say(call).await;
    let progress = client.stream.method("notifications/progress").await;
    assert_eq!(progress["progressToken"], "p");
    let answer = client.stream.next().await.unwrap();
    assert_eq!(answer["id"], 2);
    client
        .say(act(3, json!({"do": "ask", "method": "roots/list"})))
        .await;
    let question = client.stream.next().await.unwrap();
    assert_eq!(question["method"], "roots/list");
    let roots = json!({"roots": [{"uri": "file:///a", "name": "a"}]});
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": roots});
    let answer = client.ask(answer).await;
    assert_eq!(answer["id"], 3);
    assert!(
        answer["result"].to_string().contains("file:///a"),
        "{answer}"
    );
    let unknown = client.ask(request("x", "no/such", json!({}))).await;
    assert_eq!(unknown["error"]["code"], -32601);
    gw.join().await;
}

#[tokio::test]
async fn a_session_ends_with_its_stream() {
    let gw = acting().await;
    let Legacy { posts, stream } = Legacy::begin(&gw, "/sse", json!({})).await;
    assert_eq!(gw.open().await, (1, 1));
    drop(stream);
    gw.until_open(0, 0).await;
    assert_eq!(
        posts.post(request(1, "ping", json!({}))).await.refusal(),
        (404, -32001)
    );
    gw.join().await;
}

#[tokio::test]
async fn a_stream_ends_when_toolway_stops_and_says_what_is_at_work_first() {
    let mut gw = acting().await;
    let mut client = Legacy::begin(&gw, "/sse", json!({})).await;
    client
        .say(act(1, json!({"do": "progress", "steps": 1})))
        .await;
    gw.stop();
    let left = client.stream.rest().await;
    assert!(left.iter().any(|message| message["id"] == 1), "{left:?}");
    gw.join().await;
}

#[tokio::test]
async fn a_profile_is_shown_under_its_own_names() {
    let text = scripted("s", json!({})) + "[profiles.one]\nserver = \"s\"\n";
    let gw = toolway(&text).await;
    let mut client = Legacy::begin(&gw, "/sse/one", json!({})).await;
    let listed = client.ask(request(1, "tools/list", json!({}))).await;
    assert_eq!(listed["result"]["tools"][0]["name"], "act");
    let elsewhere = client.posts.url.replace("/sse/one", "/sse");
    let stray = Client {
        url: elsewhere,
        ..client.posts.clone()
    };
    assert_eq!(
        stray.post(request(2, "ping", json!({}))).await.refusal(),
        (404, -32001)
    );
    let got = Client::at(&gw, "/sse/two").send(reqwest::Method::GET).await;
    assert_eq!(got.refusal(), (404, -32600));
    gw.join().await;
}

#[tokio::test]
async fn a_session_belongs_to_its_key() {
    let text = "api_keys = [\"one\", \"two\"]\n".to_owned() + &scripted("s", json!({}));
    let gw = toolway(&text).await;
    let got = Client::at(&gw, "/sse").send(reqwest::Method::GET).await;
    assert_eq!(got.refusal(), (401, -32600));
    assert_eq!(got.headers["www-authenticate"], "Bearer");
    let mut client = Legacy::open(&gw, "/sse", ("authorization", "Bearer one")).await;
    let ping = request(1, "ping", json!({}));
    let other = client.posts.with("authorization", "Bearer two");
    assert_eq!(other.post(ping.clone()).await.refusal(), (404, -32001));
    let none = client.posts.with("authorization", "-");
    assert_eq!(none.post(ping.clone()).await.refusal(), (401, -32600));
    assert_eq!(client.ask(ping).await["result"], json!({}));
    gw.join().await;
}

#[tokio::test]
async fn what_is_no_message_is_refused() {
    let gw = acting().await;
    let client = Legacy::open(&gw, "/sse", ("x-none", "1")).await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(client.posts.post_text("{").await.refusal(), (400, -32700));
    let text = client.posts.with("content-type", "text/plain");
    assert_eq!(text.post(ping.clone()).await.refusal(), (415, -32600));
    // A client that tries Streamable HTTP first goes on to HTTP+SSE for this status.
    let first = Client::at(&gw, "/sse");
    assert_eq!(
        first
            .post(initialize("2025-06-18", json!({})))
            .await
            .refusal(),
        (404, -32001)
    );
    let got = first
        .with("accept", "application/json")
        .send(reqwest::Method::GET)
        .await;
    assert_eq!(got.refusal(), (406, -32600));
    let foreign = first
        .with("origin", "https://evil.example")
        .send(reqwest::Method::GET)
        .await;
    assert_eq!(foreign.refusal(), (403, -32600));
    gw.join().await;
}

#[tokio::test]
async fn there_is_a_bound_on_streams() {
    let gw = tuned(&scripted("s", json!({})), |config| {
        config.mcp.max_streams = 1;
    })
    .await;
    let client = Legacy::open(&gw, "/sse", ("x-none", "1")).await;
    let got = Client::at(&gw, "/sse").send(reqwest::Method::GET).await;
    assert_eq!(got.turned_away(), (503, "overloaded".to_owned()));
    drop(client);
    gw.until_open(0, 0).await;
    Legacy::open(&gw, "/sse", ("x-none", "1")).await;
    gw.join().await;
}
