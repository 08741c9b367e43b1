//! What `/v1/responses` and `/v1/messages` have in common: how their requests are received and their errors written.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{App, body, chat as chat_face, error, guard, headers};
use crate::{gateway::failure::Failure, store::Principal, upstream::model::Api};
use toolway_core::translate::dialect::{self, Unsupported, anthropic, chat, responses::PageQuery};
use toolway_protocol::{openai::ErrorBody, tool::JsonObject};

/// The API of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Face {
    Responses,
    Messages,
}

impl Face {
    /// How errors are written.
    pub(super) fn form(self) -> error::ErrorForm {
        match self {
            Face::Responses => |_, error| error.to_value(),
            Face::Messages => anthropic::write_error,
        }
    }

    /// Every upstream that may answer speaks this API, so that a request needs no translation where toolway has nothing
    /// to add.
    pub(super) fn is_native(self, app: &App, model: &str) -> bool {
        app.gateway.models().all_of(model, |upstream| match self {
            Face::Responses => matches!(upstream.api, Api::Auto | Api::Responses),
            Face::Messages => upstream.api == Api::Anthropic,
        })
    }
}

/// A request whose body has come.
pub(super) struct Received {
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

impl Received {
    pub(super) fn principal(&self) -> Principal {
        headers::principal(&self.parts.headers)
    }

    /// Gives it another body.
    pub(super) fn replace(&mut self, body: JsonObject) {
        self.body = Value::Object(body).to_string().into();
        let length = self.body.len().into();
        self.parts.headers.insert(header::CONTENT_LENGTH, length);
    }

    pub(super) fn into_request(self) -> Request {
        Request::from_parts(self.parts, Body::from(self.body))
    }
}

pub(super) async fn receive(app: &App, request: Request, face: Face) -> Result<Received, Response> {
    let (parts, body) = request.into_parts();
    let body = body::receive(app, &parts.headers, body, app.config.max_body_bytes).await;
    let body = body.map_err(|refusal| refusal.into_response_in(face.form()))?;
    Ok(Received { parts, body })
}

pub(super) fn model(body: &JsonObject) -> Option<&str> {
    body.get("model").and_then(Value::as_str)
}

/// The gateway offers tools to this client.
pub(super) async fn has_tools(app: &App, headers: &HeaderMap) -> bool {
    let key = guard::position(&app.config, headers);
    if app.gateway.catalog_of(key).offered().is_empty() {
        app.gateway.wait_for_start().await;
    }
    !app.gateway.catalog_of(key).offered().is_empty()
}

/// An upstream has an answer of its own, be it an error, and not merely no such path.
pub(super) fn has_route(response: &Response) -> bool {
    !matches!(response.status().as_u16(), 404 | 405 | 501)
}

pub(super) fn estimate(body: &[u8]) -> usize {
    body.len().div_ceil(4)
}

/// A chat completion has no room for the order of thoughts, texts and calls, but the events of a stream have. Where the
/// model's API keeps that order, the chat is a stream in any case. Whether the client wants none.
pub(super) fn ask_for_events(app: &App, request: &mut dialect::Request) -> bool {
    let is_whole = !request.stream && !app.gateway.models().is_asked_in_chat(&request.model);
    request.stream |= is_whole;
    is_whole
}

/// The body of the chat. A stream always tells its tokens, because these APIs do.
pub(super) fn write_chat(request: &dialect::Request) -> Bytes {
    let mut chat = chat::write_request(request);
    if !dialect::thinks(&request.model) {
        chat.shift_remove("reasoning_effort");
    }
    if request.stream {
        chat.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    Value::Object(chat).to_string().into()
}

pub(super) fn plain(
    face: Face,
    headers: HeaderMap,
    written: Result<JsonObject, Box<ErrorBody>>,
) -> Response {
    match written {
        Ok(body) => {
            let body = Body::from(Value::Object(body).to_string());
            chat_face::respond(body, headers, "application/json")
        }
        Err(error) => {
            let body = Json(face.form()(502, &error));
            (StatusCode::BAD_GATEWAY, body).into_response()
        }
    }
}

pub(super) fn failed(face: Face, failure: Failure) -> Response {
    error::response_in(failure.into(), face.form())
}

pub(super) fn refused(unsupported: Unsupported) -> Failure {
    Failure::Request {
        message: unsupported.message,
        param: Some(unsupported.param),
        code: unsupported.code,
    }
}

pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Which page of a list the parameters of a request ask for.
pub(super) fn page_query(request: &Request) -> Result<PageQuery, Unsupported> {
    let query = request.uri().query().unwrap_or_default();
    PageQuery::read(url::form_urlencoded::parse(query.as_bytes()))
}

/// Answers with a page of items.
pub(super) fn page(query: Result<PageQuery, Unsupported>, items: Vec<Value>) -> Response {
    match query.and_then(|query| query.page(items)) {
        Ok(page) => Json(page).into_response(),
        Err(unsupported) => error::response(refused(unsupported).into()),
    }
}
