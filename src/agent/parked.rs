//! Mixed turns: what the gateway ran is parked while the client runs its own calls, and put back in its place
//! when the client comes with its answers.
//!
//! The client's history holds an assistant message with its own calls only. [`restore`] finds that message by
//! the ids of the calls and replaces it, and the tool messages after it, by everything that really happened.
//! What was parked and is gone, or belongs to another conversation, is left out; the chat goes on without it. Where
//! the ids of the calls carry the [`MARK`] of a parked turn, the model is told that something is missing.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    openai::request::Raw,
    tool::{JsonObject, ToolCall},
    translate::{calls, ids::MARK},
};

use super::{kept::Kept, transcript::Transcript};

/// What the model is told where a parked turn is gone.
const MISSING: &str = "[toolway: in the same turn as this call, other tools were called by toolway. Their results \
                       are missing, and the calls may have run. Check before you call them again.]";

/// What happened in a request up to the calls that the client runs itself.
#[derive(Clone, Debug)]
pub struct Parked {
    /// All turns, the mixed one last.
    pub transcript: Transcript,
    /// Results that were cut.
    pub kept: Kept,
    /// The client's own calls; it was shown their ids with the [`MARK`], or without it where it was not known yet
    /// that there is something to park.
    pub client_calls: Vec<ToolCall>,
}

/// A conversation with everything parked put back.
#[derive(Debug)]
pub struct Restored {
    /// The messages, with commas between them.
    pub messages: String,
    /// Cut results that the model may read on in.
    pub kept: Kept,
}

/// What was parked under the id of a call.
#[derive(Clone, Debug)]
pub struct Found {
    /// The print of the question that it was parked after, from [`question`].
    pub question: u64,
    /// What was parked.
    pub parked: Arc<Parked>,
}

/// What a parked turn is found by, besides the ids of its calls: a print of the last user message before it.
/// Upstreams that count their ids from `call_1` must not mix up two conversations.
pub fn question(messages: &[&RawValue]) -> u64 {
    let is_user = |message: &&&RawValue| head(message).role == "user";
    print(messages.iter().rev().find(is_user).copied())
}

/// A client's call is named somewhere in these messages, so that something may have to be put back. A quick
/// look, for most conversations have no calls at all.
pub fn may_concern(messages: Raw<'_>) -> bool {
    memchr::memmem::find(messages.get().as_bytes(), b"\"tool_calls\"").is_some()
}

/// A client's call has the [`MARK`] of a parked turn. The same quick look.
pub fn has_marks(messages: Raw<'_>) -> bool {
    memchr::memmem::find(messages.get().as_bytes(), MARK.as_bytes()).is_some()
}

/// Puts back what was parked, and takes the [`MARK`] off the ids. `None` when there is nothing to do, so that the
/// messages stay as they are.
///
/// `find` looks up what was parked under the id of a call.
pub fn restore(messages: &[&RawValue], find: &dyn Fn(&str) -> Option<Found>) -> Option<Restored> {
    let unmarked: Vec<Option<Box<RawValue>>> =
        messages.iter().map(|it| without_marks(it)).collect();
    let had_marks = unmarked.iter().any(Option::is_some);
    let both = messages.iter().zip(&unmarked);
    let mut rest = both
        .map(|(&message, unmarked)| (unmarked.as_deref().unwrap_or(message), unmarked.is_some()))
        .peekable();
    let mut kept = Kept::default();
    let mut written: Vec<String> = Vec::new();
    let mut asked = None;
    let mut found_any = false;
    let mut is_missing = false;
    while let Some((message, was_marked)) = rest.next() {
        let head = head(message);
        if head.role == "user" {
            asked = Some(message);
        }
        let Some(parked) = parked_for(&head, asked, find) else {
            if is_missing && was_marked && head.role == "tool" {
                written.push(with_note(message));
                is_missing = false;
            } else {
                written.push(message.get().to_owned());
                is_missing =
                    (is_missing && head.role == "tool") || (was_marked && head.role == "assistant");
            }
            continue;
        };
        found_any = true;
        let mut answers = HashMap::new();
        while let Some((next, _)) = rest.peek() {
            if let Some(id) = own_answer(next, &parked) {
                answers.insert(id, next.get());
            } else if !goes_on(&self::head(next), &parked) {
                break;
            }
            rest.next();
        }
        written.push(
            parked
                .transcript
                .messages_with(|id| answers.get(id).map(|&answer| answer.to_owned())),
        );
        kept.keep_all(&parked.kept);
    }
    (found_any || had_marks).then(|| Restored {
        messages: written.join(","),
        kept,
    })
}

