//! OpenAI's Responses API.

mod events;
mod gateway_tools;
mod items;
mod read;
mod request;
mod writer;

pub use self::{
    events::EventReader,
    gateway_tools::{GatewayTools, ListedTool},
    items::{PageQuery, list, with_ids},
    read::{Earlier, McpEntries, Read, References, ToolNames, expand, fill, read_request},
    request::write_request,
    writer::ResponseWriter,
};
