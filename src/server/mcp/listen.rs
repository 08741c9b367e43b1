//! `subscriptions/listen`: what happens, told to a client of 2026-07-28 as far as it wants to hear of it.

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
    /// Has everything watched that is asked for. A resource that cannot be watched is left out.
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
        // Side by side, so that servers that do not answer are waited for once, and a server of 2026-07-28 is asked
        // for all of its own at once.
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

    /// Tells what happens, until toolway stops; gives the result that says so.
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

    /// What was missed may be anything.
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
