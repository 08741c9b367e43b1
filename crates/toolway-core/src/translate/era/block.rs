//! One block of content, for clients of a version.

use serde_json::{Value, json};

use toolway_protocol::mcp::version::Version;

/// Longest unknown block that is shown as its JSON, in bytes.
const LONGEST_UNKNOWN: usize = 16 << 10;

/// A content block as clients of this version know it.
///
/// Sound becomes an embedded resource and a link becomes text, where they were unknown. A block of a kind that no
/// version knows becomes its JSON as text, because clients refuse the whole result for it.
pub fn fit_block(mut block: Value, version: Version) -> Value {
    if let Value::String(text) = block {
        return text_block(&text);
    }
    mend_annotations(&mut block);
    let kind = block["type"].as_str().unwrap_or_default();
    match kind {
        "text" if block["text"].is_string() => block,
        "image" if is_media(&block) => block,
        "audio" if is_media(&block) => fit_audio(block, version),
        "resource" if is_resource(&block["resource"]) => block,
        "resource_link" if block["uri"].is_string() => fit_link(block, version),
        _ => unknown(&block),
    }
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn is_media(block: &Value) -> bool {
    block["data"].is_string() && block["mimeType"].is_string()
}

fn is_resource(resource: &Value) -> bool {
    resource["uri"].is_string() && (resource["text"].is_string() || resource["blob"].is_string())
}

fn fit_audio(block: Value, version: Version) -> Value {
    if version >= Version::V2025_03_26 {
        return block;
    }
    json!({"type": "resource", "resource": {
        "uri": "toolway:audio",
        "mimeType": block["mimeType"],
        "blob": block["data"],
    }})
}

fn fit_link(mut link: Value, version: Version) -> Value {
    if version >= Version::V2025_06_18 {
        if !link["name"].is_string() {
            link["name"] = link["uri"].clone();
        }
        return link;
    }
    let said = |key: &str| link[key].as_str().filter(|text| !text.is_empty());
    let uri = said("uri").unwrap_or_default();
    let mut text = match said("title").or(said("name")) {
        Some(name) if name != uri => format!("{name}: {uri}"),
        _ => uri.to_owned(),
    };
    if let Some(kind) = said("mimeType") {
        text.push_str(&format!(" ({kind})"));
    }
    if let Some(description) = said("description") {
        text.push_str(&format!("\n{description}"));
    }
    text_block(&text)
}

/// Clients refuse a result whose annotations are of another kind than they know.
fn mend_annotations(block: &mut Value) {
    let Some(annotations) = block.get_mut("annotations") else {
        return;
    };
    let Value::Object(said) = annotations else {
        if let Value::Object(block) = block {
            block.shift_remove("annotations");
        }
        return;
    };
    match said.get_mut("audience") {
        Some(Value::Array(audience)) => {
            audience.retain(|role| matches!(role.as_str(), Some("user" | "assistant")));
        }
        Some(_) => {
            said.shift_remove("audience");
        }
        None => {}
    }
    let is_priority = |priority: &Value| {
        priority
            .as_f64()
            .is_some_and(|priority| (0.0..=1.0).contains(&priority))
    };
    if said
        .get("priority")
        .is_some_and(|priority| !is_priority(priority))
    {
        said.shift_remove("priority");
    }
}

fn unknown(block: &Value) -> Value {
    let json = block.to_string();
    if json.len() <= LONGEST_UNKNOWN {
        return text_block(&json);
    }
    let kind = block["type"].as_str().unwrap_or("without a type");
    let kind: String = kind.chars().take(60).collect();
    text_block(&format!(
        "[a block of an unknown kind, {kind}, of {} bytes]",
        json.len()
    ))
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(block: Value, version: Version, expected: Value) {
        assert_eq!(fit_block(block, version), expected);
    }

    #[test]
    fn known_blocks_pass_as_they_are() {
        for block in [
            json!({"type": "text", "text": "x", "_meta": {"a": 1}, "other": 2}),
            json!({"type": "image", "data": "QUJD", "mimeType": "image/png"}),
            json!({"type": "resource", "resource": {"uri": "a:b", "text": "", "_meta": {}}}),
        ] {
            for version in Version::ALL {
                check(block.clone(), version, block.clone());
            }
        }
    }

    #[test]
    fn sound_is_a_resource_where_sound_was_unknown() {
        let audio = json!({"type": "audio", "data": "QUJD", "mimeType": "audio/wav"});
        check(audio.clone(), Version::V2025_03_26, audio.clone());
        let resource = json!({"uri": "toolway:audio", "mimeType": "audio/wav", "blob": "QUJD"});
        check(
            audio,
            Version::V2024_11_05,
            json!({"type": "resource", "resource": resource}),
        );
    }

    #[test]
    fn a_link_is_text_where_links_were_unknown() {
        let link = json!({"type": "resource_link", "uri": "a:b", "name": "n", "mimeType": "text/css", "description": "d"});
        check(link.clone(), Version::V2025_06_18, link.clone());
        check(
            link,
            Version::V2025_03_26,
            json!({"type": "text", "text": "n: a:b (text/css)\nd"}),
        );
    }

    #[test]
    fn a_block_of_no_known_kind_is_shown_as_it_is() {
        let video = json!({"type": "video", "data": "QUJD"});
        check(
            video.clone(),
            Version::V2026_07_28,
            json!({"type": "text", "text": video.to_string()}),
        );
        let long = json!({"type": "video", "data": "x".repeat(LONGEST_UNKNOWN)});
        let text = fit_block(long, Version::V2026_07_28)["text"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            text.starts_with("[a block of an unknown kind, video, of "),
            "{text}"
        );
    }

    #[test]
    fn annotations_that_clients_would_refuse_are_taken_out() {
        check(
            json!({"type": "text", "text": "x", "annotations": {"audience": ["system", "user"], "priority": 5, "x": 1}}),
            Version::V2025_11_25,
            json!({"type": "text", "text": "x", "annotations": {"audience": ["user"], "x": 1}}),
        );
        check(
            json!({"type": "text", "text": "x", "annotations": 5}),
            Version::V2025_11_25,
            json!({"type": "text", "text": "x"}),
        );
    }

    proptest! {
        #[test]
        fn a_fitted_block_fits(kind in "(text|image|audio|resource|resource_link|video)", uri in "[a-z]{1,5}:[a-z]{1,5}", text: String) {
            for version in Version::ALL {
                let resource = json!({"uri": uri, "text": text});
                let block = json!({"type": kind, "text": text, "uri": uri, "resource": resource, "data": "QUJD", "mimeType": "a/b"});
                let once = fit_block(block, version);
                prop_assert_eq!(fit_block(once.clone(), version), once);
            }
        }
    }
}
