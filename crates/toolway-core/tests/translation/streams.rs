//! What holds for every stream and every answer, not only for those that were thought of.

use std::{fs, sync::OnceLock};

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};
use toolway_core::translate::{
    completion,
    ids::Ids,
    stream::{ChatStream, Known, Mode, Owner, Pushed, Round, Settings, StreamError, TextCalls},
};
use toolway_protocol::{
    openai::{FinishReason, error::ErrorBody},
    sse::{Framer, SseEvent},
};

/// Tools `a…` are the gateway's, tools `b…` the client's.
struct Tools;

const NAMES: [&str; 4] = ["a_look", "a_run", "b_look", "b_show"];

impl Known for Tools {
    fn owner(&self, name: &str) -> Owner {
        if name.starts_with('b') {
            Owner::Client
        } else {
            Owner::Gateway
        }
    }
    fn claims(&self, id: &str) -> bool {
        id != "taken"
    }
    fn is_offered(&self, name: &str) -> bool {
        NAMES.contains(&name)
    }
    fn parameters(&self, _: &str) -> Option<Value> {
        None
    }
}

fn settings(mode: Mode, text_calls: TextCalls, think_tags: bool) -> Settings {
    Settings {
        mode,
        text_calls,
        think_tags,
        skip_invalid_events: false,
        include_usage: true,
        seed: 1,
        created: 1_700_000_000,
        model: "m".to_owned(),
    }
}

const ALL_FORMS: TextCalls = TextCalls {
    tool_call_tags: true,
    fenced_json: true,
    python_tag: true,
    mistral: true,
    harmony: true,
};

/// Cuts bytes at places that are given as parts of their length.
fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.sort_unstable();
    let mut pieces = Vec::new();
    let mut from = 0;
    for place in places {
        pieces.push(&bytes[from..place]);
        from = place;
    }
    pieces.push(&bytes[from..]);
    pieces
}

/// An event's bytes, data and name.
type Framed = Result<(Bytes, Option<String>, Option<String>), String>;

fn framed(pieces: &[&[u8]]) -> Vec<Framed> {
    let mut framer = Framer::new(200);
    let mut events = Vec::new();
    for piece in pieces {
        framer.push(Bytes::copy_from_slice(piece));
        events.extend(std::iter::from_fn(|| framer.next()));
    }
    events.extend(framer.finish());
    let show = |event: SseEvent| {
        let data = event.data().map(|data| data.into_owned());
        (event.raw().clone(), data, event.name().map(str::to_owned))
    };
    events
        .into_iter()
        .map(|event| event.map(show).map_err(|error| error.to_string()))
        .collect()
}

/// Feeds whole data texts; gives what went out and the round.
fn answer(data: &[String], settings: Settings) -> (Vec<u8>, Result<Round, StreamError>) {
    let mut out = Vec::new();
    let mut stream = ChatStream::new(settings);
    let mut read = || {
        for data in data {
            if stream.push(&SseEvent::from_data(data), &Tools, &mut out)? == Pushed::Done {
                break;
            }
        }
        stream.end_round(&Tools, &mut out)
    };
    let round = read();
    match &round {
        Ok(round) => stream.finish(round.finish, round.usage.as_ref(), &mut out),
        Err(error) => stream.fail(&error.body(), &mut out),
    }
    (out, round)
}

