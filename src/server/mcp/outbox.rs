//! The messages for a client on one stream, between the tasks that produce them and the one that writes them.
//!
//! No producer waits: notifications are dropped when the client is slow, and the number of answers and questions is
//! bounded by the number of running requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::Notify;

use toolway_protocol::mcp::{
    replay::{Replay, Weight},
    rpc,
};

/// A notification as it is sent.
pub(super) fn notification(method: &str, params: Value) -> Bytes {
    Bytes::from(rpc::notification(method, params).to_string())
}

/// One stream of messages. It has one reader at a time; a new reader replaces the one before.
#[derive(Debug, Default)]
pub(in crate::server) struct Outbox {
    inner: Mutex<OutboxState>,
    changed: Notify,
    /// Something was read.
    taken: Notify,
}

#[derive(Debug, Default)]
struct OutboxState {
    replay: Replay,
    is_closed: bool,
    /// The number of readers so far.
    readers: u64,
    /// The latest reader still exists.
    is_read: bool,
}

/// Reads an outbox from a given message on.
#[derive(Debug)]
pub(in crate::server) struct OutboxReader {
    outbox: Arc<Outbox>,
    /// The last message that was read.
    at: u64,
    turn: u64,
}

/// What a reader finds.
#[derive(Debug, PartialEq)]
pub(in crate::server) enum Next {
    /// A message and its number.
    Message(u64, Bytes),
    /// Nothing yet.
    Nothing,
    /// Nothing any more.
    Over,
}

impl Outbox {
    /// Adds a message that may be dropped.
    pub(in crate::server) fn say(&self, message: Bytes) {
        self.push(message, Weight::Light);
    }

    /// Adds a message that must arrive.
    pub(in crate::server) fn must_say(&self, message: Bytes) {
        self.push(message, Weight::Heavy);
    }

    /// Closes the outbox: no more messages follow.
    pub(in crate::server) fn close(&self) {
        self.inner().is_closed = true;
        self.changed.notify_one();
    }

    /// Ends when there is something to read.
    pub(in crate::server) async fn has_more(&self) {
        while !self.has_any() {
            self.changed.notified().await;
        }
    }

    /// There is a message to read, or the outbox is closed.
    pub(in crate::server) fn has_any(&self) -> bool {
        let inner = self.inner();
        inner.replay.unread() > 0 || inner.is_closed
    }

    /// The number of the last message that was read.
    pub(in crate::server) fn read(&self) -> u64 {
        self.inner().replay.read()
    }

    /// Waits until at most `messages` messages and `bytes` bytes are unread.
    pub(in crate::server) async fn has_room(&self, messages: usize, bytes: usize) {
        loop {
            let (unread, kept) = {
                let inner = self.inner();
                (inner.replay.unread(), inner.replay.bytes())
            };
            if unread == 0 || (unread <= messages && kept <= bytes) {
                return;
            }
            self.taken.notified().await;
        }
    }

    /// How much is kept, in bytes.
    pub(in crate::server) fn bytes(&self) -> usize {
        self.inner().replay.bytes()
    }

    /// It has a reader.
    pub(in crate::server) fn is_read(&self) -> bool {
        self.inner().is_read
    }

    /// Drops the messages that were read.
    pub(in crate::server) fn forget_all_read(&self) {
        self.inner().replay.forget_all_read();
    }

    /// Reads on after the message of this number. An earlier reader ends.
    pub(in crate::server) fn reader(self: &Arc<Self>, after: u64) -> OutboxReader {
        let mut inner = self.inner();
        inner.readers += 1;
        inner.is_read = true;
        let turn = inner.readers;
        drop(inner);
        self.changed.notify_waiters();
        OutboxReader {
            outbox: Arc::clone(self),
            at: after,
            turn,
        }
    }

    fn push(&self, message: Bytes, weight: Weight) {
        let mut inner = self.inner();
        if !inner.is_closed && inner.replay.push(message, weight) {
            drop(inner);
            self.changed.notify_one();
        }
    }

    fn inner(&self) -> MutexGuard<'_, OutboxState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutboxReader {
    /// What is next.
    pub(in crate::server) fn take(&mut self) -> Next {
        let mut inner = self.outbox.inner();
        if inner.readers != self.turn {
            return Next::Over;
        }
        match inner.replay.after(self.at) {
            Some((number, message)) => {
                self.at = number;
                self.outbox.taken.notify_one();
                Next::Message(number, message)
            }
            None if inner.is_closed => Next::Over,
            None => Next::Nothing,
        }
    }

    /// Waits until there may be something new to read.
    pub(in crate::server) async fn changed(&self) {
        self.outbox.changed.notified().await;
    }

    /// It reads no more.
    pub(in crate::server) fn leave(&mut self) {
        let mut inner = self.outbox.inner();
        if inner.readers == self.turn {
            inner.is_read = false;
        } else {
            drop(inner);
            // It may have consumed the wake-up for its successor.
            self.outbox.changed.notify_one();
        }
    }

    /// No newer reader has replaced it.
    pub(in crate::server) fn is_current(&self) -> bool {
        self.outbox.inner().readers == self.turn
    }

    /// The number of the last message that was read.
    pub(in crate::server) fn at(&self) -> u64 {
        self.at
    }

    /// What is read.
    pub(in crate::server) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }
}

impl Drop for OutboxReader {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_is_read_until_its_last_reader_leaves() {
        let outbox = Arc::new(Outbox::default());
        assert!(!outbox.is_read());
        let first = outbox.reader(0);
        let second = outbox.reader(0);
        drop(first);
        assert!(outbox.is_read(), "the second reader has taken its place");
        drop(second);
        assert!(!outbox.is_read());
    }

    #[tokio::test]
    async fn what_is_said_is_read_and_then_it_is_over() {
        let outbox = Arc::new(Outbox::default());
        let mut reader = outbox.reader(0);
        assert_eq!(reader.take(), Next::Nothing);
        outbox.say(Bytes::from("a"));
        reader.changed().await;
        assert_eq!(reader.take(), Next::Message(1, Bytes::from("a")));
        outbox.must_say(Bytes::from("b"));
        outbox.close();
        outbox.say(Bytes::from("too late"));
        outbox.has_more().await;
        assert_eq!(reader.take(), Next::Message(2, Bytes::from("b")));
        assert_eq!(reader.take(), Next::Over);
    }

    #[tokio::test]
    async fn a_new_reader_takes_the_place_of_the_one_before() {
        let outbox = Arc::new(Outbox::default());
        let mut before = outbox.reader(0);
        outbox.say(Bytes::from("a"));
        assert_eq!(before.take(), Next::Message(1, Bytes::from("a")));
        let mut after = outbox.reader(0);
        assert_eq!(before.take(), Next::Over);
        drop(before);
        assert_eq!(after.take(), Next::Message(1, Bytes::from("a")));
    }
}
