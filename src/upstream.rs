//! The modules that do network and process IO: to models over HTTP, to MCP servers over pipes and HTTP, and to the
//! backends of OpenAI-style functions.

mod child;
pub mod function;
pub mod mcp;
pub mod model;
mod queue;
pub(crate) mod wire;

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use tokio::runtime::{Handle, RuntimeFlavor};

use toolway_protocol::json_size::{self, MAX_VALUES};

#[cfg(unix)]
pub use self::child::reaper;
pub use self::queue::MAX_WAITING;
pub use self::wire::SetupError;
#[cfg(fuzzing)]
pub use self::wire::differential;

/// The pause that an answer asks for before the request is made again; `Duration::MAX` where it cannot be read. A date
/// that has passed asks for none.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| Some(headers.get(name)?.to_str().unwrap_or_default().trim());
    let seconds = match (text("retry-after-ms"), text("retry-after")) {
        (Some(ms), _) => ms.parse::<f64>().map(|ms| ms / 1000.0),
        (None, Some(text)) => match httpdate::parse_http_date(text) {
            Ok(date) => return date.duration_since(SystemTime::now()).ok(),
            Err(_) => text.parse::<f64>(),
        },
        (None, None) => return None,
    };
    let pause = seconds.ok().map(Duration::try_from_secs_f64);
    Some(pause.and_then(Result::ok).unwrap_or(Duration::MAX))
}

/// Chooses the TLS implementation for the whole process; does nothing when that is done.
pub fn install_tls() {
    // An error means that a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Why a request got no answer, in a word or two and without its URL. The reason lies at the bottom: "connection
/// refused" and not "error sending request".
fn reason(error: reqwest::Error) -> String {
    wire::root(&error.without_url())
}

/// A result limit for messages: in MiB, or in bytes if it is less than one MiB.
fn too_long(limit: usize) -> String {
    match limit >> 20 {
        0 => format!("the result is larger than {limit} bytes"),
        mebibytes => format!("the result is larger than {mebibytes} MiB"),
    }
}

/// Refuses a result of which building its values would take too much memory; the error says so as [`too_long`] does.
fn check_values(result: &[u8]) -> Result<(), String> {
    let checked = json_size::check_values(result, MAX_VALUES);
    checked.map_err(|error| format!("the result has {error}"))
}

/// Longest text that is parsed on a runtime thread, in bytes.
const LONG: usize = 256 << 10;

/// Parses a text of this length. While a long one is parsed, other threads take over this thread's tasks.
pub(crate) fn read_text<T>(length: usize, read: impl FnOnce() -> T) -> T {
    if length <= LONG {
        return read();
    }
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(read),
        _ => read(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_may_be_a_date() {
        let pause = |date: SystemTime| {
            let date = httpdate::fmt_http_date(date).parse().unwrap();
            retry_after(&[(http::header::RETRY_AFTER, date)].into_iter().collect())
        };
        let minute = Duration::from_secs(60);
        let soon = pause(SystemTime::now() + minute).unwrap();
        assert!(soon <= minute && soon > minute / 2, "{soon:?}");
        assert_eq!(pause(SystemTime::now() - minute), None);
    }

    #[test]
    fn a_limit_is_spoken_of_in_mebibytes_or_in_bytes() {
        assert_eq!(too_long(16 << 20), "the result is larger than 16 MiB");
        assert_eq!(too_long(1000), "the result is larger than 1000 bytes");
    }
}