/// The message with the ids that the model gave its calls; `None` where it has no id with a mark.
fn without_marks(message: &RawValue) -> Option<Box<RawValue>> {
    memchr::memmem::find(message.get().as_bytes(), MARK.as_bytes())?;
    if !matches!(&*head(message).role, "tool" | "assistant") {
        return None;
    }
    let mut message: Value = serde_json::from_str(message.get()).ok()?;
    let mut had_mark = false;
    let mut unmark = |id: Option<&mut Value>| {
        if let Some(Value::String(id)) = id
            && let Some(own) = id.strip_suffix(MARK)
        {
            *id = own.to_owned();
            had_mark = true;
        }
    };
    if message["role"] == "tool" {
        unmark(message.get_mut("tool_call_id"));
    } else if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        calls.iter_mut().for_each(|call| unmark(call.get_mut("id")));
    }
    let unmarked = had_mark.then(|| serde_json::value::to_raw_value(&message))?;
    unmarked.ok()
}

/// A client's answer to its call, with a note that others are missing.
fn with_note(answer: &RawValue) -> String {
    let mut answer: JsonObject = serde_json::from_str(answer.get()).unwrap_or_default();
    match answer.get_mut("content") {
        Some(Value::String(text)) => *text = format!("{text}\n\n{MISSING}"),
        Some(Value::Array(parts)) => parts.push(json!({"type": "text", "text": MISSING})),
        _ => {
            answer.insert("content".to_owned(), MISSING.into());
        }
    }
    Value::Object(answer).to_string()
}

/// As much of a message as matters here; what does not fit is left to the upstream to refuse.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
    tool_call_id: Option<String>,
}

/// A call as the client shows it.
#[derive(Deserialize)]
struct Shown {
    id: String,
    function: Option<ShownBody>,
    custom: Option<ShownBody>,
}

#[derive(Deserialize)]
struct ShownBody {
    name: String,
    #[serde(alias = "input")]
    arguments: String,
}

fn head(message: &RawValue) -> Head<'_> {
    serde_json::from_str(message.get()).unwrap_or_default()
}

