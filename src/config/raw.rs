//! The configuration as it is written: every key, its meaning, its default and its unit.
//!
//! Nothing is checked here beyond the shape. `docs/configuration.md` is made from the comments on the
//! fields; the first sentence says what the key is for, `Default:` what holds without it.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};

use super::duration;

/// `toolway.toml`: the keys before the first table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawConfig {
    /// The address to listen on. Default: `"127.0.0.1:4242"`.
    pub bind: Option<String>,
    /// Keys that clients must send as `Authorization: Bearer …`; each is a secret. Default: none, which is
    /// allowed on loopback only.
    pub api_keys: Option<Vec<String>>,
    /// Allows clients without a key on any address, where no `api_keys` are configured. Default: `false`.
    pub allow_anonymous: Option<bool>,
    /// Names that the `Host` header may have where no `api_keys` are configured, besides loopback names and, off
    /// loopback, IP addresses; `"*"` allows any. Web pages of these hosts may send requests, with `api_keys` too.
    /// Default: none.
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins of web pages that may call from elsewhere and read the answers (CORS), such as
    /// `"https://app.example"`; `"*"` allows any and requires `api_keys`. Default: none.
    pub cors_origins: Option<Vec<String>>,
    /// Longest request body that toolway reads, in bytes, 1024 to 1 GiB; forwarded bodies are streamed and have no
    /// bound. Default: `33554432` (32 MiB).
    pub max_body_bytes: Option<i64>,
    /// Deepest nesting of a request body, 8 to 1000. Default: `128`.
    pub max_body_depth: Option<i64>,
    /// Most bytes that the bodies of all requests, and the values built from them, may take together; at least
    /// `max_body_bytes`. A request that does not fit gets 503. An MCP message takes twice its length while it is
    /// read. Default: `268435456` (256 MiB).
    pub max_inflight_bytes: Option<i64>,
    /// Most requests at a time, streams included, 1 to 1000000; further ones get 503. Default: `4096`.
    pub max_requests: Option<i64>,
    /// Time that running requests have to end after a stop signal; then they end with an error.
    /// Default: `"10s"`.
    pub shutdown_grace: Option<RawDuration>,
    /// The folder for what toolway keeps between requests, in the file `toolway.db`; `":memory:"` keeps it in memory.
    /// Mixed turns and responses survive a restart there. Default: the platform's folder for data of programs, such
    /// as `~/.local/share/toolway`.
    pub data_dir: Option<String>,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as
    /// `info,toolway::upstream=debug`. Default: `"info"`.
    pub log: Option<String>,
    /// Format of the log: `"text"` or `"json"`. Default: `"text"`.
    pub log_format: Option<String>,
    /// How long after the start of toolway chats and lists (`tools/list` and the like) wait for MCP servers that are
    /// still starting. Servers that are not ready by then are named in `X-Toolway-Warning`, in the log and in
    /// `/health`; MCP clients get `list_changed` when they are. Default: `"1.5s"`.
    pub start_wait: Option<RawDuration>,
    /// The model providers. A request goes to the first whose `models` match. Default: OpenAI with the
    /// client's own key.
    pub upstreams: Vec<RawUpstream>,
    /// Models under names of one's own.
    pub models: BTreeMap<String, RawModel>,
    /// The limits of the tool loop.
    #[serde(rename = "loop")]
    pub limits: RawLoop,
    /// The MCP servers by name.
    pub servers: BTreeMap<String, RawServer>,
    /// Groups of OpenAI-style functions by name.
    pub functions: BTreeMap<String, RawFunctions>,
    /// What `/mcp/NAME` shows, by name.
    pub profiles: BTreeMap<String, RawProfile>,
    /// Keys of clients by name.
    #[serde(rename = "keys")]
    pub client_keys: BTreeMap<String, RawKey>,
    /// Which calls may run.
    pub policy: RawPolicy,
    /// How a person is asked before a call.
    pub approvals: RawApprovals,
    /// What is recorded of calls.
    pub audit: RawAudit,
}

