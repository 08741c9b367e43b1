//! The catalog of the moment: made anew whenever a server's tools change, and read by every request.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    catalog::{Catalog, ServerFeatures, ServerTools, Shelf},
    upstream::{function::Functions, mcp::Servers, model::Models},
};

use super::listing;

/// Most tools that one line of the log names.
const MAX_NAMED: usize = 20;

/// The catalog of the moment.
pub(super) struct Current {
    shared: Arc<Shared>,
    /// The task ends with this.
    _following: AbortOnDropHandle<()>,
}

struct Shared {
    servers: Arc<Servers>,
    /// What does not change: the functions stand in the configuration.
    functions: Vec<ServerTools>,
    models: Arc<Models>,
    catalog: ArcSwap<Catalog>,
    shelf: ArcSwap<Shelf>,
    /// What the catalog was made of. Whoever makes one holds this, so that a late one never replaces a newer.
    made_of: Mutex<Listed>,
}

/// What servers have listed.
#[derive(Default)]
struct Listed {
    tools: Arc<Vec<ServerTools>>,
    features: Arc<Vec<ServerFeatures>>,
}

impl Current {
    /// Takes up the functions, and what the servers list, now and whenever it changes.
    ///
    /// Must be called within a Tokio runtime.
    pub(super) fn follow(
        servers: Arc<Servers>,
        functions: &Functions,
        models: Arc<Models>,
    ) -> Current {
        let shared = Arc::new(Shared {
            servers,
            functions: functions.tools(),
            models,
            catalog: ArcSwap::from_pointee(Catalog::empty()),
            shelf: ArcSwap::default(),
            made_of: Mutex::default(),
        });
        // The servers are known by name from the first request on, their tools as they come.
        shared.renew();
        let following = tokio::spawn(follow(shared.clone()));
        Current {
            shared,
            _following: AbortOnDropHandle::new(following),
        }
    }

    /// Every tool that is offered now.
    pub(super) fn load(&self) -> Arc<Catalog> {
        self.shared.catalog.load_full()
    }

    /// Every prompt, resource and template that is offered now.
    pub(super) fn shelf(&self) -> Arc<Shelf> {
        self.shared.shelf.load_full()
    }

    /// Takes up what the servers list without waiting until the news have come round.
    pub(super) fn renew(&self) {
        self.shared.renew();
    }
}

async fn follow(shared: Arc<Shared>) {
    let mut tools = shared.servers.subscribe();
    while tools.changed().await.is_ok() {
        shared.renew();
    }
}

impl Shared {
    fn renew(&self) {
        // A thread that panicked while it made a catalog has changed nothing.
        let mut made_of = self.made_of.lock().unwrap_or_else(PoisonError::into_inner);
        let features = self.servers.features().borrow().clone();
        if !Arc::ptr_eq(&features, &made_of.features) {
            self.shelf.store(Arc::new(Shelf::build(&features)));
            made_of.features = features;
        }
        let tools = self.servers.subscribe().borrow().clone();
        if !Arc::ptr_eq(&tools, &made_of.tools) {
            let catalog = self
                .catalog
                .load()
                .rebuild(&[&tools[..], &self.functions].concat());
            log(&catalog, &self.models);
            self.catalog.store(Arc::new(catalog));
            made_of.tools = tools;
        }
    }
}

fn log(built: &Catalog, models: &Models) {
    for (server, tool) in built.dropped() {
        tracing::warn!(server.id = %server, tool.name = tool.name, reason = tool.reason,
                "A tool is not offered");
    }
    for upstream in models.all() {
        let name = &upstream.config.name;
        let left_out = listing::left_out(built, upstream);
        if !left_out.is_empty() {
            let count = left_out.len();
            let tools = left_out.iter().map(|left| left.name.as_str());
            let tools: Vec<&str> = tools.take(MAX_NAMED).collect();
            tracing::warn!(upstream.name = %name, left_out = count, tools = tools.join(" "), "An upstream takes fewer tools than there are");
        }
    }
    tracing::info!(tools = built.offered().len(), "The catalog has changed");
}
