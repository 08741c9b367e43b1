//! Accepts connections and bounds their waits: one that sends no request, half a request, or stops reading is closed.
//!
//! A response's work is driven by its body, and the body only while the socket accepts bytes. Without a limit, a client
//! that does not read would keep its place, its model call and its tools for ever. A connection without a request has
//! no place, so connections are counted too (`connections`).

use std::{
    convert::Infallible,
    fs::File,
    future::Future,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{body::Body, extract::Request, response::Response};
use futures::FutureExt;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, Sleep, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    admission,
    connections::{Arriving, Connection, Connections, RegisteredConnection, Ticket},
    stalled,
};

/// Longest time for which a client reads no byte of what is ready for it.
pub(super) const STALL: Duration = Duration::from_secs(60);

/// How long requests are still answered after their client has closed its sending side. On a plain connection a client
/// that waits for its last answers looks like one that has left.
const LEAVING: Duration = Duration::from_millis(250);

/// Longest time until a new connection has sent its first byte, or all of [`PREFACE`]; after that hyper's HTTP/2
/// timeouts apply.
const FIRST_BYTES: Duration = Duration::from_secs(30);

/// The preface of HTTP/2 (RFC 9113, 3.4). No HTTP/1 request begins like it.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Pause before a partial [`PREFACE`] is checked again.
const PEEK_AGAIN: Duration = Duration::from_millis(10);

/// Most concurrent requests of one HTTP/2 connection; hyper itself limits floods of resets.
const STREAMS: u32 = 200;

/// How often connections are checked for deadlines.
const SWEEP: Duration = Duration::from_secs(1);

/// Pause when the process is out of file descriptors and the like.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Shortest interval between log lines about refused connections.
const WARN_AGAIN: Duration = Duration::from_secs(30);

/// Longest wait for a connection that was closed to make room.
const ROOM: Duration = Duration::from_secs(1);

/// Connections that may wait to be accepted. The system lowers it to what it allows (`net.core.somaxconn`).
const BACKLOG: u32 = 65_535;

/// The response to a connection for which there is no room; nothing was read from it.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    retry-after: 1\r\nconnection: close\r\ncontent-length: 131\r\n\r\n\
    {\"error\":{\"message\":\"too many connections are open; try again in a moment\",\
    \"type\":\"server_error\",\"param\":null,\"code\":\"overloaded\"}}";

/// Listens on an address.
///
/// # Errors
/// Those of the system, such as that the address is taken.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // So that connections left by an earlier process do not block the address. On Windows the option would let two
    // processes bind it.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves connections until `shutdown` ends, then waits for those that have a request. `answer` answers a request.
pub(super) async fn serve<A, F>(
    listener: TcpListener,
    answer: A,
    connections: Arc<Connections>,
    shutdown: impl Future<Output = ()>,
) where
    A: Fn(Request, Arc<Ticket>) -> F + Clone + Send + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    // Connections hold receivers, and have ended when there is none.
    let (stop, _) = watch::channel(());
    let stopping = CancellationToken::new();
    let accepting = async {
        let mut acceptor = Acceptor::new(listener, Arc::clone(&connections));
        loop {
            let (stream, place, registered) = acceptor.next().await;
            // A socket that refuses the option still works.
            let _ = stream.set_nodelay(true);
            let (answer, stopped) = (answer.clone(), stop.subscribe());
            // Boxed, so that its memory is free again once the connection has begun.
            let begun = Box::pin(stopping.clone().run_until_cancelled_owned(begun(stream)));
            let id = registered.0.id();
            let task = tokio::spawn(async move {
                let Some(Some((stream, version))) = begun.await else {
                    return;
                };
                let handle = Arc::clone(&registered.0);
                connection(stream, version, answer, stopped, handle).await;
                drop((place, registered));
            });
            connections.runs_in(id, task.abort_handle());
        }
    };
    let sweeping = sweep(&connections);
    tokio::select! {
        biased;
        () = shutdown => {}
        () = accepting => {}
        () = sweeping => {}
    }
    stopping.cancel();
    stop.send_replace(());
    tokio::select! {
        () = stop.closed() => {}
        () = sweep(&connections) => {}
    }
}

