//! rmcp's transport, made of two channels; the tasks at their other ends do the reading and the writing.
//!
//! It also keeps the probe for 2026-07-28 short: an old server may stay silent on `server/discover`, and rmcp would
//! wait 10 s for it.

use std::time::Duration;

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ClientRequest, RequestId, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time::Instant,
};

use super::pending::Pending;
use crate::upstream::mcp::web::WebFault;

/// Messages that wait in each direction.
const WAITING: usize = 64;

/// The client's end of a connection.
pub(in crate::upstream::mcp) struct Pipe {
    outgoing: Option<mpsc::Sender<OutgoingMessage>>,
    incoming: mpsc::Receiver<ServerJsonRpcMessage>,
    pending: Pending,
    probe_timeout: Duration,
    probe: Option<(RequestId, Instant)>,
}

/// The server's end of a connection.
pub(in crate::upstream::mcp) struct PipeEnd {
    /// Messages to write. Ends when the client is done.
    pub(in crate::upstream::mcp) outgoing: mpsc::Receiver<OutgoingMessage>,
    /// Messages that were read. Dropping it tells the client that the server is gone.
    pub(in crate::upstream::mcp) incoming: mpsc::Sender<ServerJsonRpcMessage>,
    /// The requests that wait for an answer.
    pub(in crate::upstream::mcp) pending: Pending,
}

/// A message to be sent.
pub(in crate::upstream::mcp) struct OutgoingMessage {
    message: Box<ClientJsonRpcMessage>,
    sent: oneshot::Sender<Result<(), WebFault>>,
}

/// A message that is being sent. Dropping it says that the message may or may not be out.
pub(in crate::upstream::mcp) struct PendingSend(Option<oneshot::Sender<Result<(), WebFault>>>);

impl OutgoingMessage {
    /// Begins to send. If this is never called, the message was not sent.
    pub(in crate::upstream::mcp) fn begin(self) -> (Box<ClientJsonRpcMessage>, PendingSend) {
        (self.message, PendingSend(Some(self.sent)))
    }
}

impl PendingSend {
    /// Reports that the message was sent, or that its request failed.
    pub(in crate::upstream::mcp) fn finish(mut self, outcome: Result<(), WebFault>) {
        if let Some(sent) = self.0.take() {
            let _ = sent.send(outcome);
        }
    }

    /// The message was not sent.
    pub(in crate::upstream::mcp) fn give_up(mut self) {
        self.0 = None;
    }
}

impl Drop for PendingSend {
    fn drop(&mut self) {
        if let Some(sent) = self.0.take() {
            let _ = sent.send(Err(WebFault::Broken("the connection ended".to_owned())));
        }
    }
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub(in crate::upstream::mcp) enum PipeFault {
    /// The server is gone; nothing was sent.
    #[error("the connection is closed")]
    Closed,
    /// The request that should have carried it failed.
    #[error(transparent)]
    Web(#[from] WebFault),
}

/// Makes a pipe that waits `probe_timeout` long for an answer to `server/discover`.
pub(in crate::upstream::mcp) fn pipe(probe_timeout: Duration, pending: Pending) -> (Pipe, PipeEnd) {
    let (outgoing_tx, outgoing_rx) = mpsc::channel(WAITING);
    let (incoming_tx, incoming_rx) = mpsc::channel(WAITING);
    let pipe = Pipe {
        outgoing: Some(outgoing_tx),
        incoming: incoming_rx,
        pending: pending.clone(),
        probe_timeout,
        probe: None,
    };
    (
        pipe,
        PipeEnd {
            outgoing: outgoing_rx,
            incoming: incoming_tx,
            pending,
        },
    )
}

impl Transport<RoleClient> for Pipe {
    type Error = PipeFault;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), PipeFault>> + Send + 'static {
        self.pending.note_sent(&message);
        if let ClientJsonRpcMessage::Request(request) = &message
            && matches!(request.request, ClientRequest::DiscoverRequest(_))
        {
            self.probe = Some((request.id.clone(), Instant::now() + self.probe_timeout));
        }
        // rmcp polls these futures side by side; sending at once keeps a cancellation behind its request.
        let outgoing = self.outgoing.clone();
        let (sent, is_sent) = oneshot::channel();
        let message = Box::new(message);
        let attempt = outgoing
            .as_ref()
            .map(|outgoing| outgoing.try_send(OutgoingMessage { message, sent }));
        async move {
            if let (Some(Err(TrySendError::Full(message))), Some(outgoing)) = (attempt, outgoing) {
                outgoing
                    .send(message)
                    .await
                    .map_err(|_| PipeFault::Closed)?;
            }
            is_sent
                .await
                .map_err(|_| PipeFault::Closed)?
                .map_err(PipeFault::Web)
        }
    }

    /// Cancel safe: nothing is taken before it is returned.
    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let Some((id, deadline)) = self.probe.clone() else {
                return self.incoming.recv().await;
            };
            match tokio::time::timeout_at(deadline, self.incoming.recv()).await {
                Ok(message) => {
                    if message
                        .as_ref()
                        .is_some_and(|message| answers(message, &id))
                    {
                        self.probe = None;
                    }
                    return message;
                }
                Err(_) => {
                    self.probe = None;
                    if let Some(error) = self.pending.give_up(&id, "no answer to server/discover") {
                        return Some(error);
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), PipeFault> {
        self.outgoing = None;
        self.incoming.close();
        Ok(())
    }
}

fn answers(message: &ServerJsonRpcMessage, id: &RequestId) -> bool {
    match message {
        ServerJsonRpcMessage::Response(response) => response.id == *id,
        ServerJsonRpcMessage::Error(error) => error.id.as_ref().is_none_or(|other| other == id),
        ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => false,
    }
}
