//! Drives `agent` with `upstream`: deadlines, retries, concurrency, cancellation.

use std::time::Duration;

/// The bounds of the tool loop (`[loop]` in the configuration).
#[derive(Clone, Debug)]
pub struct Config {
    /// Most model calls of one request. Default: 10.
    pub max_rounds: u32,
    /// Longest silence of a running tool; progress resets it. Default: 30 s.
    pub tool_timeout: Duration,
    /// Longest time for a whole request. Default: 10 min.
    pub request_timeout: Duration,
    /// How often an SSE comment goes out while nothing else does. Default: 5 s.
    pub keepalive: Duration,
    /// Longest text of one result that goes to the model, in bytes. Default: 65536.
    pub max_result_bytes: usize,
    /// Calls of one request that run side by side. Default: 8.
    pub parallel_calls: usize,
    /// Most calls of one turn; the rest get an error. Default: 64.
    pub max_calls: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_rounds: 10,
            tool_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(600),
            keepalive: Duration::from_secs(5),
            max_result_bytes: 65536,
            parallel_calls: 8,
            max_calls: 64,
        }
    }
}
