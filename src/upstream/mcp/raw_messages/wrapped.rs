//! Raw results on their way through rmcp's client for Streamable HTTP.
//!
//! An answer in a stream passes through rmcp's parser as text, so a raw result travels as a JSON *string* there, which no
//! model of rmcp's takes for its own; [`unwrap`] undoes it.

use rmcp::model::{CustomResult, ServerJsonRpcMessage, ServerResult};
use serde_json::{Value, json};

/// Marks a raw result that travels as a string.
const RAW: &str = "toolway-raw:";

/// The result as the server sent it.
pub(in crate::upstream::mcp) fn unwrap(result: ServerResult) -> Value {
    match result {
        ServerResult::CustomResult(CustomResult(Value::String(text))) => {
            let raw = text
                .strip_prefix(RAW)
                .and_then(|raw| serde_json::from_str(raw).ok());
            raw.unwrap_or(Value::String(text))
        }
        ServerResult::CustomResult(CustomResult(raw)) => raw,
        ServerResult::ListToolsResult(mut list) => {
            let raw = list.meta.as_mut().and_then(|meta| meta.0.remove(RAW));
            raw.unwrap_or_else(|| serde_json::to_value(list).unwrap_or_default())
        }
        typed => serde_json::to_value(typed).unwrap_or_default(),
    }
}

/// Readies a raw result for rmcp's client, which wants to see the tools whose arguments travel as headers too
/// (2026-07-28, `x-mcp-header`). Everything else is hidden from it.
fn wrap(raw: &Value) -> Value {
    let names_headers =
        |tool: &&Value| tool["inputSchema"].to_string().contains("\"x-mcp-header\"");
    let tools: Vec<_> = raw["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(names_headers)
        .filter(|tool| tool["name"].is_string() && tool["inputSchema"].is_object())
        .map(|tool| json!({"name": tool["name"], "inputSchema": tool["inputSchema"]}))
        .collect();
    if tools.is_empty() {
        return Value::String(format!("{RAW}{raw}"));
    }
    json!({"tools": tools, "_meta": {RAW: raw}})
}

/// Readies an answer for rmcp.
pub(in crate::upstream::mcp) fn wrap_message(
    message: ServerJsonRpcMessage,
) -> ServerJsonRpcMessage {
    match message {
        ServerJsonRpcMessage::Response(mut response) => {
            if let ServerResult::CustomResult(CustomResult(raw)) = response.result {
                let wrapped = wrap(&raw);
                response.result = serde_json::from_value(wrapped.clone())
                    .unwrap_or(ServerResult::CustomResult(CustomResult(wrapped)));
            }
            ServerJsonRpcMessage::Response(response)
        }
        other => other,
    }
}

/// The answer, readied for rmcp, shows it tools whose arguments travel as headers.
pub(in crate::upstream::mcp) fn shows_header_arguments(message: &ServerJsonRpcMessage) -> bool {
    matches!(message, ServerJsonRpcMessage::Response(response)
        if matches!(response.result, ServerResult::ListToolsResult(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through_rmcp(raw: &Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": 1, "result": wrap(raw)});
        let message: ServerJsonRpcMessage = serde_json::from_value(message).unwrap();
        match message {
            ServerJsonRpcMessage::Response(response) => unwrap(response.result),
            other => panic!("not a response: {other:?}"),
        }
    }

    #[test]
    fn a_raw_result_passes_rmcps_models_unchanged() {
        for raw in [
            json!({"content": [{"type": "text", "text": "x", "new": 1}], "isError": false, "y": null}),
            json!({"tools": [{"name": "a"}, {"name": "b", "inputSchema": true}], "ttlMs": 5}),
            json!({}),
            json!("a text"),
            json!("5"),
            json!(null),
            json!([1, {"a": 2.0}]),
        ] {
            assert_eq!(through_rmcp(&raw), raw);
        }
    }

    #[test]
    fn a_list_with_header_arguments_is_seen_by_rmcp_and_comes_back_unchanged() {
        let schema = json!({"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "Region"}}});
        let raw = json!({"tools": [{"name": "a", "inputSchema": schema}, {"name": "b"}], "_meta": {"z": 1}, "nextCursor": "2"});
        let typed: ServerResult = serde_json::from_value(wrap(&raw)).unwrap();
        assert!(matches!(&typed, ServerResult::ListToolsResult(list) if list.tools.len() == 1));
        assert_eq!(through_rmcp(&raw), raw);
    }
}
