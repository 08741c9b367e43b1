//! A page of records, the newest first.

use toolway_core::audit::{AuditFilter, AuditRecord};

/// What a reader asks for.
#[derive(Clone, Debug)]
pub struct AuditQuery {
    /// Which records.
    pub filter: AuditFilter,
    /// The [`AuditPage::next`] of the page before; absent: the newest.
    pub cursor: Option<String>,
    /// Most records.
    pub limit: usize,
}

/// What is found.
#[derive(Clone, Debug, Default)]
pub struct AuditPage {
    /// The newest first.
    pub records: Vec<AuditRecord>,
    /// Where the next page begins, if there may be one.
    pub next: Option<String>,
}

/// The cursor is none of these records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCursor;
