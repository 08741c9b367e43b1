//! OpenAI-style functions as tools: their definitions, the webhook they are called by, and what they answer.
//!
//! - [`definitions`] reads an OpenAI `tools` array, in each of the forms that are about.
//! - [`webhook`] writes `tool_calls` and finds each call's answer in what comes back.
//! - [`output`] reads one answer, whatever its shape, as a [`ToolResult`](crate::tool::ToolResult).
//! - [`reply`] reads the answer of an HTTP API that knows nothing of tools.
//!
//! `upstream::function` does the talking.

mod base64;
pub mod definitions;
pub mod output;
pub mod reply;
pub mod webhook;
