//! What is recorded of calls, of decisions on them and of servers: the record, which records a reader asks for, and what
//! is left of arguments and results.
//!
//! Nothing is written or read here, and no time is taken: `audit` of the program does both.
//! Read next: `params`, how a reader asks; `csv`, records as lines of a table; `redact`, arguments and results without
//! secrets.

pub mod csv;
pub mod params;
pub mod redact;
pub mod time;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::catalog::ToolFilter;
use toolway_protocol::tool::JsonObject;

/// One record. What does not apply to it is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditRecord {
    /// Its name; no other record has it.
    pub id: String,
    /// When what it tells of ended: RFC 3339 in UTC with milliseconds, so that the order of texts is that of times.
    pub time: String,
    /// What it tells of.
    pub event: AuditEvent,
    /// The id of the client's request (`X-Request-Id`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The name of the client's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How the client came: `chat`, `messages`, `responses`, `mcp`, `mcp_session`, `rest`, `tool_calls`, `events`, `cli`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub face: Option<Cow<'static, str>>,
    /// What the client calls itself: `User-Agent`, or `clientInfo` of MCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The server, or the group of functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The tool, by its offered name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What was decided on the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<AuditVerdict>,
    /// The rule that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The confirmation that the decision is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<String>,
    /// How the call ended, or the state of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Cow<'static, str>>,
    /// Why it failed, without words of servers and clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// From the first attempt to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// How often the call was sent; 0: it was not, or a kept result served it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// See [`text_bytes`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argument_bytes: Option<u64>,
    /// See [`text_bytes`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<u64>,
    /// The arguments, see [`redact::Redaction::text`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// The result, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// How many records were lost before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

/// What a record tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditEvent {
    /// A call has ended, or was not made.
    #[default]
    Call,
    /// A person was asked about a call, or has decided.
    Approval,
    /// The state of a server has changed.
    Server,
    /// Records were lost.
    Dropped,
}

/// What was decided on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditVerdict {
    /// The policy allowed it.
    Allowed,
    /// It was not allowed.
    Denied,
    /// It waits for a person.
    Asked,
    /// A person has agreed to it.
    Confirmed,
    /// A person has refused it.
    Refused,
    /// Nobody decided in time.
    Expired,
}

/// Which records a reader asks for. What is absent may be anything.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Not before this time, in milliseconds since 1970.
    pub since: Option<u64>,
    /// Before this time.
    pub until: Option<u64>,
    /// What they tell of.
    pub event: Option<AuditEvent>,
    /// The name of the key.
    pub key: Option<String>,
    /// The face.
    pub face: Option<String>,
    /// A part of what the client calls itself, in whatever case.
    pub client: Option<String>,
    /// Servers.
    pub server: Option<ToolFilter>,
    /// Tools, by their offered names.
    pub tool: Option<ToolFilter>,
    /// What was decided.
    pub verdict: Option<AuditVerdict>,
    /// How it ended.
    pub outcome: Option<String>,
    /// The id of the request.
    pub request: Option<String>,
    /// The confirmation.
    pub confirmation: Option<String>,
}

impl AuditFilter {
    /// The record is one of those that are asked for.
    pub fn matches(&self, record: &AuditRecord) -> bool {
        fn is<T: PartialEq<U> + ?Sized, U: ?Sized>(asked: Option<&T>, found: Option<&U>) -> bool {
            asked.is_none_or(|asked| found.is_some_and(|found| asked == found))
        }
        let shows = |asked: &Option<ToolFilter>, found: &Option<String>| {
            let found = found.as_deref();
            asked
                .as_ref()
                .is_none_or(|it| found.is_some_and(|found| it.shows(found)))
        };
        let calls_itself = |part: &String| {
            let client = record.client.as_deref().unwrap_or_default();
            client.to_lowercase().contains(&part.to_lowercase())
        };
        let is_in_time = || {
            let time = time::rfc3339(&record.time).unwrap_or_default();
            self.since.is_none_or(|since| time >= since)
                && self.until.is_none_or(|until| time < until)
        };
        (self.since.is_none() && self.until.is_none() || is_in_time())
            && self.event.is_none_or(|event| event == record.event)
            && is(self.key.as_ref(), record.key.as_ref())
            && is(self.face.as_deref(), record.face.as_deref())
            && self.client.as_ref().is_none_or(calls_itself)
            && shows(&self.server, &record.server)
            && shows(&self.tool, &record.tool)
            && is(self.verdict.as_ref(), record.verdict.as_ref())
            && is(self.outcome.as_deref(), record.outcome.as_deref())
            && is(self.request.as_ref(), record.request.as_ref())
            && is(self.confirmation.as_ref(), record.confirmation.as_ref())
    }
}

