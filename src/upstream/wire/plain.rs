//! HTTP/1.1 without TLS, for local models and tools.
//!
//! A request and its answer are one future on one socket: no task drives the connection, nothing goes through a
//! channel, and no buffer is held where nothing has arrived. That makes it cheaper than hyper's client; what it does
//! not support is not needed here.

use std::{
    future::poll_fn,
    io::{self, Read},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use futures::Stream;
use http::{Method, Response, Uri, uri::Authority};
use hyper_util::client::legacy::connect::HttpConnector;
use socket2::SockRef;
use tokio::{
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::io::{poll_read_buf, poll_write_buf};
use tower::Service;

use super::{
    Connector, HttpError, Outgoing,
    framing::{BodyStep, Framing, MalformedResponse, ResponseHead, read_head, write_head},
    root,
};
use toolway_protocol::segmented_body::Sending;

/// Most idle connections; for one more the oldest is closed.
const MAX_IDLE: usize = if cfg!(test) { 4 } else { 512 };

/// How often unusable connections are looked for.
const SWEEP: Duration = Duration::from_secs(15);

/// How long connections to a server are not reused after it sent bytes that belong to no answer. The check before a
/// reuse finds most such bytes, but not those that arrive just after it.
const DISTRUST: Duration = Duration::from_secs(600);

/// How long a connection is used, and at least for [`MIN_USES`] requests. A stray answer that arrives during a request
/// cannot be told from the real one, and every later answer is then off by one until the connection ends. With a slow
/// server this limits the damage to few answers; with a fast one a new connection costs little.
const USED_FOR: Duration = Duration::from_secs(1);

/// See [`USED_FOR`].
const MIN_USES: u32 = 32;

/// The beginning of the answer that some servers send before they close an idle connection.
const TIMED_OUT: &[u8] = b" 408";

/// Buffer sizes: the first, and the one after the first was filled.
const ROOM: usize = 4 << 10;
const MOST_ROOM: usize = 64 << 10;

/// Connections, kept for the next request.
pub(super) struct Pool {
    connector: Connector<HttpConnector>,
    kept: Mutex<IdleConnections>,
}

/// The idle connections with the time since when each is idle; the last one was used most recently.
#[derive(Default)]
struct IdleConnections {
    connections: Vec<(PlainConnection, Instant)>,
    /// Closes those that cannot be used any more.
    sweeper: Option<JoinHandle<()>>,
    /// No connection is kept until then: see [`DISTRUST`].
    distrusted_until: Option<Instant>,
}

struct PlainConnection {
    stream: TcpStream,
    to: Authority,
    opened: Instant,
    /// The number of its requests so far.
    uses: u32,
    /// How long it can stay idle.
    lasts: Duration,
}

impl Pool {
    pub(super) fn new(connector: Connector<HttpConnector>) -> Pool {
        Pool {
            connector,
            kept: Mutex::default(),
        }
    }

    /// Sends a request, as [`super::Client::send`] has it.
    pub(super) async fn send(
        self: &Arc<Pool>,
        request: Outgoing<'_>,
    ) -> Result<Response<PlainBody>, HttpError> {
        let (uri, method, body) = (request.uri, &request.method, request.body);
        let Some(to) = uri.authority() else {
            return Err(HttpError::Connect("the address names no host".to_owned()));
        };
        let head = write_head(method, uri, request.headers(), body.len());
        let pieces: Vec<&[u8]> = [&head[..]].into_iter().chain(body.iter()).collect();
        loop {
            let (mut connection, was_kept) = match self.take(to) {
                Some(connection) => (connection, true),
                None => (self.connect(uri, to).await?, false),
            };
            let mut message = Sending::new(&pieces);
            let length = message.remaining();
            let mut buffer = BytesMut::new();
            let exchanged = poll_fn(|cx| {
                let before = message.remaining();
                let exchanged = connection.exchange(cx, &mut message, &mut buffer, method);
                if let Some(upload) = request.upload
                    && message.remaining() < before
                {
                    upload.note();
                }
                exchanged
            })
            .await;
            let left = message.remaining();
            match exchanged {
                // The server has closed it in the meantime and has not read this request. Bytes that it sent are not an
                // answer to it.
                _ if was_kept && left == length => {}
                // No server sends this before it has read the request, so it belongs to the end of an earlier exchange.
                Ok(head) if was_kept && left > 0 && head.response.status().is_success() => {
                    let reason = "an answer came before the request was sent";
                    return Err(HttpError::Broken(reason.to_owned()));
                }
                Ok(head) => {
                    connection.uses += 1;
                    connection.lasts = head.lasts.unwrap_or_default();
                    let goes_on = head.response.status().is_success();
                    let unsent = match goes_on && left > 0 {
                        true => message.copy_to_bytes(left),
                        false => Bytes::new(),
                    };
                    let is_lasting =
                        head.lasts.is_some() && (goes_on || left == 0) && !connection.is_worn();
                    let pool = is_lasting.then(|| Arc::clone(self));
                    let incoming = PlainBody::new(connection, buffer, head.framing, unsent, pool);
                    return Ok(head.response.map(|()| incoming));
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn connect(&self, uri: &Uri, to: &Authority) -> Result<PlainConnection, HttpError> {
        let connected = self.connector.clone().call(uri.clone()).await;
        let stream = connected.map_err(|error| HttpError::Connect(root(&*error)))?;
        Ok(PlainConnection {
            stream: stream.into_inner(),
            to: to.clone(),
            opened: Instant::now(),
            uses: 0,
            lasts: Duration::ZERO,
        })
    }

    /// A connection that can be used at once.
    fn take(&self, to: &Authority) -> Option<PlainConnection> {
        let mut kept = self.kept();
        let connections = &mut kept.connections;
        while let Some(at) = connections.iter().rposition(|(it, _)| it.to == *to) {
            let (connection, since) = connections.remove(at);
            match connection.look(since) {
                Idle::Fresh => return Some(connection),
                Idle::Over => {}
                Idle::Strayed => {
                    kept.distrust(to);
                    return None;
                }
            }
        }
        None
    }

    fn keep(self: &Arc<Pool>, connection: PlainConnection) {
        let mut kept = self.kept();
        if kept.distrusted_until.is_some_and(|it| Instant::now() < it) {
            return;
        }
        if kept.connections.len() == MAX_IDLE {
            kept.connections.remove(0);
        }
        kept.connections.push((connection, Instant::now()));
        if kept.sweeper.as_ref().is_none_or(JoinHandle::is_finished) {
            kept.sweeper = Some(tokio::spawn(sweep(Arc::downgrade(self))));
        }
    }

    fn kept(&self) -> MutexGuard<'_, IdleConnections> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what cannot be used any more, until there is nothing left.
async fn sweep(pool: Weak<Pool>) {
    loop {
        sleep(SWEEP).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        let mut kept = pool.kept();
        kept.connections
            .retain(|(connection, since)| connection.look(*since) == Idle::Fresh);
        if kept.connections.is_empty() {
            kept.sweeper = None;
            return;
        }
    }
}

impl IdleConnections {
    /// The server sent bytes that belong to no answer.
    fn distrust(&mut self, to: &Authority) {
        let now = Instant::now();
        if self.distrusted_until.is_none_or(|it| it <= now) {
            tracing::warn!(
                host = %to,
                "A server sent bytes that belong to no answer; its connections are not used again for 10 minutes"
            );
        }
        self.distrusted_until = Some(now + DISTRUST);
        self.connections.clear();
    }
}

/// The state of an idle connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Idle {
    /// It can be used.
    Fresh,
    /// It is closed, or was kept for too long.
    Over,
    /// It received bytes after the last answer.
    Strayed,
}

impl PlainConnection {
    /// It has been used long enough.
    fn is_worn(&self) -> bool {
        self.uses >= MIN_USES && self.opened.elapsed() >= USED_FOR
    }

    /// It can be used if it is neither closed nor has received a byte since the last answer, which would be taken for
    /// the beginning of the next one. The system is asked, because the runtime learns of a byte only later.
    ///
    /// What arrives between this look and the write of the request, or is then still on its way, cannot be told from
    /// the answer to it: HTTP/1.1 names no request in an answer (RFC 9112, 9.3).
    fn look(&self, since: Instant) -> Idle {
        if since.elapsed() >= self.lasts {
            return Idle::Over;
        }
        let mut start = [0; b"HTTP/1.1 408".len()];
        match (&*SockRef::from(&self.stream)).read(&mut start) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Idle::Fresh,
            Ok(1..) if !start.ends_with(TIMED_OUT) => Idle::Strayed,
            _ => Idle::Over,
        }
    }

    /// Acknowledges the answer at once, and not with the next request. Until then the server's system holds back what
    /// its program sends (Nagle, RFC 896): a late answer would arrive while the next request is under way, and be taken
    /// for its answer, as that would be for the answer to the request after it, and so on.
    ///
    /// It costs a packet, so it is done for the first answers of a connection, and later for one in eight.
    fn acknowledge(&self) {
        #[cfg(target_os = "linux")]
        if self.uses <= MIN_USES || self.uses.is_multiple_of(8) {
            let _ = SockRef::from(&self.stream).set_tcp_quickack(true);
        }
    }

    /// Sends what is left of a message, and reads until the head of the answer is there, which may be before
    /// everything is sent.
    fn exchange(
        &mut self,
        cx: &mut Context<'_>,
        message: &mut impl Buf,
        buffer: &mut BytesMut,
        method: &Method,
    ) -> Poll<Result<ResponseHead, HttpError>> {
        let mut refused = self.send(cx, message).err();
        loop {
            if let Some(head) = read_head(buffer, method)? {
                return Poll::Ready(Ok(head));
            }
            match (self.fill(cx, buffer, ROOM), refused.take()) {
                (Poll::Ready(Ok(1..)), error) => refused = error,
                (Poll::Ready(_), Some(error)) | (Poll::Ready(Err(error)), None) => {
                    return Poll::Ready(Err(error.into()));
                }
                (Poll::Ready(Ok(0)), None) => return Poll::Ready(Err(closed("an answer"))),
                // A server that refuses may have sent a reason that the runtime has not noticed yet.
                (Poll::Pending, _) => return Poll::Pending,
            }
        }
    }

    /// Sends as much of a message as the socket accepts now.
    fn send(&mut self, cx: &mut Context<'_>, message: &mut impl Buf) -> io::Result<()> {
        while message.has_remaining() {
            match poll_write_buf(Pin::new(&mut self.stream), cx, message)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(_) => {}
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Reads what has arrived. Keeps no buffer when there is nothing.
    fn fill(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        buffer.reserve(room);
        let read = poll_read_buf(Pin::new(&mut self.stream), cx, buffer);
        if buffer.is_empty() {
            *buffer = BytesMut::new();
        }
        read
    }
}

fn closed(before: &str) -> HttpError {
    HttpError::Broken(format!("the connection was closed before {before}"))
}

impl From<io::Error> for HttpError {
    fn from(error: io::Error) -> HttpError {
        HttpError::Broken(error.to_string())
    }
}

impl From<MalformedResponse> for HttpError {
    fn from(malformed: MalformedResponse) -> HttpError {
        HttpError::Broken(malformed.to_string())
    }
}

/// The body of an answer while it arrives. Dropped before its end, it ends the connection.
pub(crate) struct PlainBody {
    /// Until the body has ended.
    connection: Option<PlainConnection>,
    buffer: BytesMut,
    room: usize,
    framing: Framing,
    /// The unsent part of the request; the server may wait for it in the middle of its answer.
    unsent: Bytes,
    /// The pool that the connection returns to, if it can be reused.
    pool: Option<Arc<Pool>>,
}

impl PlainBody {
    fn new(
        connection: PlainConnection,
        buffer: BytesMut,
        framing: Framing,
        unsent: Bytes,
        pool: Option<Arc<Pool>>,
    ) -> PlainBody {
        let room = match framing {
            Framing::Length(length) => usize::try_from(length).unwrap_or(MOST_ROOM),
            _ => ROOM,
        };
        let mut incoming = PlainBody {
            connection: Some(connection),
            buffer,
            room: room.clamp(ROOM, MOST_ROOM),
            framing,
            unsent,
            pool,
        };
        if framing == Framing::Length(0) {
            incoming.end();
        }
        incoming
    }

    /// The body is complete; the connection returns to the pool, unless surplus bytes arrived.
    fn end(&mut self) {
        self.framing = Framing::Length(0);
        let connection = self.connection.take();
        if let (Some(connection), Some(pool)) = (connection, self.pool.take()) {
            match (self.buffer.is_empty(), self.unsent.is_empty()) {
                (true, true) => {
                    connection.acknowledge();
                    pool.keep(connection);
                }
                (true, false) => {}
                (false, _) => pool.kept().distrust(&connection.to),
            }
        }
        self.buffer = BytesMut::new();
    }

    /// Nothing more can come.
    fn fail(&mut self, error: HttpError) -> Poll<Option<Result<Bytes, HttpError>>> {
        self.pool = None;
        self.end();
        Poll::Ready(Some(Err(error)))
    }
}

impl Stream for PlainBody {
    type Item = Result<Bytes, HttpError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            match this.framing.step(&mut this.buffer) {
                Ok(BodyStep::More) => {}
                Ok(BodyStep::Piece(piece)) => {
                    if this.framing == Framing::Length(0) {
                        this.end();
                    }
                    return Poll::Ready(Some(Ok(piece)));
                }
                Ok(BodyStep::End) => {
                    this.end();
                    return Poll::Ready(None);
                }
                Err(malformed) => return this.fail(malformed.into()),
            }
            let Some(connection) = &mut this.connection else {
                return Poll::Ready(None);
            };
            if connection.send(cx, &mut this.unsent).is_err() {
                // The part of the answer that has arrived still counts.
                this.unsent = Bytes::new();
                this.pool = None;
            }
            match ready!(connection.fill(cx, &mut this.buffer, this.room)) {
                Ok(0) if this.framing == Framing::UntilClose => this.end(),
                Ok(0) => return this.fail(closed("the end of the answer")),
                Ok(read) if read >= this.room => this.room = MOST_ROOM.min(2 * this.room),
                Ok(read) if read < this.room / 4 => this.room = ROOM,
                Ok(_) => {}
                Err(error) => return this.fail(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
