//! The HTTP client for the hot paths: model providers, functions, calls of MCP servers.
//!
//! No URL is parsed, no redirect prepared and no header copied for a request (reqwest, which does all that, costs as
//! much as the rest of toolway together; see `bench/`). With TLS it is hyper's client with its pool. Without TLS it is
//! `plain`, which needs no task per connection and no buffer for an idle one. If the environment names a proxy, it is
//! reqwest.

#[cfg(any(test, fuzzing))]
#[cfg_attr(test, expect(unreachable_pub, reason = "the fuzz target reads them"))]
pub mod differential;
mod framing;
mod plain;

use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_compression::tokio::bufread::GzipDecoder;
use bytes::Bytes;
use futures::{
    FutureExt, Stream, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header, uri::Scheme,
};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::{
        legacy::{self, connect::HttpConnector},
        proxy::matcher::Matcher,
    },
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::{Instant, timeout};
use tokio_util::io::{ReaderStream, StreamReader};
use tower::{BoxError, Service};

use toolway_protocol::{segmented_body::SegmentedBody, tool::millis};

/// Longest time for which an idle connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// Silence until a connection is probed, and the pause between the probes.
const PROBE: Duration = Duration::from_secs(15);

/// After this many unanswered probes the connection is dead.
const PROBES: u32 = 3;

/// Longest time without an acknowledgement of sent data (TCP).
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// Why the TLS setup of the machine cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("TLS cannot be used: {0}")]
pub struct SetupError(String);

impl SetupError {
    pub(crate) fn new(error: &(dyn std::error::Error + 'static)) -> SetupError {
        SetupError(root(error))
    }
}

impl From<reqwest::Error> for SetupError {
    fn from(error: reqwest::Error) -> SetupError {
        SetupError::new(&error)
    }
}

/// Connections to one host or several, kept for the next request. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client(ClientTransport);

#[derive(Clone)]
enum ClientTransport {
    /// Without TLS.
    Plain(Arc<plain::Pool>),
    /// With TLS; it may be HTTP/2 then.
    Secure(Arc<legacy::Client<Connector<HttpsConnector<HttpConnector>>, UploadBody>>),
    /// The environment names a proxy for this host.
    Proxied(reqwest::Client),
}

/// Headers, in the form that the caller has.
#[derive(Clone, Copy)]
pub(crate) enum Headers<'a> {
    Map(&'a HeaderMap),
    /// Needs a third of the memory.
    List(&'a [(HeaderName, HeaderValue)]),
}

/// A request on its way out.
pub(crate) struct Outgoing<'a> {
    pub(crate) method: Method,
    /// Absolute.
    pub(crate) uri: &'a Uri,
    pub(crate) headers: Headers<'a>,
    /// More headers, which replace those of the same name in `headers`.
    pub(crate) own: &'a [(HeaderName, HeaderValue)],
    pub(crate) body: &'a SegmentedBody<'a>,
    /// Notes when a part of a long body was sent; absent for short ones.
    pub(crate) upload: Option<&'a Arc<Upload>>,
}

/// When a part of a body was last sent.
#[derive(Debug)]
pub(crate) struct Upload {
    begun: Instant,
    /// Milliseconds from the beginning.
    moved: AtomicU64,
}

impl Upload {
    /// A body that is about to be sent.
    pub(crate) fn begin() -> Arc<Upload> {
        Arc::new(Upload {
            begun: Instant::now(),
            moved: AtomicU64::new(0),
        })
    }

    /// A part of it is being sent now.
    pub(crate) fn note(&self) {
        let moved = millis(self.begun.elapsed());
        self.moved.store(moved, Ordering::Relaxed);
    }