/// Closes overdue connections, for ever.
async fn sweep(connections: &Connections) {
    loop {
        sleep(SWEEP).await;
        connections.sweep();
    }
}

/// Accepts connections and gives each its place.
struct Acceptor {
    listener: TcpListener,
    connections: Arc<Connections>,
    places: Arc<Semaphore>,
    /// A spare file descriptor: closed when no other is free, so that a waiting client can be accepted and refused.
    spare: Option<File>,
    /// When the log last reported that none is free.
    warned: Option<Instant>,
}

impl Acceptor {
    fn new(listener: TcpListener, connections: Arc<Connections>) -> Acceptor {
        Acceptor {
            listener,
            places: Arc::new(Semaphore::new(
                connections.max().min(Semaphore::MAX_PERMITS),
            )),
            connections,
            spare: spare(),
            warned: None,
        }
    }

    /// The next connection and its place. If there is no place, an unfinished connection makes room; if there is none,
    /// the new one is refused.
    async fn next(&mut self) -> (TcpStream, OwnedSemaphorePermit, RegisteredConnection) {
        loop {
            let (stream, address) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) if is_out_of_files(&error) => {
                    self.refuse_all(&error);
                    sleep(ACCEPT_AGAIN / 10).await;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "No connection can be accepted; trying again");
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let (registered, has_made_room) = self.connections.add(address.ip());
            match self.place(has_made_room).await {
                Some(place) => return (stream, place, registered),
                None => refuse(stream),
            }
        }
    }

    async fn place(&self, has_made_room: bool) -> Option<OwnedSemaphorePermit> {
        if let Ok(free) = Arc::clone(&self.places).try_acquire_owned() {
            return Some(free);
        }
        if has_made_room || self.connections.make_room(admission::YOUNG) {
            return self.place_soon().await;
        }
        if !self.connections.has_unfinished() {
            return None;
        }
        // So many clients connected at once that no connection is old enough.
        match self.place_soon().await {
            Some(place) => Some(place),
            None if self.connections.make_room(0) => self.place_soon().await,
            None => None,
        }
    }

    async fn place_soon(&self) -> Option<OwnedSemaphorePermit> {
        let place = timeout(ROOM, Arc::clone(&self.places).acquire_owned());
        place.await.ok()?.ok()
    }

    /// There is no file descriptor left: waiting clients are refused, and unfinished connections make room.
    fn refuse_all(&mut self, error: &io::Error) {
        if self.warned.is_none_or(|at| at.elapsed() > WARN_AGAIN) {
            self.warned = Some(Instant::now());
            tracing::warn!(
                %error,
                "Connections are refused, because too many files are open; raise the limit (`ulimit -n`, `LimitNOFILE=`)"
            );
        }
        self.connections.make_room(0);
        self.spare = None;
        while let Some(Ok((stream, _))) = self.listener.accept().now_or_never() {
            refuse(stream);
        }
        self.spare = spare();
    }
}

fn spare() -> Option<File> {
    File::open(if cfg!(windows) { "NUL" } else { "/dev/null" }).ok()
}

/// Tells a client that there is no room, without waiting.
fn refuse(stream: TcpStream) {
    let Ok(mut stream) = stream.into_std() else {
        return;
    };
    // Closing a socket with unread bytes resets the connection, and the answer would be lost.
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write(NO_ROOM);
    let _ = stream.shutdown(Shutdown::Write);
}

/// No file descriptor is left, in this process or on the whole machine.
fn is_out_of_files(error: &io::Error) -> bool {
    #[cfg(unix)]
    {
        use nix::errno::Errno;
        let codes = [Errno::EMFILE, Errno::ENFILE].map(|code| code as i32);
        error
            .raw_os_error()
            .is_some_and(|code| codes.contains(&code))
    }
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}

