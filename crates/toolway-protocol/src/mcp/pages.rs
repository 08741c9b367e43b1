//! Lists that come page by page, with a bound on how long they go on.

use std::collections::HashSet;

use serde_json::Value;

/// Most pages that are read of one list.
pub const MAX_PAGES: usize = 200;

/// Most entries that are read of one list.
pub const MAX_ENTRIES: usize = 5_000;

/// Most that the entries of one list may take together, in bytes of memory.
pub const MAX_BYTES: usize = 64 << 20;

/// What is wrong with a whole page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFault {
    /// The result has no array where the entries should be.
    NoEntries,
    /// The server repeats a cursor, so its list would never end.
    Circle,
}

/// Why the rest of a list is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    /// It has more entries.
    #[error("the list has more than {MAX_ENTRIES} entries; the rest is left out")]
    Entries,
    /// It has more pages.
    #[error("the list goes on after {MAX_PAGES} pages; the rest is left out")]
    Pages,
    /// Its entries are longer.
    #[error("the list is longer than {} MiB; the rest is left out", MAX_BYTES >> 20)]
    Bytes,
}

/// How far a list was read.
#[derive(Debug, Default)]
pub struct Pages {
    cursors: HashSet<String>,
    pages: usize,
    entries: usize,
    bytes: usize,
    cut: Option<Cut>,
}

impl Pages {
    /// Takes one page: its entries, which are the member of this name, as far as there is room for them, and the
    /// cursor of the next page, if there is one that is to be read.
    pub fn turn<'a>(
        &mut self,
        page: &'a Value,
        member: &str,
    ) -> Result<(&'a [Value], Option<String>), PageFault> {
        let entries = page
            .get(member)
            .and_then(Value::as_array)
            .ok_or(PageFault::NoEntries)?;
        self.pages += 1;
        let taken = self.take(entries);
        let entries = &entries[..taken];
        let cursor = page.get("nextCursor").and_then(Value::as_str);
        let Some(cursor) = cursor.filter(|_| self.cut.is_none()) else {
            return Ok((entries, None));
        };
        if self.pages == MAX_PAGES {
            self.cut = Some(Cut::Pages);
            return Ok((entries, None));
        }
        if !self.cursors.insert(cursor.to_owned()) {
            return Err(PageFault::Circle);
        }
        Ok((entries, Some(cursor.to_owned())))
    }

    /// Why the rest is left out, if it is.
    pub fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// How many of these entries are read.
    fn take(&mut self, entries: &[Value]) -> usize {
        for (place, entry) in entries.iter().enumerate() {
            let bytes = weight(entry);
            self.cut = match () {
                () if self.entries == MAX_ENTRIES => Some(Cut::Entries),
                () if self.bytes + bytes > MAX_BYTES => Some(Cut::Bytes),
                () => None,
            };
            if self.cut.is_some() {
                return place;
            }
            self.entries += 1;
            self.bytes += bytes;
        }
        entries.len()
    }
}

/// About what a value takes in memory, in bytes.
fn weight(value: &Value) -> usize {
    const VALUE: usize = 32;
    match value {
        Value::String(text) => VALUE + text.len(),
        Value::Array(items) => VALUE + items.iter().map(weight).sum::<usize>(),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| VALUE + name.len() + weight(value);
            VALUE + members.iter().map(member).sum::<usize>()
        }
        _ => VALUE,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_entries_are_taken_as_far_as_there_is_room() {
        let mut pages = Pages::default();
        let page = json!({"tools": vec!["x".repeat(MAX_BYTES / 4); 5], "nextCursor": "2"});
        let (taken, cursor) = pages.turn(&page, "tools").unwrap();
        assert_eq!((taken.len(), cursor), (3, None));
        assert_eq!(pages.cut(), Some(Cut::Bytes));
    }
}
