//! What a model sends, mended, told apart into text and calls, and written for the client.
//!
//! A [`ChatStream`] lives for one answer to a client, which may take several rounds with the model. Events
//! of the upstream go in, whole events for the client come out, and at the end of each round a [`Round`]
//! says what the model wants. It is pure: it never waits, and runs no call.
//!
//! Where to read next: `fast_path` (the fast path), `chunk` (everything that needs mending), `calls` (deltas
//! put together), `text` (calls and thoughts written as plain text), `pass` (no tools of the gateway's).

mod arguments;
mod calls;
mod chunk;
mod content;
mod fast_path;
mod forms;
mod identity;
mod name;
mod pass;
mod round;
mod text;
mod think;

use memchr::memchr;
use serde_json::Value;

pub use self::name::mend_name;
pub(super) use self::{
    calls::Fragment,
    chunk::{first_choice, take_delta},
    content::{MessageContent, elements},
    pass::{mend_envelope, mend_whole},
    round::{REASONING, RoundReader},
};
use self::{
    calls::{ShownCalls, add_extra},
    fast_path::{FastChunk, Pinned},
    identity::Identity,
    pass::Pass,
    text::TextFilter,
};
use super::ids::Ids;
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    openai::{FinishReason, error::ErrorBody},
    sse::{self, AlikeEvents, Framer, SseEvent},
    tool::{JsonObject, ToolCall},
};

/// Most bytes of text, reasoning and arguments together that are taken in one round.
pub const MAX_ROUND_BYTES: usize = 16 << 20;

/// Most calls that are taken in one round.
pub const MAX_CALLS: usize = 256;

/// Forms of tool calls in plain text that an upstream's models use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextCalls {
    /// `<tool_call>{…}</tool_call>` (Hermes, Qwen) and `<function=…><parameter=…>` (Qwen3-Coder).
    pub tool_call_tags: bool,
    /// A fenced JSON block that names an offered tool.
    pub fenced_json: bool,
    /// `<|python_tag|>{…}` (Llama 3).
    pub python_tag: bool,
    /// `[TOOL_CALLS][{…}]` (Mistral).
    pub mistral: bool,
    /// `<|channel|>commentary to=functions.…` (gpt-oss, Harmony).
    pub harmony: bool,
}

/// Whose tool a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The gateway runs it, and the client never sees it.
    Gateway,
    /// The client runs it.
    Client,
}

/// What is known about the tools and ids of a request while its answer is read.
pub trait Known {
    /// Whose tool this is. An unknown name has an owner too: the one that answers for it.
    fn owner(&self, name: &str) -> Owner;

    /// Claims a call id for this answer. False if another live conversation uses it.
    fn claims(&self, id: &str) -> bool;

    /// A tool of this exact name was offered to the model.
    fn is_offered(&self, name: &str) -> bool;

    /// The JSON Schema of a tool's arguments.
    fn parameters(&self, name: &str) -> Option<Value>;

    /// The offered name of a tool, where the client decides about its calls and the model wrote another name for it.
    fn offered_name(&self, _name: &str) -> Option<String> {
        None
    }

    /// The client is shown the gateway's calls as well, so that nothing is parked and no id gets a mark.
    fn shows_gateway_calls(&self) -> bool {
        false
    }
}

/// How much the gateway has to do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The gateway runs calls: they are hidden, and finish and usage wait for the end of the answer.
    Loop,
    /// The answer is the model's; only what breaks the contract is mended.
    PassThrough,
}

/// How an answer is read and written.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How much the gateway has to do with it.
    pub mode: Mode,
    /// Forms of tool calls in plain text that are read as calls.
    pub text_calls: TextCalls,
    /// `<think>…</think>` in the text is split off as reasoning.
    pub think_tags: bool,
    /// An event that is no JSON is skipped instead of ending the answer with an error.
    pub skip_invalid_events: bool,
    /// The client asked for a usage chunk.
    pub include_usage: bool,
    /// Decides the ids that are made up.
    pub seed: u64,
    /// `created` where the upstream gives none, in seconds since 1970.
    pub created: u64,
    /// `model` where the upstream gives none.
    pub model: String,
}

