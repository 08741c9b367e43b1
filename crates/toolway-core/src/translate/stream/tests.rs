//! One answer over its rounds: what goes out, in which bytes, and what the rounds say.
//! The faults of single upstreams are in `golden/quirks`.

use std::iter::repeat_n;

use serde_json::{Value, json};

use super::{
    text::{TextFilter, TextPiece},
    *,
};

/// Tools `a…` are the gateway's, tools `b…` the client's.
struct Tools;

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
        matches!(name, "a" | "b" | "b_time" | "b_time_zone")
    }
    fn parameters(&self, _: &str) -> Option<Value> {
        None
    }
}

fn settings(mode: Mode) -> Settings {
    Settings {
        mode,
        text_calls: TextCalls::default(),
        think_tags: false,
        skip_invalid_events: false,
        include_usage: false,
        seed: 1,
        created: 1_700_000_000,
        model: "fallback".to_owned(),
    }
}

/// A stream, and what it wrote so far.
struct Answer {
    stream: ChatStream,
    out: Vec<u8>,
}

impl Answer {
    fn new() -> Answer {
        Answer::with(settings(Mode::Loop))
    }

    fn with(settings: Settings) -> Answer {
        Answer {
            stream: ChatStream::new(settings),
            out: Vec::new(),
        }
    }

    /// Pushes one event, and gives what it wrote.
    fn push(&mut self, data: &str) -> String {
        let mut out = Vec::new();
        let event = SseEvent::from_data(data);
        self.stream
            .push(&event, &Tools, &mut out)
            .expect("a good event");
        self.out.extend_from_slice(&out);
        String::from_utf8(out).unwrap()
    }

    fn delta(&mut self, delta: &Value) -> String {
        self.push(&chunk("one", delta, None))
    }

    fn end(&mut self) -> Round {
        self.stream
            .end_round(&Tools, &mut self.out)
            .expect("a round")
    }

    fn error(&mut self, data: &str) -> StreamError {
        let event = SseEvent::from_data(data);
        self.stream
            .push(&event, &Tools, &mut self.out)
            .expect_err("an error")
    }

    fn finish(mut self, reason: FinishReason, usage: Option<&JsonObject>) -> Vec<Value> {
        self.stream.finish(reason, usage, &mut self.out);
        let text = String::from_utf8(self.out).unwrap();
        let data = text
            .split_terminator("\n\n")
            .map(|block| block.strip_prefix("data: ").unwrap());
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into()))
            .collect()
    }
}

fn chunk(id: &str, delta: &Value, finish: Option<&str>) -> String {
    json!({
        "id": id, "object": "chat.completion.chunk", "created": 5, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    })
    .to_string()
}

fn call(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    json!({"tool_calls": [{"index": index, "id": id, "type": "function",
        "function": {"name": name, "arguments": arguments}}]})
}

#[test]
fn an_error_that_says_so_by_its_type_alone_is_one_whatever_else_it_has() {
    for mode in [Mode::Loop, Mode::PassThrough] {
        let mut error: Value =
            serde_json::from_str(&chunk("one", &json!({"content": "x"}), None)).unwrap();
        error["type"] = json!("error");
        let mut answer = Answer::with(settings(mode));
        answer.delta(&json!({"role": "assistant", "content": ""}));
        assert!(matches!(
            answer.error(&error.to_string()),
            StreamError::Upstream(..)
        ));
    }
}

