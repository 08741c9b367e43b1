//! Responses that run in the background (`background: true`): their clients may leave and come back.
//!
//! Runs have places of their own, so that they keep no request out, and each key its share of them. Their events are
//! kept for readers, of whom a slow one holds up no other. The response is in the store before the client has its id,
//! and again when it has ended. A response that is stored as unfinished and does not run in this process was interrupted.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::body::Bytes;
use futures::{FutureExt, Stream, stream};
use serde_json::{Value, json};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use super::keep::Keep;
use crate::{
    byte_budget::{ByteBudget, Reservation},
    gateway::{
        chat::ChatResponse,
        failure::{Failure, Outcome},
    },
    server::{
        App,
        answer_stream::{ChatEvent, ChatEvents},
        error::{self, Refusal},
        mcp_items::{self, Making},
        places::{HeldPlace, Holder, Places},
        request_log::RequestLog,
    },
    store::Principal,
};
use toolway_core::translate::dialect::{
    AnswerWriter, Delta,
    responses::{EventLog, Expired, ResponseWriter},
};
use toolway_protocol::{openai::ErrorBody, tool::JsonObject};

/// Most bytes of the events of one response.
const MAX_LOG: usize = 4 << 20;
/// Most bytes of the events of all responses.
const MAX_LOGS: usize = 64 << 20;
/// How long events are kept when their response has ended.
const KEPT: Duration = Duration::from_secs(5 * 60);
/// Most responses that have ended and whose events are kept.
const MAX_ENDED: usize = 1000;
/// Most bytes of events that are sent at one time.
const PIECE: usize = 64 << 10;

/// Whose response it is, and its id.
type Id = (Principal, String);

/// The responses that run, and those that have just ended.
pub(in crate::server) struct Runs {
    table: Mutex<Table>,
    tasks: TaskTracker,
    places: Arc<Places>,
    /// The budget of the events of all.
    logs: ByteBudget,
}

#[derive(Default)]
struct Table {
    runs: HashMap<Id, Arc<Run>>,
    /// Those that have ended, the oldest first.
    ended: VecDeque<(Id, Instant)>,
}

/// A response that runs.
pub(in crate::server) struct Run {
    state: Mutex<RunState>,
    /// Told of every change of the state.
    changed: watch::Sender<()>,
    cancelled: CancellationToken,
}

struct RunState {
    writer: ResponseWriter,
    log: EventLog,
    /// The bytes of the log.
    reservation: Reservation,
    /// The last events. Nobody reads them before the response is in the store, so that the next request finds it.
    end: Vec<u8>,
    /// It is in the store as it ended, or is not to be.
    has_ended: bool,
    /// The client does not want it any more.
    is_deleted: bool,
}

/// What a run needs.
pub(in crate::server) struct Start {
    pub(in crate::server) app: Arc<App>,
    pub(in crate::server) making: Making,
    /// The model that is asked.
    pub(in crate::server) model: String,
    pub(in crate::server) writer: ResponseWriter,
    pub(in crate::server) keep: Keep,
    pub(in crate::server) place: HeldPlace,
    pub(in crate::server) ended: RequestLog,
}

impl Runs {
    /// For clients that may send so many requests at a time, and show so many keys.
    pub(in crate::server) fn new(max_requests: usize, keys: usize) -> Runs {
        Runs {
            table: Mutex::default(),
            tasks: TaskTracker::new(),
            places: Arc::new(Places::new(max_requests.div_ceil(2), keys)),
            logs: ByteBudget::new(MAX_LOGS),
        }
    }

    /// Takes a place for a response.
    ///
    /// # Errors
    /// Those of [`Places::take`].
    pub(in crate::server) fn place(&self, holder: Holder) -> Result<HeldPlace, Refusal> {
        HeldPlace::of(&self.places, holder)
    }

