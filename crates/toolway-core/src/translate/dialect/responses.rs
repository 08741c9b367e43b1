//! OpenAI's Responses API.

mod event_log;
mod events;
mod items;
mod read;
mod request;
mod status;
mod writer;

pub use self::{
    event_log::{EventLog, Expired},
    events::EventReader,
    items::{PageQuery, StreamQuery, for_upstream, list, with_ids},
    read::{Earlier, Read, References, ToolNames, expand, read_request},
    request::write_request,
    status::{interrupted, is_unfinished},
    writer::ResponseWriter,
};
