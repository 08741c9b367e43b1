//! The hot paths as cases: `micro` times them, `count` counts their instructions.
//!
//! A case is a name and a setup; what the setup gives is run over and over. Only what is public is used, with
//! inputs as upstreams and clients send them. Nothing here measures anything.
//!
//! Read next: `cases/streams.rs`, `cases/dialects.rs`, `cases/chat.rs`, `cases/tools.rs`, `cases/mcp.rs`; how it is counted:
//! `scripts/instructions`.

use std::hint::black_box;

mod chat;
mod dialects;
mod mcp;
mod streams;
mod tools;

/// One hot path.
pub struct Case {
    /// `area/what`; the name in reports and in `instructions.json`.
    pub name: &'static str,
    /// How often it is run to count its instructions: the more a run varies and the less it costs, the more often.
    pub times: u32,
    /// Makes the inputs.
    pub setup: fn() -> Body,
}

/// One run of a case.
pub type Body = Box<dyn FnMut()>;

/// Every case.
pub fn all() -> impl Iterator<Item = Case> {
    let areas = [
        streams::CASES,
        dialects::CASES,
        chat::CASES,
        tools::CASES,
        mcp::CASES,
    ];
    let cases = areas.into_iter().flatten();
    cases.map(|&(name, times, setup)| Case { name, times, setup })
}

/// The cases of one area: name, times, setup.
type Table = &'static [(&'static str, u32, fn() -> Body)];

/// A body whose result is not optimised away.
fn body<T>(mut run: impl FnMut() -> T + 'static) -> Body {
    Box::new(move || {
        black_box(run());
    })
}
