//! Mixed turns: what the gateway ran is parked while the client runs its own calls, and is restored when the client
//! sends the results of its calls.
//!
//! The client's history holds an assistant message with its own calls only. [`restore`] finds that message by the ids
//! of the calls and replaces it, and the tool messages after it, with all calls of the turn and their results. What
//! was parked and is gone, or belongs to another conversation, is left out; the chat continues without it. Where the
//! ids of the calls carry the [`MARK`] of a parked turn, the model receives a note that results are missing.
//!
//! The history is edited as text: of a history of many megabytes no value is built but the one result.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hasher,
    sync::{Arc, LazyLock},
};

use memchr::{memchr, memchr2, memmem::Finder};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use siphasher::sip::SipHasher13;

use crate::translate::{
    calls,
    ids::{MARK, MISSING_NOTE},
};
use toolway_protocol::{
    openai::request::{JsonString, Raw, messages_of},
    tool::ToolCall,
};

use self::edits::Edits;
use super::{cut_results::CutResults, transcript::Transcript};

mod edits;
#[cfg(test)]
mod tests;

/// How often a parked turn is compared with messages that have the ids of its calls, in one conversation.
const MAX_TRIES: usize = 4;

/// Most ids that [`keys`] gives.
const MAX_KEYS: usize = 4096;

/// What happened in a request up to the calls that the client runs itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Parked {
    /// All turns, the mixed one last.
    pub transcript: Transcript,
    /// Results that were cut.
    pub cut_results: CutResults,
    /// The client's own calls. The client saw their ids with the [`MARK`], or without it where the call was streamed
    /// before the first call of the gateway.
    pub client_calls: Vec<ToolCall>,
}

/// A conversation with every parked turn restored.
#[derive(Debug)]
pub struct Restored {
    /// The messages: a JSON array.
    pub messages: String,
    /// Cut results that the model may continue to read.
    pub cut_results: CutResults,
}

/// The caller has no room for a restored conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// What was parked under the id of a call.
#[derive(Clone, Debug)]
pub struct Found {
    /// The hash of the user message that it was parked after, from [`question`].
    pub question: u64,
    /// What was parked.
    pub parked: Arc<Parked>,
}

/// What a parked turn is found by, besides the ids of its calls: a hash of the last user message before it.
/// Upstreams that count their ids from `call_1` must not mix up two conversations.
pub fn question(messages: Raw<'_>) -> u64 {
    let messages = messages_of(messages);
    hash(messages.into_iter().rev().find(|it| is_of_user(it)))
}

/// What is looked for in every chat. Made once, since that takes longer than to search a short one.
static CALLS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"tool_calls\""));
static MARKS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARK));

/// Some assistant message has calls, so that there may be a turn to restore. A quick look: most conversations have
/// no calls at all.
pub fn may_concern(messages: Raw<'_>) -> bool {
    CALLS.find(messages.get().as_bytes()).is_some()
}

/// A client's call has the [`MARK`] of a parked turn. The same quick look.
pub fn has_marks(messages: Raw<'_>) -> bool {
    MARKS.find(messages.get().as_bytes()).is_some()
}

/// What a turn may be parked under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The id of a client's call, without the [`MARK`].
    pub id: String,
    /// See [`Found::question`].
    pub question: u64,
}

/// What turns of this conversation may be parked under: the first call of each assistant message, with the user message
/// before it. At most 4,096 keys, of the last messages.
pub fn keys(messages: Raw<'_>) -> Vec<Key> {
    let mut keys = VecDeque::new();
    let mut asked = LastUserMessage::default();
    for message in messages_of(messages) {
        let head = head(message);
        if head.role == "user" {
            asked = LastUserMessage::of(message);
        }
        if let Some(id) = first_id(&head) {
            if keys.len() == MAX_KEYS {
                keys.pop_front();
            }
            keys.push_back(Key {
                id: own_id(id.get()).into_owned(),
                question: asked.hash(),
            });
        }
    }
    keys.into()
}

/// The last user message so far, and its hash once it is known.
#[derive(Default)]
struct LastUserMessage<'a> {
    message: Option<&'a RawValue>,
    hash: Option<u64>,
}

