//! A model that says what its name asks for, over OpenAI's chat completions: `mock-model ADDRESS:PORT`. Streams of words
//! it writes in the other APIs as well (`apis`).
//!
//! | name | answer |
//! |---|---|
//! | `plain` | about 1 KB of text |
//! | `stream-N-Dms` | N chunks, each sent D ms after the one before; what follows `ms` is for the gateway that chooses by names |
//! | `call-NAME` | a call of the first tool whose name contains NAME, with the user's text as `message`; then the text of its result |
//! | `three-calls-Dms` | streamed: a call of the tool `slow` for 2 D ms, D ms later one for 1 ms, D ms later another |
//! | `count` | how many messages, tools and bytes the request had |
//!
//! Each is streamed or not, as the request asks. Only `call-`, `three-calls-` and `count` parse the request.

mod apis;

use std::{
    borrow::Cow,
    convert::Infallible,
    pin::Pin,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Frame, Incoming, SizeHint},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Sleep;
use toolway_bench::{member, run, serve, text_member};

use crate::apis::{Api, model_in_path, word_events};

/// What `plain` says, eleven times.
const SENTENCE: &str =
    "A gateway that adds nothing to what passes through it is the one that nobody notices. ";

/// The id, object, time and model that every chunk begins with.
const CHUNK: &str = r#"data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":"#;

const USAGE: &str = r#""usage":{"prompt_tokens":12,"completion_tokens":34,"total_tokens":46}"#;

static PLAIN: LazyLock<Bytes> = LazyLock::new(|| completion(&said(&SENTENCE.repeat(11)), "stop"));

/// Calls get ids of their own, because a gateway tells conversations apart by them.
static CALLS: AtomicU64 = AtomicU64::new(0);

fn main() {
    run(async {
        let address = std::env::args().nth(1).ok_or("mock-model ADDRESS:PORT")?;
        serve(&address, answer).await
    });
}

/// What the model has to say: members of a message, as JSON.
enum Turn {
    Text(String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
}

async fn answer(request: Request<Incoming>) -> Response<Answer> {
    let (parts, body) = request.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return refuse(&error.to_string()),
    };
    let streamed = member(&body, "stream").is_some_and(|value| value.starts_with(b"true"));
    let usage = member(&body, "include_usage").is_some_and(|value| value.starts_with(b"true"));
    let (path, named) = (parts.uri.path(), text_member(&body, "model"));
    let Some(model) = named.or_else(|| model_in_path(path)) else {
        return refuse("no model is named");
    };
    if let Some((count, pause)) = paced(model) {
        return match Api::of(path) {
            Api::Chat => stream(paced_events(count, usage), pause),
            api => stream(word_events(api, count), pause),
        };
    }
    if model == "plain" && !streamed {
        return json(PLAIN.clone());
    }
    if let Some(pause) = model.strip_prefix("three-calls-")
        && let Ok(Turn::Call { name, .. }) = call(&body, "slow")
    {
        return match pause.strip_suffix("ms").map(str::parse) {
            Some(Ok(pause)) => stream(three_calls(&name, pause), Duration::from_millis(pause)),
            _ => refuse("after how many ms?"),
        };
    }
    let turn = match model {
        _ if model.starts_with("three-calls-") => call(&body, "slow"),
        "plain" => Ok(Turn::Text(SENTENCE.repeat(11))),
        "count" => count(&body),
        _ => match model.strip_prefix("call-") {
            Some(name) => call(&body, name),
            None => Err(format!("there is no model {model}")),
        },
    };
    match turn {
        Ok(turn) if streamed => stream(turn_events(&turn, usage), Duration::ZERO),
        Ok(turn) => json(turn_completion(&turn)),
        Err(why) => refuse(&why),
    }
}

fn json(body: Bytes) -> Response<Answer> {
    respond(
        StatusCode::OK,
        "application/json",
        Answer::Whole(Some(body)),
    )
}

