//! Streamable HTTP: the requests that rmcp's client makes, with their answers kept raw and bounded.
//!
//! rmcp keeps sessions, resumes streams and cancels; this is the part that posts and reads. How raw results get through
//! rmcp is in `wrapped`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use http::{HeaderName, HeaderValue, StatusCode, header::ACCEPT};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::{
        StreamableHttpClientTransport,
        common::client_side_sse::ExponentialBackoff,
        streamable_http_client::{
            SseError, StreamableHttpClient, StreamableHttpClientTransportConfig,
            StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use serde_json::Value;
use sse_stream::{Sse, SseStream};
use tokio::time::timeout;
use url::Url;

use super::{
    events::{RawEvent, raw_events},
    pending::{Pending, too_long},
    web::{self, WebFault},
    wrapped::wrap_message,
};

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
const SESSION_ID: &str = "mcp-session-id";
const LAST_EVENT_ID: &str = "last-event-id";

/// Longest body of an answer that is an HTTP error.
const ERROR_BODY: usize = 64 << 10;

/// Longest pause between attempts to resume a stream.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

type Fault = StreamableHttpError<WebFault>;

/// Posts messages to one server.
#[derive(Clone)]
pub(super) struct Poster {
    client: reqwest::Client,
    limit: usize,
    patience: Duration,
    pending: Pending,
    refusal: Refusal,
}

/// Why the server refused the first message, if it did.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusal(Arc<Mutex<Option<WebFault>>>);

impl Refusal {
    /// The latest failure of an `initialize` or `server/discover`.
    pub(super) fn fault(&self) -> Option<WebFault> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, fault: &WebFault) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.clone());
    }
}

/// rmcp's transport to a server, and what it was refused for. `patience` is how long the server may be silent on
/// `server/discover`.
pub(super) fn transport(
    client: reqwest::Client,
    url: &Url,
    limit: usize,
    parallel_calls: usize,
    patience: Duration,
    pending: Pending,
) -> (StreamableHttpClientTransport<Poster>, Refusal) {
    let refusal = Refusal::default();
    let poster = Poster {
        client,
        limit,
        patience,
        pending,
        refusal: refusal.clone(),
    };
    let mut backoff = ExponentialBackoff::default();
    backoff.max_delay = Some(LONGEST_BACKOFF);
    // Lists and subscriptions run beside the calls.
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .max_concurrent_requests(parallel_calls.saturating_add(8));
    config.retry_config = Arc::new(backoff);
    (
        StreamableHttpClientTransport::with_client(poster, config),
        refusal,
    )
}

/// The error says that the session is not known. The specification wants 404 for that; servers on the TypeScript
/// SDK that were restarted answer 400 with `-32000` and "No valid session ID provided".
fn is_about_session(body: &Value) -> bool {
    let message = body["error"]["message"].as_str().unwrap_or_default();
    message.to_ascii_lowercase().contains("session")
}

