//! Responses whose client sees the gateway's tools, because its request has `mcp` entries: their lists, each call as it
//! happens, and the questions before a call, with what the client answered to them.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::HeaderMap,
    response::Response,
};
use futures::{
    Stream, StreamExt,
    future::{self, BoxFuture},
    stream::{self, BoxStream},
};
use tokio::time::timeout;

use crate::{
    gateway::{
        RequestClient,
        approvals::ApprovedOutcome,
        chat::{ChatInput, ChatResponse},
        failure::Failed,
        progress_mode::ProgressMode,
    },
    store::Principal,
    upstream::read_text,
};
use toolway_core::{
    catalog::{self, Selected},
    translate::dialect::{
        self, AnswerWriter, Delta, GatewayCall, GatewayError,
        responses::{self, GatewayTools, ListedTool, McpEntries, ResponseWriter},
    },
};
use toolway_protocol::mcp::tools::write_annotations;

use super::{
    App,
    answer_stream::{ChatEvents, Translated, Writing, read_chat},
    chat as chat_face, error,
    face::{self, Face, write_chat},
    responses::keep::Keep,
};

/// What goes out while nothing else does.
const KEEPALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// The pieces of a streamed response.
type Pieces = BoxStream<'static, Result<Bytes, Infallible>>;

/// What a client sees and has approved.
pub(super) struct Shown {
    /// The `mcp` entries of its request.
    pub(super) entries: McpEntries,
    /// The request, in which the results of approved calls are still missing.
    pub(super) request: dialect::Request,
    /// The client wants a stream.
    pub(super) is_streamed: bool,
}

impl Shown {
    /// Has the gateway tell of its calls, `writer` show them, and `keep` keep what the client is asked. Gives the tools.
    pub(super) async fn show(
        &self,
        app: &App,
        input: &mut ChatInput,
        writer: &mut ResponseWriter,
        keep: &mut Keep,
    ) -> Arc<Selected> {
        keep.asks = Some(Box::new(input.client()));
        input.progress = Some(ProgressMode::Items);
        input.can_ask = true;
        app.gateway.wait_until_ready(input).await;
        let selected = app.gateway.tools_asked_for(input);
        let deferred = listed(&selected, &self.entries.deferred);
        input
            .headers
            .defer(deferred.map(|it| it.offered.to_owned()));
        let tools = GatewayTools::new(listed(&selected, &self.entries.labels));
        writer.show(tools, &self.entries.listed);
        selected
    }

    /// The calls that the client has approved, and the chat after them.
    pub(super) async fn making(
        mut self,
        app: &Arc<App>,
        mut input: ChatInput,
        selected: Arc<Selected>,
    ) -> Making {
        let client = input.client();
        let denied = app.gateway.settle_questions(&client, &mut self.entries);
        let denied = denied.await;
        for call in &denied {
            responses::fill(&mut self.request, &call.id, responses::NOT_APPROVED, true);
        }
        if !denied.is_empty() {
            input.body = write_chat(&self.request);
        }
        Making {
            app: Arc::clone(app),
            input,
            request: Some(self.request),
            approved: self.entries.approved,
            selected,
        }
    }
}

/// Answers a chat, which is asked for as a stream in any case.
pub(super) async fn answer(
    app: Arc<App>,
    mut input: ChatInput,
    mut writing: Writing,
    shown: Shown,
) -> Response {
    let Writing { writer, keep } = &mut writing;
    let selected = shown.show(&app, &mut input, writer, keep).await;
    let (principal, is_streamed) = (input.principal, shown.is_streamed);
    input.is_whole = !is_streamed;
    let making = shown.making(&app, input, selected).await;
    if !is_streamed {
        return whole(making.run().await, &app, principal, writing).await;
    }
    if !making.approved.is_empty() {
        return resumed(making, writing);
    }
    match making.run().await.1 {
        Ok(answer) => {
            let (headers, rest) = rest(answer, writing, app, principal);
            respond(rest, headers)
        }
        Err(failed) => error::response(failed),
    }
}

/// Streams a response that begins with approved calls. It begins before they run, so that the client sees them.
fn resumed(making: Making, mut writing: Writing) -> Response {
    let mut begun = Vec::new();
    for call in making.calls() {
        writing.writer.write(call, &mut begun);
    }
    let (app, principal) = (Arc::clone(&making.app), making.input.principal);
    let every = app.gateway.keepalive();
    let work = Box::pin(async move {
        let (made, answered) = making.run().await;
        let mut out = Vec::new();
        for result in results(made) {
            writing.writer.write(result, &mut out);
        }
        match answered {
            Ok(answer) => {
                let (_, rest) = rest(answer, writing, app, principal);
                one(out).chain(rest).boxed()
            }
            Err(failed) => {
                let error = error::in_band(failed.failure);
                writing.writer.write(Delta::Failed(error), &mut out);
                one(out).boxed()
            }
        }
    });
    respond(
        one(begun).chain(with_comments(work, every)),
        HeaderMap::new(),
    )
}

fn respond(
    pieces: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
    headers: HeaderMap,
) -> Response {
    chat_face::respond(Body::from_stream(pieces), headers, "text/event-stream")
}

fn one(piece: Vec<u8>) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    stream::once(future::ready(Ok(piece.into())))
}

