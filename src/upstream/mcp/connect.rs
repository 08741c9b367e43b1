//! Makes a connection to a server, whatever the protocol version it speaks.
//!
//! The newest version is tried first, with `server/discover`. A server that answers it with an error, or is silent,
//! gets the handshake of the older versions on the same connection. One that breaks on it is started afresh and gets
//! the handshake at once.

use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::{
    HttpKind, Transport,
    connection::{Connection, Era, Link, handshake},
    faults::Outage,
    legacy_sse,
    pending::Pending,
    server_handle::ServerHandle,
    stdio::{self, Program},
    streamable,
    web::{self, Clients, WebFault},
};
use crate::upstream::child;

/// How long a server of unknown age may be silent on `server/discover`.
const PROBE: Duration = Duration::from_secs(2);

/// Connects before the deadline. `era` is what is known about the server, and learns from the attempt.
pub(super) async fn connect(
    entry: &ServerHandle,
    era: &mut Era,
    deadline: Instant,
) -> Result<Connection, Outage> {
    let mut trying = *era;
    loop {
        match attempt(entry, trying, deadline).await {
            Ok(connection) => {
                *era = if trying == Era::EventStream {
                    trying
                } else {
                    connection.era()
                };
                return Ok(connection);
            }
            Err(Fault {
                next: Some(next), ..
            }) if Instant::now() < deadline => trying = next,
            Err(Fault { outage, .. }) => {
                *era = Era::Unknown;
                return Err(outage);
            }
        }
    }
}

/// Why an attempt failed, and what may be tried at once instead.
struct Fault {
    outage: Outage,
    next: Option<Era>,
}

async fn attempt(entry: &ServerHandle, era: Era, deadline: Instant) -> Result<Connection, Fault> {
    match &entry.config.transport {
        Transport::Stdio {
            command,
            args,
            env,
            cwd,
        } => {
            let program = Program {
                command: command.clone(),
                args: args.clone(),
                env: env.clone(),
                cwd: cwd.clone(),
            };
            attempt_child(entry, &program, era, deadline).await
        }
        Transport::Unavailable { reason, .. } => Err(Fault {
            outage: reason.clone().into(),
            next: None,
        }),
        Transport::Http { url, headers, kind } => {
            let clients = web::clients(url, headers).map_err(|message| Fault {
                outage: message.into(),
                next: None,
            })?;
            let wants_sse = *kind == Some(HttpKind::Sse) || era == Era::EventStream;
            if wants_sse {
                attempt_event_stream(entry, clients.client, url, deadline).await
            } else {
                attempt_streamable(entry, clients, url, *kind, era, deadline).await
            }
        }
    }
}

/// How long the first answer is waited for: a server known to be modern has all its time to start, any other
/// may be an old one that never answers a probe.
fn patience(entry: &ServerHandle, era: Era) -> Duration {
    if era == Era::Discover {
        entry.config.start_timeout
    } else {
        PROBE
    }
}

async fn attempt_child(
    entry: &ServerHandle,
    program: &Program,
    era: Era,
    deadline: Instant,
) -> Result<Connection, Fault> {
    let (server, patience) = (&entry.config.server, patience(entry, era));
    let limit = entry.config.max_message_bytes;
    let pending = Pending::new(entry.unasked());
    let (pipe, link) = stdio::start(
        server,
        program,
        limit,
        patience,
        pending.clone(),
        &entry.stderr,
    )
    .await
    .map_err(|error| Fault {
        outage: child::not_started(&program.command, program.cwd.as_deref(), &error).into(),
        next: None,
    })?;
    match handshake(pipe, server, pending, era, deadline).await {
        Ok(shaken) => Ok(shaken.into_connection("stdio", Link::Child(link))),
        Err(failed) => {
            let next = match era {
                Era::Unknown if link.was_discovered_late() => Some(Era::Discover),
                Era::Unknown | Era::Discover => Some(Era::Handshake),
                Era::Handshake | Era::EventStream => None,
            };
            let ending = if failed.was_cut_off {
                link.ending().await
            } else {
                None
            };
            link.close().await;
            let ending = ending.map(|how| with_advice(&how, &entry.stderr.lines()));
            Err(Fault {
                outage: ending.map_or(failed.outage, Outage::from),
                next,
            })
        }
    }
}