/// Which protocol a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpVersion {
    Http1,
    Http2,
}

/// Waits for the first bytes of a connection, without reading them; `None` if none arrive.
///
/// hyper-util could detect the version as well, but then needs twice the memory for each connection.
async fn begun(stream: TcpStream) -> Option<(TcpStream, HttpVersion)> {
    let version = timeout(FIRST_BYTES, version(&stream)).await.ok()??;
    Some((stream, version))
}

/// The client's protocol, once it is known; `None` if the client has closed the connection.
async fn version(stream: &TcpStream) -> Option<HttpVersion> {
    let mut first = [0; PREFACE.len()];
    loop {
        let came = stream.peek(&mut first).await.ok()?;
        match &first[..came] {
            [] => return None,
            PREFACE => return Some(HttpVersion::Http2),
            // The system does not report when more than the peeked bytes has arrived.
            part if PREFACE.starts_with(part) => sleep(PEEK_AGAIN).await,
            _ => return Some(HttpVersion::Http1),
        }
    }
}

/// Serves a connection to its end. An error at the end cannot be reported to the client.
async fn connection<A, F>(
    stream: TcpStream,
    version: HttpVersion,
    answer: A,
    stopped: watch::Receiver<()>,
    handle: Arc<Connection>,
) where
    A: Fn(Request, Arc<Ticket>) -> F + Send + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let (bounded, upgradable) = (Arc::clone(&handle), Arc::clone(&handle));
    let begin = move |request: Request<Incoming>| {
        let ticket = handle.begin();
        let request = request.map(|body| Body::new(Arriving::new(body, Arc::clone(&ticket))));
        (answer(request, Arc::clone(&ticket)), ticket)
    };
    let _ = match version {
        HttpVersion::Http1 => {
            let stream = TokioIo::new(Bounded::new(Attended::new(stream), bounded));
            let connection = {
                let mut server = http1::Builder::new();
                // Deadlines are those of `connections`.
                server.header_read_timeout(None);
                // `Attended` notices when the client leaves.
                server.half_close(true);
                // Boxed, because hyper keeps the future in memory while an answer is sent.
                let service = move |request| {
                    let (answering, _) = begin(request);
                    Box::pin(answering.map(Ok::<_, Infallible>))
                };
                let connection = server.serve_connection(stream, service_fn(service));
                connection.with_upgrades()
            };
            let end = http1::UpgradeableConnection::graceful_shutdown;
            let served = until_stopped(connection, stopped, end).await;
            if let Some(work) = upgradable.take_upgraded() {
                work.await;
            }
            served
        }
        HttpVersion::Http2 => {
            bounded.is_http_2();
            let streams = stalled::Streams(bounded.stall());
            let stream = TokioIo::new(Bounded::new(stream, bounded));
            let mut server = http2::Builder::new(streams);
            server.timer(TokioTimer::new()).keep_alive_interval(STALL);
            server.max_concurrent_streams(STREAMS);
            let service = move |request| {
                let (answering, ticket) = begin(request);
                Box::pin(stalled::watched(answering, ticket))
            };
            // Boxed, because it takes twice the memory of HTTP/1.
            let connection = server.serve_connection(stream, service_fn(service));
            let end = http2::Connection::graceful_shutdown;
            Box::pin(until_stopped(connection, stopped, end)).await
        }
    };
}

/// Runs a connection. When toolway stops, `end` has it close after the requests that run.
async fn until_stopped<C: Future>(
    connection: C,
    mut stopped: watch::Receiver<()>,
    end: impl FnOnce(Pin<&mut C>),
) -> C::Output {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        served = connection.as_mut() => return served,
        _ = stopped.changed() => end(connection.as_mut()),
    }
    connection.await
}

/// The error concerns only one connection, which was closed before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

