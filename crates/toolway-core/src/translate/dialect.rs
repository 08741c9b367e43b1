//! One model of a conversation for every API: what chat completions, Responses, Messages and Gemini say in words of their
//! own is here an ordered list of parts (issue 12).
//!
//! Each API is one file that reads its requests into a [`Request`] and writes them from one, reads its answers into
//! [`Delta`]s and writes them. No API is translated into another directly. What an API cannot say is left out and named in
//! [`Written::left_out`]; what would change the answer is refused.

pub mod anthropic;
pub mod chat;
pub mod gemini;
pub mod responses;
pub mod sealed_turns;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use toolway_protocol::{
    openai::{ErrorBody, FinishReason},
    sse::{AlikeEvents, SseEvent},
    tool::JsonObject,
};

use super::stream::CallKind;

/// A request to a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The model's name.
    pub model: String,
    /// The conversation, oldest first.
    pub turns: Vec<Turn>,
    /// What the model may call.
    pub tools: Vec<ToolDefinition>,
    /// Whether and what it must call. Absent: as the API has it, which is `Auto`.
    pub tool_choice: Option<ToolChoice>,
    /// Several calls in one answer. Absent: as the API has it.
    pub parallel_tool_calls: Option<bool>,
    /// Longest answer in tokens, thoughts included.
    pub max_tokens: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<Number>,
    /// Nucleus sampling.
    pub top_p: Option<Number>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// The form that the text of the answer must have.
    pub format: Option<OutputFormat>,
    /// How much it thinks: `none`, `minimal`, `low` and so on.
    pub effort: Option<String>,
    /// How much it writes: `low`, `medium`, `high`.
    pub verbosity: Option<String>,
    /// The answer comes as a stream.
    pub stream: bool,
    /// Entries of `tools` that are no definitions, such as `mcp`, as chat completions have them.
    pub other_tools: Vec<Value>,
    /// Members for which there is no field above, with their names in chat completions.
    pub rest: JsonObject,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions; the older name.
    System,
    /// Instructions; the newer name.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// Results of the calls of the turn before.
    Tool,
}

/// What one side says before the other speaks.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// The name of one of several participants.
    pub name: Option<String>,
    /// What is said, in its order.
    pub parts: Vec<Part>,
}

/// One part of a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// The model refuses to answer, and says so.
    Refusal(String),
    /// What the model thought.
    Reasoning(Reasoning),
    /// The model calls a tool.
    Call(Call),
    /// What a call returned.
    Result(CallResult),
    /// A picture: a URL, which may be a `data:` URL, and the detail to look at it with.
    Image(String, Option<String>),
    /// Sound: Base64, and its format.
    Audio(String, String),
    /// A file, with the members of chat's `file`: `filename`, `file_data`, `file_id`.
    File(JsonObject),
    /// What is not known here, as chat completions have it.
    Unknown(Value),
}

/// A piece of reasoning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reasoning {
    /// What may be read of it.
    pub text: String,
    /// What only the provider can read, and wants to be given back unchanged.
    pub sealed: Option<Sealed>,
}

/// Reasoning as its provider signed or encrypted it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sealed {
    /// Whose it is; no other provider accepts it.
    pub source: Source,
    /// The id that the provider gave the piece.
    pub id: Option<String>,
    /// The signature or the encrypted text, byte for byte.
    pub data: String,
}

/// The API that sealed a piece of reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// OpenAI's Responses.
    OpenAi,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's Gemini.
    Gemini,
}

impl Sealed {
    /// The signature of a text. A turn has one text, so the seal says how many bytes at its end it signs.
    fn of_text(source: Source, data: String, len: usize) -> Sealed {
        let id = Some(format!("{OF_TEXT}{len}"));
        Sealed { source, id, data }
    }

    /// How many bytes at the end of the text it signs, if it is the signature of a text.
    fn signed_text(&self) -> Option<usize> {
        let id = self.id.as_deref().filter(|_| self.source == Source::Gemini);
        id?.strip_prefix(OF_TEXT)?.parse().ok()
    }

