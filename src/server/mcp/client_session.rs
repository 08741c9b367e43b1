//! The state shared with one client of a handshake version, independent of the transport.
//!
//! Read next: `questions`, how a server's question finds its way to the client and back.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::http::HeaderValue;
use bytes::Bytes;
use futures::future::{BoxFuture, Either};
use serde_json::{Value, json};
use tokio::sync::broadcast::{
    self,
    error::{RecvError, TryRecvError},
};

use super::{
    client_info,
    outbox::{Outbox, notification},
    questions::ClientQuestions,
    work::{self, ActiveRequests},
};
use crate::{
    byte_budget::Reservation,
    gateway::{
        Gateway, RequestSource,
        mcp::{
            BackendEvent, LogInterest, Notice, RequestContext, ResourceSubscription, Topic, View,
        },
    },
    store::Principal,
    upstream::mcp::Caller,
};
use toolway_protocol::{
    mcp::{
        asks,
        level::Level,
        rpc::{
            self, MalformedMessage, RpcError, RpcMessage, RpcNotification, RpcRequest, RpcResponse,
            code,
        },
        version::Version,
    },
    tool::JsonObject,
};

/// Most resources that one client may subscribe to.
const MAX_WATCHES: usize = 256;

/// Most messages of one batch.
const MAX_BATCH: usize = 64;

/// The log level for messages that belong to no request, until the client sets one.
const UNASKED: Level = Level::Warning;

/// The log level sent with each request to a server of the stateless era, until the client sets one.
const UNASKED_AT_WORK: Level = Level::Info;

/// One client of a handshake version, after `initialize`.
pub(in crate::server) struct ClientSession {
    gateway: Arc<Gateway>,
    view: Arc<View>,
    version: Version,
    /// `ClientCapabilities`.
    capabilities: Value,
    owner: String,
    principal: Principal,
    /// What the client calls itself.
    client_info: Option<HeaderValue>,
    level: Mutex<Option<(Level, LogInterest)>>,
    watches: Mutex<HashMap<String, ResourceSubscription>>,
    questions: ClientQuestions,
    running: Arc<ActiveRequests>,
    /// Events that the client was not notified of yet.
    events: Mutex<broadcast::Receiver<Arc<BackendEvent>>>,
}

impl ClientSession {
    /// Answers `initialize`: the client, and the result.
    ///
    /// # Errors
    /// `Invalid params` when no version is asked for, or the capabilities are too long to be kept.
    pub(in crate::server) fn open(
        gateway: &Arc<Gateway>,
        view: Arc<View>,
        (owner, principal): (String, Principal),
        mut params: JsonObject,
    ) -> Result<(ClientSession, Value), RpcError> {
        let asked = params.get("protocolVersion").and_then(Value::as_str);
        let version = asked.map(Version::negotiate).ok_or_else(|| {
            RpcError::invalid_params("Invalid params: `protocolVersion` is missing")
        })?;
        let capabilities = asks::declared(params.remove("capabilities"))?;
        let about = gateway.describe(&view);
        let mut result = json!({
            "protocolVersion": version.as_str(),
            "capabilities": about.capabilities,
            "serverInfo": about.server_info,
        });
        if let Some(instructions) = about.instructions {
            result["instructions"] = instructions.into();
        }
        let client = ClientSession {
            gateway: Arc::clone(gateway),
            view,
            version,
            capabilities,
            owner,
            principal,
            client_info: client_info(params.get("clientInfo")),
            level: Mutex::default(),
            watches: Mutex::default(),
            questions: ClientQuestions::default(),
            running: Arc::default(),
            events: Mutex::new(gateway.events()),
        };
        Ok((client, result))
    }

    /// What its endpoint shows.
    pub(in crate::server) fn view(&self) -> &View {
        &self.view
    }

    /// The version that was agreed on.
    pub(in crate::server) fn version(&self) -> Version {
        self.version
    }

