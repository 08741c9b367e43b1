//! URIs of many servers' resources side by side: `toolway://SERVER/URI`, and back.
//!
//! Two servers may have a `file:///a`, and a tool's result may name a resource that is not listed. So wherever
//! several servers are shown as one, each URI is written with its server in front, in lists, templates, contents,
//! links and notifications alike. The rest stays as it is, braces of templates included, and nothing has to be
//! remembered to find the way back.

use serde_json::Value;

use toolway_protocol::tool::ServerId;

/// What stands in front of the server's name.
const SCHEME: &str = "toolway://";

/// The URI (or the template) of a server's resource, as it is shown among those of others.
pub fn wrap(server: &ServerId, uri: &str) -> String {
    format!("{SCHEME}{server}/{uri}")
}

/// The server and its own URI; `None` for what [`wrap`] did not make.
pub fn unwrap(uri: &str) -> Option<(ServerId, &str)> {
    let (server, own) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    Some((ServerId::parse(server).ok()?, own))
}

/// Wraps the `uri` of an object, where it has one.
fn wrap_in(server: &ServerId, object: &mut Value, key: &str) {
    if let Some(Value::String(uri)) = object.get_mut(key) {
        *uri = wrap(server, uri);
    }
}

/// Wraps the URI of a listed resource (`uri`) or template (`uriTemplate`).
pub fn wrap_entry(server: &ServerId, entry: &mut Value) {
    wrap_in(server, entry, "uri");
    wrap_in(server, entry, "uriTemplate");
}

/// Wraps the URI of a content block, if it is an embedded resource or a link to one.
pub fn wrap_block(server: &ServerId, block: &mut Value) {
    match block["type"].as_str() {
        Some("resource") => {
            if let Some(resource) = block.get_mut("resource") {
                wrap_in(server, resource, "uri");
            }
        }
        Some("resource_link") => wrap_in(server, block, "uri"),
        _ => {}
    }
}

/// Wraps the URIs in the result of a `tools/call`, `prompts/get` or `resources/read`.
pub fn wrap_result(server: &ServerId, result: &mut Value) {
    for block in items(result, "content") {
        wrap_block(server, block);
    }
    for message in items(result, "messages") {
        match message.get_mut("content") {
            Some(Value::Array(blocks)) => {
                for block in blocks {
                    wrap_block(server, block);
                }
            }
            Some(block) => wrap_block(server, block),
            None => {}
        }
    }
    for contents in items(result, "contents") {
        wrap_in(server, contents, "uri");
    }
}

fn items<'v>(result: &'v mut Value, key: &str) -> impl Iterator<Item = &'v mut Value> {
    result
        .get_mut(key)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn server(name: &str) -> ServerId {
        ServerId::parse(name).unwrap()
    }

    #[test]
    fn a_wrapped_uri_is_readable_and_leads_back() {
        let wrapped = wrap(&server("my_files"), "file:///a/b?c#d");
        assert_eq!(wrapped, "toolway://my_files/file:///a/b?c#d");
        assert_eq!(
            unwrap(&wrapped),
            Some((server("my_files"), "file:///a/b?c#d"))
        );
        assert_eq!(
            wrap(&server("a"), "db://{table}/{id}"),
            "toolway://a/db://{table}/{id}"
        );
    }

    #[test]
    fn other_uris_are_not_taken_for_wrapped_ones() {
        for uri in [
            "file:///a",
            "toolway://",
            "toolway://a",
            "toolway://a.b/c",
            "toolway:///c",
            "",
        ] {
            assert_eq!(unwrap(uri), None, "{uri}");
        }
    }

    #[test]
    fn every_place_of_a_uri_is_found() {
        let mut result = json!({
            "content": [
                {"type": "resource", "resource": {"uri": "a:1", "text": "a:1"}},
                {"type": "resource_link", "uri": "a:2", "name": "n"},
                {"type": "text", "text": "a:3", "uri": "a:3"},
            ],
            "messages": [
                {"role": "user", "content": {"type": "resource_link", "uri": "a:4"}},
                {"role": "user", "content": [{"type": "resource_link", "uri": "a:5"}]},
            ],
            "contents": [{"uri": "a:6", "text": "x"}],
        });
        wrap_result(&server("s"), &mut result);
        let text = result.to_string();
        for n in [1, 2, 4, 5, 6] {
            assert!(
                text.contains(&format!("\"toolway://s/a:{n}\"")),
                "{n}: {text}"
            );
        }
        assert!(!text.contains("toolway://s/a:3"), "{text}");
        assert_eq!(result["content"][0]["resource"]["text"], "a:1");
    }

    proptest! {
        #[test]
        fn every_uri_of_every_server_leads_back(name in "[A-Za-z0-9_-]{1,64}", uri: String) {
            let server = server(&name);
            let wrapped = wrap(&server, &uri);
            prop_assert_eq!(unwrap(&wrapped), Some((server, uri.as_str())));
        }
    }
}
