//! Streamed answers: one stream to the client, however many questions to the model it takes.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::{
    sync::mpsc,
    time::{timeout, timeout_at},
};

use crate::{
    agent::{Effect, Event as Happened, Finish, Job, Turn, ask::Ask},
    sse::{Event, FrameError, Framer},
    tool::{CallError, ToolResult},
    translate::{
        stream::{ChatStream, Mode, Pushed, Round, StreamError},
        whole,
    },
    upstream::model::{Incoming, retry},
};

use super::{
    calls::{self, CallEvent, Patience},
    chat::Chat,
    failure::{Failed, Failure},
    plain::MAX_BODY_BYTES,
    sink::Sink,
};

/// Longest event of an upstream, in bytes.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Longest wait for the end of a body whose last event has come.
const TAIL: Duration = Duration::from_millis(250);

/// Streams the answer to a chat that the gateway's tools apply to.
pub(super) async fn run(chat: Chat<'_>, sink: Sink) -> Result<(), Failed> {
    let turn = Turn::new(
        chat.bounds(),
        chat.catalog.clone(),
        chat.selected.clone(),
        chat.kept(),
    );
    let writer = ChatStream::new(chat.settings(Mode::Loop));
    let mut run = Run {
        chat: &chat,
        turn,
        writer,
        sink,
        begun: false,
        out: Vec::new(),
        tail: None,
    };
    let after = chat.gateway.config.request_timeout;
    let ended = match timeout_at(chat.deadline, run.rounds()).await {
        Ok(ended) => ended,
        Err(_) => Err(Failure::TimeIsUp { after }),
    };
    let Err(failure) = ended else { return Ok(()) };
    let tools_ran = run.turn.has_run_calls();
    run.fail(failure)
        .await
        .map_err(|failure| Failed { failure, tools_ran })
}

/// Streams an answer that no gateway tool applies to: the upstream's own bytes, mended where they are broken.
pub(super) async fn pass_through(chat: Chat<'_>, sink: Sink) -> Result<(), Failed> {
    let turn = Turn::new(
        chat.bounds(),
        chat.catalog.clone(),
        chat.selected.clone(),
        chat.kept(),
    );
    let writer = ChatStream::new(chat.settings(Mode::PassThrough));
    let mut run = Run {
        chat: &chat,
        turn,
        writer,
        sink,
        begun: false,
        out: Vec::new(),
        tail: None,
    };
    match run.pass().await {
        Ok(()) => Ok(()),
        Err(failure) => run.fail(failure).await.map_err(Failed::from),
    }
}

struct Run<'a> {
    chat: &'a Chat<'a>,
    turn: Turn,
    writer: ChatStream,
    sink: Sink,
    /// The client has its status; what fails from here on fails within the stream.
    begun: bool,
    /// What is to be sent next.
    out: Vec<u8>,
    /// The rest of an answer that is over. Read to its end, its connection can be used again; dropped before
    /// that, the next question would have to make a new one.
    tail: Option<Incoming>,
}

