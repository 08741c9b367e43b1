//! A whole toolway on a port of its own, with scripted models and servers around it.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, timeout},
};
use toolway::{
    audit::Audit,
    config::{Config, Environment, RawConfig},
    gateway::{Gateway, Setup, servers::ServerReader},
    server,
    store::{DataDir, StoreEntries},
};

use crate::{
    model::{Model, PATIENCE},
    tools::{Server, Tools},
};

/// toolway under test.
pub struct Toolway {
    pub base: String,
    pub model: Model,
    pub servers: Vec<Server>,
    pub gateway: Arc<Gateway>,
    pub http: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

/// Puts a toolway together.
pub struct Builder {
    config: String,
    model: Model,
    /// The name, the tools, and further lines of the configuration.
    servers: Vec<(String, Tools, String)>,
    is_awaited: bool,
}

/// A toolway in front of this model.
pub fn toolway(model: Model) -> Builder {
    Builder {
        config: String::new(),
        model,
        servers: Vec::new(),
        is_awaited: true,
    }
}

impl Builder {
    /// Does not wait until the servers are ready.
    pub fn at_once(mut self) -> Builder {
        self.is_awaited = false;
        self
    }

    /// Adds a server of this name.
    pub fn server(self, name: &str, tools: Tools) -> Builder {
        self.server_with(name, tools, "")
    }

    /// Adds a server of this name with these lines in its configuration.
    pub fn server_with(mut self, name: &str, tools: Tools, lines: &str) -> Builder {
        self.servers
            .push((name.to_owned(), tools, lines.to_owned()));
        self
    }

    /// Adds lines of configuration; keys of the top level first, then tables. `MODEL` stands for the model's URL.
    pub fn config(mut self, toml: &str) -> Builder {
        self.config.push_str(toml);
        self
    }

    pub async fn start(self) -> Toolway {
        let mut toml = self.config.replace("MODEL", &self.model.base);
        if !toml.contains("[[upstreams]]") {
            toml.push_str(&format!(
                "\n[[upstreams]]\nname = \"scripted\"\nbase_url = \"{}\"\n",
                self.model.base
            ));
        }
        let mut servers = Vec::new();
        for (name, tools, lines) in self.servers {
            let server = tools.start().await;
            toml.push_str(&format!(
                "\n[servers.{name}]\nurl = \"{}\"\n{lines}",
                server.url
            ));
            if name.starts_with("stateful") {
                toml.push_str("stateful = true\n");
            }
            servers.push(server);
        }
        let raw: RawConfig =
            toml::from_str(&toml).unwrap_or_else(|error| panic!("{error}\n{toml}"));
        let config = Config::from_raw(raw, &Environment::real())
            .unwrap_or_else(|problems| panic!("{problems:?}\n{toml}"));
        let place = match &config.data {
            DataDir::Default => &DataDir::Memory,
            place => place,
        };
        let entries = StoreEntries::open(place).unwrap();
        let setup = Setup {
            config: config.gateway,
            upstreams: config.upstreams,
            models: config.models,
            servers: config.servers,
            functions: config.functions,
            profiles: Vec::new(),
            policy: config.policy,
            server_reader: ServerReader::new(|name, definition| {
                Config::server(name, definition, &Environment::real())
            }),
            entries: Arc::new(entries),
            audit: Audit::open(&config.audit, place).unwrap(),
        };
        let gateway = Gateway::start(setup).unwrap();
        assert!(
            !self.is_awaited || gateway.settled(Instant::now() + PATIENCE).await,
            "the servers did not settle"
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let serving = tokio::spawn(server::serve(
            listener,
            gateway.clone(),
            config.server,
            shutdown,
        ));
        let http = reqwest::Client::builder()
            .timeout(PATIENCE)
            .build()
            .unwrap();
        Toolway {
            base,
            model: self.model,
            servers,
            gateway,
            http,
            stop: Some(stop),
            serving,
        }
    }
}

impl Toolway {
    /// Tells it to stop.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Stops it; a panic anywhere in it fails the test.
    pub async fn join(mut self) {
        self.stop();
        drop(self.http);
        timeout(PATIENCE, self.serving)
            .await
            .expect("it stops")
            .unwrap();
        self.gateway.shutdown().await;
    }

    /// Sends a chat request, with `model` and a user message unless the body has its own.
    pub async fn send(&self, body: Value, headers: &[(&str, &str)]) -> reqwest::Response {
        let mut whole = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
        for (name, value) in body.as_object().unwrap() {
            whole[name] = value.clone();
        }
        let mut request = self.http.post(format!("{}/v1/chat/completions", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request
            .header("content-type", "application/json")
            .body(whole.to_string())
            .send()
            .await
            .unwrap()
    }

    /// A plain answer's body.
    pub async fn plain(&self, body: Value) -> Value {
        let response = self.send(body, &[]).await;
        let status = response.status();
        let text = response.text().await.unwrap();
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// A streamed answer, read to its end.
    pub async fn streamed(&self, body: Value) -> Answer {
        self.streamed_with(body, &[]).await
    }

    /// The same with headers.
    pub async fn streamed_with(&self, mut body: Value, headers: &[(&str, &str)]) -> Answer {
        body["stream"] = json!(true);
        let response = self.send(body, headers).await;
        let status = response.status();
        let content_type = response.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        let text = response.text().await.unwrap();
        assert_eq!(status, 200, "{text}");
        assert_eq!(content_type, "text/event-stream");
        Answer::read(&text)
    }

    /// A streamed answer that is read event by event.
    pub async fn live(&self, mut body: Value, headers: &[(&str, &str)]) -> Live {
        body["stream"] = json!(true);
        Live::of(self.send(body, headers).await)
    }

    /// Sends bytes as they are; gives the status, and the whole answer with its head. The request asks for the
    /// connection to be closed.
    pub async fn raw(&self, request: &str) -> (u16, String) {
        self.exchange(request, false).await
    }

    /// The same for a request that breaks off.
    pub async fn cut_off(&self, request: &str) -> (u16, String) {
        self.exchange(request, true).await
    }

    async fn exchange(&self, request: &str, is_cut_off: bool) -> (u16, String) {
        let mut stream = TcpStream::connect(self.base.trim_start_matches("http://"))
            .await
            .unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        if is_cut_off {
            stream.shutdown().await.unwrap();
        }
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer))
            .await
            .expect("it answers")
            .unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }

    pub async fn get(&self, path: &str) -> reqwest::Response {
        self.http
            .get(format!("{}{path}", self.base))
            .send()
            .await
            .unwrap()
    }

    pub async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path).await.text().await.unwrap()).unwrap()
    }
}

