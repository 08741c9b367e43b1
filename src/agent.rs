//! The tool loop as a state machine: an [`Event`] in, [`Effect`]s out.
//!
//! [`Turn`] knows what was asked, what was answered and what is still running; it decides what happens next
//! and never does it. `gateway` asks the model, runs the calls and writes to the client.
//!
//! Read next: [`transcript`] (what the model is sent), [`parked`] (mixed turns), [`repeats`] (the loop guard).

pub mod ask;
pub mod parked;
pub mod repeats;
pub mod transcript;

use std::{collections::HashMap, sync::Arc};

use serde_json::json;

use crate::{
    catalog::{Catalog, Offered, Selected},
    openai::FinishReason,
    policy::{self, Verdict},
    route,
    tool::{CallError, JsonObject, ToolResult},
    translate::{
        calls, results,
        stream::{Call, Owner, Round},
        usage,
    },
};

use self::{
    ask::Ask,
    parked::Parked,
    repeats::Repeats,
    transcript::{Answer, Transcript},
};

/// The name under which the model can read on in a result that was cut.
pub const READ_MORE: &str = "toolway__read_more";

/// Most bytes of cut results that one request keeps for reading on.
const MAX_KEPT: usize = 32 << 20;

/// What bounds the loop, and what the upstream can take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most model calls with tools; one more without tools may follow. At least 1.
    pub max_rounds: u32,
    /// Most calls of one turn; the rest are answered with an error.
    pub max_calls: usize,
    /// Longest text of one result, in bytes.
    pub max_result_bytes: usize,
    /// What the upstream takes besides text.
    pub media: results::Media,
    /// Reasoning goes back to the model with its turn.
    pub send_reasoning: bool,
    /// How the calls of one turn may run.
    pub order: route::Order,
}

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// The model's answer is complete.
    Answered(Round),
    /// A call came to an end.
    Finished {
        /// The call's place in its turn, from [`Job::place`].
        place: usize,
        /// What came of it.
        outcome: Result<ToolResult, CallError>,
        /// How long it took, for the record of calls.
        duration_ms: u64,
    },
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Send this to the model.
    Ask(Ask),
    /// Run these calls: lanes side by side, the jobs of a lane one after another.
    Run(Vec<Vec<Job>>),
    /// The answer is complete.
    Finish(Finish),
}

/// One call that may run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its place in the turn.
    pub place: usize,
    /// The id the model gave it.
    pub id: String,
    /// The tool.
    pub offered: Arc<Offered>,
    /// Its arguments, checked.
    pub arguments: JsonObject,
}

/// How an answer ends.
#[derive(Debug)]
pub struct Finish {
    /// The one finish reason that the client sees.
    pub reason: FinishReason,
    /// Usage summed over all rounds, where the upstream gave any.
    pub usage: Option<JsonObject>,
    /// The calls that are the client's own to run.
    pub client_calls: Vec<Call>,
    /// What must be put back when the client comes with its answers.
    pub parked: Option<Parked>,
}

/// One call that the gateway ran or refused to run, for clients that want to know.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// The id the model gave it.
    pub id: String,
    /// The offered name, or what the model wrote.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
    /// `ok`, or the `type` of the error.
    pub status: &'static str,
    /// How long it took; 0 when nothing was sent.
    pub duration_ms: u64,
}

/// A call of the present turn.
#[derive(Debug)]
struct Open {
    call: Call,
    /// It was not sent because it failed in the same way before.
    is_stopped: bool,
    answer: Option<Answer>,
    record: Option<CallRecord>,
}

/// One request of a client, from its first question to the model until its answer is complete.
#[derive(Debug)]
pub struct Turn {
    bounds: Bounds,
    catalog: Arc<Catalog>,
    selected: Arc<Selected>,
    rounds: u32,
    /// The next question goes out without tools.
    last: bool,
    transcript: Transcript,
    open: Vec<Open>,
    /// The model's answer that the open calls belong to.
    answered: Option<Round>,
    repeats: Repeats,
    /// A call was given out to be run.
    has_run_calls: bool,
    /// Full texts of cut results, by the id of their call.
    kept: HashMap<String, Arc<str>>,
    kept_bytes: usize,
    usage: Option<JsonObject>,
    records: Vec<CallRecord>,
}

impl Turn {
    /// A turn over the tools that were selected. `kept` are cut results of parked turns that were put back.
    pub fn new(
        bounds: Bounds,
        catalog: Arc<Catalog>,
        selected: Arc<Selected>,
        kept: HashMap<String, Arc<str>>,
    ) -> Turn {
        Turn {
            bounds,
            catalog,
            selected,
            rounds: 0,
            last: false,
            transcript: Transcript::default(),
            open: Vec::new(),
            answered: None,
            repeats: Repeats::default(),
            has_run_calls: false,
            kept_bytes: kept.values().map(|text| text.len()).sum(),
            kept,
            usage: None,
            records: Vec::new(),
        }
    }

    /// The first question.
    pub fn begin(&mut self) -> Ask {
        self.ask()
    }

