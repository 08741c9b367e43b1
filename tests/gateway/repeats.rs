//! HTTP errors of MCP servers, and of proxies before them: how often the tool is called, and what the model is told.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    harness::toolway,
    model::{Model, call, say},
    tools::{Does, tools},
};

type Header = (&'static str, &'static str);

/// Has the model call a tool that fails once with this status. How often the tool was called, and what the model was
/// told.
async fn called(status: u16, header: Option<Header>, annotations: Value) -> (usize, String) {
    let tool = json!({"name": "t", "inputSchema": {"type": "object"}, "annotations": annotations});
    let model = Model::start([call(&[("c", "s__t", json!({}))]), say("ok")]).await;
    let gw = toolway(model)
        .server("s", tools().listed(tool, Does::FailsOnce(status, header)))
        .start()
        .await;
    assert_eq!(gw.streamed(json!({})).await.text(), "ok");
    let told = gw.model.messages(1)[2]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    let calls = gw.servers[0].calls().len();
    gw.join().await;
    (calls, told)
}

fn error(told: &str) -> (Value, Value) {
    let error: Value = serde_json::from_str(told).unwrap_or_else(|_| panic!("no JSON: {told}"));
    (
        error["error"]["type"].clone(),
        error["error"]["retryable"].clone(),
    )
}

const READS: fn() -> Value = || json!({"readOnlyHint": true});

#[tokio::test]
async fn a_call_that_may_have_been_carried_out_is_not_sent_again() {
    for status in [408, 409, 410, 422, 424, 499, 500, 502, 503, 504] {
        let (calls, told) = called(status, None, json!({})).await;
        assert_eq!(calls, 1, "{status}");
        assert_eq!(
            error(&told),
            (json!("upstream_unavailable"), Value::Null),
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_tool_that_only_reads_is_called_once_more() {
    for status in [408, 502, 504] {
        let (calls, told) = called(status, None, READS()).await;
        assert_eq!((calls, &*told), (2, "done"), "{status}");
    }
}

#[tokio::test]
async fn a_call_that_would_be_refused_again_is_not_sent_again() {
    for status in [307, 308, 400, 401, 403, 404, 405, 413, 415] {
        let (calls, told) = called(status, None, READS()).await;
        assert_eq!(calls, 1, "{status}");
        assert_eq!(
            error(&told),
            (json!("upstream_unavailable"), json!(false)),
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_busy_server_is_asked_again_after_the_pause_that_it_wants() {
    let begun = Instant::now();
    let header = Some(("retry-after", "1"));
    let (calls, told) = called(429, header, json!({})).await;
    assert_eq!((calls, &*told), (2, "done"));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    // 503 may have been carried out, so it matters what the tool does.
    assert_eq!(called(503, header, json!({})).await.0, 1);
    let begun = Instant::now();
    assert_eq!(called(503, header, READS()).await.0, 2);
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_pause_that_does_not_fit_is_left_to_the_model() {
    for pause in ["3600", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        let (calls, told) = called(429, Some(("retry-after", pause)), json!({})).await;
        assert_eq!(calls, 1, "{pause}");
        assert_eq!(error(&told), (json!("busy"), json!(true)), "{pause}");
    }
}

#[tokio::test]
async fn an_mcp_client_gets_the_same() {
    let tools = tools()
        .tool("ran", Does::FailsOnce(408, None))
        .tool("busy", Does::FailsOnce(429, Some(("retry-after-ms", "50"))));
    let gw = toolway(Model::start([]).await)
        .server("s", tools)
        .start()
        .await;
    let call = async |name: &str| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": name, "arguments": {}, "_meta": meta}});
        let request = gw
            .http
            .post(format!("{}/mcp", gw.base))
            .body(body.to_string());
        let request = request
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", "tools/call")
            .header("mcp-name", name);
        let text = request.send().await.unwrap().text().await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap_or_else(|_| panic!("{text}"))["result"].clone()
    };
    assert_eq!(call("s__ran").await["isError"], true);
    assert_eq!(call("s__busy").await["content"][0]["text"], "done");
    let calls: Vec<String> = gw.servers[0].calls().into_iter().map(|it| it.0).collect();
    assert_eq!(calls, ["ran", "busy", "busy"]);
    gw.join().await;
}
