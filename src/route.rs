//! Where and when calls run: which of them side by side, and which may be sent again.
//!
//! Decides only; `gateway` runs what is decided here.

use crate::tool::{Annotations, CallError, ServerId};

/// How the calls of a turn may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Side by side, as far as the servers allow.
    Parallel,
    /// One after another: the client said `parallel_tool_calls: false`.
    Sequential,
}

/// Puts the calls of one turn into lanes: lanes run side by side, the calls of a lane one after another in
/// the order of the model. Calls on a stateful server share a lane.
///
/// `server` tells a call's server, and whether that is stateful.
pub fn lanes<T>(
    calls: Vec<T>,
    order: Order,
    server: impl Fn(&T) -> (&ServerId, bool),
) -> Vec<Vec<T>> {
    if order == Order::Sequential {
        return if calls.is_empty() {
            Vec::new()
        } else {
            vec![calls]
        };
    }
    let mut lanes: Vec<(Option<ServerId>, Vec<T>)> = Vec::new();
    for call in calls {
        let (server, stateful) = server(&call);
        let owner = stateful.then(|| server.clone());
        let shared = lanes
            .iter_mut()
            .find(|(other, _)| stateful && *other == owner);
        match shared {
            Some((_, lane)) => lane.push(call),
            None => lanes.push((owner, vec![call])),
        }
    }
    lanes.into_iter().map(|(_, lane)| lane).collect()
}

/// Most times one call is sent.
pub const MAX_ATTEMPTS: u32 = 2;

/// Whether a call that failed may be sent again: it cannot have happened, or the tool says that calling
/// twice does no harm. What would fail in the same way again is not repeated.
pub fn may_repeat(error: &CallError, annotations: Annotations, attempts: u32) -> bool {
    if attempts >= MAX_ATTEMPTS {
        return false;
    }
    match error {
        CallError::UpstreamUnavailable { unsent, .. } => *unsent || annotations.is_repeatable(),
        CallError::InvalidArgumentsJson { .. }
        | CallError::InvalidParams { .. }
        | CallError::UnknownTool { .. }
        | CallError::Timeout { .. }
        | CallError::Cancelled
        | CallError::Denied { .. }
        | CallError::Busy
        | CallError::Protocol { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(calls: &[(&str, bool)], order: Order, expected: &[&[usize]]) {
        let calls = calls.iter().enumerate().map(|(place, (server, stateful))| {
            (place, ServerId::parse(server).unwrap(), *stateful)
        });
        let lanes = lanes(calls.collect(), order, |(_, server, stateful)| {
            (server, *stateful)
        });
        let places = |lane: &Vec<(usize, ServerId, bool)>| lane.iter().map(|call| call.0).collect();
        let places: Vec<Vec<usize>> = lanes.iter().map(places).collect();
        assert_eq!(places, expected);
    }

    #[test]
    fn calls_on_stateless_servers_run_side_by_side() {
        check(
            &[("a", false), ("a", false), ("b", false)],
            Order::Parallel,
            &[&[0], &[1], &[2]],
        );
    }

    #[test]
    fn calls_on_a_stateful_server_share_a_lane_in_order() {
        let calls = [("a", true), ("b", false), ("a", true), ("c", true)];
        check(&calls, Order::Parallel, &[&[0, 2], &[1], &[3]]);
    }

    #[test]
    fn one_lane_when_the_client_wants_no_parallel_calls() {
        check(&[("a", false), ("b", true)], Order::Sequential, &[&[0, 1]]);
        check(&[], Order::Sequential, &[]);
    }

    #[test]
    fn a_call_that_was_not_sent_is_repeated_once() {
        let lost = CallError::UpstreamUnavailable {
            message: String::new(),
            unsent: true,
        };
        assert!(may_repeat(&lost, Annotations::default(), 1));
        assert!(!may_repeat(&lost, Annotations::default(), 2));
    }

    #[test]
    fn a_call_that_may_have_happened_is_repeated_only_when_that_does_no_harm() {
        let lost = CallError::UpstreamUnavailable {
            message: String::new(),
            unsent: false,
        };
        let read_only = Annotations {
            read_only: Some(true),
            ..Annotations::default()
        };
        let idempotent = Annotations {
            idempotent: Some(true),
            ..Annotations::default()
        };
        assert!(!may_repeat(&lost, Annotations::default(), 1));
        assert!(may_repeat(&lost, read_only, 1));
        assert!(may_repeat(&lost, idempotent, 1));
    }
}
