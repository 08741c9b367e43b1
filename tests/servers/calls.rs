//! Calls: what comes back, what goes wrong, and what the server hears of it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use toolway::upstream::mcp::CallOptions;
use toolway_protocol::tool::{CallError, Content, JsonObject};

use crate::harness::{PATIENCE, Rig, id, options, scripted, text};

#[tokio::test]
async fn an_unknown_block_costs_only_itself() {
    let rig = Rig::scripted(json!({})).await;
    let content = json!([{"type": "text", "text": "a", "annotations": {"audience": ["system"]}}, {"type": "video", "x": 1}]);
    let result = json!({"content": content, "structuredContent": [1, null], "isError": true});
    let result = rig
        .act(json!({"do": "result", "result": result}))
        .await
        .unwrap();
    let video = Content::Unknown(json!({"type": "video", "x": 1}));
    assert_eq!(result.content, [Content::Text("a".to_owned()), video]);
    assert_eq!(result.structured_content, Some(json!([1, null])));
    assert!(result.is_error);
}

#[tokio::test]
async fn a_json_rpc_error_is_a_protocol_error() {
    let rig = Rig::scripted(json!({})).await;
    let error = json!({"code": -32602, "message": "no such thing", "data": {"a": 1}});
    let error = rig
        .act(json!({"do": "error", "error": error}))
        .await
        .unwrap_err();
    let expected = CallError::Protocol {
        code: -32602,
        message: "no such thing".to_owned(),
        data: Some(json!({"a": 1})),
    };
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_tool_that_asks_for_input_is_a_protocol_error() {
    let rig = Rig::scripted(json!({})).await;
    let result = json!({"resultType": "input_required", "inputRequests": {}});
    let error = rig
        .act(json!({"do": "result", "result": result}))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "protocol_error");
}

