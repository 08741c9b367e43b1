//! The APIs of models: nothing is lost on the way there and back, and nothing that comes is a panic.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};
use toolway_core::translate::dialect::{
    AnswerReader, AnswerWriter, Call, CallResult, Delta, Head, Part, Reasoning, Request, Role,
    Sealed, Source, ToolChoice, ToolDefinition, Turn,
    anthropic::{self, MessageWriter},
    chat::{self, ChunkReader, ChunkWriter},
    gemini,
    responses::{self, Earlier, ResponseWriter},
};
use toolway_core::translate::{ids::Ids, stream::CallKind};
use toolway_protocol::{
    openai::FinishReason,
    sse::{Framer, SseEvent},
    tool::JsonObject,
};

fn text() -> impl Strategy<Value = String> {
    "[ -~é☀:]{1,12}"
}

fn sealed() -> impl Strategy<Value = Sealed> {
    let source = select(vec![Source::OpenAi, Source::Anthropic, Source::Gemini]);
    (source, proptest::option::of("[a-z_0-9]{1,8}"), text()).prop_map(|(source, id, data)| Sealed {
        source,
        id,
        data,
    })
}

/// What a model says before its calls, each kind once, as every API has them: thoughts, text, calls.
fn assistant(calls: usize) -> impl Strategy<Value = Vec<Part>> {
    let reasoning = (text(), sealed()).prop_map(|(text, sealed)| Reasoning {
        text,
        sealed: Some(sealed),
    });
    (
        proptest::option::of(reasoning),
        proptest::option::of(text()),
    )
        .prop_map(move |(reasoning, said)| {
            let call = |at: usize| {
                Part::Call(Call {
                    id: format!("c{at}"),
                    name: "f".to_owned(),
                    arguments: json!({"at": at}).to_string(),
                    kind: CallKind::Function,
                    sealed: None,
                })
            };
            let reasoning = reasoning.map(Part::Reasoning).into_iter();
            reasoning
                .chain(said.map(Part::Text))
                .chain((0..calls).map(call))
                .collect()
        })
}

fn turn(role: Role, parts: Vec<Part>) -> Turn {
    Turn {
        role,
        name: None,
        parts,
    }
}

/// A conversation of a person, a model that calls tools, and their results.
fn request() -> impl Strategy<Value = Request> {
    let exchange = (text(), assistant(2), text(), text(), assistant(0));
    (vec(exchange, 1..3), any::<bool>()).prop_map(|(exchanges, stream)| {
        let mut turns = vec![turn(Role::System, vec![Part::Text("be brief".to_owned())])];
        for (asked, called, first, second, mut said) in exchanges {
            let result = |at: usize, text: String| {
                Part::Result(CallResult {
                    id: format!("c{at}"),
                    parts: vec![Part::Text(text)],
                    is_error: false,
                })
            };
            if said.is_empty() {
                said.push(Part::Text("done".to_owned()));
            }
            turns.push(turn(Role::User, vec![Part::Text(asked)]));
            turns.push(turn(Role::Assistant, called));
            turns.push(turn(Role::Tool, vec![result(0, first), result(1, second)]));
            turns.push(turn(Role::Assistant, said));
        }
        turns.push(turn(Role::User, vec![Part::Text("and?".to_owned())]));
        Request {
            model: "m".to_owned(),
            turns,
            tools: vec![ToolDefinition {
                name: "f".to_owned(),
                description: Some("does".to_owned()),
                parameters: Some(
                    json!({"type": "object", "properties": {"at": {"type": "integer"}}}),
                ),
                strict: Some(false),
                kind: CallKind::Function,
            }],
            tool_choice: Some(ToolChoice::Required),
            parallel_tool_calls: Some(false),
            max_tokens: Some(1000),
            stream,
            ..Request::default()
        }
    })
}

