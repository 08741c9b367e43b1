use futures::{FutureExt, StreamExt};
use http::{HeaderMap, StatusCode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::yield_now,
    time::{advance, pause, timeout},
};

use super::*;
use crate::upstream::wire::Headers;
use toolway_protocol::segmented_body::SegmentedBody;

/// A server that does as each test says, and a pool for it.
struct Setup {
    listener: TcpListener,
    uri: Uri,
    pool: Arc<Pool>,
}

impl Setup {
    async fn new() -> Setup {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/a", listener.local_addr().unwrap());
        Setup {
            listener,
            uri: uri.parse().unwrap(),
            pool: Setup::pool(),
        }
    }

    fn pool() -> Arc<Pool> {
        let connector = Connector {
            inner: HttpConnector::new(),
            timeout: Duration::from_secs(10),
        };
        Arc::new(Pool::new(connector))
    }

    /// Sends a request with this body, which the server takes.
    async fn ask(&self, body: &Bytes) -> (TcpStream, Asking) {
        let asking = self.ask_again(body);
        let (stream, _) = self.listener.accept().await.unwrap();
        (stream, asking)
    }

    /// Sends a request, which the server has read.
    async fn asked(&self) -> (TcpStream, Asking) {
        let (mut stream, asking) = self.ask(&hello()).await;
        read_request(&mut stream).await;
        (stream, asking)
    }

    /// Sends a request on a new connection, and gets its answer.
    async fn answered(&self) -> TcpStream {
        let (mut stream, asking) = self.asked().await;
        stream.write_all(OK).await.unwrap();
        assert_eq!(whole(asking).await.unwrap(), "ok");
        stream
    }

    /// Sends a request on whatever connection there is.
    fn ask_again(&self, body: &Bytes) -> Asking {
        let (pool, uri) = (Arc::clone(&self.pool), self.uri.clone());
        let body = body.clone();
        tokio::spawn(async move {
            let body = SegmentedBody::of(&body);
            pool.send(post(&uri, &HeaderMap::new(), &body)).await
        })
    }

    fn kept(&self) -> usize {
        self.pool.kept().connections.len()
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

type Asking = JoinHandle<Result<Response<PlainBody>, HttpError>>;

fn post<'a>(uri: &'a Uri, headers: &'a HeaderMap, body: &'a SegmentedBody<'a>) -> Outgoing<'a> {
    Outgoing {
        method: Method::POST,
        uri,
        headers: Headers::Map(headers),
        own: &[],
        body,
        upload: None,
    }
}

async fn read_request(stream: &mut TcpStream) -> Vec<u8> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\nhello") {
        assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
    }
    request
}

async fn whole(asking: Asking) -> Result<String, HttpError> {
    let mut pieces = asking.await.unwrap()?.into_body();
    let mut body = Vec::new();
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece?);
    }
    assert!(pieces.next().await.is_none(), "nothing follows the end");
    Ok(String::from_utf8(body).unwrap())
}

fn hello() -> Bytes {
    Bytes::from_static(b"hello")
}