/// A stream that notices when the client leaves during an answer: writes then fail.
///
/// hyper notices that as well, but by reading into a buffer of 8 KB. Like hyper, this sees nothing behind unread bytes,
/// such as the next request.
struct Attended {
    stream: TcpStream,
    /// The reader has received the end of the stream.
    has_ended: bool,
    /// Runs from when the client closed its sending side while it was answered.
    leaving: Option<Pin<Box<Sleep>>>,
}

impl Attended {
    fn new(stream: TcpStream) -> Attended {
        Attended {
            stream,
            has_ended: false,
            leaving: None,
        }
    }
}

impl AsyncRead for Attended {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.has_ended = buffer.filled().len() == before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Attended {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper calls this whenever it has nothing else to do, so also while it waits for an answer.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_ended
            && let Poll::Ready(0) = self.stream.poll_peek(cx, &mut ReadBuf::new(&mut [0]))?
            && let leaving = self.leaving.get_or_insert_with(|| Box::pin(sleep(LEAVING)))
            && leaving.as_mut().poll(cx).is_ready()
        {
            let gone = io::Error::new(io::ErrorKind::ConnectionAborted, "the client is gone");
            return Poll::Ready(Err(gone));
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A stream whose writes fail when the client accepted no bytes for [`Connection::stall`]. It reports reads and writes
/// to its connection.
struct Bounded<S> {
    stream: S,
    connection: Arc<Connection>,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Bounded<S> {
    fn new(stream: S, connection: Arc<Connection>) -> Bounded<S> {
        Bounded {
            stream,
            connection,
            stalled: None,
        }
    }

    /// Returns the result of a write, or an error if the write has waited for too long.
    fn bounded(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            self.stalled = None;
            self.connection.sent(*written.as_ref().unwrap_or(&0));
            return Poll::Ready(written);
        }
        let limit = self.connection.stall();
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client stopped reading",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.connection.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bounded(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.bounded(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        sync::Notify,
        time::advance,
    };

    use super::{super::connections, *};

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_takes_fails_after_a_while() {
        let (near, _far) = duplex(8);
        let begun = Instant::now();
        let error = Bounded::new(near, alone())
            .write_all(&[0; 100])
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed(), STALL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_waited_for_as_long_as_it_reads() {
        let (near, mut far) = duplex(8);
        let reading = tokio::spawn(async move {
            let mut read = 0;
            while read < 80 {
                sleep(STALL / 2).await;
                read += far.read(&mut [0; 8]).await.unwrap();
            }
        });
        Bounded::new(near, alone())
            .write_all(&[0; 80])
            .await
            .unwrap();
        reading.await.unwrap();
    }

    fn alone() -> Arc<Connection> {
        let (registered, _) = some(9).add([127, 0, 0, 1].into());
        Arc::clone(&registered.0)
    }

    fn some(max: usize) -> Arc<Connections> {
        bounded(max, STALL)
    }

    fn bounded(max: usize, stall: Duration) -> Arc<Connections> {
        Connections::new(connections::Config {
            max,
            max_requests: 9,
            keys: 0,
            stall,
        })
    }

    /// Sends this, waits until the connection is closed, and returns what was received and after how long.
    async fn closed_after(sent: &[u8]) -> (String, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = async |_, _| "hello".into_response();
        let serving = tokio::spawn(serve(listener, answer, some(9), std::future::pending()));
        let mut client = TcpStream::connect(address).await.unwrap();
        let begun = Instant::now();
        client.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        // However the other side closes: it is closed.
        let _ = client.read_to_end(&mut answer).await;
        serving.abort();
        (String::from_utf8(answer).unwrap(), begun.elapsed())
    }

    /// It came after so many seconds, as exactly as connections are checked.
    #[track_caller]
    fn check_after(after: Duration, seconds: u32) {
        let exact = Duration::from_secs(seconds.into());
        assert!(after + SWEEP >= exact, "{after:?}");
        assert!(after <= exact + 2 * SWEEP, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_head_is_not_waited_for_for_ever() {
        let (answer, after) = closed_after(b"GET / HTTP/1.1\r\nHost: x\r\n").await;
        assert!(!answer.contains("hello"), "{answer}");
        check_after(after, admission::HEAD);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed_after_a_while() {
        let (answer, after) = closed_after(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.ends_with("hello"), "{answer}");
        check_after(after, admission::IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_sends_nothing_is_closed() {
        let (answer, after) = closed_after(b"").await;
        assert_eq!(answer, "");
        assert!(after >= FIRST_BYTES, "{after:?}");
        assert!(after <= FIRST_BYTES + Duration::from_secs(1), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_preface_is_not_waited_for_for_ever() {
        for part in [1, 3, 23] {
            let (answer, after) = closed_after(&PREFACE[..part]).await;
            assert_eq!(answer, "");
            assert!(after >= FIRST_BYTES, "{after:?}");
            assert!(after <= FIRST_BYTES + Duration::from_secs(1), "{after:?}");
        }
    }

    #[tokio::test]
    async fn a_preface_that_comes_in_pieces_is_one_all_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = async |_, _| "hello".into_response();
        let serving = tokio::spawn(serve(listener, answer, some(9), std::future::pending()));
        for cut in [1, 2, 3, 16] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(&PREFACE[..cut]).await.unwrap();
            sleep(PEEK_AGAIN / 2).await;
            client.write_all(&PREFACE[cut..]).await.unwrap();
            client
                .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
                .await
                .unwrap();
            let mut frame = [0; 9];
            client.read_exact(&mut frame).await.unwrap();
            assert_eq!(frame[3], 4, "the answer is a frame of settings");
        }
        serving.abort();
    }

    #[tokio::test]
    async fn what_was_asked_before_the_client_closed_its_side_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Not in the first moment, as an answer of a file or of another task.
        let answer = async |_, _| {
            tokio::task::yield_now().await;
            "hello".into_response()
        };
        let serving = tokio::spawn(serve(listener, answer, some(9), std::future::pending()));
        for requests in [1, 3] {
            let mut client = TcpStream::connect(address).await.unwrap();
            let sent = "GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(requests);
            client.write_all(sent.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer.matches("hello").count(), requests, "{answer}");
        }
        serving.abort();
    }

    struct OnDrop(Arc<Notify>);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }

    #[tokio::test]
    async fn an_answer_is_given_up_when_its_client_goes_away() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (begun, given_up) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (begins, ends) = (Arc::clone(&begun), Arc::clone(&given_up));
        let answer = move |_, _| {
            let (begins, guard) = (Arc::clone(&begins), OnDrop(Arc::clone(&ends)));
            async move {
                let _guard = guard;
                begins.notify_one();
                std::future::pending().await
            }
        };
        tokio::spawn(serve(listener, answer, some(9), std::future::pending()));
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        client.write_all(request).await.unwrap();
        begun.notified().await;
        drop(client);
        given_up.notified().await;
    }

    #[tokio::test]
    async fn a_client_that_knows_http_2_is_answered_in_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answer = async |request: Request, _| format!("{:?}", request.version()).into_response();
        tokio::spawn(serve(listener, answer, some(9), std::future::pending()));
        for (prior_knowledge, version) in [(true, "HTTP/2.0"), (false, "HTTP/1.1")] {
            let client = reqwest::Client::builder().no_proxy();
            let client = match prior_knowledge {
                true => client.http2_prior_knowledge(),
                false => client,
            };
            crate::upstream::install_tls();
            let answer = client.build().unwrap().get(&url).send().await.unwrap();
            assert_eq!(answer.text().await.unwrap(), version);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_between_writes_is_no_stall() {
        let (near, mut far) = duplex(8);
        let mut near = Bounded::new(near, alone());
        near.write_all(&[0; 8]).await.unwrap();
        advance(STALL * 3).await;
        far.read_exact(&mut [0; 8]).await.unwrap();
        near.write_all(&[0; 8]).await.unwrap();
    }

    /// A server, and how many of its answers were dropped before their end.
    async fn endless(all: Arc<Connections>) -> (SocketAddr, Arc<Notify>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let dropped = Arc::new(Notify::new());
        let drops = Arc::clone(&dropped);
        let answer = move |_, ticket: Arc<Ticket>| {
            let guard = OnDrop(Arc::clone(&drops));
            async move {
                let pieces = futures::stream::repeat_with(move || {
                    let _held = (&guard, &ticket);
                    Ok::<_, Infallible>(vec![b'x'; 1000])
                });
                Response::new(Body::from_stream(pieces))
            }
        };
        tokio::spawn(serve(listener, answer, all, std::future::pending()));
        (address, dropped)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_over_http_2_that_nobody_takes_is_given_up() {
        given_up_over_http_2(STALL).await;
        given_up_over_http_2(STALL / 6).await;
    }

    async fn given_up_over_http_2(stall: Duration) {
        let all = bounded(9, stall);
        let (address, dropped) = endless(Arc::clone(&all)).await;
        let stream = TcpStream::connect(address).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let request = http::Request::get("http://x/").body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let begun = Instant::now();
        let mut body = response.await.unwrap().into_body();
        dropped.notified().await;
        assert!(begun.elapsed() >= stall, "{:?}", begun.elapsed());
        assert!(begun.elapsed() <= stall * 2, "{:?}", begun.elapsed());
        // Its window of 64 KB was used up, and then the stream was reset.
        let mut came = 0;
        let error = loop {
            match body.data().await.unwrap() {
                Ok(piece) => came += piece.len(),
                Err(error) => break error,
            }
        };
        assert!(came <= 65_535, "{came}");
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_of_http_2_is_closed_after_a_while() {
        let (address, _) = endless(some(9)).await;
        let stream = TcpStream::connect(address).await.unwrap();
        let begun = Instant::now();
        let (_client, connection) = h2::client::handshake(stream).await.unwrap();
        // It answers every probe.
        let _ = connection.await;
        check_after(begun.elapsed(), admission::IDLE);
    }

    #[tokio::test]
    async fn a_client_that_resets_every_request_is_gone() {
        let (address, _) = endless(some(9)).await;
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..2000 {
            let request = http::Request::get("http://x/").body(()).unwrap();
            let sent = client.send_request(request, true);
            let Ok((response, mut sending)) = sent else {
                return;
            };
            // Answered, so that it has cost something.
            if response.await.is_err() {
                return;
            }
            sending.send_reset(h2::Reason::CANCEL);
            client = match client.ready().await {
                Ok(client) => client,
                Err(_) => return,
            };
        }
        panic!("it may go on for ever");
    }

    #[tokio::test]
    async fn a_client_that_is_answered_without_bodies_is_not_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = async |_, _| http::StatusCode::ACCEPTED.into_response();
        tokio::spawn(serve(listener, answer, some(9), std::future::pending()));
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..1100 {
            let request = http::Request::get("http://x/").body(()).unwrap();
            let (response, _) = client.send_request(request, true).unwrap();
            assert_eq!(response.await.unwrap().status(), 202);
            client = client.ready().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn half_heads_make_room_for_whole_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = async |_, _| "hello".into_response();
        tokio::spawn(serve(listener, answer, some(8), std::future::pending()));
        let mut halves = Vec::new();
        for _ in 0..20 {
            let mut half = TcpStream::connect(address).await.unwrap();
            half.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
            halves.push(half);
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
    }

    #[tokio::test]
    async fn who_comes_when_all_places_are_at_work_is_told_so() {
        let (address, _) = endless(some(1)).await;
        let mut busy = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        busy.write_all(request).await.unwrap();
        busy.read_exact(&mut [0; 20]).await.unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(head.contains(&format!("content-length: {}", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "overloaded");
    }
}
