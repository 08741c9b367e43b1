//! Mixed turns: what the gateway ran is parked while the client runs its own calls, and put back in its place
//! when the client comes with its answers.
//!
//! The client's history holds an assistant message with its own calls only. [`restore`] finds that message by
//! the ids of the calls and replaces it, and the tool messages after it, by everything that really happened.
//! What was parked and is gone, or belongs to another conversation, is left out; the chat goes on without it.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{tool::ToolCall, translate::calls};

use super::{kept::Kept, transcript::Transcript};

/// What happened in a request up to the calls that the client runs itself.
#[derive(Clone, Debug)]
pub struct Parked {
    /// All turns, the mixed one last.
    pub transcript: Transcript,
    /// Results that were cut.
    pub kept: Kept,
    /// The client's own calls, as it was shown them.
    pub client_calls: Vec<ToolCall>,
}

/// A conversation with everything parked put back.
#[derive(Debug, Default)]
pub struct Restored {
    /// The messages, with commas between them.
    pub messages: String,
    /// Cut results that the model may read on in.
    pub kept: Kept,
}

/// What a parked turn is found by, besides the ids of its calls: a print of the last user message before it.
/// Upstreams that count their ids from `call_1` must not mix up two conversations.
pub fn question(messages: &[&RawValue]) -> u64 {
    let mut latest_first = messages.iter().rev().map(|message| head(message));
    print(latest_first.find(|head| head.role == "user"))
}

/// Puts back what was parked. `None` when there is nothing to put back, so that the messages stay as they are.
///
/// `find` looks up what was parked under the id of a call, for the given print of the question.
pub fn restore(
    messages: &[&RawValue],
    find: &dyn Fn(&str, u64) -> Option<Arc<Parked>>,
) -> Option<Restored> {
    let mut restored = Restored::default();
    let mut written: Vec<String> = Vec::new();
    let mut asked = print(None);
    let mut found_any = false;
    let mut rest = messages.iter().peekable();
    while let Some(message) = rest.next() {
        let head = head(message);
        if head.role == "user" {
            asked = print(Some(head));
            written.push(message.get().to_owned());
            continue;
        }
        let Some(parked) = parked_for(&head, asked, find) else {
            written.push(message.get().to_owned());
            continue;
        };
        found_any = true;
        let mut answers = HashMap::new();
        while let Some(next) = rest.peek() {
            if let Some(id) = own_answer(next, &parked) {
                answers.insert(id, next.get().to_owned());
            } else if !goes_on(&self::head(next), &parked) {
                break;
            }
            rest.next();
        }
        written.push(
            parked
                .transcript
                .messages_with(|id| answers.get(id).cloned()),
        );
        restored.kept.keep_all(&parked.kept);
    }
    restored.messages = written.join(",");
    found_any.then_some(restored)
}

/// As much of a message as matters here; what does not fit is left to the upstream to refuse.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head<'a> {
    role: String,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    tool_calls: Option<Vec<HeadCall>>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct HeadCall {
    id: String,
    function: Option<HeadBody>,
    custom: Option<HeadBody>,
}

#[derive(Deserialize)]
struct HeadBody {
    name: String,
    #[serde(alias = "input")]
    arguments: String,
}

fn head(message: &RawValue) -> Head<'_> {
    serde_json::from_str(message.get()).unwrap_or_default()
}

fn print(head: Option<Head<'_>>) -> u64 {
    let content = head.and_then(|head| head.content).map(|content| {
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
    asked: u64,
    find: &dyn Fn(&str, u64) -> Option<Arc<Parked>>,
) -> Option<Arc<Parked>> {
    let shown = head.tool_calls.as_ref()?;
    let parked = find(&shown.first()?.id, asked)?;
    goes_on(head, &parked).then_some(parked)
}

/// An assistant message with calls of this turn and no others. Some clients write one message for each call.
fn goes_on(head: &Head<'_>, parked: &Parked) -> bool {
    let is_own = |call: &HeadCall| parked.client_calls.iter().any(|own| is_same(call, own));
    let shown = head.tool_calls.as_deref().unwrap_or_default();
    head.role == "assistant" && !shown.is_empty() && shown.iter().all(is_own)
}

/// Clients write arguments anew; the input of a custom tool is no JSON and stays as it is.
fn is_same(shown: &HeadCall, own: &ToolCall) -> bool {
    let says_the_same = |one: &str, other: &str| match calls::parse_arguments(one) {
        Ok(arguments) => calls::parse_arguments(other).is_ok_and(|others| others == arguments),
        Err(_) => one == other,
    };
    let body = shown.function.as_ref().or(shown.custom.as_ref());
    shown.id == own.id
        && body.is_some_and(|body| {
            body.name == own.name && says_the_same(&body.arguments, &own.arguments)
        })
}

fn own_answer(message: &RawValue, parked: &Parked) -> Option<String> {
    let head = head(message);
    let id = head.tool_call_id.filter(|_| head.role == "tool")?;
    parked
        .client_calls
        .iter()
        .any(|call| call.id == id)
        .then_some(id)
}