#[test]
fn a_clean_chunk_goes_on_as_the_bytes_that_came() {
    let mut answer = Answer::new();
    let odd = r#"{"x":1,"id":"one","object":"chat.completion.chunk" , "created":5,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"\u00e4 \"q\""},"finish_reason":null}]}"#;
    assert_eq!(answer.push(odd), format!("data: {odd}\n\n"));
    let next = odd.replace(r#""role":"assistant","#, "");
    assert_eq!(answer.push(&next), format!("data: {next}\n\n"));
    answer.push(&chunk("one", &json!({}), Some("stop")));
    assert_eq!(answer.end().content.as_deref(), Some("ä \"q\"ä \"q\""));
}

#[test]
fn a_later_round_is_written_with_the_identity_of_the_first() {
    let mut answer = Answer::new();
    answer.delta(&json!({"role": "assistant", "content": "A"}));
    answer.delta(&call(0, "c1", "a", "{}"));
    answer.push(&chunk("one", &json!({}), Some("tool_calls")));
    assert_eq!(answer.end().calls.len(), 1);
    assert_eq!(
        answer.push(&chunk(
            "two",
            &json!({"role": "assistant", "content": ""}),
            None
        )),
        ""
    );
    let later = r#"{"created":9,"x":[1.0,"id"],"model":"m2","id":"two","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"B"},"finish_reason":null}]}"#;
    let expected = later
        .replace("\"two\"", "\"one\"")
        .replace("\"created\":9", "\"created\":5")
        .replace("\"m2\"", "\"m\"");
    assert_eq!(answer.push(later), format!("data: {expected}\n\n"));
}

#[test]
fn a_call_of_the_gateway_is_never_shown() {
    let mut answer = Answer::new();
    answer.delta(&json!({"role": "assistant", "content": null}));
    assert_eq!(answer.delta(&call(0, "c1", "a", "")), "");
    assert_eq!(
        answer.delta(&json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]})),
        ""
    );
    assert_eq!(
        answer.push(&chunk("one", &json!({}), Some("tool_calls"))),
        ""
    );
    assert_eq!(answer.end().finish, FinishReason::ToolCalls);
}

