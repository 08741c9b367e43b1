//! Runs the calls of a turn: lanes side by side, each call with its deadline and at most one repetition.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::upstream::mcp::{CallOptions, Sends};
use toolway_core::{
    agent::{Job, status},
    route,
};
use toolway_protocol::tool::{CallError, Progress, ToolResult, millis};

use super::backends::Backends;

/// What happens to a call.
#[derive(Debug)]
pub(super) enum CallEvent {
    /// It is sent.
    Started(Arc<Job>),
    /// It says how far it has come.
    Progressed(Arc<Job>, Progress),
    /// It has ended.
    Finished {
        /// The call.
        job: Arc<Job>,
        /// What came of it.
        outcome: Result<ToolResult, CallError>,
        /// From sending it to its end.
        duration_ms: u64,
    },
}

/// How calls are bounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimits {
    /// Longest silence of a call.
    pub silence: Duration,
    /// When the whole request ends.
    pub deadline: Instant,
    /// Calls that run side by side.
    pub parallel: usize,
}

/// The calls of a turn, which run while [`Running::next`] is waited for. Dropping it cancels those that are
/// not at their end.
pub(super) struct Running<'a> {
    /// `None` when every call is at its end.
    work: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    events: mpsc::Receiver<CallEvent>,
}

impl<'a> Running<'a> {
    /// Readies the calls: lanes side by side, the calls of a lane one after another.
    pub(super) fn new(
        backends: &'a Backends,
        lanes: Vec<Vec<Job>>,
        patience: CallLimits,
    ) -> Running<'a> {
        let (sender, events) = mpsc::channel(64);
        let work = async move {
            let run_lane = async |lane: Vec<Job>| {
                for job in lane {
                    run_one(backends, Arc::new(job), patience, &sender).await;
                }
            };
            stream::iter(lanes)
                .for_each_concurrent(patience.parallel.max(1), run_lane)
                .await;
        };
        Running {
            work: Some(Box::pin(work)),
            events,
        }
    }

    /// What happens next; `None` when nothing more does. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<CallEvent> {
        if let Some(work) = &mut self.work {
            tokio::select! {
                biased;
                event = self.events.recv() => return event,
                () = work => self.work = None,
            }
        }
        self.events.recv().await
    }
}

async fn run_one(
    backends: &Backends,
    job: Arc<Job>,
    patience: CallLimits,
    events: &mpsc::Sender<CallEvent>,
) {
    // A receiver that is gone means that nobody waits for the calls any more; their future is about to be dropped.
    let _ = events.send(CallEvent::Started(job.clone())).await;
    let begun = Instant::now();
    let (mut attempts, sends) = (1, Sends::default());
    let outcome = loop {
        let outcome = attempt(backends, &job, patience, &sends, events).await;
        attempts = attempts.max(sends.so_far());
        let left = patience.deadline.saturating_duration_since(Instant::now());
        let left = left.min(patience.silence);
        let again =
            |error| route::repeat_after(error, job.offered.tool.annotations, attempts, left);
        match outcome.as_ref().err().and_then(again) {
            // Rare, so its timer has no room in the future of every call.
            Some(pause) => Box::pin(sleep(pause)).await,
            None => break outcome,
        }
        attempts += 1;
    };
    let duration_ms = millis(begun.elapsed());
    log(&job, &outcome, duration_ms, attempts);
    let _ = events
        .send(CallEvent::Finished {
            job,
            outcome,
            duration_ms,
        })
        .await;
}

async fn attempt(
    backends: &Backends,
    job: &Arc<Job>,
    patience: CallLimits,
    sends: &Sends,
    events: &mpsc::Sender<CallEvent>,
) -> Result<ToolResult, CallError> {
    let (progress, mut reports) = mpsc::channel(16);
    let options = CallOptions {
        silence: patience.silence,
        deadline: patience.deadline,
        progress: Some(progress),
        caller: None,
        sends: sends.clone(),
    };
    let mut call = pin!(backends.call(&job.offered, job.arguments.clone(), options));
    loop {
        tokio::select! {
            biased;
            Some(report) = reports.recv() => {
                // A client that reads too slowly misses a report, never a result.
                let _ = events.try_send(CallEvent::Progressed(job.clone(), report));
            }
            outcome = &mut call => return outcome,
        }
    }
}

fn log(job: &Job, outcome: &Result<ToolResult, CallError>, duration_ms: u64, attempts: u32) {
    let (name, server) = (&job.offered.name, &job.offered.server);
    match outcome {
        Ok(_) => tracing::info!(tool.name = %name, server.id = %server, duration_ms, attempts,
            status = status(outcome), "Called a tool"),
        Err(error) => tracing::warn!(tool.name = %name, server.id = %server, duration_ms, attempts,
            status = status(outcome), error = &*error.for_log(), "The call of a tool failed"),
    }
}
