//! The way from the loop to the client's connection.
//!
//! The loop and the response body live in one task: polling the body polls the loop, so a slow reader slows
//! the model down, and a client that hangs up drops the loop with everything it has running. Between them is no
//! channel but a place for one piece, and no task has to be woken.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, future::BoxFuture};
use http::HeaderMap;
use tokio::time::{Instant, Sleep, sleep_until};

use super::failure::Failed;

/// What goes out while nothing else does.
const KEEPALIVE: &[u8] = b": keep-alive\n\n";

/// What a loop comes to: `Some` with a plain answer, `None` when the answer was streamed.
pub type LoopResult = Result<Option<(HeaderMap, Bytes)>, Failed>;

/// Pieces on the way out; the head first.
#[derive(Debug)]
enum ResponsePiece {
    /// The response is good; these headers go with it.
    Head(Box<HeaderMap>),
    /// Bytes of its body.
    Data(Bytes),
}

/// Where a piece lies until the body takes it.
#[derive(Clone, Debug, Default)]
struct PieceSlot(Arc<Mutex<Option<ResponsePiece>>>);

impl PieceSlot {
    fn piece(&self) -> MutexGuard<'_, Option<ResponsePiece>> {
        // A thread that panicked with it has put down a whole piece, or none.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the loop writes.
#[derive(Debug)]
pub struct Sink {
    place: PieceSlot,
    /// Longest silence; `None` for any.
    keepalive: Option<Duration>,
    /// The client has its status; what fails from here on fails within the stream.
    has_begun: bool,
    silent_since: Instant,
    /// Created by the first wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Sink {
    fn new(place: PieceSlot, keepalive: Duration) -> Sink {
        Sink {
            place,
            keepalive: Some(keepalive),
            has_begun: false,
            silent_since: Instant::now(),
            timer: None,
        }
    }

    /// Sends no keep-alive comments, for an answer that is passed on from the upstream.
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
        self.put(ResponsePiece::Head(Box::new(headers))).await;
    }

    /// Sends bytes and leaves the buffer empty.
    pub async fn send(&mut self, buffer: &mut Vec<u8>) {
        if !buffer.is_empty() {
            self.put(ResponsePiece::Data(Bytes::from(std::mem::take(buffer))))
                .await;
        }
    }

    /// Sends a comment, to keep proxies and clients from giving up.
    pub async fn comment(&mut self) {
        self.put(ResponsePiece::Data(Bytes::from_static(KEEPALIVE)))
            .await;
    }

    /// Waits for something, with a comment whenever nothing was sent for too long; none before the response
    /// has begun. `awaited` is one future from beginning to end, so its own clock runs on through comments; it is
    /// pinned where it lies, or it would lie here as well.
    pub async fn keep_alive_while<T>(&mut self, mut awaited: impl Future<Output = T> + Unpin) -> T {
        loop {
            tokio::select! {
                biased;
                done = &mut awaited => return done,
                // Boxed, because it is seldom.
                () = self.silence(), if self.has_begun => Box::pin(self.comment()).await,
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
            let timer = &mut self.timer;
            let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            // One that runs is let run: it may wake us too early, but to set it for every piece costs more.
            if timer.is_elapsed() {
                timer.as_mut().reset(due);
            }
            timer.as_mut().await;
        }
    }

    /// Puts a piece down when the one before was taken. The task that takes one polls the loop after, so no task has to
    /// be woken.
    async fn put(&mut self, piece: ResponsePiece) {
        poll_fn(|_| match *self.place.piece() {
            Some(_) => Poll::Pending,
            None => Poll::Ready(()),
        })
        .await;
        *self.place.piece() = Some(piece);
        self.silent_since = Instant::now();
    }
}

/// How an answer begins.
pub enum ResponseStart {
    /// The loop has ended, and no head was sent.
    Ended(LoopResult),
    /// The head was sent, and this is the rest.
    Stream(HeaderMap, ResponseBody),
}

/// Runs a loop until it has sent a head, or has ended without. A comment is sent whenever nothing was for `keepalive`.
///
/// Dropping the future, or the body it gives, drops the loop.
pub async fn begin<W>(keepalive: Duration, work: impl FnOnce(Sink) -> W) -> ResponseStart
where
    W: Future<Output = LoopResult> + Send + 'static,
{
    let place = PieceSlot::default();
    let mut work: BoxFuture<'static, LoopResult> =
        Box::pin(work(Sink::new(place.clone(), keepalive)));
    let (head, ended) = poll_fn(|cx| {
        let ended = work.as_mut().poll(cx);
        let head = place.piece().take();
        match (head, ended) {
            (None, Poll::Pending) => Poll::Pending,
            (head, Poll::Pending) => Poll::Ready((head, None)),
            (head, Poll::Ready(outcome)) => Poll::Ready((head, Some(outcome))),
        }
    })
    .await;
    let work = match ended {
        Some(outcome) if head.is_none() => return ResponseStart::Ended(outcome),
        Some(_) => None,
        None => Some(work),
    };
    let headers = match head {
        Some(ResponsePiece::Head(headers)) => *headers,
        Some(ResponsePiece::Data(_)) | None => HeaderMap::new(),
    };
    ResponseStart::Stream(headers, ResponseBody { work, place })
}

/// The body of a streamed response: the loop, and what comes out of it.
pub struct ResponseBody {
    work: Option<BoxFuture<'static, LoopResult>>,
    place: PieceSlot,
}

impl Stream for ResponseBody {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let mut piece = self.place.piece().take();
            if piece.is_none()
                && let Some(work) = self.work.as_mut()
            {
                // The outcome is told within the stream.
                if work.as_mut().poll(cx).is_ready() {
                    self.work = None;
                }
                piece = self.place.piece().take();
            }
            return match piece {
                Some(ResponsePiece::Data(bytes)) => Poll::Ready(Some(Ok(bytes))),
                Some(ResponsePiece::Head(_)) => continue,
                None if self.work.is_none() => Poll::Ready(None),
                None => Poll::Pending,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use futures::StreamExt;
    use tokio::time::sleep;

    use super::*;

    const KEEP_ALIVE: Duration = Duration::from_secs(5);

    /// A body whose work is written by the test.
    fn body<W: Future<Output = ()> + Send + 'static>(work: impl FnOnce(Sink) -> W) -> ResponseBody {
        let place = PieceSlot::default();
        let work = work(Sink::new(place.clone(), KEEP_ALIVE));
        let work = async move {
            work.await;
            Ok(None)
        };
        ResponseBody {
            work: Some(Box::pin(work)),
            place,
        }
    }

    async fn next(body: &mut ResponseBody) -> Option<String> {
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
            sink.keep_alive_while(pin!(sleep(KEEP_ALIVE * 5 / 2))).await;
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
            sink.keep_alive_while(pin!(sleep(KEEP_ALIVE * 10))).await;
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