    /// When a part of it was last sent.
    pub(crate) fn last(&self) -> Instant {
        self.begun + Duration::from_millis(self.moved.load(Ordering::Relaxed))
    }
}

/// A body that is handed over in parts, so that it is known how far it was sent.
struct UploadBody {
    rest: Bytes,
    upload: Option<Arc<Upload>>,
}

/// Longest part of a body, in bytes.
const PART: usize = 64 << 10;

impl http_body::Body for UploadBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = match &self.upload {
            Some(upload) => {
                upload.note();
                PART.min(self.rest.len())
            }
            None => self.rest.len(),
        };
        let part = self.rest.split_to(length);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl Outgoing<'_> {
    /// All headers that are sent, except `Host` and `Content-Length`, which the sender of the body sets.
    fn headers(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        let is_own = |name| self.own.iter().any(|(own, _)| own == name);
        let (map, list) = match self.headers {
            Headers::Map(map) => (Some(map), None),
            Headers::List(list) => (None, Some(list)),
        };
        let list = list
            .into_iter()
            .flatten()
            .map(|(name, value)| (name, value));
        let others = map.into_iter().flatten().chain(list);
        let others = others.filter(move |(name, _)| !is_own(*name));
        let all = others.chain(self.own.iter().map(|(name, value)| (name, value)));
        all.filter(|(name, _)| {
            **name != header::CONTENT_LENGTH && **name != header::TRANSFER_ENCODING
        })
    }

    fn message(self) -> Request<Bytes> {
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers() {
            headers.append(name, value.clone());
        }
        let mut message = Request::new(self.body.to_bytes());
        *message.method_mut() = self.method;
        *message.uri_mut() = self.uri.clone();
        *message.headers_mut() = headers;
        message
    }
}

/// Why there is no answer, or why it broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// There was no connection; nothing was sent.
    #[error("{0}")]
    Connect(String),
    /// The connection broke.
    #[error("{0}")]
    Broken(String),
}

impl Client {
    /// A client for the host of this address. `connect_timeout` is the longest wait for a connection, TLS included.
    ///
    /// # Errors
    /// When the TLS setup of the machine cannot be used.
    pub(crate) fn new(host: &Uri, connect_timeout: Duration) -> Result<Client, SetupError> {
        if Matcher::from_system().intercept(host).is_some() {
            let client = reqwest(connect_timeout)?.no_gzip().build()?;
            return Ok(Client(ClientTransport::Proxied(client)));
        }
        let mut connect = HttpConnector::new();
        connect.enforce_http(false);
        connect.set_nodelay(true);
        connect.set_keepalive(Some(PROBE));
        connect.set_keepalive_interval(Some(PROBE));
        connect.set_keepalive_retries(Some(PROBES));
        #[cfg(target_os = "linux")]
        connect.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        if host.scheme() == Some(&Scheme::HTTP) {
            let connector = Connector {
                inner: connect,
                timeout: connect_timeout,
            };
            return Ok(Client(ClientTransport::Plain(
                plain::Pool::new(connector).into(),
            )));
        }
        let connector = Connector {
            inner: HttpsConnectorBuilder::new()
                .with_tls_config(tls()?)
                .https_or_http()
                .enable_all_versions()
                .wrap_connector(connect),
            timeout: connect_timeout,
        };
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Client(ClientTransport::Secure(client.into())))
    }

    /// Sends a request and returns when the head of the answer has arrived. Redirects are returned like any answer.
    ///
    /// Dropping the future, or the body it gives, ends the exchange.
    pub(crate) async fn send(&self, request: Outgoing<'_>) -> Result<Response<Body>, HttpError> {
        Ok(decoded(self.send_verbatim(request).await?))
    }

    /// The same, without decoding the body.
    pub(crate) async fn send_verbatim(
        &self,
        request: Outgoing<'_>,
    ) -> Result<Response<Body>, HttpError> {
        match &self.0 {
            ClientTransport::Plain(pool) => Ok(pool.send(request).await?.map(Body::Plain)),
            ClientTransport::Secure(client) => {
                let upload = request.upload.cloned();
                let message = request.message().map(|rest| UploadBody { rest, upload });
                let response = client.request(message).await;
                let response = response.map_err(|error| HttpError::of_client(&error))?;
                Ok(response.map(Body::Secure))
            }
            ClientTransport::Proxied(client) => {
                let upload = request.upload.cloned();
                let message = request.message().map(|rest| UploadBody { rest, upload });
                let request = message.map(reqwest::Body::wrap).try_into();
                let request = request.map_err(HttpError::from)?;
                let response = client.execute(request).await;
                let response = Response::from(response.map_err(HttpError::from)?);
                Ok(response.map(|body| {
                    let pieces = http_body_util::BodyDataStream::new(body);
                    Body::Other(pieces.map(|it| it.map_err(HttpError::from)).boxed())
                }))
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            ClientTransport::Plain(_) => "Client(plain)",
            ClientTransport::Secure(_) => "Client(secure)",
            ClientTransport::Proxied(_) => "Client(proxied)",
        })
    }
}

