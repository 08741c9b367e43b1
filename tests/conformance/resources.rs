//! The resources that the scenarios read.

use rmcp::{
    ErrorData,
    model::{ReadResourceResponse, Resource, ResourceTemplate},
};
use serde_json::json;

use crate::{typed, whole};

/// A picture of one red pixel.
pub(crate) const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A sound without samples.
pub(crate) const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

pub(crate) fn list() -> Vec<Resource> {
    let resource = |uri: &str, name: &str, mime_type: &str| json!({"uri": uri, "name": name, "description": format!("The {name}."), "mimeType": mime_type});
    typed(json!([
        resource("test://static-text", "static text", "text/plain"),
        resource("test://static-binary", "static picture", "image/png"),
        resource("test://watched-resource", "watched text", "text/plain"),
    ]))
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    typed(json!([{
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "Data by id.",
        "mimeType": "application/json",
    }]))
}

/// # Errors
///
/// Not found, with the URI as data.
pub(crate) fn read(uri: &str) -> Result<ReadResourceResponse, ErrorData> {
    let content = match uri {
        "test://static-text" => {
            json!({"uri": uri, "mimeType": "text/plain", "text": "This is the content of the static text resource."})
        }
        "test://static-binary" => json!({"uri": uri, "mimeType": "image/png", "blob": PNG}),
        "test://watched-resource" => {
            json!({"uri": uri, "mimeType": "text/plain", "text": "Watched."})
        }
        _ => match template_id(uri) {
            Some(id) => {
                let data =
                    json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                json!({"uri": uri, "mimeType": "application/json", "text": data.to_string()})
            }
            None => {
                let data = Some(json!({"uri": uri}));
                return Err(ErrorData::resource_not_found("Resource not found", data));
            }
        },
    };
    let result = whole(json!({"contents": [content]}));
    Ok(ReadResourceResponse::Complete(result))
}

fn template_id(uri: &str) -> Option<&str> {
    uri.strip_prefix("test://template/")?
        .strip_suffix("/data")
        .filter(|id| !id.is_empty() && !id.contains('/'))
}
