//! From one version of MCP to another: a new server for an old client, an old server for a new client.
//!
//! Everything here takes what a server said, in whatever version, and gives what a client of `version` can read.
//! Unknown members are kept; what a client's version has no words for is said in older words, and never
//! silently lost.

use serde_json::{Map, Value, json};

use toolway_protocol::{
    mcp::{
        results,
        rpc::{RpcError, code},
        version::Version,
    },
    tool::JsonObject,
};

mod block;

pub use self::block::fit_block;

/// Longest time, in milliseconds, for which a client may use a list or a resource without asking again.
///
/// Changes are announced, but on one connection only; a client that does not listen should look again soon.
const TTL_MS: u64 = 5_000;

/// A tool as it is listed, for clients of this version.
pub fn fit_tool(mut tool: JsonObject, version: Version) -> JsonObject {
    // Tasks are not carried (2025-11-25, `execution.taskSupport`).
    tool.shift_remove("execution");
    if let Some(Value::Object(schema)) = tool.get_mut("inputSchema") {
        // Old clients want it said.
        schema.entry("type").or_insert_with(|| json!("object"));
    }
    let has_output = version >= Version::V2025_06_18;
    let output_may_be_anything = version >= Version::V2026_07_28;
    let output_is_object = tool
        .get("outputSchema")
        .is_some_and(|schema| schema.get("type") == Some(&json!("object")));
    if !(has_output && (output_is_object || output_may_be_anything)) {
        tool.shift_remove("outputSchema");
    }
    if version < Version::V2025_06_18 {
        drop_title(&mut tool);
    }
    tool
}

/// A title where there was none yet: the description says it in its place, if there is no other.
fn drop_title(entry: &mut JsonObject) {
    if let Some(title) = entry.shift_remove("title").filter(Value::is_string) {
        entry.entry("description").or_insert(title);
    }
}

/// A prompt, resource or template as it is listed.
pub fn fit_entry(mut entry: JsonObject, version: Version) -> JsonObject {
    if version < Version::V2025_06_18 {
        drop_title(&mut entry);
    }
    entry
}

/// The result of a `tools/call`.
///
/// The outcome is always a `CallToolResult` with a `content` array, whatever the server sent.
pub fn fit_call(raw: Value, version: Version) -> Value {
    let mut result = match raw {
        Value::Object(result)
            if result.contains_key("content") || result.contains_key("structuredContent") =>
        {
            result
        }
        other => match results::write_result(results::read_result(other)) {
            Value::Object(result) => result,
            _ => Map::new(),
        },
    };
    let mut content = match result.get_mut("content").map(Value::take) {
        Some(Value::Array(content)) => content,
        None | Some(Value::Null) => Vec::new(),
        Some(one) => vec![one],
    };
    content = content
        .into_iter()
        .map(|block| fit_block(block, version))
        .collect();
    // Some servers write every absent member as null.
    if result.get("structuredContent") == Some(&Value::Null)
        && (!content.is_empty() || version < Version::V2026_07_28)
    {
        result.shift_remove("structuredContent");
    }
    if let Some(structured) = result.get("structuredContent") {
        let is_known = version >= Version::V2026_07_28
            || (version >= Version::V2025_06_18 && structured.is_object());
        if content.is_empty() || !(is_known || has_text(&content)) {
            content.push(json!({"type": "text", "text": structured.to_string()}));
        }
        if !is_known {
            result.shift_remove("structuredContent");
        }
    }
    if !matches!(result.get("isError"), None | Some(Value::Bool(_))) {
        result.shift_remove("isError");
    }
    let content = Value::Array(content);
    match result.iter_mut().next() {
        Some((first, place)) if first == "content" => *place = content,
        _ => {
            result.shift_remove("content");
            result.shift_insert(0, "content".to_owned(), content);
        }
    }
    complete(Value::Object(result), version)
}

fn has_text(content: &[Value]) -> bool {
    content.iter().any(|block| block["type"] == "text")
}

/// The result of a `prompts/get`.
pub fn fit_prompt(mut raw: Value, version: Version) -> Value {
    if let Some(Value::Array(messages)) = raw.get_mut("messages") {
        let each = std::mem::take(messages).into_iter();
        *messages = each
            .flat_map(one_block_each)
            .map(|mut message| {
                if let Some(content) = message.get_mut("content") {
                    *content = fit_block(content.take(), version);
                }
                message
            })
            .collect();
    }
    complete(raw, version)
}

/// A message has one block of content. Some servers send a list of them, as models take them.
fn one_block_each(mut message: Value) -> Vec<Value> {
    match message.get_mut("content").map(Value::take) {
        Some(Value::Array(blocks)) => {
            let with = |block| {
                let mut one = message.clone();
                one["content"] = block;
                one
            };
            blocks.into_iter().map(with).collect()
        }
        Some(block) => {
            message["content"] = block;
            vec![message]
        }
        None => vec![message],
    }
}

/// Any other result, such as that of a `completion/complete`.
pub fn complete(mut raw: Value, version: Version) -> Value {
    let Value::Object(result) = &mut raw else {
        return complete(json!({}), version);
    };
    if version < Version::V2026_07_28 {
        result.shift_remove("resultType");
    } else if !result.get("resultType").is_some_and(Value::is_string) {
        result.insert("resultType".to_owned(), json!("complete"));
    }
    raw
}

