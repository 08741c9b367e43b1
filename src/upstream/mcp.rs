//! MCP servers: started, listed, called, restarted and stopped.

use std::{path::PathBuf, time::Duration};

use url::Url;

use crate::{secret::Secret, tool::ServerId};

/// One MCP server, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name; the first half of its tools' names.
    pub server: ServerId,
    /// How it is reached.
    pub transport: Transport,
    /// Calls on it run one after another, in order. Default: false.
    pub stateful: bool,
    /// Longest start, from spawn or connect to the first tool list. Default: 60 s.
    pub start_timeout: Duration,
    /// Calls that run on it side by side; 1 when `stateful`. Default: 16.
    pub parallel_calls: usize,
    /// Longest message taken from it, in bytes. Default: 16 MiB.
    pub max_message_bytes: usize,
}

/// How an MCP server is reached.
#[derive(Clone, Debug)]
pub enum Transport {
    /// A child process that speaks over its standard input and output.
    Stdio {
        /// The program, looked up in `PATH`.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Added to the clean environment that children get.
        env: Vec<(String, Secret)>,
        /// Where it runs; absent: where toolway runs.
        cwd: Option<PathBuf>,
    },
    /// A URL.
    Http {
        /// The MCP endpoint, or the SSE endpoint of a legacy server.
        url: Url,
        /// Sent with every request.
        headers: Vec<(http::HeaderName, Secret)>,
        /// Which of the two protocols; absent: tried in this order.
        kind: Option<HttpKind>,
    },
}

/// The protocols an MCP server can speak at a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpKind {
    /// Streamable HTTP (MCP 2025-03-26 and later).
    Streamable,
    /// HTTP+SSE (MCP 2024-11-05).
    Sse,
}
