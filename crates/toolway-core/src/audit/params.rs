//! What a reader writes to ask for records: the query of `GET /audit`, and the options of `toolway audit`.

use serde::{Deserialize, Serialize};

use super::{AuditEvent, AuditFilter, AuditVerdict, time};
use crate::catalog::ToolFilter;

/// As written. What is absent may be anything; see [`AuditFilter`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the members of AuditFilter")]
pub struct AuditParams {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<AuditEvent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub face: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<AuditVerdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `json`, `jsonl` or `csv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// New records as they come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<bool>,
}

impl AuditParams {
    /// What is asked for.
    ///
    /// # Errors
    /// What is not a time.
    pub fn filter(&self, now: u64) -> Result<AuditFilter, String> {
        let time = |name: &str, text: &Option<String>| match text {
            None => Ok(None),
            Some(text) => time::parse(text, now).map(Some).ok_or_else(|| {
                format!("`{name}` must be a time such as 2026-11-23T18:00:00Z or 1h")
            }),
        };
        let patterns = |text: &Option<String>| {
            let text = text.as_ref()?;
            let patterns: Vec<String> = text.split(',').map(|it| it.trim().to_owned()).collect();
            Some(ToolFilter::new(&patterns))
        };
        Ok(AuditFilter {
            since: time("since", &self.since)?,
            until: time("until", &self.until)?,
            event: self.event,
            key: self.key.clone(),
            face: self.face.clone(),
            client: self.client.clone(),
            server: patterns(&self.server),
            tool: patterns(&self.tool),
            verdict: self.verdict,
            outcome: self.outcome.clone(),
            request: self.request.clone(),
            confirmation: self.confirmation.clone(),
        })
    }
}
