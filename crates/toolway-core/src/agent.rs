//! The tool loop as a state machine: an [`Event`] in, [`Effect`]s out.
//!
//! [`Turn`] knows what was asked, what was answered and what is still running; it decides what happens next
//! and never does it. `gateway` asks the model, runs the calls and writes to the client.
//!
//! Read next: [`mod@admit`] (which calls are sent), [`transcript`] (what the model is sent), [`choice`]
//! (`tool_choice` over the rounds), [`parked`] (mixed turns), [`cut_results`] (results that were cut), [`reads`]
//! (read-only calls that are made once), [`repeats`] (the loop guard).

pub mod admit;
pub mod ask;
pub mod choice;
pub mod cut_results;
pub mod events;
pub mod parked;
pub mod phases;
pub mod reads;
pub mod repeats;
mod steps;
pub mod transcript;

use std::{borrow::Cow, sync::Arc, time::Duration};

use crate::{
    catalog::{Catalog, Selected},
    policy::ClientPolicy,
    route,
    translate::{
        ids::marked,
        results,
        stream::{Owner, Round, RoundCall},
        usage,
    },
};
use toolway_protocol::{
    openai::FinishReason,
    tool::{CallError, JsonObject, ServerId, ToolCall, ToolResult},
};

pub use self::steps::{CallRecord, Effect, Event, Finish, Job, status};
use self::{
    admit::admit,
    ask::Ask,
    choice::Offer,
    cut_results::{CutResults, READ_MORE, more},
    parked::Parked,
    reads::{ReadCall, Reads},
    repeats::Repeats,
    transcript::{ToolAnswer, Transcript},
};

/// What bounds the loop, and what the upstream can take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most model calls with the gateway's tools; one more without them may follow. At least 1.
    pub max_rounds: u32,
    /// Most calls of one turn; the rest are answered with an error.
    pub max_calls: usize,
    /// Most calls of all turns together, if the client says so; after them the model is asked without the gateway's tools.
    pub max_all_calls: Option<usize>,
    /// Longest text of one result, in bytes.
    pub max_result_bytes: usize,
    /// What the upstream takes besides text.
    pub media: results::Media,
    /// Reasoning goes back to the model with its turn.
    pub send_reasoning: bool,
    /// How the calls of one turn may run.
    pub order: route::Order,
    /// From [`choice::forces_own_call`]: the client's choice holds in every question, and the last one offers the
    /// client's own tools.
    pub forces_own_call: bool,
    /// The client sees the gateway's calls and sends them back, so that nothing is parked.
    pub sees_calls: bool,
}

/// A call of the present turn.
#[derive(Debug)]
struct OpenCall {
    call: RoundCall,
    /// `None` while it runs, and for ever if it is the client's own.
    settled: Option<Settled>,
    /// It was begun before its turn was complete.
    is_early: bool,
    /// What it asks, if it changes nothing and runs.
    read: Option<ReadCall>,
    /// It gets the result of the call at this place, which asks the same.
    same_as: Option<(usize, Box<Job>)>,
}

/// How a call ended.
#[derive(Debug)]
struct Settled {
    /// See [`CallRecord::status`].
    status: &'static str,
    duration_ms: u64,
    answer: ToolAnswer,
}

/// The status of a call that was not sent because it failed in the same way before.
const REPEATED: &str = "repeated";

/// One request of a client, from its first question to the model until its answer is complete.
#[derive(Debug)]
pub struct Turn {
    bounds: Bounds,
    catalog: Arc<Catalog>,
    selected: Arc<Selected>,
    policy: ClientPolicy,
    rounds: u32,
    /// The next question goes out without the gateway's tools.
    last: bool,
    transcript: Transcript,
    open: Vec<OpenCall>,
    /// The model's answer that the open calls belong to.
    answered: Option<Box<Round>>,
    /// A call may have reached its server.
    has_run_calls: bool,
    /// Calls of the turn that is being read, which were begun before it was complete.
    early: Vec<Job>,
    /// The servers of the complete calls of that turn which may change something.
    changing: Vec<ServerId>,
    repeats: Repeats,
    reads: Reads,
    /// A call of the present turn may change something.
    has_changes: bool,
    /// The time since the request began.
    elapsed: Duration,
    cut_results: CutResults,
    usage: Option<JsonObject>,
    records: Vec<CallRecord>,
    refused: Vec<RefusedCall>,
}

/// A call that was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCall {
    /// The tool, as the model named it.
    pub name: String,
    /// The arguments, as the model wrote them.
    pub arguments: String,
    /// See [`CallRecord::status`].
    pub status: &'static str,
    /// Why, for the log.
    pub error: Cow<'static, str>,
}

