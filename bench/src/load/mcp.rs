//! `tools/call` as an MCP client makes it: the handshake and a session, then one call after another.

use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    http::{Connection, Target, shown},
    report::Done,
};

/// The version that the handshake is for.
const VERSION: &str = "2025-11-25";

/// Ids begin here, so that all have as many digits and can be written over.
const FIRST_ID: u64 = 1_000_000_000;

const ID_DIGITS: usize = 10;

/// One session with a server, on one connection.
pub(crate) struct Session {
    connection: Connection,
    target: Target,
    id: u64,
}

impl Session {
    /// Connects, and shakes hands unless there is only a mock without a protocol behind the URL.
    pub(crate) async fn open(target: &Target, handshake: bool) -> Result<Self, String> {
        let target = target
            .clone()
            .with_header("accept: application/json, text/event-stream")
            .with_header(&format!("mcp-protocol-version: {VERSION}"));
        let mut session = Session {
            connection: Connection::open(&target).await?,
            target,
            id: FIRST_ID,
        };
        if handshake {
            session.shake_hands().await?;
        }
        Ok(session)
    }

    async fn shake_hands(&mut self) -> Result<(), String> {
        let initialize = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"{VERSION}","capabilities":{{}},"clientInfo":{{"name":"load","version":"0"}}}}}}"#
        );
        let request = self.target.post(initialize.as_bytes());
        let head = self.connection.exchange(&request).await?;
        if memmem::find(&self.connection.body, VERSION.as_bytes()).is_none() {
            return Err(format!("initialize: {}", shown(&self.connection.body)));
        }
        let session = head.session.ok_or("initialize: there is no session")?;
        self.target = self
            .target
            .clone()
            .with_header(&format!("mcp-session-id: {session}"));
        let initialized = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let request = self.target.post(initialized);
        self.connection.exchange(&request).await?;
        Ok(())
    }

    /// Calls a tool and gives the text of its result; `arguments` is a JSON object.
    pub(crate) async fn call(&mut self, name: &str, arguments: &str) -> Result<String, String> {
        self.id += 1;
        let body = call_body(self.id, name, arguments);
        let request = self.target.post(body.as_bytes());
        self.connection.exchange(&request).await?;
        result_text(&self.connection.body)
    }

    pub(crate) async fn close(mut self) {
        // A server may refuse it; the session is then left to its own end.
        let _ = self
            .connection
            .exchange(&self.target.request("DELETE", b""))
            .await;
    }
}

fn call_body(id: u64, name: &str, arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
    )
}

/// A client that makes one call again and again, each with its own id.
pub(crate) struct Caller {
    session: Session,
    request: Vec<u8>,
    id_at: usize,
    message: String,
}

impl Caller {
    pub(crate) async fn open(
        target: &Target,
        handshake: bool,
        tool: &str,
        message: &str,
    ) -> Result<Self, String> {
        let session = Session::open(target, handshake).await?;
        let arguments = format!(r#"{{"message":"{message}"}}"#);
        let body = call_body(FIRST_ID, tool, &arguments);
        let request = session.target.post(body.as_bytes());
        let id_at = memmem::find(&request, FIRST_ID.to_string().as_bytes()).ok_or("no id")?;
        Ok(Caller {
            session,
            request,
            id_at,
            message: message.to_owned(),
        })
    }

    pub(crate) async fn once(&mut self) -> Result<Done, String> {
        self.session.id += 1;
        let id = self.session.id.to_string();
        self.request[self.id_at..self.id_at + ID_DIGITS].copy_from_slice(id.as_bytes());
        self.session.connection.exchange(&self.request).await?;
        let body = &self.session.connection.body;
        let has = |text: &str| memmem::find(body, text.as_bytes()).is_some();
        if !has(&id) || !has(&self.message) || has(r#""isError":true"#) {
            return Err(format!("no result of call {id}: {}", shown(body)));
        }
        Ok(Done {
            bytes: body.len(),
            first: None,
        })
    }

    pub(crate) async fn close(self) {
        self.session.close().await;
    }
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    result: CallResult<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallResult<'a> {
    #[serde(borrow)]
    content: Vec<Content<'a>>,
    #[serde(default)]
    is_error: bool,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow)]
    text: &'a RawValue,
}

/// The text of a result that comes as JSON, or as an event of a stream.
fn result_text(body: &[u8]) -> Result<String, String> {
    let wrong = || format!("no result: {}", shown(body));
    let mut lines = body.split(|&byte| byte == b'\n');
    let json = lines.find_map(|line| {
        let json = line.strip_prefix(b"data: ").unwrap_or(line);
        json.starts_with(b"{").then_some(json)
    });
    let response: Response<'_> =
        serde_json::from_slice(json.ok_or_else(wrong)?).map_err(|_| wrong())?;
    let first = response.result.content.first().ok_or_else(wrong)?;
    if response.result.is_error {
        return Err(wrong());
    }
    serde_json::from_str(first.text.get()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str =
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a \"fox\""}]}}"#;

    #[test]
    fn a_result_is_read_from_json_and_from_a_stream() {
        let text = Ok("a \"fox\"".to_owned());
        assert_eq!(result_text(RESULT.as_bytes()), text);
        let stream = format!("data: \nid: 0\nretry: 3000\n\ndata: {RESULT}\nid: 1\n\n");
        assert_eq!(result_text(stream.as_bytes()), text);
    }

    #[test]
    fn an_error_is_no_result() {
        let failed = RESULT.replace("]}}", r#"],"isError":true}}"#);
        assert!(result_text(failed.as_bytes()).is_err());
        assert!(result_text(br#"{"jsonrpc":"2.0","id":1,"error":{}}"#).is_err());
    }
}
