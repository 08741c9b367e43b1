//! The requests under way on one connection, and how what the server sends is read.
//!
//! rmcp's models drop what they do not know and refuse a whole list for one tool. So answers are handed to rmcp as they
//! came, as [`CustomResult`], which it passes through untouched; what the server asks waits in `questions`, and what
//! it says goes to `unasked` and `progress` without rmcp.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomRequest, CustomResult,
    ErrorCode, ErrorData, GetExtensions, PingRequest, RequestId, ServerJsonRpcMessage,
    ServerRequest, ServerResult,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    progress::ProgressTable,
    questions::{Question, Questions},
    running::{Errand, Meant, Running, meant},
    unasked::{Changes, Unasked},
};
use crate::mcp::{envelope, rpc::RpcError};

/// Most requests that are kept. Over HTTP nobody says that a request was given up.
const MAX_PENDING: usize = 4096;

/// How the answer to a request is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// As it came.
    Raw,
    /// By rmcp's models.
    Typed,
    /// By rmcp's models, with what a careless server left out filled in.
    Handshake,
    /// By rmcp's models; it tells what the server is.
    Discovery,
    /// Not at all: it was given up. A good answer to a given-up probe still tells something.
    Late,
}

/// The requests under way on one connection.
#[derive(Clone, Debug)]
pub(super) struct Pending(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    requests: Mutex<HashMap<RequestId, Request>>,
    progress: ProgressTable,
    questions: Questions,
    unasked: Unasked,
    answered_late: AtomicBool,
    hello: Mutex<Value>,
    handshakes: watch::Sender<u64>,
}

/// A request that was sent.
#[derive(Debug)]
struct Request {
    reading: Reading,
    /// For whom it was made, unless it was toolway's own; dead once nobody waits for it.
    running: Option<Weak<Running>>,
    /// The last event of its stream, from which the stream may be resumed (Streamable HTTP).
    last_event: Option<String>,
}

impl Request {
    /// Nobody waits for its answer any more.
    fn is_given_up(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.strong_count() == 0)
    }
}

impl Pending {
    /// No requests yet; what the server says unasked goes there.
    pub(super) fn new(unasked: Unasked) -> Pending {
        Pending(Arc::new(Shared {
            requests: Mutex::default(),
            progress: ProgressTable::default(),
            questions: Questions::default(),
            unasked,
            answered_late: AtomicBool::new(false),
            hello: Mutex::default(),
            handshakes: watch::Sender::new(0),
        }))
    }

    /// Where the progress of these requests goes.
    pub(super) fn progress(&self) -> &ProgressTable {
        &self.0.progress
    }

    /// Counts the changes of the server's lists.
    pub(super) fn changes(&self) -> &Changes {
        &self.0.unasked.changes
    }

