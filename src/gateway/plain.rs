//! Plain answers: one body to the client, however many questions to the model it takes.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tokio::{sync::mpsc, time::timeout_at};

use crate::{
    agent::{Effect, Event, Finish, Job, Turn, ask::Ask},
    tool::JsonObject,
    translate::{
        completion::{self, Completion, Summary},
        ids::Ids,
        stream::{Mode, StreamError},
    },
    upstream::model::retry,
};

use super::{
    calls::{self, CallEvent, Patience},
    chat::Chat,
    failure::{Failed, Failure},
    watch::{self, Watch},
};

/// Longest body of an upstream, in bytes.
pub(super) const MAX_BODY_BYTES: usize = 64 << 20;

/// Answers a chat that the gateway's tools apply to.
pub(super) async fn run(chat: Chat<'_>) -> Result<(HeaderMap, Bytes), Failed> {
    let turn = Turn::new(
        chat.bounds(),
        chat.catalog.clone(),
        chat.selected.clone(),
        chat.kept(),
    );
    let mut run = Run {
        chat: &chat,
        turn,
        headers: HeaderMap::new(),
        envelope: None,
        said: Summary::default(),
        ids: chat.ids(),
    };
    let after = chat.gateway.config.request_timeout;
    let ended = match timeout_at(chat.deadline, run.rounds()).await {
        Ok(ended) => ended,
        Err(_) => Err(Failure::TimeIsUp { after }),
    };
    let tools_ran = run.turn.has_run_calls();
    ended.map_err(|failure| Failed { failure, tools_ran })
}

/// Answers a chat that no gateway tool applies to: the upstream's own bytes, mended where they are broken.
pub(super) async fn pass_through(chat: Chat<'_>) -> Result<(HeaderMap, Bytes), Failed> {
    let mut turn = Turn::new(
        chat.bounds(),
        chat.catalog.clone(),
        chat.selected.clone(),
        chat.kept(),
    );
    let (headers, body) = ask_once(&chat, &turn.begin()).await?;
    let settings = chat.settings(Mode::PassThrough);
    let mended = completion::mend(&body, &settings, &chat, &mut chat.ids())
        .map_err(|error| chat.faulty(error))?;
    let mended = match mended {
        Cow::Borrowed(_) => None,
        Cow::Owned(mended) => Some(Bytes::from(mended)),
    };
    Ok((headers, mended.unwrap_or(body)))
}

struct Run<'a> {
    chat: &'a Chat<'a>,
    turn: Turn,
    headers: HeaderMap,
    /// The first answer without its choices: its id, model and so on stand for the whole.
    envelope: Option<JsonObject>,
    said: Summary,
    ids: Ids,
}

impl Run<'_> {
    async fn rounds(&mut self) -> Result<(HeaderMap, Bytes), Failure> {
        let mut ask = self.turn.begin();
        loop {
            let (headers, body) = ask_once(self.chat, &ask).await?;
            let settings = self.chat.settings(Mode::Loop);
            let completion = completion::read(&body, &settings, self.chat, &mut self.ids);
            let Completion {
                round,
                envelope,
                choice,
            } = completion.map_err(|error| self.chat.faulty(error))?;
            self.said.add(&round);
            self.said.add_choice(&choice);
            if self.envelope.is_none() {
                self.envelope = Some(envelope);
                self.headers = headers;
            }
            let mut effect = self.turn.on(Event::Answered(round));
            if let Some(Effect::Run(lanes)) = effect {
                effect = self.calls(lanes).await;
            }
            match effect {
                Some(Effect::Ask(next)) => ask = next,
                Some(Effect::Finish(finish)) => return Ok(self.finish(finish)),
                Some(Effect::Run(_)) | None => return Err(self.chat.lost_track()),
            }
        }
    }

    async fn calls(&mut self, lanes: Vec<Vec<Job>>) -> Option<Effect> {
        let config = &self.chat.gateway.config;
        let patience = Patience {
            silence: config.tool_timeout,
            deadline: self.chat.deadline,
            parallel: config.parallel_calls,
        };
        let (tx, mut events) = mpsc::channel(64);
        let mut running =
            std::pin::pin!(calls::run(&self.chat.gateway.servers, lanes, patience, tx));
        let mut is_running = true;
        loop {
            tokio::select! {
                biased;
                event = events.recv() => {
                    let CallEvent::Finished { job, outcome, duration } = event? else { continue };
                    let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
                    let effect = self.turn.on(Event::Finished { place: job.place, outcome, duration_ms });
                    if effect.is_some() {
                        return effect;
                    }
                }
                () = &mut running, if is_running => is_running = false,
            }
        }
    }

    fn finish(&mut self, finish: Finish) -> (HeaderMap, Bytes) {
        if let Some(parked) = finish.parked {
            self.chat.park(parked);
        }
        let envelope = self.envelope.take().unwrap_or_default();
        let said = std::mem::take(&mut self.said);
        let mut body = completion::write(
            envelope,
            &said,
            &finish.client_calls,
            finish.reason,
            finish.usage,
        );
        if self.chat.watch != Watch::Off {
            body.insert("toolway".into(), watch::list(self.turn.records()));
        }
        (
            std::mem::take(&mut self.headers),
            Bytes::from(Value::Object(body).to_string()),
        )
    }
}

/// One question, one whole answer; that of an upstream that streams all the same is read like any other.
async fn ask_once(chat: &Chat<'_>, ask: &Ask) -> Result<(HeaderMap, Bytes), Failure> {
    let which = if ask.first {
        retry::Round::First
    } else {
        retry::Round::Later
    };
    let asking = chat
        .upstream
        .chat(&chat.input.headers, chat.body(ask), which);
    let incoming = asking.await?;
    let headers = incoming.headers.clone();
    let body = incoming.read_all(MAX_BODY_BYTES).await?;
    if body.trim_ascii().is_empty() {
        return Err(chat.faulty(StreamError::Ended));
    }
    Ok((headers, body))
}