/// Only the seals that the API `home` takes: it is not told of the others.
fn without_foreign_seals(mut request: Request, home: Source) -> Request {
    for turn in &mut request.turns {
        turn.parts.retain(|part| match part {
            Part::Reasoning(reasoning) => reasoning
                .sealed
                .as_ref()
                .is_some_and(|sealed| sealed.source == home),
            _ => true,
        });
    }
    request.turns.retain(|turn| !turn.parts.is_empty());
    request
}

/// The parts of an answer of Gemini's, and those of them that go back.
fn gemini_parts() -> impl Strategy<Value = (Value, Value)> {
    let thought = text().prop_map(|text| json!({"text": text, "thought": true}));
    let said = text().prop_map(|text| vec![json!({"text": text})]);
    let signed = (text(), text());
    let signed =
        signed.prop_map(|(text, seal)| vec![json!({"text": text, "thoughtSignature": seal})]);
    let behind = (text(), text()).prop_map(|(text, seal)| {
        vec![
            json!({"text": text}),
            json!({"text": "", "thoughtSignature": seal}),
        ]
    });
    let said = prop_oneof![said, signed, behind];
    (proptest::option::of(thought), said, vec(text(), 0..3)).prop_map(|(thought, said, calls)| {
        let calls = calls.into_iter().enumerate().map(|(at, seal)| {
            let call = json!({"id": format!("c{at}"), "name": "f", "args": {"at": at}});
            match at {
                0 => json!({"functionCall": call, "thoughtSignature": seal}),
                _ => json!({"functionCall": call}),
            }
        });
        let given_back: Vec<Value> = said.into_iter().chain(calls).collect();
        let parts = thought.into_iter().chain(given_back.iter().cloned());
        (parts.collect(), given_back.into())
    })
}

/// JSON in which the names of these APIs stand in wrong places.
fn anything() -> impl Strategy<Value = Value> {
    let words = vec![
        "type",
        "role",
        "content",
        "text",
        "id",
        "call_id",
        "function",
        "name",
        "arguments",
        "tool_calls",
        "messages",
        "input",
        "output",
        "tools",
        "function_call",
        "function_call_output",
        "reasoning",
        "summary",
        "message",
        "assistant",
        "tool",
        "user",
        "system",
        "namespace",
        "custom",
        "mcp",
        "tool_use",
        "tool_result",
        "thinking",
        "signature",
        "source",
        "image",
        "choices",
        "delta",
        "usage",
        "index",
        "output_index",
        "item",
        "response",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
        "response.failed",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block",
        "message_delta",
        "message_start",
        "stop_reason",
        "error",
        "finish_reason",
        "annotations",
        "url_citation",
        "reasoning_details",
        "tool_choice",
        "stop",
        "previous_response_id",
        "data:a;base64,b",
        "candidates",
        "parts",
        "thought",
        "thoughtSignature",
        "functionCall",
        "args",
        "inlineData",
        "mimeType",
        "finishReason",
        "STOP",
        "promptFeedback",
        "blockReason",
        "usageMetadata",
        "text-1",
        "google-gemini-v1",
        "toolway:openai:x",
    ];
    let word = select(words).prop_map(str::to_owned);
    let leaf = prop_oneof![
        word.clone().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(Value::Null),
        Just(json!(true)),
    ];
    leaf.prop_recursive(5, 60, 8, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((word.clone(), inner), 0..8)
                .prop_map(|members| { Value::Object(members.into_iter().collect::<JsonObject>()) }),
        ]
    })
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        other => [("content".to_owned(), other)].into_iter().collect(),
    }
}

