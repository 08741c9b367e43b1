//! Calls and thoughts that a model writes as plain text.

use super::{Known, Settings};

/// What a piece of text turned out to be.
#[derive(Clone, Debug, PartialEq)]
#[expect(dead_code, reason = "the forms come next")]
pub(crate) enum Piece {
    Text(String),
    Reasoning(String),
    Call { name: String, arguments: String },
}

#[derive(Debug)]
pub(crate) struct Filter {
    off: bool,
}

impl Filter {
    pub(crate) fn new(_settings: &Settings) -> Filter {
        Filter { off: true }
    }
    pub(crate) fn is_off(&self) -> bool {
        self.off
    }
    pub(crate) fn lets_through(&self, _text: &str) -> bool {
        self.off
    }
    pub(crate) fn push(&mut self, text: &str, _known: &dyn Known) -> Vec<Piece> {
        vec![Piece::Text(text.to_owned())]
    }
    pub(crate) fn finish(&mut self, _known: &dyn Known) -> Vec<Piece> {
        Vec::new()
    }
}
