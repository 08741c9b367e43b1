//! Servers at a URL: Streamable HTTP of both eras and HTTP+SSE, over real sockets.

use std::{sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use toolway::upstream::mcp::{CallOptions, Config, HttpKind, Transport};
use toolway::{health::ServerState, secret::Secret};
use toolway_protocol::tool::{CallError, Content, RefusalKind};

use crate::{
    harness::{Rig, id, options, text},
    site::{Probe, Script, Site},
};

/// Every way in which a site can be reached: both eras and both forms of an answer, and HTTP+SSE.
async fn every_site(then: impl AsyncFn(&Site, Config)) {
    for (modern, answers_in_events) in [(false, false), (false, true), (true, false), (true, true)]
    {
        let site = Site::start(Script {
            modern,
            answers_in_events,
            ..Script::default()
        })
        .await;
        then(&site, site.config("/mcp", None)).await;
    }
    let site = Site::start(Script::default()).await;
    then(&site, site.config("/sse", None)).await;
}

#[tokio::test]
async fn every_kind_of_server_is_started_listed_and_called() {
    every_site(async |site, config| {
        let rig = Rig::start(vec![config]).await;
        assert_eq!(rig.health().state, ServerState::Ready, "{:?}", rig.health());
        assert_eq!(rig.tool_names(), ["act"]);
        assert_eq!(text(rig.act(json!({"a": 1})).await), r#"{"a":1}"#);
        let versions = if site.got("server/discover").is_empty() {
            0
        } else {
            1
        };
        assert!(
            site.got("server/discover").len() <= versions,
            "one probe at most"
        );
        rig.servers.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn results_arrive_as_they_were_sent_whatever_the_transport() {
    every_site(async |_, config| {
        let rig = Rig::start(vec![config]).await;
        let content = json!([{"type": "video", "x": 1}, {"type": "text", "text": "a", "annotations": {"audience": ["system"]}}]);
        let result = json!({"content": content, "structuredContent": {"n": 5, "none": null}});
        let result = rig.act(json!({"do": "result", "result": result})).await.unwrap();
        let video = Content::Unknown(json!({"type": "video", "x": 1}));
        assert_eq!(result.content, [video, Content::Text("a".to_owned())]);
        assert_eq!(result.structured_content, Some(json!({"n": 5, "none": null})));
    })
    .await;
}

#[tokio::test]
async fn a_result_that_is_too_large_costs_only_its_call_whatever_the_transport() {
    every_site(async |_, mut config| {
        config.max_message_bytes = 100_000;
        let rig = Rig::start(vec![config]).await;
        let error = rig
            .act(json!({"do": "big", "bytes": 5 << 20}))
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "the result is larger than 100000 bytes");
        assert_eq!(
            text(rig.act(json!({"do": "big", "bytes": 90_000})).await).len(),
            90_000
        );
        assert_eq!(rig.health().restarts, 0);
    })
    .await;
}

#[tokio::test]
async fn broken_tools_cost_only_themselves_whatever_the_transport() {
    let tools = json!([{"name": "a", "inputSchema": {}}, {"name": "b"}, {"name": "c", "inputSchema": true}]);
    for (modern, answers_in_events, path) in [
        (false, false, "/mcp"),
        (true, true, "/mcp"),
        (false, true, "/sse"),
    ] {
        let tools = Some(tools.clone());
        let site = Site::start(Script {
            modern,
            answers_in_events,
            tools,
            ..Script::default()
        })
        .await;
        let rig = Rig::start(vec![site.config(path, None)]).await;
        assert_eq!(rig.tool_names(), ["a"]);
        assert_eq!(rig.listed().dropped.len(), 2);
    }
}

#[tokio::test]
async fn the_transport_and_the_version_are_known() {
    let seen = async |script: Script, path: &str| {
        let site = Site::start(script).await;
        let health = Rig::start(vec![site.config(path, None)]).await.health();
        (
            health.transport,
            health.protocol_version.unwrap_or_default(),
        )
    };
    let modern = Script {
        modern: true,
        ..Script::default()
    };
    assert_eq!(
        seen(modern, "/mcp").await,
        ("http", "2026-07-28".to_owned())
    );
    assert_eq!(
        seen(Script::default(), "/mcp").await,
        ("http", "2025-06-18".to_owned())
    );
    assert_eq!(
        seen(Script::default(), "/sse").await,
        ("sse", "2024-11-05".to_owned())
    );
}

#[tokio::test]
async fn an_old_server_is_reached_whatever_it_does_on_the_probe() {
    for probe in [
        Probe::BadRequest,
        Probe::ServerError,
        Probe::Html,
        Probe::Silence,
    ] {
        let site = Site::start(Script {
            probe,
            ..Script::default()
        })
        .await;
        let rig = Rig::start(vec![site.config("/mcp", None)]).await;
        assert_eq!(
            rig.health().state,
            ServerState::Ready,
            "{probe:?}: {:?}",
            rig.health()
        );
    }
}

#[tokio::test]
async fn a_modern_request_names_its_method_and_tool_in_headers() {
    let schema = json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
    let tools = Some(json!([{"name": "act", "inputSchema": schema}]));
    for answers_in_events in [false, true] {
        let tools = tools.clone();
        let script = Script {
            modern: true,
            answers_in_events,
            tools,
            ..Script::default()
        };
        let site = Site::start(script).await;
        let rig = Rig::start(vec![site.config("/mcp", None)]).await;
        rig.act(json!({"region": "eu"})).await.unwrap();
        let (headers, message) = site.got("tools/call").remove(0);
        assert_eq!(headers["mcp-method"], "tools/call");
        assert_eq!(headers["mcp-name"], "act");
        assert_eq!(headers["mcp-param-region"], "eu");
        assert_eq!(headers["mcp-protocol-version"], "2026-07-28");
        let meta = &message["params"]["_meta"];
        assert_eq!(
            meta["io.modelcontextprotocol/protocolVersion"],
            "2026-07-28"
        );
        assert_eq!(
            rig.listed().tools[0].input_schema["properties"]["region"]["type"],
            "string"
        );
    }
}

#[tokio::test]
async fn a_modern_request_for_anything_else_names_it_in_headers_too() {
    let site = Site::start(Script {
        modern: true,
        ..Script::default()
    })
    .await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    for (method, key, name) in [
        ("prompts/get", "name", "a prompt"),
        ("resources/read", "uri", "a:1"),
    ] {
        let params = [(key.to_owned(), json!(name))].into_iter().collect();
        let error = rig
            .servers
            .request(&id("s"), method, &params, options())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "no", "it is the site that says so");
        let (headers, message) = site.got(method).remove(0);
        assert_eq!(headers["mcp-method"], method);
        assert_eq!(headers["mcp-name"], name);
        assert_eq!(message["params"][key], name);
    }
}

#[tokio::test]
async fn a_web_server_that_wants_input_says_so_word_for_word() {
    for answers_in_events in [false, true] {
        let site = Site::start(Script {
            modern: true,
            answers_in_events,
            ..Script::default()
        })
        .await;
        let rig = Rig::start(vec![site.config("/mcp", None)]).await;
        let result = json!({
            "resultType": "input_required", "requestState": "opaque",
            "inputRequests": {"q": {"method": "elicitation/create", "params": {"x": null}}},
        });
        let arguments = json!({"do": "result", "result": result});
        let params = json!({"name": "act", "arguments": arguments});
        let params = params.as_object().cloned().unwrap();
        let raw = rig
            .servers
            .request(&id("s"), "tools/call", &params, options())
            .await;
        assert_eq!(raw.unwrap(), result);
    }
}

#[tokio::test]
async fn configured_headers_go_with_every_request_and_stay_on_the_origin() {
    let other = Site::start(Script::default()).await;
    let site = Site::start(Script::default()).await;
    for path in ["/mcp", "/sse", "/moved"] {
        let mut config = site.config(path, None);
        let Transport::Http { headers, .. } = &mut config.transport else {
            unreachable!()
        };
        headers.push((http::header::AUTHORIZATION, Secret::new("Bearer s3cret")));
        let rig = Rig::start(vec![config]).await;
        rig.act(json!({})).await.unwrap();
        rig.servers.shutdown().await;
        for (headers, message) in [site.got("initialize"), site.got("tools/call")].concat() {
            assert_eq!(headers["authorization"], "Bearer s3cret", "{message}");
        }
        assert!(!format!("{:?}", rig.health()).contains("s3cret"));
    }
    assert!(other.got("initialize").is_empty());
}

#[tokio::test]
async fn an_endpoint_on_another_origin_is_refused() {
    let other = Site::start(Script::default()).await;
    let endpoint = Some(format!("http://{}/messages", other.address));
    let site = Site::start(Script {
        endpoint,
        ..Script::default()
    })
    .await;
    let rig = Rig::start(vec![site.config("/sse", Some(HttpKind::Sse))]).await;
    let error = rig.health().last_error.unwrap_or_default();
    assert!(error.contains("another origin"), "{error}");
    assert!(other.got("initialize").is_empty());
}

#[tokio::test]
async fn a_lost_session_is_made_anew() {
    for refuses_lost_sessions in [false, true] {
        let script = Script {
            refuses_lost_sessions,
            ..Script::default()
        };
        let site = Site::start(script).await;
        let rig = Rig::start(vec![site.config("/mcp", None)]).await;
        rig.act(json!({"do": "forget"})).await.unwrap();
        assert_eq!(text(rig.act(json!({})).await), "{}");
        assert_eq!(site.got("initialize").len(), 2);
        assert_eq!(rig.health().restarts, 0);
    }
}

fn status(status: u16) -> Value {
    json!({"do": "status", "status": status})
}

#[tokio::test]
async fn a_call_that_is_unknown_in_every_session_is_sent_twice_and_no_more() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let options = options();
    let error = rig
        .act_with(status(404), options.clone())
        .await
        .unwrap_err();
    assert!(
        matches!(
            &error,
            CallError::Refused {
                refusal: RefusalKind::Final,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        (site.got("tools/call").len(), options.sends.so_far()),
        (2, 2)
    );
    assert_eq!(site.got("initialize").len(), 2);
    assert_eq!(text(rig.act(json!({})).await), "{}");
    assert_eq!(rig.health().restarts, 0);
}

#[tokio::test]
async fn a_call_that_was_sent_before_is_sent_once_more_even_where_its_session_is_lost() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let options = options();
    for refusal in [429, 404] {
        rig.act_with(status(refusal), options.clone())
            .await
            .unwrap_err();
    }
    assert_eq!(site.got("tools/call").len(), 2);
    assert_eq!(site.got("initialize").len(), 1);
}

#[tokio::test]
async fn a_call_that_is_not_found_outside_of_a_session_is_sent_once() {
    let site = Site::start(Script {
        modern: true,
        ..Script::default()
    })
    .await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let error = rig.act(status(404)).await.unwrap_err();
    assert!(
        matches!(
            &error,
            CallError::Refused {
                refusal: RefusalKind::Final,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(site.got("tools/call").len(), 1);
}

#[tokio::test]
async fn an_answer_counts_whatever_the_status() {
    for modern in [false, true] {
        let site = Site::start(Script {
            modern,
            ..Script::default()
        })
        .await;
        let rig = Rig::start(vec![site.config("/mcp", None)]).await;
        for status in [400, 404, 408, 500, 503] {
            let answer = rig.act(json!({"do": "answer", "status": status})).await;
            assert_eq!(text(answer), "answered", "{status}");
        }
        assert_eq!(site.got("tools/call").len(), 5);
    }
}

#[tokio::test]
async fn a_tool_that_speaks_of_a_session_of_its_own_is_called_once() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let arguments = json!({"do": "refuse", "message": "Your bank session has expired"});
    let error = rig.act(arguments).await.unwrap_err();
    assert_eq!(error.kind(), "protocol_error", "{error:?}");
    assert_eq!(site.got("tools/call").len(), 1);
    assert_eq!(site.got("initialize").len(), 1);
}

#[tokio::test]
async fn a_server_that_went_away_is_looked_for_and_found_again() {
    for path in ["/mcp", "/sse"] {
        let site = Site::start(Script::default()).await;
        let rig = Rig::start(vec![site.config(path, None)]).await;
        let address = site.stop().await;
        let soon = CallOptions {
            deadline: Instant::now() + Duration::from_secs(2),
            ..options()
        };
        let error = rig.act_with(json!({}), soon).await.unwrap_err();
        assert_eq!(error.kind(), "upstream_unavailable", "{path}: {error:?}");
        assert!(!error.to_string().contains("127.0.0.1"), "{error}");
        assert_eq!(
            rig.tool_names(),
            ["act"],
            "the last known tools stay offered"
        );

        let tools =
            Some(json!([{"name": "act", "inputSchema": {}}, {"name": "new", "inputSchema": {}}]));
        let _site = Site::start_at(
            address,
            Script {
                tools,
                ..Script::default()
            },
        )
        .await;
        rig.until("the server is found again", |rig| {
            rig.tool_names() == ["act", "new"]
        })
        .await;
        rig.until("it is ready", |rig| {
            rig.health().state == ServerState::Ready
        })
        .await;
        assert_eq!(text(rig.act(json!({})).await), "{}");
    }
}

#[tokio::test]
async fn a_server_that_was_replaced_by_one_of_another_age_is_reached() {
    for modern in [true, false] {
        let site = Site::start(Script {
            modern,
            ..Script::default()
        })
        .await;
        let rig = Rig::start(vec![site.config("/mcp", None)]).await;
        let before = rig.health().protocol_version;
        let address = site.stop().await;
        let _site = Site::start_at(
            address,
            Script {
                modern: !modern,
                ..Script::default()
            },
        )
        .await;
        // A call finds out that the server it knew is gone; what it makes of that is another matter.
        let _ = rig.act(json!({})).await;
        rig.until("the new server is known", |rig| {
            rig.health().protocol_version != before
        })
        .await;
        rig.until("it is ready", |rig| {
            rig.health().state == ServerState::Ready
        })
        .await;
        assert_eq!(text(rig.act(json!({})).await), "{}");
    }
}

#[tokio::test]
async fn an_http_error_is_told_without_its_page() {
    #[track_caller]
    fn check(error: CallError, kind: &str, unsent: bool, part: &str) {
        let message = error.to_string();
        assert!(
            message.contains(part) && !message.contains("java"),
            "{message}"
        );
        assert_eq!((error.kind(), error.is_unsent()), (kind, unsent));
    }
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let status = async |status: u16| {
        rig.act(json!({"do": "status", "status": status}))
            .await
            .unwrap_err()
    };
    const UNAVAILABLE: &str = "upstream_unavailable";
    check(status(500).await, UNAVAILABLE, false, "HTTP 500");
    check(status(503).await, UNAVAILABLE, false, "HTTP 503");
    check(
        status(408).await,
        UNAVAILABLE,
        false,
        "may have been carried out",
    );
    check(status(401).await, UNAVAILABLE, true, "refuses access");
    check(status(429).await, "busy", true, "busy");
    check(status(413).await, UNAVAILABLE, true, "HTTP 413");
    check(status(405).await, UNAVAILABLE, true, "HTTP 405");
    check(status(307).await, UNAVAILABLE, true, "HTTP 307");
    assert_eq!(site.got("tools/call").len(), 8);
    check(status(200).await, UNAVAILABLE, false, "not MCP");
    assert_eq!(text(rig.act(json!({})).await), "{}");
    assert_eq!(rig.health().restarts, 0);
}

#[tokio::test]
async fn an_answer_that_breaks_off_fails_at_once() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let error = rig.act(json!({"do": "break"})).await.unwrap_err();
    assert!(
        matches!(error, CallError::UpstreamUnavailable { unsent: false, .. }),
        "{error:?}"
    );
    assert_eq!(text(rig.act(json!({})).await), "{}");
}

#[tokio::test]
async fn progress_is_passed_on() {
    for modern in [false, true] {
        let site = Site::start(Script {
            modern,
            ..Script::default()
        })
        .await;
        let rig = Rig::start(vec![site.config("/mcp", None)]).await;
        let (sender, mut progress) = mpsc::channel(10);
        let options = CallOptions {
            progress: Some(sender),
            ..options()
        };
        rig.act_with(json!({"do": "progress"}), options)
            .await
            .unwrap();
        let mut steps = Vec::new();
        while let Some(step) = progress.recv().await {
            steps.push(step.progress);
        }
        assert_eq!(steps, [1.0, 2.0]);
    }
}

#[tokio::test]
async fn dropping_a_call_closes_a_modern_answer() {
    let site = Site::start(Script {
        modern: true,
        ..Script::default()
    })
    .await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let call = rig.act_beside(json!({"do": "hang"}));
    rig.until("the call arrives", |_| !site.got("tools/call").is_empty())
        .await;
    call.abort();
    rig.until("the answer is closed", |_| {
        site.seen.hang_was_dropped.load(Ordering::Relaxed)
    })
    .await;
}

#[tokio::test]
async fn dropping_a_call_is_told_to_an_older_server() {
    for path in ["/mcp", "/sse"] {
        let site = Site::start(Script::default()).await;
        let rig = Rig::start(vec![site.config(path, None)]).await;
        let call = rig.act_beside(json!({"do": "hang"}));
        rig.until("the call arrives", |_| !site.got("tools/call").is_empty())
            .await;
        call.abort();
        rig.until("the cancellation arrives", |_| {
            !site.got("notifications/cancelled").is_empty()
        })
        .await;
        let (called, cancelled) = (
            site.got("tools/call").remove(0).1,
            site.got("notifications/cancelled").remove(0).1,
        );
        assert_eq!(cancelled["params"]["requestId"], called["id"]);
    }
}

#[tokio::test]
async fn a_call_is_cancelled_by_the_id_that_its_server_knows_also_when_more_has_come() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    let (sender, mut progress) = mpsc::channel(10);
    let options = CallOptions {
        progress: Some(sender),
        silence: Duration::from_millis(300),
        ..options()
    };
    let arguments = json!({"do": "hang", "progress": true});
    let error = rig.act_with(arguments, options).await.unwrap_err();
    assert!(matches!(error, CallError::Timeout { .. }), "{error:?}");
    assert!(progress.recv().await.is_some());
    rig.until("the cancellation arrives", |_| {
        !site.got("notifications/cancelled").is_empty()
    })
    .await;
    let (called, cancelled) = (
        site.got("tools/call").remove(0).1,
        site.got("notifications/cancelled").remove(0).1,
    );
    assert_eq!(cancelled["params"]["requestId"], called["id"]);
}

#[tokio::test]
async fn an_answer_counts_on_whichever_stream_it_comes() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    rig.until("the other stream is there", |_| site.is_listened_to())
        .await;
    for open in [false, true] {
        let arguments = json!({"do": "answer aside", "open": open});
        let answer = text(rig.act(arguments.clone()).await);
        assert_eq!(answer, arguments.to_string());
    }
    assert_eq!(text(rig.act(json!({})).await), "{}");
    assert!(site.got("notifications/cancelled").is_empty());
    assert_eq!(site.got("tools/call").len(), 3, "nothing is sent twice");
}

#[tokio::test]
async fn changes_of_an_older_server_come_on_its_own_stream() {
    for path in ["/mcp", "/sse"] {
        let site = Site::start(Script::default()).await;
        let rig = Rig::start(vec![site.config(path, None)]).await;
        let tools: Value = json!([{"name": "new", "inputSchema": {}}]);
        // The stream is opened beside the first requests, so the first change may come too early.
        rig.until("the stream is open", |_| site.is_listened_to())
            .await;
        rig.act(json!({"do": "change", "tools": tools}))
            .await
            .unwrap();
        rig.until("the new tool is offered", |rig| rig.tool_names() == ["new"])
            .await;
    }
}

#[tokio::test]
async fn a_legacy_stream_that_ends_fails_its_calls_and_is_opened_again() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/sse", None)]).await;
    let error = rig.act(json!({"do": "disconnect"})).await.unwrap_err();
    assert!(
        matches!(error, CallError::UpstreamUnavailable { unsent: false, .. }),
        "{error:?}"
    );
    assert_eq!(text(rig.act(json!({})).await), "{}");
    assert_eq!(rig.health().restarts, 1);
}

#[tokio::test]
async fn a_post_that_a_legacy_server_refuses_fails_its_call() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/sse", None)]).await;
    let error = rig.act(json!({"do": "refuse"})).await.unwrap_err();
    assert!(error.to_string().contains("HTTP 500"), "{error}");
}

