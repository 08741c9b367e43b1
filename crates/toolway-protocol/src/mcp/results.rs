//! What a tool answers: `CallToolResult`, block by block.
//!
//! **Invariant:** reading never fails. A block of an unknown kind, or one that lacks what its kind needs, is kept
//! as it came in [`Content::Unknown`].

use serde_json::{Map, Value, json};

use crate::tool::{CacheHint, Content, JsonObject, ToolResult};

/// Reads the `result` of a `tools/call`.
pub fn read_result(raw: Value) -> ToolResult {
    let mut object = match raw {
        Value::Object(object) => object,
        Value::Null => return ToolResult::default(),
        other => {
            return ToolResult {
                content: vec![read_block(other)],
                ..ToolResult::default()
            };
        }
    };
    let meta = object.get_mut("_meta").and_then(Value::as_object_mut);
    let state_delta = meta.and_then(|meta| meta.remove("state_delta"));
    let ttl = object.get("ttlMs").and_then(Value::as_u64);
    let cache_hint = ttl.map(|ttl_ms| CacheHint {
        ttl_ms,
        is_public: object.get("cacheScope").is_some_and(|it| it == "public"),
    });
    let content = object.remove("content");
    let structured = object.remove("structuredContent");
    let is_error = object
        .get("isError")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    if content.is_none() && structured.is_none() {
        return read_other_shape(object, is_error);
    }
    let content = read_blocks(content.unwrap_or(Value::Null));
    // Some servers write every absent member as null; the blocks say it already.
    let structured_content = structured.filter(|value| !value.is_null() || content.is_empty());
    ToolResult {
        content,
        structured_content,
        is_error,
        state_delta,
        cache_hint,
    }
}

/// Writes a result as the `result` of a `tools/call`. What [`read_result`] read comes out as the same.
pub fn write_result(result: ToolResult) -> Value {
    let content = result.content.into_iter().map(write_block).collect();
    let mut object = Map::new();
    object.insert("content".to_owned(), Value::Array(content));
    if let Some(structured) = result.structured_content {
        object.insert("structuredContent".to_owned(), structured);
    }
    if result.is_error {
        object.insert("isError".to_owned(), Value::Bool(true));
    }
    Value::Object(object)
}

fn write_block(block: Content) -> Value {
    match block {
        Content::Text(text) => write_object("text", [("text", Some(text))]),
        Content::Image { mime_type, data } => write_object(
            "image",
            [("data", Some(data)), ("mimeType", Some(mime_type))],
        ),
        Content::Audio { mime_type, data } => write_object(
            "audio",
            [("data", Some(data)), ("mimeType", Some(mime_type))],
        ),
        Content::TextResource {
            uri,
            mime_type,
            text,
        } => {
            json!({"type": "resource", "resource": resource(&uri, mime_type, "text", text)})
        }
        Content::BlobResource {
            uri,
            mime_type,
            blob,
        } => {
            json!({"type": "resource", "resource": resource(&uri, mime_type, "blob", blob)})
        }
        Content::ResourceLink {
            uri,
            name,
            description,
            mime_type,
        } => write_object(
            "resource_link",
            [
                ("uri", Some(uri)),
                ("name", Some(name)),
                ("description", description),
                ("mimeType", mime_type),
            ],
        ),
        Content::Unknown(block) => block,
    }
}

/// A block of this type with those of the members that are there.
fn write_object<const N: usize>(kind: &str, members: [(&str, Option<String>); N]) -> Value {
    let mut object = Map::with_capacity(N + 1);
    object.insert("type".to_owned(), kind.into());
    for (name, value) in members {
        if let Some(value) = value {
            object.insert(name.to_owned(), value.into());
        }
    }
    Value::Object(object)
}

fn resource(uri: &str, mime_type: Option<String>, body: &str, text: String) -> Value {
    let mut resource = json!({"uri": uri});
    if let Some(mime_type) = mime_type {
        resource["mimeType"] = mime_type.into();
    }
    resource[body] = text.into();
    resource
}

/// The server wants something from the user before it answers (2026-07-28, `resultType`). toolway offers no
/// such capability, so no server should ask.
pub fn asks_for_input(raw: &Value) -> bool {
    raw.get("resultType").and_then(Value::as_str) == Some("input_required")
}

