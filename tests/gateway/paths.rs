use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, say},
    tools::tools,
};

/// Sends a request with this target as it stands, which no client library would; gives status and body.
async fn send(gw: &Toolway, method: &str, target: &str, body: &str) -> (u16, String) {
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let (status, answer) = gw.raw(&head).await;
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[tokio::test]
async fn no_spelling_of_a_path_leads_out_of_the_base_of_the_upstream() {
    let gw = toolway(Model::start([]).await).start().await;
    for path in [
        "/v1/../admin",
        "/v1/..%2fadmin",
        "/v1/%2e%2e%2fadmin",
        "/v1/..%5cadmin",
        "/v1/..;/admin",
        "/v1/files/..;a=b/admin",
        "/v1/%252e%252e%252fadmin",
        "/v1/%c0%ae%c0%ae/admin",
        "/v1/files/a%00",
        "/v1/files/%zz",
    ] {
        let (status, body) = send(&gw, "GET", path, "").await;
        assert_eq!(status, 404, "{path}: {body}");
        assert!(body.contains("unknown_url"), "{body}");
    }
    gw.join().await;
}

#[tokio::test]
async fn the_base_url_itself_says_what_it_is() {
    let gw = toolway(Model::start([]).await).start().await;
    for path in ["/v1", "/v1/"] {
        let (status, body) = send(&gw, "GET", path, "").await;
        assert_eq!(status, 404, "{path}: {body}");
        assert!(
            body.contains("`/v1` is the base_url; clients add"),
            "{path}: {body}"
        );
    }
    gw.join().await;
}

#[tokio::test]
async fn every_spelling_of_the_chats_path_has_the_tools() {
    let spellings = [
        "/v1/chat/completions",
        "/v1/chat//completions",
        "//v1/chat/completions/",
        "/v1/%63hat/completion%73",
    ];
    let script = spellings.map(|_| say("x"));
    let gw = toolway(Model::start(script).await)
        .server("s", tools().add())
        .start()
        .await;
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    for (n, path) in spellings.into_iter().enumerate() {
        let (status, body) = send(&gw, "POST", path, &chat.to_string()).await;
        assert_eq!(status, 200, "{path}: {body}");
        let asked = &gw.model.asked()[n].body;
        assert_eq!(asked["tools"].as_array().map(Vec::len), Some(1), "{path}");
    }
    for path in [
        "/v1/chat%2Fcompletions",
        "/v1/chat%5ccompletions",
        "/v1/chat%252Fcompletions",
        "/v1/chat%25255ccompletions",
        "/v1/Chat/Completions",
        "/v1/chat/completions;a=b",
    ] {
        let (status, body) = send(&gw, "POST", path, &chat.to_string()).await;
        assert_eq!(status, 404, "{path}: {body}");
    }
    assert_eq!(gw.model.asked().len(), spellings.len());
    let (status, body) = send(&gw, "GET", "/v1//models/", "").await;
    assert_eq!((status, body.contains("\"m\"")), (200, true), "{body}");
    gw.join().await;
}

#[tokio::test]
async fn the_upstream_receives_the_path_that_was_routed() {
    let gw = toolway(Model::start([]).await).start().await;
    for (path, received) in [
        (
            "/v1/files/a%2fb//c/?x=%2e%2e/",
            "/v1/files/a%2Fb/c?x=%2e%2e/",
        ),
        ("/v1/files/a%20b;c=d/%7e{x}", "/v1/files/a%20b;c=d/~%7Bx%7D"),
    ] {
        let (status, body) = send(&gw, "GET", path, "").await;
        assert_eq!(status, 201, "{path}: {body}");
        let said: Value =
            serde_json::from_str(&body[body.find('{').unwrap()..=body.rfind('}').unwrap()])
                .unwrap();
        assert_eq!(said["uri"], received);
    }
    gw.join().await;
}

#[tokio::test]
async fn no_upstream_sees_the_id_of_a_session() {
    let gw = toolway(Model::start([]).await).start().await;
    for path in [
        "/v1/mcp_sessions/abc",
        "/v1/mcp_sessions%2Fabc",
        "/v1/mcp_sessions%252Fabc",
        "/v1/MCP_sessions/abc",
        "/v1/%6dcp_sessions/abc/x",
    ] {
        let (status, body) = send(&gw, "GET", path, "").await;
        assert_eq!(status, 404, "{path}: {body}");
    }
    gw.join().await;
}
