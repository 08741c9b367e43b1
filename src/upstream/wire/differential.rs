//! The bytes of a response, parsed by `framing` and by hyper's client. Both must give the same result, except where
//! [`deliberate`] names the reason. For tests and the fuzz target only.

use std::future::pending;

use bytes::{Bytes, BytesMut};
use futures::executor::block_on;
use http::{HeaderMap, HeaderName, Method, Request, Version, header, response};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::framing::{
    BodyStep, Chunked, Framing, MAX_CHUNK_LINE, MAX_HEAD, MAX_HEADERS, read_head,
};

/// A response as one reader parses it, if the connection ends after the bytes; absent if they are not a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedResponse {
    /// 1.1, or 1.0.
    pub version: Version,
    /// The status code.
    pub status: u16,
    /// Every header, those of one name in their order.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Vec<u8>,
}

/// The result of `framing` if the bytes arrive in these pieces, and what is left after the response.
pub fn ours<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    method: &Method,
) -> Option<(ParsedResponse, Vec<u8>)> {
    let (mut buffer, mut head, mut body) = (BytesMut::new(), None, Vec::new());
    let mut has_ended = false;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if head.is_none() {
            head = read_head(&mut buffer, method).ok()?;
        }
        while let (Some(head), false) = (&mut head, has_ended) {
            match head.framing.step(&mut buffer).ok()? {
                BodyStep::Piece(piece) => body.extend_from_slice(&piece),
                BodyStep::More => break,
                BodyStep::End => has_ended = true,
            }
        }
    }
    let head = head.filter(|head| has_ended || head.framing == Framing::UntilClose)?;
    let head = head.response.into_parts().0;
    Some((verdict(head, body), buffer.to_vec()))
}

/// hyper's result, with the same limits.
pub fn hypers(bytes: &[u8], method: &Method) -> Option<ParsedResponse> {
    let (client, mut server) = duplex(1 << 20);
    let serve = async move {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") && server.read_buf(&mut request).await.is_ok() {}
        let _ = server.write_all(bytes).await;
    };
    let ask = async move {
        let mut builder = http1::Builder::new();
        builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD);
        let (mut sender, connection) = builder.handshake(TokioIo::new(client)).await.ok()?;
        let request = Request::builder().method(method).header(header::HOST, "h");
        let exchange = async {
            let request = request.body(Empty::<Bytes>::new()).ok()?;
            let (head, body) = sender.send_request(request).await.ok()?.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            Some(verdict(head, body.into()))
        };
        let drive = async {
            let _ = connection.await;
            pending::<()>().await;
        };
        tokio::select! {
            verdict = exchange => verdict,
            () = drive => None,
        }
    };
    block_on(async { tokio::join!(serve, ask).1 })
}

fn verdict(head: response::Parts, body: Vec<u8>) -> ParsedResponse {
    ParsedResponse {
        version: head.version,
        status: head.status.as_u16(),
        headers: head.headers,
        body,
    }
}

/// Why the results for these bytes may differ; `None` if they must be equal.
pub fn deliberate(
    bytes: &[u8],
    method: &Method,
    ours: Option<&ParsedResponse>,
    hypers: Option<&ParsedResponse>,
) -> Option<&'static str> {
    let headers = &ours.or(hypers)?.headers;
    let has_empty_member = |name: HeaderName| {
        let mut values = headers.get_all(name).iter();
        values.any(|value| {
            value
                .as_bytes()
                .split(|it| *it == b',')
                .any(|it| it.trim_ascii().is_empty())
        })
    };
    match (ours, hypers) {
        (None, Some(it)) if it.status == 101 => Some(
            "no request asks for another protocol, so none can follow (RFC 9110, 7.8 and 15.2.2)",
        ),
        (Some(it), None)
            if it.version == Version::HTTP_10
                && headers.contains_key(header::TRANSFER_ENCODING) =>
        {
            Some(
                "the answer is read and the connection closed after it (RFC 9112, 6.1); hyper refuses it",
            )
        }
        (Some(_), None) if has_empty_member(header::CONTENT_LENGTH) => Some(
            "a list may have empty members (RFC 9112, 6.3, and RFC 9110, 5.6.1.2); hyper refuses them",
        ),
        (_, Some(_)) if has_empty_member(header::TRANSFER_ENCODING) => {
            Some("the last coding is the last member that is not empty (RFC 9110, 5.6.1.2)")
        }
        (Some(ours), None) if hypers_without_trailers(bytes, method).as_ref() == Some(ours) => {
            Some(
                "trailers are discarded unread (RFC 9112, 7.1.2), and LF may end their lines (2.2)",
            )
        }
        _ if bytes.len() > MAX_CHUNK_LINE => Some("each has limits of its own"),
        _ => None,
    }
}

