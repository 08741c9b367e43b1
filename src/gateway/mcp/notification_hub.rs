//! Forwards events of servers to all faces: changed lists, changed resources, log messages.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};
use tokio::{sync::broadcast, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::{Notice, Topic, View};
use crate::{
    gateway::live_catalog::LiveCatalog,
    upstream::mcp::{ResourceWatch, ServerEvent, Servers},
};
use toolway_core::catalog::{ServerFeatures, ServerTools};
use toolway_protocol::{
    mcp::level::Level,
    tool::{JsonObject, ServerId},
};

/// Events that wait for a slow face.
const WAITING: usize = 1024;

/// An event that clients may want; [`super::Gateway::notice`] decides which clients receive it, and in what form.
#[derive(Clone, Debug)]
pub enum BackendEvent {
    /// Tools of these servers came, went or changed.
    Tools(Vec<ServerId>),
    /// Prompts of these servers came, went or changed.
    Prompts(Vec<ServerId>),
    /// Resources or templates of these servers came, went or changed.
    Resources(Vec<ServerId>),
    /// A notification that a server sent.
    Said(ServerEvent),
}

impl BackendEvent {
    /// The notification for the clients of an endpoint, or `None` if it does not concern them.
    pub(super) fn notice(&self, view: &View) -> Option<Notice> {
        let list_changed = |topic, method: &str| {
            Some(Notice {
                topic,
                method: method.to_owned(),
                params: json!({}),
            })
        };
        let shows = |servers: &[ServerId]| servers.iter().any(|it| view.shows_features_of(it));
        match self {
            BackendEvent::Tools(servers) => servers
                .iter()
                .any(|it| view.may_show_tools_of(it))
                .then(|| list_changed(Topic::Tools, "notifications/tools/list_changed"))?,
            BackendEvent::Prompts(servers) => shows(servers)
                .then(|| list_changed(Topic::Prompts, "notifications/prompts/list_changed"))?,
            BackendEvent::Resources(servers) => shows(servers)
                .then(|| list_changed(Topic::Resources, "notifications/resources/list_changed"))?,
            BackendEvent::Said(event) => said(event, view),
        }
    }
}

fn said(event: &ServerEvent, view: &View) -> Option<Notice> {
    match event {
        ServerEvent::ResourceUpdated {
            server,
            uri,
            params,
        } if view.shows_features_of(server) => {
            let uri = view.uri(server, uri);
            let mut params = params.clone();
            params["uri"] = json!(uri);
            Some(Notice {
                topic: Topic::Resource(uri),
                method: "notifications/resources/updated".to_owned(),
                params,
            })
        }
        ServerEvent::Log { server, params } if view.shows_features_of(server) => {
            let level = params["level"].as_str().unwrap_or("info").to_owned();
            Some(Notice {
                topic: Topic::Log(level),
                method: "notifications/message".to_owned(),
                params: named(server, view, params.clone()),
            })
        }
        // No other notification is known that goes to all clients.
        ServerEvent::ResourceUpdated { .. }
        | ServerEvent::Log { .. }
        | ServerEvent::Other { .. } => None,
    }
}

/// A line of a log, with the server in front of its logger's name where several servers are shown.
fn named(server: &ServerId, view: &View, mut params: Value) -> Value {
    if view.is_prefixed() {
        let logger = match params["logger"].as_str() {
            Some(logger) => format!("{server}: {logger}"),
            None => server.to_string(),
        };
        params["logger"] = json!(logger);
    }
    params
}

/// Forwards changes and notifications of servers to all connected clients.
pub(in crate::gateway) struct NotificationHub {
    events: broadcast::Sender<Arc<BackendEvent>>,
    /// The task ends with this.
    _listening: AbortOnDropHandle<()>,
}

impl NotificationHub {
    /// Starts forwarding. Until `start_ends` every list waits for the servers that are starting, so clients need no
    /// notification of what they offer. Must be called within a Tokio runtime.
    pub(in crate::gateway) fn listen(
        servers: &Arc<Servers>,
        current: &Arc<LiveCatalog>,
        start_ends: Instant,
    ) -> NotificationHub {
        let events = broadcast::Sender::new(WAITING);
        let listening = tokio::spawn(listen(
            Arc::clone(servers),
            Arc::clone(current),
            events.clone(),
            start_ends,
        ));
        NotificationHub {
            events,
            _listening: AbortOnDropHandle::new(listening),
        }
    }

    /// What happens from now on.
    pub(in crate::gateway) fn subscribe(&self) -> broadcast::Receiver<Arc<BackendEvent>> {
        self.events.subscribe()
    }
}

async fn listen(
    servers: Arc<Servers>,
    current: Arc<LiveCatalog>,
    to_clients: broadcast::Sender<Arc<BackendEvent>>,
    start_ends: Instant,
) {
    let (mut tools, mut features) = (servers.subscribe(), servers.features());
    let mut events = servers.events();
    let mut tools_known = tools.borrow_and_update().clone();
    let mut features_known = features.borrow_and_update().clone();
    let later = servers.later();
    let (mut later_tools, mut later_features) = (later.tools(), later.features());
    drop(servers);
    // It is fine if there is no receiver.
    let tell = |it| {
        let _ = to_clients.send(Arc::new(it));
    };
    loop {
        tokio::select! {
            changed = tools.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = tools.borrow_and_update().clone();
                let mut who = changed_tools(&tools_known, &now);
                let counts = later.tools();
                who.retain(|server| is_later(server, start_ends, &counts, &later_tools));
                later_tools = counts;
                tools_known = now;
                // A notified client lists at once, and must get the new list.
                current.renew().await;
                if !who.is_empty() {
                    tell(BackendEvent::Tools(who));
                }
            }
            changed = features.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = features.borrow_and_update().clone();
                let mut prompts = changed_features(&features_known, &now, |it| it.prompts.iter().collect());
                let mut resources = changed_features(&features_known, &now, |it| {
                    it.resources.iter().chain(&it.templates).collect()
                });
                let counts = later.features();
                for who in [&mut prompts, &mut resources] {
                    who.retain(|server| is_later(server, start_ends, &counts, &later_features));
                }
                later_features = counts;
                features_known = now;
                current.renew().await;
                if !prompts.is_empty() {
                    tell(BackendEvent::Prompts(prompts));
                }
                if !resources.is_empty() {
                    tell(BackendEvent::Resources(resources));
                }
            }
            event = events.recv() => match event {
                Ok(event) => tell(BackendEvent::Said(event)),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "Servers say more than can be passed on");
                }
                Err(broadcast::error::RecvError::Closed) => return,
            },
        }
    }
}

