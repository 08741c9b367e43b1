//! One answer of a function, whatever its shape, as a tool's result.
//!
//! | what it is | what it becomes |
//! |---|---|
//! | a text | text |
//! | `{"content": […]}` with MCP's blocks | what MCP says it is |
//! | a list of OpenAI's content parts, or of MCP's blocks | text, pictures, sound, files |
//! | any other object, list or number | `structuredContent`, and the same as text |
//! | an object with an `error` | the same, as a failure |
//! | `null` | a result without content |

use serde_json::Value;

use toolway_protocol::{
    mcp::results,
    tool::{Content, JsonObject, ToolResult},
};

/// Longest text that a failure says about itself, in bytes.
const MAX_ERROR: usize = 4096;

/// Reads one answer.
pub fn read(output: Value) -> ToolResult {
    match output {
        Value::Null => ToolResult::default(),
        Value::String(text) => ToolResult::text(text),
        Value::Array(parts) if is_parts(&parts) => ToolResult {
            content: parts.into_iter().map(part).collect(),
            ..ToolResult::default()
        },
        Value::Object(mut members) => {
            let says_failed = take_is_error(&mut members);
            let mut result = if is_mcp(&members) {
                call_tool_result(members)
            } else {
                object(members)
            };
            result.is_error |= says_failed;
            result
        }
        other => structured(other),
    }
}

/// A failure that says this.
pub fn failure(message: impl Into<String>) -> ToolResult {
    ToolResult {
        is_error: true,
        ..ToolResult::text(message)
    }
}

/// A JSON value as it is, and as text for those who read no structured content.
pub fn structured(value: Value) -> ToolResult {
    ToolResult {
        content: vec![Content::Text(
            serde_json::to_string(&value).unwrap_or_default(),
        )],
        structured_content: Some(value),
        ..ToolResult::default()
    }
}

/// What an `error` member says, if it says that there is one: a text, an object with a `message`, or `true`.
/// A number or `null` does not; it may be a measurement.
pub fn error_text(error: &Value) -> Option<String> {
    let text = match error {
        Value::Bool(true) => "the function failed and did not say why".to_owned(),
        Value::String(text) if !text.trim().is_empty() => text.clone(),
        Value::Object(members) if !members.is_empty() => {
            let said = ["message", "detail", "error", "description"]
                .into_iter()
                .find_map(|key| members.get(key)?.as_str());
            said.map_or_else(|| error.to_string(), str::to_owned)
        }
        Value::Array(errors) if !errors.is_empty() => error.to_string(),
        _ => return None,
    };
    Some(super::super::cut::bounded(&text, MAX_ERROR))
}

fn object(members: JsonObject) -> ToolResult {
    let error = members.get("error").and_then(error_text);
    let mut result = structured(Value::Object(members));
    if let Some(message) = error {
        result.content = vec![Content::Text(message)];
        result.is_error = true;
    }
    result
}

/// `is_error` and `isError`, taken out where they are a boolean.
fn take_is_error(members: &mut JsonObject) -> bool {
    let mut says_failed = false;
    for key in ["is_error", "isError"] {
        if let Some(Value::Bool(it)) = members.get(key) {
            says_failed |= *it;
            members.shift_remove(key);
        }
    }
    says_failed
}

/// The object is a `CallToolResult`: its `content` is a list of blocks, or there is a `structuredContent`.
fn is_mcp(members: &JsonObject) -> bool {
    match members.get("content") {
        Some(Value::Array(blocks)) => {
            members.contains_key("structuredContent") || blocks.is_empty() || is_parts(blocks)
        }
        Some(_) => false,
        None => members.contains_key("structuredContent"),
    }
}

/// Reads a `CallToolResult`, whose blocks may be OpenAI's parts as well.
fn call_tool_result(mut members: JsonObject) -> ToolResult {
    let parts = match members.get_mut("content") {
        Some(Value::Array(parts)) => std::mem::take(parts),
        _ => Vec::new(),
    };
    let mut result = results::read_result(Value::Object(members));
    if !parts.is_empty() {
        result.content = parts.into_iter().map(part).collect();
        // Some write every absent member as null.
        result.structured_content = result.structured_content.filter(|value| !value.is_null());
    }
    result
}

/// The types of OpenAI's content parts (chat completions and responses) and of MCP's blocks.
const PART_TYPES: [&str; 14] = [
    "text",
    "input_text",
    "output_text",
    "image_url",
    "input_image",
    "input_audio",
    "output_audio",
    "file",
    "input_file",
    "refusal",
    "image",
    "audio",
    "resource",
    "resource_link",
];

fn is_parts(values: &[Value]) -> bool {
    let is_part = |value: &Value| {
        let kind = value.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| PART_TYPES.contains(&kind))
    };
    !values.is_empty() && values.iter().all(is_part)
}

