//! The subscribed resources of a server: the number of clients of each, and the server's answer to the subscription.

use std::collections::HashMap;

use tokio::sync::watch;

use toolway_protocol::tool::CallError;

/// Most resources of one server that are watched at once.
const MAX_WATCHED: usize = 1_000;

/// The resources of one server that are watched, by URI.
#[derive(Debug, Default)]
pub(super) struct Watched(watch::Sender<HashMap<String, Wanted>>);

/// A resource that a client subscribes to.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The number of clients; at least one.
    count: usize,
    pub(super) state: SubscriptionState,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum SubscriptionState {
    /// The server has not answered yet.
    Asked,
    Subscribed,
    Refused(CallError),
}

impl Watched {
    /// All of them, now and whenever they change.
    pub(super) fn subscribe(&self) -> watch::Receiver<HashMap<String, Wanted>> {
        self.0.subscribe()
    }

    /// No client watches a resource.
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(super) fn add(&self, uri: &str) -> Result<(), CallError> {
        let mut is_full = false;
        self.0.send_modify(|all| {
            is_full = all.len() >= MAX_WATCHED && !all.contains_key(uri);
            if is_full {
                return;
            }
            let wanted = all.entry(uri.to_owned()).or_insert(Wanted {
                count: 0,
                state: SubscriptionState::Asked,
            });
            wanted.count += 1;
            if wanted.state != SubscriptionState::Subscribed {
                wanted.state = SubscriptionState::Asked;
            }
        });
        if is_full {
            Err(CallError::Busy)
        } else {
            Ok(())
        }
    }

    pub(super) fn remove(&self, uri: &str) {
        self.0.send_modify(|all| {
            if let Some(wanted) = all.get_mut(uri) {
                wanted.count -= 1;
                if wanted.count == 0 {
                    all.remove(uri);
                }
            }
        });
    }

    pub(super) fn set(&self, uri: &str, state: SubscriptionState) {
        self.0.send_if_modified(|all| {
            let Some(wanted) = all.get_mut(uri) else {
                return false;
            };
            let is_new = wanted.state != state;
            wanted.state = state;
            is_new
        });
    }

    /// Pending subscriptions are refused.
    pub(super) fn refuse_asked(&self, error: &CallError) {
        self.0.send_if_modified(|all| {
            let mut is_new = false;
            for wanted in all
                .values_mut()
                .filter(|it| it.state == SubscriptionState::Asked)
            {
                wanted.state = SubscriptionState::Refused(error.clone());
                is_new = true;
            }
            is_new
        });
    }

    /// Subscriptions were lost: every resource is subscribed to again.
    pub(super) fn renew(&self) {
        self.0.send_modify(|all| {
            for wanted in all.values_mut() {
                wanted.state = SubscriptionState::Asked;
            }
        });
    }
}