impl RefusedCall {
    /// A call that was not sent because of this error.
    pub fn new(name: &str, arguments: &str, error: &CallError) -> RefusedCall {
        RefusedCall {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
            status: error.kind(),
            error: error.for_log(),
        }
    }
}

impl Turn {
    /// A turn over the tools that were selected. `cut_results` are cut results of parked turns that were put back.
    pub fn new(
        bounds: Bounds,
        catalog: Arc<Catalog>,
        selected: Arc<Selected>,
        policy: ClientPolicy,
        cut_results: CutResults,
    ) -> Turn {
        Turn {
            bounds,
            catalog,
            selected,
            policy,
            rounds: 0,
            last: false,
            transcript: Transcript::default(),
            open: Vec::new(),
            answered: None,
            has_run_calls: false,
            early: Vec::new(),
            changing: Vec::new(),
            repeats: Repeats::default(),
            reads: Reads::default(),
            has_changes: false,
            elapsed: Duration::ZERO,
            cut_results,
            usage: None,
            records: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// The calls that were not sent, since this was asked last.
    pub fn take_refused(&mut self) -> Vec<RefusedCall> {
        std::mem::take(&mut self.refused)
    }

    /// The first question.
    pub fn begin(&mut self) -> Ask {
        self.ask()
    }

    /// How often the model was asked.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// A call may have reached its server, so that repeating the whole request could call it again.
    pub fn has_run_calls(&self) -> bool {
        self.has_run_calls || !self.open.iter().all(is_settled)
    }

    /// The calls of all complete turns, in the model's order.
    pub fn records(&self) -> &[CallRecord] {
        &self.records
    }

    /// Tells the turn how much time has passed since the request began.
    pub fn set_elapsed(&mut self, elapsed: Duration) {
        self.elapsed = elapsed;
    }

    /// A call of the gateway's is complete while the model still writes its turn: the job, if the call begins now.
    /// To be told of every such call, in the order of the turn.
    ///
    /// Only calls that change nothing, and that no person is asked about, begin early, so that no harm is done if the turn ends with an error or is cut
    /// off, or if the call turns out to be another one. They do not overtake a call on the same server that may
    /// change something.
    pub fn begin_early(&mut self, place: usize, call: &ToolCall) -> Option<Job> {
        let may_overtake = !self.last
            && self.bounds.order == route::Order::Parallel
            && self.refusal(place + 1).is_none();
        if !may_overtake {
            return None;
        }
        let Ok(Decision::Run(mut job)) = self.decide(place, call) else {
            return None;
        };
        let Some(read) = ReadCall::of(&job).filter(|_| job.offered.asked().is_none()) else {
            self.changing.push(job.offered.server.clone());
            return None;
        };
        let is_asked = |early: &Job| ReadCall::of(early).is_some_and(|early| early == read);
        let waits = job.offered.stateful
            || self.changing.contains(&job.offered.server)
            || self.early.iter().any(is_asked)
            || self.reads.find(&read, self.elapsed).is_some();
        if waits {
            return None;
        }
        job.is_early = true;
        self.early.push(job.clone());
        Some(job)
    }

    /// The turn waits for the result of this job. It does not for a job that was begun early for a call that has become
    /// another one.
    pub fn awaits(&self, job: &Job) -> bool {
        let open = self.open.get(job.place);
        open.is_some_and(|open| !is_settled(open) && open.is_early == job.is_early)
    }

    /// The calls that get the result of the call at this place.
    pub fn same_calls(&self, place: usize) -> impl Iterator<Item = &Job> {
        let same = self.open.iter().filter_map(|open| open.same_as.as_ref());
        same.filter(move |(first, _)| *first == place)
            .map(|(_, job)| &**job)
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
                let is_awaited = self.open.get(place).is_some_and(|open| !is_settled(open));
                if is_awaited {
                    self.finished(place, outcome, duration_ms);
                }
                (is_awaited && self.open.iter().all(is_settled)).then(|| self.close())
            }
        }
    }

    fn ask(&mut self) -> Ask {
        self.rounds += 1;
        Ask {
            first: self.rounds == 1,
            appended: self.transcript.messages(),
            offer: match (self.last, self.bounds.forces_own_call) {
                (false, _) => Offer::All,
                (true, true) => Offer::Own,
                (true, false) => Offer::None,
            },
            forces_choice: self.rounds == 1 || self.bounds.forces_own_call,
            read_more: !self.cut_results.is_empty(),
        }
    }

