//! The answer of an HTTP API that knows nothing of tools, as a tool's result.
//!
//! A good answer is taken as it is: JSON as structured content and text (as text alone where it has too many values),
//! text as text, pictures and sound as such, anything else as a file. An error status is a failure that says the status, and in plain words what
//! the API says about it; a page of HTML it says it with is left out.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::Value;

use super::{
    output,
    webhook::{plain_text, what_failed},
};
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    tool::{Content, ToolResult},
};

/// Reads an answer of `function`. `content_type` is the header as it came, empty where there is none.
pub fn read(function: &str, status: u16, content_type: &str, body: &[u8]) -> ToolResult {
    let mime_type = content_type.split(';').next().unwrap_or_default();
    let mime_type = mime_type.trim().to_ascii_lowercase();
    if !(200..300).contains(&status) {
        return output::failure(failure(status, &mime_type, body));
    }
    if body.is_empty() {
        return ToolResult::default();
    }
    if (mime_type.is_empty() || is_json(&mime_type))
        && let Some(value) = json(body)
    {
        return output::structured(value);
    }
    let content = content(function, mime_type, body);
    ToolResult {
        content: vec![content],
        ..ToolResult::default()
    }
}

/// A body as JSON, if it is that and its values do not take too much memory.
fn json(body: &[u8]) -> Option<Value> {
    check_values(body, MAX_VALUES).ok()?;
    serde_json::from_slice(body).ok()
}

fn content(function: &str, mime_type: String, body: &[u8]) -> Content {
    if is_text(&mime_type) || is_json(&mime_type) {
        return Content::Text(String::from_utf8_lossy(body).into_owned());
    }
    if let ("", Ok(text)) = (mime_type.as_str(), str::from_utf8(body)) {
        return Content::Text(text.to_owned());
    }
    let data = BASE64.encode(body);
    match mime_type.split('/').next() {
        Some("image") => Content::Image { mime_type, data },
        Some("audio") => Content::Audio { mime_type, data },
        _ => Content::BlobResource {
            uri: output::attachment(function),
            mime_type: (!mime_type.is_empty()).then_some(mime_type),
            blob: data,
        },
    }
}

/// The text for the model about an error status.
fn failure(status: u16, mime_type: &str, body: &[u8]) -> String {
    let said = match json(body) {
        Some(Value::Object(members)) => what_failed(&members),
        Some(Value::String(text)) => plain_text(&text),
        Some(_) => None,
        None if is_text(mime_type) || mime_type.is_empty() => {
            plain_text(&String::from_utf8_lossy(body))
        }
        None => None,
    };
    let hint = match (status, &said) {
        (300..=399, _) => " (a redirect, which is not followed)",
        (401 | 403, None) => " (access is refused)",
        (404, None) => " (not found)",
        (429, None) => " (too many requests)",
        _ => "",
    };
    let said = said.map(|said| format!(": {said}")).unwrap_or_default();
    format!("the service answered with HTTP {status}{hint}{said}")
}

fn is_json(mime_type: &str) -> bool {
    matches!(mime_type, "application/json" | "text/json") || mime_type.ends_with("+json")
}

fn is_text(mime_type: &str) -> bool {
    mime_type.starts_with("text/")
        || mime_type.ends_with("+xml")
        || matches!(
            mime_type,
            "application/xml"
                | "application/yaml"
                | "application/x-yaml"
                | "application/javascript"
                | "application/x-ndjson"
                | "application/x-www-form-urlencoded"
                | "application/graphql"
                | "application/toml"
        )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(content_type: &str, body: &[u8], content: Content) {
        let result = read("f", 200, content_type, body);
        assert_eq!(result.content, [content], "{content_type}");
        assert_eq!((result.structured_content, result.is_error), (None, false));
    }

    #[track_caller]
    fn check_failure(status: u16, content_type: &str, body: &str, text: &str) {
        assert_eq!(
            read("f", status, content_type, body.as_bytes()),
            output::failure(text)
        );
    }

    #[test]
    fn json_is_structured_and_is_not_read_as_anything_else() {
        let value = json!({"error": "none", "content": [{"type": "text", "text": "a"}]});
        let body = value.to_string();
        for content_type in [
            "application/json; charset=utf-8",
            "Application/Problem+JSON",
            "",
        ] {
            let result = read("f", 200, content_type, body.as_bytes());
            assert_eq!(result, output::structured(value.clone()), "{content_type}");
        }
    }

    #[test]
    fn what_it_is_decides_what_becomes_of_it() {
        let text = |text: &str| Content::Text(text.to_owned());
        check("text/plain", "Köln".as_bytes(), text("Köln"));
        check("application/json", b"{broken", text("{broken"));
        check("image/svg+xml", b"<svg/>", text("<svg/>"));
        check("", b"plain", text("plain"));
        check(
            "",
            b"\xff\x00",
            Content::BlobResource {
                uri: "attachment:f".into(),
                mime_type: None,
                blob: "/wA=".into(),
            },
        );
        check(
            "image/PNG",
            b"ABC",
            Content::Image {
                mime_type: "image/png".into(),
                data: "QUJD".into(),
            },
        );
        check(
            "audio/wav",
            b"ABC",
            Content::Audio {
                mime_type: "audio/wav".into(),
                data: "QUJD".into(),
            },
        );
        check(
            "application/pdf",
            b"ABC",
            Content::BlobResource {
                uri: "attachment:f".into(),
                mime_type: Some("application/pdf".into()),
                blob: "QUJD".into(),
            },
        );
        assert_eq!(read("f", 204, "", b""), ToolResult::default());
    }

    #[test]
    fn an_error_status_says_what_a_model_can_use() {
        let http = "the service answered with HTTP";
        check_failure(500, "text/html", "<html>x</html>", &format!("{http} 500"));
        check_failure(
            404,
            "text/html",
            "<html>x</html>",
            &format!("{http} 404 (not found)"),
        );
        check_failure(
            400,
            "application/json",
            r#"{"detail": "bad city"}"#,
            &format!("{http} 400: bad city"),
        );
        check_failure(
            422,
            "application/problem+json",
            r#"{"title": "Bad", "status": 422}"#,
            &format!("{http} 422: Bad"),
        );
        check_failure(
            503,
            "text/plain",
            "down at http://10.0.0.1/x\nstack",
            &format!("{http} 503: down at [address]"),
        );
        check_failure(
            302,
            "",
            "",
            &format!("{http} 302 (a redirect, which is not followed)"),
        );
    }
}
