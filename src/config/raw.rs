//! The configuration as it is written: every key, its meaning, its default and its unit.
//!
//! Nothing is checked here beyond the shape. `docs/configuration.md` is made from the comments on the
//! fields; the first sentence says what the key is for, `Default:` what holds without it.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};

use super::duration;

/// `toolway.toml` from top to bottom; what stands before the first table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawConfig {
    /// The address to listen on. Default: `"127.0.0.1:4242"`.
    pub bind: Option<String>,
    /// Keys that clients must show as `Authorization: Bearer …`; each a secret. Default: none, which is
    /// allowed on loopback only.
    pub api_keys: Option<Vec<String>>,
    /// Where no `api_keys` are configured, anybody may use it, wherever it listens. Default: `false`.
    pub allow_anonymous: Option<bool>,
    /// Names that the `Host` header may have where no `api_keys` are configured, besides loopback and, off
    /// loopback, IP addresses; `"*"` for any. Web pages of these hosts may send requests, with `api_keys` too.
    /// Default: none.
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins of web pages that may call from elsewhere and read the answers (CORS), such as
    /// `"https://app.example"`; `"*"` for any, beside `api_keys` only. Default: none.
    pub cors_origins: Option<Vec<String>>,
    /// Longest request body that toolway reads, in bytes, 1024 to 1 GiB; forwarded bodies are streamed and have no
    /// bound. Default: `33554432` (32 MiB).
    pub max_body_bytes: Option<i64>,
    /// Deepest nesting of a request body, 8 to 1000. Default: `128`.
    pub max_body_depth: Option<i64>,
    /// Bytes of request bodies that are held at one time by all requests together, and of the values that are built
    /// from them, at least `max_body_bytes`; what does not fit gets 503. An MCP message takes twice its length while it
    /// is read. Default: `268435456` (256 MiB).
    pub max_inflight_bytes: Option<i64>,
    /// Requests that are served side by side, streams included, 1 to 1000000; more are told to come back.
    /// Default: `4096`.
    pub max_requests: Option<i64>,
    /// How long running requests may take to end when toolway is stopped; those that are still running then end with
    /// an error. Default: `"10s"`.
    pub shutdown_grace: Option<RawDuration>,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as
    /// `info,toolway::upstream=debug`. Default: `"info"`.
    pub log: Option<String>,
    /// How it is logged: `"text"` for people, `"json"` for machines. Default: `"text"`.
    pub log_format: Option<String>,
    /// How long after toolway's own start a chat and a list (`tools/list` and the like) wait for MCP servers that are
    /// still starting. What is not there by then is named in `X-Toolway-Warning`, in the log and in `/health`, and
    /// MCP clients get `list_changed` when it comes. Default: `"1.5s"`.
    pub start_wait: Option<RawDuration>,
    /// The model providers; the first whose `models` match takes the request. Default: OpenAI with the
    /// client's own key.
    pub upstreams: Vec<RawUpstream>,
    /// The bounds of the tool loop.
    #[serde(rename = "loop")]
    pub limits: RawLoop,
    /// The MCP servers by name.
    pub servers: BTreeMap<String, RawServer>,
    /// Groups of OpenAI-style functions by name.
    pub functions: BTreeMap<String, RawFunctions>,
    /// What is behind `/mcp/NAME`, by name.
    pub profiles: BTreeMap<String, RawProfile>,
}

