//! What every request of 2026-07-28 says about itself, and what a client wants to hear of without asking.

use serde_json::{Map, Value, json};

use super::{
    level::Level,
    rpc::{RpcError, RpcId, code},
    version::Version,
};
use crate::tool::JsonObject;

/// The version, in the `_meta` of every request.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The capabilities of the client, in the same place.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// The members of a client's `_meta` that concern its own connection and are never forwarded.
pub const OF_THE_CONNECTION: [&str; 4] = [
    PROTOCOL_VERSION,
    "io.modelcontextprotocol/clientInfo",
    CLIENT_CAPABILITIES,
    "progressToken",
];
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// The version that a request names for itself.
pub fn protocol_version(params: &JsonObject) -> Option<&str> {
    params.get("_meta")?.get(PROTOCOL_VERSION)?.as_str()
}

/// What a request says about its client.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestMeta {
    /// `ClientCapabilities`.
    pub capabilities: Value,
    /// The log messages it wants while it runs; nothing: none.
    pub level: Option<Level>,
}

impl RequestMeta {
    /// Reads a request's `_meta`. What is needed must be there; the client's name need not.
    ///
    /// # Errors
    /// `Invalid params` where something is missing or of the wrong type, `Unsupported protocol version` for
    /// another version than 2026-07-28.
    pub fn read(params: &JsonObject) -> Result<RequestMeta, RpcError> {
        let missing = |what: &str| {
            RpcError::invalid_params(format!("Invalid params: `_meta` needs `{what}`"))
        };
        let meta = params.get("_meta").and_then(Value::as_object);
        let meta = meta.ok_or_else(|| missing(PROTOCOL_VERSION))?;
        let version = meta.get(PROTOCOL_VERSION).and_then(Value::as_str);
        let version = version.ok_or_else(|| missing(PROTOCOL_VERSION))?;
        if Version::parse(version) != Some(Version::V2026_07_28) {
            return Err(unsupported(version));
        }
        let capabilities = meta.get(CLIENT_CAPABILITIES).filter(|it| it.is_object());
        let capabilities = capabilities.ok_or_else(|| missing(CLIENT_CAPABILITIES))?;
        let level = match meta.get(LOG_LEVEL) {
            None | Some(Value::Null) => None,
            Some(level) => {
                let known = level.as_str().and_then(Level::parse);
                Some(known.ok_or_else(|| {
                    RpcError::invalid_params(format!("Invalid params: `{LOG_LEVEL}` is no level"))
                })?)
            }
        };
        Ok(RequestMeta {
            capabilities: capabilities.clone(),
            level,
        })
    }
}

/// Has a request say which log messages its client wants, as a client of 2026-07-28 says it.
///
/// A client with a handshake says it once for all, and a server without one hears of it in no other way.
pub fn ask_for_logs(params: &mut JsonObject, level: Level) {
    let meta = params
        .entry("_meta")
        .or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(meta) = meta {
        meta.insert(LOG_LEVEL.to_owned(), level.as_str().into());
    }
}

/// The versions that are spoken here, the newest first.
pub fn supported() -> Vec<&'static str> {
    Version::ALL.iter().rev().map(|it| it.as_str()).collect()
}

/// `Unsupported protocol version`, with those that are not.
pub fn unsupported(requested: &str) -> RpcError {
    RpcError::new(code::UNSUPPORTED_VERSION, "Unsupported protocol version")
        .with_data(json!({"supported": supported(), "requested": requested}))
}

/// The result of `server/discover`.
#[expect(clippy::needless_pass_by_value, reason = "they become part of it")]
pub fn discovered(capabilities: Value, server_info: Value, instructions: Option<String>) -> Value {
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": supported(),
        "capabilities": capabilities,
    });
    if let Some(instructions) = instructions {
        result["instructions"] = instructions.into();
    }
    // What is offered changes with the servers, and may differ by key.
    result["ttlMs"] = 0.into();
    result["cacheScope"] = "private".into();
    result["_meta"] = json!({SERVER_INFO: server_info});
    result
}

/// What a client wants to hear of: the `notifications` of `subscriptions/listen`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenFilter {
    /// That tools changed.
    pub tools: bool,
    /// That prompts changed.
    pub prompts: bool,
    /// That resources came or went.
    pub resources: bool,
    /// Changes of these resources.
    pub uris: Vec<String>,
}

impl ListenFilter {
    /// Most resources of one subscription.
    pub const MAX_URIS: usize = 256;

