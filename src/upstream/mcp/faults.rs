//! What went wrong with a call, in words for the model: no addresses, no commands, no HTML.

use rmcp::{model::ErrorData, service::ServiceError};

use crate::tool::CallError;

/// Longest text of a server's own that is passed on in an error, in bytes.
const LONGEST_MESSAGE: usize = 2000;

/// The connection ended, or there is none.
pub(super) fn gone(unsent: bool) -> CallError {
    let message = if unsent {
        "the tool's server is not available right now; try again later"
    } else {
        "the connection to the tool's server was lost during the call; it may have been carried out"
    };
    CallError::UpstreamUnavailable {
        message: message.to_owned(),
        unsent,
    }
}

/// A call that was sent, or was meant to be.
pub(super) fn of_call(error: ServiceError) -> CallError {
    match error {
        ServiceError::McpError(error) => of_server(error),
        ServiceError::Cancelled { .. } => CallError::Cancelled,
        _ => gone(false),
    }
}

fn of_server(error: ErrorData) -> CallError {
    let mut message = error.message.into_owned();
    shorten(&mut message, LONGEST_MESSAGE);
    CallError::Protocol {
        code: i64::from(error.code.0),
        message,
        data: error.data,
    }
}

/// Cuts a text at the last character that ends within so many bytes.
pub(super) fn shorten(text: &mut String, bytes: usize) {
    let end = (0..=bytes.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}
