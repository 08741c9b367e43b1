//! The handshake versions over HTTP, 2024-11-05 to 2025-11-25: sessions, and streams that can be taken up again.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    http::{HeaderValue, StatusCode},
    response::Response,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::{runtime::Handle, time::sleep};

use super::{
    McpFace, RequestHead,
    client_session::ClientSession,
    events::SseResponse,
    outbox::Outbox,
    reply,
    sessions::{Session, SessionsFull, UNASKED},
};
use crate::{
    byte_budget::Reservation,
    gateway::random::unguessable,
    server::{App, headers::source_of},
};
use toolway_protocol::mcp::{
    headers,
    rpc::{self, MessageOrBatch, RpcError, RpcId, RpcMessage, RpcRequest, code},
    stateless,
    version::Version,
};

/// `initialize`: a new session.
pub(super) fn initialize(face: &McpFace, head: &RequestHead, request: RpcRequest) -> Response {
    let RpcRequest { id, params, .. } = request;
    let Ok(session_id) = unguessable() else {
        let error = RpcError::new(code::INTERNAL_ERROR, "there is no randomness");
        return reply::error(StatusCode::INTERNAL_SERVER_ERROR, Some(&id), error);
    };
    let client = super::client_name(&params);
    tracing::debug!(client, session = &session_id[..8], "An MCP client came");
    let opened = ClientSession::open(
        &face.gateway,
        Arc::clone(&head.view),
        (session_id.clone(), head.owner.principal),
        params,
    );
    let (client, result) = match opened {
        Ok(opened) => opened,
        Err(error) => return reply::error(StatusCode::OK, Some(&id), error),
    };
    let owner = head.owner.clone();
    if let Err(full) = face.sessions.add(session_id.clone(), owner, client) {
        let (status, why) = match full {
            SessionsFull::AtAll => (StatusCode::SERVICE_UNAVAILABLE, "all sessions are at work"),
            SessionsFull::OfKey => (
                StatusCode::TOO_MANY_REQUESTS,
                "this key has half of all sessions, which is its share, and all of them are at work; \
                 DELETE those that are done",
            ),
        };
        let error = RpcError::new(code::INTERNAL_ERROR, why);
        return reply::error(status, Some(&id), error);
    }
    let mut response = reply::json(StatusCode::OK, rpc::write_answer(Some(&id), &Ok(result)));
    if let Ok(value) = HeaderValue::from_str(&session_id) {
        response.headers_mut().insert(headers::SESSION_ID, value);
    }
    response
}

/// Everything else that is POSTed.
pub(super) async fn post(
    face: &McpFace,
    head: &RequestHead,
    incoming: MessageOrBatch,
    reservation: Option<Arc<Reservation>>,
) -> Response {
    let id = match &incoming {
        MessageOrBatch::One(RpcMessage::Request(request)) => Some(request.id.clone()),
        _ => None,
    };
    let session = match session(face, head, id.as_ref()) {
        Ok(session) => session,
        Err(response) => return response,
    };
    match incoming {
        MessageOrBatch::One(RpcMessage::Request(request)) => {
            let outbox = Arc::new(Outbox::default());
            super::note(&request, session.short());
            let client = Arc::clone(&session.client);
            let answer = Box::pin(client.answer(
                request,
                source_of(&head.headers),
                outbox_for(head, &outbox),
                reservation,
            ));
            respond(face, head, session, id, answer, outbox).await
        }
        MessageOrBatch::One(RpcMessage::Notification(notification)) => {
            session.client.notified(&notification);
            reply::accepted()
        }
        MessageOrBatch::One(RpcMessage::Response(response)) => {
            session.client.answered(response);
            reply::accepted()
        }
        MessageOrBatch::Batch(batch) => {
            let requests = match session.client.sort(batch) {
                Ok(requests) if requests.is_empty() => return reply::accepted(),
                Ok(requests) => requests,
                Err(error) => return reply::error(StatusCode::BAD_REQUEST, None, error),
            };
            let outbox = Arc::new(Outbox::default());
            let client = Arc::clone(&session.client);
            let heard = outbox_for(head, &outbox);
            let (source, reserved) = (source_of(&head.headers), reservation.as_ref());
            let answer = Box::pin(client.answer_all(requests, &source, heard.as_ref(), reserved));
            respond(face, head, session, None, answer, outbox).await
        }
    }
}