/// The tools of the gateway that the model is offered, those of a server that has one of the labels.
fn listed<'t>(
    selected: &'t Selected,
    labels: &'t [String],
) -> impl Iterator<Item = ListedTool<'t>> {
    selected.tools.iter().filter_map(|offered| {
        Some(ListedTool {
            offered: offered.name.as_str(),
            server: offered.server.as_str(),
            label: catalog::label_of(&offered.server, labels)?,
            name: &offered.tool.name,
            description: offered.tool.description.as_deref(),
            input_schema: &offered.tool.input_schema,
            annotations: write_annotations(offered.tool.annotations),
        })
    })
}

/// Approved calls that are to be made, and the chat that continues with their results.
pub(super) struct Making {
    app: Arc<App>,
    input: ChatInput,
    /// Where the results go, if there are calls.
    request: Option<dialect::Request>,
    approved: Vec<GatewayCall>,
    selected: Arc<Selected>,
}

/// The approved calls, and what came of each.
pub(super) type Made = Vec<(GatewayCall, ApprovedOutcome)>;

impl Making {
    /// A chat without such calls.
    pub(super) fn nothing(app: &Arc<App>, input: ChatInput) -> Making {
        Making {
            app: Arc::clone(app),
            input,
            request: None,
            approved: Vec::new(),
            selected: Arc::default(),
        }
    }

    /// Whose calls they are.
    pub(super) fn principal(&self) -> Principal {
        self.input.principal
    }

    /// The calls, as parts of the answer.
    pub(super) fn calls(&self) -> impl Iterator<Item = Delta> {
        self.approved.iter().cloned().map(Delta::GatewayCall)
    }

    pub(super) async fn run(mut self) -> (Made, Result<ChatResponse, Failed>) {
        let gateway = &self.app.gateway;
        let client = RequestClient {
            has_approved: true,
            ..self.input.client()
        };
        let record = Arc::clone(&self.input.record);
        let outcomes = gateway.make_approved(client, &self.approved, self.selected, &record);
        let outcomes = outcomes.await;
        let request = self.request.as_mut().filter(|_| !outcomes.is_empty());
        if let Some(request) = request {
            for (call, outcome) in self.approved.iter().zip(&outcomes) {
                let (text, failed) = match outcome {
                    Ok(text) => (text, false),
                    Err(GatewayError::Tool(text)) => (text, true),
                    Err(GatewayError::Protocol { message, .. }) => (message, true),
                };
                responses::fill(request, &call.id, text, failed);
            }
            self.input.body = write_chat(request);
        }
        let answered = gateway.chat(self.input).await;
        if let (Err(failed), false) = (&answered, outcomes.is_empty()) {
            record.fail(&failed.failure);
        }
        let made = self.approved.into_iter().zip(outcomes).collect();
        (made, answered)
    }
}

/// What came of the approved calls, as parts of the answer.
pub(super) fn results(made: Made) -> impl Iterator<Item = Delta> {
    made.into_iter()
        .map(|(call, outcome)| Delta::GatewayResult(call.id, outcome))
}

/// The response as a whole.
async fn whole(
    (made, answered): (Made, Result<ChatResponse, Failed>),
    app: &App,
    principal: Principal,
    writing: Writing,
) -> Response {
    let answer = match answered {
        Ok(answer) => answer,
        Err(mut failed) => {
            failed.tools_ran |= !made.is_empty();
            return error::response(failed);
        }
    };
    let calls = made
        .iter()
        .map(|(call, _)| Delta::GatewayCall(call.clone()));
    let mut deltas: Vec<Delta> = calls.collect();
    deltas.extend(results(made));
    let (headers, body) = match answer {
        ChatResponse::Plain { headers, body } => (headers, body),
        // The chat asks for its events as a whole, so that the gateway does not answer so.
        ChatResponse::Stream { headers, .. } => (headers, Bytes::new()),
    };
    deltas.extend(read_text(body.len(), || read_chat(body.clone())));
    let written = writing.write_whole(app, principal, deltas).await;
    face::plain(Face::Responses, headers, written)
}

/// The rest of a streamed response.
fn rest(
    answer: ChatResponse,
    writing: Writing,
    app: Arc<App>,
    principal: Principal,
) -> (HeaderMap, Pieces) {
    let Writing { mut writer, keep } = writing;
    match answer {
        ChatResponse::Stream { headers, body } => {
            let keep = Some((keep, app, principal));
            let rest = Translated {
                events: ChatEvents::new(body),
                piece: Vec::new(),
                writer,
                keep,
            };
            (headers, rest.into_stream().boxed())
        }
        // The chat asks for a stream, so that the gateway does not answer so.
        ChatResponse::Plain { headers, body } => {
            let mut out = Vec::new();
            for delta in read_chat(body) {
                writer.write(delta, &mut out);
            }
            writer.finish(&mut out);
            (headers, one(out).boxed())
        }
    }
}

/// The stream that `work` comes to, with a comment each time that it takes `every` longer to begin.
fn with_comments(work: BoxFuture<'static, Pieces>, every: Duration) -> Pieces {
    let steps = stream::unfold(Some(work), move |work| async move {
        let mut work = work?;
        Some(match timeout(every, &mut work).await {
            Ok(rest) => (rest, None),
            Err(_) => (one(KEEPALIVE.to_vec()).boxed(), Some(work)),
        })
    });
    steps.flatten().boxed()
}