/// What is recorded of calls, decisions and servers (docs/audit.md): the `[audit]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawAudit {
    /// `false` switches it off. Default: `true`, because who called what is asked afterwards; nothing that a call holds is
    /// kept.
    pub enabled: Option<bool>,
    /// The folder of its files, `audit-TIME.jsonl`. Default: `audit` in `data_dir`.
    pub folder: Option<String>,
    /// How long records are kept, in days, 1 to 3650. Default: `30`.
    pub keep_days: Option<i64>,
    /// Most bytes of all files together, 1 MiB to 1 TiB; the oldest are deleted. Default: `268435456` (256 MiB).
    pub max_bytes: Option<i64>,
    /// Keeps the arguments of calls, without values under names such as `password`, `token`, `api_key` and
    /// `authorization`, and without the secrets of the configuration. Default: `false`.
    pub arguments: Option<bool>,
    /// Keeps the results of calls, likewise. Default: `false`.
    pub results: Option<bool>,
    /// Longest arguments and longest result that are kept of a call, in bytes, 16 to 1 MiB; the rest is cut off.
    /// Default: `4096`.
    pub max_value_bytes: Option<i64>,
}

/// How a person is asked before calls for which the policy says `ask`: the `[approvals]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawApprovals {
    /// What a chat does with such a call: `"wait"` for `wait`, with keep-alives; or `"end_turn"`, which tells the model at
    /// once that the call waits for approval. The same call goes through when it comes again after the approval, once.
    /// Default: `"wait"`.
    pub chat: Option<String>,
    /// How long a chat waits before the model is told. Default: `"60s"`.
    pub wait: Option<RawDuration>,
    /// How long a call can be approved and then made, and a refusal holds. Default: `"10m"`.
    pub expires: Option<RawDuration>,
    /// A secret that a decision over HTTP has to bring in the header `X-Toolway-Approval-Token`, beside a key; `toolway
    /// approve` and `deny` bring it. Answers of MCP clients and of Responses to their own questions need none. Default:
    /// none is needed.
    pub token: Option<String>,
}

/// A key of clients, beside those of `api_keys`: a `[keys.NAME]` table. The log and the rules name it so.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawKey {
    /// The key, a secret; clients send it as those of `api_keys`. Required.
    pub key: Option<String>,
    /// Patterns of the tools that its clients see, by their offered names: `"files__*"`, `"!files__delete"`. Others are
    /// not listed and cannot be called. Default: all.
    pub tools: Option<Vec<String>>,
    /// Patterns of the servers whose tools they see. Default: all.
    pub servers: Option<Vec<String>>,
    /// Lets its clients add, change, restart and remove servers while toolway runs. Default: `false`.
    pub admin: Option<bool>,
}

/// Which calls may run: the `[policy]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawPolicy {
    /// What happens to a call that no rule, no `risk` and no annotation decides: `"allow"`, `"ask"` or `"deny"`.
    /// Default: `"allow"`.
    pub default: Option<String>,
    /// Asks before calls of tools that say of themselves that they may destroy something (`destructiveHint`).
    /// Default: `false`.
    pub use_annotations: Option<bool>,
    /// The rules; the first that matches decides.
    pub rules: Vec<RawRule>,
}

/// A rule of the policy: a `[[policy.rules]]` table. It matches a call if everything that it says is true.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawRule {
    /// Patterns of servers. Default: all.
    pub servers: Option<Vec<String>>,
    /// Patterns of offered names, such as `"files__write_*"`; `"!pattern"` leaves out. Default: all.
    pub tools: Option<Vec<String>>,
    /// Patterns of keys: names of `[keys.NAME]`, and `"api_keys[0]"` and so on. Default: all requests, also those
    /// without a key.
    pub keys: Option<Vec<String>>,
    /// Conditions on values of the arguments, by JSON pointer: `{ "/path" = { inside = "/srv/data" } }`. Default: none.
    pub args: Option<BTreeMap<String, RawCondition>>,
    /// `"allow"`, `"ask"` (the call runs once a person has agreed) or `"deny"`. Required.
    pub action: Option<String>,
    /// Why, for the model and for people. Default: the name of the rule.
    pub reason: Option<String>,
}