fn stream(events: Vec<Bytes>, pause: Duration) -> Response<Answer> {
    let events = Answer::Stream {
        events: events.into_iter(),
        pause,
        until: None,
    };
    respond(StatusCode::OK, "text/event-stream", events)
}

fn refuse(why: &str) -> Response<Answer> {
    let error = format!(
        r#"{{"error":{{"message":{},"type":"invalid_request_error"}}}}"#,
        quote(why)
    );
    let body = Answer::Whole(Some(Bytes::from(error)));
    respond(StatusCode::BAD_REQUEST, "application/json", body)
}

fn respond(status: StatusCode, kind: &'static str, body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(kind);
    response.headers_mut().insert("content-type", kind);
    response
}

// What is said.

/// N and D of `stream-N-Dms`.
fn paced(model: &str) -> Option<(usize, Duration)> {
    let (count, pause) = model.strip_prefix("stream-")?.split_once('-')?;
    let (pause, _) = pause.split_once("ms")?;
    let pause = pause.parse().ok()?;
    Some((count.parse().ok()?, Duration::from_millis(pause)))
}

/// As much of a request as `call-` and `count` want to know.
#[derive(Deserialize)]
struct Asked<'a> {
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
    #[serde(borrow, default)]
    tools: Vec<Tool<'a>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

impl<'a> Asked<'a> {
    fn read(body: &'a [u8]) -> Result<Self, String> {
        serde_json::from_slice(body).map_err(|error| error.to_string())
    }

    /// The text of the last message of this role; what is not a text, as it is written.
    fn last(&self, role: &str) -> Option<String> {
        let message = self
            .messages
            .iter()
            .rev()
            .find(|message| message.role == role)?;
        let content = message.content?.get();
        Some(serde_json::from_str(content).unwrap_or_else(|_| content.to_owned()))
    }
}

