//! Model providers: one request out, one answer or one stream back.
//!
//! Knows addresses, keys, timeouts and retries; what the bodies mean is for `translate` to say.

mod error;
mod incoming;
pub mod retry;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tokio::time::{sleep, timeout};
use url::Url;

use crate::{catalog, openai::ErrorBody, secret::Secret, translate::stream::TextCalls};

pub use self::{
    error::{ModelError, Refused},
    incoming::Incoming,
};
use self::{incoming::reason, retry::Round};

/// One model provider, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name, for logs and messages.
    pub name: String,
    /// Where its API is; `/chat/completions` is added to the path.
    pub base_url: Url,
    /// Its key; absent: the client's own `Authorization` is passed on.
    pub api_key: Option<Secret>,
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
    /// It takes pictures in user messages. Default: false.
    pub images: bool,
    /// It takes sound in user messages. Default: false.
    pub audio: bool,
    /// An event that is no JSON is skipped instead of ending the stream with an error. Default: false.
    pub skip_invalid_events: bool,
    /// Longest wait for a connection. Default: 10 s.
    pub connect_timeout: Duration,
    /// Longest wait for the first byte of an answer. Default: 5 min.
    pub first_byte_timeout: Duration,
    /// Longest silence within an answer. Default: 2 min.
    pub silence_timeout: Duration,
    /// How often a request is sent again after a failure that is safe to repeat. Default: 2.
    pub retries: u32,
}

/// Longest error body that is read, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Response headers of a model provider that mean something to its clients.
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

/// All model providers, in the order of the configuration.
#[derive(Debug)]
pub struct Models {
    upstreams: Vec<Arc<Upstream>>,
}

impl Models {
    /// Readies a connection pool for each.
    ///
    /// # Errors
    /// When the TLS setup of the machine cannot be used.
    pub fn new(configs: Vec<Config>) -> Result<Models, reqwest::Error> {
        let upstreams = configs
            .into_iter()
            .map(|config| Upstream::new(config).map(Arc::new));
        Ok(Models {
            upstreams: upstreams.collect::<Result<_, _>>()?,
        })
    }

    /// The first whose patterns match the model.
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
    /// Takes the content encoding off.
    decoding: reqwest::Client,
    /// Leaves bodies as they are.
    verbatim: reqwest::Client,
}

impl Upstream {
    fn new(config: Config) -> Result<Upstream, reqwest::Error> {
        let builder = || {
            reqwest::Client::builder()
                .connect_timeout(config.connect_timeout)
                .pool_idle_timeout(Duration::from_secs(90))
                .redirect(reqwest::redirect::Policy::none())
                .tcp_nodelay(true)
        };
        let decoding = builder().gzip(true).build()?;
        let verbatim = builder().no_gzip().build()?;
        Ok(Upstream {
            config,
            decoding,
            verbatim,
        })
    }

    /// It has a model of this name.
    pub fn has(&self, model: &str) -> bool {
        self.config.models.is_empty()
            || self
                .config
                .models
                .iter()
                .any(|glob| catalog::meets(glob, model))
    }

    /// Its address for a path below its base, `chat/completions` for instance.
    pub fn url(&self, path: &str, query: Option<&str>) -> Url {
        let mut url = self.config.base_url.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/{path}"));
        if query.is_some() {
            url.set_query(query);
        }
        url
    }

    /// Asks for a chat completion. `headers` are the client's that go on; the key is added here.
    /// Sends again what is safe to send again; nothing has been shown to the client of this answer yet.
    ///
    /// Dropping the future, or the [`Incoming`], ends the call.
    pub async fn chat(
        &self,
        headers: &HeaderMap,
        body: Bytes,
        round: Round,
    ) -> Result<Incoming, ModelError> {
        let mut headers = self.outgoing(headers);
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
        let url = self.url("chat/completions", None);
        let mut attempt = 0;
        loop {
            let request = self
                .decoding
                .post(url.clone())
                .headers(headers.clone())
                .body(body.clone());
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
            tracing::info!(upstream.name = %self.config.name, attempt, pause_ms = pause.as_millis(), %error,
                "Asking the upstream `{}` again", self.config.name);
            sleep(pause).await;
            attempt += 1;
        }
    }

