use serde_json::{Value, json};

use super::*;
use crate::{
    agent::transcript::ToolAnswer,
    translate::stream::{CallKind, Owner, Round, RoundCall},
};
use toolway_protocol::{openai::FinishReason, tool::JsonObject};

const ARGUMENTS: &str = r#"{"key":"x"}"#;

/// A turn with the gateway's call `gate_ID` and the client's own calls of these ids.
fn parked(ids: &[&str], kind: CallKind) -> Arc<Parked> {
    let call = |id: &str, owner| RoundCall {
        call: ToolCall {
            id: id.to_owned(),
            name: "lookup".to_owned(),
            arguments: ARGUMENTS.to_owned(),
        },
        owner,
        kind,
        extra: JsonObject::new(),
    };
    let mut calls = vec![call(&format!("gate_{}", ids[0]), Owner::Gateway)];
    calls.extend(ids.iter().map(|id| call(id, Owner::Client)));
    let mut answers = vec![Some(ToolAnswer::text("ran".to_owned()))];
    answers.resize(calls.len(), None);
    let round = Round {
        content: None,
        reasoning: None,
        refusal: None,
        calls: Vec::new(),
        finish: FinishReason::ToolCalls,
        usage: None,
        extra: JsonObject::new(),
    };
    let mut transcript = Transcript::default();
    transcript.push(&round, &calls, answers, true);
    let mut cut_results = CutResults::default();
    cut_results.keep(ids[0].to_owned(), "full");
    Arc::new(Parked {
        transcript,
        cut_results,
        client_calls: calls[1..].iter().map(|call| call.call.clone()).collect(),
    })
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(ids: &[&str]) -> Value {
    let call = |id: &&str| json!({"id": id, "type": "function", "function": {"name": "lookup", "arguments": ARGUMENTS}});
    json!({"role": "assistant", "content": null, "tool_calls": ids.iter().map(call).collect::<Vec<_>>()})
}

fn tool(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": format!("own {id}")})
}

fn raw(messages: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(messages).unwrap()
}

/// Restores a conversation in which `one` and `two` were parked after the question `q`, and `three`
/// after `r`. `None` where nothing was put back; else each message's role and what it says or calls.
fn restored(messages: &[Value], kind: CallKind) -> Option<Vec<String>> {
    let after = |text: &str| question((&*raw(&json!([user(text)]))).into());
    let one_and_two = parked(&["one", "two"], kind);
    let three = parked(&["three"], kind);
    let turn = |question, parked: &Arc<Parked>| {
        let parked = parked.clone();
        vec![Found { question, parked }]
    };
    let found = HashMap::from([
        ("one".to_owned(), turn(after("q"), &one_and_two)),
        ("two".to_owned(), turn(after("q"), &one_and_two)),
        ("three".to_owned(), turn(after("r"), &three)),
    ]);
    let messages = raw(&messages.into());
    let restored = restore((&*messages).into(), &found, &mut |_| true).unwrap()?;
    let said = |message: &Value| {
        let ids = message["tool_calls"].as_array().map(|calls| {
            let ids: Vec<&str> = calls
                .iter()
                .filter_map(|call| call["id"].as_str())
                .collect();
            ids.join("+")
        });
        let text =
            ids.unwrap_or_else(|| message["content"].as_str().unwrap_or_default().to_owned());
        let text = if text.contains("cancelled") {
            "cancelled"
        } else {
            &text
        };
        format!("{} {text}", message["role"].as_str().unwrap())
    };
    let messages: Vec<Value> = serde_json::from_str(&restored.messages).unwrap();
    Some(messages.iter().map(said).collect())
}

#[track_caller]
fn check(messages: &[Value], expected: &[&str]) {
    let restored = restored(messages, CallKind::Function).expect("something is put back");
    assert_eq!(restored, expected);
}

#[track_caller]
fn check_untouched(messages: &[Value]) {
    assert_eq!(restored(messages, CallKind::Function), None);
}

#[test]
fn answers_in_another_order_get_the_order_of_the_calls() {
    let messages = [
        user("q"),
        assistant(&["one", "two"]),
        tool("two"),
        tool("one"),
    ];
    check(
        &messages,
        &[
            "user q",
            "assistant gate_one+one+two",
            "tool ran",
            "tool own one",
            "tool own two",
        ],
    );
}

#[test]
fn an_answer_that_is_missing_is_a_call_that_the_client_did_not_run() {
    let messages = [
        user("q"),
        assistant(&["one", "two"]),
        tool("two"),
        user("go on"),
    ];
    check(
        &messages,
        &[
            "user q",
            "assistant gate_one+one+two",
            "tool ran",
            "tool cancelled",
            "tool own two",
            "user go on",
        ],
    );
}

#[test]
fn several_parked_turns_of_one_conversation_are_all_put_back() {
    let messages = [
        user("q"),
        assistant(&["one", "two"]),
        tool("one"),
        tool("two"),
        json!({"role": "assistant", "content": "and?"}),
        user("r"),
        assistant(&["three"]),
        tool("three"),
    ];
    check(
        &messages,
        &[
            "user q",
            "assistant gate_one+one+two",
            "tool ran",
            "tool own one",
            "tool own two",
            "assistant and?",
            "user r",
            "assistant gate_three+three",
            "tool ran",
            "tool own three",
        ],
    );
}

#[test]
fn a_client_that_forgot_one_of_its_calls_is_helped_out() {
    let messages = [user("q"), assistant(&["two"]), tool("two")];
    check(
        &messages,
        &[
            "user q",
            "assistant gate_one+one+two",
            "tool ran",
            "tool cancelled",
            "tool own two",
        ],
    );
}

#[test]
fn one_message_for_each_call_is_one_turn() {
    let messages = [
        user("q"),
        assistant(&["one"]),
        tool("one"),
        assistant(&["two"]),
        tool("two"),
    ];
    check(
        &messages,
        &[
            "user q",
            "assistant gate_one+one+two",
            "tool ran",
            "tool own one",
            "tool own two",
        ],
    );
}

#[test]
fn messages_between_a_call_and_its_answer_move_behind_the_turn() {
    let messages = [
        user("q"),
        assistant(&["one", "two"]),
        json!({"role": "system", "content": "be quick"}),
        tool("one"),
        user("r"),
        tool("two"),
        user("last"),
    ];
    let expected = [
        "user q",
        "assistant gate_one+one+two",
        "tool ran",
        "tool own one",
        "tool own two",
        "system be quick",
        "user r",
        "user last",
    ];
    check(&messages, &expected);
}

#[test]
fn a_user_message_inside_a_turn_is_the_question_of_the_next_one() {
    let messages = [
        user("q"),
        assistant(&["one", "two"]),
        tool("one"),
        user("r"),
        tool("two"),
        assistant(&["three"]),
        tool("three"),
    ];
    let expected = [
        "user q",
        "assistant gate_one+one+two",
        "tool ran",
        "tool own one",
        "tool own two",
        "user r",
        "assistant gate_three+three",
        "tool ran",
        "tool own three",
    ];
    check(&messages, &expected);
}

#[test]
fn a_foreign_answer_among_its_own_stays_where_it_is() {
    let messages = [user("q"), assistant(&["one"]), tool("one"), tool("foreign")];
    let restored = restored(&messages, CallKind::Function).unwrap();
    assert_eq!(restored.last().unwrap(), "tool own foreign");
}

#[test]
fn another_conversation_with_the_same_ids_is_left_alone() {
    check_untouched(&[
        user("another question"),
        assistant(&["one", "two"]),
        tool("one"),
    ]);
    check_untouched(&[assistant(&["one", "two"]), tool("one")]);
    check_untouched(&[
        user("q"),
        user("r"),
        assistant(&["one", "two"]),
        tool("one"),
    ]);
}

#[test]
fn calls_that_were_changed_are_left_alone() {
    let with = |name: &str, arguments: &str| {
        let mut message = assistant(&["one"]);
        message["tool_calls"][0]["function"] = json!({"name": name, "arguments": arguments});
        [user("q"), message, tool("one")]
    };
    check_untouched(&with("lookup", r#"{"key":"y"}"#));
    check_untouched(&with("lookup", "broken {"));
    check_untouched(&with("look", ARGUMENTS));
    check_untouched(&[user("q"), assistant(&["one", "foreign"]), tool("one")]);
    assert!(restored(&with("lookup", r#"{ "key": "x" }"#), CallKind::Function).is_some());
}

#[test]
fn a_custom_tool_of_the_client_is_known_by_its_text() {
    let with = |input: &str| {
        let custom = json!({"name": "lookup", "input": input});
        let calls = json!([{"id": "one", "type": "custom", "custom": custom}]);
        let message = json!({"role": "assistant", "tool_calls": calls});
        restored(&[user("q"), message, tool("one")], CallKind::Custom)
    };
    assert!(with(ARGUMENTS).is_some());
    assert!(with("something else").is_none());
}

#[test]
fn messages_that_make_no_sense_are_left_alone() {
    check_untouched(&[json!(null), json!("x"), json!({"role": 5}), json!([])]);
    check_untouched(&[json!({"role": "assistant", "tool_calls": "x"})]);
    check_untouched(&[json!({"role": "assistant", "tool_calls": [{"id": "one"}]})]);
    check_untouched(&[
        user("q"),
        json!({"role": "assistant", "tool_calls": []}),
        tool("one"),
    ]);
}

/// The same messages with the mark of a parked turn in every id.
fn marked(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let mark = |id: &mut Value| *id = format!("{}{MARK}", id.as_str().unwrap()).into();
    for message in &mut messages {
        message.get_mut("tool_call_id").into_iter().for_each(mark);
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            mark(&mut call["id"]);
        }
    }
    messages
}

#[test]
fn the_mark_of_a_parked_turn_is_taken_off_when_it_is_put_back() {
    let messages = [
        user("q"),
        assistant(&["one", "two"]),
        tool("two"),
        tool("one"),
    ];
    check(
        &marked(&messages),
        &[
            "user q",
            "assistant gate_one+one+two",
            "tool ran",
            "tool own one",
            "tool own two",
        ],
    );
    let restored = restored(&marked(&messages[..2]), CallKind::Function);
    assert_eq!(restored.unwrap()[1], "assistant gate_one+one+two");
}

#[test]
fn a_parked_turn_that_is_gone_is_told_once_and_its_ids_are_the_models() {
    let lost = |id: &str| format!("tool own {id}\n\n{MISSING_NOTE}");
    let messages = [
        user("q"),
        assistant(&["lost", "too"]),
        tool("lost"),
        tool("too"),
        assistant(&["unmarked"]),
        tool("unmarked"),
        user("more"),
        assistant(&["again"]),
        tool("again"),
    ];
    let mut sent = marked(&messages);
    sent[4] = messages[4].clone();
    sent[5] = messages[5].clone();
    check(
        &sent,
        &[
            "user q",
            "assistant lost+too",
            &lost("lost"),
            "tool own too",
            "assistant unmarked",
            "tool own unmarked",
            "user more",
            "assistant again",
            &lost("again"),
        ],
    );
    // One that was parked after another question is as good as gone.
    let other = marked(&[user("r"), assistant(&["one"]), tool("one")]);
    check(&other, &["user r", "assistant one", &lost("one")]);
}

#[test]
fn the_note_about_a_lost_turn_goes_with_any_content() {
    let noted = |answer: &str| {
        let answer = RawValue::from_string(answer.to_owned()).unwrap();
        let mut edits = Edits::of(answer.get());
        add_note(&answer, &head(&answer), &mut edits);
        let noted: Value = serde_json::from_str(&edits.apply()).unwrap();
        noted["content"].clone()
    };
    let note = |content: Value| noted(&json!({"role": "tool", "content": content}).to_string());
    assert_eq!(note(json!("a")), format!("a\n\n{MISSING_NOTE}"));
    assert_eq!(note(json!("")), format!("\n\n{MISSING_NOTE}"));
    assert_eq!(note(Value::Null), MISSING_NOTE);
    assert_eq!(note(json!(1)), MISSING_NOTE);
    let part = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(
        note(json!([part("a")])),
        json!([part("a"), part(MISSING_NOTE)])
    );
    assert_eq!(note(json!([])), json!([part(MISSING_NOTE)]));
    assert_eq!(noted(r#"{ "role": "tool" }"#), MISSING_NOTE);
}

#[test]
fn only_the_ids_of_a_marked_history_change() {
    let found = HashMap::new();
    let restored = |messages: &str| {
        let messages = RawValue::from_string(messages.to_owned()).unwrap();
        let restored = restore((&*messages).into(), &found, &mut |_| true).unwrap();
        restored.unwrap().messages
    };
    let messages = r#"[ {"role":"assistant", "n": 1.0, "tool_calls":[{"id": "a-toolway", "x": "\u00e9"}] } , {"role":"user"}]"#;
    assert_eq!(restored(messages), messages.replace("a-toolway", "a"));
}

#[test]
fn of_the_turns_of_one_id_the_one_of_this_conversation_is_restored() {
    let messages = raw(&json!([user("r"), assistant(&["one"]), tool("one")]));
    let after = |text: &str| question((&*raw(&json!([user(text)]))).into());
    let newer = Found {
        question: after("q"),
        parked: parked(&["one"], CallKind::Custom),
    };
    let older = Found {
        question: after("r"),
        parked: parked(&["one"], CallKind::Function),
    };
    let found = HashMap::from([("one".to_owned(), vec![newer, older])]);
    let restored = restore((&*messages).into(), &found, &mut |_| true).unwrap();
    let messages = restored.unwrap().messages;
    assert!(messages.contains("gate_one") && messages.contains("own one"));
    assert!(messages.contains(r#""function""#), "{messages}");
}

#[test]
fn keys_are_the_first_ids_of_assistant_messages_without_their_marks() {
    let messages = raw(&json!(marked(&[
        user("q"),
        assistant(&["one", "two"]),
        tool("one"),
        assistant(&["three"]),
    ])));
    let asked = question((&*raw(&json!([user("q")]))).into());
    let key = |id: &str| Key {
        id: id.to_owned(),
        question: asked,
    };
    assert_eq!(keys((&*messages).into()), [key("one"), key("three")]);
}

#[test]
fn what_was_parked_is_the_same_after_it_was_stored() {
    let parked = parked(&["one", "two"], CallKind::Custom);
    let stored = serde_json::to_string(&*parked).unwrap();
    let read: Parked = serde_json::from_str(&stored).unwrap();
    assert_eq!(read.client_calls, parked.client_calls);
    assert_eq!(read.transcript.messages(), parked.transcript.messages());
    assert_eq!(serde_json::to_string(&read).unwrap(), stored);
    assert_eq!(read.cut_results.bytes(), parked.cut_results.bytes());
}

#[test]
fn arguments_that_a_client_keeps_as_values_are_the_same() {
    let mut history = [
        user("q"),
        assistant(&["one", "two"]),
        tool("one"),
        tool("two"),
    ];
    let calls = &mut history[1]["tool_calls"];
    calls[0]["function"]["arguments"] = serde_json::from_str(ARGUMENTS).unwrap();
    let expected = [
        "user q",
        "assistant gate_one+one+two",
        "tool ran",
        "tool own one",
        "tool own two",
    ];
    check(&history, &expected);
}

#[test]
fn an_id_loses_its_mark_whatever_its_call_looks_like() {
    let odd = r#"[{"role":"assistant","tool_calls":[7,{"id":"a-toolway","function":{"name":"f","arguments":null}},{"id":"b-toolway","function":3}]}]"#;
    let messages = RawValue::from_string(odd.to_owned()).unwrap();
    let restored = restore((&*messages).into(), &HashMap::new(), &mut |_| true).unwrap();
    assert_eq!(restored.unwrap().messages, odd.replace("-toolway", ""));
}

#[test]
fn a_turn_that_comes_again_and_again_is_restored_once() {
    let once = [user("q"), assistant(&["one"]), tool("one")];
    let mut messages = once.to_vec();
    messages.extend_from_slice(&once);
    let expected = [
        "user q",
        "assistant gate_one+one+two",
        "tool ran",
        "tool own one",
        "tool cancelled",
        "user q",
        "assistant one",
        "tool own one",
    ];
    check(&messages, &expected);
    // Without a user message between them it is not taken for more of the same turn.
    messages.remove(3);
    check(&messages, &[&expected[..5], &expected[6..]].concat());
}

#[test]
fn of_members_that_come_twice_the_last_counts_and_no_id_keeps_its_mark() {
    let found = HashMap::new();
    let restored = |messages: &str| {
        let messages = RawValue::from_string(messages.to_owned()).unwrap();
        let restored = restore((&*messages).into(), &found, &mut |_| true).unwrap();
        restored.unwrap().messages
    };
    let marked = r#"[{"role":"tool","tool_call_id":"a-toolway","content":"x","content":"y","tool_call_id":"b-toolway"}]"#;
    assert_eq!(restored(marked), marked.replace("-toolway", ""));
    let marked = r#"[{"role":"user","role":"assistant","tool_calls":[{"x":1},{"id":"a\u002dtoolway"},{"id":"b-toolway"}]}]"#;
    let expected = marked.replace("-toolway", "").replace("\\u002dtoolway", "");
    assert_eq!(restored(marked), expected);
}

#[test]
fn a_history_that_the_caller_has_no_room_for_is_not_restored() {
    let messages = raw(&json!(marked(&[user("q"), assistant(&["a"]), tool("a")])));
    let asked = std::cell::Cell::new(0);
    let mut reserve = |bytes| {
        asked.set(bytes);
        false
    };
    let restored = restore((&*messages).into(), &HashMap::new(), &mut reserve);
    assert_eq!(restored.unwrap_err(), NoRoom);
    assert!(asked.get() > messages.get().len());
}

#[test]
fn the_mark_is_left_alone_wherever_it_is_no_id() {
    check_untouched(&[user("my id ends in -toolway"), json!(["tool", "x-toolway"])]);
    let named = json!({"role": "tool", "tool_call_id": "x", "content": "x-toolway"});
    check_untouched(&[user("q"), named]);
}

#[test]
fn a_question_is_the_same_however_it_is_spaced() {
    let hash = |message: &str| {
        let messages = RawValue::from_string(format!("[{message}]")).unwrap();
        question((&*messages).into())
    };
    let asked = hash(r#"{"role":"user","content":[{"type":"text"}]}"#);
    assert_eq!(
        asked,
        hash(r#"{ "content": [ {"type": "text"} ], "role": "user" }"#)
    );
    assert_ne!(
        asked,
        hash(r#"{"role":"user","content":[{"type":"image"}]}"#)
    );
    assert_ne!(
        asked,
        hash(r#"{"role":"user","content":[{"type":"te xt"}]}"#)
    );
    assert_eq!(hash(""), hash("{}"));
    let said = |json: &str| hash(&format!(r#"{{"role":"user","content":{json}}}"#));
    assert_eq!(said(r#""é \\\" b""#), said(r#""\u00e9 \\\" b""#));
    assert_ne!(said(r#""a b""#), said(r#""ab""#));
    assert_ne!(said(r#"["a","b"]"#), said(r#"["a,b"]"#));
}

#[test]
fn only_messages_that_name_calls_may_be_concerned() {
    let may = |messages: &Value| may_concern((&*raw(messages)).into());
    assert!(may(&json!([user("q"), assistant(&["one"])])));
    assert!(!may(&json!([user("q")])));
}
