//! Model providers: one request out, one answer or one stream back.
//!
//! Knows addresses, keys, timeouts and retries; `translate` knows the bodies.

mod api;
mod client_headers;
mod error;
mod incoming;
mod named;
mod native;
pub mod retry;

use std::{
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, header};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tower::BoxError;
use url::Url;

use super::wire::{self, Body, Client, Headers, HttpError, Outgoing, SetupError, Upload};
use crate::secret::Secret;
use toolway_core::{
    catalog,
    translate::{
        dialect::{gemini, sealed_turns::SealedTurns},
        stream::TextCalls,
    },
};
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    openai::ErrorBody,
    segmented_body::SegmentedBody,
    tool::{JsonObject, millis},
};

use self::named::NamedTargets;
use self::native::{Learned, MAX_SEALED_BYTES};
use self::retry::RoundPosition;
pub use self::{
    api::{API_NAMES, Api},
    client_headers::{ClientHeaders, Original, is_credential, is_credential_name},
    error::{ModelError, Refused},
    incoming::Incoming,
    named::{NamedModel, Route, RouteStep, TargetModel},
};

/// One model provider, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name, for logs and messages.
    pub name: String,
    /// Where its API is; `/chat/completions` is added to the path.
    pub base_url: Url,
    /// The API that it speaks. Default: [`Api::Auto`].
    pub api: Api,
    /// Its key. Default: none.
    pub api_key: Option<Secret>,
    /// The client's own credentials go to this upstream; at most one has it, and none with a key of its own.
    pub client_key: bool,
    /// Added to every request.
    pub headers: Vec<(http::HeaderName, Secret)>,
    /// Patterns (`*` stands for anything) of the models it has; empty: every model.
    pub models: Vec<String>,
    /// Most tools it takes in one request. Default: 128.
    pub max_tools: usize,
    /// Forms of tool calls in plain text that are read as calls. Default: none.
    pub text_tool_calls: TextCalls,
    /// `<think>…</think>` in the text is split off as reasoning. Default: false.
    pub think_tags: bool,
    /// Reasoning goes back to the model with the turn it belongs to. Default: true.
    pub send_reasoning: bool,
    /// It takes images in user messages. Default: false.
    pub images: bool,
    /// It takes audio in user messages. Default: false.
    pub audio: bool,
    /// An event that is no JSON is skipped instead of ending the stream with an error. Default: false.
    pub skip_invalid_events: bool,
    /// Longest wait for a connection. Default: 10 s.
    pub connect_timeout: Duration,
    /// Longest wait for the first byte of an answer, once the request was sent. Default: 5 min.
    pub first_byte_timeout: Duration,
    /// Longest silence within an answer. Default: 2 min.
    pub silence_timeout: Duration,
    /// How often a request is sent again after a failure that is safe to repeat. Default: 2.
    pub retries: u32,
}

/// Bodies up to this length, in bytes, count as sent at once.
const SHORT_BODY: usize = 64 << 10;

impl Config {
    /// The configuration gives it a key, in `api_key` or in one of its headers.
    pub fn has_own_key(&self) -> bool {
        self.api_key.is_some() || self.headers.iter().any(|(name, _)| is_credential(name))
    }
}
/// Longest wait for the answer to a probe.
const PROBE: Duration = Duration::from_secs(5);

/// Longest error body that is read, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Response headers of a model provider that clients act on.
const TELLING: [&str; 8] = [
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "openai-organization",
    "openai-processing-ms",
    "openai-version",
    "openai-model",
    "www-authenticate",
];

/// Headers of every chat, because toolway writes the body and reads the answer.
const OF_CHATS: [(HeaderName, HeaderValue); 2] = [
    (
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    ),
    (
        header::ACCEPT_ENCODING,
        HeaderValue::from_static("identity"),
    ),
];

/// Anthropic refuses requests without it.
const ANTHROPIC_VERSION: (HeaderName, HeaderValue) = (
    HeaderName::from_static("anthropic-version"),
    HeaderValue::from_static("2023-06-01"),
);