/// The result of a list or of a `resources/read`, with how long it may be kept (2026-07-28, "Caching").
pub fn cacheable(raw: Value, version: Version) -> Value {
    let mut raw = complete(raw, version);
    if let Value::Object(result) = &mut raw {
        if version < Version::V2026_07_28 {
            result.shift_remove("ttlMs");
            result.shift_remove("cacheScope");
        } else {
            if !result.get("ttlMs").is_some_and(Value::is_u64) {
                result.insert("ttlMs".to_owned(), json!(TTL_MS));
            }
            if !result.get("cacheScope").is_some_and(Value::is_string) {
                result.insert("cacheScope".to_owned(), json!("private"));
            }
        }
    }
    raw
}

/// An error of a server: a resource that is not there has another code since 2026-07-28. And what such a server finds
/// wrong with headers and version is between it and toolway; the client would take it for its own fault.
pub fn fit_error(error: RpcError, version: Version) -> RpcError {
    let code = match error.code {
        code::RESOURCE_NOT_FOUND if !version.has_handshake() => code::INVALID_PARAMS,
        code::HEADER_MISMATCH | code::UNSUPPORTED_VERSION if !version.has_handshake() => {
            code::INTERNAL_ERROR
        }
        other => other,
    };
    RpcError { code, ..error }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use super::*;

    #[track_caller]
    fn check_call(raw: Value, version: Version, expected: Value) {
        assert_eq!(fit_call(raw, version), expected);
    }

    #[track_caller]
    fn check_tool(tool: Value, version: Version, expected: Value) {
        let Value::Object(tool) = tool else {
            panic!("a tool is an object")
        };
        assert_eq!(Value::Object(fit_tool(tool, version)), expected);
    }

    #[test]
    fn what_nobody_knows_is_kept() {
        let raw = json!({"content": [{"type": "text", "text": "x", "y": 1}], "_meta": {"a": 1}, "z": [2]});
        check_call(raw.clone(), Version::V2025_11_25, raw.clone());
        let mut modern = raw.clone();
        modern["resultType"] = json!("complete");
        check_call(raw, Version::V2026_07_28, modern.clone());
        check_call(modern.clone(), Version::V2026_07_28, modern);
    }

    #[test]
    fn structured_content_that_a_version_does_not_know_becomes_text() {
        let raw = json!({"structuredContent": [1, 2]});
        let text = json!([{"type": "text", "text": "[1,2]"}]);
        check_call(raw.clone(), Version::V2025_11_25, json!({"content": text}));
        check_call(
            raw,
            Version::V2026_07_28,
            json!({"content": text, "structuredContent": [1, 2], "resultType": "complete"}),
        );
        let raw =
            json!({"content": [{"type": "text", "text": "one"}], "structuredContent": {"a": 1}});
        check_call(raw.clone(), Version::V2025_06_18, raw.clone());
        check_call(
            raw,
            Version::V2025_03_26,
            json!({"content": [{"type": "text", "text": "one"}]}),
        );
    }

    #[test]
    fn a_result_of_another_shape_becomes_content() {
        let text = |text: &str| json!({"content": [{"type": "text", "text": text}]});
        check_call(json!("hi"), Version::V2025_11_25, text("hi"));
        check_call(json!({"toolResult": 5}), Version::V2025_03_26, text("5"));
        check_call(json!(null), Version::V2025_11_25, json!({"content": []}));
        check_call(
            json!({"content": "hi", "isError": 1}),
            Version::V2025_11_25,
            text("hi"),
        );
    }

    #[test]
    fn an_output_schema_that_is_no_object_is_for_those_who_know_it() {
        let tool = |more: Value| {
            let mut tool = json!({"name": "t", "inputSchema": {"type": "object"}});
            if let (Value::Object(tool), Value::Object(more)) = (&mut tool, more) {
                tool.extend(more);
            }
            tool
        };
        let array = tool(json!({"outputSchema": {"type": "array"}}));
        check_tool(array.clone(), Version::V2026_07_28, array.clone());
        check_tool(array, Version::V2025_11_25, tool(json!({})));
        let object = tool(json!({"outputSchema": {"type": "object"}, "icons": [1]}));
        check_tool(object.clone(), Version::V2025_06_18, object.clone());
        check_tool(object, Version::V2025_03_26, tool(json!({"icons": [1]})));
    }

    #[test]
    fn a_title_is_a_description_where_there_were_no_titles() {
        check_tool(
            json!({"name": "t", "title": "T", "inputSchema": {}, "execution": {"taskSupport": "required"}}),
            Version::V2024_11_05,
            json!({"name": "t", "inputSchema": {"type": "object"}, "description": "T"}),
        );
    }

    #[test]
    fn what_a_server_has_against_toolway_is_not_the_fault_of_the_client() {
        let check = |given, version, expected| {
            let fitted = fit_error(RpcError::new(given, "why"), version);
            assert_eq!((fitted.code, fitted.message.as_str()), (expected, "why"));
        };
        for given in [code::HEADER_MISMATCH, code::UNSUPPORTED_VERSION] {
            check(given, Version::V2026_07_28, code::INTERNAL_ERROR);
            // Before that version the number is nobody's, and the server's own.
            check(given, Version::V2025_11_25, given);
        }
        let lacking = code::MISSING_CLIENT_CAPABILITY;
        check(lacking, Version::V2026_07_28, lacking);
    }

    #[test]
    fn lists_say_how_long_they_last_to_those_who_ask_again() {
        assert_eq!(
            cacheable(json!({"tools": []}), Version::V2026_07_28),
            json!({"tools": [], "resultType": "complete", "ttlMs": TTL_MS, "cacheScope": "private"})
        );
        let said =
            json!({"contents": [], "ttlMs": 7, "cacheScope": "public", "resultType": "complete"});
        assert_eq!(cacheable(said.clone(), Version::V2026_07_28), said);
        assert_eq!(
            cacheable(said, Version::V2025_11_25),
            json!({"contents": []})
        );
    }
}
