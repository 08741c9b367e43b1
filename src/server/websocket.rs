//! WebSocket connections (RFC 6455): the handshake, and a socket whose messages, pings and writes are bounded.
//!
//! What the messages mean is the face's matter. A message takes its bytes of the budget of bodies as they arrive, and a
//! client that stops reading is noticed by the connection below (`listener`).

use std::{collections::VecDeque, future::Future, pin::pin, time::Duration};

use axum::{
    body::{Bytes, HttpBody},
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use hyper::upgrade::OnUpgrade;
use tokio::{
    io::{
        AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf,
        WriteHalf,
    },
    time::{Instant, Interval, MissedTickBehavior, interval_at, timeout, timeout_at},
};

use super::body::{LEAST, SHORT, WINDOW, held};
use crate::{
    byte_budget::{ByteBudget, Reservation},
    gateway::failure::Failure,
};
use toolway_protocol::websocket::{FrameHead, Opcode, write_frame};

/// How often a client is asked whether it is still there. One that does not answer is closed as an idle connection is.
const PING: Duration = Duration::from_secs(30);

/// Most messages that wait for the one before them; for more, nothing is read.
const MAX_WAITING: usize = 16;

/// Most unsent bytes beside which a client is still read.
const MAX_UNSENT: usize = 64 << 10;

/// Longest wait for a client that is to close its side.
const CLOSING: Duration = Duration::from_secs(2);

/// Bytes that are read at one time.
const READ: usize = 4096;

/// What a key is hashed with (RFC 6455, 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A header has this word in its list.
fn lists(headers: &HeaderMap, name: &header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter();
    let mut words = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    words.any(|listed| listed.trim().eq_ignore_ascii_case(word))
}

/// The answer to a request for a WebSocket, and what becomes the connection when the answer is sent.
///
/// # Errors
/// When the request is not a valid handshake.
pub(super) fn accept(request: &mut Request) -> Result<(Response, OnUpgrade), Failure> {
    let headers = request.headers();
    let is_handshake = lists(headers, &header::UPGRADE, "websocket")
        && lists(headers, &header::CONNECTION, "upgrade")
        && lists(headers, &header::SEC_WEBSOCKET_VERSION, "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    // What follows the head would be read as frames.
    let has_body = !request.body().is_end_stream();
    let Some(key) = key.filter(|_| is_handshake && !has_body) else {
        return Err(Failure::Request {
            message: "GET opens a WebSocket here, over HTTP/1.1 with `Connection: upgrade`, `Upgrade: websocket`, \
                      `Sec-WebSocket-Version: 13` and a `Sec-WebSocket-Key`, and without a body"
                .to_owned(),
            param: None,
            code: "invalid_value",
        });
    };
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    let own = response.headers_mut();
    own.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    own.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Ok(accepted) = HeaderValue::try_from(accepted(key.as_bytes())) {
        own.insert(header::SEC_WEBSOCKET_ACCEPT, accepted);
    }
    Ok((response, hyper::upgrade::on(request)))
}

/// The proof that a key was read.
fn accepted(key: &[u8]) -> String {
    let keyed = [key, GUID.as_bytes()].concat();
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &keyed);
    BASE64_STANDARD.encode(digest)
}

/// Why a socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// toolway stops, or the socket is too old.
    GoingAway,
    /// The client broke the protocol.
    Protocol,
    /// A message is no UTF-8.
    NoText,
    /// A message came too slowly.
    TooSlow,
    /// A message is too long.
    TooLong,
    /// There is no room for a message.
    NoRoom,
}

impl CloseReason {
    /// RFC 6455, 7.4.1.
    fn code(self) -> u16 {
        match self {
            CloseReason::GoingAway => 1001,
            CloseReason::Protocol => 1002,
            CloseReason::NoText => 1007,
            CloseReason::TooSlow => 1008,
            CloseReason::TooLong => 1009,
            CloseReason::NoRoom => 1013,
        }
    }
}

/// The client has closed the connection, or it broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// What came of a frame, or of the frames of a message.
enum Arrived {
    Message(Bytes),
    Ping(Vec<u8>),
    /// The client closes; these bytes say why.
    Close(Vec<u8>),
    Violation(CloseReason),
}

