//! The MCP wire as servers really write it, read leniently: what is readable is kept, the rest costs only itself.
//!
//! Nothing here talks to a server; `upstream::mcp` does. The source is the MCP specification, versions
//! 2024-11-05 to 2026-07-28.

pub mod envelope;
pub mod progress;
pub mod results;
pub mod rpc;
pub mod tools;
pub mod version;
