//! Where and when calls run: which of them side by side, and which may be sent again; [`cache`] says whose
//! results serve again, and [`targets`] which model is asked.
//!
//! Decides only; `gateway` runs what is decided here.

pub mod cache;
pub mod targets;

use std::time::Duration;

use toolway_protocol::tool::{Annotations, CallError, RefusalKind, ServerId};

/// How the calls of a turn may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Side by side, as far as the servers allow.
    Parallel,
    /// One after another: the client said `parallel_tool_calls: false`.
    Sequential,
}

/// Puts the calls of one turn into lanes: lanes run side by side, the calls of a lane one after another in
/// the order of the model. The calls of one server that must run in order share a lane.
///
/// `server` tells a call's server, and whether the call [runs in order](crate::catalog::Offered::runs_in_order).
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
        let (server, in_order) = server(&call);
        let owner = in_order.then(|| server.clone());
        let shared = lanes
            .iter_mut()
            .find(|(other, _)| in_order && *other == owner);
        match shared {
            Some((_, lane)) => lane.push(call),
            None => lanes.push((owner, vec![call])),
        }
    }
    lanes.into_iter().map(|(_, lane)| lane).collect()
}

/// Most times one call is sent, where its client does not say otherwise.
pub const MAX_ATTEMPTS: u32 = 2;

/// How often one call is tried, and after what pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    max_attempts: u32,
    /// In milliseconds; the first `given` count, and the last of them for all that follow.
    pauses: [u16; Retries::MAX_PAUSES],
    given: u8,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries {
            max_attempts: MAX_ATTEMPTS,
            pauses: [0; Retries::MAX_PAUSES],
            given: 0,
        }
    }
}

impl Retries {
    /// Most pauses that can be given.
    const MAX_PAUSES: usize = 9;
    /// Most attempts.
    const MAX_ATTEMPTS: u64 = 10;
    /// Longest pause, in milliseconds.
    const MAX_PAUSE: u16 = 60_000;

    /// What a client asks for; `None` where that is too much. `pauses` are in milliseconds.
    pub fn new(max_attempts: Option<u64>, pauses: &[u64]) -> Option<Retries> {
        let mut retries = Retries::default();
        if let Some(attempts) = max_attempts {
            let is_bounded = (1..=Retries::MAX_ATTEMPTS).contains(&attempts);
            retries.max_attempts = u32::try_from(attempts).ok().filter(|_| is_bounded)?;
        }
        for (at, pause) in pauses.iter().enumerate() {
            let pause = u16::try_from(*pause).ok();
            let pause = pause.filter(|pause| *pause <= Retries::MAX_PAUSE)?;
            *retries.pauses.get_mut(at)? = pause;
            retries.given += 1;
        }
        Some(retries)
    }

    /// The pause after so many attempts.
    fn pause(&self, attempts: u32) -> Duration {
        let count = usize::from(self.given).min(attempts as usize);
        let pause = count.checked_sub(1).and_then(|at| self.pauses.get(at));
        Duration::from_millis(pause.copied().unwrap_or_default().into())
    }
}

/// The pause before a call is sent again that was answered with an HTTP error which names none.
const PAUSE: Duration = Duration::from_millis(500);

