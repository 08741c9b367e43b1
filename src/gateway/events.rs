//! Runs the calls of `POST /v1/events` and says what happens to each while it happens.

use std::{pin::Pin, sync::Arc};

use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use toolway_core::{
    agent::{Job, RefusedCall, admit::admit, events::Requested},
    catalog::{Catalog, Selected},
    route::{self, Order},
    translate::{
        results::{self, Media},
        tool_responses::Executed,
    },
};
use toolway_protocol::tool::{CallError, Progress, ToolResult};

use super::{
    Gateway, RequestClient,
    calls::{CallEvent, CallLimits, RunningCalls},
};

/// Longest text of one result, in bytes.
const MAX_RESULT_BYTES: usize = 16 << 20;

/// A call that may not run, by its id, and why.
type RefusedEvent = Box<(String, CallError)>;

/// What happens to a call.
#[derive(Debug)]
pub enum EventStep {
    /// It says how far it has come.
    Progressed(String, Progress),
    /// An attempt has failed, and there will be another one.
    Repeated {
        /// The id of the call.
        id: String,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// Why it failed.
        reason: String,
    },
    /// It has ended.
    Ended {
        /// Its id and result.
        executed: Executed,
        /// How often it was tried.
        attempts: u32,
        /// How its result changes the state of the session.
        state_delta: Option<Value>,
    },
}

/// The calls of one request, which run while [`Steps::next`] is waited for. Dropping it cancels those that are not at their
/// end.
pub struct Steps {
    /// `None` when every call is at its end.
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    steps: mpsc::Receiver<EventStep>,
}

impl Steps {
    /// What happens next; `None` when nothing more does. Cancel safe.
    pub async fn next(&mut self) -> Option<EventStep> {
        if let Some(work) = &mut self.work {
            tokio::select! {
                biased;
                step = self.steps.recv() => return step,
                () = work => self.work = None,
            }
        }
        self.steps.recv().await
    }
}

impl Gateway {
    /// Runs these calls as those of one turn are run: the same policy, checks, order, limits and records. Each ends once,
    /// also where the time of a request is up or toolway ends.
    pub fn run_calls(
        self: &Arc<Gateway>,
        calls: Vec<(String, Requested)>,
        catalog: Arc<Catalog>,
        selected: Arc<Selected>,
        client: RequestClient,
    ) -> Steps {
        let (sender, steps) = mpsc::channel(64);
        let gateway = Arc::clone(self);
        let work = async move {
            let mut open: Vec<String> = calls.iter().map(|(id, _)| id.clone()).collect();
            let after = gateway.config.request_timeout;
            let deadline = Instant::now() + after;
            let jobs = gateway.admit_all(calls, &catalog, &selected, &client);
            let running = gateway.run_jobs(jobs, client, deadline, &mut open, &sender);
            let in_time = timeout_at(deadline, running);
            let error = match gateway.ending.run_until_cancelled(in_time).await {
                Some(Ok(())) => return,
                Some(Err(_)) => CallError::Timeout { after },
                None => CallError::Cancelled,
            };
            for id in open {
                let _ = sender.send(ended(id, Err(error.clone()), 0)).await;
            }
        };
        Steps {
            work: Some(Box::pin(work)),
            steps,
        }
    }

    /// The calls that may run, and why the others may not.
    fn admit_all(
        &self,
        calls: Vec<(String, Requested)>,
        catalog: &Catalog,
        selected: &Selected,
        client: &RequestClient,
    ) -> Vec<Result<Job, RefusedEvent>> {
        let most = self.config.max_calls;
        let policy = self.policy_of(client.key);
        let origin = self.origin_of(client);
        let admitted = calls.into_iter().enumerate().map(|(place, (id, call))| {
            if let Some(earlier) = &call.retry_of {
                tracing::info!(call = id, retry_of = earlier, "A call is tried again");
            }
            let is_surplus = place >= most;
            let denied = is_surplus.then(|| CallError::Denied {
                reason: format!("a request may hold {most} calls; this one was not run"),
            });
            let admitted = match denied {
                Some(denied) => Err(denied),
                None => admit(&call.tool, &call.arguments, selected, catalog, &policy),
            };
            if let Err(error) = &admitted {
                let refused = RefusedCall::new(&call.tool, &call.arguments, error);
                self.record_refused(&origin, &refused, selected, catalog);
            }
            match admitted {
                Ok((offered, arguments)) => Ok(Job {
                    place,
                    id,
                    offered,
                    arguments,
                    retries: call.retries,
                    is_early: false,
                }),
                Err(error) => Err(Box::new((id, error))),
            }
        });
        admitted.collect()
    }

    async fn run_jobs(
        &self,
        admitted: Vec<Result<Job, RefusedEvent>>,
        client: RequestClient,
        deadline: Instant,
        open: &mut Vec<String>,
        steps: &mpsc::Sender<EventStep>,
    ) {
        let mut jobs = Vec::new();
        for job in admitted {
            match job {
                Ok(job) => jobs.push(job),
                Err(refused) => {
                    let (id, error) = *refused;
                    open.retain(|other| *other != id);
                    let _ = steps.send(ended(id, Err(error), 0)).await;
                }
            }
        }
        let lanes = route::lanes(jobs, Order::Parallel, |job| {
            (&job.offered.server, job.offered.runs_in_order())
        });
        let limits = CallLimits {
            silence: self.config.tool_timeout,
            deadline,
        };
        let parallel = self.config.parallel_calls;
        let calls = self.calls_of(&client);
        let mut running = RunningCalls::new(self, calls, lanes, limits, parallel);
        while let Some(event) = running.next().await {
            let step = match event {
                CallEvent::Started(_) => continue,
                CallEvent::Waits(job, waiting) => {
                    let message = format!("waits for approval as `{}`", waiting.id);
                    let progress = Progress {
                        progress: 0.0,
                        total: None,
                        message: Some(message),
                    };
                    EventStep::Progressed(job.id.clone(), progress)
                }
                CallEvent::Progressed(job, progress) => {
                    EventStep::Progressed(job.id.clone(), progress)
                }
                CallEvent::Repeated(job, attempt, error) => EventStep::Repeated {
                    id: job.id.clone(),
                    attempt,
                    reason: results::error_to_text(&error),
                },
                CallEvent::Finished {
                    job,
                    outcome,
                    attempts,
                    ..
                } => {
                    open.retain(|other| *other != job.id);
                    ended(job.id.clone(), outcome, attempts)
                }
            };
            // Without a receiver no task waits for the calls; their future is about to be dropped.
            let _ = steps.send(step).await;
        }
    }
}

fn ended(id: String, outcome: Result<ToolResult, CallError>, attempts: u32) -> EventStep {
    let (content, state_delta) = match outcome {
        Ok(mut result) => {
            let delta = result.state_delta.take();
            let media = Media::default();
            let message = results::to_openai(&result, MAX_RESULT_BYTES, media, results::cut_off);
            (message.text, delta)
        }
        Err(error) => (results::error_to_openai(&error), None),
    };
    EventStep::Ended {
        executed: Executed { id, content },
        attempts,
        state_delta,
    }
}
