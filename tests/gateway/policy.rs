//! One policy before every face.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, Reply, call, say},
    tools::{Does, tools},
};

/// Alice has the server `files`, Bob everything; nobody writes outside of `/data`, and `rm` runs for nobody.
const CONFIG: &str = r#"
api_keys = ["sk-root"]

[keys.alice]
key = "sk-alice"
servers = ["files"]

[keys.bob]
key = "sk-bob"

[[policy.rules]]
tools = ["*__write"]
args = { "/path" = { not = { inside = "/data" } } }
action = "deny"
reason = "writes go to /data"

[[policy.rules]]
tools = ["files__rm"]
action = "deny"

[[policy.rules]]
tools = ["web__post"]
keys = ["bob"]
action = "deny"
"#;

async fn start(replies: Vec<Reply>) -> Toolway {
    let files = tools().tool("write", Does::Echoes).tool("rm", Does::Echoes);
    let web = tools().tool("post", Does::Echoes);
    let gw = toolway(Model::start(replies).await).config(CONFIG);
    gw.server("files", files).server("web", web).start().await
}

/// What comes of a call on a face: whether it ran, and what the client reads.
type Outcome = (bool, String);

/// The last chat of a model that makes this call: what it is told.
async fn chat(gw: &Toolway, key: &str, stream: bool) -> Outcome {
    let key = format!("Bearer {key}");
    let body = json!({"stream": stream});
    gw.send(body, &[("authorization", &key)])
        .await
        .bytes()
        .await
        .unwrap();
    let asked = gw.model.asked().len() - 1;
    let told = gw.model.messages(asked);
    let text = told.last().unwrap()["content"].as_str().unwrap().to_owned();
    (!text.contains("\"error\""), text)
}

async fn post(gw: &Toolway, path: &str, key: &str, body: &Value) -> String {
    let request = gw.http.post(format!("{}{path}", gw.base)).json(body);
    let response = request.bearer_auth(key).send().await.unwrap();
    response.text().await.unwrap()
}

async fn over_mcp(gw: &Toolway, key: &str, method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let request = gw.http.post(format!("{}/mcp", gw.base)).json(&message);
    let mut request = request
        .bearer_auth(key)
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", method);
    if let Some(name) = params["name"].as_str() {
        request = request.header("mcp-name", name);
    }
    let text = request.send().await.unwrap().text().await.unwrap();
    let data = text.lines().find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(data.unwrap_or(&text)).unwrap()
}

/// The call on each face.
async fn on_every_face(tool: &str, key: &str, arguments: &Value) -> Vec<(&'static str, Outcome)> {
    let turn = || call(&[("call_1", tool, arguments.clone())]);
    let replies = vec![turn(), say("Done."), turn(), say("Done.")];
    let gw = start(replies).await;
    let mut outcomes = Vec::new();
    outcomes.push(("chat", chat(&gw, key, false).await));
    outcomes.push(("stream", chat(&gw, key, true).await));
    let text = arguments.to_string();
    let calls = json!({"tool_calls": [{"id": "c", "function": {"name": tool, "arguments": text}}]});
    let event =
        json!({"type": "tool_use_requested", "tool_call_id": "c", "tool": tool, "args": arguments});
    for (face, path, body) in [
        ("tool_calls", "/v1/tool_calls".to_owned(), &calls),
        ("events", "/v1/events".to_owned(), &event),
        ("tools", format!("/tools/{tool}"), arguments),
    ] {
        let text = post(&gw, &path, key, body).await;
        outcomes.push((face, (!text.contains("\"error\""), text)));
    }
    let params = json!({"name": tool, "arguments": arguments});
    let answer = over_mcp(&gw, key, "tools/call", params).await;
    let failed = answer["error"].is_object() || answer["result"]["isError"] == true;
    outcomes.push(("mcp", (!failed, answer.to_string())));
    let ran = outcomes.iter().filter(|(_, (ran, _))| *ran).count();
    let calls = gw.servers.iter().map(|server| server.calls().len());
    assert_eq!(calls.sum::<usize>(), ran, "{outcomes:?}");
    gw.join().await;
    outcomes
}

#[track_caller]
fn check(outcomes: &[(&str, Outcome)], runs: bool, says: &str) {
    for (face, (ran, text)) in outcomes {
        assert_eq!(*ran, runs, "{face}: {text}");
        assert!(text.contains(says), "{face}: {text}");
    }
}

