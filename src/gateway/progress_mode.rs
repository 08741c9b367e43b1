//! Progress of running tools, for clients that ask for it.

use serde_json::{Value, json};

use crate::store::confirmations::Confirmation;
use toolway_core::{
    agent::{CallRecord, Job, status},
    translate::results::{self, Media},
};
use toolway_protocol::{
    mcp::rpc::code,
    tool::{CallError, JsonObject, Progress, ToolResult},
};

/// The forms of progress that a client can ask for, by the header `X-Toolway-Progress` or the body field
/// `"toolway": {"progress": …}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressMode {
    /// Nothing.
    #[default]
    Off,
    /// A `toolway` field on chunks with empty `choices`, and the list of calls in a plain answer.
    Chunks,
    /// Open WebUI's `event` field on such chunks.
    OpenWebUi,
    /// As [`ProgressMode::Chunks`], with what the calls returned; for faces whose answers have items for calls.
    Items,
}

impl ProgressMode {
    /// Reads the header's or the field's value.
    pub fn parse(text: &str) -> Option<ProgressMode> {
        match text.trim().to_ascii_lowercase().as_str() {
            "off" | "false" | "0" | "" => Some(ProgressMode::Off),
            "on" | "true" | "1" | "chunks" => Some(ProgressMode::Chunks),
            "open-webui" | "openwebui" => Some(ProgressMode::OpenWebUi),
            _ => None,
        }
    }

    /// A call begins.
    pub fn started(self, job: &Job) -> Option<JsonObject> {
        self.note(
            job,
            "call_started",
            json!({"arguments": job.arguments}),
            &format!("Calling {}…", job.offered.name),
            false,
        )
    }

    /// A call waits for the approval of a person.
    pub fn waits(self, job: &Job, waiting: &Confirmation) -> Option<JsonObject> {
        let id = &waiting.id;
        let fields = json!({"confirmation_id": id, "reason": waiting.reason, "rule": waiting.rule});
        let description = format!("{} waits for approval: {id}", job.offered.name);
        self.note(
            job,
            "call_waiting_for_approval",
            fields,
            &description,
            false,
        )
    }

    /// A call says how far it has come.
    pub fn progressed(self, job: &Job, progress: &Progress) -> Option<JsonObject> {
        let Progress {
            progress: done,
            total,
            message,
        } = progress;
        let fields = json!({"progress": done, "total": total, "message": message});
        let description = match (message, total) {
            (Some(message), _) => format!("{}: {message}", job.offered.name),
            (None, Some(total)) => format!("{}: {done} of {total}", job.offered.name),
            (None, None) => format!("{}: {done}", job.offered.name),
        };
        self.note(job, "call_progress", fields, &description, false)
    }

    /// A call has ended. Of what it returned, at most `limit` bytes are told.
    pub fn finished(
        self,
        job: &Job,
        outcome: &Result<ToolResult, CallError>,
        duration_ms: u64,
        limit: usize,
    ) -> Option<JsonObject> {
        let status = status(outcome);
        let mut fields = json!({"status": status, "duration_ms": duration_ms});
        if self == ProgressMode::Items {
            let (key, returned) = returned(outcome, limit);
            fields[key] = returned;
        }
        let description = match status {
            "ok" => format!("{} answered", job.offered.name),
            failed => format!("{} failed: {failed}", job.offered.name),
        };
        self.note(job, "call_finished", fields, &description, true)
    }

    fn note(
        self,
        job: &Job,
        kind: &str,
        fields: Value,
        description: &str,
        done: bool,
    ) -> Option<JsonObject> {
        let note = match self {
            ProgressMode::Off => return None,
            ProgressMode::OpenWebUi => {
                json!({"event": {"type": "status", "data": {"description": description, "done": done}}})
            }
            ProgressMode::Chunks | ProgressMode::Items => {
                let mut note = json!({"type": kind, "id": job.id, "name": job.offered.name.as_str(),
                    "server": job.offered.server.as_str(), "tool": job.offered.tool.name});
                if let (Value::Object(note), Value::Object(fields)) = (&mut note, fields) {
                    note.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
                }
                json!({"toolway": note})
            }
        };
        match note {
            Value::Object(note) => Some(note),
            _ => None,
        }
    }
}

/// What a call returned, as the model reads it, with the name of the member for it.
fn returned(outcome: &Result<ToolResult, CallError>, limit: usize) -> (&'static str, Value) {
    match outcome {
        Ok(result) => {
            let succeeded = ToolResult {
                is_error: false,
                ..result.clone()
            };
            let text =
                results::to_openai(&succeeded, limit, Media::default(), results::cut_off).text;
            match result.is_error {
                true => ("error", json!({"message": text})),
                false => ("output", text.into()),
            }
        }
        Err(error) => {
            let code = match error {
                CallError::Protocol { code, .. } => *code,
                _ => code::INTERNAL_ERROR,
            };
            ("error", json!({"code": code, "message": error.to_string()}))
        }
    }
}