#[tokio::test]
async fn a_connection_is_used_again_whichever_way_the_body_ends() {
    let setup = Setup::new().await;
    let (mut stream, mut asking) = setup.ask(&hello()).await;
    for (answer, expected) in [
        ("content-length: 2\r\n\r\nok", "ok"),
        (
            "transfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
            "ok",
        ),
        ("content-length: 0\r\n\r\n", ""),
    ] {
        let request = read_request(&mut stream).await;
        assert!(request.starts_with(b"POST /a HTTP/1.1\r\nhost: 127.0.0.1:"));
        let answer = format!("HTTP/1.1 200 OK\r\n{answer}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        assert_eq!(whole(asking).await.unwrap(), expected);
        assert_eq!(setup.kept(), 1);
        asking = setup.ask_again(&hello());
    }
}

#[tokio::test]
async fn a_connection_is_not_used_again_after_an_answer_that_ends_it() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
    ] {
        let setup = Setup::new().await;
        let (mut stream, asking) = setup.asked().await;
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(whole(asking).await.unwrap(), "ok");
        assert_eq!(setup.kept(), 0, "{answer}");
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_or_spoke_unasked_is_passed_over() {
    for last_words in ["", "HTTP/1.1 408 Request Timeout\r\n\r\n"] {
        let setup = Setup::new().await;
        let mut stream = setup.answered().await;
        stream.write_all(last_words.as_bytes()).await.unwrap();
        drop(stream);
        poll_fn(|cx| {
            setup.pool.kept().connections[0]
                .0
                .stream
                .poll_read_ready(cx)
        })
        .await
        .unwrap();
        setup.answered().await;
        assert_eq!(setup.kept(), 1);
    }
}

const STRAY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstray";

/// Says something that is in the other end's buffer when this returns, without a turn for the runtime.
fn say_at_once(stream: &TcpStream, words: &[u8]) {
    assert_eq!(stream.try_write(words).unwrap(), words.len());
}

#[tokio::test]
async fn bytes_after_an_answer_are_never_the_next_answer() {
    let answers: [(&[u8], &[u8]); 5] = [
        (OK, STRAY),
        (OK, b"\r\n"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"body"),
        (
            b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
            b"stray",
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            STRAY,
        ),
    ];
    for (answer, stray) in answers {
        let setup = Setup::new().await;
        let (mut stream, asking) = setup.asked().await;
        stream.write_all(answer).await.unwrap();
        whole(asking).await.unwrap();
        assert_eq!(setup.kept(), 1);
        say_at_once(&stream, stray);
        let answered = timeout(Duration::from_secs(10), setup.answered()).await;
        answered.expect("it is asked on a new connection");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_late_answer_waits_for_no_acknowledgement_and_is_found() {
    let setup = Setup::new().await;
    let mut stream = setup.answered().await;
    // The first answers on a connection are acknowledged at once in any case.
    for _ in 2..MIN_USES {
        let asking = setup.ask_again(&hello());
        read_request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
        assert_eq!(whole(asking).await.unwrap(), "ok");
    }
    say_at_once(&stream, STRAY);
    let answered = timeout(Duration::from_secs(10), setup.answered()).await;
    answered.expect("it is asked on a new connection");
}

#[tokio::test]
async fn a_late_answer_to_a_request_under_way_puts_off_the_answers_of_one_connection_only() {
    let setup = Setup::new().await;
    let (mut stream, mut asking) = setup.asked().await;
    stream.write_all(STRAY).await.unwrap();
    assert_eq!(whole(asking).await.unwrap(), "stray");
    for uses in 1..MIN_USES {
        if uses == MIN_USES - 1 {
            tokio::time::pause();
            tokio::time::advance(USED_FOR).await;
            tokio::time::resume();
        }
        asking = setup.ask_again(&hello());
        read_request(&mut stream).await;
        // To the request before.
        stream.write_all(OK).await.unwrap();
        assert_eq!(whole(asking).await.unwrap(), "ok");
    }
    let answered = timeout(Duration::from_secs(10), setup.answered()).await;
    answered.expect("it is asked on a new connection");
}

#[tokio::test]
async fn a_server_that_sent_stray_bytes_once_gets_a_connection_for_each_request() {
    let setup = Setup::new().await;
    let stream = setup.answered().await;
    assert_eq!(setup.kept(), 1);
    say_at_once(&stream, STRAY);
    for _ in 0..2 {
        let answered = timeout(Duration::from_secs(10), setup.answered()).await;
        answered.expect("it is asked on a new connection");
        assert_eq!(setup.kept(), 0);
    }
}

#[tokio::test]
async fn a_good_answer_to_half_a_request_is_none_on_a_connection_that_was_kept() {
    let setup = Setup::new().await;
    let stream = setup.answered().await;
    let asking = setup.ask_again(&Bytes::from(vec![b'x'; 32 << 20]));
    stream.readable().await.unwrap();
    say_at_once(&stream, STRAY);
    match timeout(Duration::from_secs(10), whole(asking))
        .await
        .unwrap()
    {
        Err(HttpError::Broken(_)) => assert_eq!(setup.kept(), 0),
        other => panic!("{other:?}"),
    }
}

/// Serves one connection: answers, and after a pause of so many microseconds sends what nobody asked for, with this
/// number. True if the next request had not arrived by then.
fn answer_and_stray(
    mut stream: std::net::TcpStream,
    number: usize,
    pause: u64,
) -> std::io::Result<bool> {
    use std::io::{Read, Write};
    let mut request = [0; 1024];
    if stream.read(&mut request)? > 0 {
        stream.write_all(OK)?;
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(pause) {
        std::hint::spin_loop();
    }
    let stray = format!("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n{number:06}");
    stream.set_nonblocking(true)?;
    let is_first = stream.peek(&mut [0]).is_err() && stream.write_all(stray.as_bytes()).is_ok();
    let is_unasked = is_first && stream.peek(&mut [0]).is_err();
    stream.set_nonblocking(false)?;
    if stream.read(&mut request)? > 0 {
        stream.write_all(OK)?;
    }
    Ok(is_unasked)
}

/// At random moments before the next request arrives. What comes between the look at the connection and the write of the
/// request still gets through, so this says how often and does not fail by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it prints a figure"]
async fn how_often_what_nobody_asked_for_is_taken_for_an_answer() {
    let trials = 3000;
    let Setup { listener, uri, .. } = Setup::new().await;
    let listener = listener.into_std().unwrap();
    listener.set_nonblocking(false).unwrap();
    let pause = |seed: usize, factor: usize| (seed.wrapping_mul(factor) >> 7) as u64 % 300;
    let (report, reports) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let report = report.clone();
            std::thread::spawn(move || {
                let pause = pause(number, 2_654_435_761);
                let unasked = stream.and_then(|stream| answer_and_stray(stream, number, pause));
                let _ = report.send((number, unasked.unwrap_or(false)));
            });
        }
    });
    let mut strays = Vec::new();
    for trial in 0..trials {
        let pool = Setup::pool();
        for _ in 0..2 {
            let headers = HeaderMap::new();
            let body = SegmentedBody::of(b"hello");
            let Ok(response) = pool.send(post(&uri, &headers, &body)).await else {
                continue;
            };
            let pieces: Vec<_> = response.into_body().collect().await;
            let body: Vec<u8> = pieces.into_iter().flatten().flatten().collect();
            strays.extend(std::str::from_utf8(&body).unwrap().parse::<usize>().ok());
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(pause(trial, 40_503)) {
                yield_now().await;
            }
        }
    }
    let mut known = std::collections::HashMap::new();
    while !strays.iter().all(|number| known.contains_key(number)) {
        let (number, unasked) = reports.recv_timeout(Duration::from_secs(10)).unwrap();
        known.insert(number, unasked);
    }
    let wrong = strays.iter().filter(|number| known[number]).count();
    let crossed = strays.len() - wrong;
    println!("{wrong} of {trials} were wrong, and {crossed} more crossed the request");
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_is_the_answer() {
    let setup = Setup::new().await;
    let long = Bytes::from(vec![b'x'; 32 << 20]);
    let (mut stream, asking) = setup.ask(&long).await;
    let answer = b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 4\r\n\r\nlong";
    stream.write_all(answer).await.unwrap();
    let response = asking.await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let body: Vec<_> = response.into_body().collect().await;
    assert_eq!(body.len(), 1);
    assert_eq!(setup.kept(), 0, "the rest of the request was never sent");
}

#[tokio::test]
async fn the_oldest_connection_makes_room_for_the_newest() {
    let setup = Setup::new().await;
    let mut streams = Vec::new();
    for _ in 0..=MAX_IDLE {
        let connection = setup
            .pool
            .connect(&setup.uri, setup.uri.authority().unwrap());
        let (connection, accepted) = tokio::join!(connection, setup.listener.accept());
        streams.push(accepted.unwrap().0);
        setup.pool.keep(connection.unwrap());
    }
    assert_eq!(setup.kept(), MAX_IDLE);
    assert_eq!(streams[0].read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_request_is_sent_to_its_end_also_when_a_good_answer_has_begun() {
    let setup = Setup::new().await;
    let long = Bytes::from(vec![b'x'; 32 << 20]);
    let (mut stream, asking) = setup.ask(&long).await;
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
    stream.write_all(answer).await.unwrap();
    let serving = async {
        let mut seen = 0;
        while seen < long.len() {
            seen += stream.read(&mut vec![0; 1 << 20]).await.unwrap();
        }
        stream.write_all(b"ok").await.unwrap();
        stream
    };
    let both = async { tokio::join!(whole(asking), serving) };
    let (read, _stream) = timeout(Duration::from_secs(10), both).await.unwrap();
    assert_eq!((read.unwrap().as_str(), setup.kept()), ("ok", 1));
}

/// Says something and closes the connection, before anybody can be told of either.
fn say_and_reset(stream: TcpStream, words: &[u8]) {
    assert_eq!(stream.try_write(words).unwrap(), words.len());
    stream.set_zero_linger().unwrap();
    drop(stream);
}

const TOO_LONG: &[u8] = b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn an_answer_is_read_also_where_nothing_more_can_be_sent() {
    let setup = Setup::new().await;
    let (accepted, connection) = tokio::join!(
        setup.listener.accept(),
        setup
            .pool
            .connect(&setup.uri, setup.uri.authority().unwrap())
    );
    let (stream, mut connection) = (accepted.unwrap().0, connection.unwrap());
    stream.writable().await.unwrap();
    say_and_reset(stream, TOO_LONG);
    let (mut message, mut buffer) = (&b"hello"[..], BytesMut::new());
    let head =
        poll_fn(|cx| connection.exchange(cx, &mut message, &mut buffer, &Method::POST)).await;
    assert_eq!(
        head.unwrap().response.status(),
        StatusCode::PAYLOAD_TOO_LARGE
    );
}

#[tokio::test]
async fn the_last_words_of_a_connection_are_no_answer_to_what_it_has_not_seen() {
    let setup = Setup::new().await;
    say_and_reset(setup.answered().await, TOO_LONG);
    let answered = timeout(Duration::from_secs(10), setup.answered()).await;
    answered.expect("it is asked on a new connection");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error() {
    for (answer, expected) in [
        ("", "the connection was closed before an answer"),
        (
            "HTTP/1.1 200 OK\r\n",
            "the connection was closed before an answer",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok",
            "the connection was closed before the end of the answer",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
            "the connection was closed before the end of the answer",
        ),
        (
            "SMTP\r\n\r\n",
            "it is no HTTP/1.1: a head that cannot be read",
        ),
    ] {
        let setup = Setup::new().await;
        let (mut stream, asking) = setup.asked().await;
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        match whole(asking).await {
            Err(HttpError::Broken(reason)) => assert_eq!(reason, expected),
            other => panic!("{other:?}"),
        }
        assert_eq!(setup.kept(), 0);
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_from_a_broken_connection() {
    let setup = Setup::new().await;
    let asking = setup.ask_again(&hello());
    let (stream, _) = setup.listener.accept().await.unwrap();
    drop((stream, setup.listener));
    assert!(matches!(whole(asking).await, Err(HttpError::Broken(_))));
    let headers = HeaderMap::new();
    let body = SegmentedBody::of(b"hello");
    let sent = setup.pool.send(post(&setup.uri, &headers, &body));
    assert!(matches!(sent.await, Err(HttpError::Connect(_))));
}

#[tokio::test]
async fn a_dropped_answer_ends_its_connection() {
    let setup = Setup::new().await;
    let (mut stream, asking) = setup.asked().await;
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok";
    stream.write_all(answer).await.unwrap();
    drop(asking.await.unwrap().unwrap());
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_silent_answer_holds_no_buffer() {
    let setup = Setup::new().await;
    let (mut stream, asking) = setup.asked().await;
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok";
    stream.write_all(answer).await.unwrap();
    let mut incoming = asking.await.unwrap().unwrap().into_body();
    assert_eq!(incoming.next().await.unwrap().unwrap(), "ok");
    assert!(incoming.next().now_or_never().is_none());
    assert_eq!(incoming.buffer.capacity(), 0);
}

#[tokio::test]
async fn a_long_body_is_read_with_growing_room() {
    let setup = Setup::new().await;
    let (mut stream, asking) = setup.ask(&hello()).await;
    let body = "x".repeat(3 << 20);
    let sending = async {
        read_request(&mut stream).await;
        let answer = format!("HTTP/1.1 200 OK\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    };
    let (read, ()) = tokio::join!(whole(asking), sending);
    assert_eq!(read.unwrap().len(), body.len());
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_closed_after_a_while() {
    let setup = Setup::new().await;
    let mut stream = setup.answered().await;
    // The sweeper begins its wait before the clock stands still.
    yield_now().await;
    pause();
    advance(super::super::IDLE).await;
    advance(SWEEP).await;
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(setup.kept(), 0);
}

#[tokio::test]
async fn one_pool_serves_several_hosts() {
    let (here, there) = (Setup::new().await, Setup::new().await);
    let _here = here.answered().await;
    let elsewhere = Setup {
        pool: Arc::clone(&here.pool),
        ..there
    };
    let _there = elsewhere.answered().await;
    assert_eq!(here.kept(), 2);
}