/// hyper's result for the same response without trailers.
fn hypers_without_trailers(bytes: &[u8], method: &Method) -> Option<ParsedResponse> {
    let (mut buffer, mut head) = (BytesMut::new(), None);
    for (at, byte) in bytes.iter().enumerate() {
        buffer.extend_from_slice(&[*byte]);
        if head.is_none() {
            head = read_head(&mut buffer, method).ok()?;
        }
        if let Some(head) = &mut head {
            head.framing.step(&mut buffer).ok()?;
            if head.framing == Framing::Chunked(Chunked::Trailers(0)) {
                return hypers(&[&bytes[..=at], b"\r\n"].concat(), method);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAME: &str = "the same verdict";

    /// Compares the two. The reason why they may differ must begin with `expected`.
    #[track_caller]
    fn check(text: &str, expected: &str) {
        for method in [Method::GET, Method::HEAD] {
            let ours = ours(std::iter::once(text.as_bytes()), &method).map(|it| it.0);
            let hypers = hypers(text.as_bytes(), &method);
            let reason = deliberate(text.as_bytes(), &method, ours.as_ref(), hypers.as_ref());
            if ours == hypers {
                assert!(expected == SAME || method == Method::HEAD, "{text:?}");
                continue;
            }
            assert!(
                reason.is_some_and(|it| it.starts_with(expected)),
                "{text:?}: {reason:?}, {ours:?} and {hypers:?}"
            );
        }
    }

    fn response(headers: &str, body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\n{headers}\r\n{body}")
    }

    #[test]
    fn a_response_is_to_us_what_it_is_to_hyper() {
        for (headers, body) in [
            ("content-length: 2\r\n", "ok"),
            ("content-length: 2\r\n", "o"),
            ("content-length: 2\r\n", "ok and more"),
            ("content-length: 2, 2\r\ncontent-length: 02\r\n", "ok"),
            ("content-length: 2, 3\r\n", "okay"),
            ("content-length: +2\r\n", "ok"),
            ("content-length: 99999999999999999999\r\n", "ok"),
            ("", "until the end"),
            (
                "transfer-encoding: chunked\r\n",
                "2;a=b\r\nok\r\n0\r\na: b\r\n\r\n",
            ),
            ("transfer-encoding: chunked\r\n", "2\r\nok\r\n"),
            ("transfer-encoding: chunked\r\n", "2\r\nokay\r\n0\r\n\r\n"),
            ("transfer-encoding: chunked\r\n", "2\nok\r\n0\r\n\r\n"),
            ("transfer-encoding: chunked\r\n", ";\r\n\r\n"),
            (
                "transfer-encoding: gzip, Chunked\r\ncontent-length: 9\r\n",
                "1\r\na\r\n0\r\n\r\n",
            ),
            ("transfer-encoding: chunked, gzip\r\n", "2\r\nok\r\n"),
            ("transfer-encoding: \r\n", "until the end"),
            ("a b: c\r\n", ""),
            ("a: b\r\n c\r\n", ""),
        ] {
            check(&response(headers, body), SAME);
        }
        for text in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\ncontent-length: 9\n\n",
            "HTTP/1.0 304\r\ncontent-length: 9\r\n\r\n",
            "HTTP/1.1 099 No\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
        ] {
            check(text, SAME);
        }
    }

    #[test]
    fn where_it_is_not_there_is_a_reason() {
        check("HTTP/1.1 101 S\r\n\r\n", "no request asks");
        check(
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "the answer is read and the connection closed",
        );
        check(
            &response("content-length: 2,\r\n", "ok"),
            "a list may have empty members",
        );
        let chunked = "1\r\na\r\n0\r\n\r\n";
        check(
            &response("transfer-encoding: , chunked ,\r\n", chunked),
            "the last coding",
        );
        for trailers in ["no field\r\n\r\n", "a: b\n\n", "\n"] {
            let body = format!("1\r\na\r\n0\r\n{trailers}");
            check(
                &response("transfer-encoding: chunked\r\n", &body),
                "trailers are discarded",
            );
        }
    }

    fn headers() -> impl Strategy<Value = String> {
        let header = prop_oneof![
            "(content-length|Content-Length): ?(0|1|2|5|05|5, ?5|5,|\\+5|-1|5 5|4, 5|99999999999999999999|)[ \t]?",
            "transfer-encoding: ?(chunked|Chunked|gzip, chunked|chunked, gzip|gzip|, chunked ,||chunked, chunked)",
            "(connection: (close|keep-alive)|x: [ -~]{0,5}|x:|X-\u{e9}: 1|a b: c|: d|x : y| folded)",
        ];
        let line = (header, "(\r\n|\n)").prop_map(|(header, end)| header + &end);
        proptest::collection::vec(line, 0..4).prop_map(|lines| lines.concat())
    }

    fn body() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z\r\n]{0,8}",
            "((0|1|2|05|A|1 |1;a=b|1;\"\r|x|;|FFFFFFFFFFFFFFFFF)(\r\n|\n)[a-z]{0,2}(\r\n|\n)?){0,3}(0\r\n(a: b\r\n|ab\r\n| x\r\n|a: b\n)?(\r\n|\n|))?",
            "(1\r\na\r\n){0,3}0\r\n((a|b|): ?[ -~]{0,3}\r\n){0,2}\r\n",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn every_difference_is_deliberate(
            interim in "(HTTP/1\\.1 100 C\r\n(a: b\r\n)?\r\n)?",
            status in "HTTP/1\\.[01] (200|204|304|404|101|103|099|999)( OK|)(\r\n|\n)",
            headers in headers(),
            end in "(\r\n|\n)",
            body in body(),
            is_head: bool,
        ) {
            let text = [interim, status, headers, end, body].concat();
            let method = if is_head { Method::HEAD } else { Method::GET };
            let ours = ours(std::iter::once(text.as_bytes()), &method).map(|it| it.0);
            let hypers = hypers(text.as_bytes(), &method);
            let reason = deliberate(text.as_bytes(), &method, ours.as_ref(), hypers.as_ref());
            prop_assert!(ours == hypers || reason.is_some(), "{text:?}: {ours:?} and {hypers:?}");
        }
    }
}