/// A condition on a value of the arguments. All that it says has to be true; of a value that is absent or of another
/// type only a `not` is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawCondition {
    /// The value.
    pub equals: Option<serde_json::Value>,
    /// A list with the value.
    pub one_of: Option<Vec<serde_json::Value>>,
    /// A pattern for the whole text; `*` stands for any characters.
    pub glob: Option<String>,
    /// A regular expression that is found in the text; `^` and `$` bind it to its ends.
    pub regex: Option<String>,
    /// The least number.
    pub min: Option<f64>,
    /// The greatest number.
    pub max: Option<f64>,
    /// The absolute path of a folder that the path is in, or is. `.` and `..` are resolved; a relative path is not
    /// inside, and links are not followed.
    pub inside: Option<String>,
    /// A condition of which the contrary has to be true.
    pub not: Option<Box<RawCondition>>,
}

/// One model provider: a `[[upstreams]]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawUpstream {
    /// Its name in logs and messages; unique. Default: the host of `base_url`.
    pub name: Option<String>,
    /// Base URL of its API; `/chat/completions` and the like are appended. A URL without a path gets `/v1` (`/v1beta` with
    /// `api = "gemini"`); for an API at the root of a host write `"https://host/."`. Required.
    pub base_url: Option<String>,
    /// Its key, a secret. Default: none; see `client_key`.
    pub api_key: Option<String>,
    /// Sends the client's own key to this upstream: `Authorization`, `api-key`, `x-api-key`, `x-goog-api-key`,
    /// `x-goog-user-project`, `Ocp-Apim-Subscription-Key`, `cf-aig-authorization`, `Helicone-Auth`,
    /// `x-litellm-api-key`, `x-portkey-api-key`, `x-portkey-virtual-key`, `x-amz-security-token`, `x-auth-token`,
    /// `OpenAI-Organization` and `OpenAI-Project`. At most one upstream may have it. No other upstream
    /// receives these headers, and with `api_keys` none does. Default: `true` if there is only one upstream and
    /// it has no key, else `false`.
    pub client_key: Option<bool>,
    /// Headers added to every request; the values are secrets. Default: none.
    pub headers: Option<BTreeMap<String, String>>,
    /// Patterns of the names of its models; `*` matches any characters. Default: every model.
    pub models: Option<Vec<String>>,
    /// The API that it speaks: `"chat"` (chat completions), `"responses"`, `"anthropic"` (Messages), `"gemini"`
    /// (`generateContent`), or `"auto"`: chat completions, and Responses for the models that refuse tools there.
    /// Default: `"auto"`.
    pub api: Option<String>,
    /// Most tools that it accepts in one request, 1 to 10000. Default: `128`.
    pub max_tools: Option<i64>,
    /// Formats of tool calls within the text that are read as calls: `"tool_call_tags"` (Hermes, Qwen),
    /// `"fenced_json"`, `"python_tag"` (Llama 3), `"mistral"`, `"harmony"` (gpt-oss). Default: none.
    pub text_tool_calls: Option<Vec<String>>,
    /// Moves `<think>…</think>` from the text to the reasoning. Default: `false`.
    pub think_tags: Option<bool>,
    /// Sends reasoning back to the model with the turn that it belongs to. Default: `true`.
    pub send_reasoning: Option<bool>,
    /// Content that it accepts in user messages besides text: `"image"`, `"audio"`. Default: none.
    pub modalities: Option<Vec<String>>,
    /// Skips events of its stream that are not JSON, instead of ending the stream with an error.
    /// Default: `false`.
    pub skip_invalid_events: Option<bool>,
    /// Longest wait for a connection. Default: `"10s"`.
    pub connect_timeout: Option<RawDuration>,
    /// Longest wait for the first byte of a response, from the end of the request. Default: `"5m"`.
    pub first_byte_timeout: Option<RawDuration>,
    /// Longest pause within a response. Default: `"2m"`.
    pub silence_timeout: Option<RawDuration>,
    /// Most retries of a request after failures that are safe to repeat, 0 to 10. Default: `2`.
    pub retries: Option<i64>,
}

