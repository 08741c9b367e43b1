//! The fast path for a `tools/call` over Streamable HTTP: posted and read without rmcp, whose workers, queues and
//! models cost several times the call itself.
//!
//! It completes a call only if the server's first message is the answer. In every other case (progress, a log line, a
//! question, a broken connection, an error status, a lost session) rmcp takes the request over with everything that was
//! read so far ([`PostedRequest`]), and `streamable` treats it like any other request. No request of rmcp's has its
//! id; `pending` maps it to rmcp's.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use rmcp::model::{ErrorData, RequestId};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::time::timeout;

use super::{Poster, Reply};
use crate::{
    body_buffer::BodyBuffer,
    upstream::{
        check_values,
        mcp::{
            raw_messages::read_error,
            streamable,
            web::{self, Events, WebFault},
        },
        read_text,
        wire::Body,
    },
};
use toolway_protocol::{
    mcp::stateless::{CLIENT_CAPABILITIES, OF_THE_CONNECTION, PROTOCOL_VERSION},
    tool::JsonObject,
};

const METHOD: &str = "tools/call";

/// Most events without a message that may come before the answer.
const MAX_EMPTY: usize = 4;

/// How long the end of a body is waited for, so that its connection can be used again.
const DRAIN: Duration = Duration::from_millis(50);

/// The client's name, as in rmcp's handshake.
const CLIENT_INFO: &str = concat!(
    r#"{"name":"toolway","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#
);

/// The URL and headers of every call on a connection, known once both sides agreed on a version.
#[derive(Debug)]
pub(in crate::upstream::mcp) struct PostTemplate {
    /// Where to.
    pub(in crate::upstream::mcp) uri: Uri,
    /// Those of the configuration, and of the connection: session and version.
    pub(in crate::upstream::mcp) headers: HeaderMap,
}

/// A request that toolway has posted and rmcp takes over: an extension of its message, never on the wire.
#[derive(Clone)]
pub(in crate::upstream::mcp) struct PostedRequest {
    /// What the server calls it.
    pub(in crate::upstream::mcp) id: RequestId,
    /// The session it was posted in.
    pub(in crate::upstream::mcp) session: Option<HeaderValue>,
    came: Arc<Mutex<Option<PartialReply>>>,
}

type PartialReply = Result<Reply, WebFault>;

impl PostedRequest {
    pub(in crate::upstream::mcp) fn new(
        id: RequestId,
        session: Option<HeaderValue>,
        came: PartialReply,
    ) -> PostedRequest {
        PostedRequest {
            id,
            session,
            came: Arc::new(Mutex::new(Some(came))),
        }
    }

    /// What came so far; only once, because rmcp may make the request again.
    pub(in crate::upstream::mcp) fn take(&self) -> Option<PartialReply> {
        self.came
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// A call that can be made without rmcp.
pub(in crate::upstream::mcp) struct DirectCall<'a> {
    poster: &'a Poster,
    template: Arc<PostTemplate>,
    /// Those of this call only.
    headers: Vec<(HeaderName, HeaderValue)>,
    params: &'a JsonObject,
    /// `ClientCapabilities`, on versions where each request carries them.
    capabilities: Option<&'a Value>,
}

/// The result of a call.
pub(in crate::upstream::mcp) enum DirectOutcome {
    /// Its answer.
    Answer(Result<Value, ErrorData>),
    /// Something else; rmcp takes it over.
    Else(PartialReply),
    /// No answer: rmcp has to make the request.
    Nothing,
}

impl<'a> DirectCall<'a> {
    /// `None` where a request needs what rmcp knows. `capabilities` are the caller's, on a version without a handshake.
    pub(in crate::upstream::mcp) fn of(
        poster: &'a Poster,
        method: &str,
        params: &'a JsonObject,
        capabilities: Option<&'a Value>,
        has_header_arguments: bool,
    ) -> Option<DirectCall<'a>> {
        let template = poster.template().filter(|_| method == METHOD)?;
        let mut headers = Vec::new();
        if capabilities.is_some() {
            let name = params.get("name").and_then(Value::as_str)?;
            if has_header_arguments || !is_header(name) {
                return None;
            }
            let method = HeaderValue::from_static(METHOD);
            headers.push((HeaderName::from_static("mcp-method"), method));
            let name = HeaderValue::from_str(name).ok()?;
            headers.push((HeaderName::from_static("mcp-name"), name));
        }
        Some(DirectCall {
            poster,
            template,
            headers,
            params,
            capabilities,
        })
    }

    /// The session it is made in.
    pub(in crate::upstream::mcp) fn session(&self) -> Option<HeaderValue> {
        self.template.headers.get(streamable::SESSION_ID).cloned()
    }

