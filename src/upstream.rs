//! The only modules that talk: to models over HTTP, to MCP servers over pipes and HTTP, and to whatever runs
//! OpenAI-style functions.

mod child;
pub mod function;
pub(crate) mod http;
pub mod mcp;
pub mod model;
mod queue;

pub use self::http::SetupError;

/// Chooses the TLS implementation for the whole process; does nothing when that is done.
pub fn install_tls() {
    // An error means that somebody chose before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Why a request got no answer, in a word or two and without its URL. The reason lies at the bottom: "connection
/// refused" and not "error sending request".
fn reason(error: reqwest::Error) -> String {
    http::root(&error.without_url())
}
