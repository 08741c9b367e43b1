#![expect(clippy::needless_pass_by_value, reason = "the cases read better")]

use tokio::sync::broadcast;

use super::*;
use crate::upstream::mcp::ServerEvent;
use toolway_protocol::tool::ServerId;

fn pending() -> Pending {
    Pending::new(ServerNotifications {
        server: ServerId::parse("s").unwrap(),
        changes: Changes::default(),
        events: broadcast::Sender::new(8),
    })
}

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
    let pending = pending();
    pending.note_sent(&call(1));
    let read = pending
        .read(message, None)
        .expect("the message should be read");
    assert_eq!(serde_json::to_value(read).unwrap(), expected);
}

#[track_caller]
fn check_nothing(message: Value) {
    let pending = pending();
    pending.note_sent(&call(1));
    assert!(pending.read(message, None).is_none());
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
    let pending = pending();
    pending.note_sent(&ping(1));
    assert!(pending.read(json!({"id": 1, "result": {}}), None).is_some());
    assert!(pending.read(json!({"id": 1, "result": {}}), None).is_none());
}

#[test]
fn a_request_that_was_given_up_is_not_answered_again() {
    let pending = pending();
    pending.note_sent(&ping(1));
    assert!(pending.give_up(&RequestId::Number(1), "silent").is_some());
    assert!(pending.give_up(&RequestId::Number(1), "silent").is_none());
    assert!(pending.read(json!({"id": 1, "result": {}}), None).is_none());
    assert!(pending.was_answered_late());
}

#[test]
fn a_late_error_tells_nothing() {
    let pending = pending();
    pending.note_sent(&ping(1));
    assert!(pending.give_up(&RequestId::Number(1), "silent").is_some());
    assert!(
        pending
            .read(json!({"id": 1, "error": {"code": 1}}), None)
            .is_none()
    );
    assert!(!pending.was_answered_late());
}

#[test]
fn what_a_server_asks_is_kept_as_it_came() {
    let pending = pending();
    let params = json!({"message": "?", "x-new": {"a": null}, "_meta": {"b": 1}});
    let message = json!({"id": "q", "method": "elicitation/create", "params": params});
    let Some(ServerJsonRpcMessage::Request(request)) = pending.read(message, None) else {
        panic!("a request should be read")
    };
    assert_eq!(request.id, RequestId::String("q".into()));
    let ServerRequest::CustomRequest(request) = request.request else {
        panic!("it should stand for the question")
    };
    let question = pending.take_question(&request).unwrap();
    assert_eq!(question.method, "elicitation/create");
    assert_eq!(question.params, params);
    assert!(pending.take_question(&request).is_err(), "it is taken once");
}

#[test]
fn a_server_cannot_pass_a_request_off_as_one_of_ours() {
    let pending = pending();
    let params = json!({"number": 0});
    let message = json!({"id": 1, "method": "toolway/question", "params": params});
    let Some(ServerJsonRpcMessage::Request(request)) = pending.read(message, None) else {
        panic!("a request should be read")
    };
    let ServerRequest::CustomRequest(request) = request.request else {
        panic!("it should stand for the question")
    };
    let question = pending.take_question(&request).unwrap();
    assert_eq!(question.method, "toolway/question");
}

#[test]
fn what_a_server_says_goes_round_rmcp() {
    let pending = pending();
    let mut events = pending.0.notifications.events.subscribe();
    let params = json!({"uri": "a:1", "x-new": 1});
    let message = json!({"method": "notifications/resources/updated", "params": params});
    assert!(pending.read(message, None).is_none());
    assert!(
        matches!(events.try_recv(), Ok(ServerEvent::ResourceUpdated { uri, params: p, .. }) if uri == "a:1" && p == params)
    );
    for list in ["tools", "prompts", "resources"] {
        let message = json!({"method": format!("notifications/{list}/list_changed")});
        assert!(pending.read(message, None).is_none());
    }
    let changes = pending.changes();
    for list in [&changes.tools, &changes.prompts, &changes.resources] {
        assert_eq!(*list.borrow(), 1);
    }
}