/// The pause before a call that failed is sent again; `None`: it is not sent again.
///
/// A call is repeated only if it cannot have happened, or if the tool says that calling twice does no harm, and only if
/// it may fare better. `left` is how long the call may still take; a pause that does not fit is not begun.
pub fn repeat_after(
    error: &CallError,
    annotations: Annotations,
    retries: Retries,
    attempts: u32,
    left: Duration,
) -> Option<Duration> {
    if attempts >= retries.max_attempts {
        return None;
    }
    let (may_repeat, pause) = match error {
        CallError::UpstreamUnavailable { unsent, .. } => {
            (*unsent || annotations.is_repeatable(), Duration::ZERO)
        }
        CallError::Refused {
            refusal,
            retry_after,
            ..
        } => {
            let may_repeat = match refusal {
                RefusalKind::Final => false,
                RefusalKind::Later => true,
                RefusalKind::Unclear => annotations.is_repeatable(),
            };
            (may_repeat, retry_after.unwrap_or(PAUSE))
        }
        CallError::InvalidArgumentsJson { .. }
        | CallError::InvalidParams { .. }
        | CallError::UnknownTool { .. }
        | CallError::Timeout { .. }
        | CallError::Cancelled
        | CallError::Denied { .. }
        | CallError::WaitingForApproval { .. }
        | CallError::Busy
        | CallError::Protocol { .. } => return None,
    };
    let pause = pause.max(retries.pause(attempts));
    (may_repeat && pause < left).then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(calls: &[(&str, bool)], order: Order, expected: &[&[usize]]) {
        let calls = calls.iter().enumerate().map(|(place, (server, in_order))| {
            (place, ServerId::parse(server).unwrap(), *in_order)
        });
        let lanes = lanes(calls.collect(), order, |(_, server, in_order)| {
            (server, *in_order)
        });
        let places = |lane: &Vec<(usize, ServerId, bool)>| lane.iter().map(|call| call.0).collect();
        let places: Vec<Vec<usize>> = lanes.iter().map(places).collect();
        assert_eq!(places, expected);
    }

    #[test]
    fn calls_that_need_no_order_run_side_by_side() {
        check(
            &[("a", false), ("a", false), ("b", false)],
            Order::Parallel,
            &[&[0], &[1], &[2]],
        );
    }

    #[test]
    fn the_calls_of_one_server_that_run_in_order_share_a_lane() {
        let calls = [("a", true), ("b", false), ("a", true), ("c", true)];
        check(&calls, Order::Parallel, &[&[0, 2], &[1], &[3]]);
    }

    #[test]
    fn one_lane_when_the_client_wants_no_parallel_calls() {
        check(&[("a", false), ("b", true)], Order::Sequential, &[&[0, 1]]);
        check(&[], Order::Sequential, &[]);
    }

    fn lost(unsent: bool) -> CallError {
        CallError::UpstreamUnavailable {
            message: String::new(),
            unsent,
        }
    }

    fn refused(status: u16, retry_after: Option<u64>) -> CallError {
        CallError::Refused {
            message: String::new(),
            refusal: RefusalKind::of_status(status),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    #[track_caller]
    fn check_repeat(error: &CallError, annotations: Annotations, expected: Option<u64>) {
        let minute = Duration::from_secs(60);
        let retries = Retries::default();
        let pause = repeat_after(error, annotations, retries, 1, minute);
        assert_eq!(pause, expected.map(Duration::from_millis));
        assert_eq!(repeat_after(error, annotations, retries, 2, minute), None);
    }

    #[test]
    fn a_call_that_was_not_sent_is_repeated_once() {
        check_repeat(&lost(true), Annotations::default(), Some(0));
    }

    #[test]
    fn a_call_that_may_have_happened_is_repeated_only_when_that_does_no_harm() {
        let read_only = Annotations {
            read_only: Some(true),
            ..Annotations::default()
        };
        let idempotent = Annotations {
            idempotent: Some(true),
            ..Annotations::default()
        };
        for error in [lost(false), refused(408, Some(0)), refused(503, Some(0))] {
            check_repeat(&error, Annotations::default(), None);
            check_repeat(&error, read_only, Some(0));
            check_repeat(&error, idempotent, Some(0));
        }
        check_repeat(&refused(504, None), read_only, Some(500));
    }

    #[test]
    fn a_call_that_would_be_refused_again_is_not_repeated() {
        for status in [400, 401, 403, 405, 413] {
            check_repeat(&refused(status, None), Annotations::default(), None);
        }
    }

    #[test]
    fn a_server_that_is_busy_is_left_alone_for_as_long_as_it_asks() {
        check_repeat(&refused(429, Some(7)), Annotations::default(), Some(7000));
        check_repeat(&refused(429, None), Annotations::default(), Some(500));
    }

    #[test]
    fn a_pause_that_does_not_fit_is_not_begun() {
        let second = Duration::from_secs(1);
        for pause in [1, 7, u64::MAX] {
            let error = refused(429, Some(pause));
            assert_eq!(
                repeat_after(
                    &error,
                    Annotations::default(),
                    Retries::default(),
                    1,
                    second
                ),
                None
            );
        }
        assert_eq!(
            repeat_after(
                &lost(true),
                Annotations::default(),
                Retries::default(),
                1,
                Duration::ZERO
            ),
            None
        );
    }

    #[test]
    fn a_client_chooses_attempts_and_pauses_and_a_call_that_may_have_happened_is_still_not_repeated_d_23()
     {
        let retries = Retries::new(Some(4), &[100, 400]).unwrap();
        let after = |error: &CallError, attempts| {
            let minute = Duration::from_secs(60);
            let pause = repeat_after(error, Annotations::default(), retries, attempts, minute);
            pause.map(|pause| pause.as_millis())
        };
        let pauses = [1, 2, 3, 4].map(|attempts| after(&lost(true), attempts));
        assert_eq!(pauses, [Some(100), Some(400), Some(400), None]);
        assert_eq!(after(&refused(429, Some(7)), 1), Some(7000));
        assert_eq!(after(&lost(false), 1), None);
        for (attempts, pauses) in [(Some(0), &[][..]), (Some(11), &[]), (None, &[60_001])] {
            assert_eq!(Retries::new(attempts, pauses), None);
        }
    }
}