/// A connection on which messages go both ways.
pub(super) struct Socket<S> {
    arriving: BoxStream<'static, Arrived>,
    writer: WriteHalf<S>,
    /// What is to be sent.
    unsent: Vec<u8>,
    /// Messages that came.
    waiting: VecDeque<Bytes>,
    /// Nothing more is read for this.
    violation: Option<CloseReason>,
    /// The client has closed, and gets its answer.
    is_closing: bool,
    pings: Interval,
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Socket<S> {
    /// Messages have at most `max` bytes, which they take of the budget.
    pub(super) fn new(connection: S, max: usize, budget: ByteBudget) -> Socket<S> {
        let (reader, writer) = tokio::io::split(connection);
        let reader = Reader {
            reader: BufReader::with_capacity(READ, reader),
            max,
            budget,
            message: None,
            has_failed: false,
        };
        let arriving = stream::unfold(reader, |mut reader| async {
            Some((reader.next().await?, reader))
        });
        let mut pings = interval_at(Instant::now() + PING, PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Socket {
            arriving: arriving.boxed(),
            writer,
            unsent: Vec::new(),
            waiting: VecDeque::new(),
            violation: None,
            is_closing: false,
            pings,
        }
    }

    /// The next message, or why there is none. Nothing is lost if this is dropped.
    pub(super) async fn receive(&mut self) -> Result<Result<Bytes, CloseReason>, Gone> {
        loop {
            if let Some(message) = self.waiting.pop_front() {
                return Ok(Ok(message));
            }
            if let Some(violation) = self.violation {
                return Ok(Err(violation));
            }
            self.step().await?;
        }
    }

    /// Appends a text to what is to be sent; it goes out with whatever the socket does next.
    pub(super) fn push(&mut self, text: &str) {
        write_frame(Opcode::Text, text.as_bytes(), &mut self.unsent);
    }

    /// Runs this, while messages are received and everything pushed is sent. It waits until the client has taken that.
    ///
    /// # Errors
    /// When the client goes away first; the future is dropped then.
    pub(super) async fn run<F: Future>(&mut self, work: F) -> Result<F::Output, Gone> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                output = &mut work, if self.unsent.is_empty() && !self.is_closing => {
                    return Ok(output);
                }
                stepped = self.step() => stepped?,
            }
        }
    }

    /// Closes the connection, once everything pushed is sent.
    pub(super) async fn close(mut self, reason: CloseReason) {
        let code = reason.code().to_be_bytes();
        write_frame(Opcode::Close, &code, &mut self.unsent);
        let closing = async {
            self.writer.write_all(&self.unsent).await?;
            self.writer.flush().await?;
            // A socket that is closed with unread bytes is reset, and the last words would be lost.
            while let Some(arrived) = self.arriving.next().await {
                if matches!(arrived, Arrived::Close(_) | Arrived::Violation(_)) {
                    break;
                }
            }
            self.writer.shutdown().await
        };
        let _ = timeout(CLOSING, closing).await;
    }

    /// Sends a part of what is to be sent, or receives a message, or sends a ping. Nothing is lost if this is dropped.
    async fn step(&mut self) -> Result<(), Gone> {
        if self.is_closing && self.unsent.is_empty() {
            return Err(Gone);
        }
        let reads = self.violation.is_none()
            && !self.is_closing
            && self.waiting.len() < MAX_WAITING
            && self.unsent.len() < MAX_UNSENT;
        tokio::select! {
            written = self.writer.write(&self.unsent), if !self.unsent.is_empty() => {
                let written = written.map_err(|_| Gone)?;
                self.unsent.drain(..written);
                if self.unsent.is_empty() {
                    self.unsent.shrink_to(READ);
                }
                self.writer.flush().await.map_err(|_| Gone)?;
            }
            arrived = self.arriving.next(), if reads => match arrived {
                Some(Arrived::Message(message)) => self.waiting.push_back(message),
                Some(Arrived::Ping(payload)) => {
                    write_frame(Opcode::Pong, &payload, &mut self.unsent);
                }
                Some(Arrived::Close(payload)) => {
                    write_frame(Opcode::Close, &payload, &mut self.unsent);
                    self.is_closing = true;
                }
                Some(Arrived::Violation(violation)) => self.violation = Some(violation),
                None => return Err(Gone),
            },
            _ = self.pings.tick() => write_frame(Opcode::Ping, b"", &mut self.unsent),
        }
        Ok(())
    }
}

/// Reads frames and puts the pieces of messages together.
struct Reader<S> {
    reader: BufReader<ReadHalf<S>>,
    max: usize,
    budget: ByteBudget,
    /// The message of which a piece has come.
    message: Option<Message>,
    /// What follows is not understood.
    has_failed: bool,
}

/// A message on its way in.
struct Message {
    bytes: Vec<u8>,
    reservation: Reservation,
    pace: Pace,
}

/// At least [`LEAST`] bytes come in each [`WINDOW`], or the rest.
struct Pace {
    came: usize,
    until: Instant,
}

impl Pace {
    fn begin() -> Pace {
        Pace {
            came: 0,
            until: Instant::now() + WINDOW,
        }
    }

    fn came(&mut self, bytes: usize) {
        self.came += bytes;
        if self.came >= LEAST {
            *self = Pace::begin();
        }
    }
}

