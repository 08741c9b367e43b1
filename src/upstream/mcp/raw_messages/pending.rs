//! The requests in progress on one connection, and how the server's messages are read.
//!
//! Results are passed to rmcp as [`CustomResult`], which it returns unchanged. A server's requests are kept in
//! `questions`; its notifications go to `server_notifications` and `progress` and never reach rmcp.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomRequest, CustomResult,
    ErrorCode, ErrorData, GetExtensions, PingRequest, RequestId, ServerJsonRpcMessage,
    ServerRequest, ServerResult,
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::warn;

use super::{
    progress::{self, ProgressTable},
    questions::{Question, Questions},
    running::{Recipient, RequestTag, Running, meant},
    server_notifications::{Changes, ServerNotifications},
};
use crate::upstream::mcp::pace::Pace;
use toolway_protocol::mcp::{envelope, rpc::RpcError};

/// Most requests that are kept. Over HTTP nothing tells that a request was given up.
const MAX_PENDING: usize = 4096;

/// The ids of requests that toolway makes without rmcp, which counts its own from 0. Servers keep ids in 32 bits, some
/// of them signed (those on rmcp before 0.6.3 cut off what is more), so they begin again at this one after as many.
const FIRST_OWN: i64 = 1 << 30;

/// How the answer to a request is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadMode {
    /// As it came.
    Raw,
    /// By rmcp's models.
    Typed,
    /// By rmcp's models, with what a careless server left out filled in.
    Handshake,
    /// By rmcp's models; it describes the server.
    Discovery,
    /// Not at all: the request was cancelled. A good answer to a cancelled probe is still noted.
    Late,
}

/// The requests under way on one connection.
#[derive(Clone, Debug)]
pub(in crate::upstream::mcp) struct Pending(Arc<PendingState>);

#[derive(Debug)]
struct PendingState {
    requests: Mutex<PendingRequests>,
    /// Counts the requests that toolway makes without rmcp.
    next_own: AtomicI64,
    has_header_arguments: AtomicBool,
    progress: ProgressTable,
    questions: Questions,
    notifications: ServerNotifications,
    answered_late: AtomicBool,
    hello: Mutex<Value>,
    handshakes: watch::Sender<u64>,
    /// How many answers came.
    answers: AtomicU64,
    pace: Mutex<Pace>,
    /// It was logged that the server is read slowly.
    is_flooded: AtomicBool,
}

#[derive(Debug, Default)]
struct PendingRequests {
    by_id: HashMap<RequestId, PendingRequest>,
    /// How many there were.
    count: u64,
}

/// A request that was sent.
#[derive(Debug)]
struct PendingRequest {
    /// Its place in the order of all.
    place: u64,
    reading: ReadMode,
    maker: Maker,
    /// The request it was made for, unless it is toolway's own; dead when no task waits for it any more.
    running: Option<Weak<Running>>,
    /// The last event of its stream, from which the stream may be resumed (Streamable HTTP).
    last_event: Option<String>,
}

/// The maker of a request, which waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Maker {
    Rmcp,
    /// toolway itself; an answer that arrives by another path is passed to it.
    Own,
    /// toolway first, then rmcp, which uses this id.
    TakenOver(RequestId),
}

impl PendingRequest {
    /// No task waits for its answer any more.
    fn is_given_up(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.strong_count() == 0)
    }
}

impl Pending {
    /// No requests yet. Notifications go to `notifications`.
    pub(in crate::upstream::mcp) fn new(notifications: ServerNotifications) -> Pending {
        Pending(Arc::new(PendingState {
            requests: Mutex::default(),
            next_own: AtomicI64::new(0),
            has_header_arguments: AtomicBool::new(false),
            progress: ProgressTable::default(),
            questions: Questions::default(),
            notifications,
            answered_late: AtomicBool::new(false),
            hello: Mutex::default(),
            handshakes: watch::Sender::new(0),
            answers: AtomicU64::new(0),
            pace: Mutex::new(Pace::new()),
            is_flooded: AtomicBool::new(false),
        }))
    }