impl<'a> LastUserMessage<'a> {
    fn of(message: &'a RawValue) -> LastUserMessage<'a> {
        LastUserMessage {
            message: Some(message),
            hash: None,
        }
    }

    fn hash(&mut self) -> u64 {
        let message = self.message;
        *self.hash.get_or_insert_with(|| hash(message))
    }
}

/// Restores what was parked, and removes the [`MARK`] from the ids. `None` when there is nothing to do, so that the
/// messages stay as they are.
///
/// `found` is what was parked under the id of each of the [`keys`], the newest first; each turn is restored once. `reserve` is
/// asked for the bytes that restoring takes so far, each time for more.
///
/// # Errors
/// [`NoRoom`] when `reserve` refuses.
pub fn restore(
    messages: Raw<'_>,
    found: &HashMap<String, Vec<Found>>,
    reserve: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Restored>, NoRoom> {
    let mut edits = Edits::of(messages.get());
    let mut cut_results = CutResults::default();
    let mut lookup = Lookup {
        found,
        asked: LastUserMessage::default(),
        tries: Vec::new(),
    };
    let mut is_missing = false;
    let messages = messages_of(messages);
    let mut rest = messages.as_slice();
    while let &[message, ref after @ ..] = rest {
        rest = after;
        let head = head(message);
        if head.role == "user" {
            lookup.asked = LastUserMessage::of(message);
        }
        let Some((parked, mut shown)) = lookup.parked_for(&head) else {
            let was_marked = remove_marks(&head, &mut edits);
            match &*head.role {
                "tool" if is_missing && was_marked => {
                    add_note(message, &head, &mut edits);
                    is_missing = false;
                }
                "tool" => {}
                role => is_missing = was_marked && role == "assistant",
            }
            continue;
        };
        is_missing = false;
        let turn = rest_of_turn(rest, &parked, &mut shown);
        let last = turn.len.checked_sub(1).map_or(message, |last| rest[last]);
        let answer = |id: &str| turn.answers.get(id).map(|answer| without_marks(answer));
        let mut restored = parked.transcript.messages_with(answer);
        for other in turn.others {
            if is_of_user(other) {
                lookup.asked = LastUserMessage::of(other);
            }
            restored.push(',');
            restored.push_str(other.get());
        }
        edits.replace(message.get(), last.get(), restored);
        rest = &rest[turn.len..];
        if !reserve(edits.bytes()) {
            return Err(NoRoom);
        }
        cut_results.keep_all(&parked.cut_results);
    }
    if edits.is_empty() {
        return Ok(None);
    }
    if !reserve(edits.bytes() + edits.edited_len()) {
        return Err(NoRoom);
    }
    Ok(Some(Restored {
        messages: edits.apply(),
        cut_results,
    }))
}

/// The messages of a turn behind its first one.
#[derive(Default)]
struct RestOfTurn<'a> {
    /// How many messages there are, up to the last one of the turn.
    len: usize,
    /// The client's answers by the ids of their calls.
    answers: HashMap<String, &'a RawValue>,
    /// Messages among them that are not about calls, such as one of the user. They move behind the turn, since a
    /// model takes nothing between calls and their answers.
    others: Vec<&'a RawValue>,
}

/// Finds the messages of a turn behind its first one. `shown` are the ids of the calls that were shown.
fn rest_of_turn<'a>(
    rest: &[&'a RawValue],
    parked: &Parked,
    shown: &mut Vec<String>,
) -> RestOfTurn<'a> {
    let mut turn = RestOfTurn::default();
    let mut others = Vec::new();
    for (at, &message) in rest.iter().enumerate() {
        let head = head(message);
        if let Some(id) = own_answer(&head, parked) {
            turn.answers.insert(id, message);
        } else if !matches!(&*head.role, "tool" | "assistant") {
            others.push(message);
            continue;
        } else if !is_of_turn(&head, parked, shown) {
            break;
        }
        turn.others.append(&mut others);
        turn.len = at + 1;
    }
    turn
}

/// Removes the marks from the ids of a message. True if there were any.
fn remove_marks(head: &MessageHead<'_>, edits: &mut Edits<'_>) -> bool {
    let ids: Vec<&str> = match &*head.role {
        "tool" => head.tool_call_ids.iter().map(|id| id.get()).collect(),
        "assistant" => {
            let ids = shown(head).into_iter().filter_map(|call| call.id);
            ids.map(RawValue::get).collect()
        }
        _ => return false,
    };
    let mut had_marks = false;
    for id in ids {
        if let Some(own) = text(id).strip_suffix(MARK) {
            edits.replace(id, id, quoted(own));
            had_marks = true;
        }
    }
    had_marks
}

/// A tool message, its id without the mark.
fn without_marks(message: &RawValue) -> String {
    let mut edits = Edits::of(message.get());
    remove_marks(&head(message), &mut edits);
    edits.apply()
}

