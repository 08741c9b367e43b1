//! Limits how fast a server's unsolicited messages are read. Answers cost nothing; a server that floods its connection
//! with anything else is read slowly.

use std::time::Duration;

use tokio::time::Instant;

/// The time that one message, or one started KiB of it, takes in the long run: 2,000 in a second.
const STEP: Duration = Duration::from_micros(500);

/// How far the budget may be overdrawn: 10,000 messages at once.
const AHEAD: Duration = Duration::from_secs(5);

/// The messages of one server, or one connection.
#[derive(Debug)]
pub(super) struct Pace {
    /// When all that was read so far would have been read at the sustained rate.
    due: Instant,
}

impl Pace {
    /// Nothing was read yet.
    pub(super) fn new() -> Pace {
        Pace {
            due: Instant::now(),
        }
    }

    /// Counts a message of so many bytes that was read now; gives the pause before the next one is read.
    pub(super) fn count(&mut self, bytes: usize, now: Instant) -> Option<Duration> {
        let steps = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX);
        self.due = self.due.max(now) + STEP.saturating_mul(steps);
        let ahead = self.due.saturating_duration_since(now);
        ahead.checked_sub(AHEAD).filter(|pause| !pause.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_read_at_once_and_a_flood_at_its_pace() {
        let (mut pace, now) = (Pace::new(), Instant::now());
        for _ in 0..10_000 {
            assert_eq!(pace.count(100, now), None);
        }
        assert_eq!(pace.count(100, now), Some(STEP));
        assert_eq!(pace.count(100, now), Some(2 * STEP));
        let later = now + Duration::from_secs(1);
        for _ in 0..1_998 {
            assert_eq!(pace.count(100, later), None);
        }
        assert_eq!(pace.count(100, later), Some(STEP));
        assert_eq!(pace.count(100, later + 2 * AHEAD), None);
    }

    #[tokio::test(start_paused = true)]
    async fn long_messages_count_by_their_length() {
        let (mut pace, now) = (Pace::new(), Instant::now());
        assert_eq!(pace.count(8 << 20, now), None);
        let pause = pace.count(8 << 20, now).unwrap();
        assert!(pause > Duration::from_secs(3), "{pause:?}");
    }
}
