//! Our own words for tools and calls, shared by everything above and made of nothing below.
//!
//! A [`Tool`] is what a server offers, a [`ToolCall`] what a model asks for, and a [`ToolResult`] or a
//! [`CallError`] what came of it. Neither the OpenAI nor the MCP wire format is known here.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A JSON object, with its members in the order they came.
pub type JsonObject = Map<String, Value>;

/// The name of a server in the configuration: 1–64 of `A-Z a-z 0-9 _ -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(Arc<str>);

/// Why a text is not a [`ServerId`] or a [`FunctionName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The text is longer than 64 bytes.
    #[error("a name has at most 64 characters, this one has {0}")]
    TooLong(usize),
    /// The text holds something outside the alphabet.
    #[error("`{0}` is not allowed in a name; allowed are letters, digits, `_` and `-`")]
    Forbidden(char),
    /// A function name begins with something other than a letter.
    #[error("a function name starts with a letter")]
    Start,
}

/// Longest [`FunctionName`] and [`ServerId`], in characters (OpenAI, `FunctionObject.name`).
pub const MAX_NAME: usize = 64;

fn check_alphabet(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if let Some(c) = text
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')))
    {
        return Err(NameError::Forbidden(c));
    }
    if text.len() > MAX_NAME {
        return Err(NameError::TooLong(text.len()));
    }
    Ok(())
}

impl ServerId {
    /// Reads a server's name, refusing what is outside the alphabet or the length.
    pub fn parse(text: &str) -> Result<ServerId, NameError> {
        check_alphabet(text)?;
        Ok(ServerId(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A tool's name as a model sees it: 1–64 of `A-Z a-z 0-9 _ -`, starting with a letter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionName(Arc<str>);

impl FunctionName {
    /// Reads a function name, refusing what an upstream would refuse.
    pub fn parse(text: &str) -> Result<FunctionName, NameError> {
        check_alphabet(text)?;
        if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(NameError::Start);
        }
        Ok(FunctionName(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a tool says about itself; every hint may be absent, and none of them is to be trusted
/// further than its server is (MCP, `ToolAnnotations`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The tool changes nothing.
    pub read_only: Option<bool>,
    /// The tool may destroy what is there.
    pub destructive: Option<bool>,
    /// Calling twice with the same arguments does no more than calling once.
    pub idempotent: Option<bool>,
    /// The tool reaches things outside its server.
    pub open_world: Option<bool>,
}

impl Annotations {
    /// A call that failed may be sent again: it says that it changes nothing, or nothing more.
    pub fn is_repeatable(self) -> bool {
        self.read_only == Some(true) || self.idempotent == Some(true)
    }

    /// The tool says that it changes things. One that says nothing may change things or not.
    pub fn changes_things(self) -> bool {
        match self.read_only {
            Some(read_only) => !read_only,
            None => self.destructive == Some(true),
        }
    }
}

/// One tool as its server describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The name the server knows it by.
    pub name: String,
    /// A title for people.
    pub title: Option<String>,
    /// Its description for the model.
    pub description: Option<String>,
    /// JSON Schema of the arguments; always an object.
    pub input_schema: JsonObject,
    /// JSON Schema of `structured_content`, where the server gives one.
    pub output_schema: Option<Value>,
    /// What the tool says about itself.
    pub annotations: Annotations,
    /// Every other member as the server wrote it: `annotations` in full, `icons`, `_meta`, `execution`, and
    /// unknown ones. For MCP clients, to whom the tool is listed unharmed.
    pub extra: JsonObject,
}

/// One call as a model asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The id that ties the tool message to the call; never empty, unique within its turn.
    pub id: String,
    /// The function's name as the model wrote it, mended by `translate::names::mend`.
    pub name: String,
    /// The arguments as the model wrote them: a text that should be a JSON object.
    pub arguments: String,
}

/// What a tool answered, whether it calls that a success or not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolResult {
    /// The parts of the answer, in order.
    pub content: Vec<Content>,
    /// The machine-readable answer, where there is one; any JSON value.
    pub structured_content: Option<Value>,
    /// The tool says that it failed.
    pub is_error: bool,
    /// How the result changes the state of a session (`_meta.state_delta`); for toolway alone.
    pub state_delta: Option<Value>,
    /// How long it serves again, as its server says; for toolway alone.
    pub cache_hint: Option<CacheHint>,
}

/// `ttlMs` and `cacheScope` of a result (MCP 2026-07-28, `CacheableResult`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHint {
    /// So many milliseconds.
    pub ttl_ms: u64,
    /// `cacheScope` is `"public"`: for every client.
    pub is_public: bool,
}

impl ToolResult {
    /// A result of one text.
    pub fn text(text: impl Into<String>) -> ToolResult {
        ToolResult {
            content: vec![Content::Text(text.into())],
            ..ToolResult::default()
        }
    }
}

/// One part of a tool's answer (MCP, `ContentBlock`).
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// A picture, base64 without line breaks.
    Image {
        /// `image/png` and so on.
        mime_type: String,
        /// Base64 as it came.
        data: String,
    },
    /// Sound, base64 without line breaks.
    Audio {
        /// `audio/wav` and so on.
        mime_type: String,
        /// Base64 as it came.
        data: String,
    },
    /// A text resource whose body is here.
    TextResource {
        /// Where it is.
        uri: String,
        /// Its type, where known.
        mime_type: Option<String>,
        /// Its body.
        text: String,
    },
    /// A binary resource whose body is here.
    BlobResource {
        /// Where it is.
        uri: String,
        /// Its type, where known.
        mime_type: Option<String>,
        /// Base64 as it came.
        blob: String,
    },
    /// A resource that could be read.
    ResourceLink {
        /// Where it is.
        uri: String,
        /// Its name.
        name: String,
        /// What it is.
        description: Option<String>,
        /// Its type, where known.
        mime_type: Option<String>,
    },
    /// A block of a kind that is not known here, kept as it came.
    Unknown(Value),
}

impl Content {
    /// How many bytes its texts take, base64 as it is.
    pub fn text_bytes(&self) -> usize {
        match self {
            Content::Text(text) | Content::TextResource { text, .. } => text.len(),
            Content::Image { data, .. } | Content::Audio { data, .. } => data.len(),
            Content::BlobResource { blob, .. } => blob.len(),
            Content::ResourceLink { uri, name, .. } => uri.len() + name.len(),
            Content::Unknown(block) => block.as_object().map_or(0, |it| {
                let texts = it.values().filter_map(Value::as_str);
                texts.map(str::len).sum()
            }),
        }
    }
}

/// How far a running call has come (MCP, `notifications/progress`).
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// How much is done; grows with every message.
    pub progress: f64,
    /// Of how much, where known.
    pub total: Option<f64>,
    /// What is being done, for people.
    pub message: Option<String>,
}

