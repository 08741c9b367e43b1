//! Connections that do not wait for ever: one that sends no request, half a request, or stops reading is closed.
//!
//! Everything behind a response is driven by its body, and the body only while the socket takes bytes. Without
//! a bound on that, a client that does not read would hold its place, its model and its tools for good. And what
//! has sent no request yet has no place that could be counted, so the connections themselves are.

use std::{
    convert::Infallible,
    future::Future,
    io,
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
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Longest time in which a client takes not a single byte of what is there for it.
const STALL: Duration = Duration::from_secs(60);

/// Longest time until a new connection has sent its first byte, or all of [`PREFACE`], after which HTTP/2 minds the
/// time itself.
const FIRST_BYTES: Duration = Duration::from_secs(30);

/// How HTTP/2 begins (RFC 9113, 3.4), and no request of HTTP/1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Pause until a part of [`PREFACE`] is looked at again.
const PEEK_AGAIN: Duration = Duration::from_millis(10);

/// Longest time for the head of a request, from the end of the one before. It is also how long an idle connection
/// is kept.
const HEAD: Duration = Duration::from_secs(75);

/// Connections beside those that have a request, as many as are kept for the next one.
const IDLE: usize = 1024;

/// Pause when the process is out of file descriptors and the like.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Serves connections until `shutdown` ends, then waits for those that have a request. More than `requests` and
/// some idle ones wait to be accepted. `answer` answers a request.
pub(super) async fn serve<A, F>(
    listener: TcpListener,
    answer: A,
    requests: usize,
    shutdown: impl Future<Output = ()>,
) where
    A: Fn(Request) -> F + Clone + Send + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let connections = requests.saturating_add(IDLE).min(Semaphore::MAX_PERMITS);
    let places = Arc::new(Semaphore::new(connections));
    let graceful = GracefulShutdown::new();
    let stopping = CancellationToken::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                tracing::warn!(%error, "No connection can be accepted; trying again");
                tokio::select! {
                    () = &mut shutdown => break,
                    () = sleep(ACCEPT_AGAIN) => continue,
                }
            }
        };
        // A socket that refuses the option works all the same.
        let _ = stream.set_nodelay(true);
        let (answer, watcher) = (answer.clone(), graceful.watcher());
        // Boxed, for its room is free again when the connection has begun.
        let begun = Box::pin(stopping.clone().run_until_cancelled_owned(begun(stream)));
        tokio::spawn(async move {
            let Some(Some((stream, version))) = begun.await else {
                return;
            };
            connection(stream, version, answer, watcher).await;
            drop(place);
        });
    }
    drop(listener);
    stopping.cancel();
    graceful.shutdown().await;
}

/// Which protocol a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// A connection when its first bytes are there, which stay unread; nothing if they do not come.
///
/// hyper-util could tell the versions apart as well, but it keeps twice the room for each connection then.
async fn begun(stream: TcpStream) -> Option<(TcpStream, Version)> {
    let version = timeout(FIRST_BYTES, version(&stream)).await.ok()??;
    Some((stream, version))
}

/// What a client speaks, once it is clear; nothing if it has closed the connection.
async fn version(stream: &TcpStream) -> Option<Version> {
    let mut first = [0; PREFACE.len()];
    loop {
        let came = stream.peek(&mut first).await.ok()?;
        match &first[..came] {
            [] => return None,
            PREFACE => return Some(Version::Http2),
            // Nobody tells when more is there than what was seen.
            part if PREFACE.starts_with(part) => sleep(PEEK_AGAIN).await,
            _ => return Some(Version::Http1),
        }
    }
}