impl Run<'_> {
    async fn rounds(&mut self) -> Result<(), Failure> {
        let mut ask = self.turn.begin();
        loop {
            let round = self.round(&ask).await?;
            let mut effect = self.turn.on(Happened::Answered(round));
            if let Some(Effect::Run(lanes)) = effect {
                effect = self.calls(lanes).await;
            }
            match effect {
                Some(Effect::Ask(next)) => ask = next,
                Some(Effect::Finish(finish)) => return self.finish(finish).await,
                Some(Effect::Run(_)) | None => return Err(self.chat.lost_track()),
            }
        }
    }

    async fn pass(&mut self) -> Result<(), Failure> {
        let ask = self.turn.begin();
        let round = self.round(&ask).await?;
        self.writer.finish(round.finish, None, &mut self.out);
        self.flush().await;
        drain(self.tail.take()).await;
        Ok(())
    }

    /// Asks the model once and streams what it says.
    async fn round(&mut self, ask: &Ask) -> Result<Round, Failure> {
        let which = if ask.first {
            retry::Round::First
        } else {
            retry::Round::Later
        };
        let body = self.chat.body(ask);
        let mut asking = std::pin::pin!(self.chat.upstream.chat(
            &self.chat.input.headers,
            body,
            which
        ));
        let mut incoming = loop {
            tokio::select! {
                biased;
                answered = &mut asking => break answered?,
                () = self.sink.silence(), if self.begun => self.sink.comment().await,
            }
        };
        let Some(first) = incoming.next().await? else {
            return Err(self.chat.faulty(StreamError::Ended));
        };
        if !is_event_stream(incoming.is_stream, &first) {
            return self.whole(incoming, first).await;
        }
        self.read(incoming, first).await
    }

    /// Reads events until the model is done.
    async fn read(&mut self, mut incoming: Incoming, first: Bytes) -> Result<Round, Failure> {
        let mut framer = Framer::new(MAX_EVENT_BYTES);
        framer.push(first);
        let mut is_done = false;
        'reading: loop {
            while let Some(event) = framer.next() {
                if self.push(event)? == Pushed::Done {
                    is_done = true;
                    break 'reading;
                }
            }
            self.begin(&incoming.headers).await;
            self.flush().await;
            match self.next(&mut incoming).await? {
                Some(bytes) => framer.push(bytes),
                None => break,
            }
        }
        if let Some(event) = framer.finish() {
            self.push(event)?;
        }
        let round = self.end_round()?;
        self.begin(&incoming.headers).await;
        self.flush().await;
        self.tail = is_done.then_some(incoming);
        Ok(round)
    }

    async fn next(&mut self, incoming: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        let keeps_alive = self.begun && self.chat.is_loop();
        loop {
            tokio::select! {
                biased;
                bytes = incoming.next() => return Ok(bytes?),
                () = self.sink.silence(), if keeps_alive => self.sink.comment().await,
            }
        }
    }

    /// An upstream that answers a request for a stream with a whole completion is read all the same.
    async fn whole(&mut self, incoming: Incoming, first: Bytes) -> Result<Round, Failure> {
        let headers = incoming.headers.clone();
        let rest = incoming.read_all(MAX_BODY_BYTES).await?;
        let body = [first, rest].concat();
        let chunk = whole::to_chunk(&body).map_err(|error| self.chat.faulty(error))?;
        self.push(Ok(Event::from_data(&chunk)))?;
        let round = self.end_round()?;
        if !self.begun {
            self.begun = true;
            self.sink.begin(headers).await;
        }
        self.flush().await;
        Ok(round)
    }

    /// Runs the calls of a turn, keeping the connection alive and telling the client what it asked to know.
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
        let mut draining = std::pin::pin!(drain(self.tail.take()));
        let mut is_draining = true;
        loop {
            tokio::select! {
                biased;
                event = events.recv() => match self.note(event?) {
                    Some(effect) => return Some(effect),
                    None => self.flush().await,
                },
                () = &mut running, if is_running => is_running = false,
                () = &mut draining, if is_draining => is_draining = false,
                () = self.sink.silence() => self.sink.comment().await,
            }
        }
    }

    fn note(&mut self, event: CallEvent) -> Option<Effect> {
        let watch = self.chat.watch;
        let (note, ended) = match event {
            CallEvent::Started(job) => (watch.started(&job), None),
            CallEvent::Progressed(job, progress) => (watch.progressed(&job, &progress), None),
            CallEvent::Finished {
                job,
                outcome,
                duration,
            } => {
                let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
                let note = watch.finished(&job, status(&outcome), duration_ms);
                (
                    note,
                    Some(Happened::Finished {
                        place: job.place,
                        outcome,
                        duration_ms,
                    }),
                )
            }
        };
        if let Some(note) = note {
            self.writer.note(&note, &mut self.out);
        }
        ended.and_then(|ended| self.turn.on(ended))
    }

    async fn finish(&mut self, finish: Finish) -> Result<(), Failure> {
        if let Some(parked) = finish.parked {
            self.chat.park(parked);
        }
        self.writer
            .finish(finish.reason, finish.usage.as_ref(), &mut self.out);
        self.flush().await;
        drain(self.tail.take()).await;
        Ok(())
    }

    /// Gives the client its status with the first thing that the upstream says.
    async fn begin(&mut self, headers: &HeaderMap) {
        if self.begun || !self.writer.has_begun() {
            return;
        }
        self.begun = true;
        self.sink.begin(headers.clone()).await;
        if self.out.is_empty() {
            self.sink.comment().await;
        }
    }

    async fn flush(&mut self) {
        if self.begun {
            self.sink.send(&mut self.out).await;
        }
    }

    /// Tells the client within the stream; gives the failure back when the stream has not begun.
    async fn fail(&mut self, failure: Failure) -> Result<(), Failure> {
        if !self.begun {
            return Err(failure);
        }
        tracing::warn!(error = %failure, "A streamed answer failed");
        self.flush().await;
        self.writer
            .fail(&(self.chat.input.tell)(failure), &mut self.out);
        self.flush().await;
        Ok(())
    }

    fn push(&mut self, event: Result<Event, FrameError>) -> Result<Pushed, Failure> {
        let pushed = event.map_err(StreamError::from);
        let pushed = pushed.and_then(|event| self.writer.push(&event, self.chat, &mut self.out));
        pushed.map_err(|error| self.chat.faulty(error))
    }

    fn end_round(&mut self) -> Result<Round, Failure> {
        let ended = self.writer.end_round(self.chat, &mut self.out);
        ended.map_err(|error| self.chat.faulty(error))
    }
}

/// Reads what follows the last event, which is nothing but the end of the body, mostly.
async fn drain(tail: Option<Incoming>) {
    let Some(mut tail) = tail else { return };
    let ended = async { while let Ok(Some(_)) = tail.next().await {} };
    let _ = timeout(TAIL, ended).await;
}

/// By its type, or by its first bytes where the type is wrong.
pub(super) fn is_event_stream(is_named_so: bool, first: &[u8]) -> bool {
    let first = first
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(first)
        .trim_ascii_start();
    let looks_like_json = first.starts_with(b"{");
    let looks_like_events = [&b"data:"[..], b"event:", b":", b"id:", b"retry:"]
        .iter()
        .any(|start| first.starts_with(start));
    looks_like_events || (is_named_so && !looks_like_json)
}

fn status(outcome: &Result<ToolResult, CallError>) -> &'static str {
    match outcome {
        Ok(result) if result.is_error => "tool_error",
        Ok(_) => "ok",
        Err(error) => error.kind(),
    }
}
