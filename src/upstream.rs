//! The only modules that talk: to models over HTTP, to MCP servers over pipes and HTTP, and to whatever runs
//! OpenAI-style functions.

mod child;
pub mod function;
pub mod mcp;
pub mod model;
mod queue;

/// Chooses the TLS implementation for the whole process; does nothing when that is done.
pub fn install_tls() {
    // An error means that somebody chose before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