/// A result without `content`: the `toolResult` of before 2024-11-05, or something unheard of.
fn read_other_shape(mut object: JsonObject, is_error: bool) -> ToolResult {
    if let Some(legacy) = object.remove("toolResult") {
        return ToolResult {
            structured_content: Some(legacy),
            is_error,
            ..ToolResult::default()
        };
    }
    let says_something = object
        .keys()
        .any(|key| !matches!(key.as_str(), "isError" | "_meta" | "resultType"));
    let content = if says_something {
        vec![Content::Unknown(Value::Object(object))]
    } else {
        Vec::new()
    };
    ToolResult {
        content,
        is_error,
        ..ToolResult::default()
    }
}

fn read_blocks(content: Value) -> Vec<Content> {
    match content {
        Value::Null => Vec::new(),
        Value::Array(blocks) => blocks.into_iter().map(read_block).collect(),
        single => vec![read_block(single)],
    }
}

fn read_block(block: Value) -> Content {
    if let Value::String(text) = block {
        return Content::Text(text);
    }
    known_block(&block).unwrap_or(Content::Unknown(block))
}

fn known_block(block: &Value) -> Option<Content> {
    match block.get("type")?.as_str()? {
        "text" => Some(Content::Text(text(block, "text")?)),
        "image" => Some(Content::Image {
            mime_type: text(block, "mimeType").unwrap_or_else(|| "image/png".to_owned()),
            data: base64(block, "data")?,
        }),
        "audio" => Some(Content::Audio {
            mime_type: text(block, "mimeType").unwrap_or_else(|| "audio/wav".to_owned()),
            data: base64(block, "data")?,
        }),
        "resource" => read_resource(block.get("resource")?),
        "resource_link" => {
            let uri = text(block, "uri")?;
            Some(Content::ResourceLink {
                name: text(block, "name").unwrap_or_else(|| uri.clone()),
                description: text(block, "description"),
                mime_type: text(block, "mimeType"),
                uri,
            })
        }
        _ => None,
    }
}

fn read_resource(resource: &Value) -> Option<Content> {
    let uri = text(resource, "uri")?;
    let mime_type = text(resource, "mimeType");
    if let Some(text) = text(resource, "text") {
        return Some(Content::TextResource {
            uri,
            mime_type,
            text,
        });
    }
    Some(Content::BlobResource {
        uri,
        mime_type,
        blob: base64(resource, "blob")?,
    })
}

fn text(value: &Value, name: &str) -> Option<String> {
    value.get(name)?.as_str().map(str::to_owned)
}