/// Why a call produced no result of the tool's own.
///
/// The texts go to the model: they name no internal address and hold no HTML, and say what to do next.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The arguments are not JSON, or not an object. Nothing was sent.
    #[error("{message}")]
    InvalidArgumentsJson {
        /// What is wrong, and where.
        message: String,
    },
    /// The arguments do not fit the tool's schema. Nothing was sent.
    #[error("{path}: {message}")]
    InvalidParams {
        /// JSON Pointer to the offending value; empty for the whole.
        path: String,
        /// What is wrong.
        message: String,
        /// The part of the schema that was not met.
        input_schema: Value,
    },
    /// The model named a tool that is not offered. Nothing was sent.
    #[error("there is no tool named `{name}`")]
    UnknownTool {
        /// The name as the model wrote it.
        name: String,
        /// Offered names that look like it, the closest first; at most three.
        did_you_mean: Vec<String>,
    },
    /// The server was silent for too long; the call may still have happened.
    #[error("the tool did not answer within {} s", after.as_secs_f64())]
    Timeout {
        /// How long was waited.
        after: Duration,
    },
    /// The call was given up before it ended.
    #[error("the call was cancelled")]
    Cancelled,
    /// The policy refused the call. Nothing was sent.
    #[error("{reason}")]
    Denied {
        /// Why, for the model.
        reason: String,
    },
    /// A person has to agree to the call first, and nobody has decided yet. Nothing was sent.
    #[error(
        "a person has to agree to this call first: {reason}. It waits for approval as `{id}`; tell the user to approve it \
         (`toolway approve {id}`), and make the same call again then"
    )]
    WaitingForApproval {
        /// The confirmation that it waits for.
        id: String,
        /// The rule that asks, and why.
        reason: String,
    },
    /// Too many calls are waiting for this server. Nothing was sent.
    #[error("the server is busy; try again in a moment")]
    Busy,
    /// The server is not there, or went away.
    #[error("{message}")]
    UpstreamUnavailable {
        /// What happened, for the model.
        message: String,
        /// The call cannot have happened.
        unsent: bool,
    },
    /// The server, or a proxy before it, answered with an HTTP error.
    #[error("{message}")]
    Refused {
        /// What happened, for the model.
        message: String,
        /// What the status says of the call.
        refusal: RefusalKind,
        /// The pause that was asked for; `Duration::MAX` where it cannot be read.
        retry_after: Option<Duration>,
    },
    /// The server answered with a JSON-RPC error, or with something that is no answer.
    #[error("{message}")]
    Protocol {
        /// The JSON-RPC code.
        code: i64,
        /// The server's message.
        message: String,
        /// What the server added.
        data: Option<Value>,
    },
}

