//! Translation from outside: cases in files, and properties that hold for every input.

#![expect(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the cases are files, and the time of some is measured"
)]

use std::path::PathBuf;

/// What a call means to a webhook or a program, and what its answer means.
mod dialects;
mod functions;
/// Cases in files: what goes in stands beside what comes out.
mod golden;
/// OpenAPI documents that others wrote.
mod specs;
/// Streams and answers of upstreams.
mod streams;
/// Names, arguments, cuts and the body written again.
mod translate;

/// A path in the repository.
fn project(path: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    PathBuf::from(root).join(path)
}
