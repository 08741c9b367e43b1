//! Which tools a request offers: headers, `mcp` entries, limits, order.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, own_function, toolway},
    model::{Model, say},
    tools::{Does, Tools, tools},
};

async fn start(config: &str) -> Toolway {
    let files = tools().tool("read", Does::Echoes).listed(
        json!({"name": "stat", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}}),
        Does::Echoes,
    );
    let model = Model::start([]).await.then_always(say("ok"));
    toolway(model)
        .config(config)
        .server("calc", tools().add())
        .server("files", files)
        .start()
        .await
}

/// The names that the model is offered.
async fn offered(gw: &Toolway, body: Value, headers: &[(&str, &str)]) -> Vec<String> {
    gw.streamed_with(body, headers).await;
    let asked = gw.model.asked().pop().unwrap();
    let tools = asked.body["tools"].as_array().cloned().unwrap_or_default();
    tools
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn every_tool_is_offered_in_a_fixed_order() {
    let gw = start("").await;
    for _ in 0..3 {
        assert_eq!(
            offered(&gw, json!({}), &[]).await,
            ["calc__add", "files__read", "files__stat"]
        );
    }
    let tool = &gw.model.asked()[0].body["tools"][1];
    assert_eq!(tool["type"], "function");
    assert_eq!(tool["function"]["description"], "The tool read.");
    assert_eq!(
        tool["function"]["parameters"],
        json!({"type": "object", "properties": {}})
    );
    gw.join().await;
}

#[tokio::test]
async fn headers_narrow_by_patterns() {
    let gw = start("").await;
    for (header, value, expected) in [
        ("x-toolway-tools", "calc__*", vec!["calc__add"]),
        (
            "x-toolway-tools",
            "files/stat, calc__add",
            vec!["calc__add", "files__stat"],
        ),
        (
            "x-toolway-tools",
            "!files__read",
            vec!["calc__add", "files__stat"],
        ),
        ("x-toolway-tools", "none", vec![]),
        ("x-toolway-tools", "", vec![]),
        (
            "x-toolway-servers",
            "files",
            vec!["files__read", "files__stat"],
        ),
        ("x-toolway-servers", "!files", vec!["calc__add"]),
    ] {
        assert_eq!(
            offered(&gw, json!({}), &[(header, value)]).await,
            expected,
            "{header}: {value}"
        );
    }
    gw.join().await;
}

#[tokio::test]
async fn mcp_entries_narrow_and_mix_with_own_functions() {
    let gw = start("").await;
    let entry = |server: &str, allowed: Value| json!({"type": "mcp", "server_label": server, "server_url": "x", "allowed_tools": allowed});
    let body = json!({"tools": [own_function("own"), entry("files", json!(["stat"]))]});
    assert_eq!(offered(&gw, body, &[]).await, ["own", "files__stat"]);
    let body =
        json!({"tools": [entry("files", json!({"read_only": true})), entry("calc", Value::Null)]});
    assert_eq!(offered(&gw, body, &[]).await, ["calc__add", "files__stat"]);
    gw.join().await;
}

#[tokio::test]
async fn tool_choice_works_by_the_offered_names_and_by_server() {
    let gw = start("").await;
    let choice = json!({"type": "mcp", "server_label": "files", "name": "stat"});
    gw.streamed(json!({"tool_choice": choice})).await;
    let expected = json!({"type": "function", "function": {"name": "files__stat"}});
    assert_eq!(gw.model.asked()[0].body["tool_choice"], expected);
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp", "server_label": "calc", "name": "add"}]}});
    gw.streamed(json!({"tool_choice": allowed})).await;
    let tools = &gw.model.asked()[1].body["tool_choice"]["allowed_tools"]["tools"];
    assert_eq!(
        *tools,
        json!([{"type": "function", "function": {"name": "calc__add"}}])
    );
    let entry = |label: &str| json!({"type": "mcp", "server_label": label});
    let whole =
        json!([entry("files"), entry("nobody"), {"type": "function", "function": {"name": "own"}}]);
    let allowed =
        json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": whole}});
    gw.streamed(json!({"tool_choice": allowed})).await;
    let tools = &gw.model.asked()[2].body["tool_choice"]["allowed_tools"]["tools"];
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    assert_eq!(
        *tools,
        json!([named("files__read"), named("files__stat"), named("own")])
    );
    gw.join().await;
}

#[tokio::test]
async fn a_forced_tool_that_the_request_does_not_offer_is_refused() {
    let gw = start("").await;
    for choice in [
        json!({"type": "mcp", "server_label": "nobody"}),
        json!({"type": "mcp", "server_label": "calc", "name": "stat"}),
    ] {
        let response = gw.send(json!({"tool_choice": choice}), &[]).await;
        assert_eq!(response.status(), 400);
        assert!(response.text().await.unwrap().contains("tool_choice"));
    }
    assert!(gw.model.asked().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn a_clients_own_function_wins_over_a_tool_of_the_same_name() {
    let gw = start("").await;
    let body = json!({"tools": [own_function("calc__add")]});
    assert_eq!(
        offered(&gw, body, &[]).await,
        ["calc__add", "files__read", "files__stat"]
    );
    assert_eq!(
        gw.model.asked()[0].body["tools"][0],
        own_function("calc__add")
    );
    gw.join().await;
}

#[tokio::test]
async fn more_tools_than_the_upstream_takes_are_left_out_and_named() {
    let many: Tools = (0..200).fold(tools(), |tools, n| {
        tools.tool(&format!("t{n:03}"), Does::Echoes)
    });
    let gw = toolway(Model::start([]).await.then_always(say("ok")))
        .server("many", many)
        .start()
        .await;
    assert_eq!(offered(&gw, json!({}), &[]).await.len(), 128);
    assert_eq!(
        offered(&gw, json!({"tools": [own_function("own")]}), &[])
            .await
            .len(),
        128,
        "the client's own included"
    );
    let forced = json!({"tool_choice": {"type": "function", "function": {"name": "many__t199"}}});
    assert!(
        offered(&gw, forced, &[])
            .await
            .contains(&"many__t199".to_owned())
    );
    let listed = gw.json("/tools").await;
    assert_eq!(listed["tools"].as_array().unwrap().len(), 200);
    assert_eq!(listed["left_out"].as_array().unwrap().len(), 72);
    gw.join().await;
}

#[tokio::test]
async fn one_broken_tool_is_dropped_alone_and_named() {
    let odd = tools()
        .add()
        .listed(json!({"name": "broken", "inputSchema": true}), Does::Echoes)
        .listed(
            json!({"name": "strange.name with spaces", "inputSchema": {"type": "object"}}),
            Does::Echoes,
        );
    let gw = toolway(Model::start([]).await.then_always(say("ok")))
        .server("s", odd)
        .start()
        .await;
    let names = offered(&gw, json!({}), &[]).await;
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|name| {
        name.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    }));
    let listed = gw.json("/tools").await;
    assert_eq!(listed["dropped"][0]["tool"], "broken");
    assert_eq!(
        listed["tools"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|tool| tool["renamed"] == true)
            .count(),
        1
    );
    gw.join().await;
}

#[tokio::test]
async fn health_says_how_the_servers_are() {
    let gw = start("[servers.gone]\ncommand = \"/no/such/program\"\n").await;
    let response = gw.get("/health").await;
    assert_eq!(response.status(), 200);
    let health: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(health["status"], "ok");
    let servers = health["servers"].as_array().unwrap();
    let state = |name: &str| {
        servers
            .iter()
            .find(|server| server["name"] == name)
            .unwrap()["state"]
            .clone()
    };
    assert_eq!(state("calc"), "ready");
    assert_ne!(state("gone"), "ready");
    gw.join().await;
}

#[tokio::test]
async fn over_the_limit_what_the_request_names_stays_and_a_header_says_what_does_not() {
    let model = Model::start([]).await.then_always(say("ok"));
    let upstream = "[[upstreams]]\nname = \"u\"\nbase_url = \"MODEL\"\nmax_tools = 2\n";
    let many = ["a", "b", "c", "d", "own_name"].into_iter();
    let many = many.fold(tools(), |tools, name| tools.tool(name, Does::Echoes));
    let gw = toolway(model)
        .config(upstream)
        .server("s", many)
        .start()
        .await;
    let call =
        json!({"id": "1", "type": "function", "function": {"name": "s__d", "arguments": "{}"}});
    let cases = [
        (json!({}), ["s__a", "s__b"]),
        (
            json!({"messages": [{"role": "user", "content": "use s__d, please"}]}),
            ["s__a", "s__d"],
        ),
        (
            json!({"messages": [{"role": "user", "content": "please use\nown_name"}]}),
            ["s__a", "s__own_name"],
        ),
        (
            json!({"messages": [{"role": "user", "content": "c is a plain word"}]}),
            ["s__a", "s__b"],
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "x"}]}),
            ["s__a", "s__d"],
        ),
        (
            json!({"messages": [{"role": "user", "content": "s__d or own_name"}],
                "tool_choice": {"type": "function", "function": {"name": "s__c"}}}),
            ["s__c", "s__d"],
        ),
    ];
    for (n, (body, kept)) in cases.into_iter().enumerate() {
        let response = gw.send(body, &[]).await;
        let warning = response.headers()["x-toolway-warning"].to_str().unwrap();
        assert!(
            warning.starts_with("tools left out: 3, because upstream u takes 2: s__"),
            "{warning}"
        );
        let offered = gw.model.asked()[n].body["tools"].clone();
        let offered = offered.as_array().unwrap().iter();
        let names: Vec<_> = offered
            .map(|tool| tool["function"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, kept);
    }
    let response = gw.send(json!({}), &[("x-toolway-tools", "s__a")]).await;
    assert_eq!(response.headers().get("x-toolway-warning"), None);
    gw.join().await;
}

