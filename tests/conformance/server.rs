//! The MCP server behind the gateway when the conformance suite runs: it has every name that the suite's scenarios
//! expect, and does with each what they describe.
//!
//! `conformance_server stdio` speaks over its pipes; `conformance_server http` listens on a free port of loopback and
//! says where. Both speak every version of MCP, or with a second argument only the versions of one era, `handshake` or
//! `modern`: what a tool wants to know from the client it asks by a request of its own until 2025-11-25, and by an
//! `input_required` result from 2026-07-28 on, see [`asking`].
//!
//! How it is run: `scripts/conformance`, docs/conformance.md.

#![expect(
    clippy::needless_pass_by_value,
    reason = "JSON reads better where it is written"
)]
#![expect(
    deprecated,
    reason = "logging and subscriptions of the handshake versions are what this is for"
)]

mod asking;
mod prompts;
mod resources;
mod tools;

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult,
        GetPromptRequestParams, GetPromptResponse, Implementation, ListPromptsResult,
        ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
        ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
        ServerConfig, SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool,
        UnsubscribeRequestParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use serde_json::json;
use tokio::sync::broadcast;

type Context = RequestContext<RoleServer>;

/// What there is to tell every client that listens.
#[derive(Clone, Copy)]
enum Change {
    Tools,
    Prompts,
}

/// One for the whole process; each session has a clone.
#[derive(Clone)]
struct Fixture {
    versions: &'static [ProtocolVersion],
    changes: broadcast::Sender<Change>,
    /// The tool and the prompt that come and go are there.
    extra_tool: Arc<AtomicBool>,
    extra_prompt: Arc<AtomicBool>,
    seal: asking::Seal,
}

impl Fixture {
    /// One that speaks the versions of `era`.
    fn new(era: Option<&str>) -> Result<Self, String> {
        let all = ProtocolVersion::KNOWN_VERSIONS;
        let modern = all.partition_point(|v| v.as_str() < ProtocolVersion::V_2026_07_28.as_str());
        let versions = match era {
            None | Some("both") => all,
            Some("handshake") => &all[..modern],
            Some("modern") => &all[modern..],
            Some(era) => return Err(format!("there is no era `{era}`")),
        };
        Ok(Self {
            versions,
            changes: broadcast::channel(16).0,
            extra_tool: Arc::default(),
            extra_prompt: Arc::default(),
            seal: asking::Seal::default(),
        })
    }

    /// Changes a list for real, because a client in the middle may compare before it tells others.
    fn change(&self, what: Change) {
        let extra = match what {
            Change::Tools => &self.extra_tool,
            Change::Prompts => &self.extra_prompt,
        };
        extra.fetch_xor(true, Ordering::SeqCst);
        let _nobody_listens = self.changes.send(what);
    }
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_completions()
            .enable_logging()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("conformance_server", "1.0.0"))
            .with_instructions("Every name of the conformance suite.")
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.versions)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Result<ListToolsResult, ErrorData> {
        let extra = self.extra_tool.load(Ordering::SeqCst);
        Ok(ListToolsResult::with_all_items(tools::list(extra)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::list(true).into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        tools::call(self, request, context).await
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Result<ListPromptsResult, ErrorData> {
        let extra = self.extra_prompt.load(Ordering::SeqCst);
        Ok(ListPromptsResult::with_all_items(prompts::list(extra)))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        prompts::get(request, &context).await
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: Context,
    ) -> Result<CompleteResult, ErrorData> {
        Ok(prompts::complete(&request.argument.value))
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(resources::list()))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(
            resources::templates(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&request.uri)
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        _context: Context,
    ) -> Result<(), ErrorData> {
        resources::read(&request.uri).map(|_| ())
    }

    async fn unsubscribe(
        &self,
        _request: UnsubscribeRequestParams,
        _context: Context,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn set_level(
        &self,
        _request: SetLevelRequestParams,
        _context: Context,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    /// Clients of the handshake versions are told of every change.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let mut changes = self.changes.subscribe();
        tokio::spawn(async move {
            while let Ok(change) = changes.recv().await {
                let told = match change {
                    Change::Tools => context.peer.notify_tool_list_changed().await,
                    Change::Prompts => context.peer.notify_prompt_list_changed().await,
                };
                if told.is_err() {
                    return;
                }
            }
        });
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            // What the client did not ask for is refused by the sink; that is no reason to stop.
            let _refused = match change {
                Ok(Change::Tools) => context.sink().notify_tool_list_changed().await,
                Ok(Change::Prompts) => context.sink().notify_prompt_list_changed().await,
                Err(_) => return Ok(()),
            };
        }
    }
}

/// A text as the whole content of a result.
fn text(text: &str) -> serde_json::Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// A typed value from JSON that is written in this program.
fn typed<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
    serde_json::from_value(json).expect("the fixture's JSON is of this type")
}

/// A typed result from JSON, said to be the last; rmcp takes that away for clients of the handshake versions.
fn whole<T: serde::de::DeserializeOwned>(mut json: serde_json::Value) -> T {
    json["resultType"] = json!("complete");
    typed(json)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let transport = args.next();
    let fixture = Fixture::new(args.next().as_deref())?;
    match transport.as_deref() {
        Some("stdio") => {
            let server = fixture.serve(rmcp::transport::stdio()).await?;
            server.waiting().await?;
        }
        Some("http") => serve_http(fixture).await?,
        _ => return Err("usage: conformance_server stdio|http [both|handshake|modern]".into()),
    }
    Ok(())
}

async fn serve_http(fixture: Fixture) -> Result<(), Box<dyn std::error::Error>> {
    let service = StreamableHttpService::new(
        move || Ok(fixture.clone()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default().with_allowed_origins([
            "http://localhost:*",
            "http://127.0.0.1:*",
            "http://[::1]:*",
        ]),
    );
    let app = axum::Router::new().nest_service("/mcp", service);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("conformance_server listens on http://{address}/mcp");
    axum::serve(listener, app).await?;
    Ok(())
}
