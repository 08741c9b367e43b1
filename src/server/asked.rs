//! Requests of other APIs, read: each is a chat, with what its answer needs.

use std::sync::Arc;

use axum::{body::Bytes, http::HeaderMap};

use super::{App, answer_stream::FaceWriter, chat as chat_face, face::has_tools, mcp_items::Shown};
use crate::{
    gateway::{chat::ChatInput, failure::Failure, record::Record},
    upstream::model::Original,
};
use toolway_core::{agent::parked::NoRoom, translate::dialect::Unsupported};

/// A request in the words of chat completions.
pub(super) struct Asked {
    pub(super) model: String,
    pub(super) chat: Bytes,
    /// The same in the client's words.
    pub(super) original: Original,
    pub(super) writer: FaceWriter,
    /// It refers to what toolway keeps, and the upstream does not.
    pub(super) is_here: bool,
    pub(super) mode: AnswerMode,
    /// The client wants no stream, though the chat asks for one, see [`Face::read`].
    pub(super) is_whole: bool,
    /// Most calls of the gateway, if the client says so.
    pub(super) max_tool_calls: Option<usize>,
    /// The client sees the gateway's tools.
    pub(super) shown: Option<Box<Shown>>,
}

impl Asked {
    /// The gateway would add nothing to it, so that an upstream of the client's API may have it as it came.
    pub(super) async fn needs_nothing(
        &self,
        app: &App,
        headers: &HeaderMap,
        record: Option<&Arc<Record>>,
    ) -> bool {
        if self.is_here || !has_tools(app, headers).await {
            return !self.is_here;
        }
        if self.shown.is_some() {
            return false;
        }
        match self.input(app, headers, record.cloned()) {
            Ok(input) => app.gateway.adds_nothing(&input).await,
            Err(_) => false,
        }
    }

    /// The chat for the gateway.
    ///
    /// # Errors
    /// When a header is not valid.
    pub(super) fn input(
        &self,
        app: &App,
        headers: &HeaderMap,
        record: Option<Arc<Record>>,
    ) -> Result<ChatInput, Failure> {
        let mut input = chat_face::input(app, headers, self.chat.clone(), record)?;
        input.headers = input.headers.with_original(self.original.clone());
        input.max_tool_calls = self.max_tool_calls;
        input.face = match self.writer {
            FaceWriter::Response(_) => "responses",
            FaceWriter::Message => "messages",
        };
        Ok(input)
    }
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerMode {
    /// While its client waits.
    Foreground,
    /// Whether its client waits or not.
    Background { is_streamed: bool },
}

/// A request that cannot be translated.
pub(super) struct Unreadable {
    pub(super) model: Option<String>,
    pub(super) failure: Failure,
    /// It refers to what toolway does not keep; the upstream may.
    pub(super) is_elsewhere: bool,
}

/// Why a request was not read.
pub(super) enum Unread {
    Unsupported(Unsupported),
    NoRoom,
}

impl From<Unsupported> for Unread {
    fn from(unsupported: Unsupported) -> Unread {
        Unread::Unsupported(unsupported)
    }
}

impl From<NoRoom> for Unread {
    fn from(_: NoRoom) -> Unread {
        Unread::NoRoom
    }
}
