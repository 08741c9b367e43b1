use std::time::Duration;

use futures::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};

use crate::mcp::{
    client::{Client, act, initialize, request},
    harness::{acting, scripted, toolway, tuned},
};

#[tokio::test]
async fn a_session_lasts_from_initialize_to_delete() {
    let gw = acting().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let id = client
        .headers
        .iter()
        .find(|(name, _)| name == "mcp-session-id")
        .unwrap();
    assert!(id.1.len() >= 32 && id.1.bytes().all(|b| b.is_ascii_graphic()));
    assert_eq!(gw.open().await.0, 1);
    let tools = client.call(request(1, "tools/list", json!({}))).await;
    assert_eq!(tools["tools"][0]["name"], "s__act");
    let result = client.call(act(2, json!({"x": 1}))).await;
    assert_eq!(result["content"][0]["text"], r#"{"x":1}"#);
    assert_eq!(client.send(Method::DELETE).await.status, 204);
    assert_eq!(client.post(request(3, "ping", json!({}))).await.status, 404);
    assert_eq!(client.send(Method::DELETE).await.status, 404);
    assert_eq!(client.send(Method::GET).await.status, 404);
    assert_eq!(gw.open().await, (0, 0));
    gw.join().await;
}

#[tokio::test]
async fn a_hidden_tool_is_on_no_list_and_cannot_be_called() {
    let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
    let script = json!({"tools": [tool("read"), tool("delete_all"), {"name": "delete_broken", "inputSchema": true}]});
    let toml = format!(
        "{}tools = [\"!delete_*\"]\n[profiles.one]\nserver = \"s\"\n",
        scripted("s", script)
    );
    let gw = toolway(&toml).await;
    for (path, shown, hidden) in [
        ("", "s__read", "s__delete_all"),
        ("/one", "read", "delete_all"),
    ] {
        let mut client = Client::at(&gw, "/mcp");
        client.url.push_str(path);
        let client = client.initialized("2025-11-25", json!({})).await;
        let tools = client.call(request(1, "tools/list", json!({}))).await;
        let tools = tools["tools"].as_array().unwrap().clone();
        assert_eq!((tools.len(), &tools[0]["name"]), (1, &json!(shown)));
        let call = request(2, "tools/call", json!({"name": hidden}));
        let refused = client.post(call).await.json();
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let catalog = gw.gateway.catalog();
    assert_eq!((catalog.offered().len(), catalog.dropped().len()), (1, 0));
    assert!(gw.gateway.call_tool("s__delete_all", "{}").await.is_err());
    gw.join().await;
}

#[tokio::test]
async fn a_profile_of_a_server_that_is_switched_off_has_no_tools() {
    let toml = "[profiles.one]\nserver = \"off\"\n[servers.off]\ncommand = \"x\"\nenabled = false";
    let gw = toolway(toml).await;
    let client = Client::at(&gw, "/mcp/one");
    let client = client.initialized("2025-11-25", json!({})).await;
    for list in ["tools", "prompts", "resources"] {
        let listed = client.call(request(1, &format!("{list}/list"), json!({})));
        assert_eq!(listed.await[list], json!([]), "{list}");
    }
    let call = request(2, "tools/call", json!({"name": "x"}));
    let refused = client.post(call).await.json();
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    gw.join().await;
}

#[tokio::test]
async fn a_session_belongs_to_its_endpoint() {
    let gw =
        toolway("[profiles.one]\nserver = \"gone\"\n[servers.gone]\ncommand = \"/no/such\"").await;
    let mut client = Client::begin(&gw, "2025-11-25", json!({})).await;
    client.url.push_str("/one");
    assert_eq!(client.post(request(1, "ping", json!({}))).await.status, 404);
    gw.join().await;
}

#[tokio::test]
async fn when_there_are_too_many_the_idlest_makes_room() {
    let gw = tuned("", |config| config.mcp.max_sessions = 2).await;
    let first = Client::begin(&gw, "2025-11-25", json!({})).await;
    let second = Client::begin(&gw, "2025-11-25", json!({})).await;
    // The first is used last, and held open.
    let stream = first.listen().await;
    let third = Client::begin(&gw, "2025-11-25", json!({})).await;
    assert_eq!(second.post(request(1, "ping", json!({}))).await.status, 404);
    assert_eq!(first.post(request(1, "ping", json!({}))).await.status, 200);
    let held = third.listen().await;
    let got = Client::at(&gw, "/mcp")
        .post(initialize("2025-11-25", json!({})))
        .await;
    assert_eq!(got.status, 503, "both are at work");
    drop((stream, held));
    gw.join().await;
}

#[tokio::test]
async fn one_key_cannot_push_out_the_sessions_of_another() {
    let keys = "api_keys = [\"a\", \"b\"]\n";
    let gw = tuned(keys, |config| config.mcp.max_sessions = 4).await;
    let begin = |key: &str| {
        let client = Client::at(&gw, "/mcp").with("authorization", &format!("Bearer {key}"));
        client.initialized("2025-11-25", json!({}))
    };
    let other = begin("b").await;
    let first = begin("a").await;
    let mut last = begin("a").await;
    for _ in 0..8 {
        last = begin("a").await;
    }
    let ping = || request(1, "ping", json!({}));
    assert_eq!(other.post(ping()).await.status, 200);
    assert_eq!(first.post(ping()).await.status, 404, "its own makes room");
    assert_eq!(last.post(ping()).await.status, 200);

    let held = [last.listen().await, begin("a").await.listen().await];
    let one_more = Client::at(&gw, "/mcp").with("authorization", "Bearer a");
    let got = one_more.post(initialize("2025-11-25", json!({}))).await;
    assert_eq!(got.status, 429, "{got:?}");
    let why = got.json()["error"]["message"].to_string();
    assert!(why.contains("share"), "{why}");
    begin("b").await;
    drop(held);
    gw.join().await;
}

#[tokio::test]
async fn who_knows_the_url_of_lent_functions_ends_no_other_sessions() {
    let gw = tuned("", |config| config.mcp.max_sessions = 3).await;
    let order = br#"{"tools": [{"name": "f"}]}"#.as_slice();
    let lent = gw.gateway.mcp_sessions().open(order.into(), 0).await;
    let path = format!("/mcp/s/{}", lent.unwrap().token());
    let lender = Client::begin(&gw, "2025-11-25", json!({})).await;
    let begin = async || {
        let agent = Client::at(&gw, &path);
        agent.initialized("2025-11-25", json!({})).await
    };
    let first = begin().await;
    for _ in 0..4 {
        begin().await;
    }
    let ping = || request(1, "ping", json!({}));
    assert_eq!(lender.post(ping()).await.status, 200);
    assert_eq!(first.post(ping()).await.status, 404, "its own makes room");
    gw.join().await;
}

#[tokio::test]
async fn an_idle_session_ends_and_one_at_work_does_not() {
    let gw = tuned("", |config| {
        config.mcp.session_idle = Duration::from_millis(200);
    })
    .await;
    let idle = Client::begin(&gw, "2025-11-25", json!({})).await;
    let held = Client::begin(&gw, "2025-11-25", json!({})).await;
    let stream = held.listen().await;
    gw.until_open(1, 1).await;
    assert_eq!(idle.post(request(1, "ping", json!({}))).await.status, 404);
    assert_eq!(held.post(request(1, "ping", json!({}))).await.status, 200);
    drop(stream);
    gw.until_open(0, 0).await;
    gw.join().await;
}

#[tokio::test]
async fn lasting_streams_are_bounded_and_take_no_place_of_requests() {
    let gw = tuned("max_requests = 1", |config| config.mcp.max_streams = 2).await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let other = Client::begin(&gw, "2025-11-25", json!({})).await;
    let streams = (client.listen().await, other.listen().await);
    assert_eq!(gw.open().await, (2, 2));
    let third = Client::begin(&gw, "2025-11-25", json!({})).await;
    assert_eq!(
        third.send(Method::GET).await.turned_away(),
        (503, "overloaded".to_owned())
    );
    drop(streams);
    gw.until_open(3, 0).await;
    gw.join().await;
}

#[tokio::test]
async fn one_key_and_the_functions_that_it_lends_leave_streams_for_others() {
    let keys = "api_keys = [\"a\", \"b\"]\n";
    let gw = tuned(keys, |config| config.mcp.max_streams = 8).await;
    let order = br#"{"tools": [{"name": "f"}]}"#.as_slice();
    let lent = gw.gateway.mcp_sessions().open(order.into(), 0).await;
    let lent = format!("/mcp/s/{}", lent.unwrap().token());
    let mut held = Vec::new();
    for (path, share) in [("/mcp", 5), (&lent, 2)] {
        let begin = async || {
            let client = Client::at(&gw, path).with("authorization", "Bearer a");
            client.initialized("2025-11-25", json!({})).await
        };
        for _ in 0..share {
            held.push(begin().await.listen().await);
        }
        let refused = begin().await.send(Method::GET).await.turned_away();
        assert_eq!(refused, (503, "overloaded".to_owned()), "{path}");
    }
    let other = Client::at(&gw, "/mcp").with("authorization", "Bearer b");
    let other = other.initialized("2025-11-25", json!({})).await;
    other.listen().await;
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_runs_holds_its_arguments_bytes_of_the_budget() {
    let bounds = "max_body_bytes = 100000\nmax_inflight_bytes = 300000\n";
    let gw = toolway(&format!("{bounds}{}", scripted("s", json!({})))).await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let mut left = Vec::new();
    let call = |id: u64| {
        let text = "x".repeat(90_000);
        let mut call = act(
            id,
            json!({"do": "progress", "and_hang": true, "text": text}),
        );
        call["params"]["_meta"] = json!({"progressToken": id});
        call
    };
    for id in 0..2 {
        let mut stream = client.stream(call(id)).await;
        stream.method("notifications/progress").await;
        left.push(stream);
    }
    // A client that leaves a call of a session does not end it.
    left.clear();
    let refused = client.post(call(3)).await;
    assert_eq!(refused.turned_away(), (503, "overloaded".to_owned()));
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}});
    assert_eq!(client.post(cancelled).await.status, 202);
    until_there_is_room(&client, call(4)).await;
    gw.join().await;
}

