//! HTTP/1.1 as bytes (RFC 9112): the head of a request, the head of an answer, and where its body ends.
//!
//! `httparse` parses the grammar; this module interprets the heads. No IO happens here.

use std::{mem::MaybeUninit, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version, header,
};
use httparse::{ParserConfig, Status};

use super::IDLE;

/// Longest head of an answer, in bytes.
pub(super) const MAX_HEAD: usize = 64 << 10;

/// Most headers of an answer.
pub(super) const MAX_HEADERS: usize = 128;

/// Longest chunk-size line, in bytes; its extensions are ignored.
pub(super) const MAX_CHUNK_LINE: usize = 4 << 10;

/// Longest trailers, in bytes.
const MAX_TRAILERS: usize = 16 << 10;

/// Why bytes are not valid HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no HTTP/1.1: {0}")]
pub(super) struct MalformedResponse(&'static str);

/// Writes the head of a request with a body of `body` bytes (RFC 9112, 3; the target is the path alone, 3.2.1). This
/// function sets the lengths, so `headers` that carry them are skipped.
pub(super) fn write_head<'a>(
    method: &Method,
    uri: &Uri,
    headers: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
    body: usize,
) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    for part in [method.as_str(), " ", path, " HTTP/1.1\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
    let mut has_host = false;
    for (name, value) in headers {
        if *name == header::CONTENT_LENGTH || *name == header::TRANSFER_ENCODING {
            continue;
        }
        has_host |= *name == header::HOST;
        line(&mut head, name.as_str(), value.as_bytes());
    }
    // RFC 9112, 3.2.
    if !has_host {
        line(&mut head, "host", host(uri).as_bytes());
    }
    // RFC 9110, 8.6: a method that defines a meaning for a body sends Content-Length even when the body is empty.
    if body > 0 || matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        line(&mut head, "content-length", body.to_string().as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn line(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// Host and port for the `Host` header, without user and password.
fn host(uri: &Uri) -> &str {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit('@').next().unwrap_or_default();
    host.strip_suffix(":80").unwrap_or(host)
}

/// The head of an answer, and what it says about the rest.
#[derive(Debug)]
pub(super) struct ResponseHead {
    /// Status and headers.
    pub(super) response: Response<()>,
    /// Where the body ends.
    pub(super) framing: Framing,
    /// For how long the connection can be reused after it; `None` if it cannot.
    pub(super) lasts: Option<Duration>,
}

/// Takes the head of the answer from the buffer; `None` while it is incomplete. Interim answers (1xx) are skipped.
pub(super) fn read_head(
    buffer: &mut BytesMut,
    method: &Method,
) -> Result<Option<ResponseHead>, MalformedResponse> {
    while let Some(end) = end_of_head(buffer) {
        let bytes = buffer.split_to(end).freeze();
        let (response, has_old_version) = parse(&bytes)?;
        let status = response.status();
        // No request here has an `Upgrade` (RFC 9110, 7.8 and 15.2.2).
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(MalformedResponse("another protocol that nobody asked for"));
        }
        // RFC 9110, 15.2: any number of them may precede the answer.
        if status.is_informational() {
            continue;
        }
        // RFC 9112, 6.3, 1: these have no body, whatever their headers say.
        let is_bare = *method == Method::HEAD
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let headers = response.headers();
        let (framing, is_sound) = match is_bare {
            true => (Framing::Length(0), true),
            false => Framing::of(headers)?,
        };
        let is_lasting = match has_old_version {
            // RFC 9112, 9.3. HTTP/1.0 has no transfer codings, so a response with one is faulty, and the connection is
            // closed after it (6.1).
            true => says(headers, "keep-alive") && !headers.contains_key(header::TRANSFER_ENCODING),
            false => !says(headers, "close"),
        };
        let is_lasting = is_lasting && is_sound && framing != Framing::UntilClose;
        let lasts = is_lasting.then(|| announced(headers)).flatten();
        return Ok(Some(ResponseHead {
            lasts,
            framing,
            response,
        }));
    }
    match buffer.len() > MAX_HEAD {
        true => Err(MalformedResponse("a head that does not end")),
        false => Ok(None),
    }
}

/// The position after the empty line. LF alone also ends a line (RFC 9112, 2.2).
fn end_of_head(buffer: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', buffer).find_map(|at| match &buffer[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// Parses status and headers, and tells whether the response is HTTP/1.0. `httparse` checks the grammar (RFC 9112, 4
/// and 5): it refuses a space before the colon (5.1) and a header that continues on a second line (5.2).
fn parse(bytes: &Bytes) -> Result<(Response<()>, bool), MalformedResponse> {
    let mut room = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut read = httparse::Response::new(&mut []);
    let parsed =
        ParserConfig::default().parse_response_with_uninit_headers(&mut read, bytes, &mut room);
    match parsed {
        Ok(Status::Complete(length)) if length == bytes.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(MalformedResponse("too many headers")),
        _ => return Err(MalformedResponse("a head that cannot be read")),
    }
    let status = read.code.and_then(|code| StatusCode::from_u16(code).ok());
    let mut response = Response::new(());
    *response.status_mut() = status.ok_or(MalformedResponse("a status that is none"))?;
    let has_old_version = read.version == Some(0);
    if has_old_version {
        *response.version_mut() = Version::HTTP_10;
    }
    let headers = response.headers_mut();
    headers.reserve(read.headers.len());
    for header in read.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(header.value));
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(MalformedResponse("a header that is none"));
        };
        headers.append(name, value);
    }
    Ok((response, has_old_version))
}

