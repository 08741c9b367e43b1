//! The immutable snapshot of every tool that is offered, and the choice of those that apply to a request.
//!
//! A catalog is built when a server's tools change, never when a request comes. Nothing here talks to a server.

use crate::tool::{ServerId, Tool};

/// The tools of one server, as it listed them.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerTools {
    /// Which server.
    pub server: ServerId,
    /// Calls on it must run one after another, in order.
    pub stateful: bool,
    /// Its tools, in its own order.
    pub tools: Vec<Tool>,
    /// What it listed and could not be read, one by one.
    pub dropped: Vec<DroppedTool>,
}

/// A tool that a server listed and that is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedTool {
    /// The server's own name for it, or its place in the list where it has none.
    pub name: String,
    /// What is wrong with it, for the person who configured the server.
    pub reason: String,
}
