//! OpenAI's Responses API.

mod events;
mod gateway_tools;
mod read;
mod request;
mod writer;

pub use self::{
    events::EventReader,
    gateway_tools::{GatewayTools, ListedTool},
    read::{Earlier, McpEntries, Read, ToolNames, expand, fill, read_request},
    request::write_request,
    writer::ResponseWriter,
};
