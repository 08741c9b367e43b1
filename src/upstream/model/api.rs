//! The APIs that upstreams speak.

use http::HeaderName;

use toolway_core::translate::dialect::{anthropic, gemini, responses};

/// The API that an upstream speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// Chat completions; Responses for models that say that they want it.
    #[default]
    Auto,
    /// Chat completions.
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's `generateContent`.
    Gemini,
}

/// The names of the APIs in the configuration.
pub const API_NAMES: [&str; 5] = ["auto", "chat", "responses", "anthropic", "gemini"];

impl Api {
    /// What it does not take of a chat completion.
    pub fn not_taken(self) -> &'static [&'static str] {
        match self {
            Api::Auto | Api::Chat => &[],
            Api::Responses => &responses::NOT_TAKEN,
            Api::Anthropic => &anthropic::NOT_TAKEN,
            Api::Gemini => &gemini::NOT_TAKEN,
        }
    }

    /// The API of this name.
    pub fn parse(name: &str) -> Option<Api> {
        Some(match name {
            "auto" => Api::Auto,
            "chat" => Api::Chat,
            "responses" => Api::Responses,
            "anthropic" => Api::Anthropic,
            "gemini" => Api::Gemini,
            _ => return None,
        })
    }

    /// The header of its keys, where that is not `Authorization`.
    pub(super) fn key_header(self) -> Option<HeaderName> {
        match self {
            Api::Anthropic => Some(HeaderName::from_static("x-api-key")),
            Api::Gemini => Some(HeaderName::from_static("x-goog-api-key")),
            Api::Auto | Api::Chat | Api::Responses => None,
        }
    }
}