async fn attempt_streamable(
    entry: &ServerHandle,
    clients: Clients,
    url: &Url,
    kind: Option<HttpKind>,
    era: Era,
    deadline: Instant,
) -> Result<Connection, Fault> {
    let (server, patience) = (&entry.config.server, patience(entry, era));
    let pending = Pending::new(entry.unasked());
    let (limit, parallel) = (entry.config.max_message_bytes, entry.config.parallel_calls);
    let (transport, poster) =
        streamable::transport(clients, url, limit, parallel, patience, pending.clone());
    let failed = match handshake(transport, server, pending, era, deadline).await {
        Ok(shaken) => return Ok(shaken.into_connection("http", Link::Streamable(poster))),
        Err(failed) => failed,
    };
    let next = match (poster.refusal(), era) {
        (Some(WebFault::Unreachable(_)), _) => None,
        (Some(WebFault::Status(status)), _) if is_for_another_transport(status) => {
            kind.is_none().then_some(Era::EventStream)
        }
        (Some(WebFault::Status(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)), _) => None,
        (_, Era::Unknown | Era::Discover) => Some(Era::Handshake),
        (_, Era::Handshake | Era::EventStream) => None,
    };
    let refusal = poster.refusal();
    let outage = refusal.map_or(failed.outage, |fault| refused(&fault).into());
    Err(Fault { outage, next })
}

/// Why a server takes no request, with what to do where that is known.
fn refused(fault: &WebFault) -> String {
    match fault {
        WebFault::Status(StatusCode::UNAUTHORIZED) => format!(
            "{fault}; it wants a key: set `headers = {{ Authorization = \"Bearer ${{NAME}}\" }}` \
             (OAuth is not supported yet)"
        ),
        _ => fault.to_string(),
    }
}

/// Words in the standard error of a process that cannot get through to the network.
const OF_THE_NETWORK: [&str; 9] = [
    "certificate",
    "self_signed",
    "self-signed",
    "ssl",
    "tls",
    "proxy",
    "econnrefused",
    "enotfound",
    "eai_again",
];

/// How a process ended at its start, with what to do: the usual reason is something that its environment lacks.
fn with_advice(how: &str, stderr: &[String]) -> String {
    let is_of_network = |line: &String| {
        let line = line.to_ascii_lowercase();
        OF_THE_NETWORK.iter().any(|word| line.contains(word))
    };
    match stderr.iter().any(is_of_network) {
        true => format!(
            "{how}; of toolway's environment variables it gets only the usual few: name those for a proxy or \
             certificates, such as `inherit_env = [\"HTTPS_PROXY\", \"SSL_CERT_FILE\", \"NODE_EXTRA_CA_CERTS\"]`"
        ),
        false => format!(
            "{how}; of toolway's environment variables it gets only the usual few: name others that it needs \
             in `inherit_env`, or set them in `env`"
        ),
    }
}

/// What an HTTP+SSE server answers to a message posted where its stream is
/// (2025-11-25, "Transports", "Backwards Compatibility").
fn is_for_another_transport(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
    )
}

async fn attempt_event_stream(
    entry: &ServerHandle,
    client: reqwest::Client,
    url: &Url,
    deadline: Instant,
) -> Result<Connection, Fault> {
    let fault = |outage| Fault { outage, next: None };
    let (server, pending) = (&entry.config.server, Pending::new(entry.unasked()));
    let limit = entry.config.max_message_bytes;
    let opening = legacy_sse::open(client, url, limit, pending.clone());
    let (pipe, link) = match timeout_at(deadline, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return Err(fault(refused(&error).into())),
        Err(_) => {
            let late = "the server did not get ready in time".to_owned();
            return Err(fault(late.into()));
        }
    };
    match handshake(pipe, server, pending, Era::EventStream, deadline).await {
        Ok(shaken) => Ok(shaken.into_connection("sse", Link::EventStream(link))),
        Err(failed) => Err(fault(failed.outage)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_at_its_start_comes_with_what_to_do() {
        let advice = |line: &str| with_advice("it ended", &[line.to_owned()]);
        let tls = advice(
            "npm error code UNABLE_TO_GET_ISSUER_CERT: unable to get local issuer certificate",
        );
        assert!(tls.contains("`inherit_env = [\"HTTPS_PROXY\""), "{tls}");
        let other = advice("TypeError: x");
        assert!(
            other.starts_with("it ended; of toolway's environment variables it gets only"),
            "{other}"
        );
        assert!(other.ends_with("or set them in `env`"), "{other}");
    }

    #[test]
    fn a_server_that_wants_a_key_comes_with_what_to_do() {
        let text = refused(&WebFault::Status(StatusCode::UNAUTHORIZED));
        assert!(
            text.contains("headers = { Authorization = \"Bearer ${NAME}\" }"),
            "{text}"
        );
        let text = refused(&WebFault::Status(StatusCode::BAD_GATEWAY));
        assert!(text.ends_with("502 Bad Gateway"), "{text}");
    }
}