#[tokio::test]
async fn another_api_at_the_address_is_no_mcp_server() {
    let site = Site::start(Script::default()).await;
    for kind in [None, Some(HttpKind::Streamable), Some(HttpKind::Sse)] {
        let rig = Rig::start(vec![site.config("/v1", kind)]).await;
        let error = rig.health().last_error.unwrap_or_default();
        let expected =
            "what answers at this URL is no MCP server (HTTP 404 Not Found); is the URL right?";
        assert_eq!(error, expected);
    }
}

#[tokio::test]
async fn nobody_at_the_address_is_a_failure_with_a_reason() {
    let site = Site::start(Script::default()).await;
    let config = site.config("/mcp", None);
    site.stop().await;
    let rig = Rig::start(vec![config]).await;
    let health = rig.health();
    assert_eq!(health.state, ServerState::Failed);
    assert!(
        health
            .last_error
            .is_some_and(|error| error.contains("cannot be reached"))
    );
}

#[tokio::test]
async fn nothing_stays_open_when_the_servers_are_dropped() {
    for path in ["/mcp", "/sse"] {
        let site = Site::start(Script::default()).await;
        let mut rig = Rig::start(vec![site.config(path, None)]).await;
        rig.until("the stream is open", |_| site.is_listened_to())
            .await;
        rig.servers = Rig::start(Vec::new()).await.servers;
        rig.until("the stream is closed", |_| !site.is_listened_to())
            .await;
    }
}

