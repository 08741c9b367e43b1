//! Requests of the Responses API, and what is kept of their answers.

use axum::body::Bytes;
use serde_json::Value;

use super::keep::Keep;
use crate::{
    byte_budget::Reservation,
    server::{
        App,
        answer_stream::{FaceWriter, Writing},
        asked::{AnswerMode, Asked, Unread},
        body as server_body,
        face::{ask_for_events, now, write_chat},
        mcp_items::Shown,
    },
    store::{Principal, responses::KeptResponse},
    upstream::{
        model::{Api, Original},
        read_text,
    },
};
use toolway_core::{
    agent::parked::NoRoom,
    translate::dialect::responses::{self, Earlier, References, ResponseWriter},
};
use toolway_protocol::tool::{JsonObject, ServerId};

/// Reads a request, with what it refers to. Where its upstream `is_native`, it may speak the same API.
pub(in crate::server) async fn request(
    app: &App,
    principal: Principal,
    mut object: JsonObject,
    body: &Bytes,
    is_native: bool,
) -> Result<Asked, Unread> {
    let catalog = app.gateway.catalog();
    let offered = |label: &str, name: &str| {
        let server = ServerId::parse(label).ok();
        let own = server.and_then(|server| catalog.find_own(&server, name));
        let tool = own.or_else(|| catalog.find(name))?;
        Some(tool.name.to_string())
    };
    let references = References::of(&object);
    let is_here = !references.is_empty();
    let conversation = references.conversation.as_deref();
    let conversation = conversation.map(|id| app.conversations.lock(principal, id));
    let conversation = conversation.transpose()?;
    let found = find_earlier(app, principal, references).await?;
    let FoundEarlier {
        earlier,
        ancestors,
        loaded,
        reservation,
    } = found;
    let id = format!("{:016x}{:016x}", app.gateway.seed(), app.gateway.seed());
    read_text(body.len() + loaded, || {
        let input = responses::expand(&mut object, earlier, app.config.max_body_bytes)?;
        // What the client refers to is as much its own as what it sends.
        let own = match is_here {
            true => serde_json::to_vec(&object).map_or_else(|_| body.clone(), Bytes::from),
            false => body.clone(),
        };
        let mut read = responses::read_request(object, &offered, is_native)?;
        let is_streamed = read.request.stream;
        let mode = match read.resource["background"] == true {
            true => AnswerMode::Background { is_streamed },
            false => AnswerMode::Foreground,
        };
        let responses::McpEntries {
            labels,
            approved,
            denied,
            unanswered,
            ..
        } = &read.mcp;
        let is_shown = !labels.is_empty()
            || !approved.is_empty()
            || !denied.is_empty()
            || !unanswered.is_empty();
        // As in a stream, the order of texts and calls is kept.
        read.request.stream |= mode != AnswerMode::Foreground || is_shown;
        let is_whole = ask_for_events(app, &mut read.request);
        let keep = Keep {
            is_stored: read.resource.get("store") != Some(&Value::Bool(false)),
            kept: KeptResponse {
                ancestors,
                input: responses::with_ids(input, &format!("in_{id}")),
                response: JsonObject::new(),
            },
            conversation,
            asks: None,
        };
        let writer = Box::new(ResponseWriter::new(read.resource, read.names, id, now()));
        Ok(Asked {
            chat: server_body::held(write_chat(&read.request), reservation),
            model: read.request.model.clone(),
            original: Original {
                api: Api::Responses,
                body: own,
                left_out: read.dropped,
                deferred: read.deferred,
            },
            writer: FaceWriter::Response(Writing { writer, keep }),
            is_here,
            mode,
            is_whole,
            max_tool_calls: read.max_tool_calls,
            shown: is_shown.then(|| {
                Box::new(Shown {
                    entries: read.mcp,
                    request: read.request,
                    is_streamed,
                })
            }),
        })
    })
}

/// What a request refers to.
pub(super) struct FoundEarlier {
    pub(super) earlier: Earlier,
    /// The responses that it continues.
    ancestors: Vec<String>,
    /// Bytes that were read.
    loaded: usize,
    /// Of the budget of bodies.
    reservation: Reservation,
}

pub(super) async fn find_earlier(
    app: &App,
    principal: Principal,
    references: References,
) -> Result<FoundEarlier, NoRoom> {
    let (mut reservation, mut loaded) = (app.bodies.take_nothing(), 0);
    let mut reserve = |bytes| {
        loaded += bytes;
        reservation.grow_to(loaded)
    };
    let entries = app.gateway.entries();
    let found = entries.find_earlier(principal, references, &mut reserve);
    let (earlier, ancestors) = found.await?;
    Ok(FoundEarlier {
        earlier,
        ancestors,
        loaded,
        reservation,
    })
}
