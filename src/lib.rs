//! toolway: one gateway between OpenAI tool calls and the Model Context Protocol.
//!
//! # Life of a request
//!
//! 1. `server::chat` reads the body and the headers.
//! 2. `gateway` asks `catalog` which tools apply; with none the request passes through as it is.
//! 3. `agent::Turn` decides: ask the model, run these calls, send this, stop. It never acts.
//! 4. `upstream::model` streams the model's answer; `translate::stream` mends it and tells calls from text.
//! 5. `translate::calls` parses and checks the arguments; `route` says what may run side by side.
//! 6. `upstream::mcp` or `upstream::function` runs the call; `translate::results` turns what came back into a tool message.
//! 7. `agent::Turn` asks the model again, until it stops or a limit is reached.
//!
//! MCP clients come in through `server::mcp` and `server::stdio`, and `gateway::mcp` answers them: it says what an
//! endpoint shows, checks and calls as above, and carries what servers ask to the client whose request it is.
//!
//! # Layers
//!
//! A module imports only from rows above it; `tests/layers.rs` keeps this so.
//!
//! | row | modules |
//! |---|---|
//! | 1 | `tool`, `secret`, `body_buffer`, `segmented_body`, `json_size`, `byte_budget`, `quota`, `printable` |
//! | 2 | `openai`, `mcp`, `sse` |
//! | 3a | `translate` |
//! | 3b | `catalog`, `health` |
//! | 4 | `policy`, `route` |
//! | 5 | `agent` |
//! | 6 | `upstream`, `store`, `telemetry` |
//! | 7 | `gateway` |
//! | 9 | `server` |
//! | 10 | `config` |
//! | 11 | `cli` |
//!
//! Rows 1–5 decide and never act: no `async`, clock, randomness, files, sockets or logging.

pub mod agent;
mod body_buffer;
mod byte_budget;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod gateway;
pub mod health;
pub mod json_size;
pub mod mcp;
pub mod openai;
pub mod policy;
pub mod printable;
pub mod quota;
pub mod route;
pub mod secret;
pub mod segmented_body;
pub mod server;
pub mod sse;
pub mod store;
pub mod telemetry;
pub mod tool;
pub mod translate;
pub mod upstream;
