//! Lists that come page by page, with a bound on how long they go on.

use std::collections::HashSet;

use serde_json::Value;

/// Most pages that are read of one list.
pub const MAX_PAGES: usize = 200;

/// Most entries that are read of one list.
pub const MAX_ENTRIES: usize = 5_000;

/// What is wrong with a whole page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFault {
    /// The result has no array where the entries should be.
    NoEntries,
    /// The server repeats a cursor, so its list would never end.
    Circle,
    /// There are more than [`MAX_PAGES`] pages or [`MAX_ENTRIES`] entries.
    TooLong {
        /// Pages read.
        pages: usize,
        /// Entries read.
        entries: usize,
    },
}

/// How far a list was read.
#[derive(Debug, Default)]
pub struct Pages {
    cursors: HashSet<String>,
    pages: usize,
    entries: usize,
}

impl Pages {
    /// Takes one page: its entries, which are the member of this name, and the cursor of the next page, if there
    /// is one.
    pub fn turn<'a>(
        &mut self,
        page: &'a Value,
        member: &str,
    ) -> Result<(&'a [Value], Option<String>), PageFault> {
        let entries = page
            .get(member)
            .and_then(Value::as_array)
            .ok_or(PageFault::NoEntries)?;
        if self.entries + entries.len() > MAX_ENTRIES {
            return Err(self.too_long());
        }
        self.pages += 1;
        self.entries += entries.len();
        let Some(cursor) = page.get("nextCursor").and_then(Value::as_str) else {
            return Ok((entries, None));
        };
        if self.pages == MAX_PAGES {
            return Err(self.too_long());
        }
        if !self.cursors.insert(cursor.to_owned()) {
            return Err(PageFault::Circle);
        }
        Ok((entries, Some(cursor.to_owned())))
    }

    fn too_long(&self) -> PageFault {
        PageFault::TooLong {
            pages: self.pages,
            entries: self.entries,
        }
    }
}