    fn answered(&mut self, mut round: Round) -> Effect {
        self.changing.clear();
        if let Some(used) = round.usage.take() {
            usage::add(self.usage.get_or_insert_default(), &used);
        }
        // In the last round the gateway's tools are not offered. A call of one is not run, but a call for the
        // client may have been shown already, or was asked for.
        let is_for_client = round.calls.iter().any(|call| call.owner == Owner::Client);
        let is_in_vain = self.last && !is_for_client && !round.calls.is_empty();
        if is_in_vain && !round.says_something() {
            return Effect::NoAnswer;
        }
        if is_in_vain || round.calls.is_empty() {
            return self.finish(round.finish);
        }
        let calls = std::mem::take(&mut round.calls);
        self.open = calls
            .into_iter()
            .map(|call| OpenCall {
                call,
                settled: None,
                is_early: false,
                read: None,
                same_as: None,
            })
            .collect();
        self.answered = Some(Box::new(round));
        let jobs = self.prepare();
        if self.open.iter().all(is_settled) {
            return self.close();
        }
        Effect::Run(route::lanes(jobs, self.bounds.order, |job| {
            (&job.offered.server, job.offered.runs_in_order())
        }))
    }

    /// Decides on every gateway call of the turn: those that may run become jobs, if they were not begun early and no
    /// other asks the same; the others are answered.
    fn prepare(&mut self) -> Vec<Job> {
        let mut jobs = Vec::new();
        let mut count = 0;
        // Reads that nothing written after them may change.
        let mut unchanged: Vec<(usize, ReadCall)> = Vec::new();
        let early = std::mem::take(&mut self.early);
        self.has_changes = false;
        for place in 0..self.open.len() {
            if self.open[place].call.owner == Owner::Client {
                continue;
            }
            count += 1;
            if let Some(reason) = self.refusal(count) {
                let denied = CallError::Denied { reason };
                self.note_refused(place, denied.kind(), denied.for_log());
                self.refuse(place, &denied, 0);
                continue;
            }
            match self.decide(place, &self.open[place].call.call) {
                Ok(Decision::Run(job)) => {
                    let Some(read) = ReadCall::of(&job) else {
                        self.has_changes = true;
                        self.reads.clear();
                        unchanged.clear();
                        jobs.push(job);
                        continue;
                    };
                    // Where the client sees the calls, it is shown what each of them returns.
                    let kept = self.reads.find(&read, self.elapsed);
                    if let Some(answer) = kept.filter(|_| !self.bounds.sees_calls) {
                        self.settle(place, "ok", answer.clone(), 0);
                        continue;
                    }
                    let same = unchanged.iter().find(|(_, other)| *other == read);
                    if let Some((first, _)) = same {
                        self.open[place].same_as = Some((*first, Box::new(job)));
                        continue;
                    }
                    unchanged.push((place, read.clone()));
                    let open = &mut self.open[place];
                    open.is_early = early.iter().any(|early| {
                        (early.place, &early.id) == (place, &job.id)
                            && ReadCall::of(early).as_ref() == Some(&read)
                    });
                    open.read = Some(read);
                    if !open.is_early {
                        jobs.push(job);
                    }
                }
                Ok(Decision::Answer(text)) => self.settle(place, "ok", ToolAnswer::text(text), 0),
                Ok(Decision::Stop(text)) => {
                    self.note_refused(place, REPEATED, "it has failed in the same way".into());
                    self.settle(place, REPEATED, ToolAnswer::text(text), 0);
                }
                Err(error) => {
                    self.note_refused(place, error.kind(), error.for_log());
                    self.fail(place, &error, 0);
                }
            }
        }
        jobs
    }

    fn note_refused(&mut self, place: usize, status: &'static str, error: Cow<'static, str>) {
        let call = &self.open[place].call.call;
        if call.name != READ_MORE {
            self.refused.push(RefusedCall {
                name: call.name.clone(),
                arguments: call.arguments.clone(),
                status,
                error,
            });
        }
    }

    /// Why the `count`th gateway call of the turn is not even looked at, if so.
    fn refusal(&self, count: usize) -> Option<String> {
        let most = self.bounds.max_calls;
        if self.last {
            return Some("no more tools are called for this request".to_owned());
        }
        if let Some(all) = self.bounds.max_all_calls
            && self.records.len() + count > all
        {
            return Some(format!(
                "the request allows {all} calls; this one was not run"
            ));
        }
        (count > most).then(|| format!("a turn may hold {most} calls; this one was not run"))
    }

    fn decide(&self, place: usize, call: &ToolCall) -> Result<Decision, CallError> {
        if let Some(earlier) = self.repeats.stops(&call.name, &call.arguments) {
            return Ok(Decision::Stop(earlier));
        }
        if call.name == READ_MORE {
            let limit = self.bounds.max_result_bytes;
            return self
                .cut_results
                .read_more(&call.arguments, limit)
                .map(Decision::Answer);
        }
        let (offered, arguments) = admit(
            &call.name,
            &call.arguments,
            &self.selected,
            &self.catalog,
            &self.policy,
        )?;
        Ok(Decision::Run(Job {
            place,
            id: call.id.clone(),
            offered,
            arguments,
            retries: route::Retries::default(),
            is_early: false,
        }))
    }