    /// How often the model was asked.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// A tool has been called, so that repeating the whole request would call it again.
    pub fn has_run_calls(&self) -> bool {
        self.has_run_calls
    }

    /// The calls of the turns that are over, in order.
    pub fn records(&self) -> &[CallRecord] {
        &self.records
    }

    /// Takes in what has happened and says what to do; nothing when calls are still running.
    pub fn on(&mut self, event: Event) -> Option<Effect> {
        match event {
            Event::Answered(round) => Some(self.answered(round)),
            Event::Finished {
                place,
                outcome,
                duration_ms,
            } => {
                self.finished(place, outcome, duration_ms);
                self.open.iter().all(is_settled).then(|| self.close())
            }
        }
    }

    fn ask(&mut self) -> Ask {
        self.rounds += 1;
        Ask {
            first: self.rounds == 1,
            appended: self.transcript.messages(),
            with_tools: !self.last,
            read_more: !self.kept.is_empty(),
        }
    }

    fn answered(&mut self, mut round: Round) -> Effect {
        if let Some(used) = round.usage.take() {
            usage::add(self.usage.get_or_insert_default(), &used);
        }
        let runs_calls = matches!(round.finish, FinishReason::ToolCalls | FinishReason::Stop);
        if round.calls.is_empty() || !runs_calls || self.last {
            return self.finish(round.finish);
        }
        let calls = std::mem::take(&mut round.calls);
        self.open = calls
            .into_iter()
            .map(|call| Open {
                call,
                record: None,
                is_stopped: false,
                answer: None,
            })
            .collect();
        self.answered = Some(round);
        let jobs = self.prepare();
        if self.open.iter().all(is_settled) {
            return self.close();
        }
        let placed: Vec<_> = jobs
            .iter()
            .map(|job| (&job.offered.server, job.offered.stateful))
            .collect();
        let lanes = route::lanes(&placed, self.bounds.order);
        let mut jobs: Vec<Option<Job>> = jobs.into_iter().map(Some).collect();
        let lane = |places: Vec<usize>| {
            places
                .into_iter()
                .filter_map(|at| jobs[at].take())
                .collect()
        };
        Effect::Run(lanes.into_iter().map(lane).collect())
    }

    /// Decides on every gateway call of the turn; those that may run become jobs, the others are answered.
    fn prepare(&mut self) -> Vec<Job> {
        let mut jobs = Vec::new();
        let mut count = 0;
        for place in 0..self.open.len() {
            if self.open[place].call.owner == Owner::Client {
                continue;
            }
            count += 1;
            let decided = if count > self.bounds.max_calls {
                let most = self.bounds.max_calls;
                Err(CallError::Denied {
                    reason: format!("a turn may hold {most} calls; this one was not run"),
                })
            } else {
                self.decide(place)
            };
            match decided {
                Ok(Decision::Run(job)) => {
                    self.has_run_calls = true;
                    jobs.push(job);
                }
                Ok(Decision::Answer(text)) => self.settle(place, "ok", Answer::text(text), 0),
                Ok(Decision::Stop(text)) => {
                    self.open[place].is_stopped = true;
                    self.settle(place, "repeated", Answer::text(text), 0);
                }
                Err(error) => self.fail(place, &error, 0),
            }
        }
        jobs
    }

    fn decide(&mut self, place: usize) -> Result<Decision, CallError> {
        let call = &self.open[place].call.call;
        if let Some(earlier) = self.repeats.stops(&call.name, &call.arguments) {
            return Ok(Decision::Stop(earlier));
        }
        if call.name == READ_MORE {
            return self.read_more(&call.arguments).map(Decision::Answer);
        }
        let offered = match policy::evaluate(&call.name, &self.selected, &self.catalog) {
            Verdict::Allow(offered) => offered.clone(),
            Verdict::Deny(reason) => return Err(CallError::Denied { reason }),
            Verdict::Unknown => {
                let did_you_mean = self.selected.suggest(&call.name);
                return Err(CallError::UnknownTool {
                    name: call.name.clone(),
                    did_you_mean,
                });
            }
        };
        let arguments = calls::parse_arguments(&call.arguments)?;
        if let Some(validator) = &offered.validator {
            validator.check(&arguments)?;
        }
        Ok(Decision::Run(Job {
            place,
            id: call.id.clone(),
            offered,
            arguments,
        }))
    }

    fn read_more(&self, arguments: &str) -> Result<String, CallError> {
        let arguments = calls::parse_arguments(arguments)?;
        let wrong = |path: &str, message: &str| CallError::InvalidParams {
            path: path.into(),
            message: message.into(),
            input_schema: ask::read_more_schema(),
        };
        let id = arguments
            .get("id")
            .and_then(|id| id.as_str())
            .ok_or_else(|| wrong("/id", "a text is needed"))?;
        let offset = match arguments.get("offset") {
            None => 0,
            Some(offset) => offset
                .as_u64()
                .ok_or_else(|| wrong("/offset", "a whole number is needed"))?,
        };
        let full = self
            .kept
            .get(id)
            .ok_or_else(|| wrong("/id", "no cut result has this id"))?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let page = results::page(full, offset, self.bounds.max_result_bytes);
        Ok(match page.next {
            Some(next) => format!("{}\n{}", page.text, more(id, next, full.len())),
            None => page.text.to_owned(),
        })
    }