/// For how long the server says it keeps the connection, minus a second for latency; at most [`IDLE`].
fn announced(headers: &HeaderMap) -> Option<Duration> {
    let keep_alive = HeaderName::from_static("keep-alive");
    let seconds = members(headers, &keep_alive).find_map(|member| {
        let seconds = member.strip_prefix("timeout=")?;
        seconds.parse::<u64>().ok()
    });
    let Some(seconds) = seconds else {
        return Some(IDLE);
    };
    let lasts = IDLE.min(Duration::from_secs(seconds.saturating_sub(1)));
    (!lasts.is_zero()).then_some(lasts)
}

/// Whether the header `Connection` has this option.
fn says(headers: &HeaderMap, word: &str) -> bool {
    members(headers, &header::CONNECTION).any(|member| member.eq_ignore_ascii_case(word))
}

/// The members of a list header. A value that is not text becomes an unknown member; empty members are skipped (RFC
/// 9110, 5.6.1).
fn members<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter();
    let members = values.flat_map(|value| value.to_str().unwrap_or("?").split(','));
    members.map(str::trim).filter(|member| !member.is_empty())
}

/// Where a body ends (RFC 9112, 6.3), and how much of it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// After this many more bytes.
    Length(u64),
    /// After the last chunk and the trailers.
    Chunked(Chunked),
    /// At the end of the connection.
    UntilClose,
}

/// The next part of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunked {
    /// The chunk-size line.
    Size,
    /// Chunk data: this many more bytes, at least one.
    Data(u64),
    /// The line end after a chunk.
    End,
    /// Trailers, of which this many bytes have arrived.
    Trailers(usize),
}

/// The next step of reading a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyStep {
    /// A piece of it, never empty.
    Piece(Bytes),
    /// More has to arrive.
    More,
    /// It has ended; the rest of the buffer belongs to no response.
    End,
}

impl Framing {
    /// Reads the framing from the headers. Also returns whether they are unambiguous; if not, the connection must not
    /// be reused.
    fn of(headers: &HeaderMap) -> Result<(Framing, bool), MalformedResponse> {
        let has_length = headers.contains_key(header::CONTENT_LENGTH);
        if headers.contains_key(header::TRANSFER_ENCODING) {
            // Transfer-Encoding overrides Content-Length; a message with both may be an attack (RFC 9112, 6.3, 3). If
            // `chunked` is not the last coding, or there is none, the body ends with the connection (6.3, 4).
            let coding = members(headers, &header::TRANSFER_ENCODING).last();
            let framing = match coding.is_some_and(|it| it.eq_ignore_ascii_case("chunked")) {
                true => Framing::Chunked(Chunked::Size),
                false => Framing::UntilClose,
            };
            return Ok((framing, !has_length));
        }
        // Repeated values of Content-Length count as one if all are valid and equal (RFC 9112, 6.3, 5). A valid value
        // has digits only, no sign (RFC 9110, 8.6).
        let mut lengths = members(headers, &header::CONTENT_LENGTH).map(|text| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let length = text.parse::<u64>().ok().filter(|_| is_number);
            length.ok_or(MalformedResponse("a length that is none"))
        });
        let length = match lengths.next() {
            Some(length) => length?,
            None if has_length => return Err(MalformedResponse("a length that is none")),
            // RFC 9112, 6.3, 8.
            None => return Ok((Framing::UntilClose, true)),
        };
        for other in lengths {
            if other? != length {
                return Err(MalformedResponse("two lengths of one body"));
            }
        }
        Ok((Framing::Length(length), true))
    }

    /// Takes the next piece from the buffer.
    pub(super) fn step(&mut self, buffer: &mut BytesMut) -> Result<BodyStep, MalformedResponse> {
        loop {
            match self {
                Framing::Length(0) => return Ok(BodyStep::End),
                _ if buffer.is_empty() => return Ok(BodyStep::More),
                Framing::UntilClose => return Ok(BodyStep::Piece(buffer.split().freeze())),
                Framing::Length(left) => return Ok(BodyStep::Piece(take(buffer, left))),
                Framing::Chunked(chunked) => {
                    if let Some(step) = chunked.step(buffer)? {
                        return Ok(step);
                    }
                }
            }
        }
    }
}

