//! Pure translation between OpenAI's words and MCP's.

pub mod completion;
pub mod ids;
pub mod stream;
pub mod usage;
