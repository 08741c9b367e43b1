//! `subscriptions/listen`: notifications for a client of 2026-07-28, by its filter.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::CancellationToken;

use super::{
    outbox::{Outbox, notification},
    stateless_request::StatelessRequest,
    work,
};
use crate::gateway::{
    Gateway,
    mcp::{BackendEvent, ResourceSubscription, Topic, View},
};
use toolway_protocol::{
    mcp::{
        rpc::{RpcError, RpcId},
        stateless::{self, ListenFilter},
    },
    tool::JsonObject,
};

/// One subscription.
pub(in crate::server) struct Subscription {
    gateway: Arc<Gateway>,
    view: Arc<View>,
    id: RpcId,
    filter: ListenFilter,
    _watches: Vec<ResourceSubscription>,
    events: broadcast::Receiver<Arc<BackendEvent>>,
}

impl Subscription {
    /// Subscribes to all resources of the filter. A resource that cannot be subscribed to is left out.
    ///
    /// # Errors
    /// `Invalid params`, when the filter cannot be read.
    pub(in crate::server) async fn open(
        once: &StatelessRequest,
        id: &RpcId,
        params: &JsonObject,
    ) -> Result<Subscription, RpcError> {
        // First, so that nothing is missed that happens meanwhile.
        let events = once.gateway.events();
        let capabilities = once.gateway.describe(&once.view).capabilities;
        let mut filter = ListenFilter::read(params)?.accepted(&capabilities);
        let context = once.context();
        let mut asked: Vec<String> = Vec::new();
        for uri in std::mem::take(&mut filter.uris) {
            if !asked.contains(&uri) {
                asked.push(uri);
            }
        }
        // Concurrently, so that silent servers cost one timeout, and a server of 2026-07-28 gets all its resources in
        // one request.
        let answers = asked
            .iter()
            .map(|uri| work::unless_ending(&once.gateway, once.gateway.watch(&context, uri)));
        let answers = join_all(answers).await;
        let mut watches = Vec::new();
        for (uri, answer) in asked.into_iter().zip(answers) {
            match answer {
                Ok(watch) => {
                    watches.push(watch);
                    filter.uris.push(uri);
                }
                Err(error) => tracing::debug!(error.code, "A resource cannot be watched"),
            }
        }
        Ok(Subscription {
            gateway: Arc::clone(&once.gateway),
            view: Arc::clone(&once.view),
            id: id.clone(),
            filter,
            _watches: watches,
            events,
        })
    }

    /// Sends notifications until toolway stops; returns the final result.
    pub(in crate::server) async fn tell(
        mut self,
        outbox: &Outbox,
        stopping: &CancellationToken,
    ) -> Value {
        let accepted = json!({"notifications": self.filter.to_value()});
        outbox.must_say(self.line("notifications/subscriptions/acknowledged", accepted));
        loop {
            let event = tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                () = self.view.over() => break,
                event = self.events.recv() => event,
            };
            match event {
                Ok(event) => self.pass_on(&event, outbox),
                Err(RecvError::Lagged(_)) => self.everything_changed(outbox),
                Err(RecvError::Closed) => break,
            }
        }
        stateless::ended(&self.id)
    }

    fn pass_on(&self, event: &BackendEvent, outbox: &Outbox) {
        let Some(notice) = self.gateway.notice(&self.view, event) else {
            return;
        };
        let is_wanted = match &notice.topic {
            Topic::Tools => self.filter.tools,
            Topic::Prompts => self.filter.prompts,
            Topic::Resources => self.filter.resources,
            Topic::Resource(uri) => self.filter.uris.contains(uri),
            Topic::Log(_) => false,
        };
        if is_wanted {
            outbox.say(self.line(&notice.method, notice.params));
        }
    }

    /// Events were missed, so everything may have changed.
    fn everything_changed(&self, outbox: &Outbox) {
        let lists = [
            ("tools", self.filter.tools),
            ("prompts", self.filter.prompts),
            ("resources", self.filter.resources),
        ];
        for (list, _) in lists.into_iter().filter(|(_, is_wanted)| *is_wanted) {
            let method = format!("notifications/{list}/list_changed");
            outbox.say(self.line(&method, json!({})));
        }
        for uri in &self.filter.uris {
            outbox.say(self.line("notifications/resources/updated", json!({"uri": uri})));
        }
    }

    fn line(&self, method: &str, params: Value) -> Bytes {
        notification(method, stateless::subscribed(params, &self.id))
    }
}