/// What one event meant for the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// More is to come.
    More,
    /// The upstream said that it is done.
    Done,
}

/// What the model said in one round.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// The text; `None` if there was none.
    pub content: Option<String>,
    /// The thoughts, with the name of the field in which they came.
    pub reasoning: Option<(String, String)>,
    /// The refusal.
    pub refusal: Option<String>,
    /// The calls, in order; names are mended, ids are there and differ, empty arguments are `{}`.
    /// Empty when `finish` is `Length` or `ContentFilter`: what was cut off is not run.
    pub calls: Vec<RoundCall>,
    /// Why it stopped. `ToolCalls` exactly if there are calls.
    pub finish: FinishReason,
    /// The tokens it took, as the upstream counted them.
    pub usage: Option<JsonObject>,
    /// Members of the message that are not known here; lists that came in pieces are joined.
    pub extra: JsonObject,
}

impl Round {
    /// A round that ended like this and of which nothing was read.
    pub fn without_a_word(finish: FinishReason) -> Round {
        Round {
            content: None,
            reasoning: None,
            refusal: None,
            calls: Vec::new(),
            finish,
            usage: None,
            extra: JsonObject::new(),
        }
    }

    /// There is an answer for the client beside calls, and not only thoughts.
    pub(crate) fn says_something(&self) -> bool {
        // An empty text is kept as none.
        self.content.is_some() || self.refusal.is_some() || round::says_something(&self.extra)
    }
}

/// The form of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallKind {
    /// A function with arguments in JSON.
    #[default]
    Function,
    /// A custom tool; `arguments` of its call is the free text of `input`.
    Custom,
}

impl CallKind {
    /// `type`, which is also the name of the object inside, and the name of its text.
    pub fn members(self) -> (&'static str, &'static str) {
        match self {
            CallKind::Function => ("function", "arguments"),
            CallKind::Custom => ("custom", "input"),
        }
    }
}

/// One call of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundCall {
    /// The call itself.
    pub call: ToolCall,
    /// Who runs it.
    pub owner: Owner,
    /// Its form.
    pub kind: CallKind,
    /// Members that are not known here (`extra_content` and so on), to be sent back with the call.
    pub extra: JsonObject,
}

impl RoundCall {
    /// The call as an element of a message's `tool_calls`, with its unknown members in their place.
    pub fn to_json(&self) -> JsonObject {
        let (body, text) = self.kind.members();
        let mut call = JsonObject::new();
        call.insert("id".to_owned(), self.call.id.clone().into());
        call.insert("type".to_owned(), body.into());
        call.insert(
            body.to_owned(),
            serde_json::json!({"name": self.call.name, text: self.call.arguments}),
        );
        add_extra(&mut call, self.extra.clone());
        call
    }
}

/// Why a round came to no good end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StreamError {
    /// The upstream sent an error in its answer, and perhaps a status (400 to 599) that fits.
    #[error("the upstream reported an error ({})", .0.names())]
    Upstream(Box<ErrorBody>, Option<u16>),
    /// An event, or the body, is not JSON, or not an object.
    #[error("the upstream sent something that is not a chat completion: {0}")]
    InvalidEvent(String),
    /// The model made a call and never said which.
    #[error("the upstream sent a tool call without a name")]
    InvalidCall,
    /// The stream ended in the middle of the answer.
    #[error("the upstream's answer ended before it was complete")]
    Ended,
    /// The model called tools to the last, also one that it was not offered any more.
    #[error("the model gave no answer: in the last round it called a tool that it was not offered")]
    NoAnswer,
    /// The round is longer than [`MAX_ROUND_BYTES`].
    #[error("the upstream's answer is longer than {MAX_ROUND_BYTES} bytes")]
    TooLarge,
    /// The round has more calls than [`MAX_CALLS`].
    #[error("the upstream's answer has more than {MAX_CALLS} tool calls")]
    TooManyCalls,
    /// The stream is not an event stream, or one event of it is too long.
    #[error("the upstream's answer cannot be read: {0}")]
    Frame(#[from] sse::FrameError),
}