/// A stream that is still coming.
pub struct Live {
    body: futures::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    rest: String,
}

impl Live {
    pub fn of(response: reqwest::Response) -> Live {
        assert_eq!(response.status(), 200);
        Live {
            body: response.bytes_stream().boxed(),
            rest: String::new(),
        }
    }

    /// Reads on until this text has come.
    pub async fn until(&mut self, text: &str) {
        timeout(PATIENCE, async {
            while !self.rest.contains(text) {
                let piece = self.body.next().await.expect("the stream ended").unwrap();
                self.rest.push_str(std::str::from_utf8(&piece).unwrap());
            }
        })
        .await
        .unwrap_or_else(|_| panic!("`{text}` did not come; this did: {}", self.rest));
    }

    /// Reads to the end.
    pub async fn end(mut self) -> Answer {
        while let Some(piece) = timeout(PATIENCE, self.body.next()).await.unwrap() {
            self.rest
                .push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        Answer::read(&self.rest)
    }

    /// What has come so far.
    pub fn so_far(&self) -> &str {
        &self.rest
    }
}

/// A streamed answer as a client reads it.
#[derive(Debug)]
pub struct Answer {
    pub raw: String,
    /// Every chunk, errors included.
    pub chunks: Vec<Value>,
    pub done: bool,
}

impl Answer {
    /// Reads events as a strict client does: nothing but `data:` lines and comments.
    pub fn read(text: &str) -> Answer {
        let mut chunks = Vec::new();
        let mut done = false;
        for event in text.split("\n\n").filter(|event| !event.is_empty()) {
            if event.starts_with(':') {
                continue;
            }
            assert!(!done, "something came after [DONE]: {event}");
            let data = event
                .strip_prefix("data:")
                .unwrap_or_else(|| panic!("no data event: {event:?}"));
            let data = data.strip_prefix(' ').unwrap_or(data);
            if data == "[DONE]" {
                done = true;
            } else {
                chunks.push(
                    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}")),
                );
            }
        }
        Answer {
            raw: text.to_owned(),
            chunks,
            done,
        }
    }

    fn deltas(&self) -> impl Iterator<Item = &Value> {
        self.chunks
            .iter()
            .filter_map(|chunk| chunk["choices"].get(0))
            .map(|choice| &choice["delta"])
    }

    /// All text that was streamed.
    pub fn text(&self) -> String {
        self.deltas()
            .filter_map(|delta| delta["content"].as_str())
            .collect()
    }

    /// The calls as a client puts them together: (id, name, arguments).
    pub fn calls(&self) -> Vec<(String, String, String)> {
        let mut calls: Vec<(String, String, String)> = Vec::new();
        for call in self
            .deltas()
            .filter_map(|delta| delta["tool_calls"].as_array())
            .flatten()
        {
            let index = usize::try_from(call["index"].as_u64().expect("every delta has its index"))
                .unwrap();
            if index == calls.len() {
                assert_eq!(call["type"], "function");
                calls.push((
                    text(&call["id"]),
                    text(&call["function"]["name"]),
                    String::new(),
                ));
            }
            calls[index]
                .2
                .push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        calls
    }

    /// The finish reasons, of which there should be one.
    pub fn finishes(&self) -> Vec<String> {
        let reasons = self
            .chunks
            .iter()
            .filter_map(|chunk| chunk["choices"].get(0)?["finish_reason"].as_str());
        reasons.map(str::to_owned).collect()
    }

    /// The usage chunks.
    pub fn usages(&self) -> Vec<&Value> {
        self.chunks
            .iter()
            .filter(|chunk| chunk["usage"].is_object())
            .collect()
    }

    pub fn roles(&self) -> usize {
        self.deltas()
            .filter(|delta| delta.get("role").is_some())
            .count()
    }

    /// The in-band error, if the answer ends in one.
    pub fn error(&self) -> Option<&Value> {
        self.chunks.iter().find_map(|chunk| chunk.get("error"))
    }

    /// The values that one member has over all chunks.
    pub fn all(&self, member: &str) -> Vec<String> {
        let mut values: Vec<String> = self
            .chunks
            .iter()
            .map(|chunk| chunk[member].to_string())
            .collect();
        values.dedup();
        values
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A function of the client's own.
pub fn own_function(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}})
}

/// Waits for something that is not signalled, checking it again and again.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