    /// Starts a response; it is in the store when this ends.
    pub(in crate::server) async fn start(&self, start: Start) -> Arc<Run> {
        let run = Arc::new(Run {
            state: Mutex::new(RunState {
                writer: start.writer,
                log: EventLog::default(),
                reservation: self.logs.take_nothing(),
                end: Vec::new(),
                has_ended: false,
                is_deleted: false,
            }),
            changed: watch::Sender::default(),
            cancelled: CancellationToken::new(),
        });
        run.write(&start.app, |writer, out| writer.queue(&start.model, out));
        let response = run.state().writer.response();
        let id = response.get("id").and_then(Value::as_str);
        let id = (start.making.principal(), id.unwrap_or_default().to_owned());
        self.table().runs.insert(id.clone(), Arc::clone(&run));
        let (stored, is_stored) = oneshot::channel();
        let span = start.ended.span().clone();
        let work = {
            let run = Arc::clone(&run);
            let Start {
                app,
                making,
                mut keep,
                place,
                ended,
                ..
            } = start;
            async move {
                keep.keep(&app, id.0, &[], response).await;
                let _ = stored.send(());
                run.work(&app, making, ended).await;
                if !run.state().is_deleted {
                    let asked = run.state().writer.asked();
                    let response = run.state().writer.response();
                    // Readers get the end even if keeping it panics, which is in the log.
                    let keeping = AssertUnwindSafe(keep.keep(&app, id.0, &asked, response));
                    let _ = keeping.catch_unwind().await;
                }
                if run.state().is_deleted {
                    // It was deleted while it was kept.
                    app.gateway.entries().remove_response(id.0, &id.1).await;
                }
                drop((keep, place));
                app.runs.table().end(id);
                run.publish_end(&app);
                run.changed.send_replace(());
            }
        };
        self.tasks.spawn(work.instrument(span));
        let _ = is_stored.await;
        run
    }

    /// The response of this client under this id, if it runs or has just ended.
    pub(in crate::server) fn find(&self, principal: Principal, id: &str) -> Option<Arc<Run>> {
        let mut table = self.table();
        table.forget_old();
        table.runs.get(&(principal, id.to_owned())).cloned()
    }

    /// Forgets a response, which ends.
    pub(in crate::server) fn remove(&self, principal: Principal, id: &str) {
        let removed = self.table().runs.remove(&(principal, id.to_owned()));
        if let Some(run) = removed {
            run.state().is_deleted = true;
            run.cancelled.cancel();
        }
    }

    /// Ends when all responses have ended; no more are started.
    pub(in crate::server) async fn join(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn end(&mut self, id: Id) {
        self.ended.push_back((id, Instant::now()));
        self.forget_old();
    }

    fn forget_old(&mut self) {
        let is_old = |(_, since): &(Id, Instant)| since.elapsed() > KEPT;
        while self.ended.len() > MAX_ENDED || self.ended.front().is_some_and(is_old) {
            self.forget_oldest();
        }
    }

    /// Forgets the events of the response that ended first. False if none has.
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.ended.pop_front();
        oldest.map(|(id, _)| self.runs.remove(&id)).is_some()
    }
}

impl Run {
    /// The response as it is now; if it is over, once it is in the store.
    pub(in crate::server) async fn response(&self) -> JsonObject {
        if self.state().writer.is_over() {
            self.ended().await;
        }
        self.state().writer.response()
    }

    /// Cancels it, and waits until it has ended.
    pub(in crate::server) async fn cancel(&self) {
        self.cancelled.cancel();
        self.ended().await;
    }

    async fn ended(&self) {
        let mut changed = self.changed.subscribe();
        while !self.state().has_ended && changed.changed().await.is_ok() {}
    }

    /// The events from this number on, until the response has ended; comments in silence.
    ///
    /// # Errors
    /// When some of them are no longer kept.
    pub(in crate::server) fn events(
        self: Arc<Run>,
        from: u64,
        keepalive: Duration,
    ) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + Send + use<>, Expired> {
        self.state().log.from(from, 0)?;
        let changed = self.changed.subscribe();
        let reading = Some((self, changed, from));
        Ok(stream::unfold(reading, move |reading| async move {
            let (run, mut changed, next) = reading?;
            loop {
                changed.mark_unchanged();
                let (read, has_ended) = {
                    let state = run.state();
                    (state.log.from(next, PIECE), state.has_ended)
                };
                match read {
                    Ok((piece, after)) if after > next => {
                        return Some((Ok(piece.into()), Some((run, changed, after))));
                    }
                    Ok(_) if has_ended => return None,
                    Ok(_) => {}
                    Err(expired) => return Some((Ok(expired_event(expired, next)), None)),
                }
                if timeout(keepalive, changed.changed()).await.is_err() {
                    let comment = Bytes::from_static(b": keep-alive\n\n");
                    return Some((Ok(comment), Some((run, changed, next))));
                }
            }
        }))
    }

