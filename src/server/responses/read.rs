//! Requests of the Responses API, and what is kept of their answers.

use serde_json::Value;

use crate::{
    byte_budget::Reservation,
    server::{
        App, body,
        dialects::{Asked, Mode, Unread, Writer, left_out, now, write_chat},
    },
    store::{Principal, responses::KeptResponse},
    upstream::read_text,
};
use toolway_core::{
    agent::parked::NoRoom,
    translate::dialect::responses::{self, Earlier, References, ResponseWriter},
};
use toolway_protocol::tool::JsonObject;

/// A response that is kept when it is complete.
pub(in crate::server) struct Keep(KeptResponse);

impl Keep {
    /// Keeps the response as it is now.
    pub(in crate::server) async fn keep(
        &mut self,
        app: &App,
        principal: Principal,
        response: JsonObject,
    ) {
        self.0.response = response;
        let entries = app.gateway.entries();
        entries.keep_response(principal, &self.0).await;
    }
}

/// Reads a request of `length` bytes, with what it refers to.
pub(in crate::server) async fn request(
    app: &App,
    principal: Principal,
    mut body: JsonObject,
    length: usize,
) -> Result<Asked, Unread> {
    let references = References::of(&body);
    let is_here = !references.is_empty();
    let found = find_earlier(app, principal, references).await?;
    let Found {
        earlier,
        ancestors,
        loaded,
        reservation,
    } = found;
    let id = format!("{:016x}{:016x}", app.gateway.seed(), app.gateway.seed());
    read_text(length + loaded, || {
        let input = responses::expand(&mut body, earlier, app.config.max_body_bytes)?;
        let mut read = responses::read_request(body)?;
        let is_streamed = read.request.stream;
        let mode = match read.resource["background"] == true {
            true => Mode::Background { is_streamed },
            false => Mode::Foreground,
        };
        read.request.stream |= mode != Mode::Foreground;
        let is_kept = read.resource.get("store") != Some(&Value::Bool(false));
        let keep = is_kept.then(|| {
            Keep(KeptResponse {
                ancestors,
                input: responses::with_ids(input, &format!("in_{id}")),
                response: JsonObject::new(),
            })
        });
        let writer = ResponseWriter::new(read.resource, read.names, id, now());
        Ok(Asked {
            chat: body::held(write_chat(&read.request), reservation),
            model: read.request.model,
            warnings: left_out(&read.dropped),
            writer: Writer::Response(Box::new(writer), keep),
            is_here,
            mode,
        })
    })
}

/// What a request refers to.
pub(super) struct Found {
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
) -> Result<Found, NoRoom> {
    let (mut reservation, mut loaded) = (app.bodies.take_nothing(), 0);
    let mut reserve = |bytes| {
        loaded += bytes;
        reservation.grow_to(loaded)
    };
    let entries = app.gateway.entries();
    let found = entries.find_earlier(principal, references, &mut reserve);
    let (earlier, ancestors) = found.await?;
    Ok(Found {
        earlier,
        ancestors,
        loaded,
        reservation,
    })
}