    /// The result of the last `initialize` or `server/discover`; `null` before.
    pub(super) fn hello(&self) -> Value {
        self.0
            .hello
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Counts the `initialize` that were answered. After another one the server has forgotten all that was not sent
    /// since (Streamable HTTP, where rmcp renews lost sessions).
    pub(super) fn handshakes(&self) -> watch::Receiver<u64> {
        self.0.handshakes.subscribe()
    }

    /// Takes up what the server asked, and rmcp was given this in place of.
    pub(super) fn take_question(&self, request: &CustomRequest) -> Result<Question, RpcError> {
        self.0.questions.take(request)
    }

    /// Notes what a message that is about to be sent will be answered with.
    pub(super) fn note_sent(&self, message: &ClientJsonRpcMessage) {
        match message {
            ClientJsonRpcMessage::Request(request) => {
                let errand = request.request.extensions().get::<Errand>();
                let sent = Request {
                    reading: reading_of(&request.request),
                    running: errand.map(|errand| errand.0.clone()),
                    last_event: None,
                };
                let mut requests = self.requests();
                requests.insert(request.id.clone(), sent);
                if requests.len() > MAX_PENDING {
                    requests.retain(|_, request| !request.is_given_up());
                }
                if requests.len() > MAX_PENDING {
                    drop_oldest(&mut requests, &request.id);
                }
            }
            ClientJsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.requests().remove(id);
                }
            }
            ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_) => {}
        }
    }

    /// Notes the last event of the stream that answers a request.
    pub(super) fn note_event(&self, asked: &RequestId, event: &str) {
        if let Some(request) = self.requests().get_mut(asked) {
            request.last_event = Some(event.to_owned());
        }
    }

    /// The request whose stream is resumed from this event.
    pub(super) fn asked_until(&self, event: &str) -> Option<RequestId> {
        let requests = self.requests();
        let mut streams = requests.iter();
        streams
            .find(|(_, request)| request.last_event.as_deref() == Some(event))
            .map(|(id, _)| id.clone())
    }

    /// Gives a request up: the error stands for its answer, which is ignored if it still comes.
    pub(super) fn give_up(&self, id: &RequestId, why: &str) -> Option<ServerJsonRpcMessage> {
        let mut requests = self.requests();
        let request = requests
            .get_mut(id)
            .filter(|request| request.reading != Reading::Late)?;
        request.reading = Reading::Late;
        Some(failure(
            id.clone(),
            ErrorCode::METHOD_NOT_FOUND,
            why.to_owned(),
        ))
    }

    /// Fails a request; nothing if it was answered already.
    pub(super) fn fail(&self, id: &RequestId, why: &str) -> Option<ServerJsonRpcMessage> {
        self.requests().remove(id)?;
        Some(failure(
            id.clone(),
            ErrorCode::INTERNAL_ERROR,
            why.to_owned(),
        ))
    }

    /// Takes note that a request will not be answered.
    pub(super) fn forget(&self, id: &RequestId) {
        self.requests().remove(id);
    }

    /// A request that was given up was answered well after all.
    pub(super) fn was_answered_late(&self) -> bool {
        self.0.answered_late.load(Ordering::Relaxed)
    }

    /// Reads one message of the server; what makes no sense gives nothing. `asked` is the request to whose answer
    /// it belongs, where the transport tells.
    pub(super) fn read(
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
        let id = match id {
            None => None,
            Some(id) => Some(self.settle(&id)?),
        };
        if let Some(error) = message.remove("error").filter(|error| !error.is_null()) {
            let id = match id {
                None => None,
                Some((_, Reading::Late)) => return None,
                Some((id, _)) => Some(id),
            };
            return Some(ServerJsonRpcMessage::error(read_error(&error), id));
        }
        let (id, reading) = id?;
        let result = message.remove("result")?;
        match reading {
            Reading::Raw => Some(ServerJsonRpcMessage::response(raw(result), id)),
            Reading::Late => {
                self.0.answered_late.store(true, Ordering::Relaxed);
                None
            }
            Reading::Handshake => {
                let result = envelope::mend_initialize(result);
                self.greet(&result);
                self.0.handshakes.send_modify(|count| *count += 1);
                Some(typed(result, id))
            }
            Reading::Discovery => {
                self.greet(&result);
                Some(typed(result, id))
            }
            Reading::Typed => Some(typed(result, id)),
        }
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
            "notifications/progress" => self.0.progress.deliver(&params),
            // Of requests and subscriptions, which rmcp keeps.
            "notifications/cancelled" | "notifications/subscriptions/acknowledged" => {
                let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
                return serde_json::from_value(message).ok();
            }
            _ => self.0.unasked.note(method, params, || self.meant(asked)),
        }
        None
    }

    /// Whom the server means with what came in answer to this request, or came by itself.
    fn meant(&self, asked: Option<&RequestId>) -> Meant {
        let requests = self.requests();
        let alive = |request: &Request| {
            let running = request.running.as_ref()?.upgrade()?;
            (!running.is_over()).then_some(running)
        };
        let number = |id: &RequestId| match id {
            RequestId::Number(number) => *number,
            RequestId::String(_) => i64::MAX,
        };
        match asked {
            Some(id) => meant(requests.get(id).and_then(alive).into_iter().collect()),
            None => {
                let alive = |(id, request)| Some((number(id), alive(request)?));
                let mut running: Vec<_> = requests.iter().filter_map(alive).collect();
                // rmcp numbers them in their order.
                running.sort_by_key(|(number, _)| *number);
                meant(running.into_iter().map(|(_, it)| it).collect())
            }
        }
    }

    fn greet(&self, hello: &Value) {
        let mut known = self.0.hello.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone_from(hello);
    }

    /// Answers the request whose answer was too long, or too broken, to be read.
    pub(super) fn read_cut(
        &self,
        head: &[u8],
        tail: &[u8],
        why: &str,
    ) -> Option<ServerJsonRpcMessage> {
        let (id, reading) = self.settle(&envelope::id_of_cut_response(head, tail)?)?;
        (reading != Reading::Late).then(|| failure(id, ErrorCode::INTERNAL_ERROR, why.to_owned()))
    }

    /// Takes the request with this id, be it written as a number or as its digits.
    fn settle(&self, id: &Value) -> Option<(RequestId, Reading)> {
        let number = id.as_i64().or_else(|| id.as_str()?.parse().ok());
        let id = match (number.map(RequestId::Number), id.as_str()) {
            (Some(id), _) => id,
            (None, Some(text)) => RequestId::String(text.into()),
            (None, None) => return None,
        };
        let request = self.requests().remove(&id)?;
        Some((id, request.reading))
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<RequestId, Request>> {
        self.0
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the requests made long before this one. rmcp numbers them in their order.
fn drop_oldest(requests: &mut HashMap<RequestId, Request>, newest: &RequestId) {
    let RequestId::Number(newest) = *newest else {
        return;
    };
    let oldest = newest - MAX_PENDING as i64 / 2;
    requests.retain(|id, _| matches!(id, RequestId::Number(id) if *id > oldest));
}

fn reading_of(request: &ClientRequest) -> Reading {
    match request {
        ClientRequest::CustomRequest(_) => Reading::Raw,
        ClientRequest::InitializeRequest(_) => Reading::Handshake,
        ClientRequest::DiscoverRequest(_) => Reading::Discovery,
        _ => Reading::Typed,
    }
}

fn raw(result: Value) -> ServerResult {
    ServerResult::CustomResult(CustomResult::new(result))
}

/// Reads a JSON-RPC error; what is missing or wrongly typed is filled in.
fn read_error(error: &Value) -> ErrorData {
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

/// How a limit on messages is spoken of: `16 MiB`, or bytes where that would be less than one.
pub(super) fn too_long(limit: usize) -> String {
    match limit >> 20 {
        0 => format!("the result is larger than {limit} bytes"),
        mebibytes => format!("the result is larger than {mebibytes} MiB"),
    }
}

#[cfg(test)]
mod tests;
