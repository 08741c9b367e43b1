//! One message of rmcp's and the server's answer to it, in any form.

use std::collections::HashMap;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream::BoxStream};
use http::{HeaderName, HeaderValue, StatusCode};
use rmcp::{
    model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::{SseError, StreamableHttpPostResponse},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use sse_stream::Sse;
use tokio::time::timeout;

use super::{AnsweredRequest, HttpFault, Poster, Reply, SESSION_ID, headers_of, is_about_session};
use crate::upstream::{
    check_values,
    mcp::{
        raw_messages::{
            Pending,
            wrapped::{shows_header_arguments, wrap_message},
        },
        web::{self, Framed, WebFault},
    },
    read_text, too_long,
};
use toolway_core::route::MAX_ATTEMPTS;
use toolway_protocol::{mcp::deep::read_message, sse::FrameError, tool::millis};

impl Poster {
    /// Posts a message, or continues an answer that has partly arrived.
    pub(super) async fn post(
        &self,
        message: &ClientJsonRpcMessage,
        asked: Option<&AnsweredRequest>,
        came: Option<Result<Reply, WebFault>>,
        session: Option<&str>,
        headers: &HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        let reply = match came {
            Some(reply) => reply,
            None => {
                if let Some(sends) = asked.and_then(|asked| asked.sends.as_ref()) {
                    sends.count();
                }
                let request = self.clients.client.post(self.url.clone());
                let request = request.headers(headers_of(headers, session));
                let sent = request.body(serde_json::to_vec(message)?).send().await;
                sent.map(Reply::Head).map_err(WebFault::from)
            }
        };
        match reply.map_err(HttpFault::Client)? {
            Reply::Head(head) => self.read_head(head, asked, session.is_some()).await,
            Reply::Body(body) => self.read_body(body, asked, None),
            Reply::Events(events) => Ok(StreamableHttpPostResponse::Sse(
                self.read_events(events.into_stream(), asked.map(|asked| asked.id.clone())),
                None,
            )),
        }
    }

    async fn read_head(
        &self,
        response: reqwest::Response,
        asked: Option<&AnsweredRequest>,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        match response.status() {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => {
                Ok(StreamableHttpPostResponse::Accepted)
            }
            status if status.is_success() => self.read_answer(response, asked).await,
            status => self.read_refusal(response, status, asked, in_session).await,
        }
    }

    async fn read_answer(
        &self,
        response: reqwest::Response,
        asked: Option<&AnsweredRequest>,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        let session = response.headers().get(SESSION_ID);
        let session = session.and_then(|id| id.to_str().ok()).map(str::to_owned);
        if web::is_events(response.headers()) {
            let events = web::events(response.bytes_stream(), self.limit);
            return Ok(StreamableHttpPostResponse::Sse(
                self.read_events(events, asked.map(|asked| asked.id.clone())),
                session,
            ));
        }
        // Some servers answer a notification with 200 and some body.
        if asked.is_none() {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !web::is_json(response.headers()) {
            return Err(HttpFault::Client(WebFault::NotMcp(web::media_type(
                response.headers(),
            ))));
        }
        let body = web::read_body(response, self.limit).await;
        self.read_body(
            body.map_err(HttpFault::Client)?.map(Bytes::from),
            asked,
            session,
        )
    }

    /// A body of JSON; `None` if it is too long.
    fn read_body(
        &self,
        body: Option<Bytes>,
        asked: Option<&AnsweredRequest>,
        session: Option<String>,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        let Some(asked) = asked else {
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        let Some(body) = body else {
            return self.fail(asked, &too_long(self.limit), session);
        };
        if let Err(why) = check_values(&body) {
            return self.fail(asked, &why, session);
        }
        let read = || {
            let body = read_message(&body).ok()?;
            self.pending.read(one(body), Some(&asked.id))
        };
        match read_text(body.len(), read) {
            Some(message) => Ok(StreamableHttpPostResponse::Json(
                ready(&self.pending, with_id(message, &asked.known_as)),
                session,
            )),
            None => self.fail(asked, "the server's answer could not be read", session),
        }
    }

    /// An HTTP error. JSON-RPC in its body counts more than its status, except an error where the session is lost.
    async fn read_refusal(
        &self,
        response: reqwest::Response,
        status: StatusCode,
        asked: Option<&AnsweredRequest>,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        let is_lost = in_session && status == StatusCode::NOT_FOUND;
        let fault = match is_lost {
            true => lost_session(asked),
            false => HttpFault::Client(WebFault::of_status(status, response.headers())),
        };
        let says_all = is_access(status) || status == StatusCode::TOO_MANY_REQUESTS;
        if says_all || !web::is_json(response.headers()) {
            return Err(fault);
        }
        let Some(asked) = asked else {
            return Err(fault);
        };
        let Ok(Some(body)) = web::read_body(response, self.limit).await else {
            return Err(fault);
        };
        if is_result(&body, &asked.id) {
            return self.read_body(Some(body.into()), Some(asked), None);
        }
        let body = serde_json::from_slice::<Value>(&body).ok();
        let body = body.filter(is_rpc_error);
        let is_about_session = || {
            body.as_ref()
                .is_some_and(|it| is_about_session(it, &asked.id))
        };
        if is_lost || in_session && status == StatusCode::BAD_REQUEST && is_about_session() {
            return Err(lost_session(Some(asked)));
        }
        // A server that refuses a message without reading it cannot know its id.
        let body = body.map(|mut body| {
            body["id"] = asked.id.clone().into_json_value();
            body
        });
        match body.and_then(|body| self.pending.read(body, None)) {
            Some(message) => Ok(StreamableHttpPostResponse::Json(message, None)),
            None => Err(fault),
        }
    }

    fn fail(
        &self,
        asked: &AnsweredRequest,
        why: &str,
        session: Option<String>,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        let failure = self.pending.fail(&asked.id, why);
        let failure = failure.ok_or(HttpFault::UnexpectedEndOfStream)?;
        Ok(StreamableHttpPostResponse::Json(failure, session))
    }

    /// The events of a response, with raw results wrapped. `asked` is the request the response belongs to, as the
    /// server knows it.
    pub(super) fn read_events<E: Send + 'static>(
        &self,
        events: impl Stream<Item = Result<Framed, E>> + Send + 'static,
        asked: Option<RequestId>,
    ) -> BoxStream<'static, Result<Sse, SseError>>
    where
        WebFault: From<E>,
    {
        let pending = self.pending.clone();
        events
            .filter_map(move |event| {
                let (pending, asked) = (pending.clone(), asked.clone());
                async move {
                    let event = match event {
                        Ok(event) => event,
                        Err(error) => {
                            return Some(Err(SseError::Body(WebFault::from(error).into())));
                        }
                    };
                    let (length, answers) = (web::length(&event), pending.answers());
                    let read = read_event(&pending, event, asked.as_ref());
                    if pending.answers() == answers {
                        pending.slow_down(length).await;
                    }
                    read.map(Ok)
                }
            })
            .boxed()
    }

    /// A probe always gets an answer, so that the handshake of the older versions follows.
    pub(super) async fn probe(
        &self,
        message: &ClientJsonRpcMessage,
        asked: &AnsweredRequest,
        headers: &HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        let post = self.post(message, Some(asked), None, None, headers);
        let why = match timeout(self.probe_timeout, post).await {
            Ok(Ok(StreamableHttpPostResponse::Accepted)) | Err(_) => "no answer".to_owned(),
            Ok(Err(HttpFault::Client(WebFault::Status(status) | WebFault::Busy(status, _))))
                if !is_access(status) =>
            {
                format!("HTTP {status}")
            }
            Ok(Err(HttpFault::Client(WebFault::NotMcp(what)))) => what,
            Ok(answer) => return answer,
        };
        let error = self
            .pending
            .give_up(&asked.id, &why)
            .ok_or(HttpFault::UnexpectedEndOfStream)?;
        Ok(StreamableHttpPostResponse::Json(error, None))
    }
}

/// The body is the result of this request.
fn is_result(body: &[u8], id: &RequestId) -> bool {
    #[derive(Deserialize)]
    struct ResultOf {
        id: RequestId,
        #[serde(rename = "result")]
        _result: IgnoredAny,
    }
    read_text(body.len(), || serde_json::from_slice::<ResultOf>(body)).is_ok_and(|it| it.id == *id)
}

/// The body is an error of JSON-RPC, and not one in the form of another API. All codes of JSON-RPC and MCP are
/// negative; some servers leave out `jsonrpc`.
fn is_rpc_error(body: &Value) -> bool {
    let error = &body["error"];
    let has_code = error["code"].as_i64().is_some_and(|code| code < 0);
    error.is_object() && (body["jsonrpc"].is_string() || has_code)
}

/// The error for a message whose session the server does not know. rmcp makes a new session and sends it once more,
/// unless it was sent so often already.
fn lost_session(asked: Option<&AnsweredRequest>) -> HttpFault {
    let sends = asked.and_then(|asked| asked.sends.as_ref());
    match sends.is_some_and(|sends| sends.so_far() >= MAX_ATTEMPTS) {
        true => HttpFault::Client(WebFault::LostSession),
        false => HttpFault::SessionExpired,
    }
}

fn is_access(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// The message of a body; of a batch (2025-03-26), the first that is an answer.
fn one(body: Value) -> Value {
    match body {
        Value::Array(batch) => batch
            .into_iter()
            .find(|message| message.get("method").is_none())
            .unwrap_or_default(),
        message => message,
    }
}

fn with_id(message: ServerJsonRpcMessage, id: &RequestId) -> ServerJsonRpcMessage {
    match message {
        ServerJsonRpcMessage::Error(error) if error.id.is_none() => {
            ServerJsonRpcMessage::error(error.error, Some(id.clone()))
        }
        message => message,
    }
}

/// Reads one event; one that cannot be read costs only itself. What carries no message keeps its id, from which the
/// stream may be resumed.
fn read_event(pending: &Pending, event: Framed, asked: Option<&RequestId>) -> Option<Sse> {
    let event = match event {
        Ok(event) => web::fields(&event)?,
        Err(FrameError::TooLong { limit, .. }) => {
            let failure = pending.fail(asked?, &too_long(limit))?;
            return Some(Sse::default().data(to_text(&failure)?));
        }
        Err(FrameError::InvalidUtf8 { .. }) => return None,
    };
    let id = Some(event.id).filter(|id| !id.is_empty());
    if let (Some(asked), Some(id)) = (asked, &id) {
        pending.note_event(asked, id);
    }
    let data = event.data;
    let message = match check_values(data.as_bytes()) {
        Ok(()) => read_text(data.len(), || {
            let data = read_message(data.as_bytes()).ok()?;
            pending.read(data, asked)
        }),
        Err(why) => pending.fail(asked?, &why),
    };
    Some(Sse {
        event: Some(event.event),
        data: message.and_then(|message| to_text(&ready(pending, message))),
        id,
        retry: event.retry.map(millis),
    })
}

/// Readies an answer for rmcp.
fn ready(pending: &Pending, message: ServerJsonRpcMessage) -> ServerJsonRpcMessage {
    let message = wrap_message(message);
    if shows_header_arguments(&message) {
        pending.note_header_arguments();
    }
    message
}

fn to_text(message: &ServerJsonRpcMessage) -> Option<String> {
    serde_json::to_string(message).ok()
}
