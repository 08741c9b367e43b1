//! Errors of calls, in words for the model: no addresses, no commands, no HTML.

use std::{fmt, time::Duration};

use http::StatusCode;
use rmcp::{
    model::{ErrorCode, ErrorData},
    service::ServiceError,
    transport::{DynamicTransportError, streamable_http_client::StreamableHttpError},
};

use super::{raw_messages::PipeFault, web::WebFault};
use toolway_protocol::tool::{CallError, RefusalKind};

/// Longest text of a server's own that is passed on in an error, in bytes.
const LONGEST_MESSAGE: usize = 2000;

/// Why a server is not used, for the person who configured it.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    /// What happened, for the log as well.
    pub(super) what: String,
    /// The server's own message. It may quote a key and is not logged.
    pub(super) said: Option<String>,
}

impl From<String> for Outage {
    fn from(what: String) -> Outage {
        Outage { what, said: None }
    }
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.said {
            Some(said) => write!(f, ": {said}"),
            None => Ok(()),
        }
    }
}

/// The connection ended, or there is none.
pub(super) fn gone(unsent: bool) -> CallError {
    let message = if unsent {
        "the tool's server is not available right now; try again later"
    } else {
        "the connection to the tool's server was lost during the call; it may have been carried out"
    };
    unavailable(message.to_owned(), unsent)
}

/// A call that was sent, or was meant to be.
pub(super) fn of_call(error: ServiceError) -> CallError {
    match error {
        ServiceError::McpError(error) => of_server(error),
        ServiceError::Cancelled { .. } => CallError::Cancelled,
        ServiceError::TransportSend(error) => match NotSent::of(&error) {
            NotSent::Web(fault) => of_request(fault),
            NotSent::NoSession | NotSent::NoConnection => gone(true),
            NotSent::Other => gone(false),
        },
        _ => gone(false),
    }
}

/// The failure shows that the server is gone, or was replaced since the connection was made.
pub(super) fn shows_absence(error: &ServiceError) -> bool {
    match error {
        ServiceError::McpError(error) => error.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION,
        ServiceError::TransportSend(error) => match NotSent::of(error) {
            NotSent::Web(WebFault::Unreachable(_)) => true,
            // Outside of a session: another server may be there now.
            NotSent::Web(WebFault::Status(status)) => *status == StatusCode::NOT_FOUND,
            NotSent::NoSession | NotSent::NoConnection => true,
            NotSent::Web(_) | NotSent::Other => false,
        },
        _ => false,
    }
}

/// Why a transport did not send a message.
enum NotSent<'a> {
    /// Its request failed.
    Web(&'a WebFault),
    /// The old session is gone and a new one could not be opened.
    NoSession,
    /// The connection was closed already.
    NoConnection,
    /// Something else; the message may be out.
    Other,
}

impl NotSent<'_> {
    fn of(error: &DynamicTransportError) -> NotSent<'_> {
        use StreamableHttpError as Http;
        match error.error.downcast_ref() {
            Some(PipeFault::Web(fault)) => return NotSent::Web(fault),
            Some(PipeFault::Closed) => return NotSent::NoConnection,
            None => {}
        }
        match error.error.downcast_ref::<Http<WebFault>>() {
            Some(Http::Client(fault)) => NotSent::Web(fault),
            Some(Http::SessionExpired | Http::ReinitializationFailed(_)) => NotSent::NoSession,
            Some(Http::TransportChannelClosed) => NotSent::NoConnection,
            _ => NotSent::Other,
        }
    }
}

fn of_request(fault: &WebFault) -> CallError {
    match fault {
        WebFault::Unreachable(_) => gone(true),
        WebFault::Broken(_) => gone(false),
        WebFault::LostSession => refused(StatusCode::NOT_FOUND, None),
        WebFault::Status(status) => refused(*status, None),
        WebFault::Busy(status, pause) => refused(*status, Some(*pause)),
        WebFault::NotMcp(_) => unavailable(
            "the tool's server answered with something that is not MCP".to_owned(),
            false,
        ),
    }
}

fn refused(status: StatusCode, retry_after: Option<Duration>) -> CallError {
    let code = status.as_u16();
    let refusal = RefusalKind::of_status(code);
    let message = match (status, refusal) {
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
            format!("the tool's server refuses access (HTTP {code})")
        }
        (_, RefusalKind::Final) => format!("the tool's server answered with HTTP {code}"),
        (_, RefusalKind::Later) => {
            format!("the tool's server is busy (HTTP {code}); try again later")
        }
        (_, RefusalKind::Unclear) => {
            format!(
                "the tool's server answered with HTTP {code}; the call may have been carried out"
            )
        }
    };
    CallError::Refused {
        message,
        refusal,
        retry_after,
    }
}

fn unavailable(message: String, unsent: bool) -> CallError {
    CallError::UpstreamUnavailable { message, unsent }
}

fn of_server(error: ErrorData) -> CallError {
    if error.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION {
        // Another server has replaced the known one and has not processed the call.
        return gone(true);
    }
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

#[cfg(test)]
mod tests {
    use super::{super::connection::ListFault, *};

    #[test]
    fn the_words_of_a_server_are_not_for_the_log() {
        let said = ErrorData::new(ErrorCode(-32000), "bad key sk-1", None);
        let fault = ListFault::Service("tools/list", ServiceError::McpError(said));
        let outage = Outage::from(fault);
        assert_eq!(
            outage.what,
            "tools/list failed with the JSON-RPC error -32000"
        );
        assert!(outage.to_string().ends_with(": bad key sk-1"), "{outage}");
    }
}
