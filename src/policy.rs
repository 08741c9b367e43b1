//! May this call run?
//!
//! One question, asked before every call whatever face it came through. Today the answer depends on the
//! request alone: a tool that the request did not select is refused even when the model guesses its name.

use crate::catalog::{Catalog, Offered, Selected};

/// The answer to "may this call run?".
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    /// It may; here is what it names.
    Allow(T),
    /// It may not; the reason is for the model.
    Deny(String),
    /// Nobody offers such a tool.
    Unknown,
}

/// Decides on a call by the name that the model wrote.
pub fn evaluate<'a>(
    name: &str,
    selected: &'a Selected,
    catalog: &Catalog,
) -> Verdict<&'a std::sync::Arc<Offered>> {
    match selected.find(name) {
        Some(offered) => Verdict::Allow(offered),
        None if catalog.find(name).is_some() => Verdict::Deny(format!(
            "the tool `{name}` is not among the tools chosen for this request"
        )),
        None => Verdict::Unknown,
    }
}
