//! `golden/openapi`: a document becomes tools, and arguments become requests.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use toolway_core::translate::openapi::{self, Fixed, HttpRequest, Operation};
use toolway_protocol::tool::Annotations;

use super::translate::{each, object, text};

#[test]
fn openapi_documents_are_as_written_down() -> Result<()> {
    each("openapi", |given| {
        let document = match given.get("yaml") {
            Some(lines) => openapi::parse(&joined(lines)?).map_err(anyhow::Error::msg)?,
            None => given["document"].clone(),
        };
        let headers = given["headers"].as_array().into_iter().flatten();
        let fixed = Fixed {
            base_url: given["base_url"].as_str().map(str::to_owned),
            headers: headers.map(text).collect::<Result<_>>()?,
        };
        let api = match openapi::read(&document, &fixed) {
            Ok(api) => api,
            Err(refusal) => return Ok(json!({"refused": refusal.to_string()})),
        };
        let base = api.base_url.as_deref().unwrap_or("https://unknown.example");
        let skipped = api.skipped.iter();
        let skipped: Vec<Value> = skipped
            .map(|it| json!({"place": it.place, "reason": it.reason}))
            .collect();
        let mut out = json!({
            "title": api.title,
            "base_url": api.base_url,
            "tools": api.operations.iter().map(tool).collect::<Vec<Value>>(),
        });
        if !skipped.is_empty() {
            out["skipped"] = skipped.into();
        }
        let calls = given["calls"].as_array().into_iter().flatten();
        let requests = calls.map(|call| {
            let name = text(&call[0])?;
            let operation = api.operations.iter().find(|it| it.tool.name == name);
            let plan = &operation.with_context(|| format!("no tool {name}"))?.plan;
            Ok(match plan.request(&object(&call[1])?) {
                Ok(request) => sent(&request, base),
                Err(error) => json!({"error": error.to_string()}),
            })
        });
        let requests = requests.collect::<Result<Vec<Value>>>()?;
        if !requests.is_empty() {
            out["requests"] = requests.into();
        }
        Ok(out)
    })
}

fn joined(lines: &Value) -> Result<String> {
    let lines = lines.as_array().context("yaml is a list of lines")?;
    let lines: Vec<String> = lines.iter().map(text).collect::<Result<_>>()?;
    Ok(lines.join("\n"))
}

fn tool(operation: &Operation) -> Value {
    let tool = &operation.tool;
    let mut out = json!({
        "place": operation.place,
        "name": tool.name,
        "description": tool.description,
        "hints": hints(tool.annotations),
        "inputSchema": tool.input_schema,
    });
    if let Some(title) = &tool.title {
        out["title"] = title.as_str().into();
    }
    out
}

fn hints(annotations: Annotations) -> String {
    let hints = [
        ("read-only", annotations.read_only),
        ("idempotent", annotations.idempotent),
        ("destructive", annotations.destructive),
    ];
    let said: Vec<&str> = hints
        .iter()
        .filter(|it| it.1 == Some(true))
        .map(|it| it.0)
        .collect();
    said.join(", ")
}

fn sent(request: &HttpRequest, base: &str) -> Value {
    let mut out = json!({"line": format!("{} {}", request.method, request.url(base))});
    for (name, value) in &request.headers {
        out["headers"][name] = value.as_str().into();
    }
    if let Some(body) = &request.body {
        out["content_type"] = body.content_type.as_str().into();
        out["body"] = String::from_utf8_lossy(&body.bytes).into();
    }
    out
}