#[tokio::test]
async fn a_call_waits_until_a_new_session_is_initialized() {
    let site = Site::start(Script {
        begins_slowly: true,
        ..Script::default()
    })
    .await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    rig.act(json!({"do": "forget"})).await.unwrap();
    // The first finds that the session is lost; the others come while a new one is made.
    let mut calls = Vec::new();
    for _ in 0..20 {
        calls.push(rig.act_beside(json!({})));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for call in calls {
        assert_eq!(text(call.await.unwrap()), "{}");
    }
    assert_eq!(site.got("initialize").len(), 2);
}

#[tokio::test]
async fn a_call_that_was_refused_is_not_made_again() {
    for answers_in_events in [false, true] {
        let site = Site::start(Script {
            answers_in_events,
            ..Script::default()
        })
        .await;
        let rig = Rig::start(vec![site.config("/mcp", None)]).await;
        let error = rig.act(json!({"do": "refuse"})).await.unwrap_err();
        assert!(
            matches!(&error, CallError::Protocol { code: -32602, message, .. } if message == "no such thing"),
            "{error:?}"
        );
        assert_eq!(site.got("tools/call").len(), 1);
        assert_eq!(text(rig.act(json!({"a": 1})).await), r#"{"a":1}"#);
    }
}

#[tokio::test]
async fn a_call_that_is_answered_with_another_address_is_not_made_again() {
    let site = Site::start(Script::default()).await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    rig.act(json!({"do": "look elsewhere"})).await.unwrap_err();
    assert_eq!(site.got("tools/call").len(), 1);
    assert_eq!(text(rig.act(json!({"a": 1})).await), r#"{"a":1}"#);
}

#[tokio::test]
async fn a_server_that_keeps_short_ids_is_called_all_the_same() {
    for answers_in_events in [false, true] {
        let site = Site::start(Script {
            cuts_ids: true,
            answers_in_events,
            ..Script::default()
        })
        .await;
        let rig = Rig::start(vec![site.config("/mcp", None)]).await;
        assert_eq!(text(rig.act(json!({"a": 1})).await), r#"{"a":1}"#);
        let (sender, mut steps) = mpsc::channel(4);
        let with_progress = CallOptions {
            progress: Some(sender),
            ..options()
        };
        let done = rig.act_with(json!({"do": "progress"}), with_progress).await;
        done.unwrap();
        assert_eq!(steps.recv().await.unwrap().progress, 1.0);
    }
}
