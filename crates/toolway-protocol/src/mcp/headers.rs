//! The headers in which a request of 2026-07-28 repeats what its body says, so that whatever stands between need not
//! read the body. Here both are compared (2026-07-28, "Streamable HTTP", "Request Metadata").

use ::http::HeaderMap;
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::Value;

use super::{
    rpc::{RpcError, RpcRequest, code},
    stateless,
};
use crate::tool::JsonObject;

/// `MCP-Protocol-Version`.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// `Mcp-Session-Id`.
pub const SESSION_ID: &str = "mcp-session-id";
/// `Last-Event-ID`.
pub const LAST_EVENT_ID: &str = "last-event-id";

const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";
const PARAM: &str = "mcp-param-";

/// What a client says it can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepts {
    /// `application/json`.
    pub json: bool,
    /// `text/event-stream`.
    pub events: bool,
}

impl Accepts {
    /// Reads `Accept`. A client that does not say can read everything.
    pub fn read(headers: &HeaderMap) -> Accepts {
        let mut said = headers.get_all(::http::header::ACCEPT).iter().peekable();
        if said.peek().is_none() {
            return Accepts {
                json: true,
                events: true,
            };
        }
        let mut accepts = Accepts {
            json: false,
            events: false,
        };
        for range in said
            .filter_map(|it| it.to_str().ok())
            .flat_map(|it| it.split(','))
        {
            let mut parts = range.split(';').map(str::trim);
            let range = parts.next().unwrap_or_default();
            if parts.any(|it| matches!(it, "q=0" | "q=0.0")) {
                continue;
            }
            let is = |known: &str| range.eq_ignore_ascii_case(known);
            accepts.json |= ["application/json", "application/*", "*/*"]
                .into_iter()
                .any(is);
            accepts.events |= ["text/event-stream", "text/*", "*/*"].into_iter().any(is);
        }
        accepts
    }
}

/// The body is said to be JSON.
pub fn is_json(headers: &HeaderMap) -> bool {
    let said = headers.get(::http::header::CONTENT_TYPE);
    let said = said.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let media = said.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case("application/json")
}

/// The one value of a header.
///
/// # Errors
/// `HeaderMismatch` if there are several, or if it is no text: a reader of another one of them would
/// see another request.
pub fn one<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(mismatch(&format!("the header {name} comes twice")));
    }
    let text = value.to_str();
    text.map(Some).map_err(|_| {
        mismatch(&format!(
            "the header {name} has characters that are not ASCII"
        ))
    })
}

/// Compares the headers of a request with its body, all but those that its tool's schema asks for.
///
/// # Errors
/// `HeaderMismatch`.
pub fn check(headers: &HeaderMap, request: &RpcRequest) -> Result<(), RpcError> {
    let version = one(headers, PROTOCOL_VERSION)?;
    match (version, stateless::protocol_version(&request.params)) {
        (None, _) => return Err(missing("MCP-Protocol-Version")),
        (Some(header), Some(body)) if header != body => {
            return Err(differs("MCP-Protocol-Version", header, body));
        }
        // A body without a version is wrong for another reason.
        (Some(_), _) => {}
    }
    match one(headers, METHOD)? {
        None => return Err(missing("Mcp-Method")),
        Some(method) if method != request.method => {
            return Err(differs("Mcp-Method", method, &request.method));
        }
        Some(_) => {}
    }
    let named_by = match request.method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return Ok(()),
    };
    let Some(body) = request.params.get(named_by).and_then(Value::as_str) else {
        return Ok(());
    };
    let header = one(headers, NAME)?.ok_or_else(|| missing("Mcp-Name"))?;
    let named = decoded("Mcp-Name", header)?;
    if named == body {
        Ok(())
    } else {
        Err(differs("Mcp-Name", &named, body))
    }
}