impl StreamError {
    /// What the client receives.
    pub fn body(&self) -> ErrorBody {
        match self {
            StreamError::Upstream(body, _) => (**body).clone(),
            StreamError::InvalidEvent(_)
            | StreamError::InvalidCall
            | StreamError::Frame(sse::FrameError::InvalidUtf8 { .. }) => ErrorBody::new(
                "server_error",
                "upstream_invalid_response",
                self.to_string(),
            ),
            StreamError::Ended | StreamError::NoAnswer => {
                ErrorBody::new("server_error", "upstream_incomplete", self.to_string())
            }
            StreamError::TooLarge
            | StreamError::TooManyCalls
            | StreamError::Frame(sse::FrameError::TooLong { .. }) => ErrorBody::new(
                "server_error",
                "upstream_response_too_large",
                self.to_string(),
            ),
        }
    }

    /// The status, where it is not decided yet.
    pub fn status(&self) -> u16 {
        match self {
            StreamError::Upstream(_, status) => status.unwrap_or(502),
            StreamError::InvalidEvent(_)
            | StreamError::InvalidCall
            | StreamError::Ended
            | StreamError::NoAnswer
            | StreamError::TooLarge
            | StreamError::TooManyCalls
            | StreamError::Frame(_) => 502,
        }
    }
}

/// One streamed answer to a client, over all its rounds.
///
/// Per round: [`push_next`](ChatStream::push_next), or [`push`](ChatStream::push) every event, until `Done` or the end of the upstream's stream, then
/// [`end_round`](ChatStream::end_round). Last comes [`finish`](ChatStream::finish) or
/// [`fail`](ChatStream::fail); after that nothing goes out any more. Everything that is appended to `out`
/// is whole events.
#[derive(Debug)]
pub struct ChatStream {
    settings: Settings,
    identity: Identity,
    /// The identity as JSON; empty until it is settled.
    pinned: Pinned,
    /// What chunks look like that go on as they come.
    alike: AlikeEvents,
    /// The choice that they are of.
    alike_choice: u64,
    /// The one `role` delta went out.
    role_shown: bool,
    /// A good event was seen.
    begun: bool,
    /// Chunks without choices that came before the identity was known.
    early: Vec<JsonObject>,
    /// `[DONE]` or an error went out.
    over: bool,
    shown: ShownCalls,
    round: RoundReader,
    pass: Pass,
}

impl ChatStream {
    /// An answer that nothing was said of yet.
    pub fn new(settings: Settings) -> ChatStream {
        ChatStream {
            identity: Identity::default(),
            pinned: Pinned::default(),
            alike: AlikeEvents::default(),
            alike_choice: 0,
            role_shown: false,
            begun: false,
            early: Vec::new(),
            over: false,
            shown: ShownCalls::new(Ids::new(settings.seed)),
            round: RoundReader::new(&settings),
            pass: Pass::default(),
            settings,
        }
    }

    /// Reads the next round as these settings say, because another upstream answers. To be called between rounds.
    pub fn read_as(&mut self, settings: Settings) {
        self.round = RoundReader::new(&settings);
        self.settings = settings;
        self.alike = AlikeEvents::default();
    }