fn chunk(delta: &Value, finish: Option<&str>) -> String {
    json!({
        "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    })
    .to_string()
}

/// Bytes in which line ends, colons and byte-order marks are frequent.
fn stream_bytes() -> impl Strategy<Value = Vec<u8>> {
    let pieces = select(vec![
        &b"data: "[..],
        b"data:",
        b"data",
        b"event: x",
        b": note",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\xEF\xBB\xBF",
        b"\xEF\xBB",
        b"\xFF",
        b"abc",
        b"{}",
        b"\xC3\xA4",
        b" ",
        b"a long text that passes the bound if there are enough of its kind in one event",
    ]);
    vec(pieces, 0..40).prop_map(|pieces| pieces.concat())
}

#[derive(Clone, Debug)]
struct Wanted {
    name: &'static str,
    arguments: String,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let text = "[a-z{}\\[\\]\"\\\\ä:, ]{0,12}";
    (select(NAMES.to_vec()), vec(("[a-c]{1,2}", text), 1..4)).prop_map(|(name, members)| {
        let object: serde_json::Map<String, Value> = members
            .into_iter()
            .map(|(key, value)| (key, value.into()))
            .collect();
        Wanted {
            name,
            arguments: Value::Object(object).to_string(),
        }
    })
}

/// How an upstream tells its calls apart.
#[derive(Clone, Copy, Debug)]
enum Marks {
    Index,
    IndexAndId,
    IdOnly,
    /// Neither, so that the calls come one after another.
    Nothing,
    /// Always 0, and an id at the start of each.
    ZeroAndId,
}

/// The deltas of calls, each cut at `cuts`; interleaved where the marks allow that.
fn deltas(calls: &[Wanted], marks: Marks, cuts: &[prop::sample::Index], mix: bool) -> Vec<Value> {
    let mut per_call: Vec<Vec<Value>> = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        let text = &call.arguments;
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        places.retain(|&place| text.is_char_boundary(place));
        places.extend([0, text.len()]);
        places.sort_unstable();
        places.dedup();
        let id = format!("call_{at}");
        let mut elements = Vec::new();
        for (n, ends) in places.windows(2).enumerate() {
            let mut element = json!({"function": {"arguments": &text[ends[0]..ends[1]]}});
            if n == 0 {
                element["function"]["name"] = call.name.into();
                element["type"] = "function".into();
            }
            match marks {
                Marks::Index => element["index"] = at.into(),
                Marks::IndexAndId | Marks::IdOnly | Marks::ZeroAndId | Marks::Nothing => {}
            }
            if matches!(marks, Marks::IndexAndId) {
                element["index"] = at.into();
            }
            if matches!(marks, Marks::ZeroAndId) {
                element["index"] = 0.into();
            }
            let first = n == 0 && matches!(marks, Marks::IndexAndId | Marks::ZeroAndId);
            if first || matches!(marks, Marks::IdOnly) {
                element["id"] = id.clone().into();
            }
            elements.push(json!({"tool_calls": [element]}));
        }
        per_call.push(elements);
    }
    if !mix || matches!(marks, Marks::Nothing | Marks::ZeroAndId) {
        return per_call.concat();
    }
    let longest = per_call.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|n| per_call.iter().filter_map(move |one| one.get(n).cloned()))
        .collect()
}

/// A chunk in which anything may be wrong.
fn odd_chunk() -> impl Strategy<Value = String> {
    let odd = || {
        select(vec![
            json!(null),
            json!(""),
            json!("x"),
            json!(0),
            json!(3),
            json!(1.5),
            json!([]),
            json!({}),
            json!(true),
            json!(["x"]),
            json!({"type": "text", "text": "t"}),
            json!("<tool_call>"),
            json!("a_look"),
            json!("{\"a\":1}"),
            json!({"a": 1}),
            json!("stop"),
            json!("length"),
        ])
    };
    let call =
        (odd(), odd(), odd(), odd(), odd()).prop_map(|(index, id, kind, name, arguments)| {
            json!({"index": index, "id": id, "type": kind,
               "function": {"name": name, "arguments": arguments}})
        });
    let delta = (
        odd(),
        odd(),
        odd(),
        vec(prop_oneof![call, odd()], 0..3),
        any::<u8>(),
    );
    (delta, odd(), odd(), any::<u8>()).prop_map(
        |((role, content, other, calls, has), a, b, top)| {
            let mut delta = serde_json::Map::new();
            let members = [
                ("role", role),
                ("content", content),
                ("tool_calls", calls.into()),
                ("reasoning_content", other.clone()),
                ("function_call", other.clone()),
                ("refusal", other.clone()),
                ("annotations", other),
            ];
            for (bit, (key, value)) in members.into_iter().enumerate() {
                if has & (1 << bit) != 0 {
                    delta.insert(key.to_owned(), value);
                }
            }
            let mut chunk = serde_json::Map::new();
            let members = [
                ("id", a.clone()),
                ("object", b.clone()),
                ("created", a.clone()),
                ("model", b.clone()),
                (
                    "choices",
                    json!([{"index": 0, "delta": delta, "finish_reason": a.clone()}]),
                ),
                ("usage", b),
                ("custom", a),
            ];
            for (bit, (key, value)) in members.into_iter().enumerate() {
                if key == "choices" || top & (1 << bit) != 0 {
                    chunk.insert(key.to_owned(), value);
                }
            }
            Value::Object(chunk).to_string()
        },
    )
}