proptest! {
    #[test]
    fn a_chat_comes_back_as_it_went(request in request()) {
        let back = chat::read_request(chat::write_request(&request)).unwrap();
        prop_assert_eq!(back, request);
    }

    #[test]
    fn what_responses_can_say_comes_back_with_its_seals(request in request()) {
        let request = without_foreign_seals(request, Source::OpenAi);
        let mut body = responses::write_request(&request, true).body;
        responses::expand(&mut body, Earlier::default(), 1000).unwrap();
        let back = responses::read_request(body, &|_, _| None, false).unwrap().request;
        prop_assert_eq!(back.turns, request.turns);
        prop_assert_eq!(back.tools, request.tools);
        prop_assert_eq!(back.tool_choice, request.tool_choice);
    }

    #[test]
    fn what_messages_can_say_comes_back_with_its_seals(request in request()) {
        let request = without_foreign_seals(request, Source::Anthropic);
        let body = anthropic::write_request(&request).body;
        let anthropic::Read { request: back, dropped, deferred } = anthropic::read_request(body).unwrap();
        prop_assert!(dropped.is_empty() && deferred.is_empty());
        let seals = |request: &Request| {
            let parts = request.turns.iter().flat_map(|turn| turn.parts.clone());
            parts
                .filter_map(|part| match part {
                    Part::Reasoning(reasoning) => Some((reasoning.text, reasoning.sealed?.data)),
                    _ => None,
                })
                .collect::<Vec<_>>()
        };
        prop_assert_eq!(seals(&back), seals(&request));
        prop_assert_eq!(back.turns.len(), request.turns.len());
    }

    #[test]
    fn an_upstream_of_messages_gets_what_its_client_wrote(request in request()) {
        let mut original = anthropic::write_request(&without_foreign_seals(request, Source::Anthropic)).body;
        for message in original["messages"].as_array_mut().unwrap() {
            for block in message["content"].as_array_mut().unwrap() {
                block["cache_control"] = json!({"type": "ephemeral"});
            }
        }
        original.insert("unknown".to_owned(), json!([1]));
        let read = anthropic::read_request(original.clone()).unwrap();
        let chat = chat::read_request(chat::write_request(&read.request)).unwrap();
        let mut body = anthropic::write_request(&chat).body;
        anthropic::restore(&mut body, original.clone());
        // Where thoughts stand among texts is known by what is kept of the answers (`sealed_turns`).
        let blocks = |body: &JsonObject| {
            let messages = body["messages"].as_array().unwrap().iter();
            let blocks = messages.flat_map(|it| it["content"].as_array().unwrap());
            let mut blocks: Vec<String> = blocks.map(Value::to_string).collect();
            blocks.sort();
            blocks
        };
        prop_assert_eq!(blocks(&body), blocks(&original));
        prop_assert_eq!(&body["unknown"], &original["unknown"]);
    }

    #[test]
    fn what_gemini_said_goes_back_part_by_part_by_way_of_a_chat((said, given_back) in gemini_parts()) {
        let candidate = json!({"content": {"role": "model", "parts": said}, "finishReason": "STOP"});
        let answer = object(json!({"candidates": [candidate]}));
        let deltas = gemini::EventReader::new(Ids::new(1)).read_whole(answer);
        let answer = chat::write_answer(deltas, 1).unwrap();
        let message = answer["choices"][0]["message"].clone();
        let results = message["tool_calls"].as_array().into_iter().flatten();
        let results: Vec<Value> = results.map(|call| json!({"role": "tool", "tool_call_id": call["id"], "content": "1"})).rev().collect();
        let mut messages = vec![json!({"role": "user", "content": "x"}), message];
        messages.extend(results);
        let request = chat::read_request(object(json!({"model": "m", "messages": messages}))).unwrap();
        let body = gemini::write_request(&request, true).body;
        prop_assert_eq!(&body["contents"][1]["parts"], &given_back);
        let ids = |content: usize, key: &str| -> Vec<Value> {
            let parts = body["contents"][content]["parts"].as_array().into_iter().flatten();
            parts.filter_map(|part| Some(part.get(key)?["id"].clone())).collect()
        };
        prop_assert_eq!(ids(2, "functionResponse"), ids(1, "functionCall"));
    }

    #[test]
    fn what_an_answer_says_comes_through_every_writer_and_back(said in vec(text(), 1..4), thought in text(), sealed in sealed()) {
        let reasoning = Reasoning { text: thought.clone(), sealed: Some(sealed) };
        let call = Call { id: "c".to_owned(), name: "f".to_owned(), arguments: "{\"a\":1}".to_owned(), kind: CallKind::Function, sealed: None };
        let mut deltas = vec![Delta::Thought(thought.clone()), Delta::Sealed(reasoning.clone())];
        deltas.extend(said.iter().cloned().map(Delta::Text));
        deltas.push(Delta::Call(0, call));
        let whole = chat::write_answer(deltas.clone(), 1).unwrap();
        let back = ChunkReader::default().read(whole);
        prop_assert!(back.contains(&Delta::Sealed(reasoning)));
        prop_assert!(back.contains(&Delta::Text(said.concat())));
        let message = anthropic::write_message(deltas.clone()).unwrap();
        let back = anthropic::EventReader::default().read_whole(message);
        prop_assert!(back.contains(&Delta::Thought(thought.clone())));
        let resource = JsonObject::new();
        let mut response = ResponseWriter::new(resource, responses::ToolNames::default(), "r".to_owned(), 1);
        let response = response.write_response(deltas).unwrap();
        let back = responses::EventReader::default().read_whole(response);
        prop_assert!(back.contains(&Delta::Thought(thought)));
        prop_assert!(back.contains(&Delta::Text(said.concat())));
    }

    #[test]
    fn pieces_of_text_are_read_the_same_without_building_values(pieces in vec("[ -~é☀\\n]{1,12}", 1..5)) {
        let (mut chunks, mut other) = (ChunkReader::default(), ChunkReader::default());
        let mut framer = framer(&written(&pieces, &mut ChunkWriter::new(true, 1)));
        loop {
            if let Some((raw, text)) = chunks.alike().peek(&mut framer) {
                let (length, text) = (raw.len(), text.into_owned());
                let event = SseEvent::from_data(std::str::from_utf8(&raw[6..]).unwrap().trim_end());
                prop_assert_eq!(vec![Delta::Text(text)], other.read(data_of(&event)));
                framer.skip(length);
                continue;
            }
            let Some(event) = framer.next() else { break };
            let event = event.unwrap();
            if event.data().unwrap() != "[DONE]" {
                prop_assert_eq!(chunks.read_event(&event), Some(other.read(data_of(&event))));
            }
        }
        // A pattern is made of a text without escapes.
        let plain = pieces.iter().position(|piece| !piece.contains(['\n', '"', '\\']));
        let after_plain = plain.map_or(0, |at| pieces.len() - 1 - at);
        let names = responses::ToolNames::default();
        let mut writer = ResponseWriter::new(JsonObject::new(), names, "r".to_owned(), 1);
        let events = written(&pieces, &mut writer);
        check_both_ways(&events, after_plain, || Box::new(responses::EventReader::default()))?;
        let events = written(&pieces, &mut MessageWriter::default());
        check_both_ways(&events, after_plain, || Box::new(anthropic::EventReader::default()))?;
    }

    #[test]
    fn no_request_is_a_panic(body in anything()) {
        let body = object(body);
        for request in [
            chat::read_request(body.clone()).ok(),
            anthropic::read_request(body.clone()).ok().map(|read| read.request),
            responses::read_request(body.clone(), &|_, _| None, true).ok().map(|read| read.request),
        ]
        .into_iter()
        .flatten()
        {
            chat::write_request(&request);
            responses::restore(&mut responses::write_request(&request, true).body, body.clone());
            anthropic::restore(&mut anthropic::write_request(&request).body, body.clone());
            gemini::write_request(&request, true);
        }
        let _ = responses::expand(&mut body.clone(), Earlier::default(), 1000);
    }

    #[test]
    fn no_answer_is_a_panic(events in vec(anything(), 1..6)) {
        let mut readers: [Box<dyn AnswerReader>; 3] = [
            Box::new(gemini::EventReader::new(Ids::new(1))),
            Box::new(responses::EventReader::default()),
            Box::new(anthropic::EventReader::default()),
        ];
        let mut writers: [Box<dyn AnswerWriter>; 3] = [
            Box::new(ChunkWriter::new(true, 1)),
            Box::new(MessageWriter::default()),
            Box::new(ResponseWriter::new(JsonObject::new(), responses::ToolNames::default(), "r".to_owned(), 1)),
        ];
        let mut out = Vec::new();
        let mut chunks = ChunkReader::default();
        for event in events {
            let event = object(event);
            let mut deltas = chunks.read(event.clone());
            for reader in &mut readers {
                deltas.extend(reader.read(event.clone()));
                deltas.extend(reader.read_whole(event.clone()));
                deltas.extend(reader.end());
            }
            for writer in &mut writers {
                for delta in deltas.clone() {
                    writer.write(delta, &mut out);
                }
            }
        }
        for writer in &mut writers {
            writer.finish(&mut out);
        }
    }
}