/// Google lists 50 models at a time unless more are asked for.
const ALL_MODELS: &str = "pageSize=1000";

/// All model providers, in the order of the configuration, and the names of one's own.
#[derive(Debug)]
pub struct Models {
    upstreams: Vec<Arc<Upstream>>,
    named: Vec<NamedTargets>,
}

impl Models {
    /// Prepares a connection pool for each.
    ///
    /// # Errors
    /// When the TLS setup of the machine cannot be used.
    pub fn new(configs: Vec<Config>, named: Vec<NamedModel>) -> Result<Models, SetupError> {
        let upstreams = configs
            .into_iter()
            .map(|config| Upstream::new(config).map(Arc::new));
        let upstreams: Vec<_> = upstreams.collect::<Result<_, _>>()?;
        let named = named.into_iter();
        Ok(Models {
            named: named.map(|it| NamedTargets::new(it, &upstreams)).collect(),
            upstreams,
        })
    }

    /// The first whose patterns match the model; [`Models::route`] knows names of one's own as well.
    pub fn choose(&self, model: &str) -> Option<&Arc<Upstream>> {
        self.upstreams.iter().find(|upstream| upstream.has(model))
    }

    /// The one of this name.
    pub fn named(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.upstreams
            .iter()
            .find(|upstream| upstream.config.name == name)
    }

    /// All of them.
    pub fn all(&self) -> &[Arc<Upstream>] {
        &self.upstreams
    }
}

/// One model provider with its connections.
#[derive(Debug)]
pub struct Upstream {
    /// As configured.
    pub config: Config,
    name: Arc<str>,
    /// Where chat completions are.
    chat: Uri,
    /// Where responses are.
    responses: Uri,
    /// Where messages are.
    messages: Uri,
    /// What is known about its models.
    learned: Learned,
    /// What its models sealed, and clients may drop.
    sealed_turns: Arc<Mutex<SealedTurns>>,
    /// Where the list of models is.
    models: Uri,
    /// Its key and headers, which replace the client's.
    own: Vec<(HeaderName, HeaderValue)>,
    /// The same with those of a chat.
    own_of_chats: Vec<(HeaderName, HeaderValue)>,
    client: Client,
    /// Sends the bodies of long requests while they arrive.
    uploads: reqwest::Client,
}

impl Upstream {
    fn new(config: Config) -> Result<Upstream, SetupError> {
        let chat = uri(&below(&config.base_url, "chat/completions"))?;
        let mut models = below(&config.base_url, "models");
        if config.api == Api::Gemini {
            models.set_query(Some(ALL_MODELS));
        }
        let models = uri(&models)?;
        let responses = uri(&below(&config.base_url, "responses"))?;
        let messages = uri(&below(&config.base_url, "messages"))?;
        let client = Client::new(&chat, config.connect_timeout)?;
        let uploads = wire::reqwest(config.connect_timeout)?.no_gzip();
        // Without TLS, a late answer on a reused connection would be taken for the answer to the next request. `client`
        // prevents that; here each request has its own connection.
        let uploads = match config.base_url.scheme() {
            "http" => uploads.pool_max_idle_per_host(0),
            _ => uploads,
        };
        let key = config.api_key.as_ref().and_then(|key| {
            Some(match config.api.key_header() {
                Some(header) => (header, sensitive(key.expose())?),
                None => (
                    header::AUTHORIZATION,
                    sensitive(&format!("Bearer {}", key.expose()))?,
                ),
            })
        });
        let version = (config.api == Api::Anthropic).then_some(ANTHROPIC_VERSION);
        let headers = config.headers.iter();
        let headers =
            headers.filter_map(|(name, value)| Some((name.clone(), sensitive(value.expose())?)));
        let own = key.into_iter().chain(version);
        // A later one of the same name takes the place of an earlier one.
        let own: HeaderMap = own.chain(headers).fold(HeaderMap::new(), with);
        let own_of_chats = OF_CHATS.into_iter().fold(own.clone(), with);
        Ok(Upstream {
            name: config.name.as_str().into(),
            chat,
            responses,
            messages,
            learned: Learned::default(),
            sealed_turns: Arc::new(Mutex::new(SealedTurns::new(MAX_SEALED_BYTES))),
            models,
            own: listed(&own),
            own_of_chats: listed(&own_of_chats),
            client,
            uploads: uploads.build()?,
            config,
        })
    }

