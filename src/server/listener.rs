//! Connections that do not wait for ever: a client that stops reading loses its connection.
//!
//! Everything behind a response is driven by its body, and the body only while the socket takes bytes. Without
//! a bound on that, a client that does not read would hold its place, its model and its tools for good.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Sleep, sleep},
};

/// Longest time in which a client takes not a single byte of what is there for it.
const STALL: Duration = Duration::from_secs(60);

/// Accepts connections that send small chunks at once and end when the other side stops reading.
pub(super) struct Impatient(pub(super) TcpListener);

impl Listener for Impatient {
    type Io = Bounded<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Bounded<TcpStream>, SocketAddr) {
        // axum's own way of accepting: it waits where the process is out of file descriptors.
        let (stream, address) = Listener::accept(&mut self.0).await;
        // A socket that refuses the option works all the same.
        let _ = stream.set_nodelay(true);
        (Bounded::new(stream), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A stream whose writes fail when nothing of them was taken for [`STALL`].
pub(super) struct Bounded<S> {
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
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
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