/// A model under a name of one's own: a `[models.NAME]` table. The name is chosen by clients as any model is, and comes
/// before a model of an upstream that has the same name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawModel {
    /// The models behind the name, each as `"UPSTREAM/MODEL"`, 1 to 16. The next one is asked if one cannot be reached,
    /// is silent or answers 401 to 404, 408, 429 or 5xx before anything of its answer was shown; one that failed is
    /// asked last for 1 to 60 seconds. Required.
    #[serde(rename = "use")]
    pub targets: Option<Vec<String>>,
    /// How often each of them is asked first, 0 to 1000, one number for each; the others follow in their order. Default:
    /// the first one is always asked first.
    pub weights: Option<Vec<i64>>,
}

/// The limits of the tool loop: the `[loop]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawLoop {
    /// Most model calls of one request, 1 to 1000; at the limit the model is asked once more without
    /// tools. Default: `10`.
    pub max_rounds: Option<i64>,
    /// Longest time without a result or progress of a tool, the wait in its queue included. Default: `"30s"`.
    pub tool_timeout: Option<RawDuration>,
    /// Longest time for a whole request, forwarded ones included. Default: `"10m"`.
    pub request_timeout: Option<RawDuration>,
    /// Interval of SSE comments while nothing else is sent. Default: `"5s"`.
    pub keepalive: Option<RawDuration>,
    /// Longest text of one tool result for the model, in bytes, 256 to 64 MiB. Default: `65536`.
    pub max_result_bytes: Option<i64>,
    /// Most calls of one request that run at the same time, 1 to 1000. Default: `8`.
    pub parallel_calls: Option<i64>,
    /// Most calls of one turn, 1 to 10000; the rest get an error. Default: `64`.
    pub max_calls: Option<i64>,
}