impl CallError {
    /// The error for the log: without what a server, a model or a client wrote, such as arguments and keys.
    pub fn for_log(&self) -> Cow<'static, str> {
        match self {
            CallError::InvalidArgumentsJson { .. } => "the arguments are not a JSON object".into(),
            CallError::InvalidParams { .. } => "the arguments do not fit the tool's schema".into(),
            CallError::UnknownTool { .. } => "there is no such tool".into(),
            CallError::Protocol { code, .. } => {
                format!("the server answered with the JSON-RPC error {code}").into()
            }
            CallError::Timeout { .. }
            | CallError::Cancelled
            | CallError::Denied { .. }
            | CallError::Busy
            | CallError::UpstreamUnavailable { .. }
            | CallError::Refused { .. } => self.to_string().into(),
            CallError::WaitingForApproval { .. } => "the call waits for approval".into(),
        }
    }
}

/// What the HTTP status of a refused call says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The call was not carried out, and the same call would be refused again.
    Final,
    /// The call was not carried out; the same call may be accepted later.
    Later,
    /// The call may have been carried out.
    Unclear,
}

impl RefusalKind {
    /// Only statuses whose definition says that the request was not processed (RFC 9110, 15.4 and 15.5; RFC 6585;
    /// RFC 8470). A redirect that comes here could not be followed.
    /// Proxies answer 408 and 5xx for servers that have run the call, and 409, 410, 422 and 424 may be what came of it.
    pub fn of_status(status: u16) -> RefusalKind {
        match status {
            307 | 308 | 400 | 401 | 403 | 404 | 405 | 407 | 411 | 413 | 414 | 415 | 417 | 421
            | 426 | 428 | 431 => RefusalKind::Final,
            425 | 429 => RefusalKind::Later,
            _ => RefusalKind::Unclear,
        }
    }
}

impl CallError {
    /// The stable `type` a model and a script can tell the failure by.
    pub fn kind(&self) -> &'static str {
        match self {
            CallError::InvalidArgumentsJson { .. } => "invalid_arguments_json",
            CallError::InvalidParams { .. } => "invalid_params",
            CallError::UnknownTool { .. } => "unknown_tool",
            CallError::Timeout { .. } => "timeout",
            CallError::Cancelled => "cancelled",
            CallError::Denied { .. } | CallError::WaitingForApproval { .. } => "denied",
            CallError::Busy => "busy",
            CallError::Refused {
                refusal: RefusalKind::Later,
                ..
            } => "busy",
            CallError::UpstreamUnavailable { .. } | CallError::Refused { .. } => {
                "upstream_unavailable"
            }
            CallError::Protocol { .. } => "protocol_error",
        }
    }

    /// The call certainly did not happen.
    pub fn is_unsent(&self) -> bool {
        match self {
            CallError::InvalidArgumentsJson { .. }
            | CallError::InvalidParams { .. }
            | CallError::UnknownTool { .. }
            | CallError::Denied { .. }
            | CallError::WaitingForApproval { .. }
            | CallError::Busy => true,
            CallError::UpstreamUnavailable { unsent, .. } => *unsent,
            CallError::Refused { refusal, .. } => *refusal != RefusalKind::Unclear,
            CallError::Timeout { .. } | CallError::Cancelled | CallError::Protocol { .. } => false,
        }
    }
}

/// A duration as results and the log have it: whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_name_starts_with_a_letter() {
        assert_eq!(FunctionName::parse("_x"), Err(NameError::Start));
        assert_eq!(FunctionName::parse("1x"), Err(NameError::Start));
        assert!(FunctionName::parse("x1_-").is_ok());
    }

    #[test]
    fn a_name_of_65_characters_is_too_long() {
        assert!(FunctionName::parse(&"a".repeat(64)).is_ok());
        assert_eq!(
            FunctionName::parse(&"a".repeat(65)),
            Err(NameError::TooLong(65))
        );
    }

    #[test]
    fn only_a_status_that_says_so_shows_that_a_call_was_not_carried_out() {
        let is = |refusal| (300..600).filter(move |it| RefusalKind::of_status(*it) == refusal);
        let last = [
            307, 308, 400, 401, 403, 404, 405, 407, 411, 413, 414, 415, 417, 421, 426, 428, 431,
        ];
        assert_eq!(is(RefusalKind::Final).collect::<Vec<_>>(), last);
        assert_eq!(is(RefusalKind::Later).collect::<Vec<_>>(), [425, 429]);
        for status in [
            408, 409, 410, 422, 423, 424, 451, 499, 500, 502, 503, 504, 529,
        ] {
            assert_eq!(
                RefusalKind::of_status(status),
                RefusalKind::Unclear,
                "{status}"
            );
        }
    }

    #[test]
    fn a_dot_is_named_in_the_refusal() {
        assert_eq!(ServerId::parse("a.b"), Err(NameError::Forbidden('.')));
    }
}
