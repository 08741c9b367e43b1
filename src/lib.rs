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
//! # Crates
//!
//! `toolway_protocol` has the wire types, `toolway_core` the decisions; both do no IO. This crate acts: ARCHITECTURE.md
//! has the order of its modules, and `tests/cli/layers.rs` checks it.

pub mod audit;
mod body_buffer;
mod byte_budget;
pub mod cli;
pub mod config;
pub mod gateway;
pub mod health;
mod lines;
pub mod printable;
pub mod quota;
pub mod secret;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod upstream;
