//! MCP servers as `upstream::mcp` sees them: real processes and real sockets, every one scripted.
#![expect(clippy::needless_pass_by_value, reason = "the scripts read better")]

mod calls;
mod changes;
mod dying;
mod harness;
mod processes;
mod site;
mod starting;
mod web;