#[tokio::test]
async fn mcp_entries_that_select_nothing_are_named_in_a_warning() {
    let gw = toolway(Model::start([]).await.then_always(say("ok")))
        .server("calc", tools().add())
        .start()
        .await;
    let entry = json!({"type": "mcp", "server_label": "calc", "allowed_tools": ["ad"]});
    let body = json!({"tools": [entry]});
    let warned = async |headers: &[(&str, &str)]| {
        let response = gw.send(body.clone(), headers).await;
        assert_eq!(response.status(), 200);
        let warning = response.headers()["x-toolway-warning"].to_str().unwrap();
        warning.to_owned()
    };
    assert_eq!(
        warned(&[]).await,
        "no tool matches the mcp entries of the body; GET /tools lists those that are offered"
    );
    assert_eq!(
        warned(&[("x-toolway-servers", "calc")]).await,
        "no tool matches X-Toolway-Servers and the mcp entries of the body; GET /tools lists those that are offered"
    );
    gw.join().await;
}

#[tokio::test]
async fn a_tool_choice_that_names_no_tool_of_the_request_is_refused() {
    let gw = toolway(Model::start([]).await.then_always(say("ok")))
        .server("calc", tools().add())
        .start()
        .await;
    let choose = |name: &str| json!({"tool_choice": {"type": "function", "function": {"name": name}}, "tools": [own_function("own")]});
    for (name, headers, status) in [
        ("calc__ad", None, 400),
        ("another", None, 400),
        ("calc__add", None, 200),
        ("own", None, 200),
        // No tool of the gateway applies: the model provider decides.
        ("calc__add", Some(("x-toolway-tools", "none")), 200),
    ] {
        let response = gw.send(choose(name), headers.as_slice()).await;
        assert_eq!(response.status(), status, "{name}");
        if status == 400 {
            let error: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
            assert_eq!(error["error"]["param"], "tool_choice");
            let message = format!("Tool choice '{name}' is not among the tools of this request.");
            assert_eq!(error["error"]["message"], message);
        }
    }
    gw.join().await;
}

#[tokio::test]
async fn a_header_that_is_no_text_is_refused_and_utf_8_is_read() {
    for name in ["x-toolway-tools", "x-toolway-servers", "x-toolway-progress"] {
        let model = Model::start([say("x")]).await;
        let gw = toolway(model).server("calc", tools().add()).start().await;
        let chat = format!("{}/v1/chat/completions", gw.base);
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
        let request = gw.http.post(chat).header(name, &b"calc__*,\xff"[..]);
        let response = request.body(body.to_string()).send().await.unwrap();
        assert_eq!(response.status(), 400, "{name}");
        let text = response.text().await.unwrap().to_ascii_lowercase();
        assert!(text.contains(name) && text.contains("utf-8"), "{text}");
        gw.join().await;
    }
    let gw = toolway(Model::start([say("x")]).await);
    let gw = gw.server("calc", tools().add()).start().await;
    let headers = [("x-toolway-tools", "calc__*,\u{e4}__*")];
    assert_eq!(gw.send(json!({}), &headers).await.status(), 200);
    assert_eq!(
        gw.model.asked()[0].body["tools"].as_array().unwrap().len(),
        1
    );
    gw.join().await;
}