    /// It has a model of this name.
    pub fn has(&self, model: &str) -> bool {
        self.config.models.is_empty()
            || self
                .config
                .models
                .iter()
                .any(|glob| catalog::matches(glob, model))
    }

    /// Its address for a path below its base, `chat/completions` for instance.
    pub fn url(&self, path: &str, query: Option<&str>) -> Url {
        let mut url = below(&self.config.base_url, path);
        if query.is_some() {
            url.set_query(query);
        }
        url
    }

    /// Sends a request to a chat address. `headers` are the client's; the upstream's own key is added here. Retries
    /// failures that are safe to repeat; the client has not seen any of this answer yet.
    async fn post(
        &self,
        uri: &Uri,
        headers: &ClientHeaders,
        body: &SegmentedBody<'_>,
        round: RoundPosition,
    ) -> Result<Incoming, ModelError> {
        let mut attempt = 0;
        loop {
            // A short body is sent at once and needs no watching.
            let upload = (body.len() > SHORT_BODY).then(Upload::begin);
            let request = Outgoing {
                method: Method::POST,
                uri,
                headers: Headers::List(headers.shown_to(&self.config)),
                own: &self.own_of_chats,
                body,
                upload: upload.as_ref(),
            };
            let error = match self.send(request).await {
                Ok(response) => match self.accept(response).await {
                    Ok(incoming) => return Ok(incoming),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let Some(pause) = retry::pause(&error, round, attempt, self.config.retries) else {
                return Err(error);
            };
            attempt += 1;
            tracing::info!(attempt, pause_ms = millis(pause), %error,
                "Asking the upstream again");
            sleep(pause).await;
        }
    }

    /// Forwards any other request with its body, and returns the upstream's answer unchanged: status, headers and body.
    pub async fn forward<E: Into<BoxError> + 'static>(
        &self,
        method: Method,
        url: Url,
        headers: &HeaderMap,
        body: Option<impl Stream<Item = Result<Bytes, E>> + Send + 'static>,
    ) -> Result<(StatusCode, Incoming), ModelError> {
        let headers = self.with_own(headers);
        let length = headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let is_short = length.is_some_and(|length: usize| length <= SHORT_BODY);
        let response = match body {
            Some(body) if !is_short => self.upload(method, url, headers, body).await?,
            body => {
                let body = self.gather(body).await?;
                let request = Outgoing {
                    method,
                    uri: &uri(&url).map_err(|_| self.invalid("an address that cannot be used"))?,
                    headers: Headers::Map(&headers),
                    own: &[],
                    body: &SegmentedBody::of(&body),
                    upload: None,
                };
                let sending = pin!(self.client.send_verbatim(request));
                self.in_time(sending, None).await?
            }
        };
        let (parts, body) = response.into_parts();
        Ok((parts.status, self.incoming(body, parts.headers)))
    }

    /// The whole of a short body.
    async fn gather<E: Into<BoxError>>(
        &self,
        body: Option<impl Stream<Item = Result<Bytes, E>>>,
    ) -> Result<Vec<u8>, ModelError> {
        let mut whole = Vec::new();
        let mut body = pin!(stream::iter(body).flatten());
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| ModelError::Broken {
                upstream: self.config.name.clone(),
                reason: error.into().to_string(),
            })?;
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }

