//! What has tools: an MCP server made with rmcp, and a plain HTTP API beside it: `mock-server ADDRESS:PORT`.
//!
//! | path | what is there |
//! |---|---|
//! | `/mcp` | an MCP server over Streamable HTTP with `echo`, `add` and `slow` |
//! | `/mcp/N` | the same with N tools in all |
//! | `/mcp/N/BYTES` | the same, with BYTES more in their descriptions together |
//! | `/mcp/N/BYTES/read-only` | the same, whose tools say that they change nothing |
//! | `/functions/NAME` | an HTTP API that answers with the arguments it got, for `url` of a group of functions |
//! | `/tool_calls` | a webhook that answers each call with its `message`, for `endpoint` of a group |
//! | `/rpc/BYTES` | the answer to a `tools/call` in BYTES bytes without any protocol, for nginx |

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{Request, Response, StatusCode, body::Incoming};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
        ToolAnnotations,
    },
    service::RequestContext,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolway_bench::{member, run, serve, text_member};

type Answer = Response<BoxBody<Bytes, Infallible>>;

type Service = StreamableHttpService<Tools, LocalSessionManager>;

/// The MCP servers that were asked for so far, by their path.
type Servers = Arc<Mutex<HashMap<String, Service>>>;

fn main() {
    run(async {
        let address = std::env::args().nth(1).ok_or("mock-server ADDRESS:PORT")?;
        let servers = Servers::default();
        serve(&address, move |request| answer(servers.clone(), request)).await
    });
}

async fn answer(servers: Servers, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    if let Some(rest) = path.strip_prefix("/mcp") {
        return match server(&servers, rest) {
            Some(service) => service.handle(request).await,
            None => plain(StatusCode::NOT_FOUND, Bytes::new()),
        };
    }
    let Ok(body) = request.into_body().collect().await else {
        return plain(StatusCode::BAD_REQUEST, Bytes::new());
    };
    let body = body.to_bytes();
    let answered = if path.starts_with("/functions/") {
        Some(body)
    } else if path == "/tool_calls" {
        respond_to_calls(&body)
    } else {
        path.strip_prefix("/rpc/")
            .and_then(|bytes| canned_result(&body, bytes.parse().ok()?))
    };
    match answered {
        Some(answered) => plain(StatusCode::OK, answered),
        None => plain(StatusCode::BAD_REQUEST, Bytes::new()),
    }
}

fn plain(status: StatusCode, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body).boxed());
    *response.status_mut() = status;
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert("content-type", json);
    response
}

// The HTTP API.

#[derive(Deserialize)]
struct Calls {
    tool_calls: Vec<Call>,
}

#[derive(Deserialize)]
struct Call {
    id: String,
    function: Called,
}

#[derive(Deserialize)]
struct Called {
    arguments: String,
}

#[derive(Deserialize)]
struct Echo {
    message: String,
}

#[derive(Serialize)]
struct Responses {
    tool_responses: Vec<ToolResponse>,
}

#[derive(Serialize)]
struct ToolResponse {
    tool_call_id: String,
    output: String,
}

fn respond_to_calls(body: &[u8]) -> Option<Bytes> {
    let calls: Calls = serde_json::from_slice(body).ok()?;
    let respond = |call: Call| {
        let Echo { message } = serde_json::from_str(&call.function.arguments).ok()?;
        Some(ToolResponse {
            tool_call_id: call.id,
            output: message,
        })
    };
    let tool_responses = calls
        .tool_calls
        .into_iter()
        .map(respond)
        .collect::<Option<_>>()?;
    serde_json::to_vec(&Responses { tool_responses })
        .ok()
        .map(Bytes::from)
}

/// A result with the request's id and message, filled up to `bytes`.
fn canned_result(body: &[u8], bytes: usize) -> Option<Bytes> {
    let id = member(body, "id")?;
    let digits = id.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let id = std::str::from_utf8(&id[..digits]).ok()?;
    let message = text_member(body, "message")?;
    let with = |filling: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{message}{filling}"}}]}}}}"#
        )
    };
    let missing = bytes.saturating_sub(with("").len());
    Some(Bytes::from(with(&"-".repeat(missing))))
}

// The MCP server.

/// The server at a path, made when it is first asked for.
fn server(servers: &Servers, rest: &str) -> Option<Service> {
    let mut servers = servers.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(service) = servers.get(rest) {
        return Some(service.clone());
    }
    let mut parts = rest.split('/').skip(1);
    let tools = Tools::new(
        parts.next().map_or(Ok(3), str::parse).ok()?,
        parts.next().map_or(Ok(0), str::parse).ok()?,
        parts.next() == Some("read-only"),
    );
    let service = StreamableHttpService::new(
        move || Ok(tools.clone()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    servers.insert(rest.to_owned(), service.clone());
    Some(service)
}

#[derive(Clone)]
struct Tools(Arc<[Tool]>);

impl Tools {
    /// The three that can be called, and as many made up ones as are missing.
    fn new(count: usize, more_bytes: usize, read_only: bool) -> Self {
        let callable = [
            (
                "echo",
                "Says what it is told",
                schema(&[("message", "string")]),
            ),
            (
                "add",
                "Adds two numbers",
                schema(&[("a", "number"), ("b", "number")]),
            ),
            (
                "slow",
                "Answers after a while",
                schema(&[("ms", "integer")]),
            ),
        ];
        let callable =
            callable.map(|(name, description, schema)| Tool::new(name, description, schema));
        let mut tools: Vec<_> = callable
            .into_iter()
            .chain((3..count).map(made_up))
            .take(count)
            .collect();
        for (at, tool) in tools.iter_mut().enumerate() {
            let share = more_bytes / count + usize::from(at < more_bytes % count);
            let description = tool.description.take().unwrap_or_default();
            tool.description = Some((description.into_owned() + &"-".repeat(share)).into());
            tool.annotations = read_only.then(|| ToolAnnotations::new().read_only(true));
        }
        Tools(tools.into())
    }
}

/// A tool of the size that tools have.
fn made_up(number: usize) -> Tool {
    let fields = [
        ("project", "string"),
        ("limit", "integer"),
        ("archived", "boolean"),
    ];
    Tool::new(
        format!("list_records_{number:04}"),
        format!(
            "Lists the records of kind {number} in a project, newest first, with their owners and states"
        ),
        schema(&fields),
    )
}

fn schema(fields: &[(&str, &str)]) -> JsonObject {
    let properties: JsonObject = fields
        .iter()
        .map(|(name, kind)| {
            (
                (*name).to_owned(),
                json!({"type": kind, "description": format!("The {name}")}),
            )
        })
        .collect();
    let required: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
    let schema = json!({"type": "object", "properties": properties, "required": required});
    schema.as_object().cloned().unwrap_or_default()
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.0.to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let text = call(&request.name, &arguments).await.ok_or_else(|| {
            let why = format!("there is no {} with these arguments", request.name);
            ErrorData::invalid_params(why, None)
        })?;
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

async fn call(name: &str, arguments: &JsonObject) -> Option<String> {
    match name {
        "echo" => arguments.get("message")?.as_str().map(str::to_owned),
        "add" => {
            let number = |name| arguments.get(name).and_then(Value::as_f64);
            Some((number("a")? + number("b")?).to_string())
        }
        "slow" => {
            let ms = arguments.get("ms")?.as_u64()?.min(60_000);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Some(format!("waited {ms} ms"))
        }
        _ => None,
    }
}