/// Sends the call until there is room for it.
async fn until_there_is_room(client: &Client, call: Value) {
    let deadline = tokio::time::Instant::now() + crate::mcp::harness::PATIENCE;
    loop {
        let response = client.build(Method::POST).body(call.to_string());
        let status = response.send().await.unwrap().status();
        if status == 200 {
            return;
        }
        assert_eq!(status, 503);
        assert!(tokio::time::Instant::now() < deadline, "there is no room");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_call_that_is_running_when_toolway_stops_is_answered_with_an_error() {
    let mut gw = toolway(&format!(
        "shutdown_grace = \"300ms\"\n{}",
        crate::mcp::harness::scripted("s", json!({}))
    ))
    .await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let mut hanging = act(3, json!({"do": "progress", "and_hang": true}));
    hanging["params"]["_meta"] = json!({"progressToken": "p"});
    let mut stream = client.stream(hanging).await;
    stream.method("notifications/progress").await;
    gw.stop();
    let last = stream.rest().await.pop().unwrap();
    assert_eq!(last["id"], 3);
    let why = last["error"]["message"].as_str().unwrap();
    assert!(why.contains("shutting down"), "{last}");
    gw.join().await;
}

#[tokio::test]
async fn hundreds_of_sessions_opened_and_dropped_leave_nothing_behind() {
    let resources = json!({"results": {"resources/list": {"resources": [{"uri": "a:b", "name": "b"}]}, "resources/subscribe": {}, "resources/unsubscribe": {}},
        "capabilities": {"tools": {}, "resources": {"subscribe": true}}});
    let gw = tuned(&crate::mcp::harness::scripted("s", resources), |config| {
        config.mcp.session_idle = Duration::from_secs(2);
    })
    .await;
    let uri = Client::begin(&gw, "2025-11-25", json!({}))
        .await
        .resource()
        .await;
    let before = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    let http = reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()
        .unwrap();
    let sessions = stream::iter(0..300).map(|n| {
        let client = Client { http: http.clone(), ..Client::at(&gw, "/mcp") };
        let uri = uri.clone();
        async move {
            let client = client.initialized("2025-11-25", json!({})).await;
            client.call(request(1, "logging/setLevel", json!({"level": "debug"}))).await;
            client.call(request(2, "resources/subscribe", json!({"uri": uri}))).await;
            // Some end it, some hang up in the middle of something, most are never heard of again.
            match n % 10 {
                0 => assert_eq!(client.send(Method::DELETE).await.status, 204),
                1 => drop(client.listen().await),
                2 => {
                    let mut hanging = act(3, json!({"do": "progress", "and_hang": true}));
                    hanging["params"]["_meta"] = json!({"progressToken": 1});
                    let mut stream = client.stream(hanging).await;
                    stream.next().await;
                    let gone = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}});
                    assert_eq!(client.post(gone).await.status, 202);
                    assert_eq!(client.send(Method::DELETE).await.status, 204);
                }
                _ => {}
            }
        }
    });
    sessions.buffer_unordered(16).collect::<Vec<()>>().await;
    drop(http);
    gw.until_open(0, 0).await;
    // Whatever is left of them, such as connections that are being closed, is gone in a moment.
    let deadline = tokio::time::Instant::now() + crate::mcp::harness::PATIENCE;
    loop {
        let now = tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks();
        if now <= before + 2 {
            break;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{now} tasks, {before} before"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gw.join().await;
}

#[tokio::test]
async fn capabilities_that_are_too_long_to_be_kept_are_refused() {
    let gw = acting().await;
    let client = Client::at(&gw, "/mcp");
    let long = json!({"experimental": {"x": "y".repeat(20_000)}});
    let got = client.post(initialize("2025-11-25", long)).await;
    assert_eq!(got.refusal(), (200, -32602));
    assert_eq!(gw.open().await.0, 0);
    gw.join().await;
}
