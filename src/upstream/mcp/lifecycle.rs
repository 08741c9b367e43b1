//! Each server's life: started, watched, restarted and stopped.
//!
//! `server_handle` is the record of one server, `supervisor` the task that writes it. While a connection lives, `follow`
//! keeps the server's lists and log level current, and `subscriptions` the resources that clients subscribe to (`watched`).

mod follow;
mod server_handle;
mod subscriptions;
mod supervisor;
mod watched;

pub(super) use self::{
    follow::Watching,
    server_handle::{OfferPublisher, ServerHandle},
    subscriptions::watch,
    supervisor::run,
};
pub use self::{server_handle::Later, subscriptions::ResourceWatch};