    /// A part of an answer that only its provider understands, as the API has it: a search of its own, and what that
    /// found. It goes where seals go, and back to the provider in its place.
    fn raw(source: Source, part: JsonObject) -> Reasoning {
        let sealed = Sealed {
            source,
            id: Some(RAW.to_owned()),
            data: Value::Object(part).to_string(),
        };
        Reasoning {
            text: String::new(),
            sealed: Some(sealed),
        }
    }

    /// The part that [`raw`](Sealed::raw) has put in, if this provider made it.
    fn read_raw(&self, source: Source) -> Option<JsonObject> {
        let is_raw = self.source == source && self.id.as_deref() == Some(RAW);
        is_raw.then(|| serde_json::from_str(&self.data).ok())?
    }

    /// It is valid with its id only, and clients get items with ids of toolway's: OpenAI checks both together.
    fn is_bound(&self) -> bool {
        self.source == Source::OpenAi && self.id.is_some()
    }

    /// The text for the field in which clients of the API `home` keep a seal. What another provider sealed has its source
    /// before it, and OpenAI's seal its id, so that a client that stores nothing else brings them back.
    fn wrapped(&self, home: Source) -> String {
        let source = match self.source {
            source if source == home && !self.is_bound() => return self.data.clone(),
            Source::OpenAi => "openai",
            Source::Anthropic => "anthropic",
            Source::Gemini => "gemini",
        };
        let id = self.id.as_deref().unwrap_or_default();
        format!("{WRAPPED}{source}:{id}:{}", self.data)
    }

    /// The reverse of [`wrapped`](Sealed::wrapped). `id` is that of a piece that was not wrapped.
    fn unwrapped(text: &str, home: Source, id: Option<&str>) -> Sealed {
        let wrapped = || {
            let mut fields = text.strip_prefix(WRAPPED)?.splitn(3, ':');
            let source = match fields.next()? {
                "openai" => Source::OpenAi,
                "anthropic" => Source::Anthropic,
                "gemini" => Source::Gemini,
                _ => return None,
            };
            let id = fields.next().filter(|id| !id.is_empty()).map(str::to_owned);
            let data = fields.next()?.to_owned();
            Some(Sealed { source, id, data })
        };
        wrapped().unwrap_or_else(|| Sealed {
            source: home,
            id: id.map(str::to_owned),
            data: text.to_owned(),
        })
    }
}

/// What the id of a text's signature begins with.
const OF_TEXT: &str = "text-";

/// The id of a part that is there as a whole.
const RAW: &str = "raw";

/// What a wrapped seal begins with.
const WRAPPED: &str = "toolway:";

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Its id, which its result names.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Arguments as the model wrote them: JSON, or the text of a custom tool.
    pub arguments: String,
    /// What kind of tool it calls.
    pub kind: CallKind,
    /// The signature of the thought that led to it.
    pub sealed: Option<Sealed>,
}

/// What a call returned.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    /// The id of the call.
    pub id: String,
    /// Texts, pictures and so on.
    pub parts: Vec<Part>,
    /// The call failed.
    pub is_error: bool,
}

/// A tool that a request offers.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON Schema of its arguments; of a custom tool its `format`.
    pub parameters: Option<Value>,
    /// The provider keeps the model to the schema.
    pub strict: Option<bool>,
    /// What kind of tool it is.
    pub kind: CallKind,
}

/// Whether and what the model must call.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    /// It may.
    Auto,
    /// It must not.
    None,
    /// It must call something.
    Required,
    /// It must call this tool.
    Named(String, CallKind),
    /// It may (or, with `true`, must) call one of these.
    Allowed(Vec<(String, CallKind)>, bool),
}

/// The form of the answer's text.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputFormat {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of a schema: `name`, `schema`, `strict` and `description`.
    JsonSchema(JsonObject),
}

/// A request in an API's own form.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The body.
    pub body: JsonObject,
    /// Members of the request that the API does not have, with their names in chat completions.
    pub left_out: Vec<String>,
}

/// A request that an API cannot be asked for: leaving the member out would change what the client gets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unsupported {
    /// The member, with its name in the API in which it was read.
    pub param: String,
    /// What is wrong.
    pub message: String,
    /// OpenAI's code for it.
    pub code: &'static str,
}