    /// Sends a request while its body arrives.
    async fn upload<E: Into<BoxError> + 'static>(
        &self,
        method: Method,
        url: Url,
        headers: HeaderMap,
        body: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Result<Response<Body>, ModelError> {
        let upload = Upload::begin();
        let sent = Arc::clone(&upload);
        let body = reqwest::Body::wrap_stream(body.inspect(move |_| sent.note()));
        let request = self
            .uploads
            .request(method, url)
            .headers(headers)
            .body(body);
        let sending = pin!(async { request.send().await.map_err(HttpError::from) });
        let response = Response::from(self.in_time(sending, Some(&upload)).await?);
        Ok(response.map(|body| {
            let pieces = http_body_util::BodyDataStream::new(body);
            Body::Other(pieces.map_err(HttpError::from).boxed())
        }))
    }

    /// The models it lists, as it describes them.
    pub async fn models(&self, headers: &ClientHeaders) -> Result<Vec<Value>, ModelError> {
        let key = self.config.api.key_header();
        let moved = key.map(|key| headers.with_key_in(&key));
        let headers = moved.as_ref().unwrap_or(headers);
        let request = Outgoing {
            method: Method::GET,
            uri: &self.models,
            headers: Headers::List(headers.shown_to(&self.config)),
            own: &self.own,
            body: &SegmentedBody::default(),
            upload: None,
        };
        let incoming = self.accept(self.send(request).await?).await?;
        let body = incoming.read_all(8 << 20).await?;
        let list: Option<JsonObject> = check_values(&body, MAX_VALUES)
            .ok()
            .and_then(|()| serde_json::from_slice(&body).ok());
        let models = list.and_then(|mut list| match self.config.api {
            Api::Gemini => gemini::read_models(&list),
            _ => match list.shift_remove("data")? {
                Value::Array(models) => Some(models),
                _ => None,
            },
        });
        models.ok_or_else(|| self.invalid("a list of models that cannot be read"))
    }

    /// Checks that requests reach the upstream, by requesting its list of models. An upstream without that list passes,
    /// and so does one that requires a key if the client's key is used.
    pub async fn probe(&self) -> Result<(), ModelError> {
        let request = Outgoing {
            method: Method::GET,
            uri: &self.models,
            headers: Headers::List(&[]),
            own: &self.own,
            body: &SegmentedBody::default(),
            upload: None,
        };
        let trying = async { self.accept(self.send(request).await?).await };
        let has_key = self.config.has_own_key();
        match timeout(PROBE, trying).await {
            Ok(Err(ModelError::Refused(refused)))
                if match refused.status {
                    StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => !has_key,
                    // What Google says of a wrong key.
                    StatusCode::BAD_REQUEST if self.config.api == Api::Gemini => !has_key,
                    status => status.is_client_error(),
                } =>
            {
                Ok(())
            }
            Ok(tried) => tried.map(|_| ()),
            Err(_) => Err(ModelError::Timeout {
                upstream: self.config.name.clone(),
                phase: "before its answer",
                after: PROBE,
            }),
        }
    }

    /// The client's headers with this upstream's own key and headers put in.
    fn with_own(&self, client: &HeaderMap) -> HeaderMap {
        let mut headers = client.clone();
        if !self.config.client_key {
            client_headers::remove_credentials(&mut headers);
        }
        for (name, value) in &self.own {
            headers.insert(name, value.clone());
        }
        headers
    }

    async fn send(&self, request: Outgoing<'_>) -> Result<Response<Body>, ModelError> {
        let upload = request.upload;
        // Pinned in place, because moving it would store it twice.
        let sending = pin!(self.client.send(request));
        self.in_time(sending, upload).await
    }

    /// Waits for the head of an answer. The time limit starts when the last part of the body was sent.
    async fn in_time<T>(
        &self,
        mut sending: Pin<&mut impl Future<Output = Result<T, HttpError>>>,
        upload: Option<&Arc<Upload>>,
    ) -> Result<T, ModelError> {
        let after = self.config.first_byte_timeout;
        let upstream = || self.config.name.clone();
        let mut due = Instant::now() + after;
        let sent = loop {
            let sent = timeout_at(due, &mut sending).await;
            let later = upload.map(|upload| upload.last() + after);
            match later.filter(|later| sent.is_err() && *later > Instant::now()) {
                Some(later) => due = later,
                None => break sent,
            }
        };
        match sent {
            Err(_) => Err(ModelError::Timeout {
                upstream: upstream(),
                phase: "before its answer",
                after,
            }),
            Ok(Err(HttpError::Connect(reason))) => Err(ModelError::Unreachable {
                upstream: upstream(),
                reason,
            }),
            Ok(Err(HttpError::Broken(reason))) => Err(ModelError::Broken {
                upstream: upstream(),
                reason,
            }),
            Ok(Ok(response)) => Ok(response),
        }
    }

