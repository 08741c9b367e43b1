//! Why a request got no answer; `server::error` maps each to a status and a message.

use std::time::Duration;

use crate::upstream::model::ModelError;
use toolway_core::translate::stream::StreamError;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole answer was sent.
    Completed,
    /// The request was at fault.
    Refused,
    /// The client closed the connection before the answer was complete.
    ClientLeft,
    /// The model provider failed.
    UpstreamFailed,
    /// The model provider was silent for too long.
    UpstreamTimeout,
    /// The request took longer than `request_timeout`.
    Deadline,
    /// toolway stopped before the answer was complete.
    Stopped,
    /// toolway failed.
    Failed,
}

impl Outcome {
    /// The value of `outcome` in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Refused => "refused",
            Outcome::ClientLeft => "client_left",
            Outcome::UpstreamFailed => "upstream_failed",
            Outcome::UpstreamTimeout => "upstream_timeout",
            Outcome::Deadline => "deadline",
            Outcome::Stopped => "stopped",
            Outcome::Failed => "failed",
        }
    }

    /// An operator should look at it.
    pub fn is_failure(self) -> bool {
        match self {
            Outcome::UpstreamFailed
            | Outcome::UpstreamTimeout
            | Outcome::Deadline
            | Outcome::Failed => true,
            Outcome::Completed | Outcome::Refused | Outcome::ClientLeft | Outcome::Stopped => false,
        }
    }
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The client's request is at fault.
    #[error("{message}")]
    Request {
        /// What is wrong and what to do.
        message: String,
        /// The member of the body that is at fault.
        param: Option<String>,
        /// OpenAI's code for it, where there is one.
        code: &'static str,
    },
    /// No upstream has the model.
    #[error("no upstream serves the model `{model}`; GET /v1/models lists those that are there")]
    ModelNotFound {
        /// The model that was asked for.
        model: String,
    },
    /// The model provider failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model provider's answer contains an error or is invalid.
    #[error("{error} (upstream `{upstream}`)")]
    Answer {
        /// The upstream's name.
        upstream: String,
        /// What is wrong with its answer.
        error: StreamError,
    },
    /// The request takes more memory than `max_inflight_bytes` leaves.
    #[error(
        "the requests that are being served have too many bytes together; try again in a moment"
    )]
    OverBudget,
    /// toolway is shutting down, and the request did not end in time.
    #[error("toolway is shutting down; the request was not finished")]
    ShuttingDown,
    /// The whole request took too long.
    #[error("the request was not finished within {} s", after.as_secs_f64())]
    TimeIsUp {
        /// The bound.
        after: Duration,
    },
}

impl Failure {
    /// The outcome of a request that fails this way.
    pub fn outcome(&self) -> Outcome {
        match self {
            Failure::Request { .. } | Failure::ModelNotFound { .. } | Failure::OverBudget => {
                Outcome::Refused
            }
            Failure::Model(ModelError::Timeout { .. }) => Outcome::UpstreamTimeout,
            Failure::Model(_) | Failure::Answer { .. } => Outcome::UpstreamFailed,
            Failure::TimeIsUp { .. } => Outcome::Deadline,
            Failure::ShuttingDown => Outcome::Stopped,
        }
    }
}

/// A failure, and whether repeating the request would run tools again.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub failure: Failure,
    /// A tool has been called for this request.
    pub tools_ran: bool,
}

impl<F: Into<Failure>> From<F> for Failed {
    fn from(failure: F) -> Failed {
        Failed {
            failure: failure.into(),
            tools_ran: false,
        }
    }
}