    /// The answer to a request, or `None` if it was cancelled. Messages before the answer go to the outbox; without one
    /// they are dropped. The request can be cancelled as soon as this returns, before the future is polled.
    pub(in crate::server) fn answer(
        self: Arc<Self>,
        request: RpcRequest,
        source: RequestSource,
        outbox: Option<Arc<Outbox>>,
        reservation: Option<Arc<Reservation>>,
    ) -> impl Future<Output = Option<Bytes>> + Send + 'static {
        let id = request.id.clone();
        let begun = self.running.begin(id.clone());
        async move {
            let outcome = match begun {
                Ok(place) => {
                    place
                        .hold(pin!(self.outcome(request, source, outbox, reservation)))
                        .await?
                }
                Err(busy) => Err(busy),
            };
            Some(rpc::write_answer(Some(&id), &outcome).into())
        }
    }

    /// Handles the notifications and responses of a batch, and returns its requests.
    ///
    /// # Errors
    /// `Invalid request` where the version has no batches, or this one is too long.
    pub(in crate::server) fn sort(
        &self,
        batch: Vec<Result<RpcMessage, MalformedMessage>>,
    ) -> Result<Vec<Result<RpcRequest, MalformedMessage>>, RpcError> {
        let invalid =
            |why: String| RpcError::new(code::INVALID_REQUEST, format!("Invalid request: {why}"));
        if !self.version.has_batches() {
            return Err(invalid(format!("{} has no batches", self.version)));
        }
        if batch.len() > MAX_BATCH {
            return Err(invalid(format!("a batch has at most {MAX_BATCH} messages")));
        }
        let mut requests = Vec::new();
        for message in batch {
            match message {
                Ok(RpcMessage::Request(request)) => requests.push(Ok(request)),
                Ok(RpcMessage::Notification(notification)) => self.notified(&notification),
                Ok(RpcMessage::Response(response)) => self.answered(response),
                Err(malformed) => requests.push(Err(malformed)),
            }
        }
        Ok(requests)
    }

    /// The answers to a batch, in one array; nothing if all of it was cancelled.
    pub(in crate::server) fn answer_all(
        self: Arc<Self>,
        requests: Vec<Result<RpcRequest, MalformedMessage>>,
        source: &RequestSource,
        outbox: Option<&Arc<Outbox>>,
        reservation: Option<&Arc<Reservation>>,
    ) -> impl Future<Output = Option<Bytes>> + Send + use<> {
        let answers: Vec<_> = requests
            .into_iter()
            .map(|request| match request {
                Ok(request) => {
                    let (outbox, reservation) = (outbox.cloned(), reservation.cloned());
                    let answer =
                        Arc::clone(&self).answer(request, source.clone(), outbox, reservation);
                    Either::Left(answer)
                }
                Err(malformed) => {
                    let answer = Bytes::from(malformed.to_value().to_string());
                    Either::Right(std::future::ready(Some(answer)))
                }
            })
            .collect();
        async move {
            let answers = futures::future::join_all(answers).await;
            let answers: Vec<Bytes> = answers.into_iter().flatten().collect();
            if answers.is_empty() {
                return None;
            }
            let mut array = vec![b'['];
            array.extend_from_slice(&answers.join(&b","[..]));
            array.push(b']');
            Some(array.into())
        }
    }

    /// Takes a notification.
    pub(in crate::server) fn notified(&self, notification: &RpcNotification) {
        if notification.method == "notifications/cancelled" {
            self.running.cancel(&notification.params);
        }
    }

    /// What comes of a request.
    async fn outcome(
        self: &Arc<Self>,
        request: RpcRequest,
        source: RequestSource,
        outbox: Option<Arc<Outbox>>,
        reservation: Option<Arc<Reservation>>,
    ) -> Result<Value, RpcError> {
        let RpcRequest { method, params, .. } = request;
        match method.as_str() {
            "ping" => Ok(json!({})),
            "logging/setLevel" => self.set_level(&params),
            "resources/subscribe" => self.subscribe(&params).await,
            "resources/unsubscribe" => {
                locked(&self.watches).remove(uri(&params)?);
                Ok(json!({}))
            }
            "initialize" => Err(RpcError::new(
                code::INVALID_REQUEST,
                "Invalid request: this session is initialized",
            )),
            method => {
                let context = self.context(source, outbox.clone(), reservation);
                work::run(&self.gateway, &context, method, params, outbox.as_deref()).await
            }
        }
    }

    /// Takes the client's response to a server's question.
    pub(in crate::server) fn answered(&self, response: RpcResponse) {
        self.questions.answered(response);
    }

    /// Sends notifications to the client, for ever; first those for events since the last call.
    pub(in crate::server) async fn tell(&self, outbox: &Outbox) {
        let mut alarm = locked(&self.events).resubscribe();
        loop {
            for message in self.tidings() {
                outbox.say(message);
            }
            if let Err(RecvError::Closed) = alarm.recv().await {
                return;
            }
        }
    }

    /// Events since the last call, as notifications for this client.
    fn tidings(&self) -> Vec<Bytes> {
        let mut told = Vec::new();
        loop {
            let events = locked(&self.events).try_recv();
            match events {
                Ok(events) => {
                    let notice = self.gateway.notice(&self.view, &events);
                    told.extend(notice.filter(|it| self.hears(&it.topic)).map(message));
                }
                // Events were missed, so everything may have changed.
                Err(TryRecvError::Lagged(_)) => told.extend(self.everything_changed()),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return told,
            }
        }
    }

    fn context(
        self: &Arc<Self>,
        source: RequestSource,
        outbox: Option<Arc<Outbox>>,
        reservation: Option<Arc<Reservation>>,
    ) -> RequestContext {
        let level = locked(&self.level).as_ref().map(|(level, _)| *level);
        RequestContext {
            view: Arc::clone(&self.view),
            version: self.version,
            caller: Arc::new(SessionCaller {
                client: Arc::clone(self),
                outbox,
            }),
            logs: Some(level.unwrap_or(UNASKED_AT_WORK)),
            owner: self.owner.clone(),
            principal: self.principal,
            source: RequestSource {
                client: self.client_info.clone().or(source.client),
                ..source
            },
            reservation,
        }
    }

    fn set_level(&self, params: &JsonObject) -> Result<Value, RpcError> {
        let asked = params.get("level").and_then(Value::as_str);
        let level = asked.and_then(Level::parse).ok_or_else(|| {
            let names: Vec<_> = Level::ALL.iter().map(|it| it.as_str()).collect();
            let names = names.join(", ");
            RpcError::invalid_params(format!("Invalid params: `level` must be one of {names}"))
        })?;
        let interest = self.gateway.log_interest(level);
        *locked(&self.level) = Some((level, interest));
        Ok(json!({}))
    }

    async fn subscribe(self: &Arc<Self>, params: &JsonObject) -> Result<Value, RpcError> {
        let uri = uri(params)?;
        {
            let watches = locked(&self.watches);
            if watches.contains_key(uri) {
                return Ok(json!({}));
            }
            if watches.len() >= MAX_WATCHES {
                return Err(RpcError::invalid_params(format!(
                    "Invalid params: at most {MAX_WATCHES} resources can be subscribed to"
                )));
            }
        }
        let context = self.context(RequestSource::default(), None, None);
        let watch = work::unless_ending(&self.gateway, self.gateway.watch(&context, uri)).await?;
        locked(&self.watches).insert(uri.to_owned(), watch);
        Ok(json!({}))
    }

    fn hears(&self, topic: &Topic) -> bool {
        match topic {
            Topic::Tools | Topic::Prompts | Topic::Resources => true,
            Topic::Resource(uri) => locked(&self.watches).contains_key(uri),
            Topic::Log(level) => locked(&self.level)
                .as_ref()
                .map_or(UNASKED, |(wanted, _)| *wanted)
                .hears(level),
        }
    }

    fn everything_changed(&self) -> Vec<Bytes> {
        let about = self.gateway.describe(&self.view);
        let lists = ["tools", "prompts", "resources"];
        let lists = lists
            .into_iter()
            .filter(|it| about.capabilities[it]["listChanged"] == true)
            .map(|it| notification(&format!("notifications/{it}/list_changed"), json!({})));
        let watches = locked(&self.watches);
        let watched = watches
            .keys()
            .map(|uri| notification("notifications/resources/updated", json!({"uri": uri})));
        lists.chain(watched).collect()
    }
}

