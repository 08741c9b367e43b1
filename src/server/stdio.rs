//! The face for an MCP client that started toolway itself: one message per line on a pair of pipes.
//!
//! Both eras share the pipes. A request that says that it stands for itself is answered so; `initialize` begins a
//! conversation, of which there is one. Nothing but messages is ever written to the output.

use std::{io, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{
    FutureExt,
    future::{Fuse, FusedFuture},
};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::mpsc,
    task::JoinSet,
    time::{error::Elapsed, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::mcp::{
    client_of_request,
    client_session::ClientSession,
    listen::Subscription,
    outbox::{Next, Outbox, OutboxReader},
    stateless_request::StatelessRequest,
    work::ActiveRequests,
};
use crate::{
    byte_budget::Reservation,
    gateway::{Gateway, RequestSource, mcp::View},
    lines::{Line, next_line},
    store::Principal,
};
use toolway_protocol::{
    json_size::JsonSize,
    mcp::{
        envelope::id_of_cut_response,
        rpc::{self, MessageOrBatch, RpcError, RpcId, RpcMessage, RpcRequest, code},
        stateless::{self, RequestMeta},
        version::Version,
    },
};

/// The bounds of this face.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Longest line, in bytes. Default: 32 MiB.
    pub max_line_bytes: usize,
    /// Deepest nesting of a message. Default: 127, which is also the most.
    pub max_depth: usize,
    /// How long requests may take to end when toolway is stopped or the client has closed its end; then they end
    /// with an error. Default: 10 s.
    pub shutdown_grace: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_line_bytes: 32 << 20,
            max_depth: 127,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

/// Lines that were read and not looked at.
const WAITING: usize = 16;

/// When this many answers wait for a client that does not read, nothing more is read from it.
const MAX_UNREAD: usize = 256;

/// The same in bytes.
const MAX_UNREAD_BYTES: usize = 64 << 20;

/// A client that reads nothing for this long while answers wait counts as gone.
const LONGEST_STALL: Duration = Duration::from_secs(60);

/// How long the last answers may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The owner of these requests; a pipe has one client.
const OWNER: &str = "stdio";

/// Serves one client until it closes its end, stops reading, or `shutdown` ends. Running requests may end for
/// [`Config::shutdown_grace`] then, but not if `shutdown` ends after the client has closed its end.
///
/// # Errors
/// When the input cannot be read.
pub async fn serve(
    gateway: Arc<Gateway>,
    view: Arc<View>,
    config: Config,
    (input, output): (
        impl AsyncRead + Unpin + Send + 'static,
        impl AsyncWrite + Unpin + Send + 'static,
    ),
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (sender, mut lines) = mpsc::channel(WAITING);
    // In their own task, because a partly read line must not be dropped.
    let reading = tokio::spawn(read(input, config.max_line_bytes, sender));
    let stopping = CancellationToken::new();
    let mut pipe = ClientPipe::new(gateway, view, (OWNER.to_owned(), 0), stopping.clone());
    // Used in three places, but it can be awaited only once.
    let mut writing = tokio::spawn(write(output, pipe.outbox.reader(0))).fuse();
    let mut shutdown = pin!(shutdown.fuse());
    // Runs from when toolway stops or the input ends.
    let mut grace = pin!(Fuse::terminated());
    let mut input_ended = false;
    let is_read = loop {
        if pipe.is_idle() && stopping.is_cancelled() {
            break true;
        }
        let outbox = Arc::clone(&pipe.outbox);
        let line = async {
            let room = outbox.has_room(MAX_UNREAD, MAX_UNREAD_BYTES);
            timeout(LONGEST_STALL, room).await?;
            Ok::<_, Elapsed>(lines.recv().await)
        };
        tokio::select! {
            biased;
            () = &mut shutdown => {
                if input_ended {
                    break true;
                }
                stopping.cancel();
                grace.set(sleep(config.shutdown_grace).fuse());
            }
            _ = &mut writing => break false,
            () = &mut grace => break true,
            Some(_) = pipe.at_work.join_next(), if stopping.is_cancelled() => {}
            line = line, if !input_ended => match line {
                Ok(Some(line)) => pipe.take(line, config.max_depth),
                Ok(None) => {
                    input_ended = true;
                    if !stopping.is_cancelled() {
                        stopping.cancel();
                        grace.set(sleep(config.shutdown_grace).fuse());
                    }
                }
                Err(_) => {
                    tracing::warn!("The MCP client does not read its answers");
                    break false;
                }
            },
        }
    };
    stopping.cancel();
    if is_read {
        // What was sent before that is refused.
        while let Ok(line) = lines.try_recv() {
            pipe.take(line, config.max_depth);
        }
        pipe.gateway.end_requests();
        let ended = async { while pipe.at_work.join_next().await.is_some() {} };
        tokio::select! {
            _ = timeout(LAST_WORDS, ended) => {}
            _ = &mut writing => {}
        }
    }
    pipe.at_work.shutdown().await;
    pipe.outbox.close();
    if !writing.is_terminated() {
        let _ = timeout(LAST_WORDS, writing).await;
    }
    if !input_ended {
        reading.abort();
        return Ok(());
    }
    reading.await.unwrap_or(Ok(()))
}

/// Passes lines on until there are none any more.
async fn read(
    input: impl AsyncRead + Unpin,
    limit: usize,
    lines: mpsc::Sender<Line>,
) -> io::Result<()> {
    let mut input = BufReader::with_capacity(64 << 10, input);
    while let Some(line) = next_line(&mut input, limit).await? {
        if lines.send(line).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes messages until the outbox is closed or the client stops reading.
async fn write(mut output: impl AsyncWrite + Unpin, mut said: OutboxReader) -> io::Result<()> {
    loop {
        match said.take() {
            Next::Message(_, message) => {
                let mut line = Vec::with_capacity(message.len() + 1);
                line.extend_from_slice(&message);
                line.push(b'\n');
                output.write_all(&line).await?;
            }
            Next::Nothing => {
                output.flush().await?;
                said.changed().await;
            }
            Next::Over => return output.flush().await,
        }
    }
}

/// One client's messages, in both directions of one connection. Dropping it cancels all its requests.
pub(super) struct ClientPipe {
    gateway: Arc<Gateway>,
    view: Arc<View>,
    /// The owner of the requests.
    owner: String,
    principal: Principal,
    /// What the client is sent.
    pub(super) outbox: Arc<Outbox>,
    /// The requests of the stateless era.
    running: Arc<ActiveRequests>,
    /// The client after `initialize`.
    session: Option<Arc<ClientSession>>,
    at_work: JoinSet<()>,
    /// The reservation of the message that is being received.
    reservation: Option<Arc<Reservation>>,
    stopping: CancellationToken,
}

impl ClientPipe {
    /// A connection of a client that sees `view`. Cancelling `stopping` ends its subscriptions.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        view: Arc<View>,
        (owner, principal): (String, Principal),
        stopping: CancellationToken,
    ) -> ClientPipe {
        ClientPipe {
            gateway,
            view,
            owner,
            principal,
            outbox: Arc::default(),
            running: Arc::default(),
            session: None,
            at_work: JoinSet::new(),
            reservation: None,
            stopping,
        }
    }

    /// Returns whether nothing is running. Removes tasks that have ended.
    pub(super) fn is_idle(&mut self) -> bool {
        while self.at_work.try_join_next().is_some() {}
        self.at_work.is_empty()
    }

    fn take(&mut self, line: Line, max_depth: usize) {
        let line = match line {
            Line::Whole(line) if line.trim_ascii().is_empty() => return,
            Line::Whole(line) => line,
            Line::Cut { head, tail } => {
                let id = id_of_cut_response(&head, &tail).and_then(|id| RpcId::read(&id));
                let why = "Invalid request: the line is too long";
                return self.fail(id.as_ref(), RpcError::new(code::INVALID_REQUEST, why));
            }
        };
        match rpc::read_within(&line, JsonSize::up_to_depth(max_depth)) {
            Ok(incoming) => self.receive(incoming, None),
            Err(malformed) => self
                .outbox
                .must_say(malformed.to_value().to_string().into()),
        }
    }

    /// Handles a message of the client; answers go to the outbox. The message's reservation is held until then.
    pub(super) fn receive(
        &mut self,
        incoming: MessageOrBatch,
        reservation: Option<Arc<Reservation>>,
    ) {
        self.reservation = reservation;
        match incoming {
            MessageOrBatch::One(message) => self.message(message),
            MessageOrBatch::Batch(batch) => self.batch(batch),
        }
        self.reservation = None;
    }

    /// The number of running tasks: requests, and tasks that last as long as the connection.
    pub(super) fn at_work(&self) -> usize {
        self.at_work.len()
    }

    fn message(&mut self, message: RpcMessage) {
        match message {
            RpcMessage::Request(request) if self.stopping.is_cancelled() => {
                let why = "toolway is shutting down; the request was not carried out";
                let error = RpcError::new(code::INTERNAL_ERROR, why);
                self.fail(Some(&request.id), error);
            }
            RpcMessage::Request(request) if is_stateless(&request) => self.once(request),
            RpcMessage::Request(request) if request.method == "initialize" => {
                self.initialize(request);
            }
            RpcMessage::Request(request) => self.request(request),
            RpcMessage::Notification(notification) => {
                if notification.method == "notifications/cancelled" {
                    self.running.cancel(&notification.params);
                }
                if let Some(session) = &self.session {
                    session.notified(&notification);
                }
            }
            RpcMessage::Response(response) => {
                if let Some(session) = &self.session {
                    session.answered(response);
                }
            }
        }
    }

    fn initialize(&mut self, request: RpcRequest) {
        if self.session.is_some() {
            return self.request(request);
        }
        let client = super::mcp::client_name(&request.params);
        tracing::info!(client, "An MCP client came");
        let view = Arc::clone(&self.view);
        match ClientSession::open(
            &self.gateway,
            view,
            (self.owner.clone(), self.principal),
            request.params,
        ) {
            Ok((session, result)) => {
                let session = Arc::new(session);
                self.session = Some(Arc::clone(&session));
                let answer = rpc::write_answer(Some(&request.id), &Ok(result));
                self.outbox.must_say(answer.into());
                let (outbox, stopping) = (Arc::clone(&self.outbox), self.stopping.clone());
                self.at_work.spawn(async move {
                    tokio::select! {
                        () = session.tell(&outbox) => {}
                        () = stopping.cancelled() => {}
                    }
                });
            }
            Err(error) => self.fail(Some(&request.id), error),
        }
    }

    /// A request after `initialize`.
    fn request(&mut self, request: RpcRequest) {
        super::mcp::note(&request, self.short());
        let Some(session) = self.session.clone() else {
            if request.method == "ping" {
                let pong = rpc::write_answer(Some(&request.id), &Ok(json!({})));
                return self.outbox.must_say(pong.into());
            }
            let why =
                "Invalid request: begin with `initialize`, or say in `_meta` which version this is";
            return self.fail(Some(&request.id), RpcError::new(code::INVALID_REQUEST, why));
        };
        let outbox = Arc::clone(&self.outbox);
        let answer = session.answer(
            request,
            RequestSource::default(),
            Some(Arc::clone(&outbox)),
            self.reservation.clone(),
        );
        self.at_work.spawn(async move {
            if let Some(answer) = answer.await {
                outbox.must_say(answer);
            }
        });
    }

    fn batch(&mut self, batch: Vec<Result<RpcMessage, rpc::MalformedMessage>>) {
        let Some(session) = self.session.clone() else {
            let why = "Invalid request: begin with `initialize`, on its own";
            return self.fail(None, RpcError::new(code::INVALID_REQUEST, why));
        };
        match session.sort(batch) {
            Ok(requests) if requests.is_empty() => {}
            Ok(requests) => {
                let outbox = Arc::clone(&self.outbox);
                let (source, reserved) = (RequestSource::default(), self.reservation.as_ref());
                let answers = session.answer_all(requests, &source, Some(&outbox), reserved);
                self.at_work.spawn(async move {
                    if let Some(answers) = answers.await {
                        outbox.must_say(answers);
                    }
                });
            }
            Err(error) => self.fail(None, error),
        }
    }

    /// A request of the stateless era.
    fn once(&mut self, request: RpcRequest) {
        super::mcp::note(&request, self.short());
        let RpcRequest { id, method, params } = request;
        let begun = RequestMeta::read(&params)
            .and_then(|about| Ok((about, self.running.begin(id.clone())?)));
        let (about, place) = match begun {
            Ok(begun) => begun,
            Err(error) => return self.fail(Some(&id), error),
        };
        let once = StatelessRequest {
            gateway: Arc::clone(&self.gateway),
            view: Arc::clone(&self.view),
            owner: self.owner.clone(),
            principal: self.principal,
            source: RequestSource {
                request: None,
                client: client_of_request(&params),
            },
            about,
            outbox: Some(Arc::clone(&self.outbox)),
            reservation: self.reservation.clone(),
        };
        let (outbox, stopping) = (Arc::clone(&self.outbox), self.stopping.clone());
        self.at_work.spawn(async move {
            let outcome = if method == "subscriptions/listen" {
                let listening = async {
                    let subscription = Subscription::open(&once, &id, &params).await?;
                    Ok(subscription.tell(&outbox, &stopping).await)
                };
                place.hold(pin!(listening)).await
            } else {
                place.hold(pin!(once.outcome(method, params))).await
            };
            if let Some(outcome) = outcome {
                outbox.must_say(rpc::write_answer(Some(&id), &outcome).into());
            }
        });
    }

    /// The part of the owner that may be logged: it can be the id of a session.
    fn short(&self) -> &str {
        self.owner.get(..8).unwrap_or(&self.owner)
    }

    fn fail(&self, id: Option<&RpcId>, error: RpcError) {
        self.outbox
            .must_say(Bytes::from(rpc::write_answer(id, &Err(error))));
    }
}

/// The request is of the stateless era, which its `_meta` says.
fn is_stateless(request: &RpcRequest) -> bool {
    match stateless::protocol_version(&request.params) {
        Some(version) => !Version::parse(version).is_some_and(Version::has_handshake),
        None => request.method == "server/discover",
    }
}
