//! The messages of a connection as raw JSON, past rmcp's typed models.
//!
//! rmcp keeps the protocol: versions, ids, the handshake, cancellation. Its models do not fit a gateway: they drop
//! members that they do not know, and they refuse a whole list for one invalid tool. toolway has to deliver what the
//! server sent. rmcp also runs each notification in a task of its own, so the last progress could arrive after the
//! result. So each message is read here first:
//!
//! - A result is passed to rmcp as a [`CustomResult`](rmcp::model::CustomResult), which it returns unchanged
//!   (`pending`, and `wrapped` for Streamable HTTP).
//! - A server's request, such as `elicitation/create`, is kept raw in `questions`; rmcp receives a number in its place,
//!   with which `client_handler` finds the request again.
//! - A notification never reaches rmcp: it goes to `progress` or to `server_notifications`.
//!
//! `running` knows the requests that run on the connection and decides which client a message belongs to. `pipe` is
//! rmcp's transport for the connections that toolway reads and writes itself (stdio and HTTP+SSE).

mod client_handler;
mod pending;
mod pipe;
mod progress;
mod questions;
mod running;
mod server_notifications;
pub(super) mod wrapped;

pub use self::server_notifications::ServerEvent;
pub(super) use self::{
    client_handler::ClientHandler,
    pending::{Pending, read_error},
    pipe::{OutgoingMessage, Pipe, PipeEnd, PipeFault, pipe},
    running::{RequestTag, Running},
    server_notifications::{Changes, ServerNotifications},
};