/// One model provider: a `[[upstreams]]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawUpstream {
    /// Its name in logs and messages; each name once. Default: the host of `base_url`.
    pub name: Option<String>,
    /// Where its API is; `/chat/completions` and the like are added to it. Without a path it gets `/v1`; an API
    /// without any path is written `"https://host/."`. Required.
    pub base_url: Option<String>,
    /// Its key, a secret. Default: none; see `client_key`.
    pub api_key: Option<String>,
    /// The client's own key goes to this upstream: `Authorization`, `api-key`, `x-api-key`, `x-goog-api-key`,
    /// `x-goog-user-project`, `Ocp-Apim-Subscription-Key`, `cf-aig-authorization`, `Helicone-Auth`,
    /// `x-litellm-api-key`, `x-portkey-api-key`, `x-portkey-virtual-key`, `x-amz-security-token`, `x-auth-token`,
    /// `OpenAI-Organization` and `OpenAI-Project`. One upstream at most can have it, no other ever receives
    /// these headers, and where `api_keys` are configured none does. Default: `true` for an only upstream
    /// that has no key of its own, else `false`.
    pub client_key: Option<bool>,
    /// Headers added to every request; the values are secrets. Default: none.
    pub headers: Option<BTreeMap<String, String>>,
    /// Patterns of the models it has; `*` stands for anything. Default: every model.
    pub models: Option<Vec<String>>,
    /// Most tools it takes in one request, 1 to 10000. Default: `128`.
    pub max_tools: Option<i64>,
    /// Forms of tool calls in plain text that are read as calls: `"tool_call_tags"` (Hermes, Qwen),
    /// `"fenced_json"`, `"python_tag"` (Llama 3), `"mistral"`, `"harmony"` (gpt-oss). Default: none.
    pub text_tool_calls: Option<Vec<String>>,
    /// `<think>…</think>` in the text is split off as reasoning. Default: `false`.
    pub think_tags: Option<bool>,
    /// Reasoning goes back to the model with the turn it belongs to. Default: `true`.
    pub send_reasoning: Option<bool>,
    /// What it takes in user messages besides text: `"image"`, `"audio"`. Default: none.
    pub modalities: Option<Vec<String>>,
    /// An event of its stream that is no JSON is skipped instead of ending the stream with an error.
    /// Default: `false`.
    pub skip_invalid_events: Option<bool>,
    /// Longest wait for a connection. Default: `"10s"`.
    pub connect_timeout: Option<RawDuration>,
    /// Longest wait for the first byte of an answer, once the request was sent. Default: `"5m"`.
    pub first_byte_timeout: Option<RawDuration>,
    /// Longest silence within an answer. Default: `"2m"`.
    pub silence_timeout: Option<RawDuration>,
    /// How often a request is sent again after a failure that is safe to repeat, 0 to 10. Default: `2`.
    pub retries: Option<i64>,
}

/// The bounds of the tool loop: the `[loop]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawLoop {
    /// Most model calls of one request, 1 to 1000; at the bound the model is asked once more without
    /// tools. Default: `10`.
    pub max_rounds: Option<i64>,
    /// Longest silence of a tool, the wait for its turn included; progress resets it. Default: `"30s"`.
    pub tool_timeout: Option<RawDuration>,
    /// Longest time for a whole request, also of one that is only forwarded. Default: `"10m"`.
    pub request_timeout: Option<RawDuration>,
    /// How often an SSE comment goes out while nothing else does. Default: `"5s"`.
    pub keepalive: Option<RawDuration>,
    /// Longest text of one result that goes to the model, in bytes, 256 to 64 MiB. Default: `65536`.
    pub max_result_bytes: Option<i64>,
    /// Calls of one request that run side by side, 1 to 1000. Default: `8`.
    pub parallel_calls: Option<i64>,
    /// Most calls of one turn, 1 to 10000; the rest get an error. Default: `64`.
    pub max_calls: Option<i64>,
}

/// One MCP server: a `[servers.NAME]` table. The name is 1–64 of `A-Z a-z 0-9 _ -`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawServer {
    /// The program that is started, looked up in `PATH`. Either this or `url`.
    pub command: Option<String>,
    /// Its arguments; `${NAME}` is replaced from the environment. Default: none.
    pub args: Option<Vec<String>>,
    /// Environment variables that it gets besides the usual few; the values are secrets. Default: none.
    pub env: Option<BTreeMap<String, String>>,
    /// Names of toolway's own environment variables that it gets besides the usual few, where they are set.
    /// Default: none.
    pub inherit_env: Option<Vec<String>>,
    /// Working directory of the process. Default: toolway's own.
    pub cwd: Option<String>,
    /// Where it is reached: Streamable HTTP, or legacy HTTP+SSE. Either this or `command`.
    pub url: Option<String>,
    /// Headers sent with every request; the values are secrets. Default: none.
    pub headers: Option<BTreeMap<String, String>>,
    /// The transport: `"stdio"`, `"http"` or `"streamable-http"`, `"sse"`. Default: what fits; for a URL
    /// both are tried in this order.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Patterns of the tools that are offered, by the server's own names: `"read_*"`; `"!delete_*"` hides what it
    /// matches, whatever else shows it. With only `!` patterns every other tool is offered. A hidden tool is on no
    /// list and cannot be called. Default: all.
    pub tools: Option<Vec<String>>,
    /// Calls on it run one after another, in order; while one waits for a person, the next runs. Default: `false`.
    pub stateful: Option<bool>,
    /// Longest start, to the first tool list. Default: `"60s"`.
    pub start_timeout: Option<RawDuration>,
    /// Calls that run on it side by side, 1 to 1000. Default: `16`, or `1` when `stateful`.
    pub parallel_calls: Option<i64>,
    /// Longest message taken from it, in bytes, 1024 to 1 GiB. Default: `16777216` (16 MiB).
    pub max_message_bytes: Option<i64>,
    /// `GET /readyz` answers 503 until this server is ready. Default: `false`.
    pub required: Option<bool>,
    /// It is used at all. Default: `true`.
    pub enabled: Option<bool>,
}