impl Chunked {
    /// `None` means that the next state has been reached.
    fn step(&mut self, buffer: &mut BytesMut) -> Result<Option<BodyStep>, MalformedResponse> {
        match self {
            // RFC 9112, 7.1; extensions are ignored (7.1.1). Only CRLF ends this line, because implementations differ
            // on LF alone.
            Chunked::Size => match httparse::parse_chunk_size(buffer) {
                Ok(Status::Complete((length, size))) if buffer[0].is_ascii_hexdigit() => {
                    let _ = buffer.split_to(length);
                    *self = match size {
                        0 => Chunked::Trailers(0),
                        size => Chunked::Data(size),
                    };
                }
                Ok(Status::Partial) if buffer.len() <= MAX_CHUNK_LINE => {
                    return Ok(Some(BodyStep::More));
                }
                _ => return Err(MalformedResponse("a chunk whose length cannot be read")),
            },
            Chunked::Data(left) => {
                let piece = take(buffer, left);
                if *left == 0 {
                    *self = Chunked::End;
                }
                return Ok(Some(BodyStep::Piece(piece)));
            }
            // A chunk longer than its declared size is an error (RFC 9112, 7.1), not the beginning of the next chunk.
            Chunked::End => match &buffer[..] {
                [b'\r', b'\n', ..] => {
                    let _ = buffer.split_to(2);
                    *self = Chunked::Size;
                }
                b"\r" => return Ok(Some(BodyStep::More)),
                _ => return Err(MalformedResponse("a chunk that is longer than it says")),
            },
            // Trailers may be discarded (RFC 9112, 7.1.2), so they are not read.
            Chunked::Trailers(seen) => {
                let Some(at) = memchr::memchr(b'\n', buffer) else {
                    return match *seen + buffer.len() > MAX_TRAILERS {
                        true => Err(MalformedResponse("trailers that do not end")),
                        false => Ok(Some(BodyStep::More)),
                    };
                };
                let line = buffer.split_to(at + 1);
                if matches!(&line[..], b"\r\n" | b"\n") {
                    *self = Chunked::Size;
                    return Ok(Some(BodyStep::End));
                }
                *seen += line.len();
                if *seen > MAX_TRAILERS {
                    return Err(MalformedResponse("trailers that do not end"));
                }
            }
        }
        Ok(None)
    }
}

