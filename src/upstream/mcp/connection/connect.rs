//! Makes a connection to a server, whatever the protocol version it speaks.
//!
//! The newest version is tried first, with `server/discover`. A server that answers it with an error, or is silent,
//! gets the handshake of the older versions on the same connection. One that breaks on it is restarted and gets the
//! handshake at once.

use std::time::Duration;

use http::{HeaderName, StatusCode};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::{Era, Link, ServerConnection, handshake};
use crate::upstream::{
    child,
    mcp::{
        HttpKind, Transport,
        faults::Outage,
        legacy_sse,
        lifecycle::ServerHandle,
        raw_messages::Pending,
        stdio::{self, Program},
        streamable,
        web::{self, Clients, WebFault},
    },
};

/// How long a server of unknown age may be silent on `server/discover`.
const PROBE: Duration = Duration::from_secs(2);

/// Connects before the deadline. `era` is what is known about the server, and learns from the attempt.
pub(in crate::upstream::mcp) async fn connect(
    handle: &ServerHandle,
    era: &mut Era,
    deadline: Instant,
) -> Result<ServerConnection, Outage> {
    let mut trying = *era;
    loop {
        match attempt(handle, trying, deadline).await {
            Ok(connection) => {
                *era = if trying == Era::EventStream {
                    trying
                } else {
                    connection.era()
                };
                return Ok(connection);
            }
            Err(FailedAttempt {
                next: Some(next), ..
            }) if Instant::now() < deadline => trying = next,
            Err(FailedAttempt { outage, .. }) => {
                *era = Era::Unknown;
                return Err(outage);
            }
        }
    }
}

/// Why an attempt failed, and what may be tried at once instead.
struct FailedAttempt {
    outage: Outage,
    next: Option<Era>,
}

async fn attempt(
    handle: &ServerHandle,
    era: Era,
    deadline: Instant,
) -> Result<ServerConnection, FailedAttempt> {
    match &handle.config.transport {
        Transport::Stdio {
            command,
            args,
            env,
            cwd,
            isolation,
        } => {
            let mut program = Program {
                command: command.clone(),
                args: args.clone(),
                env: env.clone(),
                cwd: cwd.clone(),
                cleanup: Vec::new(),
            };
            if let Some(isolation) = isolation {
                program = program.isolated(&handle.config.server, isolation);
            }
            attempt_child(handle, &program, era, deadline).await
        }
        Transport::Unavailable { reason, .. } => Err(FailedAttempt {
            outage: reason.clone().into(),
            next: None,
        }),
        Transport::Http { url, headers, kind } => {
            let clients = web::clients(url, headers).map_err(|message| FailedAttempt {
                outage: message.into(),
                next: None,
            })?;
            let wants_sse = *kind == Some(HttpKind::Sse) || era == Era::EventStream;
            if wants_sse {
                attempt_event_stream(handle, clients.client, url, deadline).await
            } else {
                attempt_streamable(handle, clients, url, *kind, era, deadline).await
            }
        }
    }
}

/// Longest wait for the answer to `server/discover`: the whole start timeout for a server known to be modern. Any other
/// may be an old one that never answers.
fn probe_timeout(handle: &ServerHandle, era: Era) -> Duration {
    if era == Era::Discover {
        handle.config.start_timeout
    } else {
        PROBE
    }
}

async fn attempt_child(
    handle: &ServerHandle,
    program: &Program,
    era: Era,
    deadline: Instant,
) -> Result<ServerConnection, FailedAttempt> {
    let (server, probe_timeout) = (&handle.config.server, probe_timeout(handle, era));
    let limit = handle.config.max_message_bytes;
    let pending = Pending::new(handle.notifications());
    let (pipe, link) = stdio::start(
        server,
        program,
        limit,
        probe_timeout,
        pending.clone(),
        &handle.stderr,
    )
    .await
    .map_err(|error| FailedAttempt {
        outage: child::not_started(&program.command, program.cwd.as_deref(), &error).into(),
        next: None,
    })?;
    match handshake(pipe, server, pending, era, deadline).await {
        Ok(negotiated) => Ok(negotiated.into_connection(Link::Child(link))),
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
            let ending = ending.map(|how| with_advice(&how, &handle.stderr.lines()));
            Err(FailedAttempt {
                outage: ending.map_or(failed.outage, Outage::from),
                next,
            })
        }
    }
}

