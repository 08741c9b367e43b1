//! The HTTP face: the router on one screen, one file per face, `error` maps errors to responses.

use std::net::SocketAddr;

use crate::secret::Secret;

/// Where and for whom toolway listens.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address. Default: 127.0.0.1:4242.
    pub bind: SocketAddr,
    /// Keys that clients must show as `Authorization: Bearer …`; empty: anybody on loopback, nobody elsewhere.
    pub api_keys: Vec<Secret>,
    /// Anybody may use it, wherever it listens. Default: false.
    pub allow_anonymous: bool,
    /// Names besides loopback that the `Host` header may have. `*` for any. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Longest request body, in bytes. Default: 32 MiB.
    pub max_body_bytes: usize,
    /// Deepest nesting of a request body. Default: 128.
    pub max_body_depth: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            bind: SocketAddr::from(([127, 0, 0, 1], 4242)),
            api_keys: Vec::new(),
            allow_anonymous: false,
            allowed_hosts: Vec::new(),
            max_body_bytes: 32 << 20,
            max_body_depth: 128,
        }
    }
}