#[tokio::test]
async fn silence_ends_a_call_and_the_server_hears_of_it() {
    let rig = Rig::recording(json!({})).await;
    let silence = Duration::from_millis(300);
    let error = rig
        .act_with(
            json!({"do": "hang"}),
            CallOptions {
                silence,
                ..options()
            },
        )
        .await;
    assert_eq!(error, Err(CallError::Timeout { after: silence }));
    rig.until("the cancellation arrives", |rig| {
        cancelled(rig) == called(rig)
    })
    .await;
    assert_eq!(text(rig.act(json!({})).await), "{}");
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_the_server() {
    let rig = Rig::recording(json!({})).await;
    let call = rig.act_beside(json!({"do": "hang"}));
    rig.until("the call arrives", |rig| rig.recorded("tools/call") == 1)
        .await;
    call.abort();
    rig.until("the cancellation arrives", |rig| {
        cancelled(rig) == called(rig)
    })
    .await;
}

#[tokio::test]
async fn an_answered_call_is_not_cancelled() {
    let rig = Rig::recording(json!({})).await;
    rig.act(json!({})).await.unwrap();
    rig.act(json!({})).await.unwrap();
    assert_eq!(rig.recorded("notifications/cancelled"), 0);
}

/// The ids of the calls the server got.
fn called(rig: &Rig) -> Vec<Value> {
    let calls = rig
        .record()
        .into_iter()
        .filter(|message| message["method"] == "tools/call");
    calls.map(|message| message["id"].clone()).collect()
}

/// The ids of the calls the server was told to give up.
fn cancelled(rig: &Rig) -> Vec<Value> {
    let method = "notifications/cancelled";
    let messages = rig
        .record()
        .into_iter()
        .filter(|message| message["method"] == method);
    messages
        .map(|message| message["params"]["requestId"].clone())
        .collect()
}

#[tokio::test]
async fn progress_resets_the_silence_and_is_passed_on() {
    let rig = Rig::scripted(json!({})).await;
    let (sender, mut progress) = mpsc::channel(100);
    let options = CallOptions {
        silence: Duration::from_millis(1500),
        progress: Some(sender),
        ..options()
    };
    let arguments = json!({"do": "progress", "steps": 6, "every_ms": 400});
    assert_eq!(text(rig.act_with(arguments, options).await), "done");
    let mut steps = Vec::new();
    while let Some(step) = progress.recv().await {
        assert_eq!(step.total, Some(6.0));
        assert_eq!(step.message, Some(format!("step {}", step.progress)));
        steps.push(step.progress);
    }
    assert_eq!(steps, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[tokio::test]
async fn progress_that_nobody_reads_holds_nothing_up() {
    let rig = Rig::scripted(json!({})).await;
    let (sender, _unread) = mpsc::channel(1);
    let options = CallOptions {
        progress: Some(sender),
        ..options()
    };
    let arguments = json!({"do": "progress", "steps": 500});
    assert_eq!(text(rig.act_with(arguments, options).await), "done");
}

#[tokio::test]
async fn the_deadline_ends_a_call_whatever_its_progress() {
    let rig = Rig::recording(json!({})).await;
    let options = CallOptions {
        deadline: Instant::now() + Duration::from_secs(1),
        ..options()
    };
    let arguments = json!({"do": "progress", "steps": 100_000, "every_ms": 20});
    let error = rig.act_with(arguments, options).await.unwrap_err();
    assert_eq!(error.kind(), "timeout");
    rig.until("the cancellation arrives", |rig| {
        cancelled(rig) == called(rig)
    })
    .await;
}

#[tokio::test]
async fn a_result_of_too_many_values_costs_only_its_call() {
    let rig = Rig::scripted(json!({})).await;
    let rows = vec![0; 500_000];
    let result = json!({"content": [], "structuredContent": {"rows": rows}});
    let arguments = json!({"do": "result", "result": result});
    let error = rig.act(arguments).await.unwrap_err();
    assert_eq!(error.kind(), "protocol_error");
    let said = error.to_string();
    assert_eq!(said, "the result has more than 500000 JSON values");
    let result = json!({"content": [{"type": "text", "text": "still here"}]});
    let result = rig.act(json!({"do": "result", "result": result})).await;
    assert_eq!(text(result), "still here");
    assert_eq!(rig.health().restarts, 0);
}

#[tokio::test]
async fn a_result_that_is_too_large_costs_only_its_call() {
    let rig = Rig::scripted(json!({})).await;
    let flag = rig.dir.path().join("flag");
    let other = rig.act_beside(json!({"do": "wait", "file": flag}));
    for id_last in [false, true] {
        let arguments = json!({"do": "big", "bytes": 20 << 20, "id_last": id_last});
        let error = rig.act(arguments).await.unwrap_err();
        assert_eq!(error.to_string(), "the result is larger than 16 MiB");
    }
    std::fs::write(flag, "").unwrap();
    assert_eq!(text(other.await.unwrap()), "waited");
    assert_eq!(rig.health().restarts, 0);
}

#[tokio::test]
async fn a_large_result_within_the_limit_arrives() {
    let rig = Rig::scripted(json!({})).await;
    assert_eq!(
        text(rig.act(json!({"do": "big", "bytes": 8 << 20})).await).len(),
        8 << 20
    );
}

#[tokio::test]
async fn garbage_on_standard_output_is_ignored() {
    let rig =
        Rig::scripted(json!({"garbage": ["Hello!", "", "{", "[1,2]", "\"x\"", "null"]})).await;
    let lines = [
        "warning: x",
        "{\"jsonrpc\":\"2.0\"}",
        "{\"id\":999,\"result\":{}}",
    ];
    let arguments = json!({"do": "write", "lines": lines, "and_answer": true});
    assert_eq!(text(rig.act(arguments).await), "written");
}

#[tokio::test]
async fn an_answer_that_is_broken_json_costs_only_its_call() {
    let rig = Rig::scripted(json!({})).await;
    let line = r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[}}"#;
    let error = rig
        .act(json!({"do": "write", "lines": [line]}))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "the server's answer is not valid JSON");
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{}}}"#,
        "[".repeat(100_000)
    );
    let error = rig
        .act(json!({"do": "write", "lines": [deep]}))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "protocol_error");
    assert_eq!(text(rig.act(json!({})).await), "{}");
}

#[tokio::test]
async fn a_batch_of_answers_is_read() {
    let rig = Rig::scripted(json!({"versions": ["2025-03-26"]})).await;
    let line =
        r#"[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":$ID,"result":{"content":"hi"}}]"#;
    assert_eq!(
        text(rig.act(json!({"do": "write", "lines": [line]})).await),
        "hi"
    );
}

