//! OpenAI's Responses API.

mod events;
mod read;
mod request;
mod writer;

pub use self::{
    events::EventReader,
    read::{Read, ToolNames, read_request},
    request::write_request,
    writer::ResponseWriter,
};
