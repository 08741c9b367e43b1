//! The demo's MCP server: three small tools over standard input and output, built with rmcp.

use std::{borrow::Cow, sync::Arc, time::Duration};

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
        PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
        ToolAnnotations,
    },
    service::RequestContext,
    transport::stdio,
};
use serde_json::{Value, json};

use toolway_protocol::tool::JsonObject;

/// Serves until standard input ends.
///
/// # Errors
/// When the client does not speak MCP.
pub(crate) async fn run() -> anyhow::Result<()> {
    let running = DemoServer.serve(stdio()).await?;
    running.waiting().await?;
    Ok(())
}

struct DemoServer;

impl ServerHandler for DemoServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let text = match &*request.name {
            "multiply" => multiply(&arguments),
            "count_letters" => count_letters(&arguments),
            "wait" => return Ok(success(wait(&arguments, &context).await).into()),
            other => {
                let message = Cow::Owned(format!("there is no tool `{other}`"));
                return Err(ErrorData::invalid_params(message, None));
            }
        };
        let failed =
            || CallToolResult::error(vec![ContentBlock::text("these arguments make no sense")]);
        Ok(text.map_or_else(failed, success).into())
    }
}

fn success(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn tools() -> Vec<Tool> {
    let number = json!({"type": "number"});
    let tool = |name: &'static str, about: &'static str, properties: Value, required: &[&str]| {
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let schema = schema.as_object().cloned().unwrap_or_default();
        Tool::new(name, about, Arc::new(schema))
            .with_annotations(ToolAnnotations::new().read_only(true))
    };
    vec![
        tool(
            "multiply",
            "Multiplies two numbers.",
            json!({"a": number, "b": number}),
            &["a", "b"],
        ),
        tool(
            "count_letters",
            "Counts the letters of a text.",
            json!({"text": {"type": "string"}}),
            &["text"],
        ),
        tool(
            "wait",
            "Waits, and says how far it has come.",
            json!({"seconds": {"type": "number", "minimum": 0, "maximum": 60}}),
            &["seconds"],
        ),
    ]
}

fn multiply(arguments: &JsonObject) -> Option<String> {
    let factor = |name: &str| arguments.get(name)?.as_f64();
    Some((factor("a")? * factor("b")?).to_string())
}

fn count_letters(arguments: &JsonObject) -> Option<String> {
    let text = arguments.get("text")?.as_str()?;
    Some(
        text.chars()
            .filter(|c| c.is_alphabetic())
            .count()
            .to_string(),
    )
}

async fn wait(arguments: &JsonObject, context: &RequestContext<RoleServer>) -> String {
    let seconds = arguments
        .get("seconds")
        .and_then(Value::as_f64)
        .unwrap_or(1.0)
        .clamp(0.0, 60.0);
    let steps = (seconds * 2.0).ceil().max(1.0);
    let step = Duration::from_secs_f64(seconds / steps);
    let mut done = 0.0;
    while done < steps {
        tokio::select! {
            () = context.ct.cancelled() => return "cancelled".to_owned(),
            () = tokio::time::sleep(step) => done += 1.0,
        }
        if let Some(token) = context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, done).with_total(steps);
            // A client that does not listen loses nothing but the report.
            let _ = context.peer.notify_progress(progress).await;
        }
    }
    format!("waited {seconds} s")
}
