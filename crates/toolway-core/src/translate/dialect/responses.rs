//! OpenAI's Responses API.

mod events;
mod items;
mod read;
mod request;
mod writer;

pub use self::{
    events::EventReader,
    items::{PageQuery, for_upstream, list, with_ids},
    read::{Earlier, Read, References, ToolNames, expand, read_request},
    request::write_request,
    writer::ResponseWriter,
};
