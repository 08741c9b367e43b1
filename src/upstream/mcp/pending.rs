//! The requests under way on one connection, and how their answers are read.
//!
//! rmcp's models drop what they do not know and refuse a whole list for one tool. So the answers to `tools/list` and
//! `tools/call` are handed to rmcp as they came, as [`CustomResult`], which it passes through untouched.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomResult, ErrorCode, ErrorData,
    RequestId, ServerJsonRpcMessage, ServerResult,
};
use serde_json::Value;

use super::progress::ProgressTable;
use crate::mcp::envelope;

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
    /// Not at all: it was given up. A good answer to a given-up probe still tells something.
    Late,
}

/// The requests under way on one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<HashMap<RequestId, Reading>>,
    progress: ProgressTable,
    answered_late: AtomicBool,
}

impl Pending {
    /// Where the progress of these requests goes.
    pub(super) fn progress(&self) -> ProgressTable {
        self.0.progress.clone()
    }

    /// Notes what a message that is about to be sent will be answered with.
    pub(super) fn note_sent(&self, message: &ClientJsonRpcMessage) {
        match message {
            ClientJsonRpcMessage::Request(request) => {
                let mut requests = self.requests();
                requests.insert(request.id.clone(), reading_of(&request.request));
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

    /// Gives a request up: the error stands for its answer, which is ignored if it still comes.
    pub(super) fn give_up(&self, id: &RequestId, why: &str) -> Option<ServerJsonRpcMessage> {
        let mut requests = self.requests();
        let reading = requests
            .get_mut(id)
            .filter(|reading| **reading != Reading::Late)?;
        *reading = Reading::Late;
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

    /// Reads one message of the server; what makes no sense gives nothing.
    pub(super) fn read(&self, message: Value) -> Option<ServerJsonRpcMessage> {
        match message.get("method") {
            Some(method) if method == "notifications/progress" => {
                self.0.progress.deliver(&message["params"]);
                return None;
            }
            Some(_) => return serde_json::from_value(message).ok(),
            None => {}
        }
        let Value::Object(mut message) = message else {
            return None;
        };
        let id = match message.remove("id") {
            None | Some(Value::Null) => None,
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
            Reading::Handshake => Some(typed(envelope::mend_initialize(result), id)),
            Reading::Typed => Some(typed(result, id)),
        }
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
        self.requests().remove(&id).map(|reading| (id, reading))
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<RequestId, Reading>> {
        self.0
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the requests made long before this one. rmcp numbers them in their order.
fn drop_oldest(requests: &mut HashMap<RequestId, Reading>, newest: &RequestId) {
    let RequestId::Number(newest) = *newest else {
        return;
    };
    let oldest = newest - MAX_PENDING as i64 / 2;
    requests.retain(|id, _| matches!(id, RequestId::Number(id) if *id > oldest));
}

fn reading_of(request: &ClientRequest) -> Reading {
    match request {
        ClientRequest::ListToolsRequest(_) | ClientRequest::CustomRequest(_) => Reading::Raw,
        ClientRequest::InitializeRequest(_) => Reading::Handshake,
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
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use rmcp::model::{CustomRequest, PingRequest};
    use serde_json::json;

    use super::*;

    fn call(id: i64) -> ClientJsonRpcMessage {
        let request = CustomRequest::new("tools/call", None);
        ClientJsonRpcMessage::request(ClientRequest::CustomRequest(request), RequestId::Number(id))
    }

    fn ping(id: i64) -> ClientJsonRpcMessage {
        ClientJsonRpcMessage::request(
            ClientRequest::PingRequest(PingRequest::default()),
            RequestId::Number(id),
        )
    }

    #[track_caller]
    fn check(message: Value, expected: Value) {
        let pending = Pending::default();
        pending.note_sent(&call(1));
        let read = pending.read(message).expect("the message should be read");
        assert_eq!(serde_json::to_value(read).unwrap(), expected);
    }

    #[track_caller]
    fn check_nothing(message: Value) {
        let pending = Pending::default();
        pending.note_sent(&call(1));
        assert!(pending.read(message).is_none());
    }

    #[test]
    fn the_result_of_a_call_is_kept_as_it_came() {
        let result = json!({"content": [{"type": "video"}], "structuredContent": null, "x": 1});
        check(
            json!({"jsonrpc": "2.0", "id": 1, "result": result}),
            json!({"jsonrpc": "2.0", "id": 1, "result": result}),
        );
    }

    #[test]
    fn an_id_may_come_back_as_text() {
        check(
            json!({"id": "1", "result": {}}),
            json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
        );
    }

    #[test]
    fn an_error_is_read_whatever_it_lacks() {
        let error = |error| json!({"jsonrpc": "2.0", "id": 1, "error": error});
        check(
            error(json!({"code": -32602, "message": "no", "data": [1]})),
            error(json!({"code": -32602, "message": "no", "data": [1]})),
        );
        check(
            error(json!("no")),
            error(json!({"code": -32603, "message": "no"})),
        );
        check(
            error(json!({})),
            error(json!({"code": -32603, "message": "unknown error"})),
        );
    }

    #[test]
    fn an_answer_that_nobody_waits_for_is_nothing() {
        check_nothing(json!({"id": 2, "result": {}}));
        check_nothing(json!({"id": 1}));
        check_nothing(json!({"id": {}, "result": {}}));
        check_nothing(json!([]));
        check_nothing(json!({"method": 5}));
    }

    #[test]
    fn an_answer_counts_once() {
        let pending = Pending::default();
        pending.note_sent(&ping(1));
        assert!(pending.read(json!({"id": 1, "result": {}})).is_some());
        assert!(pending.read(json!({"id": 1, "result": {}})).is_none());
    }

    #[test]
    fn a_request_that_was_given_up_is_not_answered_again() {
        let pending = Pending::default();
        pending.note_sent(&ping(1));
        assert!(pending.give_up(&RequestId::Number(1), "silent").is_some());
        assert!(pending.give_up(&RequestId::Number(1), "silent").is_none());
        assert!(pending.read(json!({"id": 1, "result": {}})).is_none());
        assert!(pending.was_answered_late());
    }

    #[test]
    fn a_late_error_tells_nothing() {
        let pending = Pending::default();
        pending.note_sent(&ping(1));
        assert!(pending.give_up(&RequestId::Number(1), "silent").is_some());
        assert!(
            pending
                .read(json!({"id": 1, "error": {"code": 1}}))
                .is_none()
        );
        assert!(!pending.was_answered_late());
    }

    #[test]
    fn a_limit_is_spoken_of_in_readable_units() {
        assert_eq!(too_long(16 << 20), "the result is larger than 16 MiB");
        assert_eq!(too_long(1000), "the result is larger than 1000 bytes");
    }
}
