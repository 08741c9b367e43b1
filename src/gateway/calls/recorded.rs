//! The record that the audit gets of each call: when it has ended, however that was, or when it is not made.

use serde_json::Value;
use tokio::time::Instant;

use super::AdmittedCall;
use crate::{audit::Audit, gateway::confirmations::CallOrigin};
use toolway_core::{
    audit::{AuditRecord, AuditVerdict, object_bytes},
    catalog::Offered,
    policy::Admitted,
};
use toolway_protocol::tool::{CallError, JsonObject, millis};

/// Longest name of a tool that is not known, in characters.
const MAX_NAME: usize = 128;

/// A call that was not sent, and why.
#[derive(Clone, Copy, Debug)]
pub(in crate::gateway) struct Unsent<'a> {
    /// The tool, by its offered name.
    pub name: &'a str,
    /// The tool, if there is one.
    pub tool: Option<&'a Offered>,
    /// The arguments, if they are an object.
    pub arguments: Option<&'a JsonObject>,
    /// What was decided.
    pub verdict: AuditVerdict,
    /// The rule that decided.
    pub rule: Option<&'a str>,
    /// See [`CallError::kind`].
    pub outcome: &'static str,
    /// See [`CallError::for_log`].
    pub error: &'a str,
}

impl Unsent<'_> {
    /// Records it.
    pub(in crate::gateway) fn record(self, audit: &Audit, origin: &CallOrigin) {
        audit.record(|| self.to_record(audit, origin));
    }

    pub(super) fn to_record(self, audit: &Audit, origin: &CallOrigin) -> AuditRecord {
        let arguments = self.arguments;
        AuditRecord {
            server: self.tool.map(|it| it.server.to_string()),
            tool: Some(self.name.chars().take(MAX_NAME).collect()),
            verdict: Some(self.verdict),
            rule: self.rule.map(str::to_owned),
            outcome: Some(self.outcome.into()),
            error: Some(self.error.to_owned()).filter(|it| !it.is_empty()),
            attempts: Some(0),
            argument_bytes: arguments.map(object_bytes),
            arguments: arguments.and_then(|it| audit.arguments(|| Value::Object(it.clone()))),
            ..origin.record()
        }
    }
}

/// Records a call of a tool that is not shown, or does not exist.
pub(in crate::gateway) fn unknown(name: &str, (origin, audit): (&CallOrigin, &Audit)) {
    let unsent = Unsent {
        name,
        tool: None,
        arguments: None,
        verdict: AuditVerdict::Denied,
        rule: None,
        outcome: "unknown_tool",
        error: "",
    };
    unsent.record(audit, origin);
}

/// Records a call about which a person was asked and which is not made by this request; `None`: the client is asked.
pub(in crate::gateway) fn unapproved(
    (tool, arguments): (&Admitted, &JsonObject),
    (origin, audit): (&CallOrigin, &Audit),
    error: Option<&CallError>,
) {
    let unsent = Unsent {
        name: tool.name.as_str(),
        tool: Some(tool),
        arguments: Some(arguments),
        verdict: match error {
            Some(CallError::Denied { .. }) => AuditVerdict::Refused,
            _ => AuditVerdict::Asked,
        },
        rule: Some(tool.rule()),
        outcome: error.map_or("waiting_for_approval", outcome_of),
        error: &error.map(CallError::for_log).unwrap_or_default(),
    };
    unsent.record(audit, origin);
}

/// How an error is named in records.
pub(in crate::gateway) fn outcome_of(error: &CallError) -> &'static str {
    match error {
        CallError::WaitingForApproval { .. } => "waiting_for_approval",
        error => error.kind(),
    }
}

/// The record of a call that is being made, written when it has ended or is dropped.
pub(super) struct CallRecording<'a> {
    call: &'a AdmittedCall<'a>,
    /// When its first attempt began; `None` while it waits for approval.
    begun: Option<Instant>,
    /// How often it was sent.
    pub(super) attempts: u32,
    is_over: bool,
}

/// How a call ended, as its record has it.
pub(super) struct RecordedEnd<'e> {
    pub(super) outcome: &'static str,
    pub(super) error: Option<&'e CallError>,
    pub(super) result_bytes: Option<u64>,
    pub(super) result: Option<String>,
}

impl<'a> CallRecording<'a> {
    pub(super) fn new(call: &'a AdmittedCall<'a>) -> CallRecording<'a> {
        CallRecording {
            call,
            begun: None,
            attempts: 0,
            is_over: false,
        }
    }

    /// The first attempt begins now.
    pub(super) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// The call has ended.
    pub(super) fn end(mut self, end: RecordedEnd<'_>) {
        self.write(end);
    }

    fn write(&mut self, end: RecordedEnd<'_>) {
        self.is_over = true;
        let AdmittedCall {
            tool,
            arguments,
            origin,
            audit,
            ..
        } = *self.call;
        let verdict = match (tool.asked(), self.begun, end.error) {
            (None, ..) => AuditVerdict::Allowed,
            (Some(_), Some(_), _) => AuditVerdict::Confirmed,
            (Some(_), None, Some(CallError::Denied { .. })) => match self.call.can_be_asked() {
                true => AuditVerdict::Refused,
                false => AuditVerdict::Denied,
            },
            (Some(_), None, _) => AuditVerdict::Asked,
        };
        audit.record(|| AuditRecord {
            server: Some(tool.server.to_string()),
            tool: Some(tool.name.to_string()),
            verdict: Some(verdict),
            rule: Some(tool.rule().to_owned()),
            confirmation: end.error.and_then(|error| match error {
                CallError::WaitingForApproval { id, .. } => Some(id.clone()),
                _ => None,
            }),
            outcome: Some(end.outcome.into()),
            error: end.error.map(|it| it.for_log().into_owned()),
            duration_ms: self.begun.map(|it| millis(it.elapsed())),
            attempts: Some(self.attempts),
            argument_bytes: Some(object_bytes(arguments)),
            result_bytes: end.result_bytes,
            arguments: audit.arguments(|| Value::Object(arguments.clone())),
            result: end.result,
            ..origin.record()
        });
    }
}

impl Drop for CallRecording<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.write(RecordedEnd {
                outcome: "cancelled",
                error: None,
                result_bytes: None,
                result: None,
            });
        }
    }
}