#[tokio::test]
async fn a_servers_ping_is_answered_and_its_other_requests_are_not_offered() {
    let rig = Rig::scripted(json!({})).await;
    let answer = |method: &str, params: Value| {
        let arguments = json!({"do": "ask", "method": method, "params": params});
        let rig = &rig;
        async move { serde_json::from_str::<Value>(&text(rig.act(arguments).await)).unwrap() }
    };
    assert_eq!(answer("ping", json!({})).await["result"], json!({}));
    assert_eq!(
        answer("roots/list", json!({})).await["error"]["code"],
        -32601
    );
    assert_eq!(answer("x/y", json!({})).await["error"]["code"], -32601);
    let sampling = json!({"messages": [], "maxTokens": 1});
    assert_eq!(
        answer("sampling/createMessage", sampling).await["error"]["code"],
        -32601
    );
    let schema = json!({"type": "object", "properties": {}});
    let elicitation = json!({"message": "?", "requestedSchema": schema});
    assert_eq!(
        answer("elicitation/create", elicitation).await["error"]["code"],
        -32601
    );
}

#[tokio::test]
async fn calls_on_a_stateful_server_run_one_after_another_in_order() {
    let mut rig = Rig::recording(json!({})).await;
    let record = json!({"record": rig.dir.path().join("record")});
    let mut config = scripted(record);
    config.stateful = true;
    rig.servers = std::sync::Arc::new(toolway::upstream::mcp::Servers::start(vec![config]));
    rig.servers.settled().await;

    let flag = rig.dir.path().join("flag");
    let first = rig.act_beside(json!({"do": "wait", "file": flag, "n": 0}));
    rig.until("the first call arrives", |rig| {
        rig.recorded("tools/call") == 1
    })
    .await;
    let mut others = Vec::new();
    for n in 1..4 {
        others.push(rig.act_beside(json!({"n": n})));
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.recorded("tools/call"), 1);
    std::fs::write(flag, "").unwrap();
    first.await.unwrap().unwrap();
    for other in others {
        other.await.unwrap().unwrap();
    }
    let calls = rig
        .record()
        .into_iter()
        .filter(|message| message["method"] == "tools/call");
    let order: Vec<_> = calls
        .map(|call| call["params"]["arguments"]["n"].clone())
        .collect();
    assert_eq!(order, [0, 1, 2, 3]);
}

#[tokio::test]
async fn calls_run_side_by_side() {
    let rig = Rig::recording(json!({})).await;
    let flag = rig.dir.path().join("flag");
    let calls: Vec<_> = (0..8)
        .map(|_| rig.act_beside(json!({"do": "wait", "file": flag})))
        .collect();
    rig.until("all calls arrive", |rig| rig.recorded("tools/call") == 8)
        .await;
    std::fs::write(flag, "").unwrap();
    for call in calls {
        assert_eq!(text(call.await.unwrap()), "waited");
    }
}

#[tokio::test]
async fn a_call_that_waits_for_its_turn_until_the_deadline_was_not_sent() {
    let mut config = scripted(json!({}));
    config.parallel_calls = 1;
    let rig = Rig::start(vec![config]).await;
    let _first = rig.act_beside(json!({"do": "hang"}));
    tokio::task::yield_now().await;
    let soon = Instant::now() + Duration::from_millis(300);
    let options = CallOptions {
        deadline: soon,
        silence: PATIENCE,
        ..options()
    };
    let error = rig.act_with(json!({}), options).await.unwrap_err();
    assert_eq!(error, CallError::Busy);
}

#[tokio::test]
async fn the_wait_for_a_place_counts_as_silence() {
    let mut config = scripted(json!({}));
    config.stateful = true;
    let rig = Rig::start(vec![config]).await;
    let _first = rig.act_beside(json!({"do": "hang"}));
    tokio::task::yield_now().await;
    let options = CallOptions {
        silence: Duration::from_millis(300),
        ..options()
    };
    let error = rig.act_with(json!({}), options).await.unwrap_err();
    assert_eq!(error, CallError::Busy);
}

#[tokio::test]
async fn a_server_that_floods_its_pipe_is_read_slowly_and_others_as_ever() {
    let mut other = scripted(json!({}));
    other.server = id("other");
    let rig = Rig::start(vec![scripted(json!({})), other]).await;
    let begun = Instant::now();
    let flood = rig.act_beside(json!({"do": "flood", "times": 14_000}));
    let other = id("other");
    let quick = rig
        .servers
        .call(&other, "act", JsonObject::new(), options());
    assert!(quick.await.is_ok());
    assert_eq!(
        text(flood.await.unwrap()),
        "flooded",
        "its answer comes, too"
    );
    // 10,000 at once, and 4,000 at 2,000 a second.
    assert!(begun.elapsed() >= Duration::from_secs(2));
}