    /// Passes any other request on, body and all, and gives back what the upstream answers, as it is: status,
    /// headers and body.
    pub async fn forward(
        &self,
        method: Method,
        url: Url,
        headers: &HeaderMap,
        body: reqwest::Body,
    ) -> Result<(StatusCode, Incoming), ModelError> {
        let request = self
            .verbatim
            .request(method, url)
            .headers(self.outgoing(headers))
            .body(body);
        let mut response = self.send(request).await?;
        let headers = std::mem::take(response.headers_mut());
        Ok((response.status(), self.incoming(response, headers)))
    }

    /// The models it lists, as it describes them.
    pub async fn models(&self, headers: &HeaderMap) -> Result<Vec<serde_json::Value>, ModelError> {
        let request = self
            .decoding
            .get(self.url("models", None))
            .headers(self.outgoing(headers));
        let incoming = self.accept(self.send(request).await?).await?;
        let body = incoming.read_all(8 << 20).await?;
        #[derive(serde::Deserialize)]
        struct List {
            data: Vec<serde_json::Value>,
        }
        let list: List = serde_json::from_slice(&body)
            .map_err(|_| self.invalid("a list of models that cannot be read"))?;
        Ok(list.data)
    }

    /// The client's headers with this upstream's own key and headers put in.
    fn outgoing(&self, client: &HeaderMap) -> HeaderMap {
        let mut headers = client.clone();
        if let Some(key) = &self.config.api_key {
            headers.remove(header::AUTHORIZATION);
            if let Some(value) = sensitive(&format!("Bearer {}", key.expose())) {
                headers.insert(header::AUTHORIZATION, value);
            }
        }
        for (name, value) in &self.config.headers {
            if let Some(value) = sensitive(value.expose()) {
                headers.insert(name.clone(), value);
            }
        }
        headers
    }

    async fn send(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, ModelError> {
        let after = self.config.first_byte_timeout;
        let upstream = || self.config.name.clone();
        match timeout(after, request.send()).await {
            Err(_) => Err(ModelError::Timeout {
                upstream: upstream(),
                phase: "before its answer",
                after,
            }),
            Ok(Err(error)) if error.is_connect() => Err(ModelError::Unreachable {
                upstream: upstream(),
                reason: reason(&error),
            }),
            Ok(Err(error)) => Err(ModelError::Broken {
                upstream: upstream(),
                reason: reason(&error),
            }),
            Ok(Ok(response)) => Ok(response),
        }
    }

    /// Tells an answer from an error, whatever form that has.
    async fn accept(&self, response: reqwest::Response) -> Result<Incoming, ModelError> {
        let status = response.status();
        let content_type = response
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
        let headers = telling(response.headers());
        let mut incoming = self.incoming(response, headers);
        incoming.is_stream = content_type.starts_with("text/event-stream");
        if status.is_success() && !content_type.starts_with("text/html") {
            return Ok(incoming);
        }
        if status.is_success() || status.is_redirection() || status.is_informational() {
            let what = if status.is_success() {
                "with a web page".to_owned()
            } else {
                format!("{status}")
            };
            return Err(self.invalid(&format!("{what}; is its base_url right?")));
        }
        let headers = incoming.headers.clone();
        let body = incoming.read_start(MAX_ERROR_BYTES).await;
        let error = ErrorBody::from_upstream(status.as_u16(), Some(&content_type), &body);
        Err(ModelError::Refused(Box::new(Refused {
            upstream: self.config.name.clone(),
            status,
            error,
            headers,
        })))
    }

    fn incoming(&self, response: reqwest::Response, headers: HeaderMap) -> Incoming {
        Incoming {
            upstream: self.config.name.clone(),
            is_stream: false,
            headers,
            silence: self.config.silence_timeout,
            body: response.bytes_stream().boxed(),
        }
    }

    fn invalid(&self, what: &str) -> ModelError {
        ModelError::Invalid {
            upstream: self.config.name.clone(),
            what: what.to_owned(),
        }
    }
}

fn telling(headers: &HeaderMap) -> HeaderMap {
    let is_telling = |name: &str| TELLING.contains(&name) || name.starts_with("x-ratelimit-");
    let kept = headers.iter().filter(|(name, _)| is_telling(name.as_str()));
    kept.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
