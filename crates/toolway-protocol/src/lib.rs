//! Wire types of the OpenAI API and of the Model Context Protocol (MCP).
//!
//! Unknown fields are kept, so that a message can be passed on as it came. No IO, no clock and no async: this crate
//! reads and writes bytes that its user moves.
//!
//! ```
//! use bytes::Bytes;
//! use toolway_protocol::{mcp::rpc, sse::Framer};
//!
//! // What an MCP server sends on its stream, in two pieces.
//! let mut framer = Framer::new(1 << 20);
//! framer.push(Bytes::from("data: {\"jsonrpc\":\"2.0\",\"id\":1,"));
//! assert!(framer.next().is_none());
//! framer.push(Bytes::from("\"result\":{\"tools\":[]}}\n\n"));
//! let event = framer.next().unwrap().unwrap();
//! let message = rpc::read(event.data().unwrap().as_bytes()).unwrap();
//! assert!(matches!(message, rpc::MessageOrBatch::One(rpc::RpcMessage::Response(_))));
//! ```
//!
//! | module | what it has |
//! |---|---|
//! | [`openai`] | requests, answers and errors of the chat completions API |
//! | [`mcp`] | JSON-RPC, and the messages of every published version of MCP |
//! | [`sse`] | event streams, on the level of bytes |
//! | [`websocket`] | frames of WebSocket connections |
//! | [`tool`] | the types that both sides share: a tool, a call and its result |
//! | [`json_size`] | how many values a JSON text has, before any of them is built |
//! | [`segmented_body`] | a body that is sent from where its parts lie |

pub mod json_size;
pub mod mcp;
pub mod openai;
pub mod segmented_body;
pub mod sse;
pub mod tool;
pub mod websocket;
