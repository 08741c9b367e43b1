//! Streamed answers: one stream to the client, however many questions to the model it takes. A face that makes one body
//! of it gets all of its events at the end.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::timeout;

use crate::upstream::model::Incoming;
use toolway_core::{
    agent::{Finish, ask::Ask},
    translate::{
        single_chunk,
        stream::{ChatStream, Mode, Pushed, Round, StreamError},
        usage,
    },
};
use toolway_protocol::{
    openai::FinishReason,
    sse::{self, FrameError, Framer, SseEvent},
    tool::JsonObject,
};

use super::{
    calls::CallEvent,
    chat::Chat,
    failure::{Failed, Failure},
    plain::MAX_BODY_BYTES,
    rounds::{self, AnswerForm, EarlyCalls},
    sink::{LoopResult, Sink},
};

/// Longest event of an upstream, in bytes.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Longest wait for the end of a body whose last event has come.
const TAIL: Duration = Duration::from_millis(20);

/// Streams the answer to a chat that the gateway's tools apply to.
pub(super) async fn run(chat: &Chat<'_>, sink: Sink) -> LoopResult {
    let mut turn = chat.turn();
    let mut streamed = Streamed::new(chat, Mode::Loop, sink);
    let ended = rounds::run(chat, &mut turn, &mut streamed).await;
    Box::pin(streamed.end(ended)).await
}

/// Streams an answer that no gateway tool applies to: the upstream's own bytes, mended where they are broken.
pub(super) async fn pass_through(chat: &Chat<'_>, sink: Sink) -> LoopResult {
    let mut streamed = Streamed::new(chat, Mode::PassThrough, sink);
    streamed.sink.without_comments();
    let first = Ask::first();
    let asked = {
        let mut no_calls = EarlyCalls::new(chat, None);
        let asking = pin!(streamed.ask(&first, &mut no_calls));
        chat.in_time(asking).await
    };
    Box::pin(streamed.end_one(asked)).await
}

/// An answer on its way to the client.
struct Streamed<'a> {
    chat: &'a Chat<'a>,
    mode: Mode,
    writer: ChatStream,
    sink: Sink,
    /// What is to be sent next.
    out: Vec<u8>,
    /// Nothing is sent before the answer is complete, and then with these headers.
    whole: Option<HeaderMap>,
    /// The rest of an answer whose last event has come, see [`Streamed::drain`].
    tail: Option<Box<Incoming>>,
}

impl AnswerForm for Streamed<'_> {
    async fn ask(&mut self, ask: &Ask, early: &mut EarlyCalls<'_, '_>) -> Result<Round, Failure> {
        self.drain().await;
        // Boxed like all that is done before the stream or seldom: its room is free again while the stream lasts.
        let asking = Box::pin(self.chat.ask(ask));
        let before = self.chat.route.at();
        let mut incoming = Box::new(self.sink.keep_alive_while(asking).await?);
        if self.chat.route.at() != before {
            self.writer.read_as(self.chat.settings(self.mode));
        }
        let Some(first) = self.next(&mut incoming).await? else {
            return Err(self.chat.faulty(StreamError::Ended));
        };
        if is_event_stream(incoming.is_stream, &first) {
            let (round, is_done) = self.read(&mut incoming, first, early).await?;
            self.tail = is_done.then_some(incoming);
            Ok(round)
        } else {
            Box::pin(self.read_whole(*incoming, first)).await
        }
    }

    async fn tell(&mut self, event: &CallEvent) {
        let mode = self.chat.progress;
        let note = match event {
            CallEvent::Repeated(..) => None,
            CallEvent::Started(job) => mode.started(job),
            CallEvent::Waits(job, waiting) => mode.waits(job, waiting),
            CallEvent::Progressed(job, progress) => mode.progressed(job, progress),
            CallEvent::Finished {
                job,
                outcome,
                duration_ms,
                ..
            } => mode.finished(
                job,
                outcome,
                *duration_ms,
                self.chat.gateway.config.max_result_bytes,
            ),
        };
        if let Some(note) = note {
            self.writer.note(&note, &mut self.out);
            self.flush().await;
        }
    }

    async fn wait<T: Send>(&mut self, awaited: impl Future<Output = T> + Send) -> T {
        self.sink.keep_alive_while(pin!(awaited)).await
    }
}

