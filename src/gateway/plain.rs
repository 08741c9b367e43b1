//! Plain answers: one body to the client, however many questions to the model it takes.

use std::{borrow::Cow, pin::pin};

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

use toolway_core::{
    agent::{Finish, Turn, ask::Ask},
    translate::{
        completion::{self, Completion, Summary},
        ids::Ids,
        stream::{Mode, Round, StreamError},
        usage,
    },
};
use toolway_protocol::tool::JsonObject;

use super::{
    calls::CallEvent,
    chat::Chat,
    failure::{Failed, Failure},
    progress_mode::{self, ProgressMode},
    rounds::{self, AnswerForm, EarlyCalls},
};

/// Longest body of an upstream, in bytes.
pub(super) const MAX_BODY_BYTES: usize = 64 << 20;

/// Answers a chat that the gateway's tools apply to.
pub(super) async fn run(chat: &Chat<'_>) -> Result<(HeaderMap, Bytes), Failed> {
    let mut turn = chat.turn();
    let mut whole = Whole {
        chat,
        headers: HeaderMap::new(),
        envelope: None,
        said: Summary::default(),
        verbatim: None,
        ids: chat.ids(),
    };
    let finish = rounds::run(chat, &mut turn, &mut whole).await?;
    Ok(whole.write(finish, &turn))
}

/// Answers a chat that no gateway tool applies to: the upstream's own bytes, mended where they are broken.
pub(super) async fn pass_through(chat: &Chat<'_>) -> Result<(HeaderMap, Bytes), Failed> {
    let first = Ask::first();
    // Pinned in place, because moving it would store it twice.
    let reading = pin!(read(chat, &first));
    let (headers, body) = chat.in_time(reading).await?;
    chat.note_usage(usage::counts_in(&body));
    let settings = chat.settings(Mode::PassThrough);
    let mended = completion::mend(&body, &settings, chat, &mut chat.ids())
        .map_err(|error| chat.faulty(error))?;
    let mended = match mended {
        Cow::Borrowed(part) => body.slice_ref(part),
        Cow::Owned(mended) => Bytes::from(mended),
    };
    Ok((headers, mended))
}

/// An answer that is put together from its rounds.
struct Whole<'a> {
    chat: &'a Chat<'a>,
    /// Those of the first answer.
    headers: HeaderMap,
    /// The first answer without its choices: its id, model and so on stand for the whole.
    envelope: Option<JsonObject>,
    said: Summary,
    /// The first answer, if it can be the whole one as it is.
    verbatim: Option<Bytes>,
    ids: Ids,
}

impl AnswerForm for Whole<'_> {
    async fn ask(&mut self, ask: &Ask, _: &mut EarlyCalls<'_, '_>) -> Result<Round, Failure> {
        let (headers, body) = read(self.chat, ask).await?;
        let settings = self.chat.settings(Mode::Loop);
        let can_be_all = ask.first && self.chat.progress == ProgressMode::Off;
        if can_be_all && let Some(finish) = completion::final_answer(&body, &settings) {
            self.chat.note_usage(usage::counts_in(&body));
            self.headers = headers;
            self.verbatim = Some(body);
            return Ok(Round::without_a_word(finish));
        }
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
        Ok(round)
    }

    /// Says nothing: the answer has a list of all calls at its end.
    async fn tell(&mut self, _: &CallEvent) {}

    /// Nothing can be sent before the answer is complete.
    async fn wait<T: Send>(&mut self, awaited: impl Future<Output = T> + Send) -> T {
        awaited.await
    }
}

impl Whole<'_> {
    fn write(self, finish: Finish, turn: &Turn) -> (HeaderMap, Bytes) {
        if let Some(body) = self.verbatim {
            return (self.headers, body);
        }
        let mut body = completion::write(
            self.envelope.unwrap_or_default(),
            &self.said,
            &finish.client_calls,
            finish.reason,
            finish.usage,
        );
        if self.chat.progress != ProgressMode::Off {
            body.insert("toolway".into(), progress_mode::list(turn.records()));
        }
        (self.headers, Bytes::from(Value::Object(body).to_string()))
    }
}

/// One question, one whole answer. A stream from an upstream that was not asked for one is read, too.
async fn read(chat: &Chat<'_>, ask: &Ask) -> Result<(HeaderMap, Bytes), Failure> {
    let incoming = chat.ask(ask).await?;
    let headers = incoming.headers.clone();
    let body = incoming.read_all(MAX_BODY_BYTES).await?;
    if body.trim_ascii().is_empty() {
        return Err(chat.faulty(StreamError::Ended));
    }
    Ok((headers, body))
}
