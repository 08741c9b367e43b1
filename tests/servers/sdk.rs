//! rmcp's own server as the peer, over Streamable HTTP: the newest version and one with a handshake.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
    time::Duration,
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
        PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ServerCapabilities,
        ServerConfig, SubscriptionFilter, Tool,
    },
    service::{NotificationContext, Peer, RequestContext, SubscriptionContext},
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use serde_json::json;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use toolway::health::ServerState;
use toolway::upstream::mcp::{CallOptions, Config, HttpKind, Transport};

use crate::{
    callers::{Client, everything, made_for},
    harness::{Rig, id, options, scripted, text},
};

/// What a server's sessions share.
#[derive(Clone)]
struct Sdk {
    versions: &'static [ProtocolVersion],
    tool: Arc<Mutex<String>>,
    changes: watch::Sender<u32>,
    sessions: Arc<Mutex<Vec<Peer<RoleServer>>>>,
    cancelled: Arc<tokio::sync::Notify>,
    running: Arc<tokio::sync::Notify>,
}

impl ServerHandler for Sdk {
    fn get_info(&self) -> ServerConfig {
        let tools = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        ServerConfig::new(tools)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.versions)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({"type": "object"})
            .as_object()
            .cloned()
            .unwrap_or_default();
        let name = self.tool.lock().unwrap().clone();
        Ok(ListToolsResult::with_all_items(vec![Tool::new(
            name,
            "acts",
            Arc::new(schema),
        )]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        match arguments.get("do").and_then(|what| what.as_str()) {
            Some("hang") => {
                self.running.notify_one();
                context.ct.cancelled().await;
                self.cancelled.notify_one();
            }
            Some("progress") => {
                let token = context.meta.get_progress_token().expect("a token was sent");
                for step in 1..=3 {
                    let params = ProgressNotificationParam::new(token.clone(), f64::from(step));
                    let _ = context.peer.notify_progress(params).await;
                }
            }
            Some("roots") => {
                let text = ContentBlock::text(first_root(&context.peer).await?);
                return Ok(CallToolResult::success(vec![text]).into());
            }
            Some("change") => {
                *self.tool.lock().unwrap() = "new".to_owned();
                self.changes.send_modify(|changes| *changes += 1);
                let sessions = self.sessions.lock().unwrap().clone();
                for session in sessions {
                    let _ = session.notify_tool_list_changed().await;
                }
            }
            _ => {}
        }
        Ok(CallToolResult::success(vec![ContentBlock::text("done")]).into())
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.sessions.lock().unwrap().push(context.peer);
    }

    fn accepted_subscription_filter(
        &self,
        asked: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(asked.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            tokio::select! {
                _ = changes.changed() => {
                    let _ = context.sink().notify_tool_list_changed().await;
                }
                () = context.cancelled() => return Ok(()),
            }
        }
    }
}

#[expect(deprecated, reason = "servers still ask for roots")]
async fn first_root(client: &Peer<RoleServer>) -> Result<String, ErrorData> {
    let roots = client.list_roots().await;
    let roots = roots.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let first = roots.roots.first().map(|root| root.uri.clone());
    Ok(first.unwrap_or_default())
}

const HANDSHAKE_ONLY: &[ProtocolVersion] = &[
    ProtocolVersion::V_2025_03_26,
    ProtocolVersion::V_2025_06_18,
    ProtocolVersion::V_2025_11_25,
];

/// A server that speaks these versions, and a configuration to reach it.
async fn start(versions: &'static [ProtocolVersion]) -> (Sdk, Config) {
    let sdk = Sdk {
        versions,
        tool: Arc::new(Mutex::new("act".to_owned())),
        changes: watch::Sender::new(0),
        sessions: Arc::default(),
        cancelled: Arc::default(),
        running: Arc::default(),
    };
    let handler = sdk.clone();
    let service = StreamableHttpService::new(
        move || Ok(handler.clone()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    let app = axum::Router::new().nest_service("/mcp", service);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let transport = Transport::Http {
        url,
        headers: Vec::new(),
        kind: Some(HttpKind::Streamable),
    };
    (
        sdk,
        Config {
            server: id("s"),
            transport,
            ..scripted(json!({}))
        },
    )
}

/// Every era of rmcp's server, and the version spoken with it.
const ERAS: [(&[ProtocolVersion], &str); 2] = [
    (ProtocolVersion::KNOWN_VERSIONS, "2026-07-28"),
    (HANDSHAKE_ONLY, "2025-11-25"),
];

#[tokio::test]
async fn the_newest_common_version_is_spoken() {
    for (versions, newest) in ERAS {
        let (_sdk, config) = start(versions).await;
        let rig = Rig::start(vec![config]).await;
        let health = rig.health();
        assert_eq!(health.state, ServerState::Ready, "{health:?}");
        assert_eq!(health.protocol_version.as_deref(), Some(newest));
        assert_eq!(text(rig.act(json!({})).await), "done");
        rig.servers.shutdown().await;
    }
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_in_the_tool() {
    for (versions, _) in ERAS {
        let (sdk, config) = start(versions).await;
        let rig = Rig::start(vec![config]).await;
        let call = rig.act_beside(json!({"do": "hang"}));
        sdk.running.notified().await;
        call.abort();
        sdk.cancelled.notified().await;
    }
}

#[tokio::test]
async fn silence_cancels_the_tool_too() {
    for (versions, _) in ERAS {
        let (sdk, config) = start(versions).await;
        let rig = Rig::start(vec![config]).await;
        let options = CallOptions {
            silence: Duration::from_millis(300),
            ..options()
        };
        let error = rig
            .act_with(json!({"do": "hang"}), options)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), "timeout");
        sdk.cancelled.notified().await;
    }
}

#[tokio::test]
async fn progress_arrives_before_the_answer() {
    for (versions, _) in ERAS {
        let (_sdk, config) = start(versions).await;
        let rig = Rig::start(vec![config]).await;
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
        assert_eq!(steps, [1.0, 2.0, 3.0]);
    }
}

#[tokio::test]
async fn a_change_of_tools_is_seen() {
    for (versions, newest) in ERAS {
        let (sdk, config) = start(versions).await;
        let rig = Rig::start(vec![config]).await;
        rig.until("somebody listens", |_| {
            sdk.changes.receiver_count() > 0 || !sdk.sessions.lock().unwrap().is_empty()
        })
        .await;
        rig.act(json!({"do": "change"})).await.unwrap();
        rig.until(newest, |rig| rig.tool_names() == ["new"]).await;
    }
}

#[tokio::test]
async fn each_of_many_callers_is_asked_for_its_own_call() {
    let (_sdk, config) = start(HANDSHAKE_ONLY).await;
    let rig = Rig::start(vec![config]).await;
    let names = ["a", "b", "c", "d", "e", "f"];
    let calls = names.map(|name| {
        let client = Client::new(name, everything());
        let arguments = json!({"do": "roots"}).as_object().cloned().unwrap();
        let servers = Arc::clone(&rig.servers);
        tokio::spawn(async move {
            let options = made_for(&client);
            servers.call(&id("s"), "act", arguments, options).await
        })
    });
    for (name, call) in names.into_iter().zip(calls) {
        assert_eq!(text(call.await.unwrap()), format!("file:///{name}"));
    }
}