/// The client, as the caller of one of its requests.
struct SessionCaller {
    client: Arc<ClientSession>,
    /// The outbox for messages to the client; without it the client has no capabilities.
    outbox: Option<Arc<Outbox>>,
}

/// The capabilities of a client without an outbox.
static NOTHING: Value = Value::Null;

impl Caller for SessionCaller {
    fn capabilities(&self) -> &Value {
        match self.outbox {
            Some(_) => &self.client.capabilities,
            None => &NOTHING,
        }
    }

    fn client(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.client).addr())
    }

    fn ask<'a>(&'a self, method: &'a str, params: Value) -> BoxFuture<'a, Result<Value, RpcError>> {
        Box::pin(async move {
            match &self.outbox {
                Some(outbox) => self.client.questions.ask(outbox, method, params).await,
                None => Err(RpcError::method_not_found(method)),
            }
        })
    }

    fn tell(&self, method: &str, params: Value) {
        let Some(outbox) = &self.outbox else { return };
        let level = params["level"].as_str().unwrap_or_default();
        let wanted = locked(&self.client.level)
            .as_ref()
            .map(|(wanted, _)| *wanted);
        let is_heard = method != "notifications/message" || wanted.is_none_or(|it| it.hears(level));
        if is_heard {
            outbox.say(notification(method, params));
        }
    }
}

fn message(notice: Notice) -> Bytes {
    notification(&notice.method, notice.params)
}

fn uri(params: &JsonObject) -> Result<&str, RpcError> {
    let uri = params.get("uri").and_then(Value::as_str);
    uri.ok_or_else(|| RpcError::invalid_params("Invalid params: `uri` is missing"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