impl HttpError {
    fn of_client(error: &legacy::Error) -> HttpError {
        let reason = root(error);
        match error.is_connect() {
            true => HttpError::Connect(reason),
            false => HttpError::Broken(reason),
        }
    }
}

impl From<reqwest::Error> for HttpError {
    fn from(error: reqwest::Error) -> HttpError {
        let is_connect = error.is_connect();
        let reason = root(&error.without_url());
        match is_connect {
            true => HttpError::Connect(reason),
            false => HttpError::Broken(reason),
        }
    }
}

/// The root cause: "connection refused" and not "client error (Connect)". A TLS error is marked as one, because its
/// text alone is unclear.
pub(super) fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut reason = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    match is_of_tls(reason) {
        true => format!("TLS: {reason}"),
        false => reason.to_string(),
    }
}

fn is_of_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    // Wrapped in one or several `io::Error`s whose `source` does not return it.
    let io = error.downcast_ref::<io::Error>();
    let inner = io.and_then(io::Error::get_ref);
    error.is::<rustls::Error>() || inner.is_some_and(|inner| is_of_tls(inner))
}

/// The body of an answer while it arrives.
pub(crate) enum Body {
    /// As a connection without TLS gives it.
    Plain(plain::PlainBody),
    /// As a connection with TLS gives it.
    Secure(Incoming),
    /// Decoded, or from a proxy.
    Other(BoxStream<'static, Result<Bytes, HttpError>>),
}

impl Stream for Body {
    type Item = Result<Bytes, HttpError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut *self {
            Body::Other(pieces) => pieces.poll_next_unpin(cx),
            Body::Plain(body) => Pin::new(body).poll_next(cx),
            Body::Secure(body) => loop {
                let frame = std::task::ready!(Pin::new(&mut *body).poll_frame(cx));
                return Poll::Ready(match frame {
                    None => None,
                    Some(Err(error)) => Some(Err(HttpError::Broken(root(&error)))),
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(piece) => Some(Ok(piece)),
                        // Trailers are not used here.
                        Err(_) => continue,
                    },
                });
            },
        }
    }
}

/// Decodes the body. Functions are asked for an encoding; other servers may use one unasked.
fn decoded(response: Response<Body>) -> Response<Body> {
    let encoding = response.headers().get(header::CONTENT_ENCODING);
    if encoding.is_none_or(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"gzip")) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(header::CONTENT_ENCODING);
    parts.headers.remove(header::CONTENT_LENGTH);
    let mut body = body.peekable();
    let pieces = async move {
        // Some responses have no body and still name its encoding.
        match Pin::new(&mut body).peek().await {
            None => stream::empty().boxed(),
            Some(_) => unzipped(body).boxed(),
        }
    };
    Response::from_parts(parts, Body::Other(pieces.flatten_stream().boxed()))
}

fn unzipped(
    body: impl Stream<Item = Result<Bytes, HttpError>>,
) -> impl Stream<Item = Result<Bytes, HttpError>> {
    let pieces = body.map(|piece| piece.map_err(io::Error::other));
    let mut decoder = GzipDecoder::new(StreamReader::new(pieces));
    decoder.multiple_members(true);
    let pieces = ReaderStream::new(decoder);
    pieces.map(|piece| piece.map_err(|error| HttpError::Broken(root(&error))))
}

