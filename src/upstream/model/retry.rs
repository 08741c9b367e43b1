//! Whether a request to a model is sent again, and after what pause. Decides only.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::ModelError;
use crate::upstream::retry_after;

/// Longest pause that toolway waits when an upstream asks for one; a longer one is left to the client.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// First pause where the upstream names none.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Which model call of a request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundPosition {
    /// The first: a client that gets an error can send the whole request again.
    First,
    /// A later one: sending the whole request again would run its tools again.
    Later,
    /// Any one after whose failure another model is asked, so that it is not sent to this one again.
    WithFallback,
}

/// The pause before the next attempt; `None` when there is none. `attempt` counts from 0.
pub fn pause(
    error: &ModelError,
    round: RoundPosition,
    attempt: u32,
    retries: u32,
) -> Option<Duration> {
    if attempt >= retries || round == RoundPosition::WithFallback {
        return None;
    }
    let growing = FIRST_PAUSE * 2u32.saturating_pow(attempt);
    match error {
        ModelError::Unreachable { .. } => Some(growing),
        ModelError::Refused(refused) if may_repeat(refused.status, round) => {
            match retry_after(&refused.headers) {
                _ if says_never(&refused.headers) => None,
                None => Some(growing),
                asked => asked.filter(|pause| *pause <= MAX_PAUSE),
            }
        }
        ModelError::Broken { .. } if round == RoundPosition::Later => Some(growing),
        ModelError::Refused(_)
        | ModelError::Broken { .. }
        | ModelError::Timeout { .. }
        | ModelError::Invalid { .. } => None,
    }
}

fn may_repeat(status: StatusCode, round: RoundPosition) -> bool {
    match status.as_u16() {
        429 | 503 | 529 => true,
        408 | 500 | 502 | 504 => round == RoundPosition::Later,
        _ => false,
    }
}

fn says_never(headers: &HeaderMap) -> bool {
    headers
        .get("x-should-retry")
        .is_some_and(|value| value == "false")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::model::Refused;
    use toolway_protocol::openai::ErrorBody;

    fn refused(status: u16, headers: &[(&'static str, &'static str)]) -> ModelError {
        ModelError::Refused(Box::new(Refused {
            upstream: "x".into(),
            status: StatusCode::from_u16(status).unwrap(),
            error: ErrorBody::from_upstream(status, None, b""),
            headers: headers
                .iter()
                .map(|(name, value)| {
                    (
                        name.parse::<http::HeaderName>().unwrap(),
                        value.parse().unwrap(),
                    )
                })
                .collect(),
        }))
    }

    #[track_caller]
    fn check(error: &ModelError, round: RoundPosition, expected: Option<u64>) {
        assert_eq!(
            pause(error, round, 0, 2),
            expected.map(Duration::from_millis)
        );
    }

    #[test]
    fn a_connection_that_was_never_made_is_tried_again() {
        let error = ModelError::Unreachable {
            upstream: "x".into(),
            reason: String::new(),
        };
        check(&error, RoundPosition::First, Some(250));
        assert_eq!(
            pause(&error, RoundPosition::First, 1, 2),
            Some(Duration::from_millis(500))
        );
        assert_eq!(pause(&error, RoundPosition::First, 2, 2), None);
    }

    #[test]
    fn nothing_is_repeated_where_another_model_can_be_asked() {
        check(&refused(503, &[]), RoundPosition::WithFallback, None);
    }

    #[test]
    fn the_pause_that_an_upstream_asks_for_is_kept() {
        check(
            &refused(429, &[("retry-after", "2")]),
            RoundPosition::First,
            Some(2000),
        );
        check(
            &refused(429, &[("retry-after-ms", "20"), ("retry-after", "2")]),
            RoundPosition::First,
            Some(20),
        );
        check(&refused(503, &[]), RoundPosition::First, Some(250));
    }

    #[test]
    fn a_long_pause_is_left_to_the_client() {
        check(
            &refused(429, &[("retry-after", "60")]),
            RoundPosition::First,
            None,
        );
        check(
            &refused(429, &[("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")]),
            RoundPosition::First,
            None,
        );
        check(
            &refused(429, &[("retry-after", "-1")]),
            RoundPosition::First,
            None,
        );
    }

    #[test]
    fn a_server_error_is_repeated_only_where_the_client_cannot_do_it() {
        check(&refused(500, &[]), RoundPosition::First, None);
        check(&refused(500, &[]), RoundPosition::Later, Some(250));
        check(&refused(400, &[]), RoundPosition::Later, None);
        check(
            &refused(503, &[("x-should-retry", "false")]),
            RoundPosition::Later,
            None,
        );
    }
}
