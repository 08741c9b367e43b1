//! MCP servers over REST: MCP Bridge's own requests, and each of its known faults.

use serde_json::{Value, json};

use crate::mcp::harness::{Toolway, scripted, toolway};

fn features() -> Value {
    json!({
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "completions": {}},
        "stderr": ["ready with the-secret-1"],
        "tools": [
            {"name": "act", "inputSchema": {"type": "object"}},
            {"name": "a/b", "inputSchema": {"type": "object"}},
            {"name": "typed", "inputSchema": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}},
        ],
        "results": {
            "resources/list": {"resources": [{"uri": "demo://a b", "name": "a"}]},
            "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "demo://{x}", "name": "t"}]},
            "resources/read": {"contents": [{"uri": "demo://a b", "text": "hello"}]},
            "prompts/list": {"prompts": [{"name": "greet"}]},
            "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]},
            "completion/complete": {"completion": {"values": ["one"]}},
        },
    })
}

/// One server `s` with everything.
async fn start() -> Toolway {
    let env = "env = { KEY = \"the-secret-1\" }\n";
    toolway(&format!("{}{env}", scripted("s", features()))).await
}

/// The status and the body of an answer.
async fn ask(gw: &Toolway, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
    let mut request = reqwest::Client::new().request(method, format!("{}{path}", gw.base));
    if let Some(body) = body {
        request = request.header("content-type", "application/json");
        request = request.body(body.to_string());
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (status, value)
}

async fn get(gw: &Toolway, path: &str) -> (u16, Value) {
    ask(gw, "GET", path, None).await
}

async fn act(gw: &Toolway, arguments: Value) -> (u16, Value) {
    ask(gw, "POST", "/servers/s/tools/act", Some(arguments)).await
}

/// The text of a result.
fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn servers_are_listed_in_mcp_bridges_words() {
    let gw = start().await;
    let (status, listed) = get(&gw, "/servers").await;
    let server = &listed["servers"][0];
    assert_eq!((status, &server["id"]), (200, &json!("s")));
    assert_eq!(server["connected"], true);
    assert_eq!(server["initialization_state"], "initialized");
    assert_eq!(server["state"], "ready");
    assert!(server["pid"].as_u64().unwrap() > 1, "{server}");
    let (_, shown) = get(&gw, "/servers/s").await;
    assert_eq!((&shown["id"], &shown["tools"]), (&json!("s"), &json!(3)));
    let (_, health) = get(&gw, "/health").await;
    assert_eq!(
        (&health["status"], &health["serverCount"]),
        (&json!("ok"), &json!(1))
    );
    assert!(health["uptime"].is_f64());
    assert_eq!(health["servers"][0]["pid"], server["pid"]);
    gw.join().await;
}

#[tokio::test]
async fn lists_resources_and_prompts_are_the_servers_own() {
    let gw = start().await;
    let (_, tools) = get(&gw, "/servers/s/tools").await;
    let names = tools["tools"].as_array().unwrap().iter();
    let mut names: Vec<&str> = names.map(|it| it["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a/b", "act", "typed"]);
    let (_, listed) = get(&gw, "/servers/s/resources").await;
    assert_eq!(listed["resources"][0]["uri"], "demo://a b");
    let (_, read) = get(&gw, "/servers/s/resources/demo%3A%2F%2Fa%20b").await;
    assert_eq!(read["contents"][0]["text"], "hello");
    let (_, templates) = get(&gw, "/servers/s/resource_templates").await;
    assert_eq!(
        templates["resourceTemplates"][0]["uriTemplate"],
        "demo://{x}"
    );
    let (_, prompts) = get(&gw, "/servers/s/prompts").await;
    assert_eq!(prompts["prompts"][0]["name"], "greet");
    let (_, prompt) = ask(&gw, "POST", "/servers/s/prompts/greet", Some(json!({}))).await;
    assert_eq!(prompt["messages"][0]["content"]["text"], "hi");
    let params = json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "x", "value": "o"}});
    let (_, completed) = ask(&gw, "POST", "/servers/s/completions", Some(params)).await;
    assert_eq!(completed["completion"]["values"], json!(["one"]));
    gw.join().await;
}

