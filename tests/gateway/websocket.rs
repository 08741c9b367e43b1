//! Responses on a WebSocket: what its client sees, and what is bounded.

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Error, Message, client::IntoClientRequest, http::HeaderValue, protocol::CloseFrame,
    },
};

use crate::{
    dialects::{kinds, over, plain, upstream},
    harness::{Toolway, eventually, toolway},
    log::Log,
    model::{Model, PATIENCE, Reply, Then, events, raw, say, say_and_call},
};

/// A client of the WebSocket.
pub struct Client(WebSocketStream<TcpStream>);

async fn try_connect(gw: &Toolway, headers: &[(&'static str, &str)]) -> Result<Client, Error> {
    let address = gw.base.trim_start_matches("http://");
    let mut request = format!("ws://{address}/v1/responses").into_client_request()?;
    for (name, value) in headers {
        let value = HeaderValue::from_str(value).unwrap();
        request.headers_mut().insert(*name, value);
    }
    let stream = TcpStream::connect(address).await.unwrap();
    let (stream, response) = client_async(request, stream).await?;
    assert!(response.headers().contains_key("x-request-id"));
    Ok(Client(stream))
}

pub async fn connect(gw: &Toolway) -> Client {
    try_connect(gw, &[]).await.unwrap()
}

impl Client {
    pub async fn send(&mut self, body: Value) {
        let mut message = json!({"type": "response.create", "model": "m"});
        for (name, value) in body.as_object().unwrap() {
            message[name] = value.clone();
        }
        self.send_text(&message.to_string()).await;
    }

    async fn send_text(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    /// The next event; the close frame if the connection is closed instead.
    async fn next(&mut self) -> Result<Value, Option<CloseFrame>> {
        loop {
            let message = timeout(PATIENCE, self.0.next()).await.expect("it answers");
            match message.expect("it is open").unwrap() {
                Message::Text(text) => return Ok(serde_json::from_str(&text).unwrap()),
                Message::Close(frame) => return Err(frame),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The events of the next response, to its end.
    pub async fn events(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.expect("the response ends first");
            let kind = event["type"].as_str().unwrap().to_owned();
            events.push(event);
            if matches!(
                &*kind,
                "response.completed" | "response.incomplete" | "response.failed" | "error"
            ) {
                return events;
            }
        }
    }

    /// The response that this asks for, when it is complete.
    async fn response(&mut self, body: Value) -> Value {
        self.send(body).await;
        let last = self.events().await.pop().unwrap();
        assert_eq!(last["type"], "response.completed", "{last}");
        last["response"].clone()
    }

    /// The error that this comes to.
    async fn error(&mut self, body: Value) -> Value {
        self.send(body).await;
        let events = self.events().await;
        assert_eq!(kinds(&events), ["error"]);
        events[0].clone()
    }
}

#[tokio::test]
async fn a_socket_gets_the_events_of_a_stream_with_the_gateways_tools() {
    let calls = say_and_call(
        "Let me see. ",
        &[("c", "calc__add", json!({"a": 1, "b": 2}))],
    );
    for api in ["chat", "responses", "anthropic", "gemini"] {
        let gw = over(api, vec![calls.clone(), say("It is 3.")]).await;
        let mut client = connect(&gw).await;
        client.send(json!({"input": "hello"})).await;
        let sent = client.events().await;
        let numbers: Vec<_> = sent
            .iter()
            .map(|it| it["sequence_number"].as_u64())
            .collect();
        let expected: Vec<_> = (0..sent.len() as u64).map(Some).collect();
        assert_eq!(numbers, expected, "{api}");
        assert_eq!(sent[0]["type"], "response.created");
        let response = &sent.last().unwrap()["response"];
        assert!(response["output"].to_string().contains("It is 3."), "{api}");
        // It is stored, for every connection.
        let id = response["id"].as_str().unwrap();
        let kept = gw.json(&format!("/v1/responses/{id}")).await;
        assert_eq!(kept["output"], response["output"]);
        drop(client);
        gw.join().await;
    }
}

#[tokio::test]
async fn messages_that_come_at_once_are_answered_in_their_order() {
    let gw = over("chat", vec![say("one"), say("two"), say("three")]).await;
    let mut client = connect(&gw).await;
    for input in ["a", "b", "c"] {
        client.send(json!({"input": input})).await;
    }
    for (n, (input, said)) in [("a", "one"), ("b", "two"), ("c", "three")]
        .iter()
        .enumerate()
    {
        let response = client.events().await.pop().unwrap();
        assert!(response["response"]["output"].to_string().contains(said));
        assert!(gw.model.messages(n)[0].to_string().contains(input));
    }
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn a_response_that_is_not_stored_is_continued_on_its_socket_only() {
    for api in ["chat", "responses"] {
        let gw = over(api, vec![say("one"), say("two"), say("three"), say("four")]).await;
        let mut client = connect(&gw).await;
        let first = client.response(json!({"input": "a", "store": false})).await;
        let id = &first["id"];
        client
            .send(json!({"input": "b", "store": false, "previous_response_id": id}))
            .await;
        let sent = client.events().await;
        for event in [&sent[0], sent.last().unwrap()] {
            assert_eq!(event["response"]["previous_response_id"], *id);
        }
        let second = &sent.last().unwrap()["response"]["id"];
        let asked = gw.model.asked()[1].body.to_string();
        for said in ["\"a\"", "one", "\"b\""] {
            assert!(asked.contains(said), "{api}: {said} in {asked}");
        }

        let mut other = connect(&gw).await;
        let body = json!({"input": "c", "store": false, "previous_response_id": second});
        if api == "chat" {
            // An upstream that speaks Responses is asked for it.
            let error = other.error(body.clone()).await;
            assert_eq!(error["status"], 400);
            assert_eq!(error["error"]["code"], "previous_response_not_found");
            assert_eq!(error["error"]["param"], "previous_response_id");
        }
        // The other socket is as good as before.
        other.response(json!({"input": "d", "store": false})).await;

        // Stored, the conversation so far is there for everybody.
        let mut body = body;
        body["store"] = true.into();
        let stored = client.response(body).await;
        let id = stored["id"].as_str().unwrap();
        let items = gw.json(&format!("/v1/responses/{id}/input_items")).await;
        for said in ["\"a\"", "one", "\"b\"", "two", "\"c\""] {
            assert!(items.to_string().contains(said), "{api}: {said} in {items}");
        }
        drop(other);
        drop(client);
        gw.join().await;
    }
}

#[tokio::test]
async fn what_continues_a_stored_response_is_remembered_with_it() {
    let gw = over("chat", vec![say("one"), say("two"), say("three")]).await;
    let mut client = connect(&gw).await;
    let mut previous = Value::Null;
    for (input, is_stored) in [("a", true), ("b", false), ("c", false)] {
        let body = json!({"input": input, "store": is_stored, "previous_response_id": previous});
        previous = client.response(body).await["id"].clone();
    }
    let contents: Vec<Value> = gw.model.messages(2);
    let contents: Vec<_> = contents.iter().map(|it| it["content"].clone()).collect();
    assert_eq!(contents, ["a", "one", "b", "two", "c"]);
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn a_continuation_that_fails_forgets_what_it_continued() {
    let gw = over("chat", vec![say("one"), say("two")]).await;
    let mut client = connect(&gw).await;
    let first = client.response(json!({"input": "a", "store": false})).await;
    let output = json!({"type": "function_call_output", "call_id": "none", "output": "x"});
    let failing = json!({"store": false, "previous_response_id": first["id"], "input": [output]});
    let error = client.error(failing).await;
    assert_eq!(
        (&error["status"], &error["error"]["param"]),
        (&json!(400), &json!("input"))
    );
    let again = json!({"store": false, "previous_response_id": first["id"], "input": "b"});
    let error = client.error(again).await;
    assert_eq!(error["error"]["code"], "previous_response_not_found");
    client.response(json!({"input": "c"})).await;
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn a_response_without_output_prepares_the_next_one() {
    let gw = over("chat", vec![say("one")]).await;
    let mut client = connect(&gw).await;
    let prepared = client
        .response(json!({"input": "a", "instructions": "short", "generate": false}))
        .await;
    assert_eq!(prepared["output"], json!([]));
    assert!(gw.model.asked().is_empty(), "no model is asked");
    let next = json!({"input": "b", "previous_response_id": prepared["id"]});
    client.response(next).await;
    assert_eq!(gw.model.messages(0).len(), 2);
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn what_is_no_request_is_an_error_and_the_socket_stays_open() {
    let gw = over("chat", vec![say("one")]).await;
    let mut client = connect(&gw).await;
    for (text, param) in [
        ("{", Value::Null),
        ("[]", Value::Null),
        (r#"{"type": "response.cancel"}"#, json!("type")),
        (
            r#"{"type": "response.create", "input": "x", "model": "m", "background": true}"#,
            json!("background"),
        ),
        (
            r#"{"type": "response.create", "model": "m"}"#,
            json!("input"),
        ),
    ] {
        client.send_text(text).await;
        let error = client.next().await.unwrap();
        assert_eq!(
            (&error["type"], &error["status"]),
            (&json!("error"), &json!(400))
        );
        assert_eq!(error["error"]["param"], param, "{text}");
    }
    let unknown = client
        .error(json!({"input": "x", "previous_response_id": "resp_0"}))
        .await;
    assert_eq!(unknown["error"]["code"], "previous_response_not_found");
    client.response(json!({"input": "a"})).await;
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn an_error_of_the_model_has_its_status() {
    let refusal =
        r#"{"error": {"message": "too many", "type": "rate_limit_error", "code": "slow_down"}}"#;
    let gw = over(
        "chat",
        vec![raw(429, "application/json", refusal), say("one")],
    )
    .await;
    let mut client = connect(&gw).await;
    let error = client.error(json!({"input": "a"})).await;
    assert_eq!(error["status"], 429);
    assert_eq!(error["error"]["code"], "slow_down");
    client.response(json!({"input": "a"})).await;
    drop(client);
    gw.join().await;
}

/// A model that begins to answer and never ends.
fn unending() -> Reply {
    let chunk = r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":"so far"}}]}"#;
    events(&[&format!("{chunk}\n\n")], Then::Silence)
}

/// Reads on until this text has come.
async fn until(client: &mut Client, text: &str) {
    while !client.next().await.unwrap().to_string().contains(text) {}
}

#[tokio::test]
async fn a_client_that_leaves_ends_what_runs_for_it() {
    for closes in [true, false] {
        let gw = over("chat", vec![unending()]).await;
        let mut client = connect(&gw).await;
        client.send(json!({"input": "a"})).await;
        until(&mut client, "so far").await;
        if closes {
            client.0.close(None).await.unwrap();
        }
        drop(client);
        timeout(PATIENCE, gw.model.was_dropped()).await.unwrap();
        gw.join().await;
    }
}

#[tokio::test]
async fn when_toolway_stops_a_response_ends_with_an_error_and_the_socket_closes() {
    for api in ["chat", "responses"] {
        stop(api).await;
    }
}

async fn stop(api: &str) {
    let config = format!("shutdown_grace = \"300ms\"\n{}", upstream(api));
    let mut gw = toolway(Model::start([unending()]).await)
        .config(&config)
        .start()
        .await;
    let (mut busy, mut idle) = (connect(&gw).await, connect(&gw).await);
    busy.send(json!({"input": "a"})).await;
    until(&mut busy, "so far").await;
    gw.stop();
    for client in [&mut idle, &mut busy] {
        let closed = loop {
            match client.next().await {
                Ok(event) => assert!(event.to_string().contains("shutting_down"), "{event}"),
                Err(closed) => break closed,
            }
        };
        assert_eq!(u16::from(closed.unwrap().code), 1001);
    }
    gw.join().await;
}

#[tokio::test]
async fn only_a_client_with_a_key_and_no_foreign_page_opens_a_socket() {
    let config = format!("api_keys = [\"secret\"]\n{}", upstream("chat"));
    let gw = toolway(Model::start([say("one")]).await);
    let gw = gw.config(&config).start().await;
    let key = ("authorization", "Bearer secret");
    for (headers, status) in [
        (&[][..], 401),
        (&[key, ("origin", "https://evil.example")], 403),
        (&[key, ("sec-fetch-site", "cross-site")], 403),
    ] {
        match try_connect(&gw, headers).await {
            Err(Error::Http(response)) => assert_eq!(response.status(), status),
            other => panic!("{:?}", other.err()),
        }
    }
    let near = [key, ("origin", "http://localhost:3000")];
    let mut client = try_connect(&gw, &near).await.unwrap();
    client.response(json!({"input": "a"})).await;
    assert!(
        gw.model.asked()[0]
            .headers
            .get("sec-websocket-key")
            .is_none()
    );
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn what_is_no_handshake_is_refused() {
    let gw = over("chat", vec![]).await;
    for lines in [
        "Connection: upgrade\r\nSec-WebSocket-Version: 13",
        "Connection: upgrade\r\nSec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Connection: upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nContent-Length: 2",
    ] {
        let head = format!(
            "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n{lines}\r\n\r\n"
        );
        let (status, answer) = gw.cut_off(&head).await;
        assert_eq!(status, 400);
        assert!(answer.contains("invalid_value"), "{answer}");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_message_that_is_too_long_closes_the_socket_when_the_others_are_answered() {
    let config = format!("max_body_bytes = 2048\n{}", upstream("chat"));
    let gw = toolway(Model::start([say("one")]).await);
    let gw = gw.config(&config).start().await;
    let mut client = connect(&gw).await;
    client.send(json!({"input": "a"})).await;
    client.send(json!({"input": "x".repeat(2048)})).await;
    assert_eq!(
        client.events().await.last().unwrap()["type"],
        "response.completed"
    );
    let closed = client.next().await.unwrap_err();
    assert_eq!(u16::from(closed.unwrap().code), 1009);
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn what_breaks_the_protocol_is_named_in_the_close_frame() {
    let gw = over("chat", vec![]).await;
    // Frames of a client, with a mask of zeros.
    for (frame, code) in [
        (&b"\x81\x82\0\0\0\0\xff\xfe"[..], 1007),
        (&b"\x88\x81\0\0\0\0\x03"[..], 1002),
        (&b"\x88\x82\0\0\0\0\x03\xed"[..], 1002),
        (&b"\xc1\x80\0\0\0\0and whatever follows it"[..], 1002),
    ] {
        let mut stream = connect(&gw).await.0.into_inner();
        stream.write_all(frame).await.unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(read[..2], [0x88, 2], "{frame:?}");
        assert_eq!(u16::from_be_bytes([read[2], read[3]]), code, "{frame:?}");
    }
    gw.join().await;
}

#[tokio::test]
async fn every_response_is_a_request_in_the_log() {
    let (log, _guard) = Log::start();
    let gw = over("chat", vec![say("one"), say("two")]).await;
    let mut client = try_connect(&gw, &[("x-request-id", "mine")]).await.unwrap();
    client.response(json!({"input": "a"})).await;
    client.error(json!({"input": 1})).await;
    client.response(json!({"input": "b"})).await;
    eventually("the lines", || log.ended().len() == 4).await;
    let ended = log.ended();
    let statuses: Vec<_> = ended.iter().map(|it| it["status"].clone()).collect();
    assert_eq!(statuses, [101, 200, 400, 200]);
    let outcomes: Vec<_> = ended.iter().map(|it| it["outcome"].clone()).collect();
    assert_eq!(outcomes, ["completed", "completed", "refused", "completed"]);
    assert_eq!(gw.model.asked()[0].headers["x-request-id"], "mine.1");
    assert_eq!(gw.model.asked()[1].headers["x-request-id"], "mine.3");
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn without_tools_an_upstream_that_speaks_responses_is_asked_as_it_is() {
    let model = Model::start([say("one"), say("two")]).await;
    let gw = toolway(model).config(&upstream("responses")).start().await;
    let mut client = connect(&gw).await;
    let first = client
        .response(json!({"input": "a", "store": false, "unknown": 1}))
        .await;
    let body = json!({"input": "b", "store": false, "previous_response_id": first["id"]});
    let second = client.response(body).await;
    assert_eq!(second["previous_response_id"], first["id"]);
    let asked = gw.model.asked();
    assert_eq!(asked[0].body["unknown"], 1);
    for said in ["\"a\"", "one", "\"b\""] {
        assert!(asked[1].body["input"].to_string().contains(said), "{said}");
    }
    assert_eq!(asked[1].body.get("previous_response_id"), None);
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn only_so_many_requests_of_sockets_run_side_by_side() {
    let config = format!("max_requests = 1\n{}", upstream("chat"));
    let gw = toolway(Model::start([unending(), say("two")]).await);
    let gw = gw.config(&config).start().await;
    let (mut first, mut second) = (connect(&gw).await, connect(&gw).await);
    first.send(json!({"input": "a"})).await;
    until(&mut first, "so far").await;
    let error = second.error(json!({"input": "b"})).await;
    assert_eq!(
        (&error["status"], &error["error"]["code"]),
        (&json!(503), &json!("overloaded"))
    );
    drop(first);
    gw.model.was_dropped().await;
    eventually("a place", || gw.model.asked().len() == 1).await;
    second.response(json!({"input": "b"})).await;
    gw.join().await;
}

#[tokio::test]
async fn a_response_over_http_is_continued_on_a_socket() {
    let gw = over("chat", vec![say("one"), say("two")]).await;
    let first = plain(&gw, "/v1/responses", json!({"model": "m", "input": "a"})).await;
    let mut client = connect(&gw).await;
    let body = json!({"input": "b", "previous_response_id": first["id"]});
    client.response(body).await;
    assert_eq!(gw.model.messages(1).len(), 3);
    drop(client);
    gw.join().await;
}

#[tokio::test]
async fn an_idle_socket_stays_open_for_an_hour_if_its_client_is_there() {
    let gw = over("chat", vec![]).await;
    let begun = Instant::now();
    let (mut here, gone) = (connect(&gw).await, connect(&gw).await);
    tokio::time::pause();
    // It reads no frames, so that no ping is answered.
    let mut gone = gone.0.into_inner();
    let mut pings = Vec::new();
    let closed = async {
        let _ = gone.read_to_end(&mut pings).await;
        begun.elapsed().as_secs()
    };
    let told = async { here.0.by_ref().filter(is_no_ping).next().await };
    let (closed, told) = tokio::join!(closed, told);
    assert_eq!((closed / 10, pings), (7, [0x89, 0].repeat(2)));
    let Some(Ok(Message::Text(error))) = told else {
        panic!("it is closed too early: {told:?}");
    };
    assert_eq!(begun.elapsed().as_secs() / 60, 60);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["error"]["code"], "websocket_connection_limit_reached");
    tokio::time::resume();
    let closed = here.next().await.unwrap_err();
    assert_eq!(u16::from(closed.unwrap().code), 1001);
    drop(here);
    gw.join().await;
}

fn is_no_ping(message: &Result<Message, Error>) -> std::future::Ready<bool> {
    std::future::ready(!matches!(message, Ok(Message::Ping(_))))
}
