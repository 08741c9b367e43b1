//! `POST /v1/events`: calls as events, and what happens to them as events; `GET /v1/sessions/{id}/state`: what they changed.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    gateway::{
        events::{EventStep, Steps},
        failure::Failure,
    },
    store::{
        Principal,
        sessions::{SessionName, SessionState},
    },
    upstream::read_text,
};
use toolway_core::{
    agent::events::{self, EndedCall, EventFraming, EventItem, Requested, StateDelta, TakenIn},
    translate::state,
};

use super::{App, body, error, executor, guard, headers};

/// Answers `POST /v1/events`.
pub(super) async fn take_in(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = match body::receive(&app, &parts.headers, body, app.config.max_body_bytes).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    app.gateway.wait_for_start().await;
    match answer(&app, &parts.headers, &body) {
        Ok((framing, answer)) => {
            executor::count(&parts, answer.requested.len());
            write(answer, framing, app.gateway.keepalive()).await
        }
        Err(failure) => error::response(failure.into()),
    }
}

/// Answers `GET /v1/sessions/{id}/state`. A session of which nothing is known has version 0.
pub(super) async fn show_state(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let principal = headers::principal(&headers);
    let found = SessionName::parse(&id).and_then(|it| app.gateway.sessions().find(principal, &it));
    let SessionState { version, state } = found.unwrap_or(SessionState {
        version: 0,
        state: json!({}),
    });
    Json(json!({"version": version, "state": state})).into_response()
}

fn answer(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<(EventFraming, EventsAnswer), Failure> {
    let read = read_text(body.len(), || events::read(body));
    let (framing, events) = read.map_err(|invalid| body::invalid(invalid.to_string()))?;
    let (catalog, selected) = executor::tools(app, headers)?;
    let is_minimal = headers
        .get("x-toolway-events")
        .is_some_and(|value| value == "minimal");
    let TakenIn { items, to_run } = events::take_in(events, is_minimal);
    let mut answer = EventsAnswer {
        app: Arc::clone(app),
        principal: headers::principal(headers),
        session: headers::session(headers)?,
        is_minimal,
        written: Vec::new(),
        requested: to_run.clone(),
        steps: app.gateway.run_calls(
            to_run,
            catalog,
            selected,
            guard::client(&app.config, headers, "events"),
        ),
    };
    for item in items {
        match item {
            EventItem::Write(event) => {
                if event["type"] == "error" {
                    let error = event["error"]["type"].as_str();
                    tracing::info!(error, "An event was rejected");
                }
                answer.written.push(event);
            }
            EventItem::StateDelta(StateDelta { session, delta }) => {
                answer.change_state(None, session.as_deref(), &delta);
            }
        }
    }
    Ok((asked_framing(headers).unwrap_or(framing), answer))
}

/// The framing that `Accept` asks for.
fn asked_framing(headers: &HeaderMap) -> Option<EventFraming> {
    let accept = headers.get(header::ACCEPT)?.to_str().ok()?;
    let kinds = [
        ("application/x-ndjson", EventFraming::Lines),
        ("text/event-stream", EventFraming::Stream),
    ];
    let asked = kinds.iter().find(|(kind, _)| accept.contains(kind));
    asked.map(|(_, framing)| *framing)
}

/// The events of an answer while they arise.
struct EventsAnswer {
    app: Arc<App>,
    principal: Principal,
    session: Option<SessionName>,
    is_minimal: bool,
    /// What is to be sent next.
    written: Vec<Value>,
    requested: Vec<(String, Requested)>,
    steps: Steps,
}

impl EventsAnswer {
    /// The next events; `None` when every call is at its end.
    ///
    /// Cancel safe.
    async fn next(&mut self) -> Option<Vec<Value>> {
        loop {
            if !self.written.is_empty() {
                return Some(std::mem::take(&mut self.written));
            }
            match self.steps.next().await? {
                EventStep::Progressed(..) | EventStep::Repeated { .. } if self.is_minimal => {}
                EventStep::Progressed(id, progress) => {
                    self.written.push(events::write_progress(&id, &progress));
                }
                EventStep::Repeated {
                    id,
                    attempt,
                    reason,
                } => self
                    .written
                    .push(events::write_retry(&id, attempt, &reason)),
                EventStep::Ended {
                    executed,
                    attempts,
                    state_delta,
                } => {
                    let requested = self.requested.iter().find(|(id, _)| *id == executed.id);
                    let (id, requested) = requested?.clone();
                    if let Some(delta) = state_delta {
                        self.change_state(Some(&id), requested.session.as_deref(), &delta);
                    }
                    let ended = EndedCall {
                        executed,
                        requested: &requested,
                        attempts,
                    };
                    let event = events::write_ended(&ended, self.is_minimal);
                    self.written.push(event);
                }
            }
        }
    }

    /// Changes the state of the session that the event or the request names. A result of a request without a session
    /// changes nothing.
    fn change_state(&mut self, call: Option<&str>, named: Option<&str>, delta: &Value) {
        let named = named.map(SessionName::parse);
        let session = named.unwrap_or_else(|| self.session.clone());
        let Some(session) = session else {
            if call.is_none() {
                let message = "name the session in `session` or X-Toolway-Session";
                let event = events::write_rejected(None, "invalid_session", message);
                self.written.push(event);
            }
            return;
        };
        let Some(patch) = state::patch_of(delta) else {
            let message = "a delta is a merge patch, or has `set` and `unset`";
            self.reject(call, "invalid_state_delta", message);
            return;
        };
        match self
            .app
            .gateway
            .sessions()
            .merge(self.principal, &session, &patch)
        {
            Ok(_) if self.is_minimal => {}
            Ok(version) => {
                let event = events::write_state(session.as_str(), version, &patch);
                self.written.push(event);
            }
            Err(error) => self.reject(call, "invalid_state_delta", &error.to_string()),
        }
    }

    fn reject(&mut self, call: Option<&str>, kind: &str, message: &str) {
        self.written
            .push(events::write_rejected(call, kind, message));
    }
}

/// Writes the answer as it arises, or whole.
async fn write(mut answer: EventsAnswer, framing: EventFraming, keepalive: Duration) -> Response {
    let kind = match framing {
        EventFraming::Lines => "application/x-ndjson",
        EventFraming::Stream => "text/event-stream",
        EventFraming::One | EventFraming::List => {
            let mut all = Vec::new();
            while let Some(events) = answer.next().await {
                all.extend(events);
            }
            return match framing {
                EventFraming::One => Json(all.pop().unwrap_or_default()).into_response(),
                _ => Json(json!({"events": all})).into_response(),
            };
        }
    };
    let body = Body::from_stream(pieces(answer, framing, keepalive));
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, body).into_response()
}

/// The events in their framing, with a comment in an event stream where nothing happens for long.
fn pieces(
    answer: EventsAnswer,
    framing: EventFraming,
    keepalive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold(answer, move |mut answer| async move {
        let text = match timeout(keepalive, answer.next()).await {
            Ok(events) => events?.iter().map(|event| framing.write(event)).collect(),
            Err(_) if framing == EventFraming::Stream => ": keep-alive\n\n".to_owned(),
            Err(_) => "\n".to_owned(),
        };
        Some((Ok(Bytes::from(text)), answer))
    })
    .boxed()
}
