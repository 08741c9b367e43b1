//! Lent functions from both sides at once: an MCP client of either era at `/mcp/s/TOKEN`, the caller at its events.

use reqwest::Method;
use rmcp::{
    RoleClient,
    model::{CallToolRequest, CallToolRequestParams, ClientRequest, ProtocolVersion},
    service::{
        ClientLifecycleMode, PeerRequestOptions, RunningService, serve_client_with_lifecycle,
    },
    transport::{
        StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    harness::{Toolway, eventually, toolway},
    model::{Model, PATIENCE, say},
    sessions::{Lent, send, weather},
};

type Agent = RunningService<RoleClient, ()>;

/// A result as it is written, or what the client says went wrong.
type Outcome = Result<Value, String>;

async fn start(config: &str) -> Toolway {
    let model = Model::start([]).await.then_always(say("ok"));
    toolway(model).config(config).start().await
}

/// Both ways in which an agent may come.
fn eras() -> [ClientLifecycleMode; 2] {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    [
        ClientLifecycleMode::Initialize,
        ClientLifecycleMode::Discover { preferred_versions },
    ]
}

async fn connect(url: &str, era: ClientLifecycleMode) -> Result<Agent, String> {
    let config = StreamableHttpClientTransportConfig::with_uri(url);
    let transport = StreamableHttpClientTransport::with_client(reqwest::Client::new(), config);
    let connecting = serve_client_with_lifecycle((), transport, era);
    let connected = timeout(PATIENCE, connecting).await.expect("it connects");
    connected.map_err(|error| error.to_string())
}

async fn agent(lent: &Lent, era: ClientLifecycleMode) -> Agent {
    let url = lent.answer["url"].as_str().unwrap();
    connect(url, era).await.unwrap()
}

fn params(city: &str) -> CallToolRequestParams {
    let arguments = json!({"city": city}).as_object().unwrap().clone();
    CallToolRequestParams::new("weather").with_arguments(arguments)
}

fn call(agent: &Agent, city: &str) -> JoinHandle<Outcome> {
    let (peer, params) = (agent.peer().clone(), params(city));
    tokio::spawn(async move {
        let result = timeout(PATIENCE, peer.call_tool(params)).await;
        let result = result
            .expect("an answer")
            .map_err(|error| error.to_string());
        result.map(|result| serde_json::to_value(result).unwrap())
    })
}

#[track_caller]
fn check_text(outcome: Outcome, text: &str, is_error: bool) {
    let result = outcome.unwrap();
    assert_eq!(result["content"][0]["text"], text, "{result}");
    assert_eq!(result["isError"] == json!(true), is_error, "{result}");
}

#[tokio::test]
async fn an_agent_of_either_era_calls_the_callers_functions() {
    let gw = start("").await;
    for era in eras() {
        let order = json!({"tools": weather(), "name": "job 7", "instructions": "Be brief."});
        let lent = Lent::open(&gw, order).await;
        let mut reader = lent.events(&gw, None).await;
        let agent = agent(&lent, era).await;
        let about = serde_json::to_value(agent.peer_info().unwrap()).unwrap();
        assert!(about.to_string().contains("job 7"), "{about}");
        assert!(about.to_string().contains("Be brief."), "{about}");
        let tools = agent.list_all_tools().await.unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["weather", "a_time"]);
        assert_eq!(tools[0].description.as_deref(), Some("Tells the weather."));
        let calling = call(&agent, "Köln");
        let event = reader.next().await.unwrap();
        let expected = json!({"name": "weather", "arguments": "{\"city\":\"Köln\"}"});
        assert_eq!(event["tool_calls"][0]["function"], expected);
        let id = event["tool_calls"][0]["id"].as_str().unwrap();
        lent.answer(&gw, id, json!({"degrees": 7})).await;
        let result = calling.await.unwrap().unwrap();
        assert_eq!(result["structuredContent"], json!({"degrees": 7}));
        agent.cancel().await.unwrap();
    }
    gw.join().await;
}

#[tokio::test]
async fn a_failure_and_misfit_arguments_are_results_that_the_model_reads() {
    let gw = start("").await;
    for era in eras() {
        let lent = Lent::open(&gw, json!({"tools": weather()})).await;
        let mut reader = lent.events(&gw, None).await;
        let agent = agent(&lent, era).await;
        let wrong = CallToolRequestParams::new("weather");
        let result = agent.call_tool(wrong).await.unwrap();
        assert_eq!(result.is_error, Some(true));
        let calling = call(&agent, "Köln");
        let id = reader.one_call().await;
        let failed = json!([{"tool_call_id": id, "error": "no such city"}]);
        lent.respond(&gw, failed).await;
        check_text(calling.await.unwrap(), "no such city", true);
        agent.cancel().await.unwrap();
    }
    gw.join().await;
}

#[tokio::test]
async fn an_agent_that_cancels_takes_its_call_back() {
    let gw = start("").await;
    for era in eras() {
        let lent = Lent::open(&gw, json!({"tools": weather()})).await;
        let mut reader = lent.events(&gw, None).await;
        let agent = agent(&lent, era).await;
        let request = CallToolRequest::new(params("Köln"));
        let request = ClientRequest::CallToolRequest(request);
        let options = PeerRequestOptions::no_options();
        let handle = agent.send_cancellable_request(request, options).await;
        let id = reader.one_call().await;
        handle.unwrap().cancel(None).await.unwrap();
        let cancelled = json!({"type": "tool_call.cancelled", "tool_call_id": id});
        assert_eq!(reader.next().await, Some(cancelled));
        agent.cancel().await.unwrap();
    }
    gw.join().await;
}

