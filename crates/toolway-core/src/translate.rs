//! Pure translation between OpenAI's words and MCP's.

pub mod calls;
pub mod completion;
mod cut;
pub mod dialect;
pub mod era;
pub mod functions;
pub mod ids;
pub mod names;
pub mod openapi;
pub mod paths;
mod percent;
pub mod results;
pub mod schema;
pub mod single_chunk;
pub mod state;
pub mod stream;
pub mod tool_responses;
pub mod tools;
pub mod uris;
pub mod usage;

/// Reads a member that is there, so that null can be told from nothing.
fn present<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: serde::Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    T::deserialize(from).map(Some)
}