/// GET: the stream of notifications, or the rest of a stream whose connection was lost.
pub(super) fn get(app: &App, head: &RequestHead) -> Response {
    let face = &app.mcp;
    let session = match session(face, head, None) {
        Ok(session) => session,
        Err(response) => return response,
    };
    let place = match super::place_of_stream(app, &head.owner.endpoint, &head.headers) {
        Ok(place) => place,
        Err(response) => return response,
    };
    let last = head.headers.get(headers::LAST_EVENT_ID);
    let resumed = last
        .and_then(|it| it.to_str().ok()?.split_once('-'))
        .and_then(|(stream, place)| Some((stream.parse().ok()?, place.parse().ok()?)))
        .and_then(|(stream, place): (u64, u64)| Some((stream, session.stream(stream)?, place)));
    let unasked = || (UNASKED, Arc::clone(&session.unasked), u64::MAX);
    let (number, outbox, after) = resumed.unwrap_or_else(unasked);
    let after = after.min(outbox.read());
    let drive = (number == UNASKED).then(|| {
        let (session, outbox) = (Arc::clone(&session), Arc::clone(&outbox));
        let stopping = face.stopping.clone();
        let drive: BoxFuture<'static, ()> = Box::pin(async move {
            tokio::select! {
                () = session.client.tell(&outbox) => {}
                () = session.gone.cancelled() => {}
                () = stopping.cancelled() => {}
            }
        });
        drive
    });
    reply::events(SseResponse {
        reader: outbox.reader(after),
        number: Some(number),
        is_primed: session.client.version() >= Version::V2025_11_25,
        drive,
        keepalive: face.config.keepalive,
        session: Some(session),
        place: Some(place),
    })
}

/// DELETE: the end of a session.
pub(super) fn delete(face: &McpFace, head: &RequestHead) -> Response {
    match session(face, head, None) {
        Ok(session) if face.sessions.end(&session.id, &head.owner) => {
            tracing::debug!(session = session.short(), "An MCP client went");
            reply::empty(StatusCode::NO_CONTENT)
        }
        Ok(_) => reply::no_session(None),
        Err(response) => response,
    }
}

/// The session of a request.
#[expect(clippy::result_large_err, reason = "the error is what is sent")]
fn session(
    face: &McpFace,
    head: &RequestHead,
    id: Option<&RpcId>,
) -> Result<Arc<Session>, Response> {
    let bad = |error| reply::error(StatusCode::BAD_REQUEST, id, error);
    let version = headers::one(&head.headers, headers::PROTOCOL_VERSION).map_err(bad)?;
    if let Some(version) = version
        && !Version::parse(version).is_some_and(Version::has_handshake)
    {
        return Err(bad(stateless::unsupported(version)));
    }
    let named = headers::one(&head.headers, headers::SESSION_ID).map_err(bad)?;
    let Some(named) = named else {
        let why = "Invalid request: the header Mcp-Session-Id is missing; begin with `initialize`";
        return Err(bad(RpcError::new(code::INVALID_REQUEST, why)));
    };
    let session = face.sessions.find(named, &head.owner);
    session.ok_or_else(|| reply::no_session(id))
}

/// The outbox, for a client that accepts event streams.
fn outbox_for(head: &RequestHead, outbox: &Arc<Outbox>) -> Option<Arc<Outbox>> {
    head.accepts.events.then(|| Arc::clone(outbox))
}

/// One JSON message if the answer is the first message and comes soon; otherwise a stream.
async fn respond(
    face: &McpFace,
    head: &RequestHead,
    session: Arc<Session>,
    id: Option<RpcId>,
    answer: BoxFuture<'static, Option<Bytes>>,
    outbox: Arc<Outbox>,
) -> Response {
    let mut work = Work {
        answer: Some(answer),
        session: Arc::clone(&session),
        outbox: Arc::clone(&outbox),
    };
    let accepts = head.accepts;
    tokio::select! {
        biased;
        answer = &mut work, if accepts.json => match answer {
            // Earlier messages come first.
            Some(answer) if accepts.events && outbox.has_any() => {
                outbox.must_say(answer);
                outbox.close();
            }
            Some(answer) => return reply::json(StatusCode::OK, answer),
            None => return reply::cancelled(),
        },
        () = session.gone.cancelled() => return reply::no_session(id.as_ref()),
        () = outbox.has_more(), if accepts.events => {}
        () = sleep(face.config.stream_after), if accepts.events => {}
        () = std::future::ready(()), if !accepts.json => {}
    }
    let number = session.keep(Arc::clone(&outbox));
    // From here on the work does not depend on the connection.
    drop(work);
    reply::events(SseResponse {
        reader: outbox.reader(0),
        number: Some(number),
        is_primed: session.client.version() >= Version::V2025_11_25,
        drive: None,
        keepalive: face.config.keepalive,
        session: Some(session),
        place: None,
    })
}

/// Work for a session. Dropped before its end it continues in a task, because a connection that is lost cancels
/// nothing (2025-11-25, "Transports", "Sending Messages to the Server").
struct Work {
    answer: Option<BoxFuture<'static, Option<Bytes>>>,
    session: Arc<Session>,
    outbox: Arc<Outbox>,
}

impl Future for Work {
    type Output = Option<Bytes>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(answer) = &mut self.answer else {
            return Poll::Ready(None);
        };
        let answer = std::task::ready!(answer.as_mut().poll(cx));
        self.answer = None;
        Poll::Ready(answer)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let (Some(answer), Ok(runtime)) = (self.answer.take(), Handle::try_current()) else {
            return;
        };
        let (session, outbox) = (Arc::clone(&self.session), Arc::clone(&self.outbox));
        runtime.spawn(async move {
            tokio::select! {
                answer = answer => if let Some(answer) = answer {
                    outbox.must_say(answer);
                },
                () = session.gone.cancelled() => {}
            }
            outbox.close();
            session.was_left(&outbox);
        });
    }
}
