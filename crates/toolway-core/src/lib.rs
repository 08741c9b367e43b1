//! The decisions of toolway, without IO, clock or async: what a tool is called, what a call means, what is next in the
//! tool loop. Every function is a function of its arguments, so the same input gives the same output.
//!
//! A module imports only from rows above it; `tests/layers.rs` of the package `toolway` checks this.
//!
//! | row | modules |
//! |---|---|
//! | 1 | [`translate`]: names, schemas, calls, results and streams between the OpenAI API and MCP |
//! | 2 | [`catalog`]: the snapshot of every offered tool |
//! | 3 | [`policy`]: may this call run; [`route`]: which calls may run at the same time |
//! | 4 | [`agent`]: the tool loop as a state machine, and its limits |

pub mod agent;
pub mod catalog;
pub mod policy;
pub mod route;
pub mod translate;