    /// Reads the params of `subscriptions/listen`. What is not known is left out.
    ///
    /// # Errors
    /// `Invalid params` where the filter is missing or of the wrong type, or names too many resources.
    pub fn read(params: &JsonObject) -> Result<ListenFilter, RpcError> {
        let wrong = |what: &str| RpcError::invalid_params(format!("Invalid params: {what}"));
        let Some(Value::Object(asked)) = params.get("notifications") else {
            return Err(wrong("`notifications` must be an object"));
        };
        let flag = |name: &str| match asked.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(wrong(&format!("`{name}` must be true or false"))),
        };
        let uris = match asked.get("resourceSubscriptions") {
            None | Some(Value::Null) => Vec::new(),
            Some(uris) => serde_json::from_value::<Vec<String>>(uris.clone())
                .map_err(|_| wrong("`resourceSubscriptions` must be a list of URIs"))?,
        };
        if uris.len() > ListenFilter::MAX_URIS {
            let most = ListenFilter::MAX_URIS;
            return Err(wrong(&format!(
                "`resourceSubscriptions` has more than {most} URIs"
            )));
        }
        Ok(ListenFilter {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            uris,
        })
    }

    /// What of it is heard of here, going by `ServerCapabilities`.
    #[must_use]
    pub fn accepted(self, capabilities: &Value) -> ListenFilter {
        let has = |what: &str, flag: &str| capabilities[what][flag] == true;
        ListenFilter {
            tools: self.tools && has("tools", "listChanged"),
            prompts: self.prompts && has("prompts", "listChanged"),
            resources: self.resources && has("resources", "listChanged"),
            uris: if has("resources", "subscribe") {
                self.uris
            } else {
                Vec::new()
            },
        }
    }

    /// As it is written; what was not asked for is left out.
    pub fn to_value(&self) -> Value {
        let mut filter = Map::new();
        let flags = [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ];
        for (name, _) in flags.into_iter().filter(|(_, flag)| *flag) {
            filter.insert(name.to_owned(), true.into());
        }
        if !self.uris.is_empty() {
            filter.insert("resourceSubscriptions".to_owned(), json!(self.uris));
        }
        Value::Object(filter)
    }
}

/// The params of a notification, marked as one of this subscription.
pub fn subscribed(mut params: Value, subscription: &RpcId) -> Value {
    if !params.is_object() {
        params = json!({});
    }
    if !params["_meta"].is_object() {
        params["_meta"] = json!({});
    }
    params["_meta"][SUBSCRIPTION_ID] = subscription.to_value();
    params
}

/// The result that ends a subscription.
pub fn ended(subscription: &RpcId) -> Value {
    subscribed(json!({"resultType": "complete"}), subscription)
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use super::*;

    fn object(value: Value) -> JsonObject {
        value.as_object().cloned().unwrap_or_default()
    }

    #[track_caller]
    fn check(meta: Value, code: Option<i64>) {
        let read = RequestMeta::read(&object(json!({"_meta": meta})));
        assert_eq!(read.err().map(|error| error.code), code, "{meta}");
    }

    #[test]
    fn a_request_says_its_version_and_its_capabilities_and_may_hide_its_name() {
        let (version, able) = (PROTOCOL_VERSION, CLIENT_CAPABILITIES);
        check(json!({version: "2026-07-28", able: {}}), None);
        check(json!(null), Some(code::INVALID_PARAMS));
        check(json!({able: {}}), Some(code::INVALID_PARAMS));
        check(json!({version: "2026-07-28"}), Some(code::INVALID_PARAMS));
        check(
            json!({version: "2026-07-28", able: []}),
            Some(code::INVALID_PARAMS),
        );
        check(
            json!({version: "v999", able: {}}),
            Some(code::UNSUPPORTED_VERSION),
        );
        let level = json!({version: "2026-07-28", able: {}, LOG_LEVEL: "loud"});
        check(level, Some(code::INVALID_PARAMS));
    }

    #[test]
    fn a_request_that_is_given_a_level_keeps_the_rest_of_its_meta() {
        let mut params = object(json!({"_meta": {"progressToken": 1}}));
        ask_for_logs(&mut params, Level::Info);
        let expected = json!({"_meta": {"progressToken": 1, LOG_LEVEL: "info"}});
        assert_eq!(Value::Object(params), expected);
        let mut params = JsonObject::new();
        ask_for_logs(&mut params, Level::Debug);
        assert_eq!(
            Value::Object(params),
            json!({"_meta": {LOG_LEVEL: "debug"}})
        );
    }

    #[test]
    fn an_unsupported_version_is_answered_with_those_that_are_not() {
        let error = unsupported("v999").to_value();
        assert_eq!(error["data"]["requested"], "v999");
        assert_eq!(error["data"]["supported"][0], "2026-07-28");
    }

    #[test]
    fn only_what_was_asked_for_and_is_there_is_accepted() {
        let asked = json!({"toolsListChanged": true, "promptsListChanged": false, "resourceSubscriptions": ["a:b"], "new": 1});
        let asked = ListenFilter::read(&object(json!({"notifications": asked}))).unwrap();
        let all = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}});
        let expected = json!({"toolsListChanged": true, "resourceSubscriptions": ["a:b"]});
        assert_eq!(asked.clone().accepted(&all).to_value(), expected);
        assert_eq!(asked.accepted(&json!({})).to_value(), json!({}));
    }

    #[test]
    fn a_filter_of_the_wrong_type_is_refused() {
        for wrong in [
            json!({}),
            json!({"notifications": []}),
            json!({"notifications": {"toolsListChanged": 1}}),
            json!({"notifications": {"resourceSubscriptions": ["a", 1]}}),
            json!({"notifications": {"resourceSubscriptions": vec!["a"; ListenFilter::MAX_URIS + 1]}}),
        ] {
            assert!(ListenFilter::read(&object(wrong)).is_err());
        }
    }

    #[test]
    fn a_notification_keeps_its_own_meta() {
        let params = subscribed(json!({"uri": "a:b", "_meta": {"x": 1}}), &7.into());
        assert_eq!(
            params,
            json!({"uri": "a:b", "_meta": {"x": 1, SUBSCRIPTION_ID: 7}})
        );
    }
}
