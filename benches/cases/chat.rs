//! A plain answer read or mended, a request read, and the question to the model written.

use std::sync::Arc;

use serde_json::{Value, json};
use toolway_core::{
    agent::ask::{Ask, compose},
    catalog::{Selected, Selection},
    translate::{completion, ids::Ids, stream::Mode},
};
use toolway_protocol::openai::request::ChatRequest;

use super::{
    Body, Table, body,
    streams::settings,
    tools::{ARGUMENTS, OneOwner, catalog},
};

pub(super) const CASES: Table = &[
    ("completion/read_text", 200, || read(&text(SHORT))),
    ("completion/read_calls", 500, || read(&calls())),
    ("completion/mend_text", 200, || mend(&text(SHORT))),
    ("completion/mend_16_kb_of_text", 100, || {
        mend(&text(16 << 10))
    }),
    ("completion/mend_calls", 200, || mend(&calls())),
    ("request/read_small", 500, || parse(2)),
    ("request/read_1_mb", 4, || parse(MEGABYTE)),
    ("request/ask_with_3_tools", 500, || ask(2, 3, Ask::first)),
    ("request/ask_with_50_tools", 200, || ask(2, 50, Ask::first)),
    ("request/ask_again_with_3_tools", 500, || {
        ask(2, 3, ask_again)
    }),
    ("request/ask_again_with_1_mb", 50, || {
        ask(MEGABYTE, 3, ask_again)
    }),
];

/// Bytes of text in an ordinary answer.
const SHORT: usize = 600;

/// Messages of a chat of a megabyte.
const MEGABYTE: usize = 3_300;

/// As the configuration has it by default.
const MAX_DEPTH: usize = 127;

fn read(answer: &Value) -> Body {
    let answer = answer.to_string();
    let known = OneOwner::of(Mode::Loop);
    let settings = settings(Mode::Loop);
    body(move || {
        let mut ids = Ids::new(1);
        completion::read(answer.as_bytes(), &settings, &known, &mut ids).expect("a good answer")
    })
}

fn mend(answer: &Value) -> Body {
    let answer: &'static str = answer.to_string().leak();
    let known = OneOwner::of(Mode::PassThrough);
    let settings = settings(Mode::PassThrough);
    body(move || {
        let mut ids = Ids::new(1);
        completion::mend(answer.as_bytes(), &settings, &known, &mut ids).expect("a good answer")
    })
}

fn parse(messages: usize) -> Body {
    let request = request(messages);
    body(move || {
        let request = ChatRequest::parse(request.as_bytes(), MAX_DEPTH).expect("a good request");
        request.stream()
    })
}

/// Writes the body of a question, of a request that was read before.
fn ask(messages: usize, tools: usize, ask: fn() -> Ask) -> Body {
    let request: &'static str = request(messages).leak();
    let request = ChatRequest::parse(request.as_bytes(), MAX_DEPTH).expect("a good request");
    let selected: Arc<Selected> = catalog(tools).select(&Selection::everything(), &[], 128);
    let ask = ask();
    body(move || compose(&request, &ask, &selected, None, None).len())
}

/// The question after one round with a call.
fn ask_again() -> Ask {
    let function = json!({"name": "weather__forecast", "arguments": ARGUMENTS});
    let call = json!({"id": "call_Zk3vQ9x0", "type": "function", "function": function});
    let turn = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let result = "Sunny, 24 °C, wind 3 m/s from the west. ".repeat(20);
    let result = json!({"role": "tool", "tool_call_id": "call_Zk3vQ9x0", "content": result});
    Ask {
        first: false,
        appended: format!("{turn},{result}"),
        ..Ask::first()
    }
}

/// A chat of so many messages, about 300 bytes each.
fn request(messages: usize) -> String {
    let message = |at: usize| {
        let role = if at.is_multiple_of(2) {
            "user"
        } else {
            "assistant"
        };
        json!({"role": role, "content": prose(260)})
    };
    json!({
        "model": "gpt-5-mini",
        "messages": (0..messages).map(message).collect::<Value>(),
        "temperature": 0.2,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
    .to_string()
}

fn text(bytes: usize) -> Value {
    let message = json!({
        "role": "assistant", "content": prose(bytes), "refusal": null, "annotations": [],
    });
    answer(&message, "stop")
}

fn calls() -> Value {
    let call = |at: usize| {
        let function = json!({"name": "weather__forecast", "arguments": ARGUMENTS});
        json!({"id": format!("call_Zk3vQ9x{at}"), "type": "function", "function": function})
    };
    let message = json!({
        "role": "assistant", "content": null, "tool_calls": [call(0), call(1)],
        "refusal": null, "annotations": [],
    });
    answer(&message, "tool_calls")
}

fn answer(message: &Value, finish: &str) -> Value {
    json!({
        "id": "chatcmpl-CQ2x8vUuGfXyZ1aB3cD4eF5gH6iJ7",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": "gpt-5-mini-2025-08-07",
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": 412, "completion_tokens": 131, "total_tokens": 543,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        },
        "service_tier": "default",
        "system_fingerprint": null,
    })
}

/// Text as models write it: mostly letters, now and then a line break, a quotation mark or an umlaut.
fn prose(bytes: usize) -> String {
    const LINE: &str = "In Zürich it is sunny today, with 24 °C in the shade and a light wind from the west; \
                        people call that a \"Sommertag\", and rightly so.\n";
    LINE.chars().cycle().take(bytes).collect()
}