impl<'a> Streamed<'a> {
    fn new(chat: &'a Chat<'a>, mode: Mode, sink: Sink) -> Streamed<'a> {
        Streamed {
            chat,
            mode,
            writer: ChatStream::new(chat.settings(mode)),
            sink,
            out: Vec::new(),
            whole: chat.input.is_whole.then(HeaderMap::new),
            tail: None,
        }
    }

    /// Reads events until the model is done; whether it said so itself.
    async fn read(
        &mut self,
        incoming: &mut Incoming,
        first: Bytes,
        early: &mut EarlyCalls<'_, '_>,
    ) -> Result<(Round, bool), Failure> {
        let is_done = self.read_events(incoming, first, early).await?;
        let round = self.end_round()?;
        self.show(&incoming.headers).await;
        Ok((round, is_done))
    }

    async fn read_events(
        &mut self,
        incoming: &mut Incoming,
        first: Bytes,
        early: &mut EarlyCalls<'_, '_>,
    ) -> Result<bool, Failure> {
        let mut framer = Framer::new(MAX_EVENT_BYTES);
        framer.push(first);
        let mut is_done = false;
        'reading: loop {
            while let Some(pushed) = self.push_next(&mut framer) {
                if pushed? == Pushed::Done {
                    is_done = true;
                    break 'reading;
                }
            }
            self.show(&incoming.headers).await;
            if self.out.len() > MAX_BODY_BYTES {
                return Err(self.chat.faulty(StreamError::TooLarge));
            }
            early.begin(self.writer.complete_calls());
            let next = {
                let next = pin!(self.next(incoming));
                early.run_while(next).await?
            };
            match next {
                Some(bytes) => framer.push(bytes),
                None => break,
            }
        }
        if let Some(event) = framer.finish() {
            self.push(event)?;
        }
        Ok(is_done)
    }

    /// A whole completion from an upstream that was asked for a stream is read, too.
    async fn read_whole(&mut self, incoming: Incoming, first: Bytes) -> Result<Round, Failure> {
        let headers = incoming.headers.clone();
        let reading = pin!(incoming.read_all(MAX_BODY_BYTES));
        let rest = self.sink.keep_alive_while(reading).await?;
        let chunk = single_chunk::to_chunk(&[first, rest].concat());
        let chunk = chunk.map_err(|error| self.chat.faulty(error))?;
        self.push(Ok(SseEvent::from_data(&chunk)))?;
        self.push(Ok(SseEvent::from_data("[DONE]")))?;
        let round = self.end_round()?;
        self.show(&headers).await;
        Ok(round)
    }

    async fn next(&mut self, incoming: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        let next = pin!(incoming.next());
        Ok(self.sink.keep_alive_while(next).await?)
    }

    /// Sends what there is, after the status that the client gets with the first thing the upstream says.
    async fn show(&mut self, headers: &HeaderMap) {
        if let Some(kept) = &mut self.whole {
            if kept.is_empty() {
                kept.clone_from(headers);
            }
            return;
        }
        if !self.sink.has_begun() && self.writer.has_begun() {
            // Once for each answer, and then its room is free again.
            Box::pin(self.sink.begin(headers.clone())).await;
            if self.out.is_empty() {
                self.sink.comment().await;
            }
        }
        self.flush().await;
    }

    async fn flush(&mut self) {
        if self.sink.has_begun() {
            self.sink.send(&mut self.out).await;
        }
    }

    /// Tells the client how the loop ended. Its caller boxes it, for its room is not needed before.
    async fn end(&mut self, ended: Result<Finish, Failed>) -> LoopResult {
        match ended {
            Ok(finish) => Ok(self.finish(finish.reason, finish.usage.as_ref()).await),
            Err(failed) => self.fail(failed).await,
        }
    }

    /// Tells the client how an answer ended that is all of one round. Its caller boxes it, as [`Streamed::end`].
    async fn end_one(&mut self, asked: Result<Round, Failure>) -> LoopResult {
        match asked {
            Ok(round) => {
                if let Some(usage) = &round.usage {
                    self.chat.note_usage(usage::counts(usage));
                }
                Ok(self.finish(round.finish, None).await)
            }
            Err(failure) => self.fail(failure.into()).await,
        }
    }

    /// Gives the answer if nothing of it was sent.
    async fn finish(
        &mut self,
        reason: FinishReason,
        usage: Option<&JsonObject>,
    ) -> Option<(HeaderMap, Bytes)> {
        self.writer.finish(reason, usage, &mut self.out);
        self.flush().await;
        self.drain().await;
        let headers = self.whole.take()?;
        Some((headers, std::mem::take(&mut self.out).into()))
    }

    /// Reads what follows the last event, mostly nothing but the end of the body: a connection whose answer was
    /// read to its end is used again, one that is dropped before is not. It runs when no task waits for it,
    /// before the next question and after the client has its `[DONE]`; an upstream that lingers loses the connection.
    async fn drain(&mut self) {
        let Some(mut tail) = self.tail.take() else {
            return;
        };
        let ended = async { while let Ok(Some(_)) = tail.next().await {} };
        let _ = timeout(TAIL, ended).await;
    }

    /// Tells the client within the stream; gives the failure back when the stream has not begun.
    async fn fail(&mut self, failed: Failed) -> LoopResult {
        if !self.sink.has_begun() {
            return Err(failed);
        }
        let failure = failed.failure;
        self.chat.input.record.fail(&failure);
        self.writer
            .fail(&(self.chat.input.tell)(failure), &mut self.out);
        self.flush().await;
        Ok(None)
    }

    fn push_next(&mut self, framer: &mut Framer) -> Option<Result<Pushed, Failure>> {
        let pushed = self.writer.push_next(framer, self.chat, &mut self.out)?;
        Some(pushed.map_err(|error| self.chat.faulty(error)))
    }

    fn push(&mut self, event: Result<SseEvent, FrameError>) -> Result<Pushed, Failure> {
        let pushed = event.map_err(StreamError::from);
        let pushed = pushed.and_then(|event| self.writer.push(&event, self.chat, &mut self.out));
        pushed.map_err(|error| self.chat.faulty(error))
    }

    fn end_round(&mut self) -> Result<Round, Failure> {
        let ended = self.writer.end_round(self.chat, &mut self.out);
        ended.map_err(|error| self.chat.faulty(error))
    }
}

/// By its first bytes, or by its type where they could be anything.
fn is_event_stream(is_named_so: bool, first: &[u8]) -> bool {
    sse::is_begun_by(first) || (is_named_so && !first.trim_ascii_start().starts_with(b"{"))
}