/// Why reading ends.
enum ReadEnd {
    Gone,
    Violation(CloseReason),
}

impl From<std::io::Error> for ReadEnd {
    fn from(_: std::io::Error) -> ReadEnd {
        ReadEnd::Gone
    }
}

impl From<tokio::time::error::Elapsed> for ReadEnd {
    fn from(_: tokio::time::error::Elapsed) -> ReadEnd {
        ReadEnd::Violation(CloseReason::TooSlow)
    }
}

impl<S: AsyncRead> Reader<S> {
    /// `None` if the connection has ended.
    async fn next(&mut self) -> Option<Arrived> {
        match self.read().await {
            Ok(arrived) => Some(arrived),
            Err(ReadEnd::Gone) => None,
            Err(ReadEnd::Violation(violation)) => {
                self.has_failed = true;
                self.message = None;
                Some(Arrived::Violation(violation))
            }
        }
    }

    /// Reads to the end of the connection.
    async fn drain(&mut self) -> ReadEnd {
        while let Ok(read @ 1..) = self.reader.fill_buf().await.map(<[u8]>::len) {
            self.reader.consume(read);
        }
        ReadEnd::Gone
    }

    async fn read(&mut self) -> Result<Arrived, ReadEnd> {
        if self.has_failed {
            return Err(self.drain().await);
        }
        loop {
            let head = self.head().await?;
            match head.opcode {
                Opcode::Ping => return Ok(Arrived::Ping(self.control(head).await?)),
                Opcode::Close => {
                    let payload = self.control(head).await?;
                    return match is_close(&payload) {
                        true => Ok(Arrived::Close(payload)),
                        false => Err(ReadEnd::Violation(CloseReason::Protocol)),
                    };
                }
                // The connection below has noticed it.
                Opcode::Pong => drop(self.control(head).await?),
                Opcode::Text | Opcode::Binary | Opcode::Continuation => {
                    self.piece(head).await?;
                    if let Some(whole) = self.message.take_if(|_| head.is_last) {
                        if std::str::from_utf8(&whole.bytes).is_err() {
                            return Err(ReadEnd::Violation(CloseReason::NoText));
                        }
                        return Ok(Arrived::Message(held(
                            whole.bytes.into(),
                            whole.reservation,
                        )));
                    }
                }
            }
        }
    }

    async fn head(&mut self) -> Result<FrameHead, ReadEnd> {
        let mut head = Vec::with_capacity(14);
        // Between messages a client may be silent.
        head.push(match &self.message {
            None => self.reader.read_u8().await?,
            Some(message) => timeout_at(message.pace.until, self.reader.read_u8()).await??,
        });
        let until = Instant::now() + WINDOW;
        loop {
            match FrameHead::read(&head) {
                Ok(Some((head, _))) => return Ok(head),
                Ok(None) => head.push(timeout_at(until, self.reader.read_u8()).await??),
                Err(_) => return Err(ReadEnd::Violation(CloseReason::Protocol)),
            }
        }
    }

    async fn control(&mut self, head: FrameHead) -> Result<Vec<u8>, ReadEnd> {
        let mut payload = vec![0; usize::try_from(head.length).unwrap_or_default()];
        let reading = self.reader.read_exact(&mut payload);
        timeout_at(Instant::now() + WINDOW, reading).await??;
        head.unmask(&mut payload, 0);
        Ok(payload)
    }

    /// Reads a piece of a message.
    async fn piece(&mut self, head: FrameHead) -> Result<(), ReadEnd> {
        let is_first = head.opcode != Opcode::Continuation;
        if is_first != self.message.is_none() {
            return Err(ReadEnd::Violation(CloseReason::Protocol));
        }
        let Message {
            bytes,
            reservation,
            pace,
        } = self.message.get_or_insert_with(|| Message {
            bytes: Vec::new(),
            reservation: self.budget.take_nothing(),
            pace: Pace::begin(),
        });
        let begin = bytes.len();
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        let end = begin.saturating_add(length);
        if end > self.max {
            return Err(ReadEnd::Violation(CloseReason::TooLong));
        }
        while bytes.len() < end {
            let at = bytes.len();
            let mut left = (&mut self.reader).take((end - at) as u64);
            let read = timeout_at(pace.until, left.read_buf(bytes)).await??;
            if read == 0 {
                return Err(ReadEnd::Gone);
            }
            pace.came(read);
            head.unmask(&mut bytes[at..], at - begin);
            if bytes.len() > SHORT && !reservation.grow_to(bytes.len()) {
                return Err(ReadEnd::Violation(CloseReason::NoRoom));
            }
        }
        Ok(())
    }
}

