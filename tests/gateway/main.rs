//! The whole gateway over real sockets, with scripted models and servers.

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(
    clippy::needless_pass_by_value,
    reason = "json!(…) reads better at the call than &json!(…)"
)]
#![expect(
    unreachable_pub,
    reason = "the modules of one test binary share what they have"
)]

mod harness;
mod model;
mod tools;
mod webhook;

/// What only somebody who means harm does.
mod adversary;
/// HTTP APIs that OpenAPI documents describe.
mod api;
/// Calls that a person approves, in one list for every face.
mod approvals;
/// Who called what: a record of each call, on every face.
mod audit;
/// Responses whose clients may leave.
mod background;
/// What requests may take of memory, alone and together.
mod bounds;
/// Every client API over every model API, as golden files.
mod cells;
/// Conversations with names.
mod conversations;
/// Clients that would keep others out.
mod crowding;
/// Tools that the model finds by searching.
mod deferred;
/// Clients that speak Responses or Messages.
mod dialects;
/// Servers that die, and results that are too big.
mod dying;
/// Calls that begin before their turn is complete, and calls that ask the same.
mod early;
/// What each failure becomes: the table of docs/errors.md, and what goes with it.
mod errors;
/// Calls and results as events, and the state of sessions.
mod events;
/// Calls without a chat.
mod executor;
/// `tool_choice` over the rounds of a loop.
mod forced;
/// OpenAI-style functions: the webhook, and what it gets wrong.
mod functions;
/// Results that serve again in later requests.
mod kept_results;
/// Whose key a provider receives.
mod keys;
/// Lent functions and their agents: MCP clients of either era.
mod lent;
/// What the log says of a request.
mod log;
/// toolway as an MCP server.
mod mcp;
/// Mixed turns: calls of the gateway's and of the client's own together.
mod mixed;
/// Models under names of one's own, with several behind a name.
mod named;
/// Models that speak another API than chat completions.
mod native;
/// What the Open Responses suite checks.
mod open_responses;
/// The HTTP face as openapi.yaml describes it.
mod openapi;
/// Hosts, origins and pages elsewhere: who may call at all.
mod origins;
/// What no gateway tool applies to.
mod pass_through;
/// Paths that are spelt in more than one way, or lead elsewhere.
mod paths;
/// Slow upstreams: keep-alives and deadlines.
mod patience;
/// Plain answers of the loop.
mod plain;
/// One policy before every face.
mod policies;
mod policy;
/// Keep-alives, progress, hang-ups, many clients at once.
mod progress;
/// What upstreams get wrong.
mod quirks;
/// HTTP errors of MCP servers: which calls are sent again, and when.
mod repeats;
/// MCP servers over REST, as MCP Bridge has them.
mod rest;
/// Servers that are changed over REST.
mod rest_changes;
/// What the model is told of each result and each failed call.
mod results;
/// What a client says reaches an upstream of its own API, also beside gateway tools.
mod same_api;
/// Which tools a request offers.
mod selection;
/// Functions that a caller lends to agents.
mod sessions;
/// Requests for several answers (`n` above 1).
mod several;
/// Clients of Responses that see the gateway's calls.
mod shown_calls;
/// Servers that are not ready yet: what waits for them, and what is said.
mod starting;
/// What runs when toolway is stopped.
mod stopping;
/// What a client sees of a streamed loop.
mod streamed;
/// Responses on a WebSocket.
mod websocket;
