//! An HTTP/1.1 client with one connection and one request at a time, as cheap as one can be without losing a check.
//!
//! A request is made once and written as it is; a reply is read to its end, whatever is in it.

use bytes::{Buf, BytesMut};
use httparse::Status;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Most headers of a reply.
const MAX_HEADERS: usize = 64;

/// Where requests go, and the part of them that is always the same.
#[derive(Clone)]
pub(crate) struct Target {
    address: String,
    path: String,
    headers: String,
}

impl Target {
    /// `headers` are lines without their ends, `name: value`.
    pub(crate) fn parse(url: &str, headers: &[String]) -> Result<Self, String> {
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| format!("{url}: only http:// is spoken"))?;
        let (address, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let mut target = Target {
            address: address.to_owned(),
            path: path.to_owned(),
            headers: format!("host: {address}\r\ncontent-type: application/json\r\n"),
        };
        for header in headers {
            target = target.with_header(header);
        }
        Ok(target)
    }

    pub(crate) fn with_header(mut self, line: &str) -> Self {
        self.headers += line;
        self.headers += "\r\n";
        self
    }

    pub(crate) fn post(&self, body: &[u8]) -> Vec<u8> {
        self.request("POST", body)
    }

    pub(crate) fn request(&self, method: &str, body: &[u8]) -> Vec<u8> {
        let Target { path, headers, .. } = self;
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n");
        [head.as_bytes(), body].concat()
    }
}

/// One connection that is kept.
pub(crate) struct Connection {
    stream: TcpStream,
    input: BytesMut,
    /// The body of the last reply.
    pub(crate) body: Vec<u8>,
}

/// The head of a reply, as far as anybody asks for it.
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) session: Option<String>,
    length: Length,
}

enum Length {
    Known(usize),
    Chunked,
}

impl Connection {
    pub(crate) async fn open(target: &Target) -> Result<Self, String> {
        let failed = |error| format!("{}: {error}", target.address);
        let stream = TcpStream::connect(&target.address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Connection {
            stream,
            input: BytesMut::with_capacity(16 << 10),
            body: Vec::new(),
        })
    }

    /// Sends a request and reads its whole reply; anything but a status of 200 to 299 is an error.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<Head, String> {
        self.watched_exchange(request, |_| {}).await
    }

    /// The same; `seen` is shown the body so far, each time that there is more of it.
    ///
    /// If it is dropped, the connection is of no more use.
    pub(crate) async fn watched_exchange(
        &mut self,
        request: &[u8],
        mut seen: impl FnMut(&[u8]),
    ) -> Result<Head, String> {
        let sent = self.stream.write_all(request).await;
        sent.map_err(|error| format!("sending: {error}"))?;
        self.body.clear();
        let head = self.head().await?;
        match head.length {
            Length::Known(length) => self.whole_body(length).await?,
            Length::Chunked => {
                while self.chunk().await? {
                    seen(&self.body);
                }
            }
        }
        seen(&self.body);
        if !self.input.is_empty() {
            return Err(format!("{} bytes too many", self.input.len()));
        }
        if !(200..300).contains(&head.status) {
            return Err(format!("status {}: {}", head.status, shown(&self.body)));
        }
        Ok(head)
    }

    async fn more(&mut self) -> Result<(), String> {
        match self.stream.read_buf(&mut self.input).await {
            Ok(0) => Err("the connection was closed in the middle".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("reading: {error}")),
        }
    }

    async fn head(&mut self) -> Result<Head, String> {
        loop {
            self.more().await?;
            if let Some((head, length)) = parse_head(&self.input)? {
                self.input.advance(length);
                return Ok(head);
            }
        }
    }

    async fn whole_body(&mut self, length: usize) -> Result<(), String> {
        while self.input.len() < length {
            self.input.reserve(length - self.input.len());
            self.more().await?;
        }
        self.body.extend_from_slice(&self.input[..length]);
        self.input.advance(length);
        Ok(())
    }

    /// Reads one chunk; false at the last, which is empty.
    async fn chunk(&mut self) -> Result<bool, String> {
        loop {
            let parsed = httparse::parse_chunk_size(&self.input);
            if let Status::Complete((begin, size)) = parsed.map_err(|_| "a chunk without a size")? {
                let end = begin + usize::try_from(size).map_err(|error| error.to_string())?;
                if self.input.len() >= end + 2 {
                    self.body.extend_from_slice(&self.input[begin..end]);
                    self.input.advance(end + 2);
                    return Ok(size > 0);
                }
            }
            self.more().await?;
        }
    }
}

/// The head and its length, once it is all there.
fn parse_head(input: &[u8]) -> Result<Option<(Head, usize)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response
        .parse(input)
        .map_err(|error| format!("no HTTP reply: {error}"))?;
    let Status::Complete(length) = parsed else {
        return Ok(None);
    };
    let status = response.code.unwrap_or_default();
    let value = |name: &str| {
        let header = response
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    let body = match (value("content-length"), value("transfer-encoding")) {
        (Some(length), _) => {
            Length::Known(length.parse().map_err(|_| "content-length is no number")?)
        }
        (None, Some(_)) => Length::Chunked,
        (None, None) if status == 204 => Length::Known(0),
        (None, None) => return Err("a reply without a length".to_owned()),
    };
    let head = Head {
        status,
        session: value("mcp-session-id").map(str::to_owned),
        length: body,
    };
    Ok(Some((head, length)))
}

/// The beginning of a body, for a message.
pub(crate) fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
    if text.is_empty() {
        "(empty)".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_parsed_once_it_is_whole() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nMcp-Session-Id: s\r\n\r\nhi";
        assert!(parse_head(&whole[..40]).unwrap().is_none());
        let (head, length) = parse_head(whole).unwrap().expect("it is whole");
        assert_eq!((head.status, head.session.as_deref()), (200, Some("s")));
        assert_eq!(&whole[length..], b"hi");
    }

    #[test]
    fn a_reply_without_a_length_is_refused() {
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn a_request_says_how_long_its_body_is() {
        let target = Target::parse("http://127.0.0.1:1/a/b", &["x: y".to_owned()]).unwrap();
        let request = String::from_utf8(target.post(b"{}")).unwrap();
        assert!(request.starts_with("POST /a/b HTTP/1.1\r\nhost: 127.0.0.1:1\r\n"));
        assert!(request.ends_with("x: y\r\ncontent-length: 2\r\n\r\n{}"));
    }
}