async fn attempt_streamable(
    handle: &ServerHandle,
    clients: Clients,
    url: &Url,
    kind: Option<HttpKind>,
    era: Era,
    deadline: Instant,
) -> Result<ServerConnection, FailedAttempt> {
    let (server, probe_timeout) = (&handle.config.server, probe_timeout(handle, era));
    let pending = Pending::new(handle.notifications());
    let (limit, parallel) = (
        handle.config.max_message_bytes,
        handle.config.parallel_calls,
    );
    let (transport, poster) = streamable::transport(
        clients,
        url,
        limit,
        parallel,
        probe_timeout,
        pending.clone(),
    );
    let failed = match handshake(transport, server, pending, era, deadline).await {
        Ok(negotiated) => return Ok(negotiated.into_connection(Link::Streamable(poster))),
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
    let outage = refusal.map_or(failed.outage, |fault| {
        refused(&fault, &handle.config.transport).into()
    });
    Err(FailedAttempt { outage, next })
}

/// Why a server accepts no request, with advice if there is any.
fn refused(fault: &WebFault, transport: &Transport) -> String {
    match fault {
        WebFault::Status(status @ StatusCode::NOT_FOUND) => {
            format!("what answers at this URL is no MCP server (HTTP {status}); is the URL right?")
        }
        WebFault::Status(StatusCode::METHOD_NOT_ALLOWED) => {
            format!("{fault}; is the URL right?")
        }
        WebFault::Status(StatusCode::UNAUTHORIZED) => match key_header(transport) {
            Some(name) => format!(
                "{fault}; it refuses the key in the header `{name}`: is it right, and still valid?"
            ),
            None => format!(
                "{fault}; it wants a key: set `headers = {{ Authorization = \"Bearer ${{NAME}}\" }}` \
                 (OAuth is not supported yet)"
            ),
        },
        _ => fault.to_string(),
    }
}

/// The header that seems to carry the key for a server, by its name.
fn key_header(transport: &Transport) -> Option<&HeaderName> {
    let Transport::Http { headers, .. } = transport else {
        return None;
    };
    let is_key = |name: &&HeaderName| {
        ["auth", "key", "token"]
            .iter()
            .any(|word| name.as_str().contains(word))
    };
    headers.iter().map(|(name, _)| name).find(is_key)
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

/// What a program says whose environment lacks something.
const OF_THE_ENVIRONMENT: [&str; 10] = [
    "environ",
    "env ",
    "env.",
    "variable",
    "not set",
    "token",
    "key",
    "credential",
    "password",
    "npm err",
];

/// How a process exited at its start, with its standard error and, where that may be the cause, a hint about missing
/// environment variables.
fn with_advice(how: &str, stderr: &[String]) -> String {
    // `exit status: 0`, and on Windows `exit code: 0`.
    if how.ends_with(": 0)") {
        return format!("{how} without speaking MCP; is it an MCP server?");
    }
    let has = |line: &&String, words: &[&str]| {
        let line = line.to_ascii_lowercase();
        words.iter().any(|word| line.contains(word))
    };
    let mut said = stderr.iter().filter(|line| !line.trim().is_empty());
    let of_the_network = stderr.iter().any(|line| has(&line, &OF_THE_NETWORK));
    let has_hint = of_the_network
        || said.next().is_none()
        || stderr.iter().any(|line| has(&line, &OF_THE_ENVIRONMENT));
    let variables = match of_the_network {
        true => {
            "those for a proxy or certificates (`HTTPS_PROXY`, `SSL_CERT_FILE`, `NODE_EXTRA_CA_CERTS`)"
        }
        false => "others that it needs",
    };
    // Stack traces follow the error, and logs of npm its first line.
    let cause = stderr.iter().rfind(|line| has(line, &["error:"]));
    let cause = cause.or_else(|| stderr.iter().find(|line| has(line, &["err"])));
    let cause = cause.or_else(|| stderr.iter().rfind(|line| !line.trim().is_empty()));
    let cause = cause.map_or(String::new(), |line| format!(": {}", line.trim()));
    if !has_hint {
        return format!("{how}{cause}");
    }
    format!(
        "{how}{cause} (it gets only the usual few of toolway's environment variables: set {variables} \
         in its `env`, or in toolway.toml name them in `inherit_env`)"
    )
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
    handle: &ServerHandle,
    client: reqwest::Client,
    url: &Url,
    deadline: Instant,
) -> Result<ServerConnection, FailedAttempt> {
    let fault = |outage| FailedAttempt { outage, next: None };
    let (server, pending) = (&handle.config.server, Pending::new(handle.notifications()));
    let limit = handle.config.max_message_bytes;
    let opening = legacy_sse::open(client, url, limit, pending.clone());
    let (pipe, link) = match timeout_at(deadline, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return Err(fault(refused(&error, &handle.config.transport).into())),
        Err(_) => {
            let late = "the server did not get ready in time".to_owned();
            return Err(fault(late.into()));
        }
    };
    match handshake(pipe, server, pending, Era::EventStream, deadline).await {
        Ok(negotiated) => Ok(negotiated.into_connection(Link::EventStream(link))),
        Err(failed) => Err(fault(failed.outage)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    #[test]
    fn a_process_that_ends_at_its_start_comes_with_what_to_do() {
        #[track_caller]
        fn check(stderr: &str, start: &str) {
            let lines: Vec<String> = stderr.lines().map(str::to_owned).collect();
            let text = with_advice("it ended (exit status: 1)", &lines);
            let start = format!("it ended (exit status: 1){start}");
            assert!(text.starts_with(&start), "{text}");
        }
        let usual = " (it gets only the usual few of toolway's environment variables: set";
        check(
            "npm error code E404\nnpm error A complete log is in x",
            &format!(": npm error code E404{usual} others"),
        );
        check(
            "npm error code SELF_SIGNED_CERT\nnpm error A complete log is in x",
            &format!(": npm error code SELF_SIGNED_CERT{usual} those for a proxy"),
        );
        check(
            "Traceback\nKeyError: 'API_TOKEN'",
            &format!(": KeyError: 'API_TOKEN'{usual} others"),
        );
        check("", usual);
    }

    #[test]
    fn a_process_that_fails_for_another_reason_comes_without_a_hint() {
        let node = ["throw err;", "Error: no module", "    at x", "Node.js v22"];
        for (stderr, cause) in [(&node[..], "Error: no module"), (&["usage: x"], "usage: x")] {
            let lines: Vec<String> = stderr.iter().map(|it| (*it).to_owned()).collect();
            let text = with_advice("it ended (exit status: 1)", &lines);
            assert_eq!(text, format!("it ended (exit status: 1): {cause}"));
        }
    }

    #[test]
    fn a_process_that_ends_without_a_failure_may_be_no_mcp_server() {
        let text = with_advice("it ended (exit status: 0)", &["done".to_owned()]);
        assert_eq!(
            text,
            "it ended (exit status: 0) without speaking MCP; is it an MCP server?"
        );
    }

    #[test]
    fn a_server_that_wants_a_key_comes_with_what_to_do() {
        let with = |headers| Transport::Http {
            url: Url::parse("http://a/mcp").unwrap(),
            headers,
            kind: None,
        };
        let own = |name| (HeaderName::from_static(name), Secret::new("sk-1"));
        let (open, unauthorized) = (with(vec![own("x-tenant")]), StatusCode::UNAUTHORIZED);
        for name in ["authorization", "x-api-key"] {
            let keyed = with(vec![own("x-tenant"), own(name)]);
            let text = refused(&WebFault::Status(unauthorized), &keyed);
            let end =
                format!("it refuses the key in the header `{name}`: is it right, and still valid?");
            assert!(text.ends_with(&end), "{text}");
        }
        let text = refused(&WebFault::Status(unauthorized), &open);
        assert!(
            text.contains("headers = { Authorization = \"Bearer ${NAME}\" }"),
            "{text}"
        );
        let text = refused(&WebFault::Status(StatusCode::NOT_FOUND), &open);
        assert!(
            text.contains("no MCP server (HTTP 404 Not Found)"),
            "{text}"
        );
        let text = refused(&WebFault::Status(StatusCode::BAD_GATEWAY), &open);
        assert!(text.ends_with("502 Bad Gateway"), "{text}");
    }
}