/// A content part of OpenAI's, or else a block of MCP's. One that lacks what it needs becomes a text that
/// shows it, because MCP clients take no block that they do not know.
fn part(part: Value) -> Content {
    if let Some(content) = openai_part(&part) {
        return content;
    }
    let blocks = [("content".to_owned(), Value::Array(vec![part]))];
    let mut read = results::read_result(Value::Object(blocks.into_iter().collect()));
    match read.content.pop() {
        Some(Content::Unknown(part)) => Content::Text(shown(&part)),
        Some(known) => known,
        None => Content::Text(String::new()),
    }
}

/// A part that cannot be read, unless it is so long that it is more likely data than words.
fn shown(part: &Value) -> String {
    let text = part.to_string();
    if text.len() <= MAX_ERROR {
        return text;
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("none");
    format!("[content of the type `{kind}` that cannot be read]")
}

fn openai_part(part: &Value) -> Option<Content> {
    let text = |key: &str| part.get(key).and_then(Value::as_str);
    match text("type")? {
        "text" | "input_text" | "output_text" => Some(Content::Text(text("text")?.to_owned())),
        "refusal" => Some(Content::Text(text("refusal")?.to_owned())),
        "image_url" | "input_image" => {
            let image = part.get("image_url")?;
            let url = image.get("url").unwrap_or(image).as_str()?;
            Some(at_url(url, "image"))
        }
        "input_audio" => {
            let audio = part.get("input_audio")?;
            let data = audio.get("data")?.as_str()?;
            Some(Content::Audio {
                mime_type: match audio.get("format").and_then(Value::as_str) {
                    None | Some("wav") => "audio/wav".to_owned(),
                    Some("mp3" | "mpeg") => "audio/mpeg".to_owned(),
                    Some(other) => format!("audio/{other}"),
                },
                data: tidy_base64(data),
            })
        }
        "file" => file(part.get("file")?),
        "input_file" => file(part),
        _ => None,
    }
}

fn file(file: &Value) -> Option<Content> {
    let text = |key: &str| file.get(key).and_then(Value::as_str);
    let name = text("filename").unwrap_or("file");
    if let Some(data) = text("file_data") {
        let (mime_type, data) = data_url(data).unwrap_or((String::new(), tidy_base64(data)));
        return Some(Content::BlobResource {
            uri: attachment(name),
            mime_type: (!mime_type.is_empty()).then_some(mime_type),
            blob: data,
        });
    }
    Some(at_url(text("file_url")?, name))
}

/// What a URL of OpenAI's parts holds, or where it is.
fn at_url(url: &str, name: &str) -> Content {
    match data_url(url) {
        Some((mime_type, data)) if mime_type.starts_with("image/") => {
            Content::Image { mime_type, data }
        }
        Some((mime_type, data)) if mime_type.starts_with("audio/") => {
            Content::Audio { mime_type, data }
        }
        Some((mime_type, blob)) => Content::BlobResource {
            uri: attachment(name),
            mime_type: Some(mime_type),
            blob,
        },
        None => Content::ResourceLink {
            uri: url.to_owned(),
            name: name.to_owned(),
            description: None,
            mime_type: None,
        },
    }
}

/// Base64 without line breaks and with the padding that some leave out, in the standard alphabet.
fn tidy_base64(text: &str) -> String {
    let mut tidy: String = text
        .chars()
        .filter(|c| !c.is_ascii_whitespace())
        .map(|c| match c {
            '-' => '+',
            '_' => '/',
            c => c,
        })
        .collect();
    while !tidy.len().is_multiple_of(4) {
        tidy.push('=');
    }
    tidy
}

/// The type and the base64 of a `data:` URL (RFC 2397).
fn data_url(url: &str) -> Option<(String, String)> {
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    let head = head.strip_suffix(";base64")?;
    let mime_type = head.split(';').next().unwrap_or_default();
    let mime_type = match mime_type {
        "" => "text/plain".to_owned(),
        named => named.to_ascii_lowercase(),
    };
    Some((mime_type, tidy_base64(data)))
}

/// A URI for something that has none: it names what the function called it, and no place.
pub(super) fn attachment(name: &str) -> String {
    let safe = |c: char| match c {
        c if c.is_alphanumeric() || matches!(c, '.' | '-' | '_') => c,
        _ => '_',
    };
    format!("attachment:{}", name.chars().map(safe).collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_parts(output: Value, content: &[Content]) {
        let result = read(output);
        assert_eq!(result.content, content);
        assert_eq!((result.structured_content, result.is_error), (None, false));
    }

    #[track_caller]
    fn check_structured(output: Value) {
        assert_eq!(read(output.clone()), structured(output));
    }

    #[track_caller]
    fn check_failure(output: Value, text: &str) {
        let result = read(output);
        assert!(result.is_error);
        assert_eq!(result.content, [Content::Text(text.to_owned())]);
    }

    #[test]
    fn what_is_written_otherwise_is_tidied() {
        assert_eq!(tidy_base64("Zm9v\nYg"), "Zm9vYg==");
        assert_eq!(tidy_base64("-__-"), "+//+");
    }

    #[test]
    fn a_text_is_text_even_if_it_is_json() {
        check_parts(json!("hi"), &[Content::Text("hi".into())]);
        check_parts(json!("{\"a\":1}"), &[Content::Text("{\"a\":1}".into())]);
        check_parts(json!(""), &[Content::Text(String::new())]);
        check_parts(json!(null), &[]);
    }

    #[test]
    fn what_is_no_text_is_structured_and_text() {
        check_structured(json!({"a": [1, null]}));
        check_structured(json!([1, 2]));
        check_structured(json!([]));
        check_structured(json!(1.5));
        check_structured(json!(false));
        check_structured(json!([{"type": "house", "rooms": 3}]));
        check_structured(json!({"content": "a text", "error": 0.05}));
        check_structured(json!({"error": null, "errors": []}));
    }

    #[test]
    fn an_error_is_a_failure_and_its_object_is_kept() {
        check_failure(json!({"error": "no such city"}), "no such city");
        check_failure(json!({"error": {"code": 7, "message": "no"}}), "no");
        check_failure(json!({"error": {"code": 7}}), "{\"code\":7}");
        check_failure(
            json!({"error": true}),
            "the function failed and did not say why",
        );
        let result = read(json!({"error": "no", "hint": "yes"}));
        assert_eq!(
            result.structured_content,
            Some(json!({"error": "no", "hint": "yes"}))
        );
        let result = read(json!({"is_error": true, "a": 1}));
        assert!(result.is_error);
        assert_eq!(result.structured_content, Some(json!({"a": 1})));
    }

    #[test]
    fn openais_parts_become_blocks() {
        let image = Content::Image {
            mime_type: "image/png".into(),
            data: "QUJD".into(),
        };
        let url = "data:image/png;base64,QUJD";
        check_parts(
            json!([
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                {"type": "input_image", "image_url": url},
                {"type": "output_text", "text": "b", "annotations": []},
            ]),
            &[
                Content::Text("a".into()),
                image.clone(),
                image,
                Content::Text("b".into()),
            ],
        );
        check_parts(
            json!([{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]),
            &[Content::ResourceLink {
                uri: "https://x/y.png".into(),
                name: "image".into(),
                description: None,
                mime_type: None,
            }],
        );
        check_parts(
            json!([{"type": "input_audio", "input_audio": {"data": "QUI=", "format": "mp3"}}]),
            &[Content::Audio {
                mime_type: "audio/mpeg".into(),
                data: "QUI=".into(),
            }],
        );
        check_parts(
            json!([
                {"type": "file", "file": {"filename": "a b.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
                {"type": "input_file", "file_data": "QUJD"},
            ]),
            &[
                Content::BlobResource {
                    uri: "attachment:a_b.pdf".into(),
                    mime_type: Some("application/pdf".into()),
                    blob: "QUJD".into(),
                },
                Content::BlobResource {
                    uri: "attachment:file".into(),
                    mime_type: None,
                    blob: "QUJD".into(),
                },
            ],
        );
    }

    #[test]
    fn a_part_that_lacks_what_it_needs_is_shown_as_text() {
        let broken = json!({"type": "image_url", "image_url": {}});
        check_parts(json!([broken]), &[Content::Text(broken.to_string())]);
        let long = json!({"type": "image_url", "data": "A".repeat(5000)});
        let said = "[content of the type `image_url` that cannot be read]";
        check_parts(json!([long]), &[Content::Text(said.to_owned())]);
    }

    #[test]
    fn a_result_in_mcps_words_may_have_openais_parts() {
        let result = read(json!({
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}],
            "structuredContent": null,
        }));
        let image = Content::Image {
            mime_type: "image/png".into(),
            data: "QUJD".into(),
        };
        assert_eq!(
            (result.content, result.structured_content),
            (vec![image], None)
        );
    }

    #[test]
    fn a_result_in_mcps_words_is_read_as_one() {
        let result = read(json!({
            "content": [{"type": "image", "mimeType": "image/gif", "data": "QUJD"}],
            "structuredContent": {"a": 1},
            "isError": true,
        }));
        assert_eq!(
            result.content,
            [Content::Image {
                mime_type: "image/gif".into(),
                data: "QUJD".into(),
            }]
        );
        assert_eq!(
            (result.structured_content, result.is_error),
            (Some(json!({"a": 1})), true)
        );
    }
}