/// Takes up to `left` bytes from the buffer and reduces `left`.
fn take(buffer: &mut BytesMut, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).map_or(buffer.len(), |left| left.min(buffer.len()));
    *left -= length as u64;
    buffer.split_to(length).freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(text: &str) -> Result<Option<ResponseHead>, MalformedResponse> {
        read_head(&mut BytesMut::from(text), &Method::POST)
    }

    #[track_caller]
    fn check_framing(headers: &str, expected: Framing, is_lasting: bool) {
        let head = head(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n"))
            .unwrap()
            .unwrap();
        let lasts = is_lasting.then_some(IDLE);
        assert_eq!((head.framing, head.lasts), (expected, lasts));
    }

    #[track_caller]
    fn check_malformed(text: &str, expected: &'static str) {
        assert_eq!(head(text).unwrap_err(), MalformedResponse(expected));
    }

    /// Reads a body that arrives in pieces; also returns what follows its end in the buffer.
    fn read(
        mut framing: Framing,
        pieces: &[&[u8]],
    ) -> Result<(Vec<u8>, Vec<u8>), MalformedResponse> {
        let (mut buffer, mut body) = (BytesMut::new(), Vec::new());
        let mut has_ended = false;
        for piece in pieces {
            buffer.extend_from_slice(piece);
            while !has_ended {
                match framing.step(&mut buffer)? {
                    BodyStep::Piece(piece) => {
                        assert!(!piece.is_empty());
                        body.extend_from_slice(&piece);
                    }
                    BodyStep::More => break,
                    BodyStep::End => has_ended = true,
                }
            }
        }
        assert!(has_ended, "the body has no end");
        Ok((body, buffer.to_vec()))
    }

    const CHUNKED: Framing = Framing::Chunked(Chunked::Size);

    #[test]
    fn a_request_has_its_path_its_host_and_its_length() {
        let uri = Uri::from_static("http://me:secret@h.example:8080/v1/a?b=c");
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("99"));
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("x"));
        let head = write_head(&Method::POST, &uri, headers.iter(), 5);
        let expected = "POST /v1/a?b=c HTTP/1.1\r\naccept: */*\r\nhost: h.example:8080\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(String::from_utf8(head).unwrap(), expected);
    }

    #[test]
    fn a_request_without_a_body_says_so_where_one_could_be() {
        let uri = Uri::from_static("http://[::1]:80");
        let head =
            |method| String::from_utf8(write_head(&method, &uri, [].into_iter(), 0)).unwrap();
        assert_eq!(head(Method::GET), "GET / HTTP/1.1\r\nhost: [::1]\r\n\r\n");
        assert_eq!(
            head(Method::POST),
            "POST / HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 0\r\n\r\n"
        );
    }

    #[test]
    fn a_host_of_the_configuration_takes_the_place_of_the_address() {
        let uri = Uri::from_static("http://10.0.0.1/");
        let (name, value) = (header::HOST, HeaderValue::from_static("h.example"));
        let head = write_head(&Method::GET, &uri, [(&name, &value)].into_iter(), 0);
        assert_eq!(head, b"GET / HTTP/1.1\r\nhost: h.example\r\n\r\n");
    }

    #[test]
    fn the_headers_say_where_the_body_ends_and_whether_another_answer_can_follow() {
        check_framing("content-length: 5\r\n", Framing::Length(5), true);
        check_framing("content-length: 5, 5\r\n", Framing::Length(5), true);
        check_framing(
            "content-length: 5\r\nconnection: x, Close\r\n",
            Framing::Length(5),
            false,
        );
        check_framing("transfer-encoding: Chunked\r\n", CHUNKED, true);
        check_framing("transfer-encoding: gzip, chunked\r\n", CHUNKED, true);
        check_framing("transfer-encoding: , chunked ,\r\n", CHUNKED, true);
        check_framing(
            "transfer-encoding: chunked, gzip\r\n",
            Framing::UntilClose,
            false,
        );
        check_framing("", Framing::UntilClose, false);
        // Implementations may differ on which of the two counts (RFC 9112, 6.1).
        check_framing(
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            CHUNKED,
            false,
        );
    }

    #[test]
    fn a_connection_is_kept_for_a_second_less_than_the_other_side_keeps_it() {
        let lasts = |keep_alive: &str| {
            let text = format!("HTTP/1.1 204 No Content\r\nkeep-alive: {keep_alive}\r\n\r\n");
            head(&text).unwrap().unwrap().lasts
        };
        assert_eq!(lasts("timeout=5, max=9"), Some(Duration::from_secs(4)));
        assert_eq!(lasts("max=9, timeout=600"), Some(IDLE));
        assert_eq!(lasts("timeout=soon"), Some(IDLE));
        assert_eq!(lasts("timeout=1"), None);
    }

    #[test]
    fn an_old_answer_keeps_the_connection_only_where_it_says_so() {
        let of = |headers: &str| {
            let text = format!("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n{headers}\r\n");
            head(&text).unwrap().unwrap()
        };
        assert_eq!(of("").lasts, None);
        assert_eq!(of("connection: Keep-Alive\r\n").lasts, Some(IDLE));
        let chunked = "connection: keep-alive\r\ntransfer-encoding: chunked\r\n";
        assert_eq!(of(chunked).lasts, None);
        assert_eq!(of("").response.version(), Version::HTTP_10);
    }

    #[test]
    fn some_answers_have_no_body_whatever_they_say() {
        for start in ["HTTP/1.1 204 No Content", "HTTP/1.1 304 Not Modified"] {
            let head = head(&format!("{start}\r\ncontent-length: 9\r\n\r\n"));
            assert_eq!(head.unwrap().unwrap().framing, Framing::Length(0));
        }
        let mut buffer = BytesMut::from("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
        let head = read_head(&mut buffer, &Method::HEAD).unwrap().unwrap();
        assert_eq!(head.framing, Framing::Length(0));
    }

    #[test]
    fn interim_answers_are_passed_over() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 404 No\r\n\
            x: 1\r\n\r\nrest";
        let mut buffer = BytesMut::from(text);
        let head = read_head(&mut buffer, &Method::GET).unwrap().unwrap();
        assert_eq!(head.response.status(), StatusCode::NOT_FOUND);
        assert_eq!(head.response.headers()["x"], "1");
        assert_eq!(buffer, "rest");
    }

    #[test]
    fn line_ends_without_their_carriage_return_are_read() {
        let mut buffer = BytesMut::from("HTTP/1.1 200 OK\ncontent-length: 2\n\nok");
        let head = read_head(&mut buffer, &Method::GET).unwrap().unwrap();
        assert_eq!(
            (head.framing, &buffer[..]),
            (Framing::Length(2), &b"ok"[..])
        );
    }

    #[test]
    fn what_is_no_http_is_refused() {
        let ok = |headers: &str| format!("HTTP/1.1 200 OK\r\n{headers}\r\n");
        check_malformed("SSH-2.0-x\r\n\r\n", "a head that cannot be read");
        check_malformed("HTTP/2 200\r\n\r\n", "a head that cannot be read");
        check_malformed("\r\n\r\n", "a head that cannot be read");
        check_malformed(&ok("a b: c\r\n"), "a head that cannot be read");
        check_malformed("HTTP/1.1 099 X\r\n\r\n", "a status that is none");
        check_malformed(
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "another protocol that nobody asked for",
        );
        check_malformed(
            &ok("content-length: 5\r\ncontent-length: 6\r\n"),
            "two lengths of one body",
        );
        for length in ["", "-1", "+5", "5x", "99999999999999999999"] {
            let text = ok(&format!("content-length: {length}\r\n"));
            check_malformed(&text, "a length that is none");
        }
        check_malformed(&ok(&"a: b\r\n".repeat(MAX_HEADERS + 1)), "too many headers");
        let endless = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(MAX_HEAD));
        check_malformed(&endless, "a head that does not end");
    }

    #[test]
    fn chunks_are_put_together_and_trailers_passed_over() {
        let body = b"4;a=b\r\nab\r\n\r\n03 \r\nefg\r\n0\r\nx: 1\r\n\r\nrest";
        let expected = (b"ab\r\nefg".to_vec(), b"rest".to_vec());
        assert_eq!(read(CHUNKED, &[body]), Ok(expected));
    }

    #[test]
    fn chunks_that_lie_are_refused() {
        let refused = |text: &str| read(CHUNKED, &[text.as_bytes()]).unwrap_err().0;
        for size in [
            "\r\n",
            "x\r\n",
            ";\r\n",
            "-1\r\n",
            "0123456789abcdef0\r\n",
            "1\n",
        ] {
            assert_eq!(
                refused(size),
                "a chunk whose length cannot be read",
                "{size:?}"
            );
        }
        let endless = format!("1;{}", "a".repeat(MAX_CHUNK_LINE));
        assert_eq!(refused(&endless), "a chunk whose length cannot be read");
        assert_eq!(
            refused("1\r\nab\r\n"),
            "a chunk that is longer than it says"
        );
        for line in ["a: b\r\n", "a"] {
            let trailers = format!("0\r\n{}", line.repeat(MAX_TRAILERS + 1));
            assert_eq!(refused(&trailers), "trailers that do not end");
        }
    }

    proptest! {
        #[test]
        fn a_body_is_the_same_however_it_arrives(
            chunks in proptest::collection::vec("[a-z\r\n0]{1,9}", 0..4),
            cuts: Vec<proptest::sample::Index>,
        ) {
            let mut whole: String = chunks
                .iter()
                .map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len()))
                .collect();
            whole += "0\r\na: b\r\n\r\n";
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len())).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts
                .windows(2)
                .map(|cut| &whole.as_bytes()[cut[0]..cut[1]])
                .collect();
            prop_assert_eq!(read(CHUNKED, &pieces), Ok((chunks.concat().into(), Vec::new())));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, start in "(HTTP/1.1 200 OK\r\n)?[a-z0-9: \r\n;]*") {
            for bytes in [&bytes[..], start.as_bytes()] {
                let _ = read_head(&mut BytesMut::from(bytes), &Method::GET);
                let mut framing = CHUNKED;
                let mut buffer = BytesMut::from(bytes);
                while let Ok(BodyStep::Piece(_)) = framing.step(&mut buffer) {}
            }
        }
    }
}