impl Unsupported {
    /// The request is not JSON that can be translated.
    pub fn unreadable(error: &serde_json::Error) -> Unsupported {
        Unsupported::new(
            "messages",
            format!("the request cannot be translated: {error}"),
        )
    }

    fn new(param: impl Into<String>, message: impl Into<String>) -> Unsupported {
        Unsupported {
            param: param.into(),
            message: message.into(),
            code: "unsupported_parameter",
        }
    }
}

/// What a member of a request may be, besides absent or `null`.
#[derive(Clone, Copy, Debug)]
enum MemberType {
    /// A whole number from 1.
    Count,
    Number,
    Bool,
    List,
    Object,
}

impl MemberType {
    fn fits(self, value: &Value) -> bool {
        match self {
            MemberType::Count => value.as_u64().is_some_and(|count| count > 0),
            MemberType::Number => value.is_number(),
            MemberType::Bool => value.is_boolean(),
            MemberType::List => value.is_array(),
            MemberType::Object => value.is_object(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            MemberType::Count => "a whole number from 1",
            MemberType::Number => "a number",
            MemberType::Bool => "true or false",
            MemberType::List => "a list",
            MemberType::Object => "an object",
        }
    }
}

/// Refuses members of another type: left out, a limit would not hold and a tool would be missing.
fn check_types(body: &JsonObject, types: &[(&str, MemberType)]) -> Result<(), Unsupported> {
    let is_odd = |(name, kind): &&(&str, MemberType)| {
        let value = body.get(*name).filter(|value| !value.is_null());
        value.is_some_and(|value| !kind.fits(value))
    };
    match types.iter().find(is_odd) {
        Some((name, kind)) => Err(Unsupported {
            param: (*name).to_owned(),
            message: format!("Invalid type for '{name}': it must be {}.", kind.name()),
            code: "invalid_type",
        }),
        None => Ok(()),
    }
}

/// What one event of an answer adds to it.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// The answer begins.
    Begin(Head),
    /// More text.
    Text(String),
    /// More of the refusal.
    Refusal(String),
    /// More of the thoughts.
    Thought(String),
    /// A piece of reasoning is complete: the whole of it, with its seal. Its text came before as [`Delta::Thought`].
    Sealed(Reasoning),
    /// A call begins, with what is known of its arguments. Calls are numbered from 0 in the order of their deltas.
    Call(usize, Call),
    /// More arguments of a call.
    Arguments(usize, String),
    /// A source of the text, as chat completions have it.
    Annotation(Value),
    /// The gateway calls a tool of its own. Only clients that asked to see such calls are told.
    GatewayCall(GatewayCall),
    /// A call of the gateway, with this id, has returned or failed.
    GatewayResult(String, Result<String, GatewayError>),
    /// Tokens; the last that comes counts.
    Usage(Usage),
    /// The answer ends.
    Finish(FinishReason),
    /// The answer failed.
    Failed(ErrorBody),
}

/// A call that the gateway runs itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayCall {
    /// Its id.
    pub id: String,
    /// The name that the model knows the tool by.
    pub name: String,
    /// Its arguments as JSON.
    pub arguments: String,
    /// The id of the request for approval that the client has agreed to.
    pub approval: Option<String>,
}

/// Why a call of the gateway failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayError {
    /// The tool says so.
    Tool(String),
    /// The tool could not be called, or its server answered with an error.
    Protocol {
        /// The code of JSON-RPC.
        code: i64,
        /// What is wrong.
        message: String,
    },
}

impl Reasoning {
    /// A part of an answer of this provider that nobody else understands.
    fn raw(&self, source: Source) -> Option<JsonObject> {
        self.sealed.as_ref()?.read_raw(source)
    }
}

/// Reads the answers of one API.
pub trait AnswerReader: Send {
    /// What an event of a stream adds to the answer; an unknown event adds nothing.
    fn read(&mut self, event: JsonObject) -> Vec<Delta>;

    /// What an event adds that needs no values built, as most events do not. `None` if [`read`](AnswerReader::read) is
    /// needed.
    fn read_quickly(&mut self, _event: &SseEvent) -> Option<Vec<Delta>> {
        None
    }

    /// What the next events look like that add a piece of text and nothing else.
    fn alike(&mut self) -> Option<&mut AlikeEvents> {
        None
    }

