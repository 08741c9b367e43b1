//! The parts of a tool's answer, as text and as content parts.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{ANNOUNCED, Media, cut};
use toolway_protocol::tool::{Content, ToolResult};

/// Longest base64 of one picture or sound that is passed on, in bytes (OpenAI takes 20 MB per picture).
const MAX_DATA: usize = 20 << 20;

/// Longest description, name or type in a line about something that is not shown.
const MAX_LINE: usize = 300;

/// An answer taken apart.
pub(super) struct Blocks {
    /// All text, joined by newlines; never empty.
    pub(super) text: String,
    /// The pictures and sounds that the upstream takes.
    pub(super) parts: Vec<Value>,
}

impl Blocks {
    pub(super) fn read(result: &ToolResult, media: Media) -> Blocks {
        let mut parts = Vec::new();
        let mut lines: Vec<Cow<'_, str>> = result
            .content
            .iter()
            .map(|block| line(block, media, &mut parts))
            .collect();
        lines.retain(|line| !line.trim().is_empty());
        // MCP asks for the structured answer to be repeated as text; only where it is not, it is shown.
        let has_text = result.content.iter().any(is_text);
        if let Some(structured) = result.structured_content.as_ref().filter(|_| !has_text) {
            lines.insert(0, structured.to_string().into());
        }
        if lines.is_empty() {
            let statement = match result.is_error {
                true => "The tool failed and did not say why.",
                false => "The tool ran and returned nothing.",
            };
            lines.push(statement.into());
        }
        Blocks {
            text: lines.join("\n"),
            parts,
        }
    }
}

fn is_text(block: &Content) -> bool {
    match block {
        Content::Text(text) | Content::TextResource { text, .. } => !text.trim().is_empty(),
        _ => false,
    }
}

/// A block as text; what is no text becomes one line about it, and a part if the upstream takes it.
fn line<'b>(block: &'b Content, media: Media, parts: &mut Vec<Value>) -> Cow<'b, str> {
    match block {
        Content::Text(text) => text.into(),
        Content::Image { mime_type, data } => shown("image", mime_type, data, media, parts).into(),
        Content::Audio { mime_type, data } => shown("audio", mime_type, data, media, parts).into(),
        Content::TextResource { uri, text, .. } => {
            format!("[resource {}]\n{text}", one_line(uri)).into()
        }
        Content::BlobResource {
            uri,
            mime_type,
            blob,
        } => {
            let mime_type = mime_type.as_deref().unwrap_or("unknown type");
            let what = format!("resource {}", one_line(uri));
            shown(&what, mime_type, blob, media, parts).into()
        }
        Content::ResourceLink {
            uri,
            name,
            description,
            mime_type,
        } => {
            let mut line = format!("[resource link {}: {}", one_line(name), one_line(uri));
            if let Some(mime_type) = mime_type {
                line.push_str(&format!(", {}", one_line(mime_type)));
            }
            if let Some(description) = description {
                line.push_str(&format!(", {}", one_line(description)));
            }
            (line + "]").into()
        }
        Content::Unknown(block) => match block.get("text").and_then(Value::as_str) {
            Some(text) => text.into(),
            None => {
                let kind = block.get("type").and_then(Value::as_str).unwrap_or("none");
                format!(
                    "[content of the unknown type `{}`, not shown]",
                    one_line(kind)
                )
                .into()
            }
        },
    }
}

/// The line for base64 data, which goes into a part if the upstream takes it.
fn shown(what: &str, mime_type: &str, data: &str, media: Media, parts: &mut Vec<Value>) -> String {
    let about = format!("[{what}, {}, {}", one_line(mime_type), size(data));
    match part(mime_type, data, media) {
        Some(part) => {
            parts.push(part);
            format!("{about}, {ANNOUNCED}")
        }
        None => format!("{about}, not shown]"),
    }
}

/// The content part for a picture or a sound, of the types that OpenAI takes.
fn part(mime_type: &str, data: &str, media: Media) -> Option<Value> {
    if data.is_empty() || data.len() > MAX_DATA || !is_base64(data) {
        return None;
    }
    let mime_type = mime_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let image = |mime_type: &str| {
        let url = format!("data:{mime_type};base64,{data}");
        media
            .images
            .then(|| json!({"type": "image_url", "image_url": {"url": url}}))
    };
    let audio = |format: &str| {
        let audio = json!({"data": data, "format": format});
        media
            .audio
            .then(|| json!({"type": "input_audio", "input_audio": audio}))
    };
    match mime_type.as_str() {
        "image/png" | "image/jpeg" | "image/gif" | "image/webp" => image(&mime_type),
        "image/jpg" => image("image/jpeg"),
        "audio/wav" | "audio/x-wav" | "audio/wave" | "audio/vnd.wave" => audio("wav"),
        "audio/mpeg" | "audio/mp3" => audio("mp3"),
        _ => None,
    }
}

/// An upstream refuses the whole request for one part that is no base64.
fn is_base64(data: &str) -> bool {
    let body = data.trim_end_matches('=');
    data.len().is_multiple_of(4)
        && data.len() - body.len() <= 2
        && body
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
}

/// The size of what base64 stands for.
fn size(data: &str) -> String {
    let bytes = data.trim_end_matches('=').len() * 3 / 4;
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / 1_048_576),
    }
}

fn one_line(text: &str) -> String {
    let words: Vec<&str> = cut::at_most(text, 4 * MAX_LINE)
        .split_whitespace()
        .collect();
    cut::bounded(&words.join(" "), MAX_LINE)
}
