//! Answers of the gateway, written in another API while they arrive.

use std::{convert::Infallible, sync::Arc};

use axum::body::Bytes;
use futures::{Stream, StreamExt, stream};

use super::{App, responses::keep::Keep};
use crate::{gateway::sink, store::Principal};
use toolway_core::translate::dialect::{
    AnswerWriter, Delta, chat::ChunkReader, responses::ResponseWriter,
};
use toolway_protocol::{
    openai::ErrorBody,
    sse::{self, Framer, SseEvent},
    tool::JsonObject,
};

/// Longest event that the gateway writes, in bytes.
pub(super) const MAX_EVENT_BYTES: usize = 64 << 20;

/// Room for the events of one piece, which most have enough of.
const ROOM: usize = 512;

/// What a whole answer of the gateway says, be it one completion or the events of one.
pub(super) fn read_chat(body: Bytes) -> Vec<Delta> {
    let mut reader = ChunkReader::default();
    if sse::is_begun_by(&body) {
        let mut framer = Framer::new(MAX_EVENT_BYTES);
        framer.push(body);
        let events = std::iter::from_fn(|| framer.next()?.ok());
        let deltas = events.filter_map(|event| reader.read_event(&event));
        return deltas.flatten().collect();
    }
    match serde_json::from_slice(&body) {
        Ok(chat) => reader.read(chat),
        Err(error) => {
            let error = ErrorBody::new("server_error", "internal_error", error.to_string());
            vec![Delta::Failed(error)]
        }
    }
}

/// What writes the answer.
pub(super) enum FaceWriter {
    Message,
    Response(Writing),
}

/// A response that is being written.
pub(super) struct Writing {
    pub(super) writer: Box<ResponseWriter>,
    pub(super) keep: Keep,
}

impl Writing {
    /// The whole response, kept before the client can name it.
    pub(super) async fn write_whole(
        mut self,
        app: &App,
        principal: Principal,
        deltas: Vec<Delta>,
    ) -> Result<JsonObject, Box<ErrorBody>> {
        let response = self.writer.write_response(deltas)?;
        let asked = self.writer.asked();
        let keeping = self.keep.keep(app, principal, &asked, response.clone());
        keeping.await;
        Ok(response)
    }
}

/// What a stream of the gateway's says.
pub(super) enum ChatEvent {
    Comment(SseEvent),
    /// A piece of text alone.
    Text(String),
    Deltas(Vec<Delta>),
    Done,
}

impl ChatEvent {
    fn is_failure(&self) -> bool {
        let is_failure = |delta: &Delta| matches!(delta, Delta::Failed(_));
        matches!(self, ChatEvent::Deltas(deltas) if deltas.iter().any(is_failure))
    }

    /// Appends the events for it.
    pub(super) fn write(self, writer: &mut dyn AnswerWriter, out: &mut Vec<u8>) {
        match self {
            ChatEvent::Comment(event) => out.extend_from_slice(event.raw()),
            ChatEvent::Text(text) => writer.write(Delta::Text(text), out),
            ChatEvent::Deltas(deltas) => {
                for delta in deltas {
                    writer.write(delta, out);
                }
            }
            ChatEvent::Done => writer.finish(out),
        }
    }
}

/// A stream of the gateway's that is read as it comes.
pub(super) struct ChatEvents {
    body: sink::ResponseBody,
    framer: Framer,
    reader: ChunkReader,
}

impl ChatEvents {
    pub(super) fn new(body: sink::ResponseBody) -> ChatEvents {
        ChatEvents {
            body,
            framer: Framer::new(MAX_EVENT_BYTES),
            reader: ChunkReader::default(),
        }
    }

    /// Appends the events of the next piece, of which there may be none. `None` at the end.
    pub(super) async fn next(&mut self, events: &mut Vec<ChatEvent>) -> Option<()> {
        let Ok(piece) = self.body.next().await?;
        self.framer.push(piece);
        loop {
            if let Some((raw, text)) = self.reader.alike().peek(&mut self.framer) {
                let (length, text) = (raw.len(), text.into_owned());
                self.framer.skip(length);
                if !text.is_empty() {
                    events.push(ChatEvent::Text(text));
                }
                continue;
            }
            let Some(Ok(event)) = self.framer.next() else {
                break;
            };
            events.extend(self.read(event));
        }
        Some(())
    }

    fn read(&mut self, event: SseEvent) -> Option<ChatEvent> {
        if event.is_comment() {
            return Some(ChatEvent::Comment(event));
        }
        let data = event.data()?;
        if data == "[DONE]" {
            return Some(ChatEvent::Done);
        }
        self.reader.read_event(&event).map(ChatEvent::Deltas)
    }
}

/// A streamed answer that is translated while it is written.
pub(super) struct Translated {
    pub(super) events: ChatEvents,
    /// The events of one piece; empty between pieces.
    pub(super) piece: Vec<ChatEvent>,
    pub(super) writer: Box<dyn AnswerWriter>,
    /// What is kept of the answer when it is complete.
    pub(super) keep: Option<(Keep, Arc<App>, Principal)>,
}

impl Translated {
    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        // In a box, because it is moved for every piece.
        stream::unfold(Box::new(self), |mut translated| async {
            let piece = translated.next().await?;
            Some((Ok(piece), translated))
        })
    }

    /// The next events; those of one piece go out in one write, because some clients lose an event that is torn.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let mut out = Vec::with_capacity(ROOM);
            self.events.next(&mut self.piece).await?;
            for event in self.piece.drain(..) {
                if event.is_failure() {
                    // A failed response is not kept, and its conversation is free before the client reads of it.
                    self.keep = None;
                }
                event.write(&mut *self.writer, &mut out);
            }
            if let Some(response) = self.writer.kept()
                && let Some((mut keep, app, principal)) = self.keep.take()
            {
                // Before the client can name it.
                let asked = self.writer.asked();
                keep.keep(&app, principal, &asked, response).await;
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }
}