/// About how large a value is: the bytes of its texts and names, and eight for each other value. Counting them costs less
/// than writing the JSON.
pub fn text_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(members) => object_bytes(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

/// The same of an object.
pub fn object_bytes(members: &JsonObject) -> u64 {
    let bytes = |(name, value): (&String, &Value)| name.len() as u64 + text_bytes(value);
    members.iter().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call() -> AuditRecord {
        AuditRecord {
            id: "a1".to_owned(),
            time: "2026-11-23T18:00:00.000Z".to_owned(),
            key: Some("alice".to_owned()),
            face: Some("chat".into()),
            client: Some("OpenAI/Python 2.1".to_owned()),
            server: Some("files".to_owned()),
            tool: Some("files__read".to_owned()),
            verdict: Some(AuditVerdict::Allowed),
            outcome: Some("ok".into()),
            ..AuditRecord::default()
        }
    }

    fn patterns(pattern: &str) -> Option<ToolFilter> {
        Some(ToolFilter::new(&[pattern.to_owned()]))
    }

    #[track_caller]
    fn check(filter: &AuditFilter, expected: bool) {
        assert_eq!(filter.matches(&call()), expected, "{filter:?}");
    }

    #[test]
    fn a_filter_without_conditions_takes_everything() {
        check(&AuditFilter::default(), true);
    }

    #[test]
    fn the_time_is_from_since_to_before_until() {
        let at = time::rfc3339;
        let since = |since| AuditFilter {
            since,
            ..AuditFilter::default()
        };
        let until = |until| AuditFilter {
            until,
            ..AuditFilter::default()
        };
        check(&since(at("2026-11-23T18:00:00.000Z")), true);
        check(&since(at("2026-11-23T18:00:00.001Z")), false);
        check(&until(at("2026-11-23T18:00:00.000Z")), false);
        check(&until(at("2026-11-23T18:00:00.001Z")), true);
    }

    #[test]
    fn each_condition_has_to_be_true() {
        let tool = |pattern| AuditFilter {
            tool: patterns(pattern),
            key: Some("alice".to_owned()),
            ..AuditFilter::default()
        };
        check(&tool("files__*"), true);
        check(&tool("*__write"), false);
        let client = |part: &str| AuditFilter {
            client: Some(part.to_owned()),
            ..AuditFilter::default()
        };
        check(&client("python"), true);
        check(&client("curl"), false);
        let other = AuditFilter {
            tool: patterns("files__*"),
            key: Some("bob".to_owned()),
            ..AuditFilter::default()
        };
        check(&other, false);
    }

    #[test]
    fn what_a_record_does_not_have_matches_no_condition() {
        let filter = AuditFilter {
            confirmation: Some("cf_1".to_owned()),
            ..AuditFilter::default()
        };
        check(&filter, false);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let text = serde_json::to_string(&call()).unwrap();
        assert_eq!(serde_json::from_str::<AuditRecord>(&text).unwrap(), call());
        assert!(!text.contains("null"), "{text}");
    }

    #[test]
    fn the_size_is_that_of_texts_and_names() {
        assert_eq!(text_bytes(&json!({"path": "/tmp", "n": [1, true]})), 25);
    }
}