#[test]
fn in_a_mixed_turn_only_the_clients_call_is_shown_and_it_is_the_first() {
    let mut answer = Answer::new();
    answer.delta(&json!({"role": "assistant", "content": null}));
    answer.delta(&call(0, "c1", "a", r#"{"x":1}"#));
    let shown = answer.delta(&call(1, "c2", "b", r#"{"y":"#));
    assert!(
        shown.contains(r#""tool_calls":[{"index":0,"id":"c2-toolway""#),
        "{shown}"
    );
    let more =
        answer.delta(&json!({"tool_calls": [{"index": 1, "function": {"arguments": "2}"}}]}));
    assert!(
        more.contains(r#"[{"index":0,"function":{"arguments":"2}"}}]"#),
        "{more}"
    );
    answer.push(&chunk("one", &json!({}), Some("tool_calls")));
    let owners: Vec<Owner> = answer.end().calls.iter().map(|call| call.owner).collect();
    assert_eq!(owners, [Owner::Gateway, Owner::Client]);
}

#[test]
fn the_clients_calls_are_numbered_over_all_rounds_and_have_ids_of_their_own() {
    let mut answer = Answer::new();
    answer.delta(&call(0, "c1", "b", "{}"));
    answer.push(&chunk("one", &json!({}), Some("tool_calls")));
    answer.end();
    let shown = answer.delta(&call(0, "c1", "b", r#"{"x":1}"#));
    assert!(
        shown.contains(r#"[{"index":1,"id":""#) && !shown.contains("c1"),
        "{shown}"
    );
    answer.push(&chunk("one", &json!({}), Some("tool_calls")));
    let id = answer.end().calls[0].call.id.clone();
    assert!(shown.contains(&id));
}

#[test]
fn a_name_that_another_offered_name_begins_with_can_still_grow() {
    let mut answer = Answer::new();
    let piece = |name: &str| json!({"tool_calls": [{"index": 0, "function": {"name": name}}]});
    assert!(!answer.delta(&piece("b_time")).contains("b_time"));
    answer.delta(&piece("_zone"));
    let shown =
        answer.delta(&json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\""}}]}));
    assert!(shown.contains("b_time_zone"), "{shown}");
}

#[test]
fn finish_and_usage_come_once_and_at_the_end() {
    let mut answer = Answer::with(Settings {
        include_usage: true,
        ..settings(Mode::Loop)
    });
    answer.delta(&json!({"role": "assistant", "content": "A"}));
    answer.push(&chunk("one", &json!({"content": "B"}), Some("stop")));
    answer.push(r#"{"id":"one","object":"chat.completion.chunk","created":5,"model":"m","choices":[],"usage":{"prompt_tokens":3}}"#);
    answer.push("[DONE]");
    let round = answer.end();
    let chunks = answer.finish(round.finish, round.usage.as_ref());
    let finishes: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["finish_reason"])
        .collect();
    assert_eq!(
        finishes,
        [
            &json!(null),
            &json!(null),
            &json!("stop"),
            &json!(null),
            &json!(null)
        ]
    );
    assert_eq!(chunks[1]["choices"][0]["delta"]["content"], "B");
    assert_eq!(chunks[3]["usage"]["total_tokens"], 3);
    assert_eq!(chunks[4], "[DONE]");
}

#[test]
fn usage_is_only_for_those_who_asked() {
    let mut answer = Answer::new();
    answer.delta(&json!({"role": "assistant", "content": "A"}));
    answer.push(&chunk("one", &json!({}), Some("stop")));
    answer.end();
    let usage = json!({"prompt_tokens": 1}).as_object().cloned();
    let chunks = answer.finish(FinishReason::Stop, usage.as_ref());
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[test]
fn an_answer_without_a_word_still_has_a_role() {
    let mut answer = Answer::new();
    answer.push(&chunk("one", &json!({}), Some("stop")));
    answer.end();
    let chunks = answer.finish(FinishReason::Stop, None);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(chunks.len(), 2);
}

#[test]
fn a_note_has_no_choices_and_the_same_identity() {
    let mut answer = Answer::new();
    let fields = json!({"event": {"type": "status"}})
        .as_object()
        .cloned()
        .unwrap();
    answer.stream.note(&fields, &mut answer.out);
    answer.delta(&json!({"role": "assistant", "content": "A"}));
    answer.stream.note(&fields, &mut answer.out);
    answer.push(&chunk("one", &json!({}), Some("stop")));
    answer.end();
    let chunks = answer.finish(FinishReason::Stop, None);
    assert_eq!(chunks[0]["choices"], json!([]));
    assert_eq!(chunks[2]["event"]["type"], "status");
    assert!(
        chunks[..4]
            .iter()
            .all(|chunk| chunk["id"] == chunks[0]["id"])
    );
}

#[test]
fn after_an_error_nothing_goes_out() {
    let mut answer = Answer::new();
    answer.delta(&json!({"role": "assistant", "content": "A"}));
    let error = ErrorBody::new("server_error", "x", "broken");
    answer.stream.fail(&error, &mut answer.out);
    let length = answer.out.len();
    answer.delta(&json!({"content": "B"}));
    answer.stream.fail(&error, &mut answer.out);
    answer.stream.note(&JsonObject::new(), &mut answer.out);
    answer
        .stream
        .finish(FinishReason::Stop, None, &mut answer.out);
    assert_eq!(answer.out.len(), length);
}

#[test]
fn an_answer_has_begun_with_the_first_good_event() {
    let mut answer = Answer::new();
    assert!(matches!(
        answer.error(r#"{"error":{"message":"x"}}"#),
        StreamError::Upstream(..)
    ));
    assert!(matches!(answer.error("{"), StreamError::InvalidEvent(_)));
    assert!(!answer.stream.has_begun());
    answer.delta(&json!({"role": "assistant"}));
    assert!(answer.stream.has_begun());
}

#[test]
fn a_call_in_text_that_never_ends_is_bounded_in_either_mode() {
    for mode in [Mode::Loop, Mode::PassThrough] {
        let mut settings = settings(mode);
        settings.text_calls.tool_call_tags = true;
        let mut answer = Answer::with(settings);
        answer.push(&chunk("one", &json!({"content": "<tool_call>"}), None));
        let mebibyte: String = repeat_n('x', 1 << 20).collect();
        let data = chunk("one", &json!({"content": mebibyte}), None);
        let event = SseEvent::from_data(&data);
        let mut push = || answer.stream.push(&event, &Tools, &mut Vec::new());
        let error = (0..20).find_map(|_| push().err());
        assert_eq!(error, Some(StreamError::TooLarge), "{mode:?}");
    }
}

#[test]
fn a_round_is_bounded() {
    let mut answer = Answer::new();
    let many: Vec<Value> = (0..=MAX_CALLS)
        .map(|n| json!({"index": n, "function": {"name": "a", "arguments": "{}"}}))
        .collect();
    let delta = json!({ "tool_calls": many });
    assert_eq!(
        answer.error(&chunk("one", &delta, None)),
        StreamError::TooManyCalls
    );

    let mebibyte: String = repeat_n('x', 1 << 20).collect();
    for delta in [
        json!({"content": mebibyte}),
        json!({"reasoning": mebibyte}),
        call(0, "c", "a", &mebibyte),
    ] {
        let mut answer = Answer::new();
        let event = SseEvent::from_data(&chunk("one", &delta, None));
        let mut push = || answer.stream.push(&event, &Tools, &mut Vec::new());
        let error = (0..20).find_map(|_| push().err());
        assert_eq!(error, Some(StreamError::TooLarge));
    }
}

#[test]
fn a_call_that_is_cut_off_is_not_made_whole_for_the_client() {
    for finish in [Some("length"), Some("content_filter"), None] {
        let mut answer = Answer::new();
        answer.delta(&call(0, "c1", "b", ""));
        answer.delta(&json!({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}));
        answer.push(&chunk("one", &json!({}), finish));
        let before = answer.out.len();
        let round = answer.stream.end_round(&Tools, &mut answer.out);
        assert_eq!(answer.out.len(), before);
        assert_eq!(round.map(|round| round.calls.len()).unwrap_or(0), 0);
    }
}

#[test]
fn arguments_that_pass_through_are_bounded() {
    let mut answer = Answer::with(settings(Mode::PassThrough));
    let mebibyte: String = repeat_n('x', 1 << 20).collect();
    let event = SseEvent::from_data(&chunk("one", &call(0, "c", "a", &mebibyte), None));
    let mut push = || answer.stream.push(&event, &Tools, &mut Vec::new());
    assert_eq!(
        (0..20).find_map(|_| push().err()),
        Some(StreamError::TooLarge)
    );
}

#[test]
fn every_error_has_a_body_and_a_status_of_a_failure() {
    let upstream = ErrorBody::new("t", "c", "m");
    for error in [
        StreamError::Upstream(Box::new(upstream), Some(429)),
        StreamError::InvalidEvent("x".to_owned()),
        StreamError::InvalidCall,
        StreamError::Ended,
        StreamError::TooLarge,
        StreamError::TooManyCalls,
        StreamError::Frame(sse::FrameError::InvalidUtf8 { length: 1 }),
    ] {
        assert!((400..600).contains(&error.status()) && !error.body().message.is_empty());
    }
}

#[test]
fn a_whole_call_is_written_with_what_is_not_known_of_it() {
    let extra = json!({"function": {"thought": 1}, "extra_content": {"a": 2}});
    let call = RoundCall {
        call: ToolCall {
            id: "i".into(),
            name: "n".into(),
            arguments: "{}".into(),
        },
        owner: Owner::Client,
        kind: CallKind::Function,
        extra: extra.as_object().cloned().unwrap(),
    };
    let expected = json!({"id": "i", "type": "function",
        "function": {"name": "n", "arguments": "{}", "thought": 1}, "extra_content": {"a": 2}});
    assert_eq!(Value::Object(call.to_json()), expected);
}

#[test]
fn a_harmony_message_that_ends_twice_is_said_once() {
    let mut asked = settings(Mode::Loop);
    asked.text_calls.harmony = true;
    let mut filter = TextFilter::new(&asked);
    let begun = "<|channel|>commentary to=functions.a<|message|>{\"a\":";
    let mut pieces = filter.push(begun, &Tools);
    pieces.extend(filter.finish(&Tools));
    assert!(!pieces.is_empty(), "half a message is text");
    // A stream may end, and break off after that.
    assert!(filter.finish(&Tools).is_empty());
    let after = filter.push("more", &Tools);
    assert!(matches!(&after[..], [TextPiece::Text(text)] if text == "more"));
}
