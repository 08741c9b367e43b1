//! The demo's model: no language model at all, but a few rules that call tools and speak OpenAI's protocol.
//!
//! Deterministic: the same conversation always gets the same answer.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json, Router,
    http::StatusCode,
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
    routing::{get, post},
};
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

/// The model's name in requests.
pub(super) const NAME: &str = "demo";

/// Pause between two words, so that the streaming is visible.
const PAUSE: Duration = Duration::from_millis(30);

/// The model's API.
pub(super) fn router() -> Router {
    let models = json!({"object": "list", "data": [
        {"id": NAME, "object": "model", "created": 0, "owned_by": "toolway"},
    ]});
    Router::new()
        .route("/v1/models", get(async move || Json(models)))
        .route("/v1/chat/completions", post(complete))
        .fallback(nothing_else)
        .method_not_allowed_fallback(nothing_else)
}

/// OpenAI's error for an unknown model.
async fn nothing_else() -> (StatusCode, Json<Value>) {
    let message = "the demo's model only knows GET /v1/models and POST /v1/chat/completions";
    let error = json!({"message": message, "type": "invalid_request_error", "param": null, "code": "unknown_url"});
    (StatusCode::NOT_FOUND, Json(json!({"error": error})))
}

#[derive(Deserialize)]
struct DemoRequest {
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: StreamOptions,
    messages: Vec<DemoMessage>,
    #[serde(default)]
    tools: Vec<Value>,
}

#[derive(Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Deserialize)]
struct DemoMessage {
    role: String,
    #[serde(default)]
    content: Value,
}

/// What the model does next.
enum Act {
    Say(String),
    Call(Vec<(String, Value)>),
}

async fn complete(Json(request): Json<DemoRequest>) -> Response {
    let act = decide(&request);
    let usage = usage(&request, &act);
    if request.stream {
        let usage = request.stream_options.include_usage.then_some(usage);
        return Sse::new(events(act, usage)).into_response();
    }
    let (message, reason) = match act {
        Act::Say(text) => (json!({"role": "assistant", "content": text}), "stop"),
        Act::Call(calls) => {
            let calls: Vec<Value> = calls
                .iter()
                .enumerate()
                .map(|(at, call)| written(at, call))
                .collect();
            (
                json!({"role": "assistant", "content": null, "tool_calls": calls}),
                "tool_calls",
            )
        }
    };
    let choice = json!({"index": 0, "message": message, "finish_reason": reason});
    Json(
        json!({"id": "chatcmpl-demo", "object": "chat.completion", "created": 0, "model": NAME,
        "choices": [choice], "usage": usage}),
    )
    .into_response()
}