/// The payload of a close frame is one that a client may send (RFC 6455, 5.5.1 and 7.4).
fn is_close(payload: &[u8]) -> bool {
    match payload {
        [] => true,
        [_] => false,
        [first, second, reason @ ..] => {
            let code = u16::from_be_bytes([*first, *second]);
            let is_known = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
            is_known && std::str::from_utf8(reason).is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    fn pair(max: usize, budget: usize) -> (Socket<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(1 << 16);
        (Socket::new(near, max, ByteBudget::new(budget)), far)
    }

    /// A masked frame.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first, 0x80 | 126];
        frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        if payload.len() < 126 {
            frame = vec![first, 0x80 | u8::try_from(payload.len()).unwrap()];
        }
        frame.extend([0, 0, 0, 0]);
        frame.extend(payload);
        frame
    }

    #[track_caller]
    fn text(received: Result<Result<Bytes, CloseReason>, Gone>) -> String {
        String::from_utf8(received.unwrap().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn a_key_is_answered_as_the_rfc_shows() {
        let key = b"dGhlIHNhbXBsZSBub25jZQ==";
        assert_eq!(accepted(key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[tokio::test]
    async fn a_message_comes_in_pieces_and_a_ping_between_them_is_answered() {
        let (mut socket, mut far) = pair(100, 0);
        for frame in [
            frame(0x01, b"one "),
            frame(0x89, b"!"),
            frame(0x80, b"two"),
            frame(0x81, b"three"),
        ] {
            far.write_all(&frame).await.unwrap();
        }
        assert_eq!(text(socket.receive().await), "one two");
        assert_eq!(text(socket.receive().await), "three");
        let mut pong = [0; 3];
        let reading = socket.run(far.read_exact(&mut pong));
        assert!(reading.await.is_ok() || pong[0] == 0x8a);
    }

    #[tokio::test]
    async fn what_is_pushed_is_sent_while_something_else_runs() {
        let (mut socket, mut far) = pair(100, 0);
        socket.push("hello");
        let mut sent = [0; 7];
        socket.run(std::future::ready(())).await.unwrap();
        far.read_exact(&mut sent).await.unwrap();
        assert_eq!(&sent[2..], b"hello");
    }

    #[track_caller]
    fn violates(socket: Result<Result<Bytes, CloseReason>, Gone>, reason: CloseReason) {
        assert_eq!(socket.unwrap().unwrap_err(), reason);
    }

    #[tokio::test(start_paused = true)]
    async fn each_violation_has_its_reason() {
        for (sent, reason) in [
            (frame(0x80, b"no message has begun"), CloseReason::Protocol),
            (vec![0x81, 0x01], CloseReason::Protocol),
            (frame(0x81, &[b'x'; 101]), CloseReason::TooLong),
            (vec![0x81, 0x85, 0, 0, 0, 0, b'x'], CloseReason::TooSlow),
            (frame(0x01, b"x"), CloseReason::TooSlow),
        ] {
            let (mut socket, mut far) = pair(100, 0);
            far.write_all(&sent).await.unwrap();
            violates(socket.receive().await, reason);
        }
        let (mut socket, mut far) = pair(1 << 20, SHORT);
        let sent = frame(0x81, &vec![b'x'; SHORT + 1]);
        far.write_all(&sent).await.unwrap();
        violates(socket.receive().await, CloseReason::NoRoom);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_asked_whether_it_is_there() {
        let (mut socket, mut far) = pair(100, 0);
        let begun = Instant::now();
        let mut ping = [0; 2];
        tokio::select! {
            _ = socket.receive() => panic!("nothing was sent"),
            read = far.read_exact(&mut ping) => assert_eq!(read.unwrap(), 2),
        }
        assert_eq!((ping, begun.elapsed()), ([0x89, 0], PING));
    }

    #[tokio::test]
    async fn work_ends_when_the_client_closes() {
        let (mut socket, mut far) = pair(100, 0);
        far.write_all(&frame(0x88, &1000_u16.to_be_bytes()))
            .await
            .unwrap();
        let ended = socket.run(std::future::pending::<()>()).await;
        assert_eq!(ended, Err(Gone));
        let mut answer = [0; 4];
        far.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, [0x88, 2, 0x03, 0xe8]);
    }

    #[tokio::test]
    async fn only_so_many_messages_wait() {
        let (mut socket, mut far) = pair(100, 0);
        for _ in 0..=MAX_WAITING {
            far.write_all(&frame(0x81, b"x")).await.unwrap();
        }
        far.write_all(&frame(0x88, b"")).await.unwrap();
        // The close is behind them, and is not read.
        let work = async {
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(socket.run(work).await, Ok(()));
        assert_eq!(socket.waiting.len(), MAX_WAITING);
    }
}