#[tokio::test]
async fn an_agent_that_waits_too_long_is_told() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather(), "call_timeout": 1})).await;
    let [era, _] = eras();
    let agent = agent(&lent, era).await;
    let late = call(&agent, "Köln").await.unwrap().unwrap();
    assert!(
        late.to_string().contains("did not answer within 1 s"),
        "{late}"
    );
    assert_eq!(late["isError"], true);
    agent.cancel().await.unwrap();
    gw.join().await;
}

#[tokio::test]
async fn two_agents_share_a_token_and_get_their_own_answers() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let mut reader = lent.events(&gw, None).await;
    let [old, new] = eras();
    let (one, two) = (agent(&lent, old).await, agent(&lent, new).await);
    let first = call(&one, "Köln");
    let first_id = reader.one_call().await;
    let second = call(&two, "Bonn");
    let second_id = reader.one_call().await;
    lent.answer(&gw, &second_id, json!("sun")).await;
    lent.answer(&gw, &first_id, json!("rain")).await;
    check_text(first.await.unwrap(), "rain", false);
    check_text(second.await.unwrap(), "sun", false);
    // One that leaves costs the other nothing.
    one.cancel().await.unwrap();
    let third = call(&two, "Bonn");
    let id = reader.one_call().await;
    lent.answer(&gw, &id, json!("fog")).await;
    check_text(third.await.unwrap(), "fog", false);
    two.cancel().await.unwrap();
    gw.join().await;
}

#[tokio::test]
async fn agents_need_no_key_but_the_token() {
    let gw = start("api_keys = [\"one\"]\n").await;
    let body = json!({"tools": weather()});
    let path = "/v1/mcp_sessions";
    let (status, answer) = send(&gw, Method::POST, path, Some("one"), Some(body)).await;
    assert_eq!(status, 201);
    let url = answer["url"].as_str().unwrap();
    for era in eras() {
        let agent = connect(url, era.clone()).await.unwrap();
        assert_eq!(agent.list_all_tools().await.unwrap().len(), 2);
        agent.cancel().await.unwrap();
        assert!(connect(&format!("{url}x"), era).await.is_err());
    }
    gw.join().await;
}

#[tokio::test]
async fn the_caller_decides_how_long_a_call_waits_and_not_the_loop() {
    let config = "[loop]\nrequest_timeout = \"1s\"\ntool_timeout = \"1s\"\n";
    let gw = start(config).await;
    let lent = Lent::open(&gw, json!({"tools": weather(), "call_timeout": 2})).await;
    let [era, _] = eras();
    let agent = agent(&lent, era).await;
    let late = call(&agent, "Köln").await.unwrap().unwrap();
    assert!(
        late.to_string().contains("did not answer within 2 s"),
        "{late}"
    );
    agent.cancel().await.unwrap();
    gw.join().await;
}

#[tokio::test]
async fn the_end_of_a_session_is_the_end_for_its_agents() {
    let gw = start("").await;
    for era in eras() {
        let lent = Lent::open(&gw, json!({"tools": weather()})).await;
        let session = gw.gateway.mcp_sessions().find(lent.token()).unwrap();
        let weak = std::sync::Arc::downgrade(&session);
        drop(session);
        let mut reader = lent.events(&gw, None).await;
        let agent = agent(&lent, era.clone()).await;
        let calling = call(&agent, "Köln");
        reader.one_call().await;
        let path = format!("/v1/mcp_sessions/{}", lent.id);
        let (status, _) = send(&gw, Method::DELETE, &path, None, None).await;
        assert_eq!(status, 200);
        let result = calling.await.unwrap().unwrap();
        assert_eq!(result["isError"], true, "{result}");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("ended by its owner"), "{text}");
        assert!(call(&agent, "Köln").await.unwrap().is_err(), "it is gone");
        assert!(
            connect(lent.answer["url"].as_str().unwrap(), era)
                .await
                .is_err()
        );
        drop(reader);
        eventually("nothing of the session is left", || {
            weak.strong_count() == 0
        })
        .await;
        let _ = agent.cancel().await;
    }
    gw.join().await;
}

#[tokio::test]
async fn the_end_of_a_session_is_the_end_of_what_its_agents_listen_to() {
    let gw = start("").await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "agent", "version": "1"},
    });
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
        "params": {"_meta": meta, "notifications": {"toolsListChanged": true}},
    });
    let listening = gw
        .http
        .post(lent.answer["url"].as_str().unwrap())
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "subscriptions/listen")
        .body(body.to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(listening.status(), 200);
    let session = gw.gateway.mcp_sessions().find(lent.token()).unwrap();
    let weak = std::sync::Arc::downgrade(&session);
    drop(session);
    assert!(gw.gateway.mcp_sessions().end(&lent.id, 0));
    let text = timeout(PATIENCE, listening.text()).await.expect("it ends");
    assert!(text.unwrap().contains("acknowledged"));
    eventually("nothing of the session is left", || {
        weak.strong_count() == 0
    })
    .await;
    gw.join().await;
}