/// Compares the `Mcp-Param-…` headers of a `tools/call` with its arguments, for the properties that the tool's schema
/// marks with `x-mcp-header`.
///
/// # Errors
/// `HeaderMismatch`.
pub fn check_params(
    headers: &HeaderMap,
    schema: &JsonObject,
    arguments: Option<&Value>,
) -> Result<(), RpcError> {
    let Some(Value::Object(properties)) = schema.get("properties") else {
        return Ok(());
    };
    for (name, property) in properties {
        let argument = arguments.and_then(|it| it.get(name));
        if let Some(Value::String(suffix)) = property.get("x-mcp-header") {
            check_param(headers, suffix, argument)?;
        }
        if let Value::Object(inner) = property {
            check_params(headers, inner, argument)?;
        }
    }
    Ok(())
}

fn check_param(headers: &HeaderMap, suffix: &str, body: Option<&Value>) -> Result<(), RpcError> {
    let name = format!("{PARAM}{}", suffix.to_ascii_lowercase());
    // A name that no header can have is required of no client.
    if ::http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Ok(());
    }
    let shown = format!("Mcp-Param-{suffix}");
    let body = body.filter(|it| !it.is_null() && !it.is_object() && !it.is_array());
    match (one(headers, &name)?, body) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(missing(&shown)),
        (Some(_), None) => Err(mismatch(&format!(
            "the header {shown} has nothing in the body that it repeats"
        ))),
        (Some(header), Some(body)) => {
            let header = decoded(&shown, header)?;
            if is_same(&header, body) {
                Ok(())
            } else {
                Err(differs(&shown, &header, &as_text(body)))
            }
        }
    }
}

/// Whole numbers are compared as numbers, everything else as text.
fn is_same(header: &str, body: &Value) -> bool {
    let Value::Number(number) = body else {
        return header == as_text(body);
    };
    if let (Some(body), Ok(header)) = (number.as_i64(), header.parse::<i64>()) {
        return body == header;
    }
    header
        .parse::<f64>()
        .is_ok_and(|header| number.as_f64() == Some(header))
}

fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What a header says, which is in Base64 if it is marked so.
fn decoded(name: &str, value: &str) -> Result<String, RpcError> {
    let inner = value
        .strip_prefix("=?base64?")
        .and_then(|it| it.strip_suffix("?="));
    let Some(inner) = inner else {
        return Ok(value.to_owned());
    };
    let bytes = BASE64.decode(inner).ok();
    bytes
        .and_then(|it| String::from_utf8(it).ok())
        .ok_or_else(|| mismatch(&format!("the header {name} is no Base64 of a text")))
}

fn missing(header: &str) -> RpcError {
    mismatch(&format!("the header {header} is missing"))
}

fn differs(header: &str, said: &str, body: &str) -> RpcError {
    mismatch(&format!(
        "the header {header} says `{said}`, the body `{body}`"
    ))
}

fn mismatch(what: &str) -> RpcError {
    RpcError::new(code::HEADER_MISMATCH, format!("Header mismatch: {what}"))
}