/// The stream of an answer of these texts.
fn written(pieces: &[String], writer: &mut dyn AnswerWriter) -> String {
    let mut out = Vec::new();
    writer.write(Delta::Begin(Head::default()), &mut out);
    for piece in pieces {
        writer.write(Delta::Text(piece.clone()), &mut out);
    }
    writer.write(Delta::Finish(FinishReason::Stop), &mut out);
    writer.finish(&mut out);
    String::from_utf8(out).expect("events are text")
}

fn framer(stream: &str) -> Framer {
    let mut framer = Framer::new(1 << 20);
    framer.push(stream.to_owned().into());
    framer
}

fn data_of(event: &SseEvent) -> JsonObject {
    serde_json::from_str(&event.data().expect("an event has data")).expect("data is JSON")
}

/// Reads events by their values, quickly, and as texts like those before, of which there are `least`.
fn check_both_ways(
    stream: &str,
    least: usize,
    reader: impl Fn() -> Box<dyn AnswerReader>,
) -> Result<(), TestCaseError> {
    let (mut by_values, mut by_text) = (reader(), reader());
    let (mut all, mut rest) = (framer(stream), framer(stream));
    let (mut texts, mut alikes) = (0, 0);
    while let Some(Ok(event)) = all.next() {
        let alike = by_text.alike().and_then(|alike| alike.peek(&mut rest));
        let alike = alike.map(|(raw, text)| (raw.len(), Delta::Text(text.into_owned())));
        let read = match alike {
            Some((length, delta)) => {
                rest.skip(length);
                alikes += 1;
                Some(vec![delta])
            }
            None => by_text.read_quickly(&rest.next().expect("the same events").expect("an event")),
        };
        texts += usize::from(read.is_some());
        let read = read.unwrap_or_else(|| by_text.read(data_of(&event)));
        prop_assert_eq!(read, by_values.read(data_of(&event)));
    }
    prop_assert!(texts > 0);
    prop_assert!(alikes >= least);
    Ok(())
}

