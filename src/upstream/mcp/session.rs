//! One live connection to a server: its tools listed, its tools called.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        CancelledNotification, CancelledNotificationParam, ClientCapabilities, ClientConfig,
        ClientNotification, ClientRequest, CustomRequest, ElicitRequestParams, ElicitResult,
        ErrorCode, ErrorData, Implementation, ListToolsRequest, PaginatedRequestParams,
        ProtocolVersion, RequestId,
    },
    service::{NotificationContext, Peer, PeerRequestOptions, RequestContext, ServiceError},
};
use serde_json::Value;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{CallOptions, faults, progress::ProgressTable, streamable};
use crate::{
    mcp::{
        results,
        tools::{ListError, Listing},
    },
    tool::{CallError, JsonObject, ToolResult},
};

/// Why a list of tools could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListFault {
    #[error("tools/list failed: {0}")]
    Service(#[from] ServiceError),
    #[error("{0}")]
    List(#[from] ListError),
}

/// What rmcp tells us about: the client side of a connection that offers a server nothing.
#[derive(Clone, Debug)]
pub(super) struct Ears {
    /// Counts the times the server said that its tools changed.
    pub(super) changes: watch::Sender<u64>,
}

/// A live connection.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) peer: Peer<RoleClient>,
    pub(super) progress: ProgressTable,
    /// Rung when a call shows that there is no server any more.
    pub(super) absence: Arc<Notify>,
}

impl Session {
    /// Lists the tools, page by page.
    pub(super) async fn list_tools(&self) -> Result<Listing, ListFault> {
        let mut listing = Listing::default();
        let mut cursor = None;
        loop {
            let params =
                cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
            let request = ListToolsRequest {
                params,
                ..ListToolsRequest::default()
            };
            let request = ClientRequest::ListToolsRequest(request);
            let page = match self.peer.send_request(request).await {
                Err(ServiceError::McpError(_)) if !self.has_tools() => return Ok(listing),
                page => streamable::unwrap(page?),
            };
            cursor = listing.add_page(&page)?;
            if cursor.is_none() {
                return Ok(listing);
            }
        }
    }

    /// The server says that it has tools. Some have them and do not say so, so they are asked all the same.
    fn has_tools(&self) -> bool {
        self.peer
            .peer_info()
            .is_some_and(|info| info.capabilities.tools.is_some())
    }

    /// Makes a request. Dropping the future cancels it at the server.
    pub(super) async fn request(
        &self,
        method: &str,
        params: JsonObject,
        options: &CallOptions,
    ) -> Result<Value, CallError> {
        let started = Instant::now();
        let request = CustomRequest::new(method, Some(Value::Object(params)));
        let request = ClientRequest::CustomRequest(request);
        let mut handle = self
            .peer
            .send_request_with_option(request, PeerRequestOptions::no_options())
            .await
            .map_err(|_| faults::gone(true))?;
        let mut progress = self.progress.claim(handle.progress_token.clone());
        let guard = CancelOnDrop {
            peer: &self.peer,
            id: Some(handle.id.clone()),
        };
        let mut silent_until = started + options.silence;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut handle.rx => break answer,
                step = progress.next() => {
                    silent_until = Instant::now() + options.silence;
                    if let Some(listener) = &options.progress {
                        let _ = listener.try_send(step);
                    }
                }
                () = tokio::time::sleep_until(silent_until.min(options.deadline)) => {
                    drop(guard);
                    return Err(CallError::Timeout { after: given_up_after(started, silent_until, options) });
                }
            }
        };
        guard.disarm();
        while let (Some(step), Some(listener)) = (progress.next().now_or_never(), &options.progress)
        {
            let _ = listener.try_send(step);
        }
        match answer {
            Ok(Ok(result)) => Ok(streamable::unwrap(result)),
            Ok(Err(error)) => {
                if faults::shows_absence(&error) {
                    self.absence.notify_one();
                }
                Err(faults::of_call(error))
            }
            Err(_) => Err(faults::gone(false)),
        }
    }
}

/// How long was waited: the silence that was too long, or the whole time until the deadline.
fn given_up_after(started: Instant, silent_until: Instant, options: &CallOptions) -> Duration {
    if silent_until <= options.deadline {
        options.silence
    } else {
        options.deadline - started
    }
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

/// Tells the server that nobody waits for a call any more.
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

#[expect(
    deprecated,
    reason = "roots are deprecated, and a server may still ask for them"
)]
impl ClientHandler for Ears {
    fn get_info(&self) -> ClientConfig {
        let this = Implementation::new("toolway", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), this)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changes.send_modify(|count| *count += 1);
    }

    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(not_offered("roots/list"))
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Err(not_offered("elicitation/create"))
    }
}

fn not_offered(method: &'static str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None)
}