#[cfg(test)]
mod tests {
    use ::http::HeaderName;
    use serde_json::json;

    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        headers
    }

    fn request(method: &str, mut params: Value) -> RpcRequest {
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
        RpcRequest {
            id: 1.into(),
            method: method.to_owned(),
            params: params.as_object().cloned().unwrap(),
        }
    }

    #[track_caller]
    fn check_call(list: &[(&'static str, &str)], fits: bool) {
        let request = request("tools/call", json!({"name": "añb"}));
        let mut all = vec![
            (PROTOCOL_VERSION, "2026-07-28"),
            (METHOD, "tools/call"),
            (NAME, "=?base64?YcOxYg==?="),
        ];
        all.retain(|(name, _)| list.iter().all(|(other, _)| name != other));
        all.extend(list.iter().filter(|(_, value)| *value != "-"));
        let checked = check(&headers(&all), &request);
        assert_eq!(checked.is_ok(), fits, "{list:?} {checked:?}");
        assert!(checked.is_ok() || checked.unwrap_err().code == code::HEADER_MISMATCH);
    }

    #[test]
    fn headers_repeat_what_the_body_says_or_the_request_is_refused() {
        check_call(&[], true);
        check_call(&[(PROTOCOL_VERSION, "-")], false);
        check_call(&[(PROTOCOL_VERSION, "2025-11-25")], false);
        check_call(&[(METHOD, "-")], false);
        check_call(&[(METHOD, "TOOLS/CALL")], false);
        check_call(&[(METHOD, "tools/call"), (METHOD, "tools/call")], false);
        check_call(&[(NAME, "-")], false);
        check_call(&[(NAME, "other")], false);
        check_call(&[(NAME, "=?base64?YcOxYg=?=")], false);
        check_call(&[(NAME, "=?base64?/w==?=")], false);
    }

    #[test]
    fn what_names_nothing_needs_no_name() {
        let list = request("tools/list", json!({}));
        let given = headers(&[(PROTOCOL_VERSION, "2026-07-28"), (METHOD, "tools/list")]);
        assert_eq!(check(&given, &list), Ok(()));
        let read = request("resources/read", json!({"uri": "a:b"}));
        let given = headers(&[
            (PROTOCOL_VERSION, "2026-07-28"),
            (METHOD, "resources/read"),
            (NAME, "a:b"),
        ]);
        assert_eq!(check(&given, &read), Ok(()));
    }

    #[track_caller]
    fn check_argument(argument: &Value, header: Option<&str>, fits: bool) {
        let schema = json!({"properties": {"at": {"properties": {"x": {"x-mcp-header": "Where"}}}, "y": true}});
        let list: Vec<_> = header
            .map(|it| ("mcp-param-where", it))
            .into_iter()
            .collect();
        let arguments = json!({"at": {"x": argument}});
        let checked = check_params(
            &headers(&list),
            schema.as_object().unwrap(),
            Some(&arguments),
        );
        assert_eq!(checked.is_ok(), fits, "{argument} {header:?} {checked:?}");
    }

    #[test]
    fn arguments_that_the_schema_marks_are_repeated_in_headers() {
        check_argument(&json!("Hello"), Some("Hello"), true);
        check_argument(&json!("Hello"), Some("=?base64?SGVsbG8=?="), true);
        check_argument(&json!("Hello"), Some("=?base64?SGVsbG8?="), false);
        check_argument(&json!("Hello"), Some("=?base64?SGVs!!!bG8=?="), false);
        check_argument(&json!("SGVsbG8="), Some("SGVsbG8="), true);
        check_argument(&json!("=?base64?SGVsbG8="), Some("=?base64?SGVsbG8="), true);
        check_argument(&json!("Hello"), None, false);
        check_argument(&json!(null), None, true);
        check_argument(&json!(null), Some("null"), false);
        check_argument(&json!(42), Some("42.0"), true);
        check_argument(&json!(42), Some("43"), false);
        check_argument(
            &json!(9_007_199_254_740_993_i64),
            Some("9007199254740992"),
            false,
        );
        check_argument(&json!(true), Some("true"), true);
        check_argument(&json!(true), Some("True"), false);
    }

    #[test]
    fn what_can_be_read_is_in_the_accept_header() {
        let accepts = |value: &str| {
            let accepts = Accepts::read(&headers(&[("accept", value)]));
            (accepts.json, accepts.events)
        };
        assert_eq!(accepts("application/json, text/event-stream"), (true, true));
        assert_eq!(accepts("*/*;q=0.1"), (true, true));
        assert_eq!(accepts("Application/JSON"), (true, false));
        assert_eq!(
            accepts("text/event-stream, application/json;q=0"),
            (false, true)
        );
        assert_eq!(accepts("text/html"), (false, false));
        let silent = Accepts::read(&HeaderMap::new());
        assert!(silent.json && silent.events);
    }

    #[test]
    fn a_body_is_json_only_if_it_is_said_to_be() {
        let is_json = |value| is_json(&headers(&[("content-type", value)]));
        assert!(is_json("application/json; charset=utf-8") && is_json("Application/Json"));
        assert!(!is_json("text/plain") && !is_json("application/jsonp"));
        assert!(!super::is_json(&HeaderMap::new()));
    }
}