#[tokio::test]
async fn what_a_rule_denies_runs_on_no_face_and_the_rule_is_named() {
    let outside = json!({"path": "/data/../etc/passwd"});
    let outcomes = on_every_face("files__write", "sk-bob", &outside).await;
    check(&outcomes, false, "writes go to /data (policy.rules[0])");
    let inside = json!({"path": "/data/x"});
    let outcomes = on_every_face("files__write", "sk-bob", &inside).await;
    check(&outcomes, true, "/data/x");
}

#[tokio::test]
async fn a_tool_that_no_call_may_use_is_unknown_on_every_face() {
    for (tool, key) in [
        ("files__rm", "sk-root"),
        ("web__post", "sk-bob"),
        ("web__post", "sk-alice"),
    ] {
        let outcomes = on_every_face(tool, key, &json!({})).await;
        check(&outcomes, false, tool);
    }
    let outcomes = on_every_face("web__post", "sk-root", &json!({})).await;
    check(&outcomes, true, "{}");
}

#[tokio::test]
async fn each_key_is_offered_its_tools() {
    let gw = start(vec![say("1"), say("2"), say("3")]).await;
    for (n, (key, expected)) in [
        ("sk-root", &["files__write", "web__post"][..]),
        ("sk-alice", &["files__write"]),
        ("sk-bob", &["files__write"]),
    ]
    .into_iter()
    .enumerate()
    {
        let authorization = format!("Bearer {key}");
        gw.send(json!({}), &[("authorization", &authorization)])
            .await;
        let names = |tools: &Value, name: &dyn Fn(&Value) -> Value| {
            let tools = tools.as_array().unwrap().iter();
            tools
                .map(|tool| name(tool).as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let body = gw.model.asked()[n].body.clone();
        let of_model = names(&body["tools"], &|tool| tool["function"]["name"].clone());
        assert_eq!(of_model, expected, "{key}");
        let listed = over_mcp(&gw, key, "tools/list", json!({})).await;
        let listed = names(&listed["result"]["tools"], &|tool| tool["name"].clone());
        assert_eq!(listed, expected, "{key}");
        let request = gw.http.get(format!("{}/tools", gw.base)).bearer_auth(key);
        let tools: Value = request.send().await.unwrap().json().await.unwrap();
        let tools = names(&tools["tools"], &|tool| tool["name"].clone());
        assert_eq!(tools, expected, "{key}");
    }
    gw.join().await;
}

#[tokio::test]
async fn the_running_gateway_explains_its_policy_to_each_key_about_its_own_calls() {
    let config = CONFIG.replace(
        "[keys.bob]",
        "[keys.root]\nkey = \"sk-admin\"\nadmin = true\n[keys.bob]",
    );
    let files = tools().tool("write", Does::Echoes).tool("rm", Does::Echoes);
    let gw = toolway(Model::start([]).await).config(&config);
    let gw = gw.server("files", files).start().await;
    let explain = async |query: &str, key: &str| {
        let url = format!("{}/policy/explain?{query}", gw.base);
        let response = gw.http.get(url).bearer_auth(key).send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json::<Value>().await.unwrap())
    };
    let outside = "tool=files__write&args=%7B%22path%22%3A%22%2Fetc%22%7D";
    let (status, explained) = explain(outside, "sk-alice").await;
    assert_eq!(status, 200, "{explained}");
    assert_eq!(explained["verdict"], "deny");
    assert_eq!(explained["rule"], "policy.rules[0]");
    assert_eq!(explained["reason"], "writes go to /data");
    assert_eq!(explained["key"], "alice");
    let steps = explained["steps"].as_array().unwrap();
    let rules: Vec<_> = steps
        .iter()
        .map(|it| it["rule"].as_str().unwrap())
        .collect();
    assert_eq!(rules, ["selection", "keys.alice", "policy.rules[0]"]);
    let of_alice = format!("{outside}&key=alice");
    assert_eq!(explain(&of_alice, "sk-admin").await, (200, explained));
    assert_eq!(explain(&of_alice, "sk-bob").await.0, 403);
    assert_eq!(explain("tool=files__rm", "sk-alice").await.0, 404);
    assert_eq!(
        explain("tool=files__rm", "sk-admin").await.1["verdict"],
        "deny"
    );
    for wrong in ["", "tool=", "tool=files__write&args=[]"] {
        let (status, refused) = explain(wrong, "sk-alice").await;
        assert_eq!(
            (status, refused["error"].is_string()),
            (400, true),
            "{wrong}"
        );
    }
    assert!(gw.servers[0].calls().is_empty(), "nothing is called");
    gw.join().await;
}
