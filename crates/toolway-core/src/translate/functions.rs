//! OpenAI-style functions as tools: their definitions, the webhook they are called by, and what they answer.
//!
//! - [`definitions`] reads an OpenAI `tools` array, in each of the forms that are about.
//! - [`webhook`] writes `tool_calls` and finds each call's answer in what comes back.
//! - [`output`] reads one answer, whatever its shape, as a [`ToolResult`](toolway_protocol::tool::ToolResult).
//! - [`command`] reads what a program wrote.
//! - [`reply`] reads the answer of an HTTP API that knows nothing of tools.
//! - [`request`] makes an HTTP request of a call, [`template`] a text.
//!
//! `upstream::function` does the talking.

pub mod command;
pub mod definitions;
pub mod output;
pub mod reply;
pub mod request;
pub mod template;
pub mod webhook;
