//! One live connection to a server: requests made, tools and features listed.

use std::{
    pin::{Pin, pin},
    sync::{Arc, LazyLock},
};

use futures::FutureExt;
use rmcp::{
    RoleClient,
    model::{
        CancelledNotification, CancelledNotificationParam, ClientNotification, ClientRequest,
        CustomRequest, ErrorCode, GetExtensions, RequestId, RequestMetaObject,
    },
    service::{Peer, PeerRequestOptions, ServiceError},
};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::upstream::{
    mcp::{
        CallOptions, Caller,
        faults::{self, Outage},
        raw_messages::{Pending, RequestTag, Running, wrapped},
        streamable::{DirectCall, DirectOutcome, PostedRequest, Poster},
    },
    queue::QueueSlot,
};
use toolway_protocol::{
    mcp::{
        features::{FeatureEntries, FeatureError, FeatureKind},
        results,
        stateless::{CLIENT_CAPABILITIES, OF_THE_CONNECTION},
        tools::{ListError, Listing},
    },
    tool::{CallError, JsonObject, ToolResult},
};

/// Why a list could not be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::upstream::mcp) enum ListFault {
    #[error("{0} failed: {1}")]
    Service(&'static str, ServiceError),
    #[error("{0}")]
    List(#[from] ListError),
    #[error("{0}")]
    Feature(#[from] FeatureError),
}

impl From<ListFault> for Outage {
    fn from(fault: ListFault) -> Outage {
        match fault {
            ListFault::Service(method, ServiceError::McpError(error)) => Outage {
                what: format!("{method} failed with the JSON-RPC error {}", error.code.0),
                said: Some(error.message.into_owned()),
            },
            fault => fault.to_string().into(),
        }
    }
}

/// A live connection.
#[derive(Clone, Debug)]
pub(in crate::upstream::mcp) struct ServerSession {
    pub(in crate::upstream::mcp) peer: Peer<RoleClient>,
    pub(in crate::upstream::mcp) pending: Pending,
    /// Notified when a call shows that the server is gone.
    pub(in crate::upstream::mcp) absence: Arc<Notify>,
    /// Makes the calls over Streamable HTTP that do not need rmcp.
    pub(in crate::upstream::mcp) poster: Option<Poster>,
}

impl ServerSession {
    /// Lists the tools, page by page.
    pub(in crate::upstream::mcp) async fn list_tools(&self) -> Result<Listing, ListFault> {
        let mut listing = Listing::default();
        let mut cursor = None;
        loop {
            let page = match self.page("tools/list", cursor).await {
                // Some servers have them without declaring it, so they are asked anyway.
                Err(ServiceError::McpError(_)) if !self.declares("tools") => return Ok(listing),
                page => page.map_err(|error| ListFault::Service("tools/list", error))?,
            };
            cursor = listing.add_page(&page)?;
            if cursor.is_none() {
                return Ok(listing);
            }
        }
    }

    /// Lists prompts, resources or templates, page by page.
    pub(in crate::upstream::mcp) async fn list_features(
        &self,
        kind: FeatureKind,
    ) -> Result<FeatureEntries, ListFault> {
        let mut entries = FeatureEntries::new(kind);
        let mut cursor = None;
        loop {
            let page = match self.page(kind.method(), cursor).await {
                // Servers with resources need not support templates.
                Err(ServiceError::McpError(error))
                    if error.code == ErrorCode::METHOD_NOT_FOUND
                        && kind == FeatureKind::Templates =>
                {
                    return Ok(entries);
                }
                page => page.map_err(|error| ListFault::Service(kind.method(), error))?,
            };
            cursor = entries.add_page(&page)?;
            if cursor.is_none() {
                return Ok(entries);
            }
        }
    }

    async fn page(&self, method: &str, cursor: Option<String>) -> Result<Value, ServiceError> {
        let mut params = JsonObject::new();
        if let Some(cursor) = cursor {
            params.insert("cursor".to_owned(), cursor.into());
        }
        self.send(method, params).await
    }

    /// Makes a request of toolway's own. The caller sets the deadline.
    pub(in crate::upstream::mcp) async fn send(
        &self,
        method: &str,
        params: JsonObject,
    ) -> Result<Value, ServiceError> {
        let request = ClientRequest::CustomRequest(custom(method, params));
        let handle = self
            .peer
            .send_request_with_option(request, self.options(None))
            .await?;
        handle.await_response().await.map(wrapped::unwrap)
    }

    /// What the server said in the handshake about this capability.
    pub(in crate::upstream::mcp) fn declares(&self, capability: &str) -> bool {
        !self.pending.hello()["capabilities"][capability].is_null()
    }

    /// The version has no handshake: every request stands for itself (2026-07-28).
    pub(in crate::upstream::mcp) fn is_modern(&self) -> bool {
        let info = self.peer.peer_info();
        info.is_some_and(|info| !info.protocol_version.has_initialize())
    }

    /// Makes a request that `begun` then, and runs at this place. Dropping the future cancels it at the server.
    pub(in crate::upstream::mcp) async fn request(
        &self,
        method: &str,
        params: &JsonObject,
        options: &CallOptions,
        begun: Instant,
        place: QueueSlot,
    ) -> Result<Value, CallError> {
        let running = Running::new(options.caller.clone(), Some(place));
        let _under = running.until_dropped();
        let answer = pin!(self.exchange(method, params, options, &running));
        wait(answer, &running, options, begun).await
    }

    /// Maps a failure to a call error.
    fn failure(&self, error: ServiceError) -> CallError {
        if faults::shows_absence(&error) {
            self.absence.notify_one();
        }
        faults::of_call(error)
    }

    /// Sends a request and gives its answer. Dropping the future cancels it at the server.
    async fn exchange(
        &self,
        method: &str,
        params: &JsonObject,
        options: &CallOptions,
        running: &Arc<Running>,
    ) -> Result<Value, CallError> {
        let caller = options.caller.as_deref();
        let Some(call) = self.direct(method, params, caller) else {
            return self
                .through_rmcp(method, params, options, running, None)
                .await;
        };
        let id = self.pending.note_own(running);
        let own = RequestId::Number(id);
        let guard = CancelOnDrop {
            session: self,
            id: Some(own.clone()),
            is_own: true,
        };
        options.sends.count();
        let begun = match call.make(id).await {
            DirectOutcome::Answer(answer) => {
                self.pending.forget(&own);
                guard.disarm();
                return answer.map_err(|error| self.failure(ServiceError::McpError(error)));
            }
            DirectOutcome::Else(came) => {
                Some((PostedRequest::new(own, call.session(), came), guard))
            }
            DirectOutcome::Nothing => {
                self.pending.forget(&own);
                guard.disarm();
                None
            }
        };
        let rmcp = Box::pin(self.through_rmcp(method, params, options, running, begun));
        rmcp.await
    }

    /// The call, where it can be made without rmcp.
    fn direct<'a>(
        &'a self,
        method: &str,
        params: &'a JsonObject,
        caller: Option<&'a dyn Caller>,
    ) -> Option<DirectCall<'a>> {
        let poster = self.poster.as_ref()?;
        let declared = self.is_modern().then(|| declared(caller));
        let has_header_arguments = self.pending.has_header_arguments();
        DirectCall::of(poster, method, params, declared, has_header_arguments)
    }

    /// Makes a request through rmcp, or lets rmcp continue one that was begun without it. Its future is large and
    /// rarely used.
    async fn through_rmcp(
        &self,
        method: &str,
        params: &JsonObject,
        options: &CallOptions,
        running: &Arc<Running>,
        begun: Option<(PostedRequest, CancelOnDrop<'_>)>,
    ) -> Result<Value, CallError> {
        let mut params = params.clone();
        if let Some(Value::Object(meta)) = params.get_mut("_meta") {
            meta.retain(|name, _| !OF_THE_CONNECTION.contains(&name.as_str()));
        }
        let mut request = custom(method, params);
        let extensions = request.extensions_mut();
        extensions.insert(RequestTag(Arc::downgrade(running)));
        extensions.insert(options.sends.clone());
        let (begun, before) = begun.unzip();
        if let Some(begun) = begun {
            extensions.insert(begun);
        }
        let options = self.options(options.caller.as_deref());
        let handle = self
            .peer
            .send_request_with_option(ClientRequest::CustomRequest(request), options)
            .await
            .map_err(|_| faults::gone(before.is_none()))?;
        let guard = CancelOnDrop {
            session: self,
            id: Some(handle.id.clone()),
            is_own: false,
        };
        if let Some(before) = before {
            before.disarm();
        }
        let _progress = self
            .pending
            .progress()
            .claim(&handle.progress_token, running);
        let answer = handle.rx.await;
        guard.disarm();
        match answer {
            Ok(Ok(result)) => Ok(wrapped::unwrap(result)),
            Ok(Err(error)) => Err(self.failure(error)),
            Err(_) => Err(faults::gone(false)),
        }
    }

    /// What rmcp adds to a request. Where the version has no handshake, each tells what its own caller can do, and
    /// not what the handshake would have declared.
    fn options(&self, caller: Option<&dyn Caller>) -> PeerRequestOptions {
        let options = PeerRequestOptions::no_options();
        if !self.is_modern() {
            return options;
        }
        let mut meta = JsonObject::new();
        meta.insert(CLIENT_CAPABILITIES.to_owned(), declared(caller).clone());
        options.with_meta(RequestMetaObject::from(meta))
    }
}

/// The caller's capabilities, if each request carries them.
fn declared(caller: Option<&dyn Caller>) -> &Value {
    static NOTHING: LazyLock<Value> = LazyLock::new(|| json!({}));
    let declared = caller.map(Caller::capabilities);
    declared.filter(|it| it.is_object()).unwrap_or(&NOTHING)
}

/// A request with its params as they are. rmcp's models of requests would lose what they do not know.
fn custom(method: &str, params: JsonObject) -> CustomRequest {
    CustomRequest::new(method, Some(Value::Object(params)))
}

/// Waits for the answer to a request, as long as the server may be silent and within its deadline.
///
/// # Errors
/// The time is over. Dropping the answer cancels the request.
async fn wait(
    mut answer: Pin<&mut impl Future<Output = Result<Value, CallError>>>,
    running: &Running,
    options: &CallOptions,
    begun: Instant,
) -> Result<Value, CallError> {
    let mut silent_until = begun + options.silence;
    let mut alarm = pin!(sleep_until(silent_until.min(options.deadline)));
    let tell = || {
        while let Some(step) = running.next_progress() {
            if let Some(listener) = &options.progress {
                let _ = listener.try_send(step);
            }
        }
    };
    let answer = loop {
        // A server that waits for an answer of the caller's is not silent.
        let is_asking = running.open_questions() > 0;
        let until = if is_asking {
            options.deadline
        } else {
            silent_until.min(options.deadline)
        };
        if alarm.deadline() != until {
            alarm.as_mut().reset(until);
        }
        tokio::select! {
            biased;
            answer = &mut answer => break answer,
            () = running.stirs() => {
                if let Some(answer) = running.take_answer() {
                    break answer.map_err(|error| faults::of_call(ServiceError::McpError(error)));
                }
                silent_until = Instant::now() + options.silence;
                tell();
            }
            () = &mut alarm => {
                let after = if is_asking || silent_until > options.deadline {
                    options.deadline.saturating_duration_since(begun)
                } else {
                    options.silence
                };
                return Err(CallError::Timeout { after });
            }
        }
    };
    tell();
    answer
}

/// What a model gets of the answer to a call.
pub(in crate::upstream::mcp) fn read_answer(raw: Value) -> Result<ToolResult, CallError> {
    if results::asks_for_input(&raw) {
        return Err(CallError::Protocol {
            code: i64::from(ErrorCode::INVALID_REQUEST.0),
            message: "the tool asks the user for input, which cannot be given here".to_owned(),
            data: None,
        });
    }
    Ok(results::read_result(raw))
}

/// Tells the server that a request is cancelled.
struct CancelOnDrop<'a> {
    session: &'a ServerSession,
    /// A request that rmcp knows, or one that only toolway knows.
    id: Option<RequestId>,
    is_own: bool,
}

impl CancelOnDrop<'_> {
    fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        if self.is_own && !self.session.pending.forget(&id) {
            // It was answered by another path than the expected one.
            return;
        }
        let params: CancelledNotificationParam =
            CancelledNotificationParam::new(Some(id), Some("the caller went away".to_owned()));
        let notification =
            ClientNotification::CancelledNotification(CancelledNotification::new(params));
        // One poll puts it into rmcp's queue; waiting until it is written would need a task.
        let sending = self.session.peer.send_notification(notification);
        let _ = tokio::task::unconstrained(sending).now_or_never();
    }
}