/// The list of calls that a plain answer carries.
pub fn list(records: &[CallRecord]) -> Value {
    let one = |record: &CallRecord| {
        json!({"id": record.id, "name": record.name, "arguments": record.arguments,
            "status": record.status, "duration_ms": record.duration_ms})
    };
    json!({"calls": records.iter().map(one).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolway_core::{
        catalog::{Catalog, ServerRisk, ServerTools},
        policy::{CallRequest, Policy, Verdict},
    };
    use toolway_protocol::tool::{Annotations, ServerId, Tool};

    fn job() -> Job {
        let catalog = Catalog::build(&[ServerTools {
            server: ServerId::parse("time").unwrap(),
            stateful: false,
            risk: ServerRisk::default(),
            tools: vec![Tool {
                name: "now".to_owned(),
                title: None,
                description: None,
                input_schema: JsonObject::new(),
                output_schema: None,
                annotations: Annotations::default(),
                extra: JsonObject::new(),
            }],
            dropped: Vec::new(),
        }]);
        let tool = catalog.find("time__now").unwrap();
        let request = CallRequest {
            tool,
            is_shown: true,
            key: None,
            arguments: &JsonObject::new(),
        };
        let Verdict::Allow(offered) = Policy::default().evaluate(&request) else {
            panic!("a tool that is shown may be called");
        };
        Job {
            place: 0,
            id: "c".to_owned(),
            offered,
            arguments: json!({"x": 1}).as_object().cloned().unwrap(),
            retries: toolway_core::route::Retries::default(),
            is_early: false,
        }
    }

    fn timeout() -> Result<ToolResult, CallError> {
        Err(CallError::Timeout {
            after: std::time::Duration::from_secs(1),
        })
    }

    fn progress(total: Option<f64>, message: Option<&str>) -> Progress {
        Progress {
            progress: 1.5,
            total,
            message: message.map(str::to_owned),
        }
    }

    /// What each stage of a call says: begun, half done, ended.
    fn notes(mode: ProgressMode) -> [Option<Value>; 3] {
        let job = job();
        [
            mode.started(&job),
            mode.progressed(&job, &progress(Some(3.0), None)),
            mode.finished(&job, &timeout(), 7, 100),
        ]
        .map(|note| note.map(Value::Object))
    }

    #[test]
    fn the_header_and_the_field_say_it_in_the_same_words() {
        for (text, expected) in [
            ("on", ProgressMode::Chunks),
            (" True ", ProgressMode::Chunks),
            ("1", ProgressMode::Chunks),
            ("off", ProgressMode::Off),
            ("", ProgressMode::Off),
            ("Open-WebUI", ProgressMode::OpenWebUi),
        ] {
            assert_eq!(ProgressMode::parse(text), Some(expected), "{text}");
        }
        assert_eq!(ProgressMode::parse("loud"), None);
    }

    #[test]
    fn nothing_is_said_to_those_who_did_not_ask() {
        assert_eq!(notes(ProgressMode::Off), [None, None, None]);
    }

    #[test]
    fn a_note_names_the_call_and_says_only_what_is_known() {
        let with = |kind: &str, fields: Value| {
            let mut note = json!({"type": kind, "id": "c", "name": "time__now", "server": "time", "tool": "now"});
            for (name, value) in fields.as_object().unwrap() {
                note[name] = value.clone();
            }
            Some(json!({"toolway": note}))
        };
        assert_eq!(
            notes(ProgressMode::Chunks),
            [
                with("call_started", json!({"arguments": {"x": 1}})),
                with("call_progress", json!({"progress": 1.5, "total": 3.0})),
                with(
                    "call_finished",
                    json!({"status": "timeout", "duration_ms": 7})
                ),
            ]
        );
    }

    #[test]
    fn open_webui_is_given_a_line_and_told_when_it_is_the_last() {
        let line = |text: &str, done: bool| {
            Some(json!({"event": {"type": "status", "data": {"description": text, "done": done}}}))
        };
        assert_eq!(
            notes(ProgressMode::OpenWebUi),
            [
                line("Calling time__now…", false),
                line("time__now: 1.5 of 3", false),
                line("time__now failed: timeout", true),
            ]
        );
        let said = |progress| {
            ProgressMode::OpenWebUi
                .progressed(&job(), &progress)
                .map(Value::Object)
        };
        assert_eq!(said(progress(None, None)), line("time__now: 1.5", false));
        assert_eq!(
            said(progress(Some(3.0), Some("half"))),
            line("time__now: half", false)
        );
    }

    #[test]
    fn a_plain_answer_lists_every_call() {
        let record = CallRecord {
            id: "c".to_owned(),
            name: "time__now".to_owned(),
            arguments: "{".to_owned(),
            status: "invalid_arguments_json",
            duration_ms: 0,
        };
        let expected = json!({"calls": [{"id": "c", "name": "time__now", "arguments": "{",
            "status": "invalid_arguments_json", "duration_ms": 0}]});
        assert_eq!(list(&[record]), expected);
    }
}