    fn finished(&mut self, place: usize, outcome: Result<ToolResult, CallError>, duration_ms: u64) {
        if self.open.get(place).is_none_or(is_settled) {
            return;
        }
        let status = status(&outcome);
        let result = match outcome {
            Err(error) => return self.fail(place, &error, duration_ms),
            Ok(result) => result,
        };
        let Bounds {
            max_result_bytes,
            media,
            ..
        } = self.bounds;
        let id = self.open[place].call.call.id.clone();
        let message = results::to_openai(&result, max_result_bytes, media, |next, total| {
            more(&id, next, total)
        });
        if result.is_error {
            self.note_failure(place, &message.text);
        }
        if let Some(cut) = message.cut {
            self.keep(id, cut.full);
        }
        self.settle(
            place,
            status,
            Answer {
                text: message.text,
                parts: message.parts,
            },
            duration_ms,
        );
    }

    fn keep(&mut self, id: String, full: String) {
        if self.kept_bytes + full.len() > MAX_KEPT {
            return;
        }
        self.kept_bytes += full.len();
        self.kept.insert(id, full.into());
    }

    fn fail(&mut self, place: usize, error: &CallError, duration_ms: u64) {
        let text = results::error_to_openai(error);
        self.note_failure(place, &text);
        self.settle(place, error.kind(), Answer::text(text), duration_ms);
    }

    fn note_failure(&mut self, place: usize, text: &str) {
        let call = &self.open[place].call.call;
        self.repeats.failed(&call.name, &call.arguments, text);
    }

    fn settle(&mut self, place: usize, status: &'static str, answer: Answer, duration_ms: u64) {
        let open = &mut self.open[place];
        open.answer = Some(answer);
        let call = &open.call.call;
        open.record = Some(CallRecord {
            id: call.id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
            status,
            duration_ms,
        });
    }

    /// Every gateway call of the turn is answered: ask again, or hand over to the client.
    fn close(&mut self) -> Effect {
        let Some(round) = self.answered.take() else {
            return self.finish(FinishReason::Stop);
        };
        let mut open = std::mem::take(&mut self.open);
        let records = open.iter_mut().filter_map(|open| open.record.take());
        self.records.extend(records);
        let is_stuck = open.iter().all(|open| open.is_stopped);
        let (calls, answers): (Vec<Call>, Vec<_>) = open
            .into_iter()
            .map(|open| (open.call, open.answer))
            .unzip();
        let client_calls: Vec<Call> = calls
            .iter()
            .filter(|call| call.owner == Owner::Client)
            .cloned()
            .collect();
        self.transcript
            .push(&round, &calls, answers, self.bounds.send_reasoning);
        if !client_calls.is_empty() {
            return self.hand_over(client_calls);
        }
        self.last = is_stuck || self.rounds >= self.bounds.max_rounds;
        Effect::Ask(self.ask())
    }

    fn hand_over(&mut self, client_calls: Vec<Call>) -> Effect {
        let transcript = std::mem::take(&mut self.transcript);
        let parked = transcript
            .holds_more_than_the_client_sees()
            .then(|| Parked {
                transcript,
                kept: std::mem::take(&mut self.kept),
                client_calls: client_calls.iter().map(|call| call.call.clone()).collect(),
            });
        Effect::Finish(Finish {
            reason: FinishReason::ToolCalls,
            usage: self.usage.take(),
            client_calls,
            parked,
        })
    }

    fn finish(&mut self, reason: FinishReason) -> Effect {
        // The model was told that there are no tools; a call it makes all the same is nobody's to run.
        let reason = if reason == FinishReason::ToolCalls {
            FinishReason::Stop
        } else {
            reason
        };
        Effect::Finish(Finish {
            reason,
            usage: self.usage.take(),
            client_calls: Vec::new(),
            parked: None,
        })
    }
}

/// What came of a call, in a word: `ok`, or the `type` of the error.
pub fn status(outcome: &Result<ToolResult, CallError>) -> &'static str {
    match outcome {
        Ok(result) if result.is_error => "tool_error",
        Ok(_) => "ok",
        Err(error) => error.kind(),
    }
}

enum Decision {
    Run(Job),
    Answer(String),
    Stop(String),
}

fn is_settled(open: &Open) -> bool {
    open.answer.is_some() || open.call.owner == Owner::Client
}

/// The tail of a cut result: what is shown of it, and how to read on.
fn more(id: &str, next: usize, total: usize) -> String {
    let arguments = json!({"id": id, "offset": next});
    format!(
        "[cut: {next} of {total} bytes are shown; call {READ_MORE} with {arguments} to read on]"
    )
}