/// A group of OpenAI-style functions and one way to run them: a `[functions.NAME]` table. The name is 1–64
/// of `A-Z a-z 0-9 _ -`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawFunctions {
    /// The file that defines them: an OpenAI `tools` array, or the legacy `functions`; at most 5000.
    /// Required, except beside `model` and `openapi`.
    pub definitions: Option<String>,
    /// Run by a webhook: the URL that `{"tool_calls": […]}` is posted to, and that answers
    /// `{"tool_responses": […]}`.
    pub endpoint: Option<String>,
    /// Calls that arrive within this time are sent as one request of `endpoint`, at most `"1s"`. Default:
    /// each call is sent alone.
    pub batch: Option<RawDuration>,
    /// Most calls of one such request, 2 to 128. Default: `16`.
    pub max_batch: Option<i64>,
    /// Run by an HTTP request for each: its URL, in whose path and query `{function}` stands for the
    /// function's name and `{ARGUMENT}` for an argument; the other arguments are the body, or the rest of the
    /// query. A method may stand before it: `"GET https://…"`.
    pub url: Option<String>,
    /// The same by function, for those that differ. Default: none.
    pub urls: Option<BTreeMap<String, String>>,
    /// The method where the URL says none: `"GET"`, `"POST"`, `"PUT"`, `"PATCH"`, `"DELETE"`, `"HEAD"`.
    /// Default: `"POST"`.
    pub method: Option<String>,
    /// Run by a program, looked up in `PATH`, or `"./…"` beside the configuration file: it is started for each call,
    /// reads the arguments as JSON from its standard input and writes the result to its standard output. No shell is
    /// between.
    pub command: Option<String>,
    /// Its arguments; `{function}` stands for the function's name, as the variable `TOOLWAY_FUNCTION` does.
    /// Default: none.
    pub args: Option<Vec<String>>,
    /// Environment variables that it gets besides the usual few; the values are secrets. Default: none.
    pub env: Option<BTreeMap<String, String>>,
    /// Working directory of the program. Default: toolway's own.
    pub cwd: Option<String>,
    /// Run by asking a model: its name; one of the upstreams must have it.
    pub model: Option<String>,
    /// What the model is asked; `{ARGUMENT}` stands for an argument, `{function}` for the function's name,
    /// `{{…}}` for braces. Required beside `model`.
    pub prompt: Option<String>,
    /// What is said about the one tool that a `model` without `definitions` is; it is named like the group
    /// and takes one text, `input`. Default: `Asks the model …`.
    pub description: Option<String>,
    /// Run by an HTTP API: its OpenAPI 3.x document, a file in JSON or YAML of at most 32 MiB, each of whose
    /// operations becomes a function.
    pub openapi: Option<String>,
    /// Where that API is, with the path that all operations begin with. Default: what the document says in
    /// `servers`.
    pub base_url: Option<String>,
    /// The operations that are offered, by `operationId`; `*` stands for any characters. Default: all.
    pub operations: Option<Vec<String>>,
    /// Headers sent with every request of `endpoint`, `url` and `openapi`; the values are secrets. Default: none.
    pub headers: Option<BTreeMap<String, String>>,
    /// Longest run of a call. Default: `tool_timeout` of `[loop]`.
    pub timeout: Option<RawDuration>,
    /// Longest answer taken, or output of a command, in bytes, 1024 to 1 GiB. Default: `16777216` (16 MiB).
    pub max_response_bytes: Option<i64>,
    /// Calls that run side by side, 1 to 1000; up to 256 more wait. Default: `16`.
    pub parallel_calls: Option<i64>,
    /// They are offered at all. Default: `true`.
    pub enabled: Option<bool>,
}

/// What MCP clients see at `/mcp/NAME`: a `[profiles.NAME]` table. At `/mcp` they see everything.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawProfile {
    /// The server (or group of functions) that is shown with all it has, under its own names. Either this
    /// or `tools`.
    pub server: Option<String>,
    /// Patterns of the tools that are shown, as in `X-Toolway-Tools`: `"files__*"`, `"!files__delete"`.
    pub tools: Option<Vec<String>>,
}

/// A time as it is written, with its unit: `"500ms"`, `"30s"`, `"10m"`, `"1h"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawDuration(pub Duration);

impl<'de> Deserialize<'de> for RawDuration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RawDuration, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = RawDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with its unit, such as \"30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawDuration, E> {
                duration::parse(text).map(RawDuration).map_err(E::custom)
            }
        }
        from.deserialize_str(Text)
    }
}
