//! A chat request, read only as far as the gateway needs it, borrowing the body.
//!
//! The messages are never parsed: a body of a megabyte costs one scan, not a tree. Everything that is not
//! changed goes to the upstream byte for byte ([`ChatRequest::compose`]). Contract: OpenAI's
//! `CreateChatCompletionRequest`, plus the `mcp` entry of the Responses API in `tools`.

use std::borrow::Cow;

use serde::{Deserialize, de::DeserializeOwned};

use crate::segmented_body::SegmentedBody;

mod choice;
mod members;
mod scan;
mod tools;

pub use self::{
    choice::{AllowedToolsMode, McpChoice, ToolChoice},
    members::{Change, JsonString, Raw, messages_of, splice_messages},
    tools::{AllowedTools, ClientTool, ClientToolKind, McpTool, RequireApproval},
};
use self::{members::Members, tools::Tools};

/// Most characters of a complaint about a value.
const MAX_COMPLAINT: usize = 200;

/// Why a request is refused, as OpenAI's error envelope says it (`type` is `invalid_request_error`).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// What is wrong, for the person who wrote the client.
    pub message: String,
    /// The member at fault, such as `messages` or `tools[2].server_label`.
    pub param: Option<String>,
    /// OpenAI's word for this kind of fault, where it has one.
    pub code: Option<&'static str>,
}

impl RequestError {
    /// A refusal of the body as a whole.
    pub fn body(message: impl Into<String>) -> RequestError {
        RequestError {
            message: message.into(),
            param: None,
            code: None,
        }
    }

    /// A member holds a value that cannot be used.
    pub fn value(param: impl Into<String>, message: impl Into<String>) -> RequestError {
        RequestError {
            message: message.into(),
            param: Some(param.into()),
            code: Some("invalid_value"),
        }
    }

    fn missing(param: &str) -> RequestError {
        RequestError {
            message: format!("Missing required parameter: '{param}'."),
            param: Some(param.to_owned()),
            code: Some("missing_required_parameter"),
        }
    }

    fn wrong_type(param: &str, expected: &str, found: &str) -> RequestError {
        let found = kind_of(found);
        RequestError {
            message: format!(
                "Invalid type for '{param}': expected {expected}, but got {found} instead."
            ),
            param: Some(param.to_owned()),
            code: Some("invalid_type"),
        }
    }
}

/// A chat request whose messages and unknown members are still the bytes that came.
#[derive(Debug)]
pub struct ChatRequest<'a> {
    members: Members<'a>,
    model: Cow<'a, str>,
    messages: Raw<'a>,
    stream: bool,
    include_usage: bool,
    n: u64,
    parallel_tool_calls: Option<bool>,
    tools: Tools<'a>,
    tool_choice: ToolChoice<'a>,
}