    /// Makes the call, with this id and progress token. Dropping the future closes what it has opened.
    pub(in crate::upstream::mcp) async fn make(&self, id: i64) -> DirectOutcome {
        let version = self.template.headers.get(streamable::PROTOCOL_VERSION);
        let version = version.and_then(|version| version.to_str().ok());
        let about = self.capabilities.zip(version);
        let body = body(id, self.params, about);
        let called = self.poster.call(&self.template, &self.headers, &body).await;
        let response = match called {
            Ok(response) => response,
            Err(fault) => return DirectOutcome::Else(Err(fault)),
        };
        let (status, limit) = (response.status(), self.poster.limit());
        match status {
            // These two mean that nothing was done; rmcp's client follows them.
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
                if response.headers().contains_key(header::LOCATION) =>
            {
                self.poster.note_moved();
                DirectOutcome::Nothing
            }
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => {
                DirectOutcome::Else(Ok(head(response)))
            }
            _ if !status.is_success() => DirectOutcome::Else(Ok(head(response))),
            _ if web::is_events(response.headers()) => {
                read_events(response.into_body(), limit, id).await
            }
            _ if web::is_json(response.headers()) => {
                read_body(response.into_body(), limit, id).await
            }
            _ => DirectOutcome::Else(Ok(head(response))),
        }
    }
}

/// An answer whose body was not read.
fn head(response: http::Response<Body>) -> Reply {
    let response = response.map(reqwest::Body::wrap_stream);
    Reply::Head(response.into())
}

async fn read_body(pieces: Body, limit: usize, id: i64) -> DirectOutcome {
    let body = match gather(pieces, limit).await {
        Ok(body) => body,
        Err(fault) => return DirectOutcome::Else(Err(fault)),
    };
    let answer = body.as_deref().and_then(|body| {
        let length = body.len();
        read_text(length, || read_answer(body, id))
    });
    match answer {
        Some(answer) => DirectOutcome::Answer(answer),
        None => DirectOutcome::Else(Ok(Reply::Body(body))),
    }
}

/// A body as far as it is not longer than `limit`; `None` if it is.
async fn gather(mut pieces: Body, limit: usize) -> Result<Option<Bytes>, WebFault> {
    let mut body = BodyBuffer::default();
    while let Some(piece) = pieces.next().await {
        body.push(piece?);
        if body.len() > limit {
            return Ok(None);
        }
    }
    Ok(Some(body.into_bytes()))
}

async fn read_events(pieces: Body, limit: usize, id: i64) -> DirectOutcome {
    let mut events = Events::new(pieces, limit);
    let mut empty = Vec::new();
    loop {
        let event = match events.next().await {
            Some(Ok(Ok(event))) => event,
            Some(other) => {
                events.put_back(other);
                break;
            }
            None => break,
        };
        // An event id to resume from, or a sign of life.
        if event.data().is_none_or(|data| data.is_empty()) && empty.len() < MAX_EMPTY {
            empty.push(event);
            continue;
        }
        let answer = event
            .data()
            .and_then(|data| read_text(data.len(), || read_answer(data.as_bytes(), id)));
        if let Some(answer) = answer {
            drain(events.into_bytes());
            return DirectOutcome::Answer(answer);
        }
        events.put_back(Ok(Ok(event)));
        break;
    }
    for event in empty.into_iter().rev() {
        events.put_back(Ok(Ok(event)));
    }
    DirectOutcome::Else(Ok(Reply::Events(Box::new(events))))
}

/// Reads a body to its end, if that comes soon, so that the connection can be used again.
fn drain(mut rest: Body) {
    while let Some(piece) = rest.next().now_or_never() {
        if !matches!(piece, Some(Ok(_))) {
            return;
        }
    }
    tokio::spawn(timeout(DRAIN, async move {
        while let Some(Ok(_)) = rest.next().await {}
    }));
}

#[derive(Deserialize)]
struct RawRpcResponse<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    method: Option<serde::de::IgnoredAny>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The answer to this request, if the message is that.
fn read_answer(message: &[u8], id: i64) -> Option<Result<Value, ErrorData>> {
    let answer: RawRpcResponse<'_> = serde_json::from_slice(message).ok()?;
    let written = answer.id.get().trim_matches('"').parse::<i64>();
    if answer.method.is_some() || written != Ok(id) {
        return None;
    }
    if let Err(why) = check_values(message) {
        return Some(Err(ErrorData::internal_error(why, None)));
    }
    match (answer.result, answer.error) {
        (Some(result), None) => Some(Ok(serde_json::from_str(result.get()).ok()?)),
        (_, Some(error)) => Some(Err(read_error(&serde_json::from_str(error.get()).ok()?))),
        (None, None) => None,
    }
}

/// The value can be a header unencoded (2026-07-28, "Streamable HTTP", "Value Encoding").
fn is_header(name: &str) -> bool {
    let is_plain = name.bytes().all(|byte| matches!(byte, b'!'..=b'~'));
    is_plain && !name.is_empty() && !name.starts_with("=?")
}