    /// Asks the model until the response has ended or is cancelled.
    async fn work(&self, app: &App, making: Making, mut ended: RequestLog) {
        let record = ended.record();
        let asking = AssertUnwindSafe(self.ask(app, making)).catch_unwind();
        match self.cancelled.run_until_cancelled(asking).await {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(failure))) => {
                record.fail(&failure);
                self.fail(app, error::in_band(failure));
            }
            // The panic itself is in the log.
            Some(Err(_)) => {}
            None => {
                self.write(app, |writer, out| writer.cancel(out));
                record.note(|details| {
                    let reason = "the client cancelled it".to_owned();
                    details.failure = Some((Outcome::ClientLeft, reason));
                });
            }
        }
        if !self.state().writer.is_over() {
            let message = "toolway failed; its log says more";
            self.fail(
                app,
                ErrorBody::new("server_error", "internal_error", message),
            );
        }
        ended.complete();
    }

    async fn ask(&self, app: &App, making: Making) -> Result<(), Failure> {
        self.write_all(app, making.calls());
        let (made, answer) = making.run().await;
        self.write_all(app, mcp_items::results(made));
        if let ChatResponse::Stream { body, .. } = answer.map_err(|failed| failed.failure)? {
            let mut events = ChatEvents::new(body);
            let mut piece = Vec::new();
            while events.next(&mut piece).await.is_some() {
                self.write(app, |writer, out| {
                    let is_comment = |it: &ChatEvent| matches!(it, ChatEvent::Comment(_));
                    for event in piece.drain(..).filter(|it| !is_comment(it)) {
                        event.write(writer, out);
                    }
                });
            }
        }
        Ok(())
    }

    fn write_all(&self, app: &App, deltas: impl Iterator<Item = Delta>) {
        for delta in deltas {
            self.write(app, |writer, out| writer.write(delta, out));
        }
    }

    fn fail(&self, app: &App, error: ErrorBody) {
        self.write(app, |writer, out| writer.write(Delta::Failed(error), out));
    }

    /// Changes the answer and keeps its events.
    fn write(&self, app: &App, write: impl FnOnce(&mut ResponseWriter, &mut Vec<u8>)) {
        let mut out = Vec::new();
        let mut state = self.state();
        write(&mut state.writer, &mut out);
        match state.writer.is_over() {
            true => state.end.extend(out),
            false => state.append(app, &out),
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// Shows the last events. The response is in the store, or is not to be.
    fn publish_end(&self, app: &App) {
        let mut state = self.state();
        let end = std::mem::take(&mut state.end);
        state.append(app, &end);
        state.has_ended = true;
    }

    fn state(&self) -> MutexGuard<'_, RunState> {
        // A thread that panicked with it has written whole events.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunState {
    /// Keeps events, and drops the oldest if there is no room.
    fn append(&mut self, app: &App, events: &[u8]) {
        let RunState {
            log, reservation, ..
        } = self;
        log.append(events);
        while log.bytes() > MAX_LOG || !reservation.grow_to(log.bytes()) {
            let is_over = log.bytes() > MAX_LOG;
            if (is_over || !app.runs.table().forget_oldest()) && !log.drop_oldest() {
                break;
            }
        }
    }
}

fn expired_event(expired: Expired, number: u64) -> Bytes {
    let data = json!({"type": "error", "code": "events_expired", "message": expired.to_string(), "param": null,
        "sequence_number": number});
    format!("event: error\ndata: {data}\n\n").into()
}
