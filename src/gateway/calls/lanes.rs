//! The calls of one turn of a chat: lanes side by side, the calls of a lane one after another.

use std::{
    pin::{Pin, pin},
    sync::Arc,
};

use futures::{StreamExt, stream};
use tokio::sync::mpsc;

use super::{AdmittedCall, CallLimits, FinishedCall};
use crate::{
    gateway::backends::Backends,
    upstream::mcp::{CallOptions, Sends},
};
use toolway_core::agent::Job;
use toolway_protocol::tool::{CallError, Progress, ToolResult};

/// What happens to a call.
#[derive(Debug)]
pub(in crate::gateway) enum CallEvent {
    /// It is sent.
    Started(Arc<Job>),
    /// It reports progress.
    Progressed(Arc<Job>, Progress),
    /// An attempt, of this number, has failed, and there will be another one.
    Repeated(Arc<Job>, u32, CallError),
    /// It has ended.
    Finished {
        /// The call.
        job: Arc<Job>,
        /// What came of it.
        outcome: Result<ToolResult, CallError>,
        /// From the send to the end.
        duration_ms: u64,
        /// How often it was tried.
        attempts: u32,
    },
}

/// The calls of a turn, which run while [`RunningCalls::next`] is waited for. Dropping it cancels the unfinished ones.
pub(in crate::gateway) struct RunningCalls<'a> {
    /// `None` when every call has ended.
    work: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    events: mpsc::Receiver<CallEvent>,
}

impl<'a> RunningCalls<'a> {
    /// Prepares the calls; at most `parallel` lanes run at a time.
    pub(in crate::gateway) fn new(
        backends: &'a Backends,
        lanes: Vec<Vec<Job>>,
        limits: CallLimits,
        parallel: usize,
    ) -> RunningCalls<'a> {
        let (sender, events) = mpsc::channel(64);
        let work = async move {
            let run_lane = async |lane: Vec<Job>| {
                for job in lane {
                    run_one(backends, Arc::new(job), limits, &sender).await;
                }
            };
            stream::iter(lanes)
                .for_each_concurrent(parallel.max(1), run_lane)
                .await;
        };
        RunningCalls {
            work: Some(Box::pin(work)),
            events,
        }
    }

    /// What happens next; `None` when nothing more does. Cancel safe.
    pub(in crate::gateway) async fn next(&mut self) -> Option<CallEvent> {
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
    limits: CallLimits,
    events: &mpsc::Sender<CallEvent>,
) {
    // Without a receiver no task waits for the calls any more; their future is about to be dropped.
    let _ = events.send(CallEvent::Started(job.clone())).await;
    let call = AdmittedCall {
        tool: &job.offered,
        repeat_within: Some(limits),
        retries: job.retries,
        session: None,
    };
    let announce = async |attempt, error| {
        let failed = CallEvent::Repeated(job.clone(), attempt, error);
        let _ = events.send(failed).await;
    };
    let FinishedCall {
        outcome,
        duration_ms,
        attempts,
    } = call
        .run_announced(
            |sends| attempt(backends, &job, limits, sends, events),
            announce,
        )
        .await;
    let _ = events
        .send(CallEvent::Finished {
            job,
            outcome,
            duration_ms,
            attempts,
        })
        .await;
}

async fn attempt(
    backends: &Backends,
    job: &Arc<Job>,
    limits: CallLimits,
    sends: Sends,
    events: &mpsc::Sender<CallEvent>,
) -> Result<ToolResult, CallError> {
    let (progress, mut reports) = mpsc::channel(16);
    let options = CallOptions {
        silence: limits.silence,
        deadline: limits.deadline,
        progress: Some(progress),
        caller: None,
        sends,
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