/// Adds the note that other results are missing to a client's tool message.
fn add_note(message: &RawValue, head: &MessageHead<'_>, edits: &mut Edits<'_>) {
    let note = quoted(MISSING_NOTE);
    let Some(content) = head.content.map(RawValue::get) else {
        // A tool message that was marked has members.
        return edits.insert(&message.get()[1..], format!(r#""content":{note},"#));
    };
    let end = &content[content.len() - 1..];
    match content.as_bytes() {
        [b'"', ..] => edits.insert(end, format!(r"\n\n{}", &note[1..note.len() - 1])),
        [b'[', parts @ ..] => {
            let is_empty = parts.trim_ascii().len() == 1;
            let comma = if is_empty { "" } else { "," };
            edits.insert(end, format!(r#"{comma}{{"type":"text","text":{note}}}"#));
        }
        _ => edits.replace(content, content, note),
    }
}

/// As much of a message as matters here; the upstream refuses what does not fit. Of a member that comes twice the last
/// one counts, as for most readers.
#[derive(Default)]
struct MessageHead<'a> {
    role: Cow<'a, str>,
    content: Option<&'a RawValue>,
    tool_calls: Option<&'a RawValue>,
    /// Of all members of the name `tool_call_id`.
    tool_call_ids: Vec<&'a RawValue>,
}

impl<'de> Deserialize<'de> for MessageHead<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeadVisitor;

        impl<'de> Visitor<'de> for HeadVisitor {
            type Value = MessageHead<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<MessageHead<'de>, A::Error> {
                let mut head = MessageHead::default();
                while let Some(JsonString(name)) = map.next_key()? {
                    let value: &'de RawValue = map.next_value()?;
                    match &*name {
                        "role" => head.role = text(value.get()),
                        "content" => head.content = Some(value),
                        "tool_calls" => head.tool_calls = Some(value),
                        "tool_call_id" => head.tool_call_ids.push(value),
                        _ => {}
                    }
                }
                Ok(head)
            }
        }

        deserializer.deserialize_map(HeadVisitor)
    }
}

/// A call as the client shows it.
#[derive(Deserialize)]
struct ClientCall<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    function: Option<&'a RawValue>,
    #[serde(borrow)]
    custom: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ShownBody<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, alias = "input")]
    arguments: Option<&'a RawValue>,
}

impl ShownBody<'_> {
    /// The arguments as a text. Some clients keep them as an object, or leave empty ones out.
    fn arguments(&self) -> Cow<'_, str> {
        match self.arguments.map(RawValue::get) {
            None | Some("null") => "".into(),
            Some(json) if json.starts_with('"') => text(json),
            Some(json) => json.into(),
        }
    }
}

fn head(message: &RawValue) -> MessageHead<'_> {
    serde_json::from_str(message.get()).unwrap_or_default()
}

fn is_of_user(message: &RawValue) -> bool {
    head(message).role == "user"
}

/// The text of a JSON string; empty for any other value.
fn text(json: &str) -> Cow<'_, str> {
    serde_json::from_str(json)
        .map(|JsonString(text)| text)
        .unwrap_or_default()
}

/// The id that the model gave a call.
fn own_id(json: &str) -> Cow<'_, str> {
    match text(json) {
        Cow::Borrowed(id) => id.strip_suffix(MARK).unwrap_or(id).into(),
        Cow::Owned(id) => id.strip_suffix(MARK).unwrap_or(&id).to_owned().into(),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A hash of a message's content, the same however the client spaces its JSON and escapes its strings.
fn hash(message: Option<&RawValue>) -> u64 {
    let mut hasher = SipHasher13::new();
    let content = message.and_then(|message| head(message).content);
    let mut rest = content.map_or("", RawValue::get);
    while let Some(start) = memchr(b'"', rest.as_bytes()) {
        let (outside, string) = rest.split_at(start);
        let (string, after) = string.split_at(end_of_string(string));
        hash_outside(outside, &mut hasher);
        match memchr(b'\\', string.as_bytes()) {
            None => hasher.write(string.trim_matches('"').as_bytes()),
            Some(_) => hasher.write(text(string).as_bytes()),
        }
        hasher.write_u8(b'"');
        rest = after;
    }
    hash_outside(rest, &mut hasher);
    hasher.finish()
}

/// Hashes JSON outside of strings, without its spaces.
fn hash_outside(json: &str, hasher: &mut SipHasher13) {
    let bytes = json.bytes().filter(|byte| !byte.is_ascii_whitespace());
    bytes.for_each(|byte| hasher.write_u8(byte));
}

/// Where the string ends that a JSON text begins with, behind its quote.
fn end_of_string(json: &str) -> usize {
    let mut at = 1;
    while let Some(next) = json
        .as_bytes()
        .get(at..)
        .and_then(|rest| memchr2(b'"', b'\\', rest))
    {
        at += next + 1;
        if json.as_bytes()[at - 1] == b'"' {
            return at;
        }
        at += 1;
    }
    json.len()
}

/// Finds the parked turns of one conversation.
struct Lookup<'a> {
    found: &'a HashMap<String, Vec<Found>>,
    asked: LastUserMessage<'a>,
    /// How often each turn was compared with a message.
    tries: Vec<(Arc<Parked>, usize)>,
}