    /// What the end of the stream adds, where the API has no event for it.
    fn end(&mut self) -> Vec<Delta> {
        Vec::new()
    }

    /// What a whole answer says.
    fn read_whole(&mut self, answer: JsonObject) -> Vec<Delta>;
}

/// Writes one streamed answer of one API. Everything that is appended is whole events.
pub trait AnswerWriter: Send {
    /// Appends the events for `delta`. Nothing follows a failure or the end.
    fn write(&mut self, delta: Delta, out: &mut Vec<u8>);

    /// Appends what is missing at the end of the answer.
    fn finish(&mut self, out: &mut Vec<u8>);

    /// The calls that the answer asks the client to approve.
    fn asked(&self) -> Vec<GatewayCall> {
        Vec::new()
    }

    /// The answer as a whole, where a later request can name it.
    fn kept(&self) -> Option<JsonObject> {
        None
    }
}

/// Where an answer comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The answer's id.
    pub id: String,
    /// The model that answers.
    pub model: String,
    /// When it was made, in seconds since 1970; 0 where the API does not say.
    pub created: u64,
}

/// Tokens of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the question, those in a cache included.
    pub input: u64,
    /// Those of `input` that were read from a cache.
    pub cached: u64,
    /// Those of `input` that were written into a cache, where the API tells.
    pub cache_written: u64,
    /// Of the answer, thoughts included.
    pub output: u64,
    /// Those of `output` that are thoughts.
    pub reasoning: u64,
}

/// Models of this name take `reasoning_effort`, as far as names tell. Other chat APIs may refuse it.
pub fn thinks(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let known = [
        "claude",
        "gemini",
        "gpt-5",
        "gpt-6",
        "gpt-oss",
        "o1",
        "o3",
        "o4",
        "qwen3",
        "deepseek-r",
    ];
    known.iter().any(|known| name.starts_with(known))
}

/// Appends an event; those of chats have no name.
fn write_event(name: Option<&str>, data: &impl Serialize, out: &mut Vec<u8>) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    write_json(data, out);
    out.extend_from_slice(b"\n\n");
}

fn write_json(data: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, data).expect("its keys are texts, and a buffer takes every byte");
}

/// A text of its own type, because an optional `Cow` is never borrowed.
#[derive(Deserialize)]
struct DeltaText<'a>(#[serde(borrow)] Cow<'a, str>);

/// The member as a text.
fn text<'v>(object: &'v JsonObject, key: &str) -> Option<&'v str> {
    object.get(key).and_then(Value::as_str)
}

/// What is wrong with a body that is an error, or has no list `content` as an answer has.
fn no_answer(body: &JsonObject, content: &str) -> Option<Delta> {
    if body.get("error").is_some_and(|error| !error.is_null())
        && let Some((error, _)) = ErrorBody::in_ok_object(body)
    {
        return Some(Delta::Failed(error));
    }
    let has_content = body.get(content).is_some_and(Value::is_array);
    (!has_content).then(|| {
        let message = format!("the upstream's answer has no `{content}`; is its `api` right?");
        Delta::Failed(ErrorBody::new(
            "server_error",
            "upstream_invalid_response",
            message,
        ))
    })
}

/// The member as a count.
fn count(object: &JsonObject, path: &[&str]) -> u64 {
    let mut value = path.first().and_then(|key| object.get(*key));
    for key in path.iter().skip(1) {
        value = value.and_then(|value| value.get(key));
    }
    value.and_then(Value::as_u64).unwrap_or_default()
}

/// Takes a member that is there and not null.
fn take(object: &mut JsonObject, key: &str) -> Option<Value> {
    object.shift_remove(key).filter(|value| !value.is_null())
}

fn take_text(object: &mut JsonObject, key: &str) -> Option<String> {
    match take(object, key)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn take_list(object: &mut JsonObject, key: &str) -> Vec<Value> {
    match take(object, key) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// An object of the members that have a value.
fn object<const N: usize>(members: [(&str, Option<Value>); N]) -> JsonObject {
    let members = members.into_iter();
    members
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
}

/// The schema of a tool that takes no arguments.
fn no_parameters() -> Value {
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), Map::new().into());
    Value::Object(schema)
}