impl<'a> ChatRequest<'a> {
    /// Reads a body: UTF-8, JSON, an object, nested at most `max_depth` levels.
    ///
    /// Of a member that comes twice the last one counts, as in most JSON readers.
    pub fn parse(body: &'a [u8], max_depth: usize) -> Result<ChatRequest<'a>, RequestError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            RequestError::body(format!("The request body is not valid UTF-8: {error}."))
        })?;
        let members = Members::parse(text, max_depth)?;
        let model = required(&members, "model")?;
        let messages = required(&members, "messages")?;
        if !messages.get().starts_with('[') {
            return Err(RequestError::wrong_type(
                "messages",
                "an array of objects",
                messages.get(),
            ));
        }
        Ok(ChatRequest {
            model: Cow::Owned(read(model, "model", "a string")?),
            messages,
            stream: optional(&members, "stream", "a boolean")?.unwrap_or(false),
            include_usage: include_usage(&members)?,
            n: number_of_choices(&members)?,
            parallel_tool_calls: optional(&members, "parallel_tool_calls", "a boolean")?,
            tools: Tools::read(&members)?,
            tool_choice: ToolChoice::read(&members)?,
            members,
        })
    }

    /// The model the client asks for.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The client wants a stream.
    pub fn stream(&self) -> bool {
        self.stream
    }

    /// The client wants a usage chunk at the end of the stream.
    pub fn include_usage(&self) -> bool {
        self.include_usage
    }

    /// How many answers the client wants; 1 unless it says so.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Whether the model may call several tools at once; `None` where the client does not say.
    pub fn parallel_tool_calls(&self) -> Option<bool> {
        self.parallel_tool_calls
    }

    /// The messages as they came; a JSON array.
    pub fn messages(&self) -> Raw<'a> {
        self.messages
    }

    /// The tools that are the client's own: everything in `tools` but the `mcp` entries, and the
    /// deprecated `functions`.
    pub fn client_tools(&self) -> &[ClientTool<'a>] {
        &self.tools.client
    }

    /// The name of each of [`ChatRequest::client_tools`]; empty for one that has none.
    pub fn client_names(&self) -> Vec<&str> {
        let names = self.tools.client.iter().map(|tool| tool.name.as_deref());
        names.map(Option::unwrap_or_default).collect()
    }

    /// The `mcp` entries of `tools`, which choose among the gateway's tools.
    pub fn mcp_tools(&self) -> &[McpTool] {
        &self.tools.mcp
    }

    /// What the client says about the use of tools.
    pub fn tool_choice(&self) -> &ToolChoice<'a> {
        &self.tool_choice
    }

    /// The raw value of any member.
    pub fn member(&self, name: &str) -> Option<Raw<'a>> {
        self.members.find(name)
    }

    /// Some member comes more than once. Upstreams may differ on which of them counts, so that the body has to be
    /// composed anew.
    pub fn repeats_members(&self) -> bool {
        self.members.repeat()
    }

    /// The body again with some members replaced, added (at the end) or left out. Everything else stays
    /// byte for byte and in its order; of a member that comes twice only the one that counts is written.
    pub fn compose<'c>(&self, changes: &[(&str, Change<'_, 'c>)]) -> SegmentedBody<'c>
    where
        'a: 'c,
    {
        self.members.compose(changes)
    }

    /// The value of `tools` for the upstream: the client's own as they came, so that they keep their
    /// places in an upstream's complaint, then the gateway's (`offered`: JSON objects, or texts of several joined by
    /// commas). In parts; `None` if there are none at all.
    pub fn tools_with<'c>(&self, offered: &[&'c str]) -> Option<Vec<&'c str>>
    where
        'a: 'c,
    {
        self.tools.with(offered)
    }
}

fn include_usage(members: &Members<'_>) -> Result<bool, RequestError> {
    #[derive(Default, Deserialize)]
    struct StreamOptions {
        include_usage: Option<bool>,
    }
    let options: Option<StreamOptions> = optional(
        members,
        "stream_options",
        "an object with a boolean 'include_usage'",
    )?;
    Ok(options
        .and_then(|options| options.include_usage)
        .unwrap_or(false))
}

fn number_of_choices(members: &Members<'_>) -> Result<u64, RequestError> {
    let n = optional(members, "n", "a whole number")?.unwrap_or(1);
    if n == 0 {
        return Err(RequestError::value(
            "n",
            "Invalid value for 'n': it must be at least 1.",
        ));
    }
    Ok(n)
}

fn required<'a>(members: &Members<'a>, name: &str) -> Result<Raw<'a>, RequestError> {
    members
        .present(name)
        .ok_or_else(|| RequestError::missing(name))
}

/// Reads a member that may be absent or null.
fn optional<T: DeserializeOwned>(
    members: &Members<'_>,
    name: &str,
    expected: &str,
) -> Result<Option<T>, RequestError> {
    members
        .present(name)
        .map(|raw| read(raw, name, expected))
        .transpose()
}

fn read<T: DeserializeOwned>(raw: Raw<'_>, param: &str, expected: &str) -> Result<T, RequestError> {
    serde_json::from_str(raw.get())
        .map_err(|_| RequestError::wrong_type(param, expected, raw.get()))
}

/// A reader's complaint, bounded: it may repeat a value of the body.
fn brief(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // Of a value that is wrong the place counts from the beginning of one member, and not of the body.
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = match error.is_data() {
        true => text.strip_suffix(&place).unwrap_or(&text),
        false => &text,
    };
    match text.char_indices().nth(MAX_COMPLAINT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn kind_of(raw: &str) -> &'static str {
    match raw.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

#[cfg(test)]
mod tests;
