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
