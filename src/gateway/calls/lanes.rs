//! The calls of one turn of a chat: lanes side by side, the calls of a lane one after another.

use std::{collections::VecDeque, pin::pin, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{sync::mpsc, time::Instant};

use super::{
    AdmittedCall, Announcement, Approval, CallLimits, FinishedCall, LoggedResult, recorded::Unsent,
};
use crate::{
    gateway::{Gateway, backends::Backends, confirmations::CallOrigin},
    store::{Principal, confirmations::Confirmation},
    upstream::mcp::{CallOptions, Sends},
};
use toolway_core::{
    agent::Job,
    audit::{AuditRecord, AuditVerdict},
};
use toolway_protocol::tool::{CallError, Progress, ToolResult};

/// What happens to a call.
#[derive(Debug)]
pub(in crate::gateway) enum CallEvent {
    /// It is sent.
    Started(Arc<Job>),
    /// It waits for the approval of a person.
    Waits(Arc<Job>, Box<Confirmation>),
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

/// Whose the calls are.
#[derive(Clone, Debug)]
pub(in crate::gateway) enum CallsOf {
    /// A client's.
    Client(Arc<CallOrigin>),
    /// A client's that has approved them.
    Approver(Arc<CallOrigin>),
    /// Those of a command, which has no client who could be asked.
    Command(Arc<CallOrigin>),
}

impl CallsOf {
    /// Whose they are.
    pub(in crate::gateway) fn origin(&self) -> &CallOrigin {
        match self {
            CallsOf::Client(origin) | CallsOf::Approver(origin) | CallsOf::Command(origin) => {
                origin
            }
        }
    }

    /// Whose kept results serve them.
    fn principal(&self) -> Option<Principal> {
        match self {
            CallsOf::Client(origin) | CallsOf::Approver(origin) => Some(origin.principal),
            CallsOf::Command(_) => None,
        }
    }
}

impl CallEvent {
    /// The call that it is about.
    pub(in crate::gateway) fn job(&self) -> &Job {
        match self {
            CallEvent::Started(job)
            | CallEvent::Waits(job, _)
            | CallEvent::Progressed(job, _)
            | CallEvent::Repeated(job, ..)
            | CallEvent::Finished { job, .. } => job,
        }
    }
}

/// The calls of a turn, which run while [`RunningCalls::next`] is waited for. Dropping it cancels the unfinished ones.
pub(in crate::gateway) struct RunningCalls<'a> {
    gateway: &'a Gateway,
    calls: CallsOf,
    limits: CallLimits,
    /// Most lanes that run at a time.
    parallel: usize,
    waiting: VecDeque<Vec<Job>>,
    running: FuturesUnordered<BoxFuture<'a, ()>>,
    sender: mpsc::Sender<CallEvent>,
    events: mpsc::Receiver<CallEvent>,
    /// Events of calls that ran while something else was waited for.
    held: VecDeque<CallEvent>,
}

impl<'a> RunningCalls<'a> {
    /// Prepares the calls; at most `parallel` lanes run at a time. Results that are kept serve them where it is known
    /// whose calls they are.
    pub(in crate::gateway) fn new(
        gateway: &'a Gateway,
        calls: CallsOf,
        lanes: Vec<Vec<Job>>,
        limits: CallLimits,
        parallel: usize,
    ) -> RunningCalls<'a> {
        let (sender, events) = mpsc::channel(64);
        RunningCalls {
            gateway,
            calls,
            limits,
            parallel: parallel.max(1),
            waiting: lanes.into(),
            running: FuturesUnordered::new(),
            sender,
            events,
            held: VecDeque::new(),
        }
    }

    /// Adds lanes.
    pub(in crate::gateway) fn add(&mut self, lanes: Vec<Vec<Job>>) {
        self.waiting.extend(lanes);
    }

    /// What happens next; `None` when nothing more does. Cancel safe.
    pub(in crate::gateway) async fn next(&mut self) -> Option<CallEvent> {
        match self.held.pop_front() {
            Some(held) => Some(held),
            None => self.step().await,
        }
    }

    /// Waits for something else while the calls run; [`RunningCalls::next`] tells afterwards what happened to them,
    /// but for their progress.
    pub(in crate::gateway) async fn run_while<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                biased;
                done = &mut awaited => return done,
                Some(event) = self.step() => {
                    if !matches!(event, CallEvent::Progressed(..)) {
                        self.held.push_back(event);
                    }
                }
                else => return awaited.await,
            }
        }
    }

    async fn step(&mut self) -> Option<CallEvent> {
        loop {
            while self.running.len() < self.parallel
                && let Some(lane) = self.waiting.pop_front()
            {
                let (gateway, limits) = (self.gateway, self.limits);
                let calls = self.calls.clone();
                let sender = self.sender.clone();
                self.running.push(Box::pin(async move {
                    for job in lane {
                        run_one(gateway, &calls, Arc::new(job), limits, &sender).await;
                    }
                }));
            }
            if self.running.is_empty() {
                return self.events.try_recv().ok();
            }
            tokio::select! {
                biased;
                event = self.events.recv() => return event,
                _ = self.running.next() => {}
            }
        }
    }
}