/// hyper's connector with a timeout.
#[derive(Clone)]
struct Connector<C> {
    inner: C,
    timeout: Duration,
}

impl<C> Service<Uri> for Connector<C>
where
    C: Service<Uri, Future: Send + 'static>,
    C::Error: Into<BoxError>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = timeout(self.timeout, self.inner.call(uri));
        Box::pin(async move {
            match connecting.await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => {
                    let why = io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
                    Err(why.into())
                }
            }
        })
    }
}

/// A reqwest client with the same settings.
///
/// # Errors
/// When the TLS setup of the machine cannot be used.
pub(crate) fn reqwest(connect_timeout: Duration) -> Result<reqwest::ClientBuilder, SetupError> {
    let builder = reqwest::Client::builder();
    Ok(builder
        .tls_backend_preconfigured(tls()?)
        .connect_timeout(connect_timeout)
        .pool_idle_timeout(IDLE)
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true))
}

/// The machine's root certificates, read once because that takes time and memory.
fn tls() -> Result<rustls::ClientConfig, SetupError> {
    static TLS: OnceLock<Result<Arc<rustls::ClientConfig>, String>> = OnceLock::new();
    let read = TLS.get_or_init(|| {
        let config = rustls::ClientConfig::builder().try_with_platform_verifier();
        let config = config.map_err(|error| error.to_string())?;
        Ok(Arc::new(config.with_no_client_auth()))
    });
    match read {
        Ok(config) => Ok(rustls::ClientConfig::clone(config)),
        Err(error) => Err(SetupError(error.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body with this declared encoding.
    async fn read(encoding: &'static str, body: &'static [u8]) -> Result<String, HttpError> {
        let pieces = stream::iter((!body.is_empty()).then(|| Ok(Bytes::from_static(body))));
        let response = Response::builder()
            .header(header::CONTENT_ENCODING, encoding)
            .body(Body::Other(pieces.boxed()))
            .unwrap();
        let mut pieces = decoded(response).into_body();
        let mut text = Vec::new();
        while let Some(piece) = pieces.next().await {
            text.extend_from_slice(&piece?);
        }
        Ok(String::from_utf8(text).unwrap())
    }

    /// `hello`, compressed.
    const HELLO: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xcb\x48\xcd\xc9\xc9\x07\x00\x86\xa6\x10\x36\x05\x00\x00\x00";

    #[tokio::test]
    async fn an_encoding_is_taken_off() {
        for encoding in ["gzip", "GZip"] {
            assert_eq!(read(encoding, HELLO).await.unwrap(), "hello");
        }
        assert_eq!(read("identity", b"hello").await.unwrap(), "hello");
        assert!(read("gzip", &HELLO[..12]).await.is_err());
        assert!(read("gzip", b"hello").await.is_err());
    }

    #[tokio::test]
    async fn why_there_is_no_connection_is_said() {
        crate::upstream::install_tls();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reason = async |uri: String| {
            let uri = Uri::try_from(uri).unwrap();
            let client = Client::new(&uri, Duration::from_secs(60)).unwrap();
            let request = Outgoing {
                method: http::Method::GET,
                uri: &uri,
                headers: Headers::List(&[]),
                own: &[],
                body: &SegmentedBody::default(),
                upload: None,
            };
            match client.send(request).await {
                Err(HttpError::Connect(reason)) => reason,
                other => panic!("{:?}", other.map(|_| ())),
            }
        };
        let answering = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .await
                .unwrap();
            stream
        };
        let (tls, _stream) = tokio::join!(reason(format!("https://{address}/")), answering);
        assert!(tls.starts_with("TLS: "), "{tls}");
        drop(listener);
        let refused = reason(format!("http://{address}/")).await;
        assert!(refused.contains("refused"), "{refused}");
        let unknown = reason("http://nowhere.invalid/".to_owned()).await;
        assert!(unknown.contains("lookup"), "{unknown}");
    }

    #[tokio::test]
    async fn no_body_has_no_encoding_whatever_is_said_of_it() {
        assert_eq!(read("gzip", b"").await.unwrap(), "");
    }
}
