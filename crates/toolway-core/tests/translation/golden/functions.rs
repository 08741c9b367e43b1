//! `golden/functions`: definitions, calls and answers of OpenAI-style functions, in both directions.
//!
//! A case has one of `definitions`, `calls` (with the `answer` or the `body` of the webhook), `output`,
//! `request`, `reply` and `stdout`; what comes out is in MCP's words.

use anyhow::{Context, Result, bail};
use http::Method;
use serde_json::{Value, json};
use toolway_core::translate::{
    functions::{
        command, definitions, output, reply,
        request::{RequestTemplate, parse_method},
        webhook::{self, WebhookCall},
    },
    results,
};
use toolway_protocol::tool::{Content, JsonObject, ToolResult};

use super::translate::{each, object, text};

#[test]
fn functions_are_as_written_down() -> Result<()> {
    each("functions", |given| {
        if let Some(document) = given.get("definitions") {
            return Ok(of_definitions(document));
        }
        if given.get("calls").is_some() {
            return of_calls(given);
        }
        if let Some(said) = given.get("output") {
            return Ok(to_mcp(&output::read(said.clone())));
        }
        if let Some(request) = given.get("request") {
            return of_request(request);
        }
        if let Some(answer) = given.get("reply") {
            let status = u16::try_from(answer["status"].as_u64().context("status")?)?;
            let (kind, body) = (text(&answer["content_type"])?, text(&answer["body"])?);
            return Ok(to_mcp(&reply::read(
                "weather",
                status,
                &kind,
                body.as_bytes(),
            )));
        }
        let stdout = text(&given["stdout"])?;
        Ok(to_mcp(&match given["ended"].as_str() {
            None => command::read_output("weather", stdout.into_bytes()),
            Some(ended) => {
                command::failure(ended, text(&given["stderr"])?.as_bytes(), stdout.as_bytes())
            }
        }))
    })
}

fn of_definitions(document: &Value) -> Value {
    let found = definitions::from_value(document);
    let tool = |tool: &toolway_protocol::tool::Tool| json!({"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema});
    json!({
        "tools": found.tools.iter().map(tool).collect::<Vec<_>>(),
        "faults": found.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn of_calls(given: &Value) -> Result<Value> {
    let calls = given["calls"].as_array().context("calls")?;
    let calls: Vec<(String, String, JsonObject)> = calls
        .iter()
        .map(|call| {
            Ok((
                text(&call["id"])?,
                text(&call["name"])?,
                object(&call["arguments"])?,
            ))
        })
        .collect::<Result<_>>()?;
    let call = |(id, name, arguments)| WebhookCall {
        id,
        name,
        arguments,
    };
    let calls: Vec<WebhookCall<'_>> = calls
        .iter()
        .map(|(id, name, it)| call((id, name, it)))
        .collect();
    let body = match (given.get("answer"), given.get("body")) {
        (Some(answer), None) => answer.to_string(),
        (None, Some(body)) => text(body)?,
        _ => bail!("a case has an `answer` or a `body`"),
    };
    let status = u16::try_from(given["status"].as_u64().unwrap_or(200))?;
    let ids: Vec<&str> = calls.iter().map(|call| call.id).collect();
    let answers = webhook::read_answers(status, body.as_bytes(), &ids);
    let outcomes = answers.outcomes.iter().map(|outcome| match outcome {
        Ok(result) => to_mcp(result),
        Err(fault) => json!({"fault": fault.to_string()}),
    });
    Ok(json!({
        "sent": serde_json::from_str::<Value>(&webhook::request(&calls))?,
        "outcomes": outcomes.collect::<Vec<_>>(),
        "strangers": answers.strangers,
    }))
}

fn of_request(given: &Value) -> Result<Value> {
    let method: Method = parse_method(&text(&given["method"])?).map_err(anyhow::Error::msg)?;
    let template = RequestTemplate::parse(&text(&given["template"])?, &method);
    let template = template.map_err(anyhow::Error::msg)?;
    let filled = template.fill(&text(&given["function"])?, object(&given["arguments"])?);
    Ok(match filled {
        Ok(request) => json!({
            "method": request.method.as_str(),
            "url": request.url.as_str(),
            "body": request.body,
        }),
        Err(error) => serde_json::from_str(&results::error_to_openai(&error))?,
    })
}

/// A result as `tools/call` has it.
fn to_mcp(result: &ToolResult) -> Value {
    let mut value = json!({"content": result.content.iter().map(block).collect::<Vec<_>>()});
    if let Some(structured) = &result.structured_content {
        value["structuredContent"] = structured.clone();
    }
    value["isError"] = result.is_error.into();
    value
}

fn block(block: &Content) -> Value {
    let mut value = match block {
        Content::Text(text) => json!({"type": "text", "text": text}),
        Content::Image { mime_type, data } => {
            json!({"type": "image", "mimeType": mime_type, "data": data})
        }
        Content::Audio { mime_type, data } => {
            json!({"type": "audio", "mimeType": mime_type, "data": data})
        }
        Content::TextResource {
            uri,
            mime_type,
            text,
        } => {
            json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": text}})
        }
        Content::BlobResource {
            uri,
            mime_type,
            blob,
        } => {
            json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "blob": blob}})
        }
        Content::ResourceLink {
            uri,
            name,
            description,
            mime_type,
        } => {
            json!({"type": "resource_link", "uri": uri, "name": name, "description": description, "mimeType": mime_type})
        }
        Content::Unknown(value) => json!({"unknown": value}),
    };
    for part in ["", "/resource"] {
        if let Some(members) = value.pointer_mut(part).and_then(Value::as_object_mut) {
            members.retain(|_, member| !member.is_null());
        }
    }
    value
}
