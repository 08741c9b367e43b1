//! Pure translation between OpenAI's words and MCP's.

pub mod calls;
mod cut;
pub mod names;
pub mod results;
pub mod schema;
pub mod stream;
pub mod tools;