/// A print of a message's content, the same however the client spaces its JSON.
fn print(message: Option<&RawValue>) -> u64 {
    let content = message.and_then(|message| head(message).content);
    let content = content.map(|content| {
        serde_json::from_str::<Value>(content.get())
            .unwrap_or_default()
            .to_string()
    });
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

fn parked_for(
    head: &Head<'_>,
    asked: Option<&RawValue>,
    find: &dyn Fn(&str) -> Option<Found>,
) -> Option<Arc<Parked>> {
    let found = find(&shown(head).first()?.id)?;
    let is_it = goes_on(head, &found.parked) && found.question == print(asked);
    is_it.then_some(found.parked)
}

/// The calls of an assistant message.
fn shown(head: &Head<'_>) -> Vec<Shown> {
    let calls = head.tool_calls.filter(|_| head.role == "assistant");
    calls
        .and_then(|calls| serde_json::from_str(calls.get()).ok())
        .unwrap_or_default()
}

/// An assistant message with calls of this turn and no others. Some clients write one message for each call.
fn goes_on(head: &Head<'_>, parked: &Parked) -> bool {
    let shown = shown(head);
    let is_own = |call: &Shown| parked.client_calls.iter().any(|own| is_same(call, own));
    !shown.is_empty() && shown.iter().all(is_own)
}

/// A client may have parsed the arguments and written them anew.
fn is_same(shown: &Shown, own: &ToolCall) -> bool {
    let Some(body) = shown.function.as_ref().or(shown.custom.as_ref()) else {
        return false;
    };
    let parsed = |text: &str| calls::parse_arguments(text).ok();
    let says_the_same = || {
        let own = parsed(&own.arguments);
        own.is_some() && own == parsed(&body.arguments)
    };
    shown.id == own.id
        && body.name == own.name
        && (body.arguments == own.arguments || says_the_same())
}

fn own_answer(message: &RawValue, parked: &Parked) -> Option<String> {
    let head = head(message);
    let id = head.tool_call_id.filter(|_| head.role == "tool")?;
    let is_own = parked.client_calls.iter().any(|call| call.id == id);
    is_own.then_some(id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        agent::transcript::Answer,
        openai::FinishReason,
        translate::stream::{Call, CallKind, Owner, Round},
    };

    const ARGUMENTS: &str = r#"{"key":"x"}"#;

    /// A turn with the gateway's call `gate_ID` and the client's own calls of these ids.
    fn parked(ids: &[&str], kind: CallKind) -> Arc<Parked> {
        let call = |id: &str, owner| Call {
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
        let mut answers = vec![Some(Answer::text("ran".to_owned()))];
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
        let mut kept = Kept::default();
        kept.keep(ids[0].to_owned(), "full");
        Arc::new(Parked {
            transcript,
            kept,
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

    fn raw(messages: &[Value]) -> Vec<Box<RawValue>> {
        let raw = |message: &Value| serde_json::value::to_raw_value(message).unwrap();
        messages.iter().map(raw).collect()
    }

    /// Restores a conversation in which `one` and `two` were parked after the question `q`, and `three`
    /// after `r`. `None` where nothing was put back; else each message's role and what it says or calls.
    fn restored(messages: &[Value], kind: CallKind) -> Option<Vec<String>> {
        let after = |text: &str| {
            let asked = raw(&[user(text)]);
            question(&[&asked[0]])
        };
        let one_and_two = parked(&["one", "two"], kind);
        let three = parked(&["three"], kind);
        let find = |id: &str| {
            let (question, parked) = match id {
                "one" | "two" => (after("q"), &one_and_two),
                "three" => (after("r"), &three),
                _ => return None,
            };
            let parked = parked.clone();
            Some(Found { question, parked })
        };
        let messages = raw(messages);
        let messages: Vec<&RawValue> = messages.iter().map(|message| &**message).collect();
        let restored = restore(&messages, &find)?;
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
        let messages: Vec<Value> =
            serde_json::from_str(&format!("[{}]", restored.messages)).unwrap();
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
        let lost = |id: &str| format!("tool own {id}\n\n{MISSING}");
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
        let note = |content: Value| {
            let answer = json!({"role": "tool", "tool_call_id": "x", "content": content});
            let raw = serde_json::value::to_raw_value(&answer).unwrap();
            let noted: Value = serde_json::from_str(&with_note(&raw)).unwrap();
            noted["content"].clone()
        };
        assert_eq!(note(json!("a")), format!("a\n\n{MISSING}"));
        assert_eq!(note(Value::Null), MISSING);
        let part = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(note(json!([part("a")])), json!([part("a"), part(MISSING)]));
    }

    #[test]
    fn the_mark_is_left_alone_wherever_it_is_no_id() {
        check_untouched(&[user("my id ends in -toolway"), json!(["tool", "x-toolway"])]);
        let named = json!({"role": "tool", "tool_call_id": "x", "content": "x-toolway"});
        check_untouched(&[user("q"), named]);
    }

    #[test]
    fn a_question_is_the_same_however_it_is_spaced() {
        let print = |text: &str| {
            let message = RawValue::from_string(text.to_owned()).unwrap();
            question(&[&message])
        };
        let asked = print(r#"{"role":"user","content":[{"type":"text"}]}"#);
        assert_eq!(
            asked,
            print(r#"{ "content": [ {"type": "text"} ], "role": "user" }"#)
        );
        assert_ne!(
            asked,
            print(r#"{"role":"user","content":[{"type":"image"}]}"#)
        );
        assert_eq!(question(&[]), print("{}"));
    }

    #[test]
    fn only_messages_that_name_calls_may_be_concerned() {
        let may = |messages: &Value| {
            may_concern((&*serde_json::value::to_raw_value(messages).unwrap()).into())
        };
        assert!(may(&json!([user("q"), assistant(&["one"])])));
        assert!(!may(&json!([user("q")])));
    }
}
