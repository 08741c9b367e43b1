//! Streamable HTTP: the requests that rmcp's client makes, with their answers kept raw and bounded.
//!
//! rmcp keeps sessions, resumes streams and cancels. This module posts and reads, each message in `exchange`. `wrapped`
//! passes raw results through rmcp; `direct` makes the calls that need none of that.

mod direct;
mod exchange;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientNotification, ClientRequest, GetExtensions, RequestId},
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
use sse_stream::Sse;
use url::Url;

use self::direct::PostTemplate;
pub(super) use self::direct::{DirectCall, DirectOutcome, PostedRequest};
use super::{
    Sends,
    raw_messages::Pending,
    web::{self, Clients, Events, WebFault},
};
use crate::upstream::wire::{Body, Headers, HttpError, Outgoing};
use toolway_protocol::segmented_body::SegmentedBody;

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
pub(super) const PROTOCOL_VERSION: &str = "mcp-protocol-version";
pub(super) const SESSION_ID: &str = "mcp-session-id";
const LAST_EVENT_ID: &str = "last-event-id";

/// Longest pause between attempts to resume a stream.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

type HttpFault = StreamableHttpError<WebFault>;

/// Posts messages to one server.
#[derive(Clone, Debug)]
pub(super) struct Poster {
    clients: Arc<Clients>,
    limit: usize,
    probe_timeout: Duration,
    pending: Pending,
    refusal: FirstRefusal,
    url: Url,
    template: Arc<ArcSwapOption<PostTemplate>>,
    is_moved: Arc<AtomicBool>,
}

/// What a server has answered to a POST, as far as it was read.
pub(super) enum Reply {
    /// Nothing of the body.
    Head(reqwest::Response),
    /// All of a body of JSON; `None` if it is too long.
    Body(Option<Bytes>),
    /// Some of a stream.
    Events(Box<Events<Body, HttpError>>),
}

/// The request that an answer belongs to.
#[derive(Clone)]
struct AnsweredRequest {
    /// Its id as the server knows it.
    id: RequestId,
    /// Its id as rmcp knows it.
    known_as: RequestId,
    /// Absent where only rmcp repeats it.
    sends: Option<Sends>,
}

/// Why the server refused the first message, if it did.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstRefusal(Arc<Mutex<Option<WebFault>>>);

impl FirstRefusal {
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

/// rmcp's transport to a server, and its poster. `probe_timeout` is how long the server may be silent on
/// `server/discover`.
pub(super) fn transport(
    clients: Clients,
    url: &Url,
    limit: usize,
    parallel_calls: usize,
    probe_timeout: Duration,
    pending: Pending,
) -> (StreamableHttpClientTransport<Poster>, Poster) {
    let poster = Poster {
        clients: Arc::new(clients),
        limit,
        probe_timeout,
        pending,
        refusal: FirstRefusal::default(),
        url: url.clone(),
        template: Arc::default(),
        is_moved: Arc::default(),
    };
    let mut backoff = ExponentialBackoff::default();
    backoff.max_delay = Some(LONGEST_BACKOFF);
    // Lists and subscriptions run beside the calls.
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .max_concurrent_requests(parallel_calls.saturating_add(8));
    config.retry_config = Arc::new(backoff);
    (
        StreamableHttpClientTransport::with_client(poster.clone(), config),
        poster,
    )
}

/// The error says that the session is not known. The specification wants 404 for that; servers on the TypeScript
/// SDK that were restarted answer 400 with `-32000` and "No valid session ID provided".
///
/// A refusal that names this request has read it, and may come from a tool that has sessions of its own: it has to be
/// about MCP's beyond doubt, because the request is sent again.
fn is_about_session(body: &Value, id: &RequestId) -> bool {
    let message = body["error"]["message"].as_str().unwrap_or_default();
    let message = message.to_ascii_lowercase();
    let is_certain = ["session id", "session-id", "session not found"]
        .iter()
        .any(|words| message.contains(words));
    is_certain || (message.contains("session") && body["id"] != id.clone().into_json_value())
}

impl Poster {
    /// Posts a body by the client for calls.
    pub(super) async fn call(
        &self,
        template: &PostTemplate,
        headers: &[(HeaderName, HeaderValue)],
        body: &[u8],
    ) -> Result<http::Response<Body>, WebFault> {
        let request = Outgoing {
            method: http::Method::POST,
            uri: &template.uri,
            headers: Headers::Map(&template.headers),
            own: headers,
            body: &SegmentedBody::of(body),
            upload: None,
        };
        Ok(self.clients.quick.send(request).await?)
    }

