//! Changes to a text at several places, applied all at once.

use std::ops::Range;

/// Changes to a text. A place in it is named by a slice of that very text.
#[derive(Debug)]
pub(super) struct Edits<'a> {
    text: &'a str,
    list: Vec<(Range<usize>, String)>,
    /// Bytes of all that is put in.
    added: usize,
    /// Bytes of all that is taken out.
    removed: usize,
}

impl<'a> Edits<'a> {
    pub(super) fn of(text: &'a str) -> Edits<'a> {
        Edits {
            text,
            list: Vec::new(),
            added: 0,
            removed: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Replaces everything from the beginning of `first` to the end of `last`. Edits must not overlap.
    pub(super) fn replace(&mut self, first: &str, last: &str, with: String) {
        let (start, end) = (self.place(first), self.place(last) + last.len());
        self.added += with.len();
        self.removed += end - start;
        self.list.push((start..end, with));
    }

    /// Inserts a text in front of `at`.
    pub(super) fn insert(&mut self, at: &str, text: String) {
        self.replace(&at[..0], &at[..0], text);
    }

    /// What the edits themselves take in memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.added + self.list.len() * size_of::<(Range<usize>, String)>()
    }

    /// The length of the edited text, in bytes.
    pub(super) fn edited_len(&self) -> usize {
        self.text.len() + self.added - self.removed
    }

    /// The edited text.
    pub(super) fn apply(mut self) -> String {
        self.list.sort_by_key(|(range, _)| range.start);
        let mut out = String::with_capacity(self.edited_len());
        let mut at = 0;
        for (range, with) in &self.list {
            out.push_str(&self.text[at..range.start]);
            out.push_str(with);
            at = range.end;
        }
        out.push_str(&self.text[at..]);
        out
    }

    /// Where a slice of the text begins.
    fn place(&self, part: &str) -> usize {
        part.as_ptr().addr() - self.text.as_ptr().addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_apply_in_the_order_of_their_places() {
        let text = "one two three";
        let mut edits = Edits::of(text);
        edits.replace(&text[8..], &text[8..], "3".to_owned());
        edits.insert(&text[4..], "and ".to_owned());
        edits.replace(&text[..1], &text[2..3], "1".to_owned());
        assert_eq!(edits.edited_len(), "1 and two 3".len());
        assert_eq!(edits.apply(), "1 and two 3");
    }
}
