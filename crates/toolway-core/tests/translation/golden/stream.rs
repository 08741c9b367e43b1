//! `golden/quirks`: what upstreams send (`.in.sse` streamed, `.in.json` plain), and what becomes of it.
//!
//! Every stream is read three times: with the tools being the gateway's, with their being the client's, and
//! passed through. It is read whole, byte by byte, and cut in two at every place, with the same outcome.
//! A `.settings.json` beside a case says what its upstream's configuration, or its status, is.

use std::{
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use toolway_core::translate::{
    completion,
    ids::Ids,
    stream::{
        ChatStream, Known, Mode, Owner, Pushed, Round, RoundCall, Settings, StreamError, TextCalls,
    },
};
use toolway_protocol::{openai::error::ErrorBody, sse::Framer};

/// `get_weather`, `get_time`, and for a client also the custom tool `code_exec`.
struct Tools {
    owner: Owner,
    weather: Value,
}

impl Tools {
    fn of(owner: Owner) -> Tools {
        let weather = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        Tools { owner, weather }
    }
}

impl Known for Tools {
    fn owner(&self, name: &str) -> Owner {
        if self.is_offered(name) {
            self.owner
        } else {
            Owner::Gateway
        }
    }
    fn claims(&self, id: &str) -> bool {
        id != "call_taken"
    }
    fn is_offered(&self, name: &str) -> bool {
        matches!(name, "get_weather" | "get_time")
            || name == "code_exec" && self.owner == Owner::Client
    }
    fn parameters(&self, name: &str) -> Option<Value> {
        (name == "get_weather").then(|| self.weather.clone())
    }
}

#[test]
fn every_quirk_comes_out_as_its_file_says() {
    let folder = crate::project("golden/quirks");
    let mut cases: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.to_string_lossy().contains(".in."))
        .collect();
    cases.sort();
    assert!(cases.len() > 70, "only {} cases were found", cases.len());
    let wrong: Vec<String> = cases.iter().filter_map(|path| check(path)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn check(path: &Path) -> Option<String> {
    let name = path.to_string_lossy().into_owned();
    let (case, kind) = name.split_once(".in.").expect("the filter saw to that");
    let body = fs::read(path).expect("the case can be read");
    let settings = fs::read(format!("{case}.settings.json")).unwrap_or_else(|_| b"{}".to_vec());
    let settings: Value = serde_json::from_slice(&settings).expect("settings are JSON");
    let (actual, out) = match (settings["status"].as_u64(), kind) {
        (Some(status), _) => {
            let error = ErrorBody::from_upstream(
                u16::try_from(status).expect("a status"),
                settings["content_type"].as_str(),
                &body,
            );
            (error.to_value(), format!("{case}.out.json"))
        }
        (None, "sse") => (streamed(&body, &settings), format!("{case}.out.json")),
        (None, _) => (plain(&body, &settings), format!("{case}.plain.out.json")),
    };
    super::compare(Path::new(&out), &actual)
}

fn settings(given: &Value, mode: Mode) -> Settings {
    let forms = given["text_calls"].as_array().cloned().unwrap_or_default();
    let has = |form: &str| forms.iter().any(|one| one == form);
    Settings {
        mode,
        text_calls: TextCalls {
            tool_call_tags: has("tool_call_tags"),
            fenced_json: has("fenced_json"),
            python_tag: has("python_tag"),
            mistral: has("mistral"),
            harmony: has("harmony"),
        },
        think_tags: given["think_tags"] == true,
        skip_invalid_events: given["skip_invalid_events"] == true,
        include_usage: mode == Mode::Loop,
        seed: 1,
        created: 1_700_000_000,
        model: "fallback".to_owned(),
    }
}

fn streamed(body: &[u8], given: &Value) -> Value {
    let events = framed(&[body]);
    for cut in 1..body.len() {
        // A `ChatStream` is given events and nothing else, so that equal events have an equal outcome.
        let (head, tail) = body.split_at(cut);
        assert_eq!(framed(&[head, tail]), events, "cut at byte {cut}");
    }
    let mut outcomes = Map::new();
    for (name, mode, owner) in [
        ("gateway's tools", Mode::Loop, Owner::Gateway),
        ("client's tools", Mode::Loop, Owner::Client),
        ("passed through", Mode::PassThrough, Owner::Client),
    ] {
        let settings = settings(given, mode);
        let whole = answer(&[body], &settings, owner);
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(
            answer(&bytes, &settings, owner),
            whole,
            "{name}, byte by byte"
        );
        outcomes.insert(name.to_owned(), shown(&whole, body));
    }
    Value::Object(outcomes)
}

/// The events of a stream that comes in these pieces, as bytes.
fn framed(pieces: &[&[u8]]) -> Vec<Bytes> {
    let mut framer = Framer::new(1 << 20);
    let mut events = Vec::new();
    for piece in pieces {
        framer.push(Bytes::copy_from_slice(piece));
        events.extend(std::iter::from_fn(|| framer.next()));
    }
    events.extend(framer.finish());
    events
        .into_iter()
        .map(|event| event.expect("every case can be framed").raw().clone())
        .collect()
}

/// What goes to the client, and the round, for a stream that comes in these pieces.
fn answer(
    pieces: &[&[u8]],
    settings: &Settings,
    owner: Owner,
) -> (Vec<u8>, Result<Round, StreamError>) {
    let mut out = Vec::new();
    let mut stream = ChatStream::new(settings.clone());
    let tools = Tools::of(owner);
    let round = read(&mut stream, pieces, &tools, &mut out);
    match &round {
        Ok(round) if round.calls.iter().all(|call| call.owner == Owner::Client) => {
            stream.finish(round.finish, round.usage.as_ref(), &mut out);
        }
        Ok(_) => {}
        Err(error) => stream.fail(&error.body(), &mut out),
    }
    (out, round)
}

fn read(
    stream: &mut ChatStream,
    pieces: &[&[u8]],
    tools: &Tools,
    out: &mut Vec<u8>,
) -> Result<Round, StreamError> {
    let mut framer = Framer::new(1 << 20);
    for piece in pieces {
        framer.push(Bytes::copy_from_slice(piece));
        while let Some(pushed) = stream.push_next(&mut framer, tools, out) {
            if pushed? == Pushed::Done {
                return stream.end_round(tools, out);
            }
        }
    }
    if let Some(event) = framer.finish() {
        stream.push(&event?, tools, out)?;
    }
    stream.end_round(tools, out)
}

fn shown((out, round): &(Vec<u8>, Result<Round, StreamError>), body: &[u8]) -> Value {
    let mut shown = Map::new();
    if out == body {
        shown.insert("client".to_owned(), "the same bytes".into());
    } else {
        shown.insert("client".to_owned(), events(out));
    }
    match round {
        Ok(round) => shown.insert("round".to_owned(), round_json(round)),
        Err(error) => shown.insert("status".to_owned(), error.status().into()),
    };
    Value::Object(shown)
}

/// The events of an answer, each checked to be what a client takes.
fn events(out: &[u8]) -> Value {
    let text = std::str::from_utf8(out).expect("UTF-8 goes out");
    let blocks = text.replace("\r\n", "\n").replace('\r', "\n");
    let read = |block: &str| match block.strip_prefix("data:").map(str::trim) {
        Some("[DONE]") => "[DONE]".into(),
        Some(data) => serde_json::from_str(data).expect("JSON goes out"),
        None => Value::from(block),
    };
    blocks
        .split("\n\n")
        .filter(|block| !block.is_empty())
        .map(read)
        .collect()
}

fn round_json(round: &Round) -> Value {
    let call = |call: &RoundCall| {
        let mut shown = call.to_json();
        shown.insert("owner".to_owned(), format!("{:?}", call.owner).into());
        Value::Object(shown)
    };
    let shown = json!({
        "content": round.content,
        "reasoning": round.reasoning,
        "refusal": round.refusal,
        "calls": round.calls.iter().map(call).collect::<Vec<_>>(),
        "finish": round.finish,
        "usage": round.usage,
        "extra": round.extra,
    });
    let is_empty =
        |value: &Value| *value == json!(null) || *value == json!([]) || *value == json!({});
    let members = shown.as_object().cloned().unwrap_or_default();
    members
        .into_iter()
        .filter(|(_, value)| !is_empty(value))
        .collect()
}

fn plain(body: &[u8], given: &Value) -> Value {
    let settings = settings(given, Mode::Loop);
    let tools = Tools::of(Owner::Client);
    let read = completion::read(body, &settings, &tools, &mut Ids::new(1));
    let mended = completion::mend(body, &settings, &tools, &mut Ids::new(1));
    let mended = match mended {
        Ok(same) if *same == *body => "the same bytes".into(),
        Ok(other) => serde_json::from_slice(&other).expect("JSON goes out"),
        Err(error) => error.body().to_value(),
    };
    match read {
        Ok(answer) => {
            let mut said = completion::Summary::default();
            said.add(&answer.round);
            said.add_choice(&answer.choice);
            let round = round_json(&answer.round);
            let written = completion::write(
                answer.envelope,
                &said,
                &answer.round.calls,
                answer.round.finish,
                answer.round.usage.clone(),
            );
            json!({"client": written, "round": round, "passed through": mended})
        }
        Err(error) => {
            json!({"error": error.body().to_value()["error"], "status": error.status(), "passed through": mended})
        }
    }
}