/// One MCP server: a `[servers.NAME]` table. The name is 1–64 of `A-Z a-z 0-9 _ -`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawServer {
    /// The program to start, found in `PATH`. Either this or `url`.
    pub command: Option<String>,
    /// Its arguments; `${NAME}` is replaced from the environment. Default: none.
    pub args: Option<Vec<String>>,
    /// Environment variables of the process, besides the usual few; the values are secrets. Default: none.
    pub env: Option<BTreeMap<String, String>>,
    /// Names of toolway's environment variables that the process inherits, besides the usual few. Default: none.
    pub inherit_env: Option<Vec<String>>,
    /// Working directory of the process. Default: toolway's own.
    pub cwd: Option<String>,
    /// URL of the server: Streamable HTTP, or legacy HTTP+SSE. Either this or `command`.
    pub url: Option<String>,
    /// Headers sent with every request; the values are secrets. Default: none.
    pub headers: Option<BTreeMap<String, String>>,
    /// The transport: `"stdio"`, `"http"` or `"streamable-http"`, `"sse"`. Default: `"stdio"` with `command`; with
    /// `url` toolway tries `"http"`, then `"sse"`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Patterns of the tools to offer, by the server's own names: `"read_*"`. `"!delete_*"` hides the tools that it
    /// matches, whatever other patterns say. With only `!` patterns every other tool is offered. A hidden tool is not
    /// listed and cannot be called. Default: all.
    pub tools: Option<Vec<String>>,
    /// How long the results of tools serve again, by patterns of the server's own names: `{ "get_*" = "60s" }`, at
    /// most `"24h"`; of several patterns that match, the longest counts, and `"0s"` keeps nothing. Not for tools that say
    /// that they change things. Default: as the results of read-only tools say (`ttlMs`).
    pub cache: Option<BTreeMap<String, RawDuration>>,
    /// How dangerous its tools are: `1` low, calls run; `2` medium, a person is asked first; `3` high, calls run where the
    /// server has `isolation`, and are refused elsewhere. A rule of the policy goes before 1 and 2.
    /// Default: the annotations and the default of the policy decide.
    pub risk: Option<i64>,
    /// The risk of tools, by patterns of the server's own names: `{ "delete_*" = 3, "read_*" = 1 }`; of several patterns
    /// that match, the highest level counts. Default: `risk`.
    pub risk_of: Option<BTreeMap<String, i64>>,
    /// Keeps the process apart from the machine. Only with `command`. Default: it runs as toolway does.
    pub isolation: Option<RawIsolation>,
    /// Runs its calls one after another, in order; while one waits for a person, the next one runs. Default: `false`.
    pub stateful: Option<bool>,
    /// `"eager"`: it runs always; `"on_demand"`: it is started to read its lists, stopped when nothing has used it for
    /// `idle_stop`, and started by the next call. Default: `"eager"`.
    pub start: Option<String>,
    /// How long an `"on_demand"` server runs without use. Default: `"10m"`.
    pub idle_stop: Option<RawDuration>,
    /// How many processes or connections of it run, 1 to 64; each call goes to the one with the fewest. Not for a
    /// `stateful` server. Default: `1`.
    pub instances: Option<i64>,
    /// Longest time from the start of the server to its first tool list. Default: `"60s"`.
    pub start_timeout: Option<RawDuration>,
    /// Most calls of each instance that run at the same time, 1 to 1000. Default: `16`, or `1` when `stateful`.
    pub parallel_calls: Option<i64>,
    /// Most calls of each instance that wait for their turn, 0 to 10000; for one more the server is busy. Default: `256`.
    pub queue: Option<i64>,
    /// Longest wait of a call for its turn; then the server is busy. Default: `loop.tool_timeout`.
    pub queue_wait: Option<RawDuration>,
    /// Longest message accepted from it, in bytes, 1024 to 1 GiB. Default: `16777216` (16 MiB).
    pub max_message_bytes: Option<i64>,
    /// `GET /readyz` answers 503 until this server is ready. Default: `false`.
    pub required: Option<bool>,
    /// `false` switches it off. Default: `true`.
    pub enabled: Option<bool>,
}

/// What keeps the process of a server apart from the machine (docs/isolation.md).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawIsolation {
    /// `"docker"`, `"podman"` or `"bubblewrap"`. Required.
    pub kind: Option<String>,
    /// The image of the container, in which `command` runs. Required for `"docker"` and `"podman"`, unknown elsewhere.
    pub image: Option<String>,
    /// Most memory, as a number with `k`, `m` or `g`. Default: `"512m"`.
    pub memory: Option<String>,
    /// Most processors, 0.01 to 1024. Default: `1.0`.
    pub cpus: Option<f64>,
    /// Most processes and threads, 1 to 100000. Default: `128`.
    pub pids: Option<i64>,
    /// The network of the container; for `"bubblewrap"` any name is the machine's own. Default: `"none"`.
    pub network: Option<String>,
    /// Files and folders of the machine that it sees: `"HOST:INSIDE"`, or `"HOST:INSIDE:ro"` if it must not change them.
    /// Default: none.
    pub mounts: Option<Vec<String>>,
}

