//! Servers that are added, changed, restarted and removed over REST.

use indoc::formatdoc;
use serde_json::{Value, json};

use crate::{
    harness::eventually,
    mcp::harness::{Toolway, scripted, scripted_server, toolway},
};

/// Sends a request with these headers; gives the status and the body.
async fn send(
    gw: &Toolway,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> (u16, Value) {
    let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
    let mut request = reqwest::Client::new().request(method, format!("{}{path}", gw.base));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(body) = body {
        request = request.body(body.to_string());
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (status, value)
}

async fn ask(gw: &Toolway, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let json = [("content-type", "application/json")];
    send(gw, method, path, &json, body.as_ref()).await
}

/// The body that adds a scripted server.
fn server(id: &str, script: Value) -> Value {
    json!({"id": id, "command": scripted_server(), "args": [script.to_string()]})
}

async fn add(gw: &Toolway, id: &str) -> (u16, Value) {
    ask(gw, "POST", "/servers", Some(server(id, json!({})))).await
}

/// The names of the tools that MCP clients and models are offered.
async fn offered(gw: &Toolway) -> Vec<String> {
    let (_, tools) = ask(gw, "GET", "/tools", None).await;
    let tools = tools["tools"].as_array().unwrap().iter();
    tools
        .map(|it| it["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn an_added_server_is_there_for_every_face_and_a_removed_one_is_gone() {
    // Later than the start, after which clients are told of what comes.
    let gw = toolway("start_wait = \"1ms\"\n").await;
    let mut events = gw.gateway.events();
    let (status, added) = add(&gw, "dyn").await;
    assert_eq!(
        (status, &added["id"], &added["status"]),
        (201, &json!("dyn"), &json!("connected"))
    );
    assert!(added["pid"].as_u64().unwrap() > 1, "{added}");
    assert_eq!(offered(&gw).await, ["dyn__act"]);
    let (status, called) = ask(&gw, "POST", "/servers/dyn/tools/act", Some(json!({"x": 1}))).await;
    assert_eq!(
        (status, &called["content"][0]["text"]),
        (200, &json!("{\"x\":1}"))
    );
    let view = gw.gateway.view(None).unwrap();
    let event = events.recv().await.unwrap();
    let notice = gw.gateway.notice(&view, &event).unwrap();
    assert_eq!(notice.method, "notifications/tools/list_changed");
    let removed = ask(&gw, "DELETE", "/servers/dyn", None).await;
    assert_eq!(removed, (200, json!({"status": "disconnected"})));
    let gone = json!({"error": "Server 'dyn' not found"});
    assert_eq!(ask(&gw, "DELETE", "/servers/dyn", None).await, (404, gone));
    assert!(offered(&gw).await.is_empty());
    assert_eq!(add(&gw, "dyn").await.0, 201, "the name is free again");
    gw.join().await;
}

#[tokio::test]
async fn what_cannot_be_added_is_refused_in_mcp_bridges_words() {
    let gw = toolway(&scripted("s", json!({}))).await;
    let needed = "Server ID and command are required";
    let risk = "Invalid risk level: 9. Valid values are: 1 (low), 2 (medium), 3 (high)";
    let image =
        "Docker configuration with 'image' property is required for high risk level servers";
    for (body, status, message) in [
        (json!({"id": "x"}), 400, needed),
        (json!({"command": "x"}), 400, needed),
        (
            json!({"id": "x", "command": "node", "riskLevel": 9}),
            400,
            risk,
        ),
        (
            json!({"id": "x", "command": "node", "riskLevel": 3}),
            400,
            image,
        ),
        (
            server("s", json!({})),
            409,
            "Server with ID 's' already exists",
        ),
    ] {
        let refused = ask(&gw, "POST", "/servers", Some(body)).await;
        assert_eq!(refused, (status, json!({"error": message})));
    }
    for body in [
        json!({"id": "x", "command": "node", "args": "a.js"}),
        json!({"id": "a/b", "command": "node"}),
        json!({"id": "x", "command": "node", "comand": 1}),
    ] {
        let (status, refused) = ask(&gw, "POST", "/servers", Some(body)).await;
        assert_eq!(status, 400, "{refused}");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_server_that_does_not_start_is_refused_at_once_and_leaves_nothing() {
    let gw = toolway("").await;
    let body = json!({"id": "nocmd", "command": "no-such-cmd"});
    let (status, refused) = ask(&gw, "POST", "/servers", Some(body)).await;
    assert_eq!(status, 500);
    let message = refused["error"].as_str().unwrap();
    assert!(
        message.starts_with("Server nocmd did not start: "),
        "{message}"
    );
    let (_, listed) = ask(&gw, "GET", "/servers", None).await;
    assert_eq!(listed["servers"], json!([]));
    assert_eq!(add(&gw, "nocmd").await.0, 201, "the name is free");
    gw.join().await;
}

#[tokio::test]
async fn arguments_are_no_shell_syntax() {
    let folder = tempfile::tempdir().unwrap();
    let injected = folder.path().join("injected");
    let gw = toolway("").await;
    let mut body = server("inj", json!({}));
    let args = body["args"].as_array_mut().unwrap();
    args.extend([
        json!(format!("$(touch {})", injected.display())),
        json!(";"),
        json!("a b"),
    ]);
    assert_eq!(ask(&gw, "POST", "/servers", Some(body)).await.0, 201);
    assert!(!injected.exists());
    gw.join().await;
}

#[tokio::test]
async fn added_servers_are_there_after_a_restart_and_removed_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("data_dir = {:?}\n", folder.path());
    let gw = toolway(&config).await;
    assert_eq!(add(&gw, "kept").await.0, 201);
    assert_eq!(add(&gw, "removed").await.0, 201);
    assert_eq!(ask(&gw, "DELETE", "/servers/removed", None).await.0, 200);
    gw.join().await;
    let gw = toolway(&config).await;
    assert_eq!(offered(&gw).await, ["kept__act"]);
    gw.join().await;
}

#[tokio::test]
async fn a_patch_changes_what_it_names_and_one_that_does_not_start_changes_nothing() {
    let gw = toolway(&scripted("s", json!({}))).await;
    let script = json!({"tools": [{"name": "one", "inputSchema": {"type": "object"}}, {"name": "two", "inputSchema": {"type": "object"}}]});
    assert_eq!(
        ask(&gw, "POST", "/servers", Some(server("dyn", script)))
            .await
            .0,
        201
    );
    let (status, changed) = ask(
        &gw,
        "PATCH",
        "/servers/dyn",
        Some(json!({"tools": ["!two"]})),
    )
    .await;
    assert_eq!(
        (status, &changed["state"]),
        (200, &json!("ready")),
        "{changed}"
    );
    assert_eq!(offered(&gw).await, ["dyn__one", "s__act"]);
    let broken = json!({"command": "no-such-cmd"});
    assert_eq!(ask(&gw, "PATCH", "/servers/dyn", Some(broken)).await.0, 500);
    let (status, _) = ask(&gw, "POST", "/servers/dyn/tools/one", Some(json!({}))).await;
    assert_eq!(status, 200, "it runs as before");
    let (status, _) = ask(&gw, "PATCH", "/servers/dyn", Some(json!({"args": 1}))).await;
    assert_eq!(status, 400);
    assert_eq!(
        ask(&gw, "PATCH", "/servers/s", Some(json!({}))).await.0,
        409
    );
    assert_eq!(
        ask(&gw, "PATCH", "/servers/none", Some(json!({}))).await.0,
        404
    );
    gw.join().await;
}

#[tokio::test]
async fn a_restart_gives_the_server_a_new_process() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let gw = toolway(&scripted("s", json!({"record": record}))).await;
    let starts = || {
        std::fs::read_to_string(&record)
            .unwrap()
            .matches("started")
            .count()
    };
    assert_eq!(starts(), 1);
    let restarted = ask(&gw, "POST", "/servers/s/restart", None).await;
    assert_eq!(restarted, (202, json!({"status": "restarting"})));
    eventually("the second start", || starts() == 2).await;
    assert_eq!(ask(&gw, "POST", "/servers/s/tools/act", None).await.0, 200);
    assert_eq!(ask(&gw, "POST", "/servers/none/restart", None).await.0, 404);
    gw.join().await;
}

#[tokio::test]
async fn only_admin_keys_change_servers() {
    let keys = formatdoc! {r#"
        api_keys = ["plain"]
        [keys.alice]
        key = "alices"
        [keys.root]
        key = "roots"
        admin = true
    "#};
    let gw = toolway(&format!("{keys}{}", scripted("s", json!({})))).await;
    let body = server("dyn", json!({}));
    for (key, expected) in [
        ("plain", 403),
        ("alices", 403),
        ("none", 401),
        ("roots", 201),
    ] {
        let key = format!("Bearer {key}");
        let headers = [
            ("content-type", "application/json"),
            ("authorization", key.as_str()),
        ];
        let (status, refused) = send(&gw, "POST", "/servers", &headers, Some(&body)).await;
        assert_eq!(status, expected, "{key}: {refused}");
        if expected != 201 {
            for (method, path) in [
                ("DELETE", "/servers/s"),
                ("PATCH", "/servers/s"),
                ("POST", "/servers/s/restart"),
            ] {
                let (status, _) = send(&gw, method, path, &headers, Some(&json!({}))).await;
                assert_eq!(status, expected, "{method} {path}");
            }
        }
    }
    gw.join().await;
}

#[tokio::test]
async fn no_web_page_changes_servers() {
    let gw = toolway("").await;
    let body = server("dyn", json!({}));
    let json = ("content-type", "application/json");
    for (headers, expected) in [
        (vec![json, ("origin", "https://evil.example")], 403),
        (vec![json, ("origin", "http://localhost:1")], 403),
        (vec![json, ("origin", "null")], 403),
        (vec![json, ("sec-fetch-site", "cross-site")], 403),
        (vec![json, ("host", "evil.example")], 403),
        (vec![("content-type", "text/plain")], 415),
        (vec![], 415),
    ] {
        let (status, refused) = send(&gw, "POST", "/servers", &headers, Some(&body)).await;
        assert_eq!(status, expected, "{headers:?}: {refused}");
    }
    let page = [("origin", "http://localhost:1")];
    assert_eq!(
        send(&gw, "POST", "/servers/dyn/restart", &page, None)
            .await
            .0,
        403
    );
    let own = gw.base.clone();
    let headers = [json, ("origin", own.as_str())];
    assert_eq!(
        send(&gw, "POST", "/servers", &headers, Some(&body)).await.0,
        201
    );
    gw.join().await;
}

#[tokio::test]
async fn off_loopback_servers_are_not_changed_without_a_key() {
    let gw = crate::mcp::harness::tuned("", |server| {
        server.bind = "0.0.0.0:4242".parse().unwrap();
        server.allow_anonymous = true;
    })
    .await;
    assert_eq!(add(&gw, "dyn").await.0, 403);
    gw.join().await;
}

#[tokio::test]
async fn the_risk_of_an_added_server_is_asked_about_and_the_confirmation_makes_the_call() {
    let gw = toolway("").await;
    let mut definition = server("dyn", json!({}));
    definition["riskLevel"] = json!(2);
    let (status, added) = ask(&gw, "POST", "/servers", Some(definition)).await;
    let medium = json!("Medium risk - Requires confirmation");
    assert_eq!((status, &added["risk_level"]), (201, &json!(2)));
    assert_eq!(added["risk_description"], medium);
    let (_, shown) = ask(&gw, "GET", "/servers/dyn", None).await;
    assert_eq!(shown["risk_description"], medium);
    let call = async || ask(&gw, "POST", "/servers/dyn/tools/act", Some(json!({"x": 1}))).await;
    let (status, waits) = call().await;
    assert_eq!(
        (status, &waits["requires_confirmation"]),
        (200, &json!(true)),
        "{waits}"
    );
    assert_eq!(
        (
            &waits["risk_level"],
            &waits["risk_description"],
            &waits["method"]
        ),
        (&json!(2), &medium, &json!("tools/call"))
    );
    let id = waits["confirmation_id"].as_str().unwrap();
    let decision = json!({"confirm": true, "remember": {"what": "call", "until": "forever"}});
    let decide = async |path: String| ask(&gw, "POST", &path, Some(decision.clone())).await;
    let (status, made) = decide(format!("/confirmations/{id}")).await;
    assert_eq!(
        (status, &made["content"][0]["text"]),
        (200, &json!("{\"x\":1}"))
    );
    let (status, again) = decide(format!("/confirmations/{id}")).await;
    let gone = json!({"error": format!("Confirmation '{id}' not found or expired")});
    assert_eq!((status, again), (404, gone));
    let (_, remembered) = call().await;
    assert_eq!(remembered["content"][0]["text"], "{\"x\":1}");
    let batch = json!({"calls": [{"name": "act", "arguments": {"x": 2}}]});
    let (_, batch) = ask(&gw, "POST", "/servers/dyn/calls", Some(batch)).await;
    let waits = &batch["results"][0]["result"]["requires_confirmation"];
    assert_eq!(waits, &json!(true), "{batch}");
    gw.join().await;
}

#[tokio::test]
async fn a_call_without_a_place_in_the_queue_is_429_and_says_when_to_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let (flag, record) = (folder.path().join("flag"), folder.path().join("record"));
    let gw = toolway("").await;
    let mut definition = server("dyn", json!({"record": record}));
    definition["parallel_calls"] = json!(1);
    definition["queue"] = json!(0);
    assert_eq!(ask(&gw, "POST", "/servers", Some(definition)).await.0, 201);
    let act = |arguments| ask(&gw, "POST", "/servers/dyn/tools/act", Some(arguments));
    let busy = async {
        eventually("the call has begun", || {
            std::fs::read_to_string(&record).is_ok_and(|text| text.contains("tools/call"))
        })
        .await;
        let path = format!("{}/servers/dyn/tools/act", gw.base);
        let refused = reqwest::Client::new().post(path).send().await.unwrap();
        std::fs::write(&flag, "").unwrap();
        refused
    };
    let (first, refused) = tokio::join!(act(json!({"do": "wait", "file": flag})), busy);
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(first.0, 200, "{}", first.1);
    gw.join().await;
}