    /// How many answers came so far. A message that does not change this number was not an answer.
    pub(in crate::upstream::mcp) fn answers(&self) -> u64 {
        self.0.answers.load(Ordering::Relaxed)
    }

    /// Counts a message that was no answer, and waits where the server sends too many of them.
    pub(in crate::upstream::mcp) async fn slow_down(&self, bytes: usize) {
        let pause = {
            let pace = &self.0.pace;
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.count(bytes, Instant::now())
        };
        let Some(pause) = pause else { return };
        if !self.0.is_flooded.swap(true, Ordering::Relaxed) {
            let server = &self.0.notifications.server;
            warn!(server.id = %server, "A server sends more than 2,000 messages, or 2 MiB, a second that nobody asked for; it is read slowly");
        }
        let pause = Box::pin(sleep(pause));
        pause.await;
    }

    /// Where the progress of these requests goes.
    pub(in crate::upstream::mcp) fn progress(&self) -> &ProgressTable {
        &self.0.progress
    }

    /// Counts the changes of the server's lists.
    pub(in crate::upstream::mcp) fn changes(&self) -> &Changes {
        &self.0.notifications.changes
    }

    /// The result of the last `initialize` or `server/discover`; `null` before.
    pub(in crate::upstream::mcp) fn hello(&self) -> Value {
        self.0
            .hello
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Counts the answered `initialize` requests. A new one means that the server has forgotten everything sent before
    /// it (Streamable HTTP, where rmcp renews lost sessions).
    pub(in crate::upstream::mcp) fn handshakes(&self) -> watch::Receiver<u64> {
        self.0.handshakes.subscribe()
    }

    /// Takes the server's question that this substitute stands for.
    pub(super) fn take_question(&self, request: &CustomRequest) -> Result<Question, RpcError> {
        self.0.questions.take(request)
    }

    /// Notes how the answer to a message that is about to be sent will be read.
    pub(in crate::upstream::mcp) fn note_sent(&self, message: &ClientJsonRpcMessage) {
        match message {
            ClientJsonRpcMessage::Request(request) => {
                let errand = request.request.extensions().get::<RequestTag>();
                let reading = reading_of(&request.request);
                let running = errand.map(|errand| errand.0.clone());
                self.requests()
                    .add(request.id.clone(), reading, running, Maker::Rmcp);
            }
            ClientJsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.requests().by_id.remove(id);
                }
            }
            ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_) => {}
        }
    }

    /// Notes a request that toolway is about to make without rmcp, and gives it an id that none of rmcp's has. Its
    /// progress token is the same number.
    pub(in crate::upstream::mcp) fn note_own(&self, running: &Arc<Running>) -> i64 {
        let number = self.0.next_own.fetch_add(1, Ordering::Relaxed);
        let id = FIRST_OWN + number % FIRST_OWN;
        let running = Some(Arc::downgrade(running));
        self.requests()
            .add(RequestId::Number(id), ReadMode::Raw, running, Maker::Own);
        id
    }

    /// Notes that rmcp took over one of toolway's requests, and its id there.
    pub(in crate::upstream::mcp) fn note_taken_over(&self, own: &RequestId, known_as: &RequestId) {
        if let Some(request) = self.requests().by_id.get_mut(own) {
            request.maker = Maker::TakenOver(known_as.clone());
        }
    }

    /// The id that the server knows for a request with this rmcp id.
    pub(in crate::upstream::mcp) fn id_at_server(&self, known_as: &RequestId) -> RequestId {
        let requests = self.requests();
        let is_it = |(_, it): &(_, &PendingRequest)| matches!(&it.maker, Maker::TakenOver(id) if id == known_as);
        match requests.by_id.contains_key(known_as) {
            true => known_as.clone(),
            false => requests
                .by_id
                .iter()
                .find(is_it)
                .map_or(known_as, |(id, _)| id)
                .clone(),
        }
    }

    /// Notes that some tool's arguments are also sent as headers (2026-07-28), which rmcp does.
    pub(in crate::upstream::mcp) fn note_header_arguments(&self) {
        self.0.has_header_arguments.store(true, Ordering::Relaxed);
    }

    /// Arguments of some tool travel as headers too.
    pub(in crate::upstream::mcp) fn has_header_arguments(&self) -> bool {
        self.0.has_header_arguments.load(Ordering::Relaxed)
    }

    /// Notes the last event of the stream that answers a request.
    pub(in crate::upstream::mcp) fn note_event(&self, asked: &RequestId, event: &str) {
        if let Some(request) = self.requests().by_id.get_mut(asked) {
            request.last_event = Some(event.to_owned());
        }
    }

    /// The request whose stream is resumed from this event.
    pub(in crate::upstream::mcp) fn asked_until(&self, event: &str) -> Option<RequestId> {
        let requests = self.requests();
        let mut streams = requests.by_id.iter();
        streams
            .find(|(_, request)| request.last_event.as_deref() == Some(event))
            .map(|(id, _)| id.clone())
    }

    /// Cancels a request: the error replaces its answer, which is ignored if it still arrives.
    pub(in crate::upstream::mcp) fn give_up(
        &self,
        id: &RequestId,
        why: &str,
    ) -> Option<ServerJsonRpcMessage> {
        let mut requests = self.requests();
        let request = requests
            .by_id
            .get_mut(id)
            .filter(|request| request.reading != ReadMode::Late)?;
        request.reading = ReadMode::Late;
        Some(failure(
            id.clone(),
            ErrorCode::METHOD_NOT_FOUND,
            why.to_owned(),
        ))
    }

    /// Fails a request; nothing if it was answered already.
    pub(in crate::upstream::mcp) fn fail(
        &self,
        id: &RequestId,
        why: &str,
    ) -> Option<ServerJsonRpcMessage> {
        let request = self.requests().by_id.remove(id)?;
        let id = match request.maker {
            Maker::TakenOver(known_as) => known_as,
            Maker::Rmcp | Maker::Own => id.clone(),
        };
        Some(failure(id, ErrorCode::INTERNAL_ERROR, why.to_owned()))
    }

    /// Notes that a request was answered or will not be. Returns false if that was already known.
    pub(in crate::upstream::mcp) fn forget(&self, id: &RequestId) -> bool {
        self.requests().by_id.remove(id).is_some()
    }

    /// A cancelled request got a good answer after all.
    pub(in crate::upstream::mcp) fn was_answered_late(&self) -> bool {
        self.0.answered_late.load(Ordering::Relaxed)
    }

    /// Reads one message of the server; an invalid one gives nothing. `asked` is the request to whose answer it
    /// belongs, where the transport tells.
    pub(in crate::upstream::mcp) fn read(
        &self,
        message: Value,
        asked: Option<&RequestId>,
    ) -> Option<ServerJsonRpcMessage> {
        let Value::Object(mut message) = message else {
            return None;
        };
        let id = message.remove("id").filter(|id| !id.is_null());
        if let Some(method) = message.remove("method") {
            let params = message.remove("params").unwrap_or_default();
            let Value::String(method) = method else {
                return None;
            };
            return match id {
                Some(id) => self.read_request(id, method, params, asked),
                None => self.read_notification(&method, params, asked),
            };
        }
        let settled = match id {
            None => None,
            Some(id) => Some(self.settle(&id)?),
        };
        let error = message.remove("error").filter(|error| !error.is_null());
        match (settled, error) {
            (None, Some(error)) => Some(ServerJsonRpcMessage::error(read_error(&error), None)),
            (None, None) => None,
            (Some((id, request)), Some(error)) => {
                self.read_outcome(id, request, Err(read_error(&error)))
            }
            (Some((id, request)), None) => {
                let result = message.remove("result")?;
                self.read_outcome(id, request, Ok(result))
            }
        }
    }

    /// Reads what came of a request.
    fn read_outcome(
        &self,
        id: RequestId,
        request: PendingRequest,
        outcome: Result<Value, ErrorData>,
    ) -> Option<ServerJsonRpcMessage> {
        if request.reading == ReadMode::Late {
            let is_good = outcome.is_ok();
            self.0.answered_late.fetch_or(is_good, Ordering::Relaxed);
            return None;
        }
        let id = match request.maker {
            Maker::Rmcp => id,
            Maker::TakenOver(known_as) => known_as,
            Maker::Own => {
                let running = request.running.and_then(|running| running.upgrade());
                running?.hand_in(outcome);
                return None;
            }
        };
        let result = match outcome {
            Ok(result) => result,
            Err(error) => return Some(ServerJsonRpcMessage::error(error, Some(id))),
        };
        Some(match request.reading {
            ReadMode::Raw | ReadMode::Late => ServerJsonRpcMessage::response(raw(result), id),
            ReadMode::Handshake => {
                let result = envelope::mend_initialize(result);
                self.greet(&result);
                self.0.handshakes.send_modify(|count| *count += 1);
                typed(result, id)
            }
            ReadMode::Discovery => {
                self.greet(&result);
                typed(result, id)
            }
            ReadMode::Typed => typed(result, id),
        })
    }

    fn read_request(
        &self,
        id: Value,
        method: String,
        params: Value,
        asked: Option<&RequestId>,
    ) -> Option<ServerJsonRpcMessage> {
        let id: RequestId = serde_json::from_value(id).ok()?;
        let request = if method == "ping" {
            ServerRequest::PingRequest(PingRequest::default())
        } else {
            self.0.questions.keep(Question {
                meant: self.meant(asked),
                method,
                params,
            })
        };
        Some(ServerJsonRpcMessage::request(request, id))
    }

    fn read_notification(
        &self,
        method: &str,
        params: Value,
        asked: Option<&RequestId>,
    ) -> Option<ServerJsonRpcMessage> {
        match method {
            "notifications/progress" => self.report(&params),
            // Of requests and subscriptions, which rmcp keeps.
            "notifications/cancelled" | "notifications/subscriptions/acknowledged" => {
                let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
                return serde_json::from_value(message).ok();
            }
            _ => self
                .0
                .notifications
                .note(method, params, || self.meant(asked)),
        }
        None
    }

    /// The client that a message is for, which arrived in the answer to this request or on its own.
    fn meant(&self, asked: Option<&RequestId>) -> Recipient {
        let requests = self.requests();
        let alive = |request: &PendingRequest| {
            let running = request.running.as_ref()?.upgrade()?;
            (!running.is_over()).then_some(running)
        };
        match asked {
            Some(id) => meant(requests.by_id.get(id).and_then(alive).into_iter().collect()),
            None => {
                let alive = |request: &PendingRequest| Some((request.place, alive(request)?));
                let mut running: Vec<_> = requests.by_id.values().filter_map(alive).collect();
                running.sort_by_key(|(place, _)| *place);
                meant(running.into_iter().map(|(_, it)| it).collect())
            }
        }
    }

    /// Delivers the params of a progress notification; invalid ones are dropped.
    fn report(&self, params: &Value) {
        let Some((token, progress)) = progress::read(params) else {
            return;
        };
        if token < FIRST_OWN {
            return self.0.progress.deliver(token, progress);
        }
        let running = {
            let requests = self.requests();
            let request = requests.by_id.get(&RequestId::Number(token));
            request.and_then(|request| request.running.as_ref()?.upgrade())
        };
        if let Some(running) = running {
            running.report(progress);
        }
    }

    fn greet(&self, hello: &Value) {
        let mut known = self.0.hello.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone_from(hello);
    }

    /// Answers the request whose answer was too long, or too broken, to be read.
    pub(in crate::upstream::mcp) fn read_cut(
        &self,
        head: &[u8],
        tail: &[u8],
        why: &str,
    ) -> Option<ServerJsonRpcMessage> {
        let (id, request) = self.settle(&envelope::id_of_cut_response(head, tail)?)?;
        let error = ErrorData::new(ErrorCode::INTERNAL_ERROR, why.to_owned(), None);
        self.read_outcome(id, request, Err(error))
    }

    /// Takes the request with this id, be it written as a number or as its digits.
    fn settle(&self, id: &Value) -> Option<(RequestId, PendingRequest)> {
        let number = id.as_i64().or_else(|| id.as_str()?.parse().ok());
        let id = match (number.map(RequestId::Number), id.as_str()) {
            (Some(id), _) => id,
            (None, Some(text)) => RequestId::String(text.into()),
            (None, None) => return None,
        };
        let request = self.requests().by_id.remove(&id)?;
        self.0.answers.fetch_add(1, Ordering::Relaxed);
        Some((id, request))
    }

    fn requests(&self) -> MutexGuard<'_, PendingRequests> {
        self.0
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingRequests {
    fn add(
        &mut self,
        id: RequestId,
        reading: ReadMode,
        running: Option<Weak<Running>>,
        maker: Maker,
    ) {
        self.count += 1;
        let request = PendingRequest {
            place: self.count,
            reading,
            maker,
            running,
            last_event: None,
        };
        self.by_id.insert(id, request);
        if self.by_id.len() > MAX_PENDING {
            self.by_id.retain(|_, request| !request.is_given_up());
        }
        if self.by_id.len() > MAX_PENDING {
            // Those made long before.
            let oldest = self.count.saturating_sub(MAX_PENDING as u64 / 2);
            self.by_id.retain(|_, request| request.place > oldest);
        }
    }
}

