//! A small MCP client that sends whatever it is told, and shows everything that comes back.

use reqwest::{Method, RequestBuilder, Response, header::HeaderMap};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::mcp::harness::{PATIENCE, Toolway};

/// What an endpoint answered.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Got {
    /// The body, which is JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Status and the `code` of a refusal that answers no request.
    #[track_caller]
    pub fn turned_away(&self) -> (u16, String) {
        let body = self.json();
        assert!(body["jsonrpc"].is_null(), "rmcp would wait: {body}");
        (
            self.status,
            body["error"]["code"].as_str().unwrap().to_owned(),
        )
    }

    /// Status and error code.
    #[track_caller]
    pub fn refusal(&self) -> (u16, i64) {
        let body = self.json();
        assert_eq!(body["jsonrpc"], "2.0");
        (
            self.status,
            body["error"]["code"]
                .as_i64()
                .unwrap_or_else(|| panic!("{self:?}")),
        )
    }
}

/// One endpoint, and a session there.
#[derive(Clone)]
pub struct Client {
    pub http: reqwest::Client,
    pub url: String,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
}

/// A request of this id.
pub fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

/// A call of the scripted server's tool.
pub fn act(id: impl Into<Value>, arguments: Value) -> Value {
    request(
        id,
        "tools/call",
        json!({"name": "s__act", "arguments": arguments}),
    )
}

impl Client {
    /// Somebody at this path, without a session.
    pub fn at(gw: &Toolway, path: &str) -> Client {
        Client {
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            url: format!("{}{path}", gw.base),
            headers: vec![
                ("content-type".into(), "application/json".into()),
                (
                    "accept".into(),
                    "application/json, text/event-stream".into(),
                ),
            ],
        }
    }

    /// A session of this version at `/mcp`, of a client that can do this.
    pub async fn begin(gw: &Toolway, version: &str, capabilities: Value) -> Client {
        Client::at(gw, "/mcp")
            .initialized(version, capabilities)
            .await
    }

    pub async fn initialized(self, version: &str, capabilities: Value) -> Client {
        let got = self.post(initialize(version, capabilities)).await;
        assert_eq!(got.status, 200, "{got:?}");
        assert_eq!(got.json()["result"]["protocolVersion"], version);
        let session = got.headers["mcp-session-id"].to_str().unwrap();
        let client = self
            .with("mcp-session-id", session)
            .with("mcp-protocol-version", version);
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(client.post(told).await.status, 202);
        client
    }

    /// The same with another header; `-` for none.
    pub fn with(&self, name: &str, value: &str) -> Client {
        let mut client = self.clone();
        client.headers.retain(|(other, _)| other != name);
        if value != "-" {
            client.headers.push((name.into(), value.into()));
        }
        client
    }

    pub async fn post(&self, message: Value) -> Got {
        self.post_text(message.to_string()).await
    }

    pub async fn post_text(&self, body: impl Into<String>) -> Got {
        got(self.build(Method::POST).body(body.into())).await
    }

    pub async fn send(&self, method: Method) -> Got {
        got(self.build(method)).await
    }

    /// Sends a request whose answer is a stream.
    pub async fn stream(&self, message: Value) -> Events {
        Events::of(self.build(Method::POST).body(message.to_string())).await
    }

    /// GET.
    pub async fn listen(&self) -> Events {
        Events::of(self.build(Method::GET)).await
    }

    /// A request whose answer is one message, with its result.
    #[track_caller]
    pub fn call(&self, message: Value) -> impl Future<Output = Value> {
        let client = self.clone();
        async move {
            let got = client.post(message).await;
            assert_eq!(got.status, 200, "{got:?}");
            let answer = got.json();
            assert!(answer["error"].is_null(), "{answer}");
            answer["result"].clone()
        }
    }

    /// The URI of the first resource, as soon as the server's are known.
    pub async fn resource(&self) -> Value {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let listed = self.call(request(99, "resources/list", json!({}))).await;
            if let Some(uri) = listed["resources"][0].get("uri") {
                return uri.clone();
            }
            assert!(tokio::time::Instant::now() < deadline, "{listed}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    pub fn build(&self, method: Method) -> RequestBuilder {
        let request = self.http.request(method, &self.url);
        self.headers.iter().fold(request, |request, (name, value)| {
            request.header(name, value)
        })
    }
}

/// The first request of a session.
pub fn initialize(version: &str, capabilities: Value) -> Value {
    let params = json!({"protocolVersion": version, "capabilities": capabilities,
        "clientInfo": {"name": "test", "version": "1"}});
    request(0, "initialize", params)
}

async fn got(request: RequestBuilder) -> Got {
    let response = timeout(PATIENCE, request.send())
        .await
        .expect("an answer")
        .unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = timeout(PATIENCE, response.text())
        .await
        .expect("the whole answer")
        .unwrap();
    Got {
        status,
        headers,
        body,
    }
}

/// A stream.
#[derive(Debug)]
pub struct Events {
    response: Response,
    text: String,
    /// The id of the last event.
    pub last_id: Option<String>,
    /// What `retry` said.
    pub retry: Option<u64>,
    /// Events without data.
    pub primers: usize,
}

impl Events {
    async fn of(request: RequestBuilder) -> Events {
        let response = timeout(PATIENCE, request.send())
            .await
            .expect("an answer")
            .unwrap();
        assert_eq!(response.status(), 200, "{response:?}");
        let headers = response.headers();
        assert_eq!(headers["content-type"], "text/event-stream");
        assert_eq!(headers["x-accel-buffering"], "no");
        Events {
            response,
            text: String::new(),
            last_id: None,
            retry: None,
            primers: 0,
        }
    }

    /// The URL that a stream of 2024-11-05 begins with.
    pub async fn endpoint(&mut self) -> String {
        while !self.text.contains("\n\n") {
            let chunk = timeout(PATIENCE, self.response.chunk())
                .await
                .expect("an event");
            let chunk = chunk.unwrap().expect("the stream goes on");
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
        let (event, rest) = self.text.split_once("\n\n").unwrap();
        let url = event
            .strip_prefix("event: endpoint\ndata: ")
            .expect("the endpoint");
        let url = url.to_owned();
        self.text = rest.to_owned();
        url
    }

    /// The next message; nothing when the stream is over.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                if let Some(message) = self.read(&block) {
                    return Some(message);
                }
            }
            let chunk = timeout(PATIENCE, self.response.chunk())
                .await
                .expect("an event");
            self.text
                .push_str(std::str::from_utf8(&chunk.ok()??).unwrap());
        }
    }

    /// The next message, which has this method.
    pub async fn method(&mut self, method: &str) -> Value {
        let message = self.next().await.expect("the stream goes on");
        assert_eq!(message["method"], method, "{message}");
        message["params"].clone()
    }

    /// All messages that are left.
    pub async fn rest(&mut self) -> Vec<Value> {
        let mut rest = Vec::new();
        while let Some(message) = self.next().await {
            rest.push(message);
        }
        rest
    }

    fn read(&mut self, block: &str) -> Option<Value> {
        let mut data = None;
        for line in block.lines() {
            match line
                .split_once(": ")
                .unwrap_or((line.trim_end_matches(':'), ""))
            {
                ("id", id) => self.last_id = Some(id.to_owned()),
                ("retry", retry) => self.retry = retry.parse().ok(),
                ("data", text) => data = Some(text.to_owned()),
                _ => {}
            }
        }
        match data?.as_str() {
            "" => {
                self.primers += 1;
                None
            }
            text => Some(serde_json::from_str(text).unwrap()),
        }
    }
}