/// A server has changed what a client may have listed: not only what it offered when it was started with toolway.
fn is_later(
    server: &ServerId,
    start_ends: Instant,
    counts: &HashMap<ServerId, u64>,
    before: &HashMap<ServerId, u64>,
) -> bool {
    counts.get(server) != before.get(server) || Instant::now() >= start_ends
}

/// The servers whose tools differ; one that came or went had none.
fn changed_tools(before: &[ServerTools], now: &[ServerTools]) -> Vec<ServerId> {
    let servers = before.iter().chain(now).map(|it| &it.server);
    let tools = |of: &[ServerTools], server: &ServerId| -> Vec<_> {
        let of_server = of.iter().filter(|it| it.server == *server);
        of_server.flat_map(|it| it.tools.clone()).collect()
    };
    let servers: BTreeSet<&ServerId> = servers.collect();
    let differ = |server: &&ServerId| tools(before, server) != tools(now, server);
    servers.into_iter().filter(differ).cloned().collect()
}

/// The servers for which these lists differ, likewise.
fn changed_features(
    before: &[ServerFeatures],
    now: &[ServerFeatures],
    lists: fn(&ServerFeatures) -> Vec<&JsonObject>,
) -> Vec<ServerId> {
    let servers = before.iter().chain(now).map(|it| &it.server);
    let servers: BTreeSet<&ServerId> = servers.collect();
    let differ = |server: &&ServerId| {
        let entries = |of: &'_ [ServerFeatures]| -> Vec<JsonObject> {
            let of_server = of.iter().filter(|it| it.server == **server);
            of_server.flat_map(lists).cloned().collect()
        };
        entries(before) != entries(now)
    };
    servers.into_iter().filter(differ).cloned().collect()
}

/// Keeps a resource watched at its server while it lives.
#[derive(Debug)]
pub struct ResourceSubscription {
    pub(super) _watch: ResourceWatch,
}

/// The number of clients per log level.
#[derive(Debug, Default)]
pub(in crate::gateway) struct LogInterests(Mutex<BTreeMap<Level, usize>>);

/// Keeps the servers' logs as verbose as a client asks for, while it lives.
pub struct LogInterest {
    level: Level,
    interests: Arc<LogInterests>,
    servers: Arc<Servers>,
}

impl LogInterest {
    pub(super) fn take(
        level: Level,
        interests: &Arc<LogInterests>,
        servers: &Arc<Servers>,
    ) -> LogInterest {
        let interest = LogInterest {
            level,
            interests: Arc::clone(interests),
            servers: Arc::clone(servers),
        };
        interest.change(|count| *count += 1);
        interest
    }

    fn change(&self, by: impl FnOnce(&mut usize)) {
        let mut counts = self.interests.counts();
        by(counts.entry(self.level).or_default());
        counts.retain(|_, count| *count > 0);
        let most_verbose = counts.keys().next().map(|level| level.as_str());
        self.servers.set_log_level(most_verbose);
    }
}

impl Drop for LogInterest {
    fn drop(&mut self) {
        self.change(|count| *count = count.saturating_sub(1));
    }
}

impl LogInterests {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<Level, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
