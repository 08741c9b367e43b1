//! HTTP+SSE, the transport of 2024-11-05: a GET opens the event stream of a session, and what the client says is
//! POSTed to the URL that the first event names. Answers come as events.
//!
//! A session is its stream: it has one, and ends with it. Messages are handled as on a pipe (`server::stdio`).
//! See the specification of 2024-11-05, "Transports", "HTTP with SSE".

use std::{
    collections::HashMap,
    future::ready,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderMap, Method, StatusCode},
    response::Response,
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::time::{interval, timeout};

use super::{
    McpFace,
    events::SseResponse,
    reply,
    sessions::{SessionOwner, SessionsFull},
};
use crate::quota::Sharing;
use crate::{
    gateway::{mcp::View, random::unguessable},
    server::{
        App, error::Refusal, guard, headers::principal, places::HeldPlace, stdio::ClientPipe,
    },
};
use toolway_protocol::mcp::headers::Accepts;

/// When this many messages wait for a client that does not read, no more messages are accepted from it.
const MAX_UNREAD: usize = 64;

/// The same in bytes.
const MAX_UNREAD_BYTES: usize = 4 << 20;

/// Requests of one session that may run side by side.
const MAX_AT_WORK: usize = 64;

/// How long a message waits for the client to read.
const ROOM: Duration = Duration::from_secs(5);

/// How often an ending session checks whether its last requests are answered.
const DRAINED: Duration = Duration::from_millis(50);

/// The open sessions by id.
#[derive(Default)]
pub(super) struct LegacySessions {
    table: Mutex<HashMap<String, Arc<LegacySession>>>,
}

struct LegacySession {
    owner: SessionOwner,
    pipe: Mutex<ClientPipe>,
}

/// Takes a session out of the table when its stream ends.
struct RegisteredSession {
    sessions: Arc<LegacySessions>,
    id: String,
}

/// `/sse`.
pub(in crate::server) async fn everything(
    State(app): State<Arc<App>>,
    request: Request,
) -> Response {
    match app.gateway.view(None) {
        Some(view) => answer(&app, view, request).await,
        None => super::no_profile(&app, request).await,
    }
}

/// `/sse/{profile}`.
pub(in crate::server) async fn profile(
    State(app): State<Arc<App>>,
    Path(profile): Path<String>,
    request: Request,
) -> Response {
    match app.gateway.view(Some(&profile)) {
        Some(view) => answer(&app, view, request).await,
        None => super::no_profile(&app, request).await,
    }
}

async fn answer(app: &App, view: Arc<View>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let view = view.for_key(guard::position(&app.config, &parts.headers));
    let owner = SessionOwner {
        endpoint: parts.uri.path().to_owned(),
        principal: principal(&parts.headers),
        account: guard::owner(app, &parts.headers),
    };
    match parts.method {
        Method::POST => {}
        Method::GET if !Accepts::read(&parts.headers).events => {
            let why = "what is here is read as text/event-stream";
            return reply::refused(StatusCode::NOT_ACCEPTABLE, why);
        }
        Method::GET => {
            return match super::place_of_stream(app, &owner.endpoint, &parts.headers) {
                Ok(place) => open(&app.mcp, view, owner, place),
                Err(response) => response,
            };
        }
        _ => return reply::unknown_method("POST, GET"),
    }
    let mut query = parts.uri.query().unwrap_or_default().split('&');
    let id = query.find_map(|pair| pair.strip_prefix("session_id="));
    let session = id.and_then(|id| app.mcp.legacy.find(id, &owner));
    match session {
        Some(session) => post(app, &view, &session, &parts.headers, body).await,
        None => reply::no_session(None),
    }
}

/// GET: a new session, and its stream.
fn open(face: &McpFace, view: Arc<View>, owner: SessionOwner, place: HeldPlace) -> Response {
    let Ok(id) = unguessable() else {
        return reply::refusal(Refusal::Internal);
    };
    let endpoint = format!(
        "event: endpoint\ndata: {}?session_id={id}\n\n",
        owner.endpoint
    );
    let stopping = face.stopping.child_token();
    let pipe = ClientPipe::new(
        Arc::clone(&face.gateway),
        view,
        (id.clone(), owner.principal),
        stopping.clone(),
    );
    let reader = pipe.outbox.reader(0);
    let session = Arc::new(LegacySession {
        owner,
        pipe: Mutex::new(pipe),
    });
    let (max, sharing) = (face.config.max_sessions, face.sessions.sharing());
    let registered = match face.legacy.add(id, Arc::clone(&session), max, sharing) {
        Ok(registered) => registered,
        Err(SessionsFull::AtAll) => return reply::refusal(Refusal::Overloaded),
        Err(SessionsFull::OfKey) => {
            let why =
                "this key has half of all sessions, which is its share; close those that are done";
            return reply::refused(StatusCode::TOO_MANY_REQUESTS, why);
        }
    };
    // Dropped with the stream, and with it the session and its work.
    let drive = async move {
        let _registered = registered;
        stopping.cancelled().await;
        let mut looks = interval(DRAINED);
        while !session.pipe().is_idle() {
            looks.tick().await;
        }
    };
    let response = reply::events(SseResponse {
        reader,
        number: None,
        is_primed: false,
        drive: Some(Box::pin(drive)),
        keepalive: face.config.keepalive,
        session: None,
        place: Some(place),
    });
    let endpoint = stream::once(ready(Ok(Bytes::from(endpoint))));
    response.map(|body| Body::from_stream(endpoint.chain(body.into_data_stream())))
}

/// POST: a message of the client.
async fn post(
    app: &App,
    view: &View,
    session: &LegacySession,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let (incoming, reservation) = match super::read(app, view, headers, body).await {
        Ok(read) => read,
        Err(response) => return response,
    };
    let outbox = Arc::clone(&session.pipe().outbox);
    if timeout(ROOM, outbox.has_room(MAX_UNREAD, MAX_UNREAD_BYTES))
        .await
        .is_err()
    {
        return reply::refusal(Refusal::Overloaded);
    }
    let mut pipe = session.pipe();
    pipe.is_idle();
    if pipe.at_work() > MAX_AT_WORK {
        return reply::refusal(Refusal::Overloaded);
    }
    pipe.receive(incoming, reservation);
    reply::accepted()
}

impl LegacySessions {
    /// The number of sessions.
    pub(super) fn count(&self) -> usize {
        self.table().len()
    }

    /// Adds a session. None is closed to make room, because each has an open stream.
    fn add(
        self: &Arc<Self>,
        id: String,
        session: Arc<LegacySession>,
        max: usize,
        sharing: Sharing,
    ) -> Result<RegisteredSession, SessionsFull> {
        let mut table = self.table();
        let account = session.owner.account;
        let own = table.values().filter(|it| it.owner.account == account);
        if table.len() >= max {
            return Err(SessionsFull::AtAll);
        }
        if own.count() >= sharing.share(max) {
            return Err(SessionsFull::OfKey);
        }
        table.insert(id.clone(), session);
        Ok(RegisteredSession {
            sessions: Arc::clone(self),
            id,
        })
    }

    /// The session of this id, if it is this owner's.
    fn find(&self, id: &str, owner: &SessionOwner) -> Option<Arc<LegacySession>> {
        let table = self.table();
        table.get(id).filter(|it| it.owner == *owner).cloned()
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Arc<LegacySession>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LegacySession {
    fn pipe(&self) -> MutexGuard<'_, ClientPipe> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RegisteredSession {
    fn drop(&mut self) {
        self.sessions.table().remove(&self.id);
    }
}