/// Text in which markers, whole and broken, are frequent.
fn marked_text() -> impl Strategy<Value = String> {
    let pieces = select(vec![
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "<function=a_look>",
        "</function>",
        "<parameter=x>",
        "</parameter>",
        "```",
        "```json\n",
        "\n```",
        "<|python_tag|>",
        "<|eom_id|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|channel|>",
        "<|message|>",
        "<|call|>",
        "<|start|>",
        "commentary to=functions.a_run ",
        "analysis",
        "final",
        "{\"name\":\"a_look\",\"arguments\":{}}",
        "[{",
        "}]",
        "{\"a\":1}",
        "\n",
        " ",
        "a_look",
        "ä",
        "<think>",
        "</think>",
        "<",
        "[",
        "`",
        "plain words",
    ]);
    vec(pieces, 0..14).prop_map(|pieces| pieces.concat())
}

fn said(text: &str, cuts: &[prop::sample::Index], settings: Settings) -> Option<Round> {
    let pieces = cut(text.as_bytes(), cuts);
    let mut rest = Vec::new();
    let mut data = vec![chunk(&json!({"role": "assistant", "content": ""}), None)];
    for piece in pieces {
        rest.extend_from_slice(piece);
        let valid = match std::str::from_utf8(&rest) {
            Ok(_) => rest.len(),
            Err(error) => error.valid_up_to(),
        };
        let text: Vec<u8> = rest.drain(..valid).collect();
        data.push(chunk(
            &json!({"content": String::from_utf8_lossy(&text)}),
            None,
        ));
    }
    data.push(chunk(&json!({}), Some("stop")));
    answer(&data, settings).1.ok()
}

/// The streams of the golden cases.
fn streams() -> &'static [Vec<u8>] {
    static STREAMS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    STREAMS.get_or_init(|| {
        let folder = crate::project("golden/quirks");
        let paths = fs::read_dir(folder)
            .expect("the folder is there")
            .map(|entry| entry.expect("it can be read").path());
        let streams = paths.filter(|path| path.extension().is_some_and(|end| end == "sse"));
        streams
            .map(|path| {
                let text = fs::read_to_string(path).expect("the case can be read");
                text.replace("get_weather", "a_look")
                    .replace("get_time", "b_show")
                    .into_bytes()
            })
            .collect()
    })
}

/// What goes to the client for the bytes of a stream.
fn read_bytes(body: &[u8], settings: Settings) -> Vec<u8> {
    let mut out = Vec::new();
    let mut stream = ChatStream::new(settings);
    let mut read = || {
        let mut framer = Framer::new(1 << 16);
        framer.push(Bytes::copy_from_slice(body));
        while let Some(pushed) = stream.push_next(&mut framer, &Tools, &mut out) {
            if pushed? == Pushed::Done {
                return stream.end_round(&Tools, &mut out);
            }
        }
        if let Some(event) = framer.finish() {
            stream.push(&event?, &Tools, &mut out)?;
        }
        stream.end_round(&Tools, &mut out)
    };
    match read() {
        Ok(round) => stream.finish(round.finish, round.usage.as_ref(), &mut out),
        Err(error) => stream.fail(&error.body(), &mut out),
    }
    out
}

