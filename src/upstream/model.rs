//! Model providers: one request out, one answer or one stream back.

use std::time::Duration;

use url::Url;

use crate::{secret::Secret, translate::stream::TextCalls};

/// One model provider, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name, for logs and messages.
    pub name: String,
    /// Where its API is; `/chat/completions` is added to the path.
    pub base_url: Url,
    /// Its key; absent: the client's own `Authorization` is passed on.
    pub api_key: Option<Secret>,
    /// Added to every request.
    pub headers: Vec<(http::HeaderName, Secret)>,
    /// Patterns (`*` stands for anything) of the models it has; empty: every model.
    pub models: Vec<String>,
    /// Most tools it takes in one request. Default: 128.
    pub max_tools: usize,
    /// Forms of tool calls in plain text that are read as calls. Default: none.
    pub text_tool_calls: TextCalls,
    /// `<think>…</think>` in the text is split off as reasoning. Default: false.
    pub think_tags: bool,
    /// Reasoning goes back to the model with the turn it belongs to. Default: true.
    pub send_reasoning: bool,
    /// It takes pictures in user messages. Default: false.
    pub images: bool,
    /// It takes sound in user messages. Default: false.
    pub audio: bool,
    /// An event that is no JSON is skipped instead of ending the stream with an error. Default: false.
    pub skip_invalid_events: bool,
    /// Longest wait for a connection. Default: 10 s.
    pub connect_timeout: Duration,
    /// Longest wait for the first byte of an answer. Default: 5 min.
    pub first_byte_timeout: Duration,
    /// Longest silence within an answer. Default: 2 min.
    pub silence_timeout: Duration,
    /// How often a request is sent again after a failure that is safe to repeat. Default: 2.
    pub retries: u32,
}