/// Writes the request. `about` are the `_meta` members of a version without a handshake: the caller's capabilities and
/// the version.
fn body(id: i64, params: &JsonObject, about: Option<(&Value, &str)>) -> Vec<u8> {
    let mut body = Vec::with_capacity(512);
    body.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    write(&mut body, &id);
    body.extend_from_slice(br#","method":"tools/call","params":{"#);
    for (name, value) in params.iter().filter(|(name, _)| *name != "_meta") {
        member(&mut body, name, value);
    }
    body.extend_from_slice(br#""_meta":{"#);
    if let Some(Value::Object(meta)) = params.get("_meta") {
        for (name, value) in meta {
            if !OF_THE_CONNECTION.contains(&name.as_str()) {
                member(&mut body, name, value);
            }
        }
    }
    if let Some((capabilities, version)) = about {
        member(&mut body, PROTOCOL_VERSION, version);
        body.extend_from_slice(br#""io.modelcontextprotocol/clientInfo":"#);
        body.extend_from_slice(CLIENT_INFO.as_bytes());
        body.push(b',');
        member(&mut body, CLIENT_CAPABILITIES, capabilities);
    }
    body.extend_from_slice(br#""progressToken":"#);
    write(&mut body, &id);
    body.extend_from_slice(b"}}}");
    body
}

/// One member and the comma after it.
fn member(body: &mut Vec<u8>, name: &str, value: &(impl serde::Serialize + ?Sized)) {
    write(body, name);
    body.push(b':');
    write(body, value);
    body.push(b',');
}

/// Writing to memory cannot fail.
fn write(body: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    let _ = serde_json::to_writer(body, value);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_answer(message: &Value, expected: Option<&Value>) {
        let read = read_answer(message.to_string().as_bytes(), 7);
        let read = read.map(|answer| answer.unwrap_or_else(|error| json!(error.message)));
        assert_eq!(read.as_ref(), expected);
    }

    #[test]
    fn only_the_answer_to_the_request_is_its_answer() {
        check_answer(
            &json!({"jsonrpc": "2.0", "id": 7, "result": {"a": 1}}),
            Some(&json!({"a": 1})),
        );
        check_answer(&json!({"id": "7", "result": [1]}), Some(&json!([1])));
        check_answer(
            &json!({"id": 7, "error": {"code": 1, "message": "no"}}),
            Some(&json!("no")),
        );
        check_answer(
            &json!({"id": 7, "result": {}, "error": null}),
            Some(&json!({})),
        );
        check_answer(&json!({"id": 8, "result": {}}), None);
        check_answer(&json!({"id": 7, "method": "ping"}), None);
        check_answer(
            &json!({"method": "notifications/progress", "params": {}}),
            None,
        );
        check_answer(&json!({"id": null, "error": {"code": 1}}), None);
        check_answer(&json!([{"id": 7, "result": {}}]), None);
        check_answer(&json!({"id": 7}), None);
    }

    #[test]
    fn an_answer_of_too_many_values_is_an_error_that_says_so() {
        let result = vec!["0"; 500_000].join(",");
        let message = format!(r#"{{"id":7,"result":{{"structuredContent":{{"a":[{result}]}}}}}}"#);
        let error = read_answer(message.as_bytes(), 7).unwrap().unwrap_err();
        assert_eq!(error.message, "the result has more than 500000 JSON values");
    }

    #[test]
    fn a_request_says_what_the_client_says_and_what_the_connection_wants() {
        let params = json!({
            "name": "t", "arguments": {"a": [1]}, "inputResponses": {}, "_meta": {"trace": 1, "progressToken": "c"},
        });
        let Value::Object(params) = params else {
            unreachable!()
        };
        let read = |body: Vec<u8>| serde_json::from_slice::<Value>(&body).unwrap();
        let mut expected = json!({
            "jsonrpc": "2.0", "id": 5, "method": "tools/call",
            "params": {
                "name": "t", "arguments": {"a": [1]}, "inputResponses": {}, "_meta": {"trace": 1, "progressToken": 5},
            },
        });
        assert_eq!(read(body(5, &params, None)), expected);
        let meta = &mut expected["params"]["_meta"];
        meta["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
        meta["io.modelcontextprotocol/clientCapabilities"] = json!({"roots": {}});
        meta["io.modelcontextprotocol/clientInfo"] =
            json!({"name": "toolway", "version": env!("CARGO_PKG_VERSION")});
        let about = (&json!({"roots": {}}), "2026-07-28");
        assert_eq!(read(body(5, &params, Some(about))), expected);
        assert_eq!(
            read(body(5, &JsonObject::new(), None))["params"],
            json!({"_meta": {"progressToken": 5}})
        );
    }

    #[test]
    fn a_name_goes_into_a_header_only_as_it_is() {
        for name in ["echo", "a.b/c-d", "a=?b"] {
            assert!(is_header(name), "{name}");
        }
        for name in ["", "a b", " a", "\u{e9}", "=?base64?YQ==?=", "a\n"] {
            assert!(!is_header(name), "{name}");
        }
    }
}
