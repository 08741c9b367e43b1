//! The way from the loop to the client's connection.
//!
//! The loop and the response body live in one task: polling the body polls the loop, so a slow reader slows
//! the model down, and a client that hangs up drops the loop with everything it has running.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, future::BoxFuture};
use http::HeaderMap;
use tokio::{
    sync::mpsc,
    time::{Instant, Sleep, sleep_until},
};

/// What goes out while nothing else does.
const KEEPALIVE: &[u8] = b": keep-alive\n\n";

/// Pieces on the way out; the head first.
#[derive(Debug)]
pub enum Piece {
    /// The response is good; these headers go with it.
    Head(HeaderMap),
    /// Bytes of its body.
    Data(Bytes),
}

/// Where the loop writes.
#[derive(Debug)]
pub struct Sink {
    pieces: mpsc::Sender<Piece>,
    keepalive: Duration,
    silent_since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Sink {
    /// A sink and where its pieces come out. A comment is sent whenever nothing was for `keepalive`.
    pub fn new(keepalive: Duration) -> (Sink, mpsc::Receiver<Piece>) {
        let (pieces, out) = mpsc::channel(16);
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + keepalive));
        (
            Sink {
                pieces,
                keepalive,
                silent_since: now,
                timer,
            },
            out,
        )
    }

    /// Begins the response.
    pub async fn begin(&mut self, headers: HeaderMap) {
        self.put(Piece::Head(headers)).await;
    }

    /// Sends bytes and leaves the buffer empty.
    pub async fn send(&mut self, buffer: &mut Vec<u8>) {
        if !buffer.is_empty() {
            self.put(Piece::Data(Bytes::from(std::mem::take(buffer))))
                .await;
        }
    }

    /// Sends a comment, to keep proxies and clients from giving up.
    pub async fn comment(&mut self) {
        self.put(Piece::Data(Bytes::from_static(KEEPALIVE))).await;
    }

    /// Ends when it is time for a comment.
    ///
    /// Cancel safe.
    pub async fn silence(&mut self) {
        loop {
            let due = self.silent_since + self.keepalive;
            if due <= Instant::now() {
                return;
            }
            if self.timer.deadline() != due {
                self.timer.as_mut().reset(due);
            }
            self.timer.as_mut().await;
        }
    }

    async fn put(&mut self, piece: Piece) {
        // A receiver that is gone takes this future with it; there is nobody to tell.
        let _ = self.pieces.send(piece).await;
        self.silent_since = Instant::now();
    }
}

/// The body of a streamed response: the loop, and what comes out of it.
pub struct Body {
    work: Option<BoxFuture<'static, ()>>,
    pieces: mpsc::Receiver<Piece>,
}

impl Body {
    /// A body that drives `work` and yields what it writes.
    pub fn new(work: BoxFuture<'static, ()>, pieces: mpsc::Receiver<Piece>) -> Body {
        Body {
            work: Some(work),
            pieces,
        }
    }

    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, std::convert::Infallible>>> {
        loop {
            match ready!(self.pieces.poll_recv(cx)) {
                Some(Piece::Data(bytes)) => return Poll::Ready(Some(Ok(bytes))),
                Some(Piece::Head(_)) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Stream for Body {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(piece) = self.poll_piece(cx) {
            return Poll::Ready(piece);
        }
        if let Some(work) = self.work.as_mut()
            && work.as_mut().poll(cx).is_ready()
        {
            self.work = None;
        }
        // Asked once only: a task that has used up its turn is given nothing, however much there is, until
        // it yields (tokio's cooperative budget). It is woken for that.
        self.poll_piece(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use futures::StreamExt;

    use super::*;

    /// Reads a body whose loop writes many pieces without ever waiting for anything but the budget of its task.
    #[tokio::main(flavor = "current_thread")]
    async fn read_burst(pieces: usize) -> usize {
        let (mut sink, out) = Sink::new(Duration::from_secs(60));
        let work = Box::pin(async move {
            sink.begin(HeaderMap::new()).await;
            for n in 0..pieces {
                if n % 3 == 0 {
                    tokio::task::consume_budget().await;
                }
                sink.comment().await;
            }
        });
        Body::new(work, out).count().await
    }

    #[test]
    fn a_burst_of_pieces_goes_out_whole_and_ends() {
        let (done, outcome) = channel();
        thread::spawn(move || done.send(read_burst(5000)));
        let read = outcome.recv_timeout(Duration::from_secs(30));
        assert_eq!(read, Ok(5000), "the body span without end");
    }
}
