use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    harness::{Toolway, eventually, toolway},
    model::{Model, say},
    tools::{Does, Server, tools},
};

/// A server that answers nothing before it is let in, and the key that does so.
async fn late() -> (Server, Arc<Notify>) {
    let key = Arc::new(Notify::new());
    let begin = Arc::clone(&key);
    let server = tools()
        .add()
        .start_when(async move { begin.notified().await });
    (server.await, key)
}

/// A toolway with this server, which is not waited for.
async fn start(server: &Server, top: &str, more: &str) -> Toolway {
    let model = Model::start([]).await.then_always(say("ok"));
    let url = &server.url;
    toolway(model)
        .config(&format!("{top}\n[servers.late]\nurl = \"{url}\"\n{more}\n"))
        .at_once()
        .start()
        .await
}

fn offered(gw: &Toolway, nth: usize) -> Vec<String> {
    let tools = gw.model.asked()[nth].body["tools"].clone();
    let tools = tools.as_array().cloned().unwrap_or_default();
    let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
    tools.iter().map(name).collect()
}

fn warning(response: &reqwest::Response) -> Option<&str> {
    Some(
        response
            .headers()
            .get("x-toolway-warning")?
            .to_str()
            .unwrap(),
    )
}

#[tokio::test]
async fn toolway_is_ready_only_once_the_tools_are_offered() {
    let many = (0..300).fold(tools(), |tools, n| {
        let number = |_| json!({"type": "number", "minimum": 1, "maximum": 9});
        let properties: serde_json::Map<_, _> =
            (0..20).map(|n| (format!("p{n}"), number(n))).collect();
        let schema = json!({"type": "object", "properties": properties});
        let tool = json!({"name": format!("tool{n}"), "inputSchema": schema});
        tools.listed(tool, Does::Echoes)
    });
    let server = many.start().await;
    let gw = start(
        &server,
        "start_wait = \"60s\"\n[[upstreams]]\nbase_url = \"MODEL\"\nmax_tools = 300",
        "",
    )
    .await;
    while !gw.gateway.is_ready() {
        tokio::task::yield_now().await;
    }
    assert_eq!(gw.gateway.catalog().offered().len(), 300);
    assert_eq!(gw.send(json!({}), &[]).await.status(), 200);
    assert_eq!(offered(&gw, 0).len(), 300);
    gw.join().await;
}

#[tokio::test]
async fn a_chat_right_after_the_start_waits_for_the_tools() {
    let (server, key) = late().await;
    let gw = start(&server, "start_wait = \"60s\"", "").await;
    let chat = gw.send(json!({}), &[]);
    let let_in = async {
        tokio::task::yield_now().await;
        key.notify_one();
    };
    let (response, ()) = tokio::join!(chat, let_in);
    assert_eq!(response.status(), 200);
    assert_eq!(warning(&response), None);
    assert_eq!(offered(&gw, 0), ["late__add"]);
    gw.join().await;
}

#[tokio::test]
async fn a_chat_that_does_not_get_all_tools_says_which_servers_are_missing() {
    let (server, key) = late().await;
    let gw = start(&server, "start_wait = \"10ms\"", "").await;
    for stream in [false, true] {
        let response = gw.send(json!({"stream": stream}), &[]).await;
        assert_eq!(response.status(), 200);
        assert_eq!(warning(&response), Some("servers not ready: late"));
    }
    assert_eq!(gw.json("/health").await["servers"][0]["state"], "starting");
    key.notify_one();
    eventually("the server is ready", || {
        !gw.gateway.catalog().offered().is_empty()
    })
    .await;
    let response = gw.send(json!({}), &[]).await;
    assert_eq!(warning(&response), None);
    assert_eq!(offered(&gw, 2), ["late__add"]);
    gw.join().await;
}

#[tokio::test]
async fn a_chat_that_wants_nothing_of_a_late_server_neither_waits_nor_is_warned() {
    let (server, _key) = late().await;
    // It would wait longer than the test does.
    let gw = start(&server, "start_wait = \"1h\"", "").await;
    let none = json!({"tool_choice": "none"});
    let cases = [
        (none, vec![]),
        (json!({"n": 2}), vec![]),
        (json!({}), vec![("x-toolway-tools", "none")]),
        (json!({}), vec![("x-toolway-servers", "other")]),
        (json!({}), vec![("x-toolway-tools", "other__*")]),
    ];
    for (body, headers) in cases {
        let response = gw.send(body, &headers).await;
        assert_eq!(response.status().as_u16(), 200);
        let warning = warning(&response).unwrap_or_default();
        assert!(!warning.contains("not ready"), "{warning}");
    }
    gw.join().await;
}

#[tokio::test]
async fn readiness_is_that_of_the_required_servers_and_liveness_is_not() {
    let (server, key) = late().await;
    let gw = start(
        &server,
        "start_wait = \"10ms\"\napi_keys = [\"k\"]",
        "required = true",
    )
    .await;
    let status = async |path: &str| gw.get(path).await.status().as_u16();
    assert_eq!(status("/livez").await, 200);
    assert_eq!(status("/readyz").await, 503);
    key.notify_one();
    eventually("the server is ready", || gw.gateway.is_ready()).await;
    assert_eq!(status("/readyz").await, 200);
    gw.join().await;
}

#[tokio::test]
async fn a_server_that_is_not_required_does_not_keep_toolway_from_being_ready() {
    let (server, _key) = late().await;
    let gw = start(&server, "start_wait = \"10ms\"", "").await;
    eventually("the start is over", || gw.gateway.is_ready()).await;
    assert_eq!(gw.get("/readyz").await.status(), 200);
    gw.join().await;
}

#[tokio::test]
async fn before_the_start_is_over_toolway_is_not_ready() {
    let (server, _key) = late().await;
    let gw = start(&server, "start_wait = \"1h\"", "").await;
    assert_eq!(gw.get("/readyz").await.status(), 503);
    gw.join().await;
}
