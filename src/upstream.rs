//! The only modules that talk: to models over HTTP, to MCP servers over pipes and HTTP.

pub mod mcp;
pub mod model;
