//! HTTP+SSE, the transport of 2024-11-05: one stream of events from the server, one POST for every message to it.
//!
//! rmcp has no client for it. See the specification of 2024-11-05, "Transports", "HTTP with SSE".

use std::time::Duration;

use futures::{Stream, StreamExt, stream::BoxStream};
use http::header::{ACCEPT, CONTENT_TYPE};
use rmcp::model::ServerJsonRpcMessage;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use url::Url;

use super::{
    raw_messages::{OutgoingMessage, Pending, Pipe, PipeEnd, pipe},
    web::{self, Framed, WebFault},
};
use crate::{
    lines::ends,
    upstream::{check_values, read_text, too_long},
};
use toolway_protocol::{mcp::deep::read_message, sse::FrameError};

/// How long a message waits for the answer to the one before it, which keeps their order.
const IN_ORDER: Duration = Duration::from_secs(1);

/// Longest time for one POST; what it starts is answered on the stream.
const POST: Duration = Duration::from_secs(60);

/// Most POSTs under way at once.
const POSTS: usize = 32;

type FramedEvents = BoxStream<'static, Result<Framed, reqwest::Error>>;

/// The tasks that serve a connection. Dropping it closes the connection.
pub(super) struct SseLink {
    _tasks: JoinSet<()>,
}

/// Opens the stream and waits for the endpoint. The caller sets the deadline.
pub(super) async fn open(
    client: reqwest::Client,
    url: &Url,
    limit: usize,
    pending: Pending,
) -> Result<(Pipe, SseLink), WebFault> {
    let response = client
        .get(url.clone())
        .header(ACCEPT, "text/event-stream")
        .send()
        .await?;
    if !response.status().is_success() {
        return Err(WebFault::Status(response.status()));
    }
    let media_type = web::media_type(response.headers());
    if media_type != "text/event-stream" {
        return Err(WebFault::NotMcp(media_type));
    }
    let base = response.url().clone();
    let mut events = web::events(response.bytes_stream(), limit).boxed();
    let endpoint = endpoint(&mut events, &base).await?;

    // Only newer servers know `server/discover`, and they do not speak this transport.
    let (
        pipe,
        PipeEnd {
            outgoing,
            incoming,
            pending,
        },
    ) = pipe(Duration::ZERO, pending);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        // A connection is useless without its stream, and also once nothing more will be sent.
        tokio::select! {
            () = read_events(events, incoming, pending) => {}
            () = post_messages(client, endpoint, outgoing) => {}
        }
    });
    Ok((pipe, SseLink { _tasks: tasks }))
}

/// Where messages are posted: named by the first event, and on the server's own origin only.
async fn endpoint(events: &mut FramedEvents, base: &Url) -> Result<Url, WebFault> {
    while let Some(event) = events.next().await {
        let event = event?.ok().and_then(|event| web::fields(&event));
        let Some(event) = event.filter(|event| event.event == "endpoint") else {
            continue;
        };
        let url = base
            .join(event.data.trim())
            .map_err(|error| WebFault::NotMcp(error.to_string()))?;
        if url.origin() != base.origin() {
            return Err(WebFault::NotMcp(
                "its endpoint is on another origin".to_owned(),
            ));
        }
        return Ok(url);
    }
    Err(WebFault::NotMcp("its stream names no endpoint".to_owned()))
}

/// Reads messages until the stream ends or its reader is dropped.
async fn read_events(
    mut events: impl Stream<Item = Result<Framed, reqwest::Error>> + Unpin,
    incoming: mpsc::Sender<ServerJsonRpcMessage>,
    pending: Pending,
) {
    while let Some(Ok(event)) = events.next().await {
        let (bytes, answers) = (web::length(&event), pending.answers());
        let message = match event {
            Ok(event) => {
                let event = web::fields(&event).filter(|event| event.event == "message");
                let data = event.map(|event| event.data).unwrap_or_default();
                match check_values(data.as_bytes()) {
                    Ok(()) => read_text(data.len(), || {
                        let message = read_message(data.as_bytes()).ok()?;
                        pending.read(message, None)
                    }),
                    Err(why) => {
                        let (head, tail) = ends(data.as_bytes());
                        pending.read_cut(head, tail, &why)
                    }
                }
            }
            Err(FrameError::TooLong { limit, head, tail }) => {
                pending.read_cut(after_data_field(&head), &tail, &too_long(limit))
            }
            Err(FrameError::InvalidUtf8 { .. }) => None,
        };
        if let Some(message) = message
            && incoming.send(message).await.is_err()
        {
            return;
        }
        if pending.answers() == answers {
            pending.slow_down(bytes).await;
        }
    }
}

/// The beginning of the data in the beginning of an event.
fn after_data_field(head: &[u8]) -> &[u8] {
    memchr::memmem::find(head, b"data:").map_or(head, |at| &head[at + 5..])
}

/// Posts messages in their order until there are no more.
async fn post_messages(
    client: reqwest::Client,
    endpoint: Url,
    mut outgoing: mpsc::Receiver<OutgoingMessage>,
) {
    let mut posts = JoinSet::new();
    while let Some(message) = outgoing.recv().await {
        posts.spawn(post(client.clone(), endpoint.clone(), message));
        // The next message waits for this one, but only for a limited time: some servers answer a POST only when its
        // work is done.
        let _ = timeout(IN_ORDER, posts.join_next()).await;
        while posts.len() >= POSTS {
            posts.join_next().await;
        }
    }
}

async fn post(client: reqwest::Client, endpoint: Url, message: OutgoingMessage) {
    let (message, sending) = message.begin();
    let Ok(body) = serde_json::to_vec(&message) else {
        return;
    };
    let request = client
        .post(endpoint)
        .timeout(POST)
        .header(CONTENT_TYPE, "application/json");
    let outcome = match request.body(body).send().await {
        Ok(response) if response.status().is_success() => Ok(()),
        Ok(response) => Err(WebFault::of_status(response.status(), response.headers())),
        // The server may still work on the message; its stream has the answer.
        Err(error) if error.is_timeout() && !error.is_connect() => Ok(()),
        Err(error) => Err(WebFault::from(error)),
    };
    sending.finish(outcome);
}
