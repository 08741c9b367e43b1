//! One live connection to a server: requests made, tools and features listed.

use std::sync::Arc;

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
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    CallOptions, Caller, faults,
    pending::Pending,
    running::{Errand, Running},
    wrapped,
};
use crate::{
    mcp::{
        features::{Entries, FeatureError, Kind},
        results,
        tools::{ListError, Listing},
    },
    tool::{CallError, JsonObject, ToolResult},
};

/// The capabilities of the client, in the `_meta` of every request (2026-07-28).
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// What of a client's `_meta` concerns its own connection, and never goes further.
const OF_THE_CONNECTION: [&str; 4] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    CAPABILITIES,
    "progressToken",
];

/// Why a list could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListFault {
    #[error("{0} failed: {1}")]
    Service(&'static str, ServiceError),
    #[error("{0}")]
    List(#[from] ListError),
    #[error("{0}")]
    Feature(#[from] FeatureError),
}

/// A live connection.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) peer: Peer<RoleClient>,
    pub(super) pending: Pending,
    /// Rung when a call shows that there is no server any more.
    pub(super) absence: Arc<Notify>,
}

impl Session {
    /// Lists the tools, page by page.
    pub(super) async fn list_tools(&self) -> Result<Listing, ListFault> {
        let mut listing = Listing::default();
        let mut cursor = None;
        loop {
            let page = match self.page("tools/list", cursor).await {
                // Some have them and do not say so, so they are asked all the same.
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
    pub(super) async fn list_features(&self, kind: Kind) -> Result<Entries, ListFault> {
        let mut entries = Entries::new(kind);
        let mut cursor = None;
        loop {
            let page = match self.page(kind.method(), cursor).await {
                // Servers with resources need not know templates.
                Err(ServiceError::McpError(error))
                    if error.code == ErrorCode::METHOD_NOT_FOUND && kind == Kind::Templates =>
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
    pub(super) async fn send(
        &self,
        method: &str,
        params: JsonObject,
    ) -> Result<Value, ServiceError> {
        let request = custom(method, params, None);
        let handle = self
            .peer
            .send_request_with_option(request, self.options(None))
            .await?;
        handle.await_response().await.map(wrapped::unwrap)
    }

    /// What the server said in the handshake about this capability.
    pub(super) fn declares(&self, capability: &str) -> bool {
        !self.pending.hello()["capabilities"][capability].is_null()
    }

    /// The version has no handshake: every request stands for itself (2026-07-28).
    pub(super) fn is_modern(&self) -> bool {
        let info = self.peer.peer_info();
        info.is_some_and(|info| !info.protocol_version.has_initialize())
    }

    /// Makes a request. Dropping the future cancels it at the server.
    pub(super) async fn request(
        &self,
        method: &str,
        mut params: JsonObject,
        options: &CallOptions,
    ) -> Result<Value, CallError> {
        let started = Instant::now();
        let over = CancellationToken::new();
        let running = Running::new(options.caller.clone(), over.clone());
        let _over = over.drop_guard();
        let mut questions = running.questions();
        if let Some(Value::Object(meta)) = params.get_mut("_meta") {
            meta.retain(|name, _| !OF_THE_CONNECTION.contains(&name.as_str()));
        }
        let mut handle = self
            .peer
            .send_request_with_option(
                custom(method, params, Some(&running)),
                self.options(options.caller.as_deref()),
            )
            .await
            .map_err(|_| faults::gone(true))?;
        let mut progress = self.pending.progress().claim(handle.progress_token.clone());
        let guard = CancelOnDrop {
            peer: &self.peer,
            id: Some(handle.id.clone()),
        };
        let mut silent_until = started + options.silence;
        let answer = loop {
            // A server that waits for an answer of the caller's is not silent.
            let is_asking = *questions.borrow() > 0;
            let until = if is_asking {
                options.deadline
            } else {
                silent_until.min(options.deadline)
            };
            tokio::select! {
                biased;
                answer = &mut handle.rx => break answer,
                step = progress.next() => {
                    silent_until = Instant::now() + options.silence;
                    if let Some(listener) = &options.progress {
                        let _ = listener.try_send(step);
                    }
                }
                _ = questions.changed() => silent_until = Instant::now() + options.silence,
                () = tokio::time::sleep_until(until) => {
                    drop(guard);
                    let after = if is_asking || silent_until > options.deadline {
                        options.deadline - started
                    } else {
                        options.silence
                    };
                    return Err(CallError::Timeout { after });
                }
            }
        };
        guard.disarm();
        while let (Some(step), Some(listener)) = (progress.next().now_or_never(), &options.progress)
        {
            let _ = listener.try_send(step);
        }
        match answer {
            Ok(Ok(result)) => Ok(wrapped::unwrap(result)),
            Ok(Err(error)) => {
                if faults::shows_absence(&error) {
                    self.absence.notify_one();
                }
                Err(faults::of_call(error))
            }
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
        let declared = caller.map(|caller| caller.capabilities().clone());
        let declared = declared.filter(Value::is_object).unwrap_or(json!({}));
        let mut meta = JsonObject::new();
        meta.insert(CAPABILITIES.to_owned(), declared);
        options.with_meta(RequestMetaObject::from(meta))
    }
}

/// A request with its params as they are. rmcp's models of requests would lose what they do not know.
fn custom(method: &str, params: JsonObject, running: Option<&Arc<Running>>) -> ClientRequest {
    let mut request = CustomRequest::new(method, Some(Value::Object(params)));
    if let Some(running) = running {
        let errand = Errand(Arc::downgrade(running));
        request.extensions_mut().insert(errand);
    }
    ClientRequest::CustomRequest(request)
}

/// What a model gets of the answer to a call.
pub(super) fn read_answer(raw: Value) -> Result<ToolResult, CallError> {
    if results::asks_for_input(&raw) {
        return Err(CallError::Protocol {
            code: i64::from(ErrorCode::INVALID_REQUEST.0),
            message: "the tool asks the user for input, which cannot be given here".to_owned(),
            data: None,
        });
    }
    Ok(results::read_result(raw))
}

/// Tells the server that nobody waits for a request any more.
struct CancelOnDrop<'a> {
    peer: &'a Peer<RoleClient>,
    id: Option<RequestId>,
}

impl CancelOnDrop<'_> {
    fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let params: CancelledNotificationParam =
            CancelledNotificationParam::new(Some(id), Some("the caller went away".to_owned()));
        let notification =
            ClientNotification::CancelledNotification(CancelledNotification::new(params));
        // One poll puts it into rmcp's queue; waiting until it is written would need a task.
        let sending = self.peer.send_notification(notification);
        let _ = tokio::task::unconstrained(sending).now_or_never();
    }
}
