use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::Value;

use super::{
    super::{Summary, mend_closely, read, write},
    *,
};
use crate::translate::{
    ids::Ids,
    stream::{Known, Mode, Owner},
};

const CLEAN: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3},"x":[1]}"#;

fn settings() -> Settings {
    Settings {
        mode: Mode::Loop,
        text_calls: TextCalls::default(),
        think_tags: false,
        skip_invalid_events: false,
        include_usage: false,
        seed: 1,
        created: 1,
        model: "m".into(),
    }
}

#[track_caller]
fn check(from: &str, to: &str, clean: bool, whole: bool) {
    let body = CLEAN.replace(from, to);
    assert!(from.is_empty() || body != CLEAN, "{from} is in the body");
    assert_eq!(is_clean(body.as_bytes(), &settings()), clean, "{body}");
    let end = final_answer(body.as_bytes(), &settings());
    assert_eq!(end.is_some(), whole, "{body}");
}

#[test]
fn what_keeps_to_the_contract_needs_no_second_look() {
    check("", "", true, true);
    check(r#""hi""#, r#""h\u00e9\n""#, true, true);
    check(r#""stop""#, r#""length""#, true, true);
    check(r#"{"role""#, r#"{"annotations":[],"role""#, true, true);
}

#[test]
fn an_answer_that_lacks_what_clients_may_ask_for_is_not_the_whole_of_a_loop() {
    check(r#","refusal":null"#, "", true, false);
    check(r#""refusal":null"#, r#""refusal":"""#, true, false);
    check(r#""logprobs":null,"#, "", true, false);
    check(r#""content":"hi""#, r#""content":null"#, true, false);
    check(r#""index":0"#, r#""index":1"#, true, false);
    let long = format!("{:?}", "x".repeat(MAX_ROUND_BYTES));
    check(r#""hi""#, &long, true, false);
    check(r#""usage":{"#, r#""counts":{"#, true, false);
}

#[test]
fn what_breaks_the_contract_is_looked_at_closely() {
    for (from, to) in [
        (r#""id":"c""#, r#""id":null"#),
        (r#""created":1"#, r#""created":1.5"#),
        (r#""created":1"#, r#""created":18446744073709551616"#),
        (r#""index":0"#, r#""index":0,"delta":null"#),
        (r#""x":[1]"#, r#""type":"error""#),
        (r#""chat.completion""#, r#""""#),
        (r#""role":"assistant""#, r#""role":null"#),
        (r#""content":"hi""#, r#""content":[]"#),
        (r#""hi""#, r#""\ud83d""#),
        (r#""stop""#, r#""tool_calls""#),
        (r#""stop""#, r#""eos""#),
        (r#""stop""#, "null"),
        (r#"{"role""#, r#"{"tool_calls":[],"role""#),
        (r#"{"role""#, r#"{"thoughts":"x","role""#),
        (r#""x":[1]"#, r#""error":{}"#),
        (r#""x":[1]"#, r#""x":[1"#),
        (r#""total_tokens":3"#, r#""total_tokens":null"#),
    ] {
        check(from, to, false, false);
    }
}

#[test]
fn text_that_may_hold_calls_or_thoughts_is_read() {
    let mut reading = settings();
    reading.think_tags = true;
    assert!(!is_clean(CLEAN.as_bytes(), &reading));
}

/// No tool is known.
struct Nothing;

impl Known for Nothing {
    fn owner(&self, _: &str) -> Owner {
        Owner::Gateway
    }
    fn claims(&self, _: &str) -> bool {
        true
    }
    fn is_offered(&self, _: &str) -> bool {
        false
    }
    fn parameters(&self, _: &str) -> Option<Value> {
        None
    }
}

const TEXTS: &[&str] = &[
    r#""a""#,
    r#""""#,
    "null",
    "1",
    r#""\u00e9\n""#,
    r#""\ud83d\ude00""#,
    r#""\ud83d""#,
    "[]",
    r#"[{"type":"text","text":"x"}]"#,
    "{}",
];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "1.5",
    r#""1""#,
    "null",
    "1e3",
    "18446744073709551616",
];
const ODDITIES: &[&str] = &[
    "null",
    "[]",
    "{}",
    r#""""#,
    "false",
    r#"[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]"#,
    r#"{"name":"f","arguments":"{}"}"#,
];

/// A member in its first form, more seldom in another, or not at all.
fn member(name: &'static str, forms: &[&'static str]) -> impl Strategy<Value = String> + use<> {
    let written = move |form| format!(",\"{name}\":{form}");
    let any = select(forms.to_vec()).prop_map(written);
    prop_oneof![20 => Just(written(forms[0])), 2 => any, 1 => Just(String::new())]
}

/// A member in any form, but seldom there.
fn stray(name: &'static str, forms: &[&'static str]) -> impl Strategy<Value = String> + use<> {
    let any = select(forms.to_vec()).prop_map(move |form| format!(",\"{name}\":{form}"));
    prop_oneof![20 => Just(String::new()), 1 => any]
}

/// An object of members, each of which is written with a comma before it.
fn object(members: &str) -> String {
    format!("{{{}}}", members.trim_start_matches(','))
}

fn message() -> impl Strategy<Value = String> {
    let usual = (
        member("role", &[r#""assistant""#, "null", r#""""#, r#""user""#]),
        member("content", TEXTS),
        member("refusal", &["null", r#""no""#, r#""""#, "1"]),
    );
    let strays = (
        stray("reasoning_content", TEXTS),
        stray("reasoning", TEXTS),
        stray("annotations", ODDITIES),
        stray("audio", ODDITIES),
        stray("tool_calls", ODDITIES),
        stray("function_call", ODDITIES),
        stray("x", TEXTS),
    );
    (usual, strays).prop_map(|((role, content, refusal), (a, b, c, d, e, f, g))| {
        object(&[role, content, refusal, a, b, c, d, e, f, g].concat())
    })
}

fn choice() -> impl Strategy<Value = String> {
    let reasons = &[
        r#""stop""#,
        r#""length""#,
        r#""tool_calls""#,
        r#""eos""#,
        r#""error""#,
        r#""""#,
        "null",
    ];
    let members = (
        member("index", NUMBERS),
        message().prop_map(|message| format!(",\"message\":{message}")),
        member(
            "logprobs",
            &["null", r#"{"content":[],"refusal":null}"#, "{}"],
        ),
        member("finish_reason", reasons),
        stray("delta", ODDITIES),
        stray("x", TEXTS),
    );
    members.prop_map(|(a, b, c, d, e, f)| object(&[a, b, c, d, e, f].concat()))
}

/// A body that may be clean, or may be broken in any place.
fn body() -> impl Strategy<Value = String> {
    let usage = (
        member("prompt_tokens", NUMBERS),
        member("completion_tokens", NUMBERS),
        member("total_tokens", NUMBERS),
        stray("prompt_tokens_details", ODDITIES),
    );
    let usage =
        usage.prop_map(|(a, b, c, d)| format!(",\"usage\":{}", object(&[a, b, c, d].concat())));
    let choices = prop_oneof![10 => vec(choice(), 1), 1 => vec(choice(), 0..3)];
    let members = (
        member("id", TEXTS),
        member(
            "object",
            &[
                r#""chat.completion""#,
                r#""chat.completion.chunk""#,
                r#""error""#,
                "null",
            ],
        ),
        member("created", NUMBERS),
        member("model", TEXTS),
        choices.prop_map(|choices| format!(",\"choices\":[{}]", choices.join(","))),
        prop_oneof![4 => usage, 1 => Just(String::new()), 1 => Just(r#","usage":null"#.to_owned())],
        stray("error", ODDITIES),
        stray("type", &[r#""error""#, "null"]),
        stray("detail", TEXTS),
    );
    let ends = select(vec!["", "", "", "\n", " x"]);
    let begins = select(vec!["", "", "", " ", "\u{feff}"]);
    (begins, members, ends).prop_map(|(begin, (a, b, c, d, e, f, g, h, i), end)| {
        format!(
            "{begin}{}{end}",
            object(&[a, b, c, d, e, f, g, h, i].concat())
        )
    })
}

/// What the loop would have made of a body that is the whole answer.
fn written_anew(body: &[u8]) -> Value {
    let read = read(body, &settings(), &Nothing, &mut Ids::new(1)).unwrap();
    let mut said = Summary::default();
    said.add(&read.round);
    said.add_choice(&read.choice);
    let round = read.round;
    Value::Object(write(
        read.envelope,
        &said,
        &round.calls,
        round.finish,
        round.usage,
    ))
}

/// Without what says nothing: nulls, empty thoughts, and the same thoughts under a second name.
fn without_silence(body: &[u8]) -> Value {
    let mut body: Value = serde_json::from_slice(body).unwrap();
    if let Some(message) = body["choices"][0]["message"].as_object_mut() {
        let is_thought = |name: &str| name.starts_with("reasoning");
        message.retain(|name, value| {
            let is_silent = value.is_null() || (is_thought(name) && *value == "");
            name == "refusal" || !is_silent
        });
        let mut has_thought = false;
        message.retain(|name, _| !is_thought(name) || !std::mem::replace(&mut has_thought, true));
    }
    body
}

proptest! {
    #[test]
    fn a_closer_look_finds_nothing_to_mend_in_what_is_clean(body in body()) {
        let body = body.as_bytes();
        if is_clean(body, &settings()) {
            let mended = mend_closely(body, &settings(), &Nothing, &mut Ids::new(1)).unwrap();
            prop_assert_eq!(String::from_utf8_lossy(&mended), String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn what_is_the_whole_of_a_loop_says_what_the_loop_would_have_said(body in body()) {
        let body = body.as_bytes();
        if final_answer(body, &settings()).is_some() {
            prop_assert_eq!(without_silence(body), written_anew(body));
        }
    }
}