fn reading_of(request: &ClientRequest) -> ReadMode {
    match request {
        ClientRequest::CustomRequest(_) => ReadMode::Raw,
        ClientRequest::InitializeRequest(_) => ReadMode::Handshake,
        ClientRequest::DiscoverRequest(_) => ReadMode::Discovery,
        _ => ReadMode::Typed,
    }
}

fn raw(result: Value) -> ServerResult {
    ServerResult::CustomResult(CustomResult::new(result))
}

/// Reads a JSON-RPC error; what is missing or wrongly typed is filled in.
pub(in crate::upstream::mcp) fn read_error(error: &Value) -> ErrorData {
    let code = error
        .get("code")
        .and_then(Value::as_i64)
        .and_then(|code| i32::try_from(code).ok());
    let message = match error {
        Value::String(message) => message.clone(),
        error => error
            .get("message")
            .and_then(Value::as_str)
            .unwrap_or("unknown error")
            .to_owned(),
    };
    let data = error.get("data").filter(|data| !data.is_null()).cloned();
    ErrorData::new(
        code.map_or(ErrorCode::INTERNAL_ERROR, ErrorCode),
        message,
        data,
    )
}

fn typed(result: Value, id: RequestId) -> ServerJsonRpcMessage {
    match serde_json::from_value::<ServerResult>(result) {
        Ok(result) => ServerJsonRpcMessage::response(result, id),
        Err(_) => unreadable(id),
    }
}

fn unreadable(id: RequestId) -> ServerJsonRpcMessage {
    failure(
        id,
        ErrorCode::INTERNAL_ERROR,
        "the server's answer could not be read".to_owned(),
    )
}

fn failure(id: RequestId, code: ErrorCode, why: String) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::error(ErrorData::new(code, why, None), Some(id))
}

#[cfg(test)]
mod tests;