#[tokio::test]
async fn what_is_not_there_is_404_in_mcp_bridges_words() {
    let gw = start().await;
    let gone = json!({"error": "Server 'nope' not found or not connected"});
    for path in [
        "/servers/nope",
        "/servers/nope/tools",
        "/servers/nope/resources/x",
        "/servers/nope/logs",
    ] {
        assert_eq!(get(&gw, path).await, (404, gone.clone()), "{path}");
    }
    for path in [
        "/servers/nope/tools/x",
        "/servers/nope/prompts/x",
        "/servers/nope/calls",
    ] {
        assert_eq!(
            ask(&gw, "POST", path, None).await,
            (404, gone.clone()),
            "{path}"
        );
    }
    let (status, unknown) = ask(&gw, "POST", "/servers/s/tools/nope", None).await;
    assert_eq!(
        (status, unknown),
        (404, json!({"error": "Tool 'nope' not found"}))
    );
    for (method, path, expected) in [("PUT", "/servers", 405), ("GET", "/servers/s/x", 404)] {
        let (status, refused) = ask(&gw, method, path, None).await;
        assert_eq!(status, expected);
        assert!(refused["error"].is_string(), "{refused}");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_call_has_its_arguments_as_the_body_and_the_raw_result_as_the_answer() {
    let gw = start().await;
    let (status, echoed) = act(&gw, json!({"x": 1})).await;
    assert_eq!((status, text(&echoed)), (200, "{\"x\":1}"));
    let result = json!({"content": [{"type": "text", "text": "boom"}], "structuredContent": {"a": 1}, "isError": true});
    let answered = act(&gw, json!({"do": "result", "result": result})).await;
    assert_eq!(answered, (200, result));
    let (_, echoed) = ask(&gw, "POST", "/servers/s/tools/act", None).await;
    assert_eq!(text(&echoed), "{}", "no body is no arguments");
    let (_, slash) = ask(&gw, "POST", "/servers/s/tools/a%2Fb", Some(json!({}))).await;
    assert_eq!(text(&slash), "{}");
    let (status, misfit) = ask(
        &gw,
        "POST",
        "/servers/s/tools/typed",
        Some(json!({"n": "x"})),
    )
    .await;
    assert_eq!(
        (status, &misfit["isError"]),
        (200, &json!(true)),
        "{misfit}"
    );
    gw.join().await;
}

#[tokio::test]
async fn a_result_of_more_than_a_pipe_holds_arrives_whole() {
    let gw = start().await;
    let big = async || {
        let (status, result) = act(&gw, json!({"do": "big", "bytes": 200_000})).await;
        assert_eq!((status, text(&result).len()), (200, 200_000));
    };
    futures::future::join_all((0..8).map(|_| big())).await;
    gw.join().await;
}

#[tokio::test]
async fn a_line_that_is_no_message_fails_no_call() {
    let mut script = features();
    script["garbage"] = json!(["plain log line"]);
    let gw = toolway(&scripted("s", script)).await;
    assert_eq!(act(&gw, json!({})).await.0, 200);
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_is_too_slow_is_cancelled_and_is_504() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let mut script = features();
    script["record"] = json!(record);
    let limits = "[loop]\ntool_timeout = \"200ms\"\n";
    let gw = toolway(&format!("{limits}{}", scripted("s", script))).await;
    let (status, refused) = act(&gw, json!({"do": "hang"})).await;
    assert_eq!(status, 504);
    let message = refused["error"].as_str().unwrap();
    assert!(
        message.starts_with("Error executing tool act: "),
        "{message}"
    );
    crate::harness::eventually("the cancellation", || {
        std::fs::read_to_string(&record)
            .unwrap()
            .contains("notifications/cancelled")
    })
    .await;
    gw.join().await;
}

#[tokio::test]
async fn the_death_of_a_server_ends_its_calls_at_once_and_it_is_started_again() {
    let gw = start().await;
    let (status, refused) = act(&gw, json!({"do": "exit", "stderr": "sorry"})).await;
    assert_eq!(status, 502, "{refused}");
    assert_eq!(
        act(&gw, json!({})).await.0,
        200,
        "the next call waits for the restart"
    );
    let (_, shown) = get(&gw, "/servers/s").await;
    assert_eq!(shown["restarts"], 1);
    gw.join().await;
}

#[tokio::test]
async fn an_error_of_the_server_keeps_its_code_and_data() {
    let gw = start().await;
    let error = json!({"code": -32602, "message": "bad params", "data": {"x": 1}});
    let (status, refused) = act(&gw, json!({"do": "error", "error": error})).await;
    let expected =
        json!({"error": "Error executing tool act: bad params", "code": -32602, "data": {"x": 1}});
    assert_eq!((status, refused), (400, expected));
    gw.join().await;
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_an_error_in_json() {
    let gw = start().await;
    for body in ["{bad", "[1,2]", "abc"] {
        let request = reqwest::Client::new().post(format!("{}/servers/s/tools/act", gw.base));
        let response = request.body(body).send().await.unwrap();
        assert_eq!(response.status(), 400);
        let refused: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert!(refused["error"].is_string(), "{refused}");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_cursor_leads_to_the_next_page_and_a_made_up_one_nowhere() {
    let tools =
        (0..1500).map(|n| json!({"name": format!("t{n:04}"), "inputSchema": {"type": "object"}}));
    let script = json!({"tools": tools.collect::<Vec<_>>(), "page": 100});
    let gw = toolway(&scripted("s", script)).await;
    let (_, first) = get(&gw, "/servers/s/tools").await;
    assert_eq!(
        first["tools"].as_array().unwrap().len(),
        1000,
        "pages of the server are joined"
    );
    let next = first["nextCursor"].as_str().unwrap();
    let (_, second) = get(&gw, &format!("/servers/s/tools?cursor={next}")).await;
    assert_eq!(second["tools"].as_array().unwrap().len(), 500);
    assert_eq!(second["nextCursor"], Value::Null);
    let (status, refused) = get(&gw, "/servers/s/tools?cursor=made-up").await;
    assert_eq!((status, &refused["code"]), (400, &json!(-32602)));
    gw.join().await;
}

#[tokio::test]
async fn a_server_that_asks_is_answered_and_its_call_goes_on() {
    let gw = start().await;
    let asking = json!({"do": "ask", "method": "sampling/createMessage", "params": {}});
    assert_eq!(act(&gw, asking).await.0, 200);
    gw.join().await;
}

#[tokio::test]
async fn many_calls_at_once_are_all_answered() {
    let gw = start().await;
    let calls = (0..40).map(|n| act(&gw, json!({"n": n})));
    for (n, (status, result)) in futures::future::join_all(calls).await.iter().enumerate() {
        assert_eq!((*status, text(result)), (200, &*format!("{{\"n\":{n}}}")));
    }
    gw.join().await;
}

#[tokio::test]
async fn a_batch_has_its_results_in_the_order_of_its_calls() {
    let gw = start().await;
    let calls = json!({"calls": [{"name": "act", "arguments": {"n": 1}}, {"name": "nope"}, {"name": "act"}]});
    let (status, answer) = ask(&gw, "POST", "/servers/s/calls", Some(calls)).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(status, 200);
    assert_eq!(text(&results[0]["result"]), "{\"n\":1}");
    assert_eq!(
        results[1],
        json!({"status": 404, "error": "Tool 'nope' not found"})
    );
    assert_eq!(text(&results[2]["result"]), "{}");
    let call = json!({"name": "act"});
    for wrong in [
        json!({}),
        json!({"calls": [{}]}),
        json!({"calls": vec![call; 65]}),
    ] {
        let (status, refused) = ask(&gw, "POST", "/servers/s/calls", Some(wrong)).await;
        assert_eq!(status, 400, "{refused}");
    }
    gw.join().await;
}

#[tokio::test]
async fn the_log_of_a_server_is_its_standard_error_without_secrets() {
    let gw = start().await;
    let (status, log) = get(&gw, "/servers/s/logs").await;
    assert_eq!(
        (status, log),
        (200, json!({"lines": ["ready with [redacted]"]}))
    );
    gw.join().await;
}

#[tokio::test]
async fn the_policy_counts_for_rest_too() {
    let rules = "[[policy.rules]]\ntools = [\"s__act\"]\nargs = { \"/x\" = { min = 5 } }\naction = \"deny\"\nreason = \"too much\"\n\
                 [[policy.rules]]\ntools = [\"s__typed\"]\naction = \"deny\"\n";
    let gw = toolway(&format!("{rules}{}", scripted("s", features()))).await;
    let (status, refused) = act(&gw, json!({"x": 6})).await;
    assert_eq!(status, 403);
    assert!(
        refused["error"].as_str().unwrap().contains("too much"),
        "{refused}"
    );
    assert_eq!(act(&gw, json!({"x": 4})).await.0, 200);
    let (status, _) = ask(&gw, "POST", "/servers/s/tools/typed", Some(json!({"n": 1}))).await;
    assert_eq!(status, 404, "a hidden tool is not there");
    gw.join().await;
}

#[tokio::test]
async fn without_a_key_nothing_is_shown_where_keys_are_configured() {
    let gw = toolway(&format!(
        "api_keys = [\"k\"]\n{}",
        scripted("s", features())
    ))
    .await;
    for path in ["/servers", "/servers/s/tools"] {
        let (status, refused) = get(&gw, path).await;
        assert_eq!(status, 401);
        assert!(refused["error"].is_string(), "{refused}");
    }
    gw.join().await;
}
