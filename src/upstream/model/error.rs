//! Why a model provider gave no answer. `server::error` decides whose fault it is and what the client receives;
//! [`retry`](super::retry) decides whether to try again.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use toolway_core::route::targets::Unanswered;
use toolway_protocol::openai::ErrorBody;

/// Why a model provider gave no answer. The message is for the log and does not quote the provider, whose message may
/// contain a key.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No connection; nothing was sent.
    #[error("cannot reach the upstream `{upstream}`: {reason}")]
    Unreachable {
        /// The upstream's name.
        upstream: String,
        /// For the log and the person who runs toolway.
        reason: String,
    },
    /// It was silent for too long.
    #[error("the upstream `{upstream}` was silent for {} s {phase}", after.as_secs_f64())]
    Timeout {
        /// The upstream's name.
        upstream: String,
        /// When: before or within its answer.
        phase: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The connection ended before the answer did.
    #[error("the connection to the upstream `{upstream}` broke: {reason}")]
    Broken {
        /// The upstream's name.
        upstream: String,
        /// For the log.
        reason: String,
    },
    /// It answered with an error status.
    #[error("the upstream `{}` answered {} ({})", .0.upstream, .0.status, .0.error.names())]
    Refused(Box<Refused>),
    /// It answered with something that is not a valid answer.
    #[error("the upstream `{upstream}` answered {what}")]
    Invalid {
        /// The upstream's name.
        upstream: String,
        /// What came instead.
        what: String,
    },
}

impl ModelError {
    /// What it means for asking another model.
    pub(super) fn unanswered(&self) -> Unanswered {
        match self {
            ModelError::Unreachable { .. } => Unanswered::Unreachable,
            ModelError::Timeout { .. } => Unanswered::Silent,
            ModelError::Broken { .. } => Unanswered::Broken,
            ModelError::Refused(refused) => Unanswered::Refused(refused.status.as_u16()),
            ModelError::Invalid { .. } => Unanswered::Invalid,
        }
    }
}

/// An error status of a model provider.
#[derive(Debug)]
pub struct Refused {
    /// The upstream's name.
    pub upstream: String,
    /// Its status, 400–599.
    pub status: StatusCode,
    /// Its error, in OpenAI's form.
    pub error: ErrorBody,
    /// Those of its headers that clients act on.
    pub headers: HeaderMap,
}