/// Base64 without the line breaks that some encoders put in.
fn base64(value: &Value, name: &str) -> Option<String> {
    let mut data = text(value, name)?;
    if data.contains(|c: char| c.is_ascii_whitespace()) {
        data.retain(|c| !c.is_ascii_whitespace());
    }
    Some(data)
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_block(block: Value, expected: Content) {
        assert_eq!(
            read_result(json!({ "content": [block] })).content,
            [expected]
        );
    }

    #[track_caller]
    fn check_unknown(block: Value) {
        check_block(block.clone(), Content::Unknown(block));
    }

    #[test]
    fn every_kind_of_block_is_read() {
        check_block(
            json!({"type": "text", "text": "hi"}),
            Content::Text("hi".into()),
        );
        check_block(
            json!({"type": "image", "mimeType": "image/gif", "data": "QUJD"}),
            Content::Image {
                mime_type: "image/gif".into(),
                data: "QUJD".into(),
            },
        );
        check_block(
            json!({"type": "audio", "mimeType": "audio/mp3", "data": "QUJD"}),
            Content::Audio {
                mime_type: "audio/mp3".into(),
                data: "QUJD".into(),
            },
        );
        check_block(
            json!({"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/css", "text": "x"}}),
            Content::TextResource {
                uri: "a:b".into(),
                mime_type: Some("text/css".into()),
                text: "x".into(),
            },
        );
        check_block(
            json!({"type": "resource", "resource": {"uri": "a:b", "blob": "QUJD"}}),
            Content::BlobResource {
                uri: "a:b".into(),
                mime_type: None,
                blob: "QUJD".into(),
            },
        );
        check_block(
            json!({"type": "resource_link", "uri": "a:b", "name": "n", "description": "d"}),
            Content::ResourceLink {
                uri: "a:b".into(),
                name: "n".into(),
                description: Some("d".into()),
                mime_type: None,
            },
        );
    }

    #[test]
    fn an_unknown_or_incomplete_block_is_kept_as_it_came() {
        check_unknown(json!({"type": "video", "data": "QUJD"}));
        check_unknown(json!({"type": "text"}));
        check_unknown(json!({"type": "text", "text": 5}));
        check_unknown(json!({"type": "image", "mimeType": "image/png"}));
        check_unknown(json!({"type": "resource", "resource": {"uri": "a:b"}}));
        check_unknown(json!({"text": "no type"}));
        check_unknown(json!(5));
    }

    #[test]
    fn a_block_with_unknown_annotations_is_still_read() {
        check_block(
            json!({"type": "text", "text": "x", "annotations": {"audience": ["system"]}}),
            Content::Text("x".into()),
        );
    }

    #[test]
    fn line_breaks_leave_base64() {
        check_block(
            json!({"type": "image", "data": "QU\r\nJD\n"}),
            Content::Image {
                mime_type: "image/png".into(),
                data: "QUJD".into(),
            },
        );
    }

    #[test]
    fn content_may_be_one_block_or_a_bare_text() {
        assert_eq!(read_result(json!({"content": "x"})), ToolResult::text("x"));
        assert_eq!(
            read_result(json!({"content": {"type": "text", "text": "x"}})),
            ToolResult::text("x")
        );
        assert_eq!(
            read_result(json!({"content": ["x"]})),
            ToolResult::text("x")
        );
        assert_eq!(read_result(json!("x")), ToolResult::text("x"));
    }

    #[test]
    fn structured_content_is_any_json_value() {
        for value in [
            json!({"a": 1}),
            json!([1, 2]),
            json!(5.5),
            json!("s"),
            json!(null),
        ] {
            let result = read_result(json!({"content": [], "structuredContent": value}));
            assert_eq!(result.structured_content, Some(value));
        }
    }

    #[test]
    fn a_null_beside_blocks_is_no_structured_content() {
        let result = read_result(json!({"content": ["x"], "structuredContent": null}));
        assert_eq!(result, ToolResult::text("x"));
    }

    #[test]
    fn an_error_is_an_error_only_if_it_says_so() {
        assert!(read_result(json!({"content": [], "isError": true})).is_error);
        assert!(!read_result(json!({"content": [], "isError": null})).is_error);
        assert!(!read_result(json!({"content": []})).is_error);
    }

    #[test]
    fn results_of_other_shapes_are_kept() {
        let legacy = read_result(json!({"toolResult": {"a": 1}}));
        assert_eq!(legacy.structured_content, Some(json!({"a": 1})));
        let task = json!({"task": {"taskId": "1"}});
        assert_eq!(read_result(task.clone()).content, [Content::Unknown(task)]);
        assert_eq!(read_result(json!({})), ToolResult::default());
        assert_eq!(
            read_result(json!({"resultType": "complete"})),
            ToolResult::default()
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            let key = prop_oneof![
                Just("content".to_owned()),
                Just("type".to_owned()),
                Just("text".to_owned()),
                Just("resource".to_owned()),
                "[a-z]{1,4}"
            ];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::vec((key, inner), 0..5)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_blocks_come_out_one_by_one(blocks in proptest::collection::vec(any_json(), 0..5)) {
            let result = read_result(json!({ "content": blocks }));
            prop_assert_eq!(result.content.len(), blocks.len());
        }

        #[test]
        fn what_was_read_is_written_as_the_same(blocks in proptest::collection::vec(any_json(), 1..5), is_error: bool) {
            let read = read_result(json!({"content": blocks, "isError": is_error}));
            prop_assert_eq!(read_result(write_result(read.clone())), read);
        }

        #[test]
        fn any_value_is_read(raw in any_json()) {
            let _ = read_result(raw);
        }
    }
}
