//! OpenAI's Responses API.

mod events;
mod read;
mod request;
mod writer;

pub use self::{
    events::EventReader,
    read::{Earlier, Read, ToolNames, expand, read_request},
    request::write_request,
    writer::ResponseWriter,
};