/// Checks what must hold for everything that goes to a client in a loop.
fn check_output(out: &[u8]) {
    let text = std::str::from_utf8(out).expect("UTF-8 goes out");
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut identity = None;
    let (mut roles, mut finishes, mut calls) = (0, 0, Vec::<u64>::new());
    let mut over = false;
    for block in text.split_terminator("\n\n") {
        assert!(!over, "nothing follows the end");
        let data = block.strip_prefix("data:").expect("only data lines go out");
        let data = data.strip_prefix(' ').unwrap_or(data);
        assert!(!data.contains(['\n', '\r']) && !data.is_empty());
        if data == "[DONE]" {
            assert_eq!(finishes, 1);
            over = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(data).expect("JSON goes out");
        if chunk.get("error").is_some_and(Value::is_object) {
            over = true;
            continue;
        }
        let own = [
            &chunk["id"],
            &chunk["object"],
            &chunk["created"],
            &chunk["model"],
        ]
        .map(Value::clone);
        assert!(own[0].is_string() && own[1] == "chat.completion.chunk");
        assert!(own[2].is_u64() && own[3].is_string());
        assert_eq!(*identity.get_or_insert(own.clone()), own);
        for choice in chunk["choices"].as_array().expect("choices") {
            assert_eq!(choice["index"], 0);
            let delta = choice["delta"].as_object().expect("a delta");
            assert!(
                delta
                    .get("content")
                    .is_none_or(|text| text.is_string() || text.is_null())
            );
            roles += usize::from(delta.contains_key("role"));
            if let Some(reason) = choice["finish_reason"].as_str() {
                assert!(FinishReason::parse(reason).is_some());
                finishes += 1;
            }
            for call in delta
                .get("tool_calls")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                let index = call["index"].as_u64().expect("an index");
                if calls.contains(&index) {
                    continue;
                }
                assert_eq!(index, calls.len() as u64, "numbered from 0");
                assert!(
                    call["id"]
                        .as_str()
                        .is_some_and(|id| !id.is_empty() && id != "taken")
                );
                assert!(matches!(call["type"].as_str(), Some("function" | "custom")));
                assert!(
                    call["function"]["name"]
                        .as_str()
                        .is_some_and(|n| n.starts_with('b'))
                );
                calls.push(index);
            }
        }
    }
    assert!(over, "an answer ends");
    assert!(roles <= 1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn framing_does_not_depend_on_the_chunks(
        bytes in stream_bytes(),
        cuts in vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = framed(&[&bytes]);
        prop_assert_eq!(&framed(&cut(&bytes, &cuts)), &whole);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&framed(&single), &whole);
    }

    #[test]
    fn calls_do_not_depend_on_how_they_are_cut(
        calls in vec(wanted(), 1..5),
        marks in select(vec![Marks::Index, Marks::IndexAndId, Marks::IdOnly, Marks::Nothing, Marks::ZeroAndId]),
        cuts in vec(any::<prop::sample::Index>(), 0..6),
        mix in any::<bool>(),
    ) {
        let mut data: Vec<String> =
            deltas(&calls, marks, &cuts, mix).iter().map(|delta| chunk(delta, None)).collect();
        data.push(chunk(&json!({}), Some("tool_calls")));
        let (out, round) = answer(&data, settings(Mode::Loop, TextCalls::default(), false));
        check_output(&out);
        let round = round.expect("a round");
        let made: Vec<(&str, &str)> =
            round.calls.iter().map(|c| (c.call.name.as_str(), c.call.arguments.as_str())).collect();
        let meant: Vec<(&str, &str)> =
            calls.iter().map(|c| (c.name, c.arguments.as_str())).collect();
        prop_assert_eq!(made, meant);
        let mut ids: Vec<&str> = round.calls.iter().map(|c| c.call.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), calls.len());
    }

    #[test]
    fn what_goes_out_is_always_well_formed(chunks in vec(odd_chunk(), 0..8), think in any::<bool>()) {
        let (out, _) = answer(&chunks, settings(Mode::Loop, ALL_FORMS, think));
        check_output(&out);
    }

    #[test]
    fn what_passes_through_is_always_data(chunks in vec(odd_chunk(), 0..8), think in any::<bool>()) {
        let (out, _) = answer(&chunks, settings(Mode::PassThrough, ALL_FORMS, think));
        for block in std::str::from_utf8(&out).expect("UTF-8 goes out").split_terminator("\n\n") {
            let data = block.strip_prefix("data: ").expect("only data lines go out");
            prop_assert!(data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok());
        }
    }

    #[test]
    fn a_clean_stream_passes_through_byte_for_byte(
        texts in vec("[a-z<\\[`\"\\\\ä ]{0,20}", 1..6),
        cuts in vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut body = ": hello\n\n".to_owned();
        for (at, text) in texts.iter().enumerate() {
            let delta = match at {
                0 => json!({"role": "assistant", "content": text}),
                _ => json!({"content": text}),
            };
            body.push_str(&format!("data: {}\n\n", chunk(&delta, None)));
        }
        body.push_str(&format!("data: {}\n\ndata: [DONE]\n\n", chunk(&json!({}), Some("stop"))));
        let mut stream = ChatStream::new(settings(Mode::PassThrough, TextCalls::default(), false));
        let mut framer = Framer::new(1 << 16);
        let mut out = Vec::new();
        for piece in cut(body.as_bytes(), &cuts) {
            framer.push(Bytes::copy_from_slice(piece));
            while let Some(pushed) = stream.push_next(&mut framer, &Tools, &mut out) {
                pushed.expect("it is clean");
            }
        }
        let round = stream.end_round(&Tools, &mut out).expect("a round");
        stream.finish(round.finish, None, &mut out);
        prop_assert_eq!(String::from_utf8_lossy(&out), body);
    }

    #[test]
    fn chunks_that_are_alike_are_read_as_each_of_them_alone(
        texts in vec(prop_oneof!["[a-z<\\[`\"\\\\ä\n ]{0,12}", marked_text()], 1..12),
        noise in vec(proptest::option::of("[a-z]{0,5}"), 12),
        mode in select(vec![Mode::Loop, Mode::PassThrough]),
        think in any::<bool>(),
        forms in select(vec![TextCalls::default(), ALL_FORMS]),
    ) {
        let mut body = format!("data: {}\n\n", chunk(&json!({"role": "assistant", "content": ""}), None));
        for (text, noise) in texts.iter().zip(noise) {
            let mut chunk: Value = serde_json::from_str(&chunk(&json!({"content": text}), None)).unwrap();
            if let Some(noise) = noise {
                chunk["obfuscation"] = noise.into();
            }
            body.push_str(&format!("data: {chunk}\n\n"));
        }
        body.push_str(&format!("data: {}\n\ndata: [DONE]\n\n", chunk(&json!({}), Some("stop"))));
        let settings = settings(mode, forms, think);
        let read = |is_alone: bool| {
            let mut stream = ChatStream::new(settings.clone());
            let mut framer = Framer::new(1 << 16);
            framer.push(Bytes::copy_from_slice(body.as_bytes()));
            let mut out = Vec::new();
            loop {
                let pushed = match is_alone {
                    true => framer.next().map(|event| stream.push(&event.unwrap(), &Tools, &mut out)),
                    false => stream.push_next(&mut framer, &Tools, &mut out),
                };
                match pushed {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return (out, Err(error)),
                    None => break,
                }
            }
            let round = stream.end_round(&Tools, &mut out);
            (out, round)
        };
        prop_assert_eq!(read(false), read(true));
    }

    #[test]
    fn text_forms_do_not_depend_on_the_chunks(
        text in marked_text(),
        cuts in vec(any::<prop::sample::Index>(), 0..10),
        think in any::<bool>(),
    ) {
        let whole = said(&text, &[], settings(Mode::Loop, ALL_FORMS, think));
        prop_assert_eq!(said(&text, &cuts, settings(Mode::Loop, ALL_FORMS, think)), whole);
    }

    #[test]
    fn text_that_is_no_call_stays_as_it_is(
        text in marked_text(),
        cuts in vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let text = text.replace("a_look", "nobody").replace("a_run", "nobody");
        let text = text.replace("<|start|>", "").replace("<|channel|>", "");
        let round = said(&text, &cuts, settings(Mode::Loop, ALL_FORMS, false)).expect("a round");
        prop_assert_eq!(round.content.unwrap_or_default(), text);
        prop_assert!(round.calls.is_empty());
    }

    #[test]
    fn a_known_stream_with_damage_still_comes_out_well_formed(
        case in any::<prop::sample::Index>(),
        damage in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..4u8), 1..5),
        think in any::<bool>(),
    ) {
        let cases = streams();
        let mut body = cases[case.index(cases.len())].clone();
        for (place, other, kind) in damage {
            if body.is_empty() {
                break;
            }
            let (at, from) = (place.index(body.len()), other.index(body.len()));
            match kind {
                0 => body[at] = body[from],
                1 => drop(body.drain(at.min(from)..at.max(from))),
                2 => body.truncate(at),
                _ => {
                    let again = body[at.min(from)..at.max(from)].to_vec();
                    body.extend_from_slice(&again);
                }
            }
        }
        for mode in [Mode::Loop, Mode::PassThrough] {
            let out = read_bytes(&body, settings(mode, ALL_FORMS, think));
            if mode == Mode::Loop {
                check_output(&out);
            }
        }
    }

    #[test]
    fn nothing_panics(bytes in vec(any::<u8>(), 0..200), odd in odd_chunk(), mode in any::<bool>()) {
        let mode = if mode { Mode::Loop } else { Mode::PassThrough };
        let settings = settings(mode, ALL_FORMS, true);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let _ = answer(&[text, odd.clone()], settings.clone());
        for body in [&bytes[..], odd.as_bytes(), odd.replace("delta", "message").as_bytes()] {
            let read = completion::read(body, &settings, &Tools, &mut Ids::new(1));
            if let Ok(answer) = read {
                let mut said = completion::Summary::default();
                said.add(&answer.round);
                completion::write(answer.envelope, &said, &answer.round.calls, answer.round.finish, None);
            }
            let _ = completion::mend(body, &settings, &Tools, &mut Ids::new(1));
            ErrorBody::from_upstream(500, None, body);
        }
    }

    #[test]
    fn a_mended_answer_needs_no_mending(odd in odd_chunk()) {
        let settings = settings(Mode::PassThrough, TextCalls::default(), false);
        let body = odd.replace("\"delta\"", "\"message\"");
        if let Ok(once) = completion::mend(body.as_bytes(), &settings, &Tools, &mut Ids::new(1)) {
            let twice = completion::mend(&once, &settings, &Tools, &mut Ids::new(2)).expect("it is mended");
            prop_assert_eq!(String::from_utf8_lossy(&twice), String::from_utf8_lossy(&once));
        }
    }
}