fn events(act: Act, usage: Option<Value>) -> impl Stream<Item = Result<Event, Infallible>> {
    let chunk = |delta: Value, reason: Value| {
        json!({"id": "chatcmpl-demo", "object": "chat.completion.chunk", "created": 0, "model": NAME,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    };
    let mut chunks = vec![chunk(
        json!({"role": "assistant", "content": ""}),
        Value::Null,
    )];
    match act {
        Act::Say(text) => {
            chunks.extend(
                text.split_inclusive(' ')
                    .map(|word| chunk(json!({"content": word}), Value::Null)),
            );
            chunks.push(chunk(json!({}), json!("stop")));
        }
        Act::Call(calls) => {
            for (at, call) in calls.iter().enumerate() {
                let mut call = written(at, call);
                call["index"] = json!(at);
                chunks.push(chunk(json!({"tool_calls": [call]}), Value::Null));
            }
            chunks.push(chunk(json!({}), json!("tool_calls")));
        }
    }
    if let Some(usage) = usage {
        let mut last = chunk(Value::Null, Value::Null);
        last["choices"] = json!([]);
        last["usage"] = usage;
        chunks.push(last);
    }
    let texts = chunks
        .into_iter()
        .map(|chunk| chunk.to_string())
        .chain(["[DONE]".to_owned()]);
    stream::iter(texts).then(async |text| {
        sleep(PAUSE).await;
        Ok(Event::default().data(text))
    })
}

fn written(at: usize, (name, arguments): &(String, Value)) -> Value {
    json!({"id": format!("demo{at:05}"), "type": "function",
        "function": {"name": name, "arguments": arguments.to_string()}})
}

/// A token for every four characters.
fn usage(request: &DemoRequest, act: &Act) -> Value {
    let tokens = |characters: usize| characters.div_ceil(4);
    let asked = request.messages.iter().map(|it| text(&it.content).len());
    let offered = request.tools.iter().map(|it| it.to_string().len());
    let prompt = tokens(asked.chain(offered).sum());
    let completion = tokens(match act {
        Act::Say(text) => text.len(),
        Act::Call(calls) => calls
            .iter()
            .map(|(name, arguments)| name.len() + arguments.to_string().len())
            .sum(),
    });
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

/// The rules: after tool results, report them; otherwise call the tools that the question needs.
fn decide(request: &DemoRequest) -> Act {
    let since = request
        .messages
        .iter()
        .rposition(|message| message.role == "user")
        .unwrap_or(0);
    let question = request
        .messages
        .get(since)
        .map(|message| text(&message.content))
        .unwrap_or_default();
    let results: Vec<String> = request
        .messages
        .iter()
        .skip(since)
        .filter(|message| message.role == "tool")
        .map(|message| text(&message.content))
        .collect();
    if !results.is_empty() {
        return Act::Say(format!(
            "The tools say: {}. (A demo model speaks, not a language model.)",
            results.join(", and ")
        ));
    }
    let calls = calls(&question, &request.tools);
    if calls.is_empty() {
        return Act::Say(
            "I am toolway's demo model, a few rules and no language model. \
             Ask me to multiply two numbers (19 x 23), for the letters of a \"word\" in quotes, or to wait 2 seconds."
                .to_owned(),
        );
    }
    Act::Call(calls)
}

fn calls(question: &str, tools: &[Value]) -> Vec<(String, Value)> {
    let offered = |ending: &str| {
        let names = tools
            .iter()
            .filter_map(|tool| tool["function"]["name"].as_str());
        names
            .into_iter()
            .find(|name| name.ends_with(ending))
            .map(str::to_owned)
    };
    let numbers: Vec<f64> = question
        .split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .filter_map(|word| word.trim_matches('.').parse().ok())
        .collect();
    let mut calls = Vec::new();
    if let (Some(name), [a, b, ..]) = (offered("multiply"), numbers.as_slice()) {
        calls.push((name, json!({"a": written_as(*a), "b": written_as(*b)})));
    }
    if let (Some(name), Some(quoted)) = (offered("count_letters"), question.split('"').nth(1)) {
        calls.push((name, json!({"text": quoted})));
    }
    if let (Some(name), true, [seconds]) = (
        offered("wait"),
        question.contains("wait"),
        numbers.as_slice(),
    ) {
        calls.push((name, json!({"seconds": seconds})));
    }
    calls
}

/// A number as a person would write it: 19 and not 19.0.
fn written_as(number: f64) -> Value {
    serde_json::from_str(&number.to_string()).unwrap_or_default()
}

/// A message's text, whether it is one text or parts.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<Value> {
        ["demo__multiply", "demo__count_letters", "demo__wait"]
            .map(|name| json!({"type": "function", "function": {"name": name}}))
            .to_vec()
    }

    #[test]
    fn a_question_with_two_tasks_makes_two_calls() {
        let calls = calls(
            r#"What is 19 x 23, and how many letters has "gateway"?"#,
            &tools(),
        );
        assert_eq!(
            calls,
            vec![
                ("demo__multiply".to_owned(), json!({"a": 19, "b": 23})),
                ("demo__count_letters".to_owned(), json!({"text": "gateway"})),
            ]
        );
    }

    #[tokio::test]
    async fn a_stream_tells_its_usage_where_that_is_asked_for() {
        let said = async |options: Value| {
            let request = json!({"messages": [{"role": "user", "content": "Hi."}], "stream": true,
                "stream_options": options});
            let request = serde_json::from_value(request).unwrap();
            let body = complete(Json(request)).await.into_body();
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            String::from_utf8(body.to_vec()).unwrap()
        };
        let with = said(json!({"include_usage": true})).await;
        assert!(with.contains(r#""prompt_tokens":1"#), "{with}");
        let without = said(json!({})).await;
        assert!(!without.contains("usage"), "{without}");
    }

    #[test]
    fn nothing_is_called_that_is_not_offered() {
        assert_eq!(calls("What is 19 x 23?", &[]), Vec::new());
    }
}
