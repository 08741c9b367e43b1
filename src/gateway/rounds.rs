//! The rounds of one answer, told once for both of its forms: ask the model, run what it calls, ask again.
//!
//! What happens next is for [`Turn`] to decide; what the client gets to see of it is the [`AnswerForm`]'s.

use std::{pin::pin, sync::Arc};

use toolway_core::{
    agent::{Effect, Event, Finish, Job, Turn, ask::Ask},
    translate::{
        stream::{Round, StreamError},
        usage,
    },
};
use toolway_protocol::tool::ToolCall;

use super::{
    calls::{CallEvent, RunningCalls},
    chat::Chat,
    failure::{Failed, Failure},
};

/// The form of an answer: streamed or whole.
pub(super) trait AnswerForm {
    /// Asks the model once, and shows the client what it says as it comes, where the form can do that. Calls that are
    /// complete before the answer is may begin: `early`.
    async fn ask(&mut self, ask: &Ask, early: &mut EarlyCalls<'_, '_>) -> Result<Round, Failure>;

    /// Tells a client that asked to know what happens to a call.
    async fn tell(&mut self, event: &CallEvent);

    /// Waits, and sees to it that the client does not give up meanwhile.
    async fn wait<T: Send>(&mut self, awaited: impl Future<Output = T> + Send) -> T;
}

/// Goes through the rounds until the answer is complete or the time is up, and parks what has to wait for the
/// client.
///
/// Dropping the future ends the model call and cancels every running tool.
pub(super) async fn run(
    chat: &Chat<'_>,
    turn: &mut Turn,
    form: &mut impl AnswerForm,
) -> Result<Finish, Failed> {
    let ended = {
        let working = pin!(rounds(chat, turn, form));
        chat.in_time(working).await
    };
    let mut finish = ended.map_err(|failure| Failed {
        failure,
        tools_ran: turn.has_run_calls(),
    })?;
    if let Some(usage) = &finish.usage {
        chat.note_usage(usage::counts(usage));
    }
    if let Some(parked) = finish.parked.take() {
        Box::pin(chat.park(parked)).await;
    }
    Ok(finish)
}

/// The calls that begin while the model still writes their turn.
pub(super) struct EarlyCalls<'a, 't> {
    chat: &'a Chat<'a>,
    /// `None` where the gateway runs no call.
    turn: Option<&'t mut Turn>,
    /// `None` until the first begins.
    running: Option<Box<RunningCalls<'a>>>,
}

impl<'a, 't> EarlyCalls<'a, 't> {
    /// Nothing has begun.
    pub(super) fn new(chat: &'a Chat<'a>, turn: Option<&'t mut Turn>) -> EarlyCalls<'a, 't> {
        EarlyCalls {
            chat,
            turn,
            running: None,
        }
    }

    /// Begins those of the complete calls, given with their places in the turn, that may begin early.
    pub(super) fn begin(&mut self, complete: Vec<(usize, ToolCall)>) {
        let Some(turn) = &mut self.turn else {
            return;
        };
        for (place, call) in complete {
            turn.set_elapsed(self.chat.elapsed());
            if let Some(job) = turn.begin_early(place, &call) {
                let lanes = vec![vec![job]];
                match &mut self.running {
                    Some(running) => self.chat.start_more(running, lanes),
                    None => self.running = Some(Box::new(self.chat.start(lanes))),
                }
            }
        }
    }

    /// Waits while the calls run.
    pub(super) async fn run_while<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        match &mut self.running {
            Some(running) => Box::pin(running.run_while(awaited)).await,
            None => awaited.await,
        }
    }
}

async fn rounds<'a>(
    chat: &'a Chat<'a>,
    turn: &mut Turn,
    form: &mut impl AnswerForm,
) -> Result<Finish, Failure> {
    let mut ask = turn.begin();
    loop {
        let mut early = EarlyCalls::new(chat, Some(turn));
        let round = form.ask(&ask, &mut early).await?;
        let running = early.running;
        turn.set_elapsed(chat.elapsed());
        let mut effect = turn.on(Event::Answered(round));
        chat.note_refused(turn);
        if let Some(Effect::Run(lanes)) = effect {
            effect = Box::pin(calls(chat, turn, form, running, lanes)).await;
        }
        match effect {
            Some(Effect::Ask(next)) => ask = next,
            Some(Effect::Finish(finish)) => return Ok(finish),
            Some(Effect::NoAnswer) => return Err(chat.faulty(StreamError::NoAnswer)),
            Some(Effect::Run(_)) | None => return Err(chat.lost_track()),
        }
    }
}

/// Runs the calls of a turn, beside those that have begun; `None` when they ended and the turn still waits for one.
async fn calls<'a>(
    chat: &'a Chat<'a>,
    turn: &mut Turn,
    form: &mut impl AnswerForm,
    running: Option<Box<RunningCalls<'a>>>,
    lanes: Vec<Vec<Job>>,
) -> Option<Effect> {
    let mut running = match running {
        Some(mut running) => {
            chat.start_more(&mut running, lanes);
            running
        }
        None => Box::new(chat.start(lanes)),
    };
    loop {
        let event = form.wait(running.next()).await?;
        if !turn.awaits(event.job()) {
            continue;
        }
        form.tell(&event).await;
        if let CallEvent::Finished {
            job,
            outcome,
            duration_ms,
            attempts,
        } = event
        {
            for same in turn.same_calls(job.place) {
                let same = Arc::new(same.clone());
                form.tell(&CallEvent::Started(same.clone())).await;
                let finished = CallEvent::Finished {
                    job: same,
                    outcome: outcome.clone(),
                    duration_ms,
                    attempts,
                };
                form.tell(&finished).await;
            }
            chat.change_state(&outcome);
            turn.set_elapsed(chat.elapsed());
            let finished = Event::Finished {
                place: job.place,
                outcome,
                duration_ms,
            };
            if let Some(effect) = turn.on(finished) {
                return Some(effect);
            }
        }
    }
}