async fn run_one(
    gateway: &Gateway,
    calls: &CallsOf,
    job: Arc<Job>,
    limits: CallLimits,
    events: &mpsc::Sender<CallEvent>,
) {
    // Without a receiver no task waits for the calls any more; their future is about to be dropped.
    let _ = events.send(CallEvent::Started(job.clone())).await;
    let principal = calls.principal();
    // A person agrees to a call, and not to an earlier result of it.
    let kept = principal.filter(|_| job.offered.asked().is_none());
    let kept = kept.and_then(|principal| gateway.kept_results.find(principal, &job));
    if let Some(result) = kept {
        served(gateway, calls, &job, &result);
        tracing::info!(tool.name = %job.offered.name, server.id = %job.offered.server,
            "Used a kept result");
        let finished = CallEvent::Finished {
            job,
            outcome: Ok(result),
            duration_ms: 0,
            attempts: 0,
        };
        let _ = events.send(finished).await;
        return;
    }
    let begun = Instant::now();
    let call = AdmittedCall {
        tool: &job.offered,
        arguments: &job.arguments,
        origin: calls.origin(),
        audit: &gateway.audit,
        approval: match calls {
            CallsOf::Client(_) => Approval::From(&gateway.confirmations),
            CallsOf::Approver(_) => Approval::Given,
            CallsOf::Command(_) => Approval::Impossible,
        },
        repeat_within: Some(limits),
        retries: job.retries,
        session: None,
        kept: Some(&gateway.kept_results),
    };
    let announce = async |told| {
        let event = match told {
            Announcement::Waits(waiting) => CallEvent::Waits(job.clone(), Box::new(waiting)),
            Announcement::Repeats(attempt, error) => {
                CallEvent::Repeated(job.clone(), attempt, error)
            }
        };
        let _ = events.send(event).await;
    };
    let FinishedCall {
        outcome,
        duration_ms,
        attempts,
    } = call
        .run_announced(
            |sends| attempt(&gateway.backends, &job, limits, sends, events),
            announce,
        )
        .await;
    if let (Some(principal), Ok(result)) = (principal, &outcome) {
        let kept = &gateway.kept_results;
        kept.keep(principal, &job, result, begun);
    }
    let _ = events
        .send(CallEvent::Finished {
            job,
            outcome,
            duration_ms,
            attempts,
        })
        .await;
}

/// Records that a kept result serves a call.
fn served(gateway: &Gateway, calls: &CallsOf, job: &Job, result: &ToolResult) {
    gateway.audit.record(|| AuditRecord {
        result_bytes: Some(result.text_bytes()),
        result: gateway.audit.result(|| result.to_json()),
        ..Unsent {
            name: job.offered.name.as_str(),
            tool: Some(&job.offered),
            arguments: Some(&job.arguments),
            verdict: AuditVerdict::Allowed,
            rule: Some(job.offered.rule()),
            outcome: result.status(),
            error: "",
        }
        .to_record(&gateway.audit, calls.origin())
    });
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
