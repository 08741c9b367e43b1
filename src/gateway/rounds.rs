//! The rounds of one answer, told once for both of its forms: ask the model, run what it calls, ask again.
//!
//! What happens next is for [`Turn`] to decide; what the client gets to see of it is the [`AnswerForm`]'s.

use std::pin::pin;

use toolway_core::{
    agent::{Effect, Event, Finish, Job, Turn, ask::Ask},
    translate::{
        stream::{Round, StreamError},
        usage,
    },
};

use super::{
    calls::CallEvent,
    chat::Chat,
    failure::{Failed, Failure},
};

/// The form of an answer: streamed or whole.
pub(super) trait AnswerForm {
    /// Asks the model once, and shows the client what it says as it comes, where the form can do that.
    async fn ask(&mut self, ask: &Ask) -> Result<Round, Failure>;

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

async fn rounds(
    chat: &Chat<'_>,
    turn: &mut Turn,
    form: &mut impl AnswerForm,
) -> Result<Finish, Failure> {
    let mut ask = turn.begin();
    loop {
        let round = form.ask(&ask).await?;
        let mut effect = turn.on(Event::Answered(round));
        if let Some(Effect::Run(lanes)) = effect {
            effect = Box::pin(calls(chat, turn, form, lanes)).await;
        }
        match effect {
            Some(Effect::Ask(next)) => ask = next,
            Some(Effect::Finish(finish)) => return Ok(finish),
            Some(Effect::NoAnswer) => return Err(chat.faulty(StreamError::NoAnswer)),
            Some(Effect::Run(_)) | None => return Err(chat.lost_track()),
        }
    }
}

/// Runs the calls of a turn; `None` when they ended and the turn still waits for one.
async fn calls(
    chat: &Chat<'_>,
    turn: &mut Turn,
    form: &mut impl AnswerForm,
    lanes: Vec<Vec<Job>>,
) -> Option<Effect> {
    let mut running = chat.start(lanes);
    loop {
        let event = form.wait(running.next()).await?;
        form.tell(&event).await;
        if let CallEvent::Finished {
            job,
            outcome,
            duration_ms,
            ..
        } = event
        {
            chat.change_state(&outcome);
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
