//! The way from the loop to the client's connection.
//!
//! The loop and the response body live in one task: polling the body polls the loop, so a slow reader slows
//! the model down, and a client that hangs up drops the loop with everything it has running.

use std::{
    pin::{Pin, pin},
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
    /// Longest silence; `None` for any.
    keepalive: Option<Duration>,
    /// The client has its status; what fails from here on fails within the stream.
    has_begun: bool,
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
                keepalive: Some(keepalive),
                has_begun: false,
                silent_since: now,
                timer,
            },
            out,
        )
    }

    /// Sends no comments of its own accord, for an answer that is the upstream's.
    pub fn without_comments(&mut self) {
        self.keepalive = None;
    }

    /// The client has its status; what fails from here on fails within the stream.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Begins the response.
    pub async fn begin(&mut self, headers: HeaderMap) {
        self.has_begun = true;
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

    /// Waits for something, with a comment whenever nothing was sent for too long; none before the response
    /// has begun. `awaited` is one future from beginning to end, so its own clock runs on through comments.
    pub async fn keep_alive_while<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                biased;
                done = &mut awaited => return done,
                () = self.silence(), if self.has_begun => self.comment().await,
            }
        }
    }

    /// Ends when it is time for a comment. Cancel safe.
    async fn silence(&mut self) {
        let Some(keepalive) = self.keepalive else {
            return std::future::pending().await;
        };
        loop {
            let due = self.silent_since + keepalive;
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
}

impl Stream for Body {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(piece) = self.poll_piece(cx) {
            return Poll::Ready(piece.map(Ok));
        }
        if let Some(work) = self.work.as_mut()
            && work.as_mut().poll(cx).is_ready()
        {
            self.work = None;
        }
        // Asked once and not until the channel is empty: a task that has used up its share of a turn
        // (tokio's cooperative budget) is told `Pending` whatever the channel holds, and is woken again.
        self.poll_piece(cx).map(|piece| piece.map(Ok))
    }
}

impl Body {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match ready!(self.pieces.poll_recv(cx)) {
                Some(Piece::Data(bytes)) => return Poll::Ready(Some(bytes)),
                Some(Piece::Head(_)) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use futures::StreamExt;
    use tokio::time::sleep;

    use super::*;

    const KEEP_ALIVE: Duration = Duration::from_secs(5);

    /// A body whose work is written by the test.
    fn body<W: Future<Output = ()> + Send + 'static>(work: impl FnOnce(Sink) -> W) -> Body {
        let (sink, pieces) = Sink::new(KEEP_ALIVE);
        Body::new(Box::pin(work(sink)), pieces)
    }

    async fn next(body: &mut Body) -> Option<String> {
        let Ok(bytes) = body.next().await?;
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn what_is_written_comes_out_in_order_and_then_the_end() {
        let mut body = body(|mut sink| async move {
            sink.begin(HeaderMap::new()).await;
            for n in 0..100 {
                sink.send(&mut n.to_string().into_bytes()).await;
            }
            sink.send(&mut Vec::new()).await;
        });
        for n in 0..100 {
            assert_eq!(next(&mut body).await, Some(n.to_string()));
        }
        assert_eq!(next(&mut body).await, None);
    }

    #[test]
    fn a_reader_that_takes_everything_at_once_leaves_room_for_other_tasks() {
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            let read = runtime.unwrap().block_on(async {
                // A task of its own, since only tasks have a share that can be used up.
                tokio::spawn(async {
                    let body = body(|mut sink| async move {
                        for _ in 0..1000 {
                            // As reading from the upstream does.
                            tokio::task::consume_budget().await;
                            sink.send(&mut b"x".to_vec()).await;
                        }
                    });
                    body.count().await
                })
                .await
            });
            done.send(read.unwrap())
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(10)), Ok(1000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_comment_goes_out_after_every_silence_and_the_clock_of_what_is_awaited_runs_on() {
        let begun = Instant::now();
        let mut body = body(|mut sink| async move {
            sink.begin(HeaderMap::new()).await;
            sleep(KEEP_ALIVE / 2).await;
            sink.send(&mut b"x".to_vec()).await;
            sink.keep_alive_while(sleep(KEEP_ALIVE * 5 / 2)).await;
            sink.send(&mut b"y".to_vec()).await;
        });
        for (expected, halves) in [
            ("x", 1),
            (": keep-alive\n\n", 3),
            (": keep-alive\n\n", 5),
            ("y", 6),
        ] {
            assert_eq!(next(&mut body).await.as_deref(), Some(expected));
            assert_eq!(
                begun.elapsed().as_secs(),
                (KEEP_ALIVE / 2 * halves).as_secs()
            );
        }
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_goes_out_before_the_response_has_begun() {
        let mut body = body(|mut sink| async move {
            sink.keep_alive_while(sleep(KEEP_ALIVE * 10)).await;
            sink.begin(HeaderMap::new()).await;
            sink.send(&mut b"x".to_vec()).await;
        });
        assert_eq!(next(&mut body).await.as_deref(), Some("x"));
    }

    #[tokio::test]
    async fn dropping_the_body_drops_the_work() {
        struct Dropped(Arc<AtomicBool>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let is_dropped = Arc::new(AtomicBool::new(false));
        let guard = Dropped(is_dropped.clone());
        let mut body = body(|mut sink| async move {
            let _guard = guard;
            sink.send(&mut b"x".to_vec()).await;
            std::future::pending::<()>().await;
        });
        assert_eq!(next(&mut body).await.as_deref(), Some("x"));
        drop(body);
        assert!(is_dropped.load(Ordering::Relaxed));
    }
}