/// A chat completion with this member, which may also be a part of a message.
fn chat_with(member: &str) -> JsonObject {
    let value = match member {
        "n" => json!(2),
        "stop" => json!(["x"]),
        "verbosity" => json!("low"),
        _ => json!({"some": "value"}),
    };
    let sound = json!({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}});
    let content = match member {
        "input_audio" => json!([sound]),
        _ => json!("hello"),
    };
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    if member != "input_audio" {
        body[member] = value;
    }
    body.as_object().cloned().unwrap_or_default()
}

#[test]
fn what_an_api_is_said_not_to_take_is_left_out_or_refused() {
    let apis = [
        (&anthropic::NOT_TAKEN[..], Source::Anthropic),
        (&responses::NOT_TAKEN[..], Source::OpenAi),
        (&gemini::NOT_TAKEN[..], Source::Gemini),
    ];
    for (members, api) in apis {
        for member in members {
            let read = chat::read_request(chat_with(member));
            if *member == "n" {
                assert_eq!(read.unwrap_err().param, "n");
                continue;
            }
            let request = read.unwrap();
            let written = match api {
                Source::Anthropic => anthropic::write_request(&request),
                Source::Gemini => gemini::write_request(&request, true),
                Source::OpenAi => responses::write_request(&request, false),
            };
            assert_eq!(written.left_out, [*member]);
        }
    }
}