    /// A good event was seen in this answer, so that its HTTP status is decided.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Reads the next event of the upstream's stream, as [`push`](ChatStream::push). `None` if the framer has none.
    pub fn push_next(
        &mut self,
        framer: &mut Framer,
        known: &dyn Known,
        out: &mut Vec<u8>,
    ) -> Option<Result<Pushed, StreamError>> {
        match self.push_alike(framer, out) {
            Ok(true) => Some(Ok(Pushed::More)),
            Ok(false) => {
                let event = framer.next()?;
                let pushed = event.map_err(StreamError::from);
                Some(pushed.and_then(|event| self.push(&event, known, out)))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Reads one event of the upstream and appends to `out` what the client is to see of it.
    /// Nothing is read any more after `Done` until the round is ended.
    pub fn push(
        &mut self,
        event: &SseEvent,
        known: &dyn Known,
        out: &mut Vec<u8>,
    ) -> Result<Pushed, StreamError> {
        if self.round.done || self.over {
            return Ok(Pushed::Done);
        }
        if !event.is_plain()
            && let Some(error) = error_outside_data(event)
        {
            return Err(error);
        }
        let Some(data) = event.data() else {
            if event.is_comment() && self.settings.mode == Mode::PassThrough {
                write_raw(event.raw(), out);
            }
            return Ok(Pushed::More);
        };
        let data = data.trim();
        if data.is_empty() {
            return Ok(Pushed::More);
        }
        if data == "[DONE]" {
            self.round.done = true;
            if self.settings.mode == Mode::PassThrough {
                self.pass_done(event, out);
            }
            return Ok(Pushed::Done);
        }
        if let Some(fast_path) = FastChunk::of(data) {
            let forwarded = match self.settings.mode {
                Mode::Loop => self.forward(&fast_path, event, data, out)?,
                Mode::PassThrough => self.pass_on(&fast_path, event, out)?,
            };
            if forwarded {
                self.begun = true;
                return Ok(Pushed::More);
            }
        }
        if event.name() == Some("error") {
            return Err(error_event(data));
        }
        let chunk = match self.parse(data) {
            // The stream broke off in the middle of an event.
            Err(StreamError::InvalidEvent(_)) if !event.is_terminated() => None,
            chunk => chunk?,
        };
        let Some(chunk) = chunk else {
            return Ok(Pushed::More);
        };
        match self.settings.mode {
            Mode::Loop => self.push_chunk(chunk, known, out)?,
            Mode::PassThrough => self.pass_chunk(chunk, event, known, out)?,
        }
        self.begun = true;
        Ok(Pushed::More)
    }

    /// A chunk as an object; `None` if it is to be skipped.
    fn parse(&self, data: &str) -> Result<Option<JsonObject>, StreamError> {
        check_values(data.as_bytes(), MAX_VALUES)
            .map_err(|error| StreamError::InvalidEvent(format!("an event has {error}")))?;
        let value: Value = match serde_json::from_str(data) {
            Ok(value) => value,
            Err(_) if self.settings.skip_invalid_events => return Ok(None),
            Err(error) => return Err(StreamError::InvalidEvent(error.to_string())),
        };
        if let Some((error, status)) = ErrorBody::in_ok_value(&value) {
            return Err(StreamError::Upstream(error.into(), status));
        }
        match value {
            Value::Object(chunk) => Ok(Some(chunk)),
            _ if self.settings.skip_invalid_events => Ok(None),
            _ => Err(StreamError::InvalidEvent(
                "an event is not a JSON object".to_owned(),
            )),
        }
    }

    /// The gateway's calls that have become complete since the last time, with their places in the round; nothing
    /// where the answer is passed through. A call may still change until the round ends.
    pub fn complete_calls(&mut self) -> Vec<(usize, ToolCall)> {
        self.round.calls.newly_complete()
    }

    /// Ends the round after `Done` or the end of the upstream's stream, appends what was held back, and
    /// makes ready for the next.
    pub fn end_round(
        &mut self,
        known: &dyn Known,
        out: &mut Vec<u8>,
    ) -> Result<Round, StreamError> {
        let mut round = std::mem::replace(&mut self.round, RoundReader::new(&self.settings));
        if self.settings.mode == Mode::PassThrough {
            return self.pass_end(round, known, out);
        }
        let rest = round.finish_text(known)?;
        self.show_text(rest, out);
        if round.is_whole() {
            let deltas = round.calls.close(known, &mut self.shown);
            self.show_calls(deltas, out);
        }
        // If another round follows, it was for calls that the client does not see.
        self.shown.follow();
        round.into_round(&mut self.shown.ids)
    }

    /// `id`, `object`, `created` and `model` of the answer as a plain one.
    pub(super) fn into_envelope(mut self) -> JsonObject {
        self.identity.fill(&self.settings, &mut self.shown.ids);
        self.identity.envelope("chat.completion", JsonObject::new())
    }

    /// Ends the answer. In a loop this writes the finish chunk, the usage chunk if the client asked and
    /// there is a count, and `[DONE]`; otherwise only what of these the upstream left out.
    pub fn finish(&mut self, reason: FinishReason, usage: Option<&JsonObject>, out: &mut Vec<u8>) {
        if self.over {
            return;
        }
        match self.settings.mode {
            Mode::Loop => {
                self.show_finish(reason, out);
                if let Some(usage) = usage.filter(|_| self.settings.include_usage) {
                    self.show_usage(usage, out);
                }
            }
            Mode::PassThrough => self.pass_finish(reason, out),
        }
        if !self.pass.done_shown {
            out.extend_from_slice(b"data: [DONE]\n\n");
        }
        self.over = true;
    }

    /// Ends the answer with an error.
    pub fn fail(&mut self, error: &ErrorBody, out: &mut Vec<u8>) {
        if !self.over {
            self.release(out);
            write_event(&error.to_value(), out);
            self.over = true;
        }
    }

    /// A chunk without choices that carries extra fields, for news that are not part of the answer.
    pub fn note(&mut self, fields: &JsonObject, out: &mut Vec<u8>) {
        if !self.over {
            self.release(out);
            let mut chunk = self.envelope(JsonObject::new());
            chunk.insert("choices".to_owned(), Value::Array(Vec::new()));
            chunk.extend(fields.clone());
            write_event(&Value::Object(chunk), out);
        }
    }
}

/// What an event of the name `error`, or a field of that name, says, in whatever form.
fn error_event(data: &str) -> StreamError {
    let (error, status) = ErrorBody::in_error_event(data.as_bytes());
    StreamError::Upstream(error.into(), status)
}

/// An error that does not stand in the data: a field `error` (llama.cpp), or bare JSON between the events.
/// Readers of event streams skip both, and an answer that failed would look like one that has ended.
fn error_outside_data(event: &SseEvent) -> Option<StreamError> {
    let said = |text: &&str| !matches!(text.trim(), "" | "null");
    if let Some(error) = event.field("error").filter(said) {
        return Some(error_event(error));
    }
    if !event.is_dataless() || event.is_comment() {
        return None;
    }
    let (error, status) = ErrorBody::in_ok_body(event.raw())?;
    Some(StreamError::Upstream(error.into(), status))
}

/// One event of one `data:` line.
fn write_event(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    // A `Value` has text keys only, and a `Vec` takes every byte: this cannot fail.
    let _ = serde_json::to_writer(&mut *out, value);
    out.extend_from_slice(b"\n\n");
}

/// A block as it came, with LF for every line end, so that one answer has one kind, and ended with a blank
/// line if the stream broke off before it.
fn write_raw(raw: &[u8], out: &mut Vec<u8>) {
    let mut rest = raw;
    while let Some(end) = memchr(b'\r', rest) {
        out.extend_from_slice(&rest[..end]);
        out.push(b'\n');
        let is_pair = rest[end..].starts_with(b"\r\n");
        rest = &rest[end + 1 + usize::from(is_pair)..];
    }
    out.extend_from_slice(rest);
    if !out.ends_with(b"\n\n") {
        out.extend_from_slice(if out.ends_with(b"\n") { b"\n" } else { b"\n\n" });
    }
}

#[cfg(test)]
mod tests;
