//! Runs the calls of a turn: lanes side by side, each call with its deadline and at most one repetition.

use std::{pin::pin, time::Duration};

use futures::{StreamExt, stream};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    agent::Job,
    route,
    tool::{CallError, Progress, ToolResult},
    upstream::mcp::{CallOptions, Servers},
};

/// What happens to a call.
#[derive(Debug)]
pub(super) enum CallEvent {
    /// It is sent.
    Started(Job),
    /// It says how far it has come.
    Progressed(Job, Progress),
    /// It has ended.
    Finished {
        /// The call.
        job: Job,
        /// What came of it.
        outcome: Result<ToolResult, CallError>,
        /// From sending it to its end.
        duration: Duration,
    },
}

/// How calls are bounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Longest silence of a call.
    pub silence: Duration,
    /// When the whole request ends.
    pub deadline: Instant,
    /// Calls that run side by side.
    pub parallel: usize,
}

/// Runs all lanes and tells `events` about each call.
///
/// Dropping the future cancels the calls that are running.
pub(super) async fn run(
    servers: &Servers,
    lanes: Vec<Vec<Job>>,
    patience: Patience,
    events: mpsc::Sender<CallEvent>,
) {
    stream::iter(lanes)
        .for_each_concurrent(patience.parallel.max(1), |lane| async {
            for job in lane {
                run_one(servers, job, patience, &events).await;
            }
        })
        .await;
}

async fn run_one(
    servers: &Servers,
    job: Job,
    patience: Patience,
    events: &mpsc::Sender<CallEvent>,
) {
    // A receiver that is gone means that nobody waits for the calls any more; their future is about to be dropped.
    let _ = events.send(CallEvent::Started(job.clone())).await;
    let begun = Instant::now();
    let mut attempts = 1;
    let outcome = loop {
        let outcome = attempt(servers, &job, patience, events).await;
        match outcome {
            Err(error) if route::may_repeat(&error, job.offered.tool.annotations, attempts) => {
                attempts += 1;
            }
            outcome => break outcome,
        }
    };
    let duration = begun.elapsed();
    log(&job, &outcome, duration, attempts);
    let _ = events
        .send(CallEvent::Finished {
            job,
            outcome,
            duration,
        })
        .await;
}

async fn attempt(
    servers: &Servers,
    job: &Job,
    patience: Patience,
    events: &mpsc::Sender<CallEvent>,
) -> Result<ToolResult, CallError> {
    let (progress, mut reports) = mpsc::channel(16);
    let options = CallOptions {
        silence: patience.silence,
        deadline: patience.deadline,
        progress: Some(progress),
    };
    let tool = job.offered.tool.name.as_str();
    let mut call = pin!(servers.call(&job.offered.server, tool, job.arguments.clone(), options));
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

fn log(job: &Job, outcome: &Result<ToolResult, CallError>, duration: Duration, attempts: u32) {
    let (name, server) = (&job.offered.name, &job.offered.server);
    let duration_ms = duration.as_millis();
    match outcome {
        Ok(result) => tracing::info!(tool.name = %name, server.id = %server, duration_ms, attempts,
            is_error = result.is_error, "Called tool `{name}`"),
        Err(error) => tracing::warn!(tool.name = %name, server.id = %server, duration_ms, attempts,
            error.kind = error.kind(), %error, "Call of tool `{name}` failed"),
    }
}
