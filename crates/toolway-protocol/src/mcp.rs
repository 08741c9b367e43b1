//! The MCP wire as servers really write it, read leniently: what is readable is kept, the rest costs only itself.
//!
//! Nothing here talks to a server; `upstream::mcp` does. The source is the MCP specification, versions
//! 2024-11-05 to 2026-07-28.

pub mod asks;
pub mod deep;
pub mod envelope;
pub mod features;
pub mod headers;
pub mod level;
pub mod pages;
pub mod progress;
pub mod replay;
pub mod results;
pub mod rpc;
pub mod stateless;
pub mod tools;
pub mod version;