/// Serves a connection to its end. However it ends, nobody is left to be told.
async fn connection<A, F>(stream: TcpStream, version: Version, answer: A, watcher: Watcher)
where
    A: Fn(Request) -> F + Send + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    // Boxed, because hyper keeps the room for as long as an answer is sent.
    let service = service_fn(move |request: Request<Incoming>| {
        Box::pin(answer(request.map(Body::new)).map(Ok::<_, Infallible>))
    });
    let timer = TokioTimer::new();
    let _ = match version {
        Version::Http1 => {
            let stream = TokioIo::new(Bounded::new(Attended::new(stream)));
            let connection = {
                let mut server = http1::Builder::new();
                server.timer(timer).header_read_timeout(HEAD);
                // Whether the client is gone is `Attended`'s to hear.
                server.half_close(true);
                server.serve_connection(stream, service)
            };
            watcher.watch(connection).await
        }
        Version::Http2 => {
            let stream = TokioIo::new(Bounded::new(stream));
            let mut server = http2::Builder::new(TokioExecutor::new());
            let server = server.timer(timer).keep_alive_interval(STALL);
            // Boxed, because it takes twice the room of HTTP/1.
            let connection = server.serve_connection(stream, service);
            Box::pin(watcher.watch(connection)).await
        }
    };
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await;
    let place = place.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

/// The failure is that of one connection, which went away before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

/// The stream of a client that may go away while it is answered: then what is sent to it fails.
///
/// hyper finds that out as well, but by reading, and holds 8 KB for what it could read instead. Like hyper it does not
/// hear what comes after bytes that nobody has read yet, those of a next request for instance.
struct Attended {
    stream: TcpStream,
    /// Who reads has been told that nothing more comes.
    has_ended: bool,
}

impl Attended {
    fn new(stream: TcpStream) -> Attended {
        Attended {
            stream,
            has_ended: false,
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

    /// hyper asks for this whenever it has done what it could, so also while an answer is waited for.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_ended
            && let Poll::Ready(0) = self.stream.poll_peek(cx, &mut ReadBuf::new(&mut [0]))?
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

/// A stream whose writes fail when nothing of them was taken for [`STALL`].
struct Bounded<S> {
    stream: S,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Bounded<S> {
    fn new(stream: S) -> Bounded<S> {
        Bounded {
            stream,
            stalled: None,
        }
    }

    /// Gives a write back as it is, unless it has waited for too long.
    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL)));
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
        Pin::new(&mut self.stream).poll_read(cx, buffer)
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
        time::{Instant, advance},
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_takes_fails_after_a_minute() {
        let (near, _far) = duplex(8);
        let begun = Instant::now();
        let error = Bounded::new(near).write_all(&[0; 100]).await.unwrap_err();
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
        Bounded::new(near).write_all(&[0; 80]).await.unwrap();
        reading.await.unwrap();
    }

    /// What comes back on a connection that sends this and then waits until it is closed, and after how long.
    async fn closed_after(sent: &[u8]) -> (String, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = async |_| "hello".into_response();
        let serving = tokio::spawn(serve(listener, answer, 1, std::future::pending()));
        let mut client = TcpStream::connect(address).await.unwrap();
        let begun = Instant::now();
        client.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        // However the other side closes: it is closed.
        let _ = client.read_to_end(&mut answer).await;
        serving.abort();
        (String::from_utf8(answer).unwrap(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_head_is_not_waited_for_for_ever() {
        let (answer, after) = closed_after(b"GET / HTTP/1.1\r\nHost: x\r\n").await;
        assert!(!answer.contains("hello"), "{answer}");
        assert!(after >= HEAD, "{after:?}");
        assert!(after <= HEAD + Duration::from_secs(1), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed_after_a_while() {
        let (answer, after) = closed_after(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.ends_with("hello"), "{answer}");
        assert!(after >= HEAD, "{after:?}");
        assert!(after <= HEAD + Duration::from_secs(1), "{after:?}");
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
        let answer = async |_| "hello".into_response();
        let serving = tokio::spawn(serve(listener, answer, 9, std::future::pending()));
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
        let answer = move |_| {
            let (begins, guard) = (Arc::clone(&begins), OnDrop(Arc::clone(&ends)));
            async move {
                let _guard = guard;
                begins.notify_one();
                std::future::pending().await
            }
        };
        tokio::spawn(serve(listener, answer, 1, std::future::pending()));
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
        let answer = async |request: Request| format!("{:?}", request.version()).into_response();
        tokio::spawn(serve(listener, answer, 2, std::future::pending()));
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
        let mut near = Bounded::new(near);
        near.write_all(&[0; 8]).await.unwrap();
        advance(STALL * 3).await;
        far.read_exact(&mut [0; 8]).await.unwrap();
        near.write_all(&[0; 8]).await.unwrap();
    }
}
