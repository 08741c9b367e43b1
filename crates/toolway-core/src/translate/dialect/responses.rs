//! OpenAI's Responses API.

mod events;
mod request;

pub use self::{events::EventReader, request::write_request};
