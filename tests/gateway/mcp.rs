//! toolway as an MCP server, over real sockets and pipes, with scripted MCP servers behind it.

mod client;
pub(crate) mod harness;

/// Malformed messages, wrong headers, wrong methods: the status and the code of each.
mod bad_input;
/// An old client with a new server, a new client with an old one, and many servers as one.
mod eras;
/// HTTP+SSE, the transport of 2024-11-05.
mod legacy_sse;
/// A second opinion: rmcp's own client, in both eras.
mod sdk;
/// Sessions: begun, bound, ended, left.
mod sessions;
/// 2026-07-28 over HTTP.
mod stateless;
/// The binary, over its standard input and output.
mod stdio;
/// What is said before the result, unasked, and once more.
mod streams;
