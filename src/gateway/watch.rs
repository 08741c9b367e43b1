//! What a client that asked for it is told about running tools.

use serde_json::{Value, json};

use crate::{
    agent::{CallRecord, Job},
    tool::{JsonObject, Progress},
};

/// The forms of progress that a client can ask for, by the header `X-Toolway-Progress` or the body field
/// `"toolway": {"progress": …}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// Nothing.
    #[default]
    Off,
    /// A `toolway` field on chunks with empty `choices`, and the list of calls in a plain answer.
    Chunks,
    /// Open WebUI's `event` field on such chunks.
    OpenWebUi,
}

impl Watch {
    /// Reads the header's or the field's value.
    pub fn parse(text: &str) -> Option<Watch> {
        match text.trim().to_ascii_lowercase().as_str() {
            "off" | "false" | "0" | "" => Some(Watch::Off),
            "on" | "true" | "1" | "chunks" => Some(Watch::Chunks),
            "open-webui" | "openwebui" => Some(Watch::OpenWebUi),
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

    /// A call has ended.
    pub fn finished(self, job: &Job, status: &str, duration_ms: u64) -> Option<JsonObject> {
        let fields = json!({"status": status, "duration_ms": duration_ms});
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
            Watch::Off => return None,
            Watch::OpenWebUi => {
                json!({"event": {"type": "status", "data": {"description": description, "done": done}}})
            }
            Watch::Chunks => {
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

/// The list of calls that a plain answer carries.
pub fn list(records: &[CallRecord]) -> Value {
    let one = |record: &CallRecord| {
        json!({"id": record.id, "name": record.name, "arguments": record.arguments,
            "status": record.status, "duration_ms": record.duration_ms})
    };
    json!({"calls": records.iter().map(one).collect::<Vec<_>>()})
}
