//! The decisions of toolway, without IO, clock or async: what a tool is called, what a call means, what is next in the
//! tool loop. Every function is a function of its arguments, so the same input gives the same output.
//!
//! ```
//! use serde_json::json;
//! use toolway_core::catalog::{Catalog, ServerTools};
//! use toolway_core::translate::{calls, tools};
//! use toolway_protocol::{mcp, tool::ServerId};
//!
//! // A tool as an MCP server lists it.
//! let listed = json!({"name": "add", "inputSchema": {
//!     "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}});
//! let server = ServerTools {
//!     server: ServerId::parse("calc").unwrap(),
//!     stateful: false,
//!     risk: Default::default(),
//!     tools: vec![mcp::tools::read_tool(&listed, 0).unwrap()],
//!     dropped: Vec::new(),
//! };
//! let catalog = Catalog::build(&[server]);
//!
//! // The same tool as a model sees it, and what a model may call it with.
//! let offered = catalog.find("calc__add").unwrap();
//! let function = tools::to_openai(&offered.name, &offered.tool);
//! assert!(function.json.contains("calc__add"));
//! let arguments = calls::parse_arguments(r#"{"a": "one"}"#).unwrap();
//! assert!(offered.validator.as_ref().unwrap().check(&arguments).is_err());
//! ```
//!
//! A module imports only from rows above it; `tests/layers.rs` of the package `toolway` checks this.
//!
//! | row | modules |
//! |---|---|
//! | 1 | [`translate`]: names, schemas, calls, results and streams between the OpenAI API and MCP |
//! | 2 | [`catalog`]: the snapshot of every offered tool |
//! | 3 | [`policy`]: may this call run; [`route`]: which calls may run at the same time; [`audit`]: what is recorded of them |
//! | 4 | [`agent`]: the tool loop as a state machine, and its limits |

pub mod agent;
pub mod audit;
pub mod catalog;
pub mod policy;
pub mod route;
pub mod translate;
