//! MCP servers as `upstream::mcp` sees them: real processes and real sockets, every one scripted.
#![expect(clippy::needless_pass_by_value, reason = "the scripts read better")]
#![expect(clippy::unwrap_used, reason = "these are tests, helpers included")]

mod callers;
mod calls;
mod changes;
mod demand;
mod dying;
mod features;
mod harness;
mod processes;
mod sdk;
mod site;
mod starting;
mod web;