/// A group of OpenAI-style functions and one way to run them: a `[functions.NAME]` table. The name is 1–64
/// of `A-Z a-z 0-9 _ -`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawFunctions {
    /// The file that defines them: an OpenAI `tools` array, or the legacy `functions`; at most 5000.
    /// Required, except beside `model` and `openapi`.
    pub definitions: Option<String>,
    /// Run by a webhook: its URL. toolway posts `{"tool_calls": […]}`, and the webhook answers
    /// `{"tool_responses": […]}`.
    pub endpoint: Option<String>,
    /// Calls that arrive within this time are sent as one request of `endpoint`, at most `"1s"`. Default:
    /// each call is sent alone.
    pub batch: Option<RawDuration>,
    /// Most calls of one such request, 2 to 128. Default: `16`.
    pub max_batch: Option<i64>,
    /// Run by one HTTP request for each call: its URL. In its path and query, `{function}` is replaced with the
    /// function's name and `{ARGUMENT}` with an argument; the other arguments become the body, or the rest of the
    /// query. The URL may begin with a method: `"GET https://…"`.
    pub url: Option<String>,
    /// URLs of single functions that differ from `url`, by the function's name. Default: none.
    pub urls: Option<BTreeMap<String, String>>,
    /// The method, if the URL does not name one: `"GET"`, `"POST"`, `"PUT"`, `"PATCH"`, `"DELETE"`, `"HEAD"`.
    /// Default: `"POST"`.
    pub method: Option<String>,
    /// Run by a program, found in `PATH`, or as `"./…"` beside the configuration file. It is started for each call
    /// without a shell, reads the arguments as JSON from its standard input and writes the result to its standard
    /// output.
    pub command: Option<String>,
    /// Arguments of the program; `{function}` is replaced with the function's name, which is also in the variable
    /// `TOOLWAY_FUNCTION`. Default: none.
    pub args: Option<Vec<String>>,
    /// Environment variables of the process, besides the usual few; the values are secrets. Default: none.
    pub env: Option<BTreeMap<String, String>>,
    /// Working directory of the program. Default: toolway's own.
    pub cwd: Option<String>,
    /// Run by asking a model: its name, which must match an upstream.
    pub model: Option<String>,
    /// The prompt for the model. `{ARGUMENT}` is replaced with an argument, `{function}` with the function's name,
    /// and `{{…}}` gives braces. Required with `model`.
    pub prompt: Option<String>,
    /// Description of the only tool of a `model` without `definitions`. The tool has the name of the group and takes
    /// one text, `input`. Default: `Asks the model …`.
    pub description: Option<String>,
    /// Run by an HTTP API: its OpenAPI 3.x document, a JSON or YAML file of at most 32 MiB. Each operation becomes a
    /// function.
    pub openapi: Option<String>,
    /// Base URL of that API, with the path that all operations share. Default: `servers` of the document.
    pub base_url: Option<String>,
    /// The operations to offer, by `operationId`; `*` matches any characters. Default: all.
    pub operations: Option<Vec<String>>,
    /// Headers sent with every request of `endpoint`, `url` and `openapi`; the values are secrets. Default: none.
    pub headers: Option<BTreeMap<String, String>>,
    /// Longest time for a call. Default: `tool_timeout` of `[loop]`.
    pub timeout: Option<RawDuration>,
    /// Longest accepted response, or output of a program, in bytes, 1024 to 1 GiB. Default: `16777216` (16 MiB).
    pub max_response_bytes: Option<i64>,
    /// Most calls that run at the same time, 1 to 1000; up to 256 more wait. Default: `16`.
    pub parallel_calls: Option<i64>,
    /// `false` switches the group off. Default: `true`.
    pub enabled: Option<bool>,
}

/// What MCP clients see at `/mcp/NAME`: a `[profiles.NAME]` table. At `/mcp` they see everything.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawProfile {
    /// The server, or group of functions, that is shown with everything it has, under its own names. Either this
    /// or `tools`.
    pub server: Option<String>,
    /// Patterns of the tools that are shown, as in `X-Toolway-Tools`: `"files__*"`, `"!files__delete"`.
    pub tools: Option<Vec<String>>,
}

/// A duration with its unit: `"500ms"`, `"30s"`, `"10m"`, `"1h"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawDuration(pub Duration);

impl<'de> Deserialize<'de> for RawDuration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RawDuration, D::Error> {
        struct DurationVisitor;
        impl de::Visitor<'_> for DurationVisitor {
            type Value = RawDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with its unit, such as \"30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawDuration, E> {
                duration::parse(text).map(RawDuration).map_err(E::custom)
            }
        }
        from.deserialize_str(DurationVisitor)
    }
}
