//! The tools that the scenarios call. Those that ask the client something are in [`questions`].

mod questions;

use std::time::Duration;

use rmcp::{
    ErrorData,
    model::{
        CallToolRequestParams, CallToolResponse, LoggingLevel, LoggingMessageNotificationParam,
        ProgressNotificationParam, Tool,
    },
};
use serde_json::{Value, json};

use crate::{
    Change, Context, Fixture, asking,
    resources::{PNG, WAV},
    text, typed, whole,
};

/// A pause between two things that a client should see apart.
const PAUSE: Duration = Duration::from_millis(50);

const PLAIN: [&str; 13] = [
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_tool_with_logging",
    "test_logging_tool",
    "test_error_handling",
    "test_tool_with_progress",
    "test_reconnection",
    "test_missing_capability",
    "test_trigger_tool_change",
    "test_trigger_prompt_change",
];

pub(crate) fn list(extra: bool) -> Vec<Tool> {
    let nothing = || json!({"type": "object", "properties": {}});
    let mut tools: Vec<Value> = PLAIN
        .iter()
        .chain(&questions::NAMES)
        .map(|name| tool(name, nothing()))
        .collect();
    let needs = |name: &str, schema: Value| json!({"type": "object", "properties": {name: schema}, "required": [name]});
    tools.push(tool(
        "test_sampling",
        needs("prompt", json!({"type": "string"})),
    ));
    tools.push(tool(
        "test_elicitation",
        needs("message", json!({"type": "string"})),
    ));
    tools.push(tool(
        "test_custom_header",
        needs(
            "region",
            json!({"type": "string", "x-mcp-header": "Region"}),
        ),
    ));
    tools.push(tool("json_schema_2020_12_tool", schema_2020_12()));
    if extra {
        tools.push(tool("test_extra_tool", nothing()));
    }
    typed(json!(tools))
}

fn tool(name: &str, input_schema: Value) -> Value {
    json!({"name": name, "description": format!("The tool {name}."), "inputSchema": input_schema})
}

/// A schema with the words that a careless server in the middle would lose.
fn schema_2020_12() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}

/// # Errors
///
/// Invalid parameters, for an unknown tool; whatever asking the client brings.
pub(crate) async fn call(
    fixture: &Fixture,
    request: CallToolRequestParams,
    context: Context,
) -> Result<CallToolResponse, ErrorData> {
    if let Some(response) = questions::call(fixture, &request, &context).await? {
        return Ok(response);
    }
    let result = match request.name.as_ref() {
        "test_simple_text" => text("This is a simple text response for testing."),
        "test_image_content" => contents(&[image()]),
        "test_audio_content" => {
            contents(&[json!({"type": "audio", "data": WAV, "mimeType": "audio/wav"})])
        }
        "test_embedded_resource" => contents(&[resource(
            "test://embedded-resource",
            "text/plain",
            "This is an embedded resource content.",
        )]),
        "test_multiple_content_types" => contents(&[
            json!({"type": "text", "text": "Multiple content types test:"}),
            image(),
            resource(
                "test://mixed-content-resource",
                "application/json",
                r#"{"test":"data","value":123}"#,
            ),
        ]),
        "test_tool_with_logging" | "test_logging_tool" => {
            log_three_times(&context).await;
            text("Said three things.")
        }
        "test_error_handling" => {
            let mut result = text("This tool intentionally returns an error for testing");
            result["isError"] = json!(true);
            result
        }
        "test_tool_with_progress" => {
            progress(&context).await;
            text("Done.")
        }
        "test_reconnection" => {
            tokio::time::sleep(2 * PAUSE).await;
            text("Reconnection test completed successfully")
        }
        "test_missing_capability" => return missing_capability(&context),
        "test_trigger_tool_change" => {
            fixture.change(Change::Tools);
            text("The list of tools changed.")
        }
        "test_trigger_prompt_change" => {
            fixture.change(Change::Prompts);
            text("The list of prompts changed.")
        }
        "test_custom_header" | "json_schema_2020_12_tool" | "test_extra_tool" => {
            text(&json!(request.arguments).to_string())
        }
        name => {
            let why = format!("no tool is named `{name}`");
            return Err(ErrorData::invalid_params(why, None));
        }
    };
    Ok(CallToolResponse::Complete(whole(result)))
}

fn contents(contents: &[Value]) -> Value {
    json!({"content": contents})
}

fn image() -> Value {
    json!({"type": "image", "data": PNG, "mimeType": "image/png"})
}

fn resource(uri: &str, mime_type: &str, text: &str) -> Value {
    json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": text}})
}

/// From 2026-07-28 on a request says whether it wants to hear of anything.
async fn log_three_times(context: &Context) {
    let wanted = !asking::is_modern(context) || context.meta.log_level().is_some();
    for said in [
        "Tool execution started",
        "Tool processing data",
        "Tool execution completed",
    ] {
        if wanted {
            let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(said));
            let _client_gone = context.peer.notify_logging_message(message).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn progress(context: &Context) {
    let token = context.meta.get_progress_token();
    for done in [0.0, 50.0, 100.0] {
        if let Some(token) = token.clone() {
            let progress = ProgressNotificationParam::new(token, done).with_total(100.0);
            let _client_gone = context.peer.notify_progress(progress).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Does what a server must do that cannot go on without the client's model.
fn missing_capability(context: &Context) -> Result<CallToolResponse, ErrorData> {
    let capabilities = context.client_capabilities().unwrap_or_default();
    if capabilities.sampling.is_none() {
        let needed = typed(json!({"sampling": {}}));
        return Err(ErrorData::missing_required_client_capability(needed));
    }
    Ok(CallToolResponse::Complete(whole(text(
        "The client can sample.",
    ))))
}
