//! Records in memory, as long as the process runs.

use std::{collections::VecDeque, sync::Arc};

use super::page::{AuditPage, AuditQuery, InvalidCursor};
use toolway_core::audit::AuditRecord;

/// Most records that are kept.
const MAX_RECORDS: usize = 10_000;

/// Most bytes of arguments and results that are kept.
const MAX_VALUES: usize = 16 << 20;

/// The newest records.
#[derive(Default)]
pub(super) struct RecordsInMemory {
    records: VecDeque<Arc<AuditRecord>>,
    /// The number of the first of them.
    first: usize,
    /// Bytes of arguments and results.
    values: usize,
}

fn values(record: &AuditRecord) -> usize {
    let values = [&record.arguments, &record.result];
    values.into_iter().flatten().map(String::len).sum()
}

impl RecordsInMemory {
    /// Adds a record; the oldest makes room.
    pub(super) fn add(&mut self, record: Arc<AuditRecord>) {
        self.values += values(&record);
        self.records.push_back(record);
        while self.records.len() > MAX_RECORDS || self.values > MAX_VALUES {
            let Some(oldest) = self.records.pop_front() else {
                return;
            };
            self.values -= values(&oldest);
            self.first += 1;
        }
    }

    /// A page.
    pub(super) fn page(&self, query: &AuditQuery) -> Result<AuditPage, InvalidCursor> {
        let end = match &query.cursor {
            None => self.records.len(),
            Some(cursor) => {
                let number: usize = cursor.parse().map_err(|_| InvalidCursor)?;
                number.saturating_sub(self.first).min(self.records.len())
            }
        };
        let mut page = AuditPage::default();
        for at in (0..end).rev() {
            if query.filter.matches(&self.records[at]) {
                if page.records.len() == query.limit {
                    page.next = Some((self.first + at + 1).to_string());
                    break;
                }
                page.records.push(AuditRecord::clone(&self.records[at]));
            }
        }
        Ok(page)
    }
}
