//! Which of the models behind a name is asked, when the next one is asked instead, and how long one that failed rests.

use std::{fmt, time::Duration};

/// The first rest of a model that failed; each further failure in a row doubles it.
const FIRST_REST: Duration = Duration::from_secs(1);

/// Longest rest.
const MAX_REST: Duration = Duration::from_secs(60);

/// The order in which models are asked, by their places; `is_resting` has one entry for each.
///
/// With weights, the first is drawn by weight among those that do not rest, and the others follow in their order.
/// Models that rest come last: they are asked when nothing else answered.
pub fn order(weights: &[u32], is_resting: &[bool], random: u64) -> Vec<usize> {
    let places = 0..is_resting.len();
    let (mut order, resting): (Vec<usize>, Vec<usize>) =
        places.partition(|&place| !is_resting[place]);
    if let Some(first) = draw(weights, &order, random) {
        order[..=first].rotate_right(1);
    }
    order.extend(resting);
    order
}

/// Where in `among` the place is that the weights give; `None` where all of them have no weight.
fn draw(weights: &[u32], among: &[usize], random: u64) -> Option<usize> {
    let weight = |place: &usize| weights.get(*place).copied().map_or(0, u64::from);
    let total: u64 = among.iter().map(weight).sum();
    let mut left = random.checked_rem(total)?;
    among.iter().position(|place| {
        let weight = weight(place);
        let is_here = left < weight;
        left = left.saturating_sub(weight);
        is_here
    })
}

/// Why a model gave no answer, as far as it matters for asking another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// No connection was made.
    Unreachable,
    /// It was silent for too long.
    Silent,
    /// The connection ended before the answer began.
    Broken,
    /// It answered with this error status.
    Refused(u16),
    /// What it answered is no answer.
    Invalid,
}

impl Unanswered {
    /// Another model may do better. Not where the request itself is at fault, which every model would refuse.
    pub fn falls_back(self) -> bool {
        match self {
            Unanswered::Refused(status) => {
                matches!(status, 401..=404 | 408 | 429 | 500..=599)
            }
            Unanswered::Unreachable
            | Unanswered::Silent
            | Unanswered::Broken
            | Unanswered::Invalid => true,
        }
    }

    /// The model is to rest. What the upstream says about a client's own key is true for that client only, so that no
    /// client can make a model rest for the others with a wrong key.
    pub fn rests(self, is_clients_key: bool) -> bool {
        let is_about_key = matches!(self, Unanswered::Refused(401..=403 | 429));
        self.falls_back() && !(is_clients_key && is_about_key)
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::Unreachable => f.write_str("cannot be reached"),
            Unanswered::Silent => f.write_str("was silent"),
            Unanswered::Broken => f.write_str("broke off"),
            Unanswered::Refused(status) => write!(f, "answered {status}"),
            Unanswered::Invalid => f.write_str("gave no valid answer"),
        }
    }
}

/// How long a model rests after so many failures in a row, at least as long as its upstream asks for within the bound.
pub fn rest(failures: u32, asked: Option<Duration>) -> Duration {
    let growing = FIRST_REST.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
    growing.max(asked.unwrap_or_default()).min(MAX_REST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_weights_the_order_is_as_written_and_those_that_rest_come_last() {
        assert_eq!(order(&[], &[false; 3], 7), [0, 1, 2]);
        assert_eq!(order(&[], &[true, false, false], 7), [1, 2, 0]);
        assert_eq!(order(&[], &[true, true], 7), [0, 1]);
    }

    #[test]
    fn only_what_another_model_may_do_better_falls_back() {
        for status in [401, 402, 403, 404, 408, 429, 500, 502, 503, 529] {
            assert!(Unanswered::Refused(status).falls_back(), "{status}");
        }
        for status in [400, 409, 413, 415, 422] {
            assert!(!Unanswered::Refused(status).falls_back(), "{status}");
        }
        assert!(Unanswered::Unreachable.falls_back());
        assert!(Unanswered::Silent.falls_back());
    }

    #[test]
    fn a_clients_own_key_makes_no_model_rest_for_others() {
        for status in [401, 402, 403, 429] {
            assert!(!Unanswered::Refused(status).rests(true), "{status}");
            assert!(Unanswered::Refused(status).rests(false), "{status}");
        }
        assert!(Unanswered::Refused(503).rests(true));
    }

    #[test]
    fn the_rest_doubles_up_to_a_minute() {
        let seconds = |failures| rest(failures, None).as_secs();
        assert_eq!([1, 2, 3, 6, 7, 1000].map(seconds), [1, 2, 4, 32, 60, 60]);
        let asked = |asked| rest(1, Some(Duration::from_secs(asked))).as_secs();
        assert_eq!([0, 20, 3600].map(asked), [1, 20, 60]);
    }

    fn models() -> impl Strategy<Value = (Vec<u32>, Vec<bool>)> {
        (1..8usize).prop_flat_map(|n| {
            let weights = prop::collection::vec(0..100u32, n);
            (weights, prop::collection::vec(any::<bool>(), n))
        })
    }

    proptest! {
        #[test]
        fn every_model_is_asked_once_and_the_others_keep_their_order((weights, resting) in models(), random: u64) {
            let order = order(&weights, &resting, random);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..weights.len()).collect::<Vec<_>>());
            let awake = resting.iter().filter(|rests| !**rests).count();
            prop_assert!(order[..awake].iter().all(|&place| !resting[place]));
            let others = &order[awake.min(1)..awake];
            prop_assert!(others.is_sorted());
            prop_assert!(order[awake..].is_sorted());
        }

        #[test]
        fn the_first_is_drawn_as_often_as_its_weight_says((weights, resting) in models()) {
            let awake = |place: usize| !resting[place];
            let total: u64 = (0..weights.len()).filter(|&at| awake(at)).map(|at| u64::from(weights[at])).sum();
            let mut drawn = vec![0; weights.len()];
            for random in 0..total {
                drawn[order(&weights, &resting, random)[0]] += 1;
            }
            for place in 0..weights.len() {
                let expected = if awake(place) { weights[place] } else { 0 };
                prop_assert_eq!(drawn[place], expected);
            }
        }
    }
}