    /// Tells an answer from an error in any form.
    async fn accept(&self, response: Response<Body>) -> Result<Incoming, ModelError> {
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.map_or(&b""[..], HeaderValue::as_bytes);
        let is_stream = begins_with(content_type, b"text/event-stream");
        if response.status().is_success() && !begins_with(content_type, b"text/html") {
            let headers = telling(response.headers());
            let mut incoming = self.incoming(response.into_body(), headers);
            incoming.is_stream = is_stream;
            return Ok(incoming);
        }
        Err(Box::pin(self.refusal(response)).await)
    }

    /// The error for an unsuccessful answer.
    async fn refusal(&self, response: Response<Body>) -> ModelError {
        let (parts, body) = response.into_parts();
        let status = parts.status;
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.map_or(&b""[..], HeaderValue::as_bytes);
        if status.is_success() || status.is_redirection() || status.is_informational() {
            let what = if status.is_success() {
                "with a web page".to_owned()
            } else {
                format!("{status}")
            };
            return self.invalid(&format!("{what}; is its base_url right?"));
        }
        let headers = telling(&parts.headers);
        let incoming = self.incoming(body, HeaderMap::new());
        let body = incoming.read_start(MAX_ERROR_BYTES).await;
        let content_type = String::from_utf8_lossy(content_type).to_ascii_lowercase();
        let error = ErrorBody::from_upstream(status.as_u16(), Some(&content_type), &body);
        ModelError::Refused(Box::new(Refused {
            upstream: self.config.name.clone(),
            status,
            error,
            headers,
        }))
    }

    /// An answer with an error status, of whose body nothing was read.
    pub fn refused(&self, status: StatusCode, headers: &HeaderMap) -> ModelError {
        ModelError::Refused(Box::new(Refused {
            upstream: self.config.name.clone(),
            status,
            error: ErrorBody::from_upstream(status.as_u16(), None, b""),
            headers: headers.clone(),
        }))
    }

    fn incoming(&self, body: Body, headers: HeaderMap) -> Incoming {
        Incoming {
            upstream: Arc::clone(&self.name),
            is_stream: false,
            headers,
            warnings: Vec::new(),
            silence: self.config.silence_timeout,
            body,
            timer: None,
        }
    }

    fn invalid(&self, what: &str) -> ModelError {
        ModelError::Invalid {
            upstream: self.config.name.clone(),
            what: what.to_owned(),
        }
    }
}

/// The address of a path below a base.
fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    let base = url.path().trim_end_matches('/').to_owned();
    url.set_path(&format!("{base}/{path}"));
    url
}

fn uri(url: &Url) -> Result<Uri, SetupError> {
    let uri = url.as_str().parse();
    uri.map_err(|error: http::uri::InvalidUri| SetupError::new(&error))
}

/// A media type is this one, whatever its letters' case and parameters.
fn begins_with(value: &[u8], media_type: &[u8]) -> bool {
    let start = value.get(..media_type.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(media_type))
}

fn telling(headers: &HeaderMap) -> HeaderMap {
    let is_telling = |name: &str| TELLING.contains(&name) || name.starts_with("x-ratelimit-");
    let kept = headers.iter().filter(|(name, _)| is_telling(name.as_str()));
    kept.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn with(mut headers: HeaderMap, (name, value): (HeaderName, HeaderValue)) -> HeaderMap {
    headers.insert(name, value);
    headers
}

fn listed(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let headers = headers.iter();
    headers
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