impl Lookup<'_> {
    /// The turn that this message begins, and the ids of the calls in it; each turn once.
    fn parked_for(&mut self, head: &MessageHead<'_>) -> Option<(Arc<Parked>, Vec<String>)> {
        let found = self.found.get(&*own_id(first_id(head)?.get()))?;
        found.iter().find_map(|found| self.compare(head, found))
    }

    fn compare(
        &mut self,
        head: &MessageHead<'_>,
        found: &Found,
    ) -> Option<(Arc<Parked>, Vec<String>)> {
        let parked = &found.parked;
        let known = self
            .tries
            .iter()
            .position(|(it, _)| Arc::ptr_eq(it, parked));
        let at = known.unwrap_or_else(|| {
            self.tries.push((Arc::clone(parked), 0));
            self.tries.len() - 1
        });
        let tries = &mut self.tries[at].1;
        if *tries == MAX_TRIES {
            return None;
        }
        *tries += 1;
        let mut ids = Vec::new();
        let is_it = found.question == self.asked.hash() && is_of_turn(head, parked, &mut ids);
        if is_it {
            *tries = MAX_TRIES;
        }
        is_it.then(|| (Arc::clone(parked), ids))
    }
}

/// The calls of an assistant message.
fn shown<'a>(head: &MessageHead<'a>) -> Vec<ClientCall<'a>> {
    let calls = head.tool_calls.filter(|_| head.role == "assistant");
    let calls = calls.and_then(|calls| serde_json::from_str::<Vec<&RawValue>>(calls.get()).ok());
    let calls = calls.into_iter().flatten();
    calls
        .filter_map(|call| serde_json::from_str(call.get()).ok())
        .collect()
}

/// The id of the first call of an assistant message.
fn first_id<'a>(head: &MessageHead<'a>) -> Option<&'a RawValue> {
    shown(head).into_iter().find_map(|call| call.id)
}

/// An assistant message with calls of this turn and no others, each shown for the first time. Some clients write one
/// message for each call. `ids` are those that were shown before; those of this message are added.
fn is_of_turn(head: &MessageHead<'_>, parked: &Parked, ids: &mut Vec<String>) -> bool {
    let shown = shown(head);
    let is_next = |call: &ClientCall<'_>| {
        let id = own_id(call.id.map_or("", RawValue::get));
        let own = parked.client_calls.iter().find(|own| own.id == id);
        let is_next = !ids.iter().any(|it| *it == id) && own.is_some_and(|own| is_same(call, own));
        ids.push(id.into_owned());
        is_next
    };
    !shown.is_empty() && shown.iter().all(is_next)
}

/// A call of one id is the same. A client may have parsed the arguments and serialized them again.
fn is_same(shown: &ClientCall<'_>, own: &ToolCall) -> bool {
    let body = shown.function.or(shown.custom);
    let Some(body) = body.and_then(|it| serde_json::from_str::<ShownBody<'_>>(it.get()).ok())
    else {
        return false;
    };
    let arguments = body.arguments();
    let parsed = |text: &str| calls::parse_arguments(text).ok();
    let says_the_same = || {
        let own = parsed(&own.arguments);
        own.is_some() && own == parsed(&arguments)
    };
    body.name == own.name && (arguments == own.arguments || says_the_same())
}

fn own_answer(head: &MessageHead<'_>, parked: &Parked) -> Option<String> {
    let id = head.tool_call_ids.last().filter(|_| head.role == "tool")?;
    let id = own_id(id.get());
    let is_own = parked.client_calls.iter().any(|call| call.id == id);
    is_own.then(|| id.into_owned())
}
