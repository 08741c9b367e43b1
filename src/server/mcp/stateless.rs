//! 2026-07-28 over HTTP: every request stands for itself, and closing its response cancels it.

use std::sync::Arc;

use axum::{http::StatusCode, response::Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::sleep;

use super::{
    McpFace, RequestHead, events::SseResponse, listen, outbox::Outbox, reply,
    stateless_request::StatelessRequest,
};
use crate::{
    byte_budget::Reservation,
    gateway::RequestSource,
    server::{App, headers::source_of, places::HeldPlace},
};
use toolway_protocol::{
    mcp::{
        headers,
        rpc::{self, RpcError, RpcId, RpcRequest, code},
        stateless::RequestMeta,
    },
    tool::JsonObject,
};

/// Answers a request.
pub(super) async fn request(
    app: &App,
    head: &RequestHead,
    request: RpcRequest,
    reservation: Option<Arc<Reservation>>,
) -> Response {
    let face = &app.mcp;
    let about = match admit(face, head, &request) {
        Ok(about) => about,
        Err(error) => return reply::error(status(&error, true), Some(&request.id), error),
    };
    super::note(&request, "");
    let RpcRequest { id, method, params } = request;
    let outbox = Arc::new(Outbox::default());
    let source = source_of(&head.headers);
    let once = StatelessRequest {
        gateway: Arc::clone(&face.gateway),
        view: Arc::clone(&head.view),
        owner: format!("{:016x}", head.owner.principal),
        principal: head.owner.principal,
        source: RequestSource {
            client: super::client_of_request(&params).or(source.client),
            ..source
        },
        about,
        outbox: head.accepts.events.then(|| Arc::clone(&outbox)),
        reservation,
    };
    if method == "subscriptions/listen" {
        let place = super::place_of_stream(app, &head.owner.endpoint, &head.headers);
        return listening(face, once, &id, &params, outbox, place).await;
    }
    let mut work: BoxFuture<'static, Result<Value, RpcError>> =
        Box::pin(once.outcome(method, params));
    let accepts = head.accepts;
    let mut early = None;
    tokio::select! {
        biased;
        outcome = &mut work, if accepts.json => {
            // Earlier messages come first.
            if !(accepts.events && outbox.has_any()) {
                return match outcome {
                    Err(error) => reply::error(status(&error, false), Some(&id), error),
                    Ok(_) => reply::json(StatusCode::OK, rpc::write_answer(Some(&id), &outcome)),
                };
            }
            early = Some(outcome);
        }
        () = outbox.has_more(), if accepts.events => {}
        () = sleep(face.config.stream_after), if accepts.events => {}
        () = std::future::ready(()), if !accepts.json => {}
    }
    let filled = Arc::clone(&outbox);
    let drive = async move {
        let outcome = match early {
            Some(outcome) => outcome,
            None => work.await,
        };
        filled.must_say(Bytes::from(rpc::write_answer(Some(&id), &outcome)));
        filled.close();
    };
    reply::events(stream(face, &outbox, Box::pin(drive)))
}

/// Checks the required `_meta` members and the headers that repeat them.
fn admit(
    face: &McpFace,
    head: &RequestHead,
    request: &RpcRequest,
) -> Result<RequestMeta, RpcError> {
    headers::check(&head.headers, request)?;
    let about = RequestMeta::read(&request.params)?;
    if request.method == "tools/call"
        && let Some(name) = request.params.get("name").and_then(Value::as_str)
        && let Some(offered) = face.gateway.offered(&head.view, name)
    {
        let arguments = request.params.get("arguments");
        headers::check_params(&head.headers, &offered.tool.input_schema, arguments)?;
    }
    Ok(about)
}

async fn listening(
    face: &McpFace,
    once: StatelessRequest,
    id: &RpcId,
    params: &JsonObject,
    outbox: Arc<Outbox>,
    place: Result<HeldPlace, Response>,
) -> Response {
    if once.outbox.is_none() {
        let why = "a subscription is read as text/event-stream";
        return reply::refused(StatusCode::NOT_ACCEPTABLE, why);
    }
    let place = match place {
        Ok(place) => place,
        Err(response) => return response,
    };
    let subscription = match listen::Subscription::open(&once, id, params).await {
        Ok(subscription) => subscription,
        Err(error) => return reply::error(status(&error, false), Some(id), error),
    };
    let (id, filled, stopping) = (id.clone(), Arc::clone(&outbox), face.stopping.clone());
    let drive = async move {
        let ended = Ok(subscription.tell(&filled, &stopping).await);
        filled.must_say(Bytes::from(rpc::write_answer(Some(&id), &ended)));
        filled.close();
    };
    reply::events(SseResponse {
        place: Some(place),
        ..stream(face, &outbox, Box::pin(drive))
    })
}

fn stream(face: &McpFace, outbox: &Arc<Outbox>, drive: BoxFuture<'static, ()>) -> SseResponse {
    SseResponse {
        reader: outbox.reader(0),
        number: None,
        is_primed: false,
        drive: Some(drive),
        keepalive: face.config.keepalive,
        session: None,
        place: None,
    }
}

/// The status of an error. `Invalid params` are the request's fault as a whole only where it does not say what every
/// request must.
fn status(error: &RpcError, is_refused: bool) -> StatusCode {
    match error.code {
        code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        code::HEADER_MISMATCH | code::MISSING_CLIENT_CAPABILITY | code::UNSUPPORTED_VERSION => {
            StatusCode::BAD_REQUEST
        }
        code::INVALID_PARAMS if is_refused => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_status_that_its_kind_has() {
        let status = |code, is_refused| status(&RpcError::new(code, ""), is_refused).as_u16();
        assert_eq!(status(code::METHOD_NOT_FOUND, false), 404);
        assert_eq!(status(code::HEADER_MISMATCH, true), 400);
        assert_eq!(status(code::UNSUPPORTED_VERSION, true), 400);
        assert_eq!(status(code::MISSING_CLIENT_CAPABILITY, false), 400);
        assert_eq!(status(code::INVALID_PARAMS, true), 400);
        assert_eq!(status(code::INVALID_PARAMS, false), 200);
        assert_eq!(status(-32000, false), 200);
    }
}