impl Poster {
    async fn post(
        &self,
        url: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let body = serde_json::to_vec(message)?;
        let mut request = self
            .client
            .post(url)
            .header(http::header::CONTENT_TYPE, JSON)
            .header(ACCEPT, format!("{JSON}, {EVENT_STREAM}"))
            .headers(headers.into_iter().collect())
            .body(body);
        if let Some(session) = session {
            request = request.header(SESSION_ID, session);
        }
        let response = request
            .send()
            .await
            .map_err(|error| Fault::Client(error.into()))?;
        let asked = match message {
            JsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        match response.status() {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => {
                Ok(StreamableHttpPostResponse::Accepted)
            }
            StatusCode::NOT_FOUND if session.is_some() => Err(Fault::SessionExpired),
            status if status.is_success() => self.read_answer(response, asked).await,
            status => {
                self.read_refusal(response, status, asked, session.is_some())
                    .await
            }
        }
    }

    async fn read_answer(
        &self,
        response: reqwest::Response,
        asked: Option<RequestId>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let session = response.headers().get(SESSION_ID);
        let session = session.and_then(|id| id.to_str().ok()).map(str::to_owned);
        let media_type = web::media_type(&response);
        if media_type == EVENT_STREAM {
            return Ok(StreamableHttpPostResponse::Sse(
                self.read_events(response, asked),
                session,
            ));
        }
        // Some servers answer a notification with 200 and anything.
        let Some(asked) = asked else {
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        if media_type != JSON {
            return Err(Fault::Client(WebFault::NotMcp(media_type)));
        }
        let Some(body) = web::read_body(response, self.limit)
            .await
            .map_err(Fault::Client)?
        else {
            return self.fail(&asked, &too_long(self.limit), session);
        };
        match serde_json::from_slice(&body)
            .ok()
            .and_then(|body| self.pending.read(one(body), Some(&asked)))
        {
            Some(message) => Ok(StreamableHttpPostResponse::Json(
                wrap_message(with_id(message, asked)),
                session,
            )),
            None => self.fail(&asked, "the server's answer could not be read", session),
        }
    }

    /// An HTTP error. JSON-RPC in its body counts more than its status.
    async fn read_refusal(
        &self,
        response: reqwest::Response,
        status: StatusCode,
        asked: Option<RequestId>,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let fault = || Fault::Client(WebFault::Status(status));
        let is_about_access = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if is_about_access || web::media_type(&response) != JSON {
            return Err(fault());
        }
        let Some(asked) = asked else {
            return Err(fault());
        };
        let body = web::read_body(response, ERROR_BODY)
            .await
            .map_err(Fault::Client)?;
        let body = body.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
        let body = body.filter(|body| body.get("error").is_some_and(Value::is_object));
        if in_session
            && status == StatusCode::BAD_REQUEST
            && body.as_ref().is_some_and(is_about_session)
        {
            return Err(Fault::SessionExpired);
        }
        // Whoever refuses a message without reading it cannot know its id.
        let body = body.map(|mut body| {
            body["id"] = asked.clone().into_json_value();
            body
        });
        match body.and_then(|body| self.pending.read(body, None)) {
            Some(message) => Ok(StreamableHttpPostResponse::Json(message, None)),
            None => Err(fault()),
        }
    }

    fn fail(
        &self,
        asked: &RequestId,
        why: &str,
        session: Option<String>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let failure = self.pending.fail(asked, why);
        let failure = failure.ok_or(Fault::UnexpectedEndOfStream)?;
        Ok(StreamableHttpPostResponse::Json(failure, session))
    }

    /// The events of a response, with raw results wrapped. `asked` is the request the response belongs to.
    fn read_events(
        &self,
        response: reqwest::Response,
        asked: Option<RequestId>,
    ) -> BoxStream<'static, Result<Sse, SseError>> {
        let (pending, limit) = (self.pending.clone(), self.limit);
        raw_events(response.bytes_stream(), limit)
            .filter_map(move |event| {
                let (pending, asked) = (pending.clone(), asked.clone());
                async move {
                    match event {
                        Ok(RawEvent::Whole(bytes)) => {
                            read_event(&pending, bytes, asked.as_ref()).await
                        }
                        Ok(RawEvent::Cut { .. }) => {
                            let failure = pending.fail(&asked?, &too_long(limit))?;
                            Some(Ok(Sse::default().data(to_text(&failure)?)))
                        }
                        Err(error) => Some(Err(SseError::Body(WebFault::from(error).into()))),
                    }
                }
            })
            .boxed()
    }

    /// A probe is answered whatever happens, so that the handshake of the older versions follows it.
    async fn probe(
        &self,
        url: &str,
        message: &ClientJsonRpcMessage,
        id: &RequestId,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let why = match timeout(self.patience, self.post(url, message, None, headers)).await {
            Ok(Ok(StreamableHttpPostResponse::Accepted)) | Err(_) => "no answer".to_owned(),
            Ok(Err(Fault::Client(WebFault::Status(status)))) if !is_access(status) => {
                format!("HTTP {status}")
            }
            Ok(Err(Fault::Client(WebFault::NotMcp(what)))) => what,
            Ok(answer) => return answer,
        };
        let error = self
            .pending
            .give_up(id, &why)
            .ok_or(Fault::UnexpectedEndOfStream)?;
        Ok(StreamableHttpPostResponse::Json(error, None))
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

fn with_id(message: ServerJsonRpcMessage, asked: RequestId) -> ServerJsonRpcMessage {
    match message {
        ServerJsonRpcMessage::Error(error) if error.id.is_none() => {
            ServerJsonRpcMessage::error(error.error, Some(asked))
        }
        message => message,
    }
}

/// Reads one event. What carries no message keeps its id, from which the stream may be resumed.
async fn read_event(
    pending: &Pending,
    bytes: bytes::Bytes,
    asked: Option<&RequestId>,
) -> Option<Result<Sse, SseError>> {
    let one = futures::stream::iter([Ok::<_, std::convert::Infallible>(bytes)]);
    let mut event = match SseStream::from_bytes_stream(one).next().await? {
        Ok(event) => event,
        // An event that cannot be read costs only itself.
        Err(_) => return None,
    };
    if let (Some(asked), Some(id)) = (asked, &event.id) {
        pending.note_event(asked, id);
    }
    if let Some(data) = event.data.take() {
        let message = serde_json::from_str(&data)
            .ok()
            .and_then(|data| pending.read(data, asked));
        event.data = message.and_then(|message| to_text(&wrap_message(message)));
    }
    Some(Ok(event))
}

fn to_text(message: &ServerJsonRpcMessage) -> Option<String> {
    serde_json::to_string(message).ok()
}

impl StreamableHttpClient for Poster {
    type Error = WebFault;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        self.pending.note_sent(&message);
        let (is_first, probe) = match &message {
            ClientJsonRpcMessage::Request(request) => match &request.request {
                ClientRequest::DiscoverRequest(_) => (true, Some(&request.id)),
                ClientRequest::InitializeRequest(_) => (true, None),
                _ => (false, None),
            },
            _ => (false, None),
        };
        let answer = match probe {
            Some(id) => self.probe(&uri, &message, id, custom_headers).await,
            None => {
                self.post(&uri, &message, session_id.as_deref(), custom_headers)
                    .await
            }
        };
        if let (true, Err(Fault::Client(fault))) = (is_first, &answer) {
            self.refusal.set(fault);
        }
        if let (ClientJsonRpcMessage::Request(request), Err(_)) = (&message, &answer) {
            self.pending.forget(&request.id);
        }
        answer
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Fault> {
        let request = self
            .client
            .delete(uri.as_ref())
            .headers(custom_headers.into_iter().collect());
        let sent = request.header(SESSION_ID, session_id.as_ref()).send().await;
        sent.map(|_| ())
            .map_err(|error| Fault::Client(error.into()))
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Fault> {
        let mut request = self
            .client
            .get(uri.as_ref())
            .header(ACCEPT, EVENT_STREAM)
            .headers(custom_headers.into_iter().collect());
        if let Some(session) = session_id {
            request = request.header(SESSION_ID, session.as_ref());
        }
        // A stream that is resumed goes on to answer the same request.
        let asked = last_event_id.as_deref();
        let asked = asked.and_then(|event| self.pending.asked_until(event));
        if let Some(last_event_id) = last_event_id {
            request = request.header(LAST_EVENT_ID, last_event_id);
        }
        let response = request
            .send()
            .await
            .map_err(|error| Fault::Client(error.into()))?;
        match response.status() {
            status if status.is_success() && web::media_type(&response) == EVENT_STREAM => {
                Ok(self.read_events(response, asked))
            }
            // Asking again would not help: the server has no such stream.
            status if status.is_success() || status.is_client_error() => {
                Err(Fault::ServerDoesNotSupportSse)
            }
            status => Err(Fault::Client(WebFault::Status(status))),
        }
    }
}
