//! Bytes that go out together and lie in several places.

use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// From this length on a text is lent and not copied, in bytes.
const LENT: usize = 1024;

/// A text made of others. Short ones are copied together; long ones stay where they are.
#[derive(Clone, Debug, Default)]
pub struct SegmentedBody<'a> {
    copied: Vec<u8>,
    /// Each with how much of what was copied comes before it.
    lent: Vec<(usize, &'a [u8])>,
}

impl<'a> SegmentedBody<'a> {
    /// Nothing yet.
    pub fn new() -> SegmentedBody<'a> {
        SegmentedBody {
            copied: Vec::with_capacity(LENT / 2),
            lent: Vec::new(),
        }
    }

    /// One text, and it stays where it is.
    pub fn of(text: &'a [u8]) -> SegmentedBody<'a> {
        SegmentedBody {
            copied: Vec::new(),
            lent: vec![(0, text)],
        }
    }

    /// Adds a text.
    pub fn push(&mut self, text: &'a [u8]) {
        match text.len() < LENT {
            true => self.copied.extend_from_slice(text),
            false => self.lent.push((self.copied.len(), text)),
        }
    }

    /// Adds a copy of a text.
    pub fn copy(&mut self, text: &[u8]) {
        self.copied.extend_from_slice(text);
    }

    /// Adds a value as JSON.
    pub fn json(&mut self, value: &(impl serde::Serialize + ?Sized)) {
        // Memory takes everything.
        let _ = serde_json::to_writer(&mut self.copied, value);
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        let lent: usize = self.lent.iter().map(|(_, text)| text.len()).sum();
        self.copied.len() + lent
    }

    /// It has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut seen = 0;
        let lent = self.lent.iter().flat_map(move |(before, text)| {
            let copied = &self.copied[seen..*before];
            seen = *before;
            [copied, text]
        });
        let last = self.lent.last().map_or(0, |(before, _)| *before);
        lent.chain([&self.copied[last..]])
            .filter(|piece| !piece.is_empty())
    }

    /// The whole text in one place.
    pub fn to_bytes(&self) -> Bytes {
        let mut whole = Vec::with_capacity(self.len());
        self.iter().for_each(|piece| whole.extend_from_slice(piece));
        whole.into()
    }
}

/// What is left of pieces that are being sent.
pub struct Sending<'a> {
    pieces: &'a [&'a [u8]],
    /// How much of the first is gone.
    gone: usize,
    left: usize,
}

impl<'a> Sending<'a> {
    /// Nothing of `pieces` is sent yet. Empty pieces are allowed.
    pub fn new(pieces: &'a [&'a [u8]]) -> Sending<'a> {
        let mut sending = Sending {
            pieces,
            gone: 0,
            left: pieces.iter().map(|piece| piece.len()).sum(),
        };
        // Past the empty pieces at the beginning, so that the first one has something to send.
        sending.advance(0);
        sending
    }
}

impl Buf for Sending<'_> {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.first().map_or(&[], |first| &first[self.gone..])
    }

    fn chunks_vectored<'b>(&'b self, slices: &mut [IoSlice<'b>]) -> usize {
        let mut gone = self.gone;
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(self.pieces) {
            *slice = IoSlice::new(&piece[gone..]);
            gone = 0;
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.left, "more is sent than there is");
        self.left -= count;
        while let Some((first, rest)) = self.pieces.split_first() {
            let there = first.len() - self.gone;
            if count < there {
                self.gone += count;
                return;
            }
            count -= there;
            (self.pieces, self.gone) = (rest, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_long_stays_where_it_is() {
        let long = vec![b'x'; LENT];
        let mut pieces = SegmentedBody::new();
        pieces.push(b"a");
        pieces.push(&long);
        pieces.copy(b"b");
        pieces.json("c");
        let listed: Vec<&[u8]> = pieces.iter().collect();
        assert_eq!(listed, [b"a", &long[..], b"b\"c\""]);
        assert_eq!(listed[1].as_ptr(), long.as_ptr());
        assert!(SegmentedBody::new().is_empty());
        assert_eq!(SegmentedBody::of(b"short").to_bytes(), "short");
    }

    #[test]
    fn empty_pieces_at_the_beginning_are_passed_over() {
        let pieces: [&[u8]; 4] = [b"", b"", b"", b"x"];
        let sending = Sending::new(&pieces);
        let mut slices = [IoSlice::new(&[]); 3];
        assert_eq!(sending.chunks_vectored(&mut slices), 1);
        assert_eq!((sending.chunk(), &*slices[0]), (&b"x"[..], &b"x"[..]));
    }

    proptest! {
        #[test]
        fn pieces_are_the_text_they_were_made_of(texts in proptest::collection::vec((".{0,9}", 0_usize..3), 0..6)) {
            let texts: Vec<(String, usize)> = texts
                .into_iter()
                .map(|(text, times)| (text.repeat(1 + times * LENT), times))
                .collect();
            let mut pieces = SegmentedBody::new();
            for (text, times) in &texts {
                match times {
                    1 => pieces.copy(text.as_bytes()),
                    _ => pieces.push(text.as_bytes()),
                }
            }
            let whole: String = texts.iter().map(|(text, _)| &**text).collect();
            prop_assert_eq!(pieces.to_bytes(), whole.as_bytes());
            prop_assert_eq!(pieces.len(), whole.len());
            prop_assert_eq!(pieces.is_empty(), whole.is_empty());
        }

        #[test]
        fn they_are_sent_whole_in_whatever_steps(texts in proptest::collection::vec(".{0,9}", 0..6), step in 1_usize..7) {
            let pieces: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
            let mut sending = Sending::new(&pieces);
            let mut sent = Vec::new();
            while sending.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let count = sending.chunks_vectored(&mut slices);
                let there: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let step = if there.is_empty() { 0 } else { step.min(there.len()) };
                sent.extend_from_slice(&there[..step]);
                prop_assert!(step > 0, "nothing to send, and something left");
                sending.advance(step);
            }
            prop_assert_eq!(sent, texts.concat().into_bytes());
        }
    }
}
