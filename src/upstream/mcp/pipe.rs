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
use tokio::{sync::mpsc, time::Instant};

use super::pending::Pending;

/// Messages that wait in each direction.
const WAITING: usize = 64;

/// The client's end of a connection.
pub(super) struct Pipe {
    outgoing: Option<mpsc::Sender<ClientJsonRpcMessage>>,
    incoming: mpsc::Receiver<ServerJsonRpcMessage>,
    pending: Pending,
    patience: Duration,
    probe: Option<(RequestId, Instant)>,
}

/// The server's end of a connection.
pub(super) struct PipeEnd {
    /// What is to be written. Ends when the client is done.
    pub(super) outgoing: mpsc::Receiver<ClientJsonRpcMessage>,
    /// What was read. Dropping it tells the client that the server is gone.
    pub(super) incoming: mpsc::Sender<ServerJsonRpcMessage>,
    /// The requests that wait for an answer.
    pub(super) pending: Pending,
}

/// The server is gone; nothing was sent.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed")]
pub(super) struct PipeClosed;

/// Makes a pipe that waits `patience` long for an answer to `server/discover`.
pub(super) fn pipe(patience: Duration) -> (Pipe, PipeEnd) {
    let (outgoing_tx, outgoing_rx) = mpsc::channel(WAITING);
    let (incoming_tx, incoming_rx) = mpsc::channel(WAITING);
    let pending = Pending::default();
    let pipe = Pipe {
        outgoing: Some(outgoing_tx),
        incoming: incoming_rx,
        pending: pending.clone(),
        patience,
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
    type Error = PipeClosed;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), PipeClosed>> + Send + 'static {
        self.pending.note_sent(&message);
        if let ClientJsonRpcMessage::Request(request) = &message
            && matches!(request.request, ClientRequest::DiscoverRequest(_))
        {
            self.probe = Some((request.id.clone(), Instant::now() + self.patience));
        }
        // rmcp polls these futures side by side; sending at once keeps a cancellation behind its request.
        let outgoing = self.outgoing.clone();
        let attempt = match &outgoing {
            Some(outgoing) => outgoing.try_send(message),
            None => Err(mpsc::error::TrySendError::Closed(message)),
        };
        async move {
            match (attempt, outgoing) {
                (Ok(()), _) => Ok(()),
                (Err(mpsc::error::TrySendError::Full(message)), Some(outgoing)) => {
                    outgoing.send(message).await.map_err(|_| PipeClosed)
                }
                (Err(_), _) => Err(PipeClosed),
            }
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

    async fn close(&mut self) -> Result<(), PipeClosed> {
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
