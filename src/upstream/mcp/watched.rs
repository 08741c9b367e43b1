//! The resources that somebody wants to hear of, kept subscribed to at their server.

use std::sync::Arc;

use super::entry::Entry;
use crate::tool::CallError;

/// Keeps a resource subscribed to at its server while it lives.
#[derive(Debug)]
pub struct ResourceWatch(());

pub(super) async fn watch(_entry: &Arc<Entry>, _uri: &str) -> Result<ResourceWatch, CallError> {
    Ok(ResourceWatch(()))
}