    /// Why the server refused the first message, if it did.
    pub(super) fn refusal(&self) -> Option<WebFault> {
        self.refusal.fault()
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The server has moved, so calls have to follow the redirects.
    pub(super) fn note_moved(&self) {
        self.is_moved.store(true, Ordering::Relaxed);
    }

    /// The current URL and headers of messages; `None` before the handshake, or if no call can be made directly.
    pub(super) fn template(&self) -> Option<Arc<PostTemplate>> {
        match self.is_moved.load(Ordering::Relaxed) {
            true => None,
            false => self.template.load_full(),
        }
    }

    /// Notes the session and the version that both sides agreed on, now and after every later handshake.
    fn note_standing(
        &self,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        headers: &HashMap<HeaderName, HeaderValue>,
    ) {
        let is_settled = match message {
            ClientJsonRpcMessage::Notification(notification) => matches!(
                notification.notification,
                ClientNotification::InitializedNotification(_)
            ),
            // Without a handshake every request carries it.
            ClientJsonRpcMessage::Request(request) => {
                !matches!(
                    request.request,
                    ClientRequest::DiscoverRequest(_) | ClientRequest::InitializeRequest(_)
                ) && self.template.load().is_none()
            }
            _ => false,
        };
        if is_settled {
            let name = HeaderName::from_static(PROTOCOL_VERSION);
            let version = headers.get(&name).map(|version| (name, version.clone()));
            let mut headers = headers_of(&version.into_iter().collect(), session);
            // Configured headers, except those that toolway sets itself.
            for name in self.clients.headers.keys() {
                if !headers.contains_key(name) {
                    for value in self.clients.headers.get_all(name) {
                        headers.append(name, value.clone());
                    }
                }
            }
            let template =
                Uri::try_from(self.url.as_str()).map(|uri| PostTemplate { uri, headers });
            self.template.store(template.ok().map(Arc::new));
        }
    }

    /// Notes that a message is about to be sent: which request it is, and what has been answered if rmcp takes it over.
    fn note_asked(
        &self,
        message: &ClientJsonRpcMessage,
    ) -> (Option<AnsweredRequest>, Option<Result<Reply, WebFault>>) {
        let ClientJsonRpcMessage::Request(request) = message else {
            self.pending.note_sent(message);
            return (None, None);
        };
        let known_as = request.id.clone();
        let begun = request.request.extensions().get::<PostedRequest>();
        let (id, came) = match begun.and_then(|begun| Some((begun, begun.take()?))) {
            Some((begun, came)) => {
                self.pending.note_taken_over(&begun.id, &known_as);
                (begun.id.clone(), Some(came))
            }
            None => {
                if let Some(begun) = begun {
                    // rmcp makes it again, in a new session.
                    self.pending.forget(&begun.id);
                }
                self.pending.note_sent(message);
                (known_as.clone(), None)
            }
        };
        let sends = request.request.extensions().get::<Sends>().cloned();
        let asked = AnsweredRequest {
            id,
            known_as,
            sends,
        };
        (Some(asked), came)
    }

    /// The message, with request ids replaced by those that the server knows.
    fn with_ids_of_server(&self, mut message: ClientJsonRpcMessage) -> ClientJsonRpcMessage {
        if let ClientJsonRpcMessage::Notification(notification) = &mut message
            && let ClientNotification::CancelledNotification(cancelled) =
                &mut notification.notification
            && let Some(id) = &mut cancelled.params.request_id
        {
            *id = self.pending.id_at_server(id);
        }
        message
    }
}

/// The request was posted in another session than this one, which rmcp has made since.
fn was_begun_before(message: &ClientJsonRpcMessage, session: Option<&str>) -> bool {
    let ClientJsonRpcMessage::Request(request) = message else {
        return false;
    };
    let begun = request.request.extensions().get::<PostedRequest>();
    begun.is_some_and(|begun| {
        let before = begun.session.as_ref().map(HeaderValue::as_bytes);
        before != session.map(str::as_bytes)
    })
}

/// The headers of a POST.
fn headers_of(custom: &HashMap<HeaderName, HeaderValue>, session: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    let accept = HeaderValue::from_static("application/json, text/event-stream");
    headers.insert(header::ACCEPT, accept);
    for (name, value) in custom {
        headers.insert(name.clone(), value.clone());
    }
    if let Some(Ok(mut session)) = session.map(HeaderValue::from_str) {
        session.set_sensitive(true);
        headers.insert(HeaderName::from_static(SESSION_ID), session);
    }
    headers
}

impl StreamableHttpClient for Poster {
    type Error = WebFault;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        let message = self.with_ids_of_server(message);
        let session = session_id.as_deref();
        let (mut asked, came) = self.note_asked(&message);
        let (is_first, is_probe) = match &message {
            ClientJsonRpcMessage::Request(request) => match &request.request {
                ClientRequest::DiscoverRequest(_) => (true, true),
                ClientRequest::InitializeRequest(_) => (true, false),
                _ => (false, false),
            },
            _ => (false, false),
        };
        let mut answer = match &asked {
            Some(asked) if is_probe => self.probe(&message, asked, &custom_headers).await,
            asked => {
                self.post(&message, asked.as_ref(), came, session, &custom_headers)
                    .await
            }
        };
        if let Err(HttpFault::SessionExpired) = &answer
            && was_begun_before(&message, session)
        {
            (asked, _) = self.note_asked(&message);
            answer = self
                .post(&message, asked.as_ref(), None, session, &custom_headers)
                .await;
        }
        if let (true, Err(HttpFault::Client(fault))) = (is_first, &answer) {
            self.refusal.set(fault);
        }
        // Not earlier: a server may refuse calls until it has read `notifications/initialized`.
        if answer.is_ok() {
            self.note_standing(&message, session, &custom_headers);
        }
        if let (Some(asked), Err(_)) = (&asked, &answer) {
            self.pending.forget(&asked.id);
        }
        answer
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpFault> {
        let request = self
            .clients
            .client
            .delete(uri.as_ref())
            .headers(custom_headers.into_iter().collect());
        let sent = request.header(SESSION_ID, session_id.as_ref()).send().await;
        sent.map(|_| ())
            .map_err(|error| HttpFault::Client(error.into()))
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpFault> {
        let mut request = self
            .clients
            .client
            .get(uri.as_ref())
            .header(header::ACCEPT, EVENT_STREAM)
            .headers(custom_headers.into_iter().collect());
        if let Some(session) = session_id {
            request = request.header(SESSION_ID, session.as_ref());
        }
        // A resumed stream answers the same request.
        let asked = last_event_id.as_deref();
        let asked = asked.and_then(|event| self.pending.asked_until(event));
        if let Some(last_event_id) = last_event_id {
            request = request.header(LAST_EVENT_ID, last_event_id);
        }
        let response = request
            .send()
            .await
            .map_err(|error| HttpFault::Client(error.into()))?;
        match response.status() {
            status if status.is_success() && web::is_events(response.headers()) => {
                let events = web::events(response.bytes_stream(), self.limit);
                Ok(self.read_events(events, asked))
            }
            // Asking again would not help: the server has no such stream.
            status if status.is_success() || status.is_client_error() => {
                Err(HttpFault::ServerDoesNotSupportSse)
            }
            status => Err(HttpFault::Client(WebFault::Status(status))),
        }
    }
}
