//! OpenAI's Responses API.

mod client_tools;
mod conversation;
mod event_log;
mod events;
mod gateway_tools;
mod items;
mod original;
mod output;
mod read;
mod references;
mod request;
mod status;
mod writer;

pub use self::{
    client_tools::ToolNames,
    conversation::{conversation_id, conversation_items, read_metadata, read_new_items},
    event_log::{EventLog, Expired},
    events::EventReader,
    gateway_tools::{GatewayTools, ListedTool},
    items::{PageQuery, StreamQuery, for_upstream, list, with_ids},
    original::{defer, restore},
    read::{McpEntries, NOT_APPROVED, Read, fill, read_request},
    references::{Earlier, References, continue_from, expand},
    request::write_request,
    status::{interrupted, is_unfinished},
    writer::ResponseWriter,
};

/// What the API does not take of a chat completion: `n` above 1 is refused, the rest left out.
pub const NOT_TAKEN: [&str; 11] = [
    "n",
    "stop",
    "seed",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "frequency_penalty",
    "presence_penalty",
    "prediction",
    "audio",
    "web_search_options",
];
