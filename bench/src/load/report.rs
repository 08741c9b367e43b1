//! What became of the requests, and the one line of JSON that says so.

use std::time::Duration;

use serde_json::{Value, json};

/// One request that was answered rightly.
pub(crate) struct Done {
    /// Bytes of the reply's body.
    pub(crate) bytes: usize,
    /// When its first chunk was there.
    pub(crate) first: Option<Duration>,
}

/// What one worker did, or all of them.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) wrong: usize,
    first_wrong: Option<String>,
    bytes: usize,
    times: Vec<Duration>,
    firsts: Vec<Duration>,
}

impl Tally {
    pub(crate) fn done(&mut self, done: &Done, took: Duration) {
        self.bytes += done.bytes;
        self.times.push(took);
        self.firsts.extend(done.first);
    }

    pub(crate) fn went_wrong(&mut self, why: String) {
        self.wrong += 1;
        self.first_wrong.get_or_insert(why);
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.wrong += other.wrong;
        self.bytes += other.bytes;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
        self.times.extend(other.times);
        self.firsts.extend(other.firsts);
    }

    /// `right`, `wrong`, `per_second`, `p50_us`, `p99_us`, `first_p50_us`, `bytes_per_reply`.
    pub(crate) fn report(mut self, took: Duration) -> Value {
        self.times.sort_unstable();
        self.firsts.sort_unstable();
        let right = self.times.len();
        json!({
            "right": right,
            "wrong": self.wrong,
            "first_wrong": self.first_wrong,
            "seconds": took.as_secs_f64(),
            "per_second": right as f64 / took.as_secs_f64(),
            "p50_us": quantile(&self.times, 50),
            "p99_us": quantile(&self.times, 99),
            "first_p50_us": quantile(&self.firsts, 50),
            "bytes_per_reply": self.bytes.checked_div(right),
        })
    }
}

/// A hundredth of sorted times, in microseconds.
fn quantile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let at = sorted.len() * percent / 100;
    sorted.get(at).map(|time| time.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_there_is() {
        let times: Vec<_> = (1..=100).map(Duration::from_micros).collect();
        let near = |percent, us: f64| (quantile(&times, percent).unwrap() - us).abs() < 0.01;
        assert!(near(50, 51.0) && near(99, 100.0));
        assert_eq!(quantile(&[], 50), None);
    }
}
