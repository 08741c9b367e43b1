//! The resources that clients subscribe to, kept subscribed at their servers.
//!
//! The clients of each resource are counted here, per server. A task per connection ([`keep`]) subscribes and
//! unsubscribes at the server, and subscribes again after a restart.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use rmcp::{model::SubscriptionFilter, service::Subscription};
use tokio::time::{Instant, sleep, timeout};

use super::{
    server_handle::ServerHandle,
    watched::{SubscriptionState, Wanted},
};
use crate::{
    health::Restarts,
    upstream::mcp::{connection::ServerSession, faults},
};
use toolway_protocol::{
    mcp::rpc::code,
    tool::{CallError, JsonObject},
};

/// Longest wait for a server to take a subscription.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(30);

/// Keeps a resource subscribed to at its server while it lives.
#[derive(Debug)]
pub struct ResourceWatch {
    handle: Arc<ServerHandle>,
    uri: String,
}

/// Waits until the server has taken the subscription.
pub(in crate::upstream::mcp) async fn watch(
    handle: &Arc<ServerHandle>,
    uri: &str,
) -> Result<ResourceWatch, CallError> {
    let deadline = Instant::now() + SUBSCRIBE_TIMEOUT;
    handle.ready_session(deadline).await?;
    handle.watched.add(uri)?;
    let guard = ResourceWatch {
        handle: Arc::clone(handle),
        uri: uri.to_owned(),
    };
    let mut all = handle.watched.subscribe();
    let is_answered = |all: &HashMap<String, Wanted>| {
        all.get(uri)
            .is_none_or(|it| it.state != SubscriptionState::Asked)
    };
    match tokio::time::timeout_at(deadline, all.wait_for(is_answered)).await {
        Ok(Ok(all)) => match all.get(uri).map(|it| it.state.clone()) {
            Some(SubscriptionState::Refused(error)) => {
                drop(all);
                Err(error)
            }
            _ => {
                drop(all);
                Ok(guard)
            }
        },
        Ok(Err(_)) => Err(faults::gone(true)),
        Err(_) => Err(CallError::Timeout {
            after: SUBSCRIBE_TIMEOUT,
        }),
    }
}

impl Drop for ResourceWatch {
    fn drop(&mut self) {
        self.handle.watched.remove(&self.uri);
    }
}

/// Keeps the server subscribed to what is wanted, until the connection ends.
pub(super) async fn keep(handle: Arc<ServerHandle>, session: ServerSession) {
    if session.is_modern() {
        keep_listening(&handle, &session).await;
    } else {
        keep_subscribed(&handle, &session).await;
    }
}

/// `resources/subscribe` and `resources/unsubscribe`, one by one (2024-11-05 to 2025-11-25).
async fn keep_subscribed(handle: &ServerHandle, session: &ServerSession) {
    let mut wanted = handle.watched.subscribe();
    let mut handshakes = session.pending.handshakes();
    handshakes.mark_unchanged();
    handle.watched.renew();
    let mut kept = BTreeSet::new();
    loop {
        let (asked, unwanted) = differences(&wanted.borrow_and_update(), &kept);
        for uri in unwanted {
            kept.remove(&uri);
            let _ = timeout(
                SUBSCRIBE_TIMEOUT,
                session.send("resources/unsubscribe", only(&uri)),
            )
            .await;
        }
        for uri in asked {
            let state = if kept.contains(&uri) {
                SubscriptionState::Subscribed
            } else {
                ask_for(session, &uri).await
            };
            if state == SubscriptionState::Subscribed {
                kept.insert(uri.clone());
            }
            handle.watched.set(&uri, state);
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            changed = handshakes.changed() => {
                if changed.is_err() {
                    return;
                }
                kept.clear();
                handle.watched.renew();
            }
        }
    }
}

/// The resources to subscribe to, and those to unsubscribe from.
fn differences(
    wanted: &HashMap<String, Wanted>,
    kept: &BTreeSet<String>,
) -> (Vec<String>, Vec<String>) {
    let asked = wanted
        .iter()
        .filter(|(_, it)| it.state == SubscriptionState::Asked);
    let unwanted = kept.iter().filter(|uri| !wanted.contains_key(*uri));
    (
        asked.map(|(uri, _)| uri.clone()).collect(),
        unwanted.cloned().collect(),
    )
}

async fn ask_for(session: &ServerSession, uri: &str) -> SubscriptionState {
    match timeout(
        SUBSCRIBE_TIMEOUT,
        session.send("resources/subscribe", only(uri)),
    )
    .await
    {
        Ok(Ok(_)) => SubscriptionState::Subscribed,
        Ok(Err(error)) => SubscriptionState::Refused(faults::of_call(error)),
        Err(_) => SubscriptionState::Refused(CallError::Timeout {
            after: SUBSCRIBE_TIMEOUT,
        }),
    }
}

fn only(uri: &str) -> JsonObject {
    [("uri".to_owned(), uri.into())].into_iter().collect()
}

/// One `subscriptions/listen` for all of them, made anew when they change (2026-07-28).
async fn keep_listening(handle: &ServerHandle, session: &ServerSession) {
    let mut wanted = handle.watched.subscribe();
    handle.watched.renew();
    let mut restarts = Restarts::default();
    let (mut current, mut since) = (None, Instant::now());
    let mut listened = BTreeSet::new();
    loop {
        let (uris, is_asked) = {
            let all = wanted.borrow_and_update();
            let uris: BTreeSet<String> = all.keys().cloned().collect();
            // A client waits for the answer, even for a resource that was refused before.
            (
                uris,
                all.values().any(|it| it.state == SubscriptionState::Asked),
            )
        };
        if uris.is_empty() {
            current = None;
        } else if uris != listened || current.is_none() || is_asked {
            // The old subscription stays until the new one stands, so that nothing is missed.
            if let Some(subscription) = listen(handle, session, &uris).await {
                (current, since) = (Some(subscription), Instant::now());
            }
        }
        listened = uris;
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = ended(&mut current), if !listened.is_empty() => {
                current = None;
                sleep(restarts.pause_after(since.elapsed())).await;
                since = Instant::now();
            }
        }
    }
}

/// Subscribes to these, and notes which of them the server accepts.
async fn listen(
    handle: &ServerHandle,
    session: &ServerSession,
    uris: &BTreeSet<String>,
) -> Option<Subscription> {
    let filter = SubscriptionFilter::builder().resource_subscriptions(uris.iter().cloned());
    let refusal = match timeout(SUBSCRIBE_TIMEOUT, session.peer.listen(filter.build())).await {
        Ok(Ok(subscription)) => {
            let taken = subscription.acknowledged().resource_subscriptions.as_ref();
            for uri in uris {
                let is_taken = taken.is_some_and(|taken| taken.contains(uri));
                let state = if is_taken {
                    SubscriptionState::Subscribed
                } else {
                    SubscriptionState::Refused(not_taken())
                };
                handle.watched.set(uri, state);
            }
            return Some(subscription);
        }
        Ok(Err(error)) => faults::of_call(error),
        Err(_) => CallError::Timeout {
            after: SUBSCRIBE_TIMEOUT,
        },
    };
    handle.watched.refuse_asked(&refusal);
    None
}

fn not_taken() -> CallError {
    CallError::Protocol {
        code: code::INVALID_PARAMS,
        message: "the server does not tell of changes of this resource".to_owned(),
        data: None,
    }
}

/// Waits until the subscription ends. Its notifications take another path.
async fn ended(current: &mut Option<Subscription>) {
    if let Some(subscription) = current {
        while let Ok(Some(_)) = subscription.next().await {}
    }
}
