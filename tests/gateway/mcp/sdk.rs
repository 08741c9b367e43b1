use rmcp::{
    RoleClient,
    model::{CallToolRequestParams, ClientConfig, ProtocolVersion},
    serve_client_with_lifecycle,
    service::{ClientLifecycleMode, RunningService},
    transport::{
        StreamableHttpClientTransport, TokioChildProcess,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use crate::mcp::harness::{PATIENCE, acting, scripted};

type Session = RunningService<RoleClient, ClientConfig>;

fn eras() -> [(ClientLifecycleMode, &'static str); 3] {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let auto = ClientLifecycleMode::Auto {
        preferred_versions: preferred_versions.clone(),
        legacy_version: None,
    };
    [
        (ClientLifecycleMode::Initialize, "2025-11-25"),
        (
            ClientLifecycleMode::Discover { preferred_versions },
            "2026-07-28",
        ),
        (auto, "2026-07-28"),
    ]
}

async fn check(client: Session, version: &str) {
    let peer = client.peer_info().expect("the server says who it is");
    assert_eq!(peer.protocol_version.as_str(), version);
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools[0].name, "s__act");
    for arguments in [json!({"x": 1}), json!({"do": "progress", "steps": 3})] {
        let Value::Object(arguments) = arguments else {
            unreachable!()
        };
        let params = CallToolRequestParams::new("s__act").with_arguments(arguments);
        let call = timeout(PATIENCE, client.call_tool(params)).await;
        let result = call.unwrap().unwrap();
        assert_ne!(result.is_error, Some(true));
        assert!(!result.content.is_empty());
    }
    let unknown = client
        .call_tool(CallToolRequestParams::new("no_such"))
        .await;
    assert!(unknown.is_err(), "{unknown:?}");
    client.cancel().await.unwrap();
}

#[tokio::test]
async fn its_client_is_content_over_http() {
    let gw = acting().await;
    for (era, version) in eras() {
        let config = StreamableHttpClientTransportConfig::with_uri(format!("{}/mcp", gw.base));
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let transport = StreamableHttpClientTransport::with_client(http, config);
        let client = serve_client_with_lifecycle(ClientConfig::default(), transport, era);
        let client = timeout(PATIENCE, client).await.unwrap().unwrap();
        check(client, version).await;
        gw.until_open(0, 0).await;
    }
    gw.join().await;
}

#[tokio::test]
async fn its_client_is_content_over_pipes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("toolway.toml"), scripted("s", json!({}))).unwrap();
    for (era, version) in eras() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolway"));
        command
            .arg("mcp")
            .current_dir(folder.path())
            .env_remove("TOOLWAY_CONFIG");
        let transport = TokioChildProcess::new(command).unwrap();
        let client = serve_client_with_lifecycle(ClientConfig::default(), transport, era);
        let client = timeout(PATIENCE, client).await.unwrap().unwrap();
        check(client, version).await;
    }
}