    fn finished(&mut self, place: usize, outcome: Result<ToolResult, CallError>, duration_ms: u64) {
        self.has_run_calls |= !outcome.as_ref().is_err_and(CallError::is_unsent);
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
        let id = self.cut_results.free_id(&self.open[place].call.call.id);
        let message =
            results::to_openai(&result, max_result_bytes, media, |shown, total| match self
                .cut_results
                .has_room_for(total)
            {
                true => more(&id, shown, total),
                false => results::cut_off(shown, total),
            });
        let is_error = result.is_error;
        if is_error {
            self.note_failure(place, &message.text);
        }
        if let Some(cut) = message.cut {
            self.cut_results.keep(id, cut.full);
        }
        let answer = ToolAnswer {
            text: message.text,
            parts: message.parts,
        };
        let read = self.open[place].read.take();
        if let Some(read) = read.filter(|_| !is_error && !self.has_changes) {
            self.reads.keep(read, &answer, self.elapsed);
        }
        self.settle(place, status, answer, duration_ms);
    }

    fn fail(&mut self, place: usize, error: &CallError, duration_ms: u64) {
        self.note_failure(place, &results::error_to_openai(error));
        self.refuse(place, error, duration_ms);
    }

    fn refuse(&mut self, place: usize, error: &CallError, duration_ms: u64) {
        let text = results::error_to_openai(error);
        self.settle(place, error.kind(), ToolAnswer::text(text), duration_ms);
    }

    fn note_failure(&mut self, place: usize, text: &str) {
        let call = &self.open[place].call.call;
        self.repeats.failed(&call.name, &call.arguments, text);
    }

    /// Answers a call, and those that ask the same.
    fn settle(&mut self, place: usize, status: &'static str, answer: ToolAnswer, duration_ms: u64) {
        let is_same = |open: &&mut OpenCall| {
            let first = open.same_as.as_ref().map(|(first, _)| *first);
            first == Some(place)
        };
        for open in self.open.iter_mut().filter(is_same) {
            open.settled = Some(Settled {
                status,
                duration_ms,
                answer: answer.clone(),
            });
        }
        self.open[place].settled = Some(Settled {
            status,
            duration_ms,
            answer,
        });
    }

    /// Every gateway call of the turn is answered: ask again, or hand over to the client.
    fn close(&mut self) -> Effect {
        let Some(round) = self.answered.take() else {
            return self.finish(FinishReason::Stop);
        };
        let open = std::mem::take(&mut self.open);
        let status = |open: &OpenCall| open.settled.as_ref().map(|settled| settled.status);
        let is_stuck = open.iter().all(|open| status(open) == Some(REPEATED));
        self.records.extend(open.iter().filter_map(record));
        let (calls, answers): (Vec<RoundCall>, Vec<_>) = open
            .into_iter()
            .map(|open| (open.call, open.settled.map(|settled| settled.answer)))
            .unzip();
        self.transcript
            .push(&round, &calls, answers, self.bounds.send_reasoning);
        let mut client_calls = calls;
        client_calls.retain(|call| call.owner == Owner::Client);
        if !client_calls.is_empty() {
            return self.hand_over(client_calls);
        }
        let all = self.bounds.max_all_calls;
        let is_spent = all.is_some_and(|all| self.records.len() >= all);
        self.last = is_stuck || is_spent || self.rounds >= self.bounds.max_rounds;
        Effect::Ask(self.ask())
    }

    fn hand_over(&mut self, mut client_calls: Vec<RoundCall>) -> Effect {
        let transcript = std::mem::take(&mut self.transcript);
        let holds_more = !self.bounds.sees_calls && transcript.holds_more_than_the_client_sees();
        let parked = holds_more.then(|| Parked {
            transcript,
            cut_results: std::mem::take(&mut self.cut_results),
            client_calls: client_calls.iter().map(|call| call.call.clone()).collect(),
        });
        if parked.is_some() {
            for call in &mut client_calls {
                call.call.id = marked(&call.call.id);
            }
        }
        Effect::Finish(Finish {
            reason: FinishReason::ToolCalls,
            usage: self.usage.take(),
            client_calls,
            parked,
        })
    }

    fn finish(&mut self, reason: FinishReason) -> Effect {
        // The model was offered no tools; a call that it makes anyway does not run.
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

enum Decision {
    Run(Job),
    Answer(String),
    Stop(String),
}

fn is_settled(open: &OpenCall) -> bool {
    open.settled.is_some() || open.call.owner == Owner::Client
}

fn record(open: &OpenCall) -> Option<CallRecord> {
    let settled = open.settled.as_ref()?;
    let call = &open.call.call;
    Some(CallRecord {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
        status: settled.status,
        duration_ms: settled.duration_ms,
    })
}

#[cfg(test)]
mod tests;
