//! The limit of open files: raised at the start, and the number of requests is lowered to fit it.
//!
//! A request takes two descriptors, one for its client and one for its model; without enough of them, no client
//! can connect any more. Children inherit the raised limit.

use crate::{config::Config, server};

/// The files that toolway needs besides connections: the listener, the runtime, pipes, files that are read.
const OWN: u64 = 64;

/// The files that a server or a group of functions needs besides its calls.
const OF_SERVER: u64 = 8;

/// Raises the limit of open files as far as the system allows, and lowers the bounds of `config` to fit it. Both are
/// logged.
pub(super) fn fit(config: &mut Config) {
    let Some(limit) = raise() else { return };
    let of_servers = config.servers.iter().map(|it| it.parallel_calls);
    let of_functions = config.functions.iter().map(|it| it.parallel_calls);
    let calls = of_servers.chain(of_functions);
    let others = OWN + calls.map(|calls| OF_SERVER + calls as u64).sum::<u64>();
    let wanted = OpenFileLimits::of(&config.server);
    let bounds = wanted.within(limit, others);
    if bounds == wanted {
        return;
    }
    let (served, asked, needed) = (bounds.requests, wanted.requests, wanted.files() + others);
    tracing::warn!(
        "At most {limit} files can be open, so {served} requests are served side by side and not {asked}; \
         that takes {needed} (`ulimit -n {needed}`, `LimitNOFILE={needed}`)"
    );
    config.server.max_requests = bounds.requests;
    config.server.max_idle = bounds.idle;
    config.server.mcp.max_streams = bounds.streams;
}

/// What toolway serves at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenFileLimits {
    requests: usize,
    /// Streams of notifications.
    streams: usize,
    /// Connections without a request.
    idle: usize,
}

impl OpenFileLimits {
    fn of(config: &server::Config) -> OpenFileLimits {
        OpenFileLimits {
            requests: config.max_requests,
            streams: config.mcp.max_streams,
            idle: config.max_idle,
        }
    }

    /// The number of files that this needs.
    fn files(self) -> u64 {
        2 * self.requests as u64 + self.streams as u64 + self.idle as u64
    }

    /// The part of this that fits into `limit` files, of which `others` are used otherwise: an eighth each for streams
    /// and idle connections, the rest for requests; each at least one.
    fn within(self, limit: u64, others: u64) -> OpenFileLimits {
        let free = limit.saturating_sub(others);
        if self.files() <= free {
            return self;
        }
        let free = usize::try_from(free).unwrap_or(usize::MAX);
        let eighth = (free / 8).max(1);
        let (streams, idle) = (self.streams.min(eighth), self.idle.min(eighth));
        OpenFileLimits {
            requests: (free.saturating_sub(streams + idle) / 2).clamp(1, self.requests),
            streams,
            idle,
        }
    }
}

/// Most that the limit is raised to. Children inherit it, and some close every descriptor up to it when they start.
const MOST: u64 = 1 << 20;

/// Raises the soft limit to the hard one, at most to [`MOST`], and returns it; `None` where there is no such limit.
#[cfg(unix)]
fn raise() -> Option<u64> {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(RLIMIT_NOFILE).ok()?;
    let raised = hard.min(MOST);
    if soft < raised {
        match setrlimit(RLIMIT_NOFILE, raised, hard) {
            Ok(()) => tracing::info!("Raised the limit of open files from {soft} to {raised}"),
            Err(error) => {
                tracing::warn!(%error, "The limit of open files, {soft}, cannot be raised");
            }
        }
    }
    getrlimit(RLIMIT_NOFILE).ok().map(|(soft, _)| soft)
}

#[cfg(not(unix))]
fn raise() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_fits_the_limit() {
        let wanted = OpenFileLimits::of(&server::Config::default());
        assert_eq!(wanted.files(), 10_240);
        let bounds = |requests, streams, idle| OpenFileLimits {
            requests,
            streams,
            idle,
        };
        for (limit, expected) in [
            (1 << 20, wanted),
            (10_304, wanted),
            (10_303, bounds(4095, 1024, 1024)),
            (1024, bounds(360, 120, 120)),
            (256, bounds(72, 24, 24)),
            (10, bounds(1, 1, 1)),
        ] {
            let fitted = wanted.within(limit, 64);
            assert_eq!(fitted, expected, "{limit}");
            assert!(limit < 100 || fitted.files() + 64 <= limit);
        }
    }

    #[test]
    fn few_requests_leave_the_rest_alone() {
        let few = OpenFileLimits {
            requests: 10,
            streams: 1024,
            idle: 1024,
        };
        let fitted = few.within(1024, 64);
        assert_eq!((fitted.requests, fitted.streams), (10, 120));
    }
}
