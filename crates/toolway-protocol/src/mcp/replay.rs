//! What was said on one stream, kept for a while so that a client that lost its connection can go on reading.
//!
//! Every message has a number, counted from 1. Kept are the latest ones, up to [`MAX_MESSAGES`] and [`MAX_BYTES`];
//! what must not be lost is kept until it was read, whatever its size.

use std::collections::VecDeque;

use bytes::Bytes;

/// Most messages that are kept of one stream.
pub const MAX_MESSAGES: usize = 256;
/// Most bytes that are kept of one stream.
pub const MAX_BYTES: usize = 1 << 20;

/// Whether a message may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// It may, when too much is waiting to be read already.
    Light,
    /// It may not.
    Heavy,
}

/// The messages of one stream.
#[derive(Debug, Default)]
pub struct Replay {
    kept: VecDeque<Bytes>,
    bytes: usize,
    /// The number of the first that is kept, less one.
    gone: u64,
    /// The number of the last that was read.
    read: u64,
}

impl Replay {
    /// Adds a message. False: too much is waiting to be read, and it was left out.
    pub fn push(&mut self, message: Bytes, weight: Weight) -> bool {
        self.forget_read(message.len());
        if weight == Weight::Light && self.is_over(message.len()) {
            return false;
        }
        self.bytes += message.len();
        self.kept.push_back(message);
        true
    }

    /// The first message after this number, with its own number; marks it as read.
    pub fn after(&mut self, number: u64) -> Option<(u64, Bytes)> {
        let next = number.max(self.gone);
        let message = self.kept.get(usize::try_from(next - self.gone).ok()?)?;
        self.read = self.read.max(next + 1);
        Some((next + 1, message.clone()))
    }

    /// The number of the last message.
    pub fn last(&self) -> u64 {
        self.gone + self.kept.len() as u64
    }

    /// The number of the last message that was read.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// How many messages are unread.
    pub fn unread(&self) -> usize {
        usize::try_from(self.last() - self.read).unwrap_or(usize::MAX)
    }

    /// How much is kept, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lets go of everything that was read.
    pub fn forget_all_read(&mut self) {
        while self.gone < self.read {
            self.forget_first();
        }
    }

    /// Makes room for one more, as far as no unread message is lost.
    fn forget_read(&mut self, more: usize) {
        while self.is_over(more) && self.gone < self.read {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(first) = self.kept.pop_front() {
            self.bytes -= first.len();
        }
        self.gone += 1;
    }

    fn is_over(&self, more: usize) -> bool {
        self.kept.len() >= MAX_MESSAGES || self.bytes + more > MAX_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    fn of(length: usize) -> Bytes {
        static LONG: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![b'x'; 2 * MAX_BYTES]));
        LONG.slice(..length)
    }

    #[test]
    fn messages_are_read_in_order_and_again_from_anywhere() {
        let mut replay = Replay::default();
        for text in ["a", "b", "c"] {
            assert!(replay.push(Bytes::from(text), Weight::Light));
        }
        assert_eq!(replay.after(0), Some((1, Bytes::from("a"))));
        assert_eq!(replay.after(2), Some((3, Bytes::from("c"))));
        assert_eq!(replay.after(3), None);
        assert_eq!(replay.after(1), Some((2, Bytes::from("b"))));
        assert_eq!((replay.last(), replay.unread()), (3, 0));
    }

    #[test]
    fn what_is_light_is_left_out_while_too_much_is_unread() {
        let mut replay = Replay::default();
        for _ in 0..MAX_MESSAGES {
            assert!(replay.push(of(1), Weight::Light));
        }
        assert!(!replay.push(of(1), Weight::Light));
        assert!(replay.push(of(1), Weight::Heavy));
        assert_eq!(replay.last(), MAX_MESSAGES as u64 + 1);
    }

    #[test]
    fn what_was_read_makes_room_the_oldest_first() {
        let mut replay = Replay::default();
        for _ in 0..MAX_MESSAGES {
            replay.push(of(1), Weight::Light);
        }
        replay.after(9);
        assert!(replay.push(of(1), Weight::Light));
        assert_eq!(replay.after(0), Some((2, of(1))));
        assert!(replay.push(of(MAX_BYTES + 1), Weight::Heavy));
        assert_eq!(replay.after(0).map(|it| it.0), Some(11));
    }

    proptest! {
        #[test]
        fn what_is_heavy_is_never_lost_before_it_is_read(lengths in prop::collection::vec((0..400_000_usize, any::<bool>()), 0..600)) {
            let mut replay = Replay::default();
            let mut heavy = Vec::new();
            for (length, is_heavy) in lengths {
                let weight = if is_heavy { Weight::Heavy } else { Weight::Light };
                if replay.push(of(length), weight) && is_heavy {
                    heavy.push((replay.last(), length));
                }
            }
            let mut at = 0;
            let mut seen = Vec::new();
            while let Some((number, message)) = replay.after(at) {
                seen.push((number, message.len()));
                at = number;
            }
            prop_assert!(heavy.iter().all(|it| seen.contains(it)));
            replay.forget_all_read();
            prop_assert_eq!(replay.bytes(), 0);
        }
    }
}