fn call(body: &[u8], name: &str) -> Result<Turn, String> {
    let asked = Asked::read(body)?;
    if asked
        .messages
        .last()
        .is_some_and(|message| message.role == "tool")
    {
        let result = asked.last("tool").unwrap_or_default();
        return Ok(Turn::Text(format!("The tool said: {result}")));
    }
    let mut names = asked.tools.iter().map(|tool| &tool.function.name);
    let tool = names
        .find(|offered| offered.contains(name))
        .ok_or_else(|| format!("no tool's name contains {name}"))?;
    let message = asked.last("user").unwrap_or_default();
    Ok(Turn::Call {
        id: format!("call_{}", CALLS.fetch_add(1, Ordering::Relaxed)),
        name: tool.clone().into_owned(),
        arguments: format!(r#"{{"message":{}}}"#, quote(&message)),
    })
}

fn count(body: &[u8]) -> Result<Turn, String> {
    let asked = Asked::read(body)?;
    Ok(Turn::Text(format!(
        "messages={} tools={} bytes={}",
        asked.messages.len(),
        asked.tools.len(),
        body.len()
    )))
}

// How it is written.

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn said(text: &str) -> String {
    format!(r#""role":"assistant","content":{}"#, quote(text))
}

fn turn_completion(turn: &Turn) -> Bytes {
    match turn {
        Turn::Text(text) => completion(&said(text), "stop"),
        Turn::Call {
            id,
            name,
            arguments,
        } => {
            let (name, arguments) = (quote(name), quote(arguments));
            let call = format!(
                r#""role":"assistant","content":null,"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":{name},"arguments":{arguments}}}}}]"#
            );
            completion(&call, "tool_calls")
        }
    }
}

fn completion(message: &str, reason: &str) -> Bytes {
    Bytes::from(format!(
        r#"{{"id":"chatcmpl-bench","object":"chat.completion","created":1767225600,"model":"bench","choices":[{{"index":0,"message":{{{message}}},"logprobs":null,"finish_reason":"{reason}"}}],{USAGE}}}"#
    ))
}

fn delta(members: &str) -> Bytes {
    Bytes::from(format!(
        "{CHUNK}[{{\"index\":0,\"delta\":{{{members}}},\"finish_reason\":null}}]}}\n\n"
    ))
}

/// The events after the last delta.
fn end(reason: &str, usage: bool) -> Vec<Bytes> {
    let mut events = vec![Bytes::from(format!(
        "{CHUNK}[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n"
    ))];
    if usage {
        events.push(Bytes::from(format!("{CHUNK}[],{USAGE}}}\n\n")));
    }
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

/// N chunks with a word each; the end comes together with the last.
fn paced_events(count: usize, usage: bool) -> Vec<Bytes> {
    let word = delta(r#""content":" word""#);
    let mut events = vec![word; count];
    if let Some(first) = events.first_mut() {
        *first = delta(r#""role":"assistant","content":" word""#);
    }
    let end: Vec<u8> = events
        .pop()
        .into_iter()
        .chain(end("stop", usage))
        .flatten()
        .collect();
    events.push(Bytes::from(end));
    events
}

fn turn_events(turn: &Turn, usage: bool) -> Vec<Bytes> {
    let (mut events, reason) = match turn {
        Turn::Text(text) => (vec![delta(&said(text))], "stop"),
        Turn::Call {
            id,
            name,
            arguments,
        } => (call_deltas(id, name, arguments), "tool_calls"),
    };
    events.extend(end(reason, usage));
    events
}

/// A call as models stream it: the name first, then the arguments in pieces.
fn call_deltas(id: &str, name: &str, arguments: &str) -> Vec<Bytes> {
    let name = quote(name);
    let begin = format!(
        r#""role":"assistant","content":null,"tool_calls":[{{"index":0,"id":"{id}","type":"function","function":{{"name":{name},"arguments":""}}}}]"#
    );
    let middle = (0..=arguments.len() / 2)
        .rev()
        .find(|&at| arguments.is_char_boundary(at))
        .unwrap_or(0);
    let (head, tail) = arguments.split_at(middle);
    let piece = |text: &str| {
        let text = quote(text);
        delta(&format!(
            r#""tool_calls":[{{"index":0,"function":{{"arguments":{text}}}}}]"#
        ))
    };
    vec![delta(&begin), piece(head), piece(tail)]
}

/// Calls that are complete one by one; the end comes together with the last.
fn three_calls(name: &str, pause: u64) -> Vec<Bytes> {
    let name = quote(name);
    let call = |(index, ms): (usize, u64)| {
        let arguments = quote(&format!(r#"{{"ms":{ms}}}"#));
        let id = CALLS.fetch_add(1, Ordering::Relaxed);
        delta(&format!(
            r#""tool_calls":[{{"index":{index},"id":"call_{id}","type":"function","function":{{"name":{name},"arguments":{arguments}}}}}]"#
        ))
    };
    let mut events: Vec<Bytes> = [2 * pause, 1, 2]
        .into_iter()
        .enumerate()
        .map(call)
        .collect();
    let last = events.pop().into_iter().chain(end("tool_calls", false));
    let last: Vec<u8> = last.flatten().collect();
    events.push(Bytes::from(last));
    events
}

/// The body of an answer.
enum Answer {
    Whole(Option<Bytes>),
    /// Events with a pause before each but the first.
    Stream {
        events: std::vec::IntoIter<Bytes>,
        pause: Duration,
        until: Option<Pin<Box<Sleep>>>,
    },
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            Answer::Whole(body) => body.take(),
            Answer::Stream {
                events,
                pause,
                until,
            } => {
                if let Some(until) = until {
                    ready!(until.as_mut().poll(context));
                }
                // The pause begins when a chunk is taken, so that two never go out at once because one was late.
                *until = (!pause.is_zero()).then(|| Box::pin(tokio::time::sleep(*pause)));
                events.next()
            }
        };
        Poll::Ready(next.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Whole(body) => body.is_none(),
            Answer::Stream { events, .. } => events.len() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64),
            Answer::Stream { .. } => SizeHint::default(),
        }
    }
}
