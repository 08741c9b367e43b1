//! Pure translation between OpenAI's words and MCP's.

pub mod stream;
