//! Bytes that arrive in pieces and are wanted whole.

use bytes::{Bytes, BytesMut};

/// Most bytes for which room is made at first, before so many have come.
const MOST_EXPECTED: usize = 1 << 20;

/// What has arrived so far. A body that comes in one piece is never copied.
#[derive(Debug, Default)]
pub(crate) struct BodyBuffer {
    only: Bytes,
    whole: BytesMut,
    expected: usize,
}

impl BodyBuffer {
    /// So many bytes are announced.
    pub(crate) fn expecting(bytes: usize) -> BodyBuffer {
        BodyBuffer {
            expected: bytes,
            ..BodyBuffer::default()
        }
    }

    /// How many bytes are there.
    pub(crate) fn len(&self) -> usize {
        self.only.len() + self.whole.len()
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.only = piece;
            return;
        }
        if self.whole.is_empty() {
            let room = self.expected.min(MOST_EXPECTED);
            let room = room.max(self.only.len() + piece.len());
            self.whole.reserve(room);
            self.whole
                .extend_from_slice(&std::mem::take(&mut self.only));
        }
        if self.whole.len() + piece.len() > self.whole.capacity() {
            // All that is announced, once a part of it has come: memory is used only for what is written to it, and
            // the bytes that are there are not copied time and again.
            let rest = self.expected.saturating_sub(self.whole.len());
            self.whole.reserve(rest.max(piece.len()));
        }
        self.whole.extend_from_slice(&piece);
    }

    /// All of them.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self.whole.is_empty() {
            true => self.only,
            false => self.whole.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_one_whatever_their_number() {
        for pieces in [&[][..], &["abc"], &["", "a", "", "bc"]] {
            for mut gathered in [BodyBuffer::default(), BodyBuffer::expecting(3)] {
                for piece in pieces {
                    gathered.push(Bytes::from_static(piece.as_bytes()));
                }
                assert_eq!(gathered.len(), pieces.concat().len());
                assert_eq!(gathered.into_bytes(), pieces.concat());
            }
        }
    }

    #[test]
    fn a_single_piece_is_not_copied() {
        let piece = Bytes::from(vec![1, 2, 3]);
        let mut gathered = BodyBuffer::expecting(3);
        gathered.push(piece.clone());
        assert_eq!(gathered.into_bytes().as_ptr(), piece.as_ptr());
    }
}
