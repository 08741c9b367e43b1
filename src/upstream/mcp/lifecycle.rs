//! Each server's life: started, watched, restarted and stopped.
//!
//! `server_handle` is the record of one server, `supervisor` the task that writes it. While a connection lives, `follow`
//! keeps the server's lists and log level current and `watched` its resource subscriptions.

mod follow;
mod server_handle;
mod supervisor;
mod watched;

pub(super) use self::{
    follow::Watching,
    server_handle::{Offer, ServerHandle},
    supervisor::run,
    watched::watch,
};
pub use self::{server_handle::Later, watched::ResourceWatch};
