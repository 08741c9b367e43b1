//! Pictures, sound and files as parts of a request.

use serde_json::{Value, json};

use crate::translate::dialect::{Part, text};
use toolway_protocol::tool::JsonObject;

/// Media types that a result of a tool may hold.
const IN_RESULTS: [&str; 5] = [
    "application/pdf",
    "image/jpeg",
    "image/png",
    "image/webp",
    "text/plain",
];

/// Media types by the ends of names.
const BY_NAME: [(&str, &str); 12] = [
    (".gif", "image/gif"),
    (".heic", "image/heic"),
    (".jpeg", "image/jpeg"),
    (".jpg", "image/jpeg"),
    (".md", "text/plain"),
    (".mp3", "audio/mp3"),
    (".mp4", "video/mp4"),
    (".pdf", "application/pdf"),
    (".png", "image/png"),
    (".txt", "text/plain"),
    (".wav", "audio/wav"),
    (".webp", "image/webp"),
];

/// It is a picture, sound or a file.
pub(super) fn is_media(part: &Part) -> bool {
    matches!(part, Part::Image(..) | Part::Audio(..) | Part::File(_))
}

/// The part of the API for a picture, sound or a file, and the name of what it cannot say.
pub(super) fn write_media(part: &Part) -> Result<Value, &'static str> {
    match part {
        Part::Image(url, _) => Ok(write_url(url, "image/jpeg")),
        Part::Audio(data, format) => Ok(inline(&format!("audio/{format}"), data)),
        Part::File(file) => write_file(file).ok_or("file"),
        _ => Err("content"),
    }
}

/// The part can stand within a result of a tool.
pub(super) fn fits_into_results(part: &Value) -> bool {
    let media_type = part.pointer("/inlineData/mimeType").and_then(Value::as_str);
    media_type.is_some_and(|it| IN_RESULTS.contains(&it))
}

fn write_file(file: &JsonObject) -> Option<Value> {
    let name = text(file, "filename").unwrap_or_default();
    match (text(file, "file_data"), text(file, "file_id")) {
        (Some(data), _) if is_url(data) => Some(write_url(data, "application/pdf")),
        (Some(data), _) => Some(inline(media_type(name, "application/pdf"), data)),
        (None, Some(id)) if is_url(id) => Some(write_url(id, "application/pdf")),
        // An id of another provider's.
        (None, _) => None,
    }
}

fn is_url(text: &str) -> bool {
    let schemes = ["data:", "https://", "http://", "gs://"];
    schemes.iter().any(|scheme| text.starts_with(scheme))
}

/// A `data:` URL as the bytes in it.
fn write_url(url: &str, otherwise: &str) -> Value {
    let data = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"));
    match data {
        Some((kind, data)) => inline(kind.split(';').next().unwrap_or(kind), data),
        None => {
            json!({"fileData": {"mimeType": media_type(url, otherwise), "fileUri": url}})
        }
    }
}

fn inline(media_type: &str, data: &str) -> Value {
    json!({"inlineData": {"mimeType": media_type, "data": data}})
}

fn media_type<'t>(name: &str, otherwise: &'t str) -> &'t str {
    let name = name.split(['?', '#']).next().unwrap_or(name);
    let name = name.to_ascii_lowercase();
    let known = BY_NAME.iter().find(|(end, _)| name.ends_with(end));
    known.map_or(otherwise, |(_, media_type)| media_type)
}
