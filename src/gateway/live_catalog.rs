//! The current catalog: rebuilt whenever a server's tools change, and read by every request.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
};

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::upstream::{function::Functions, mcp::Servers, model::Models};
use toolway_core::{
    catalog::{Catalog, FeatureIndex, Offered, ServerFeatures, ServerTools},
    policy::{KeyId, Policy},
};

use super::listing;

/// Most tools that one line of the log names.
const MAX_NAMED: usize = 20;

/// The current catalog.
pub(super) struct LiveCatalog {
    shared: Arc<CatalogState>,
    /// The task ends with this.
    _following: AbortOnDropHandle<()>,
}

struct CatalogState {
    servers: Arc<Servers>,
    /// What does not change: the functions stand in the configuration.
    functions: Vec<ServerTools>,
    models: Arc<Models>,
    catalog: ArcSwap<Catalog>,
    index: ArcSwap<FeatureIndex>,
    /// The inputs of the catalog. The task that builds a catalog holds this lock, so that a late build never replaces a
    /// newer one. A task that waits for the lock needs the catalog that is being built, and blocks no thread.
    made_of: Arc<Mutex<ListedServers>>,
    /// Has seen the tools that the catalog was built from, and reports later changes.
    seen: ArcSwap<watch::Receiver<Arc<Vec<ServerTools>>>>,
}

/// What servers have listed.
#[derive(Default)]
struct ListedServers {
    tools: Arc<Vec<ServerTools>>,
    features: Arc<Vec<ServerFeatures>>,
}

/// The catalogs of clients that do not see every tool, made when they are first asked for.
#[derive(Debug)]
pub(super) struct CatalogViews {
    /// Every client sees everything.
    are_whole: bool,
    made: std::sync::Mutex<HashMap<Option<KeyId>, CatalogView>>,
}

#[derive(Debug)]
struct CatalogView {
    made_of: Arc<Catalog>,
    shown: Arc<Catalog>,
}

impl CatalogViews {
    /// As this policy says.
    pub(super) fn new(policy: &Policy) -> CatalogViews {
        CatalogViews {
            are_whole: policy.shows_everything(),
            made: std::sync::Mutex::default(),
        }
    }

    /// What clients with this key see of a catalog.
    pub(super) fn of(
        &self,
        catalog: Arc<Catalog>,
        policy: &Policy,
        key: Option<KeyId>,
    ) -> Arc<Catalog> {
        if self.are_whole {
            return catalog;
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = made.get(&key)
            && Arc::ptr_eq(&view.made_of, &catalog)
        {
            return Arc::clone(&view.shown);
        }
        let shown = Arc::new(catalog.restricted(|tool| policy.shows(tool, key)));
        let view = CatalogView {
            made_of: catalog,
            shown: Arc::clone(&shown),
        };
        made.insert(key, view);
        shown
    }
}

impl LiveCatalog {
    /// Builds the catalog from the functions and the servers' lists, now and after each change.
    ///
    /// Must be called within a Tokio runtime.
    pub(super) fn follow(
        servers: Arc<Servers>,
        functions: &Functions,
        models: Arc<Models>,
    ) -> LiveCatalog {
        let shared = CatalogState {
            seen: ArcSwap::from_pointee(servers.subscribe()),
            servers,
            functions: functions.tools(),
            models,
            catalog: ArcSwap::from_pointee(Catalog::empty()),
            index: ArcSwap::default(),
            made_of: Arc::default(),
        };
        // The servers are known by name from the first request on, their tools as they come.
        let mut made_of = ListedServers::default();
        shared.make(&mut made_of);
        let shared = Arc::new(CatalogState {
            made_of: Arc::new(Mutex::new(made_of)),
            ..shared
        });
        let following = tokio::spawn(follow(shared.clone()));
        LiveCatalog {
            shared,
            _following: AbortOnDropHandle::new(following),
        }
    }

    /// Every tool that is offered now.
    pub(super) fn load(&self) -> Arc<Catalog> {
        self.shared.catalog.load_full()
    }

    /// Every prompt, resource and template that is offered now.
    pub(super) fn index(&self) -> Arc<FeatureIndex> {
        self.shared.index.load_full()
    }

    /// Whether servers have listed tools that are not in the catalog yet. Cheap enough to call for every chat.
    pub(super) fn is_behind(&self) -> bool {
        self.shared.seen.load().has_changed().unwrap_or(false)
    }

    /// Reads the servers' lists now, without waiting for a notification of the change.
    pub(super) async fn renew(&self) {
        renew(&self.shared).await;
    }
}

async fn follow(shared: Arc<CatalogState>) {
    let mut tools = shared.servers.subscribe();
    while tools.changed().await.is_ok() {
        renew(&shared).await;
    }
}

/// Rebuilds the catalog if something has changed. Schemas are compiled on a separate thread, which finishes even if
/// this future is dropped.
async fn renew(shared: &Arc<CatalogState>) {
    let mut made_of = shared.made_of.clone().lock_owned().await;
    if shared.is_made_of(&made_of) && !shared.seen.load().has_changed().unwrap_or(false) {
        return;
    }
    let shared = Arc::clone(shared);
    let making = tokio::task::spawn_blocking(move || shared.make(&mut made_of));
    // One that panics has changed nothing.
    let _ = making.await;
}

impl CatalogState {
    fn is_made_of(&self, made_of: &ListedServers) -> bool {
        Arc::ptr_eq(&self.servers.features().borrow(), &made_of.features)
            && Arc::ptr_eq(&self.servers.subscribe().borrow(), &made_of.tools)
    }

    fn make(&self, made_of: &mut ListedServers) {
        let features = self.servers.features().borrow().clone();
        if !Arc::ptr_eq(&features, &made_of.features) {
            self.index.store(Arc::new(FeatureIndex::build(&features)));
            made_of.features = features;
        }
        let mut seen = self.servers.subscribe();
        let tools = seen.borrow_and_update().clone();
        if !Arc::ptr_eq(&tools, &made_of.tools) {
            let before = self.catalog.load();
            let catalog = before.rebuild(&[&tools[..], &self.functions].concat());
            log(&catalog, &before, &self.models);
            self.catalog.store(Arc::new(catalog));
            made_of.tools = tools;
        }
        self.seen.store(Arc::new(seen));
    }
}

fn log(built: &Catalog, before: &Catalog, models: &Models) {
    let is_new = |it: &&Arc<Offered>| {
        let known = before.find(it.name.as_str());
        known.is_none_or(|known| !Arc::ptr_eq(known, it))
    };
    for offered in built.offered().iter().filter(is_new) {
        for note in &offered.notes {
            tracing::warn!(server.id = %offered.server, tool.name = %offered.name, note, "A note on a tool");
        }
    }
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
    tracing::info!(offered = built.offered().len(), "The catalog has changed");
}
