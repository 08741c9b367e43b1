//! Calls and their results as events: `tool_use_requested` and what follows it (the seed documents; issue 12, D-02, D-05,
//! D-08, D-20 to D-29).
//!
//! Reading refuses what cannot be understood before anything runs; whether an event fits its call is for
//! [`phases`](super::phases) to say, and [`take_in`] puts the two together.

use bytes::Bytes;
use serde_json::{Value, json};

use super::phases::{Phase, PhaseError, Phases, ResultPart};
use crate::{
    route::Retries,
    translate::tool_responses::{self, Executed},
};
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    sse::{self, Framer},
    tool::{JsonObject, Progress},
};

pub use self::summary::summary;

mod summary;

/// One event of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolEvent {
    /// A call.
    Requested(Requested),
    /// A result of the client's own, or a part of one.
    Succeeded {
        /// The id of its call.
        id: String,
        /// Its place among the parts.
        seq: Option<u64>,
        /// More is to come.
        is_partial: bool,
        /// Its text.
        text: String,
    },
    /// A call that the client ran has failed.
    Failed {
        /// The id of its call.
        id: String,
        /// Why.
        reason: String,
    },
    /// A call is given up.
    Cancelled {
        /// The id of its call.
        id: String,
    },
    /// A session's state changes.
    StateDelta(StateDelta),
}

/// A change of a session's state.
#[derive(Clone, Debug, PartialEq)]
pub struct StateDelta {
    /// The session, where the event names it.
    pub session: Option<String>,
    /// See [`crate::translate::state::patch_of`].
    pub delta: Value,
}

/// A call, as a `tool_use_requested`.
#[derive(Clone, Debug, PartialEq)]
pub struct Requested {
    /// Its id; absent: it gets one.
    pub id: Option<String>,
    /// The tool's offered name.
    pub tool: String,
    /// The arguments as a JSON text.
    pub arguments: String,
    /// The call that it is another attempt of.
    pub retry_of: Option<String>,
    /// How often it is tried.
    pub retries: Retries,
    /// The result comes with a summary.
    pub summary: bool,
    /// The session whose state the result may change, where the event names it.
    pub session: Option<String>,
}

/// How events are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFraming {
    /// One JSON object.
    One,
    /// A JSON array, or an object with `events`.
    List,
    /// A JSON object on each line.
    Lines,
    /// An event stream.
    Stream,
}

impl EventFraming {
    /// Writes an event of a stream or of lines.
    pub fn write(self, event: &Value) -> String {
        match self {
            EventFraming::Stream => format!("data: {event}\n\n"),
            EventFraming::Lines | EventFraming::One | EventFraming::List => format!("{event}\n"),
        }
    }
}

/// Why a body is refused, and nothing of it runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidEvent(String);

/// Reads a body: one event, a list of them, a line for each, or an event stream.
///
/// # Errors
/// When some event cannot be understood.
pub fn read(body: &[u8]) -> Result<(EventFraming, Vec<ToolEvent>), InvalidEvent> {
    let whole = body.trim_ascii();
    if sse::is_begun_by(whole) {
        return Ok((EventFraming::Stream, read_stream(body)?));
    }
    if let Ok(value) = parse(whole) {
        return match value {
            Value::Array(events) => Ok((EventFraming::List, read_all(&events)?)),
            Value::Object(object) => match object.get("events") {
                Some(Value::Array(events)) => Ok((EventFraming::List, read_all(events)?)),
                _ => Ok((EventFraming::One, vec![read_event(&object)?])),
            },
            _ => Err(InvalidEvent("the body is no event".to_owned())),
        };
    }
    let lines = whole.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let lines = lines.filter(|line| !line.is_empty()).map(parse);
    let events: Vec<Value> = lines.collect::<Result<_, _>>()?;
    Ok((EventFraming::Lines, read_all(&events)?))
}

fn read_stream(body: &[u8]) -> Result<Vec<ToolEvent>, InvalidEvent> {
    let mut framer = Framer::new(body.len());
    framer.push(Bytes::copy_from_slice(body));
    let mut frames: Vec<_> = std::iter::from_fn(|| framer.next()).collect();
    frames.extend(framer.finish());
    let mut events = Vec::new();
    for frame in frames {
        let frame = frame.map_err(|error| InvalidEvent(error.to_string()))?;
        if let Some(data) = frame.data() {
            events.push(parse(data.as_bytes())?);
        }
    }
    read_all(&events)
}

fn parse(text: &[u8]) -> Result<Value, InvalidEvent> {
    check_values(text, MAX_VALUES)
        .map_err(|error| InvalidEvent(format!("the body has {error}")))?;
    serde_json::from_slice(text)
        .map_err(|error| InvalidEvent(format!("an event is no JSON: {error}")))
}

fn read_all(events: &[Value]) -> Result<Vec<ToolEvent>, InvalidEvent> {
    let read = |event: &Value| match event {
        Value::Object(event) => read_event(event),
        _ => Err(InvalidEvent("an event is no JSON object".to_owned())),
    };
    events.iter().map(read).collect()
}

fn read_event(event: &JsonObject) -> Result<ToolEvent, InvalidEvent> {
    let kind = event
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let id = || text(event, kind, "tool_call_id");
    match kind {
        "tool_use_requested" => read_requested(event).map(ToolEvent::Requested),
        "tool_use_succeeded" => Ok(ToolEvent::Succeeded {
            id: id()?,
            seq: event.get("seq").and_then(Value::as_u64),
            is_partial: event.get("partial") == Some(&Value::Bool(true)),
            text: content(event.get("content")),
        }),
        "tool_use_failed" => Ok(ToolEvent::Failed {
            id: id()?,
            reason: text(event, kind, "reason").unwrap_or_default(),
        }),
        "tool_use_cancelled" => Ok(ToolEvent::Cancelled { id: id()? }),
        "state_delta" => Ok(ToolEvent::StateDelta(StateDelta {
            session: text(event, kind, "session").ok(),
            delta: event.get("delta").cloned().unwrap_or_default(),
        })),
        other => Err(InvalidEvent(format!(
            "`type` is `tool_use_requested`, `tool_use_succeeded`, `tool_use_failed`, `tool_use_cancelled` or \
             `state_delta`, not `{}`",
            other.chars().take(64).collect::<String>()
        ))),
    }
}

fn read_requested(event: &JsonObject) -> Result<Requested, InvalidEvent> {
    let optional = |name: &str| match event.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(_) => text(event, "tool_use_requested", name).map(Some),
    };
    Ok(Requested {
        id: optional("tool_call_id")?,
        tool: text(event, "tool_use_requested", "tool")?,
        arguments: match event.get("args") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        },
        retry_of: optional("retry_of")?,
        retries: retries(event.get("retry"))?,
        summary: event.get("summary") == Some(&Value::Bool(true)),
        session: optional("session")?,
    })
}

/// `{"max_attempts": 3, "backoff_ms": [100, 400]}`.
fn retries(written: Option<&Value>) -> Result<Retries, InvalidEvent> {
    let Some(written) = written.filter(|written| !written.is_null()) else {
        return Ok(Retries::default());
    };
    let invalid = || {
        InvalidEvent(
            "`retry` is such as {\"max_attempts\": 3, \"backoff_ms\": [100, 400]}, with 1 to 10 attempts and pauses of \
             at most a minute"
                .to_owned(),
        )
    };
    let attempts = match written.get("max_attempts") {
        None => None,
        Some(attempts) => Some(attempts.as_u64().ok_or_else(invalid)?),
    };
    let pauses = match written.get("backoff_ms") {
        None => Vec::new(),
        Some(pauses) => {
            let pauses = pauses.as_array().ok_or_else(invalid)?;
            let pauses = pauses.iter().map(Value::as_u64);
            pauses.collect::<Option<Vec<u64>>>().ok_or_else(invalid)?
        }
    };
    if !written.is_object() {
        return Err(invalid());
    }
    Retries::new(attempts, &pauses).ok_or_else(invalid)
}

fn text(event: &JsonObject, kind: &str, name: &str) -> Result<String, InvalidEvent> {
    let value = event.get(name).and_then(Value::as_str);
    let value = value.filter(|value| !value.is_empty());
    let value = value.ok_or_else(|| InvalidEvent(format!("`{name}` of a `{kind}` is missing")))?;
    Ok(value.to_owned())
}

/// The text of a result: its `prompt`, or a text, or any other value as JSON.
fn content(content: Option<&Value>) -> String {
    match content {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(object)) if object.get("prompt").is_some_and(Value::is_string) => {
            object["prompt"].as_str().unwrap_or_default().to_owned()
        }
        Some(other) => other.to_string(),
    }
}

/// What becomes of the events of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TakenIn {
    /// In their order.
    pub items: Vec<EventItem>,
    /// The calls that have no result of the client's own, each with its id.
    pub to_run: Vec<(String, Requested)>,
}

/// What an event comes to at once.
#[derive(Clone, Debug, PartialEq)]
pub enum EventItem {
    /// An event for the client.
    Write(Value),
    /// A session's state is to be changed.
    StateDelta(StateDelta),
}

/// Takes in the events of one request. A call without an id gets `call_` and its number; a result of the client's own is
/// put together from its parts, and one that lacks a part at the end has timed out.
pub fn take_in(events: Vec<ToolEvent>, is_minimal: bool) -> TakenIn {
    let mut phases = Phases::default();
    let mut requested: Vec<(String, Requested)> = Vec::new();
    let mut items = Vec::new();
    for event in events {
        let (id, ended) = match event {
            ToolEvent::StateDelta(delta) => {
                items.push(EventItem::StateDelta(delta));
                continue;
            }
            ToolEvent::Requested(call) => {
                let id = call.id.clone();
                let id = id.unwrap_or_else(|| format!("call_{}", requested.len()));
                let begun = phases.request(&id);
                if begun.is_ok() {
                    requested.push((id.clone(), call));
                }
                (id, begun.map(|()| None))
            }
            ToolEvent::Succeeded {
                id,
                seq,
                is_partial,
                text,
            } => {
                let part = ResultPart {
                    seq,
                    text,
                    is_last: !is_partial,
                };
                let whole = phases.part(&id, part);
                (id, whole)
            }
            ToolEvent::Failed { id, reason } => {
                let ended = phases.end(&id, Phase::Failed);
                let content = json!({"error": {"type": "tool_error", "message": reason}});
                (id, ended.map(|()| Some(content.to_string())))
            }
            ToolEvent::Cancelled { id } => {
                let ended = phases.end(&id, Phase::Cancelled);
                if ended.is_ok() {
                    let event = json!({"type": "tool_use_cancelled", "tool_call_id": id});
                    items.push(EventItem::Write(event));
                }
                (id, ended.map(|()| None))
            }
        };
        match ended {
            Ok(None) => {}
            Ok(Some(content)) => items.extend(settled(id, content, &requested, is_minimal)),
            // The call has ended by it.
            Err(error @ PhaseError::TooLong) => {
                let error = json!({"type": error.kind(), "message": error.to_string()});
                let content = json!({"error": error}).to_string();
                items.extend(settled(id, content, &requested, is_minimal));
            }
            Err(error) => items.push(EventItem::Write(rejected(&id, error))),
        }
    }
    for (id, partial) in phases.give_up_on_parts() {
        let error = json!({"type": "timeout", "message": "the result has not come to its end", "partial": partial});
        let content = json!({"error": error}).to_string();
        items.extend(settled(id, content, &requested, is_minimal));
    }
    requested.retain(|(id, _)| phases.phase(id) == Some(Phase::Requested));
    TakenIn {
        items,
        to_run: requested,
    }
}

/// The event of a call that the client itself has run.
fn settled(
    id: String,
    content: String,
    requested: &[(String, Requested)],
    is_minimal: bool,
) -> Option<EventItem> {
    let (_, requested) = requested.iter().find(|(other, _)| *other == id)?;
    let ended = EndedCall {
        executed: Executed { id, content },
        requested,
        attempts: 1,
    };
    Some(EventItem::Write(write_ended(&ended, is_minimal)))
}

fn rejected(id: &str, error: PhaseError) -> Value {
    write_rejected(Some(id), error.kind(), &error.to_string())
}

/// A call that has ended, and what goes with its event.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedCall<'a> {
    /// What came of it.
    pub executed: Executed,
    /// The call as it was requested.
    pub requested: &'a Requested,
    /// How often it was tried.
    pub attempts: u32,
}

/// The event of a call that has ended. For a client that knows only names, arguments and results (`is_minimal`) it has
/// `type`, `tool_call_id`, and `content` or `reason` (D-29).
pub fn write_ended(ended: &EndedCall<'_>, is_minimal: bool) -> Value {
    let mut event = tool_responses::write_event(&ended.executed);
    let Value::Object(members) = &mut event else {
        return event;
    };
    if is_minimal {
        let kept = ["type", "tool_call_id", "content", "reason"];
        members.retain(|name, _| kept.contains(&name.as_str()));
        return event;
    }
    if ended.requested.summary && members.contains_key("content") {
        let (prompt, data) = summary(&ended.requested.tool, &ended.executed.content);
        members.insert(
            "content".to_owned(),
            json!({"prompt": prompt, "data": data}),
        );
    }
    if ended.attempts > 1 {
        members.insert("attempts".to_owned(), ended.attempts.into());
    }
    if let Some(earlier) = &ended.requested.retry_of {
        members.insert("retry_of".to_owned(), earlier.as_str().into());
    }
    event
}

/// The event of a failed attempt after which the call is sent again (D-23).
pub fn write_retry(id: &str, attempt: u32, reason: &str) -> Value {
    json!({"type": "tool_use_failed", "tool_call_id": id, "attempt": attempt, "will_retry": true, "reason": reason})
}

/// The event of a running call that says how far it has come (D-21).
pub fn write_progress(id: &str, progress: &Progress) -> Value {
    let Progress {
        progress,
        total,
        message,
    } = progress;
    let mut event = json!({"type": "tool_use_progress", "tool_call_id": id, "progress": progress});
    if let Some(total) = total {
        event["total"] = (*total).into();
    }
    if let Some(message) = message {
        event["message"] = message.as_str().into();
    }
    event
}

/// The event that says why an event of the client's was not accepted. It ends no call.
pub fn write_rejected(id: Option<&str>, kind: &str, message: &str) -> Value {
    let mut event = json!({"type": "error", "error": {"type": kind, "message": message}});
    if let Some(id) = id {
        event["tool_call_id"] = id.into();
    }
    event
}

/// The event of a session's state that has changed (D-26).
pub fn write_state(session: &str, version: u64, patch: &Value) -> Value {
    json!({"type": "state_delta", "session": session, "version": version, "delta": patch})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(event: &Value) -> Requested {
        match read(event.to_string().as_bytes()).unwrap().1.remove(0) {
            ToolEvent::Requested(requested) => requested,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_call_has_the_keys_of_d_02() {
        let event = json!({"type": "tool_use_requested", "tool": "calculate_sum", "args": {"a": 5, "b": 7},
            "tool_call_id": "toolcall-456"});
        let expected = Requested {
            id: Some("toolcall-456".to_owned()),
            tool: "calculate_sum".to_owned(),
            arguments: r#"{"a":5,"b":7}"#.to_owned(),
            retry_of: None,
            retries: Retries::default(),
            summary: false,
            session: None,
        };
        assert_eq!(requested(&event), expected);
    }

    #[test]
    fn every_framing_has_the_same_events() {
        let event = r#"{"type":"tool_use_cancelled","tool_call_id":"a"}"#;
        let cases = [
            (event.to_owned(), EventFraming::One, 1),
            (format!("[{event},{event}]"), EventFraming::List, 2),
            (format!("{{\"events\":[{event}]}}"), EventFraming::List, 1),
            (format!("{event}\r\n\n{event}\n"), EventFraming::Lines, 2),
            (
                format!(": hi\n\ndata: {event}\n\ndata: {event}\n\n"),
                EventFraming::Stream,
                2,
            ),
        ];
        for (body, framing, count) in cases {
            let (read, events) = read(body.as_bytes()).unwrap();
            assert_eq!((read, events.len()), (framing, count), "{body}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_refused_d_36() {
        let deep = "[".repeat(100_000);
        for body in [
            "",
            "1",
            "{}",
            "[1]",
            r#"{"type":"tool_use_requested"}"#,
            r#"{"type":"tool_use_requested","tool":1}"#,
            r#"{"type":"tool_use_succeeded","content":"x"}"#,
            r#"{"type":"tool_use_requested","tool":"f","retry":1}"#,
            r#"{"type":"tool_use_requested","tool":"f","retry":{"max_attempts":0}}"#,
            r#"{"type":"tool_use_requested","tool":"f","retry":{"backoff_ms":[-1]}}"#,
            "{\"type\":\"tool_use_cancelled\",\"tool_call_id\":\"a\"}\n{",
            &deep,
        ] {
            let read = read(body.as_bytes());
            assert!(read.is_err() || read.unwrap().1.is_empty(), "{body:.40}");
        }
    }

    /// What these events come to: the events at once, and the ids of the calls that are to run.
    fn taken_in(events: &Value) -> (Vec<Value>, Vec<String>) {
        let events = read(events.to_string().as_bytes()).unwrap().1;
        let TakenIn { items, to_run } = take_in(events, false);
        let written = items.into_iter().map(|item| match item {
            EventItem::Write(event) => event,
            EventItem::StateDelta(delta) => json!({"delta": delta.delta}),
        });
        let to_run = to_run.into_iter().map(|(id, _)| id);
        (written.collect(), to_run.collect())
    }

    fn requested_as(id: &str) -> Value {
        json!({"type": "tool_use_requested", "tool": "f", "tool_call_id": id})
    }

    fn part(seq: u64, is_partial: bool, prompt: &str) -> Value {
        json!({"type": "tool_use_succeeded", "tool_call_id": "c1", "partial": is_partial, "seq": seq,
            "content": {"prompt": prompt}})
    }

    #[test]
    fn parts_of_a_result_become_one_result_d_20() {
        let (written, to_run) = taken_in(&json!([
            requested_as("c1"),
            part(1, true, "2 orders"),
            part(0, true, "Fetched "),
            part(0, true, "Fetched "),
            json!({"type": "tool_use_succeeded", "tool_call_id": "c1", "partial": false, "seq": 2}),
        ]));
        let whole = json!({"type": "tool_use_succeeded", "tool_call_id": "c1", "content": {"prompt": "Fetched 2 orders"}});
        assert_eq!((written, to_run), (vec![whole], Vec::new()));
        let (written, to_run) = taken_in(&json!([requested_as("c1"), part(0, true, "Fetched ")]));
        assert_eq!(written[0]["error"]["type"], "timeout");
        assert_eq!(written[0]["error"]["partial"], "Fetched ");
        assert!(to_run.is_empty());
    }

    #[test]
    fn an_event_that_does_not_fit_its_call_is_rejected_and_changes_nothing_d_22() {
        let (written, to_run) = taken_in(&json!([
            part(0, false, "unknown"),
            requested_as("c1"),
            requested_as("c1"),
            part(0, false, "12"),
            part(1, false, "13"),
            {"type": "tool_use_failed", "tool_call_id": "c1", "reason": "late"},
            requested_as("c2"),
        ]));
        let kinds: Vec<&Value> = written.iter().map(|it| &it["error"]["type"]).collect();
        assert_eq!(
            kinds,
            [
                &json!("unknown_tool_call_id"),
                &json!("duplicate_tool_call_id"),
                &Value::Null,
                &json!("tool_call_ended"),
                &json!("tool_call_ended"),
            ]
        );
        assert_eq!(written[2]["content"]["prompt"], "12");
        assert_eq!(to_run, ["c2"]);
    }

    #[test]
    fn a_cancelled_call_does_not_run_d_22() {
        let cancelled = json!({"type": "tool_use_cancelled", "tool_call_id": "c1"});
        let (written, to_run) = taken_in(&json!([requested_as("c1"), cancelled]));
        assert_eq!((written, to_run), (vec![cancelled], Vec::new()));
    }

    #[test]
    fn another_attempt_has_an_id_of_its_own_d_24() {
        let mut again = requested_as("c1");
        again["retry_of"] = json!("c1");
        let (written, _) = taken_in(&json!([requested_as("c1"), again.clone()]));
        assert_eq!(written[0]["error"]["type"], "duplicate_tool_call_id");
        again["tool_call_id"] = Value::Null;
        let (written, to_run) = taken_in(&json!([requested_as("c1"), again]));
        assert_eq!(
            (written, to_run),
            (Vec::new(), vec!["c1".to_owned(), "call_1".to_owned()])
        );
    }

    #[test]
    fn an_event_of_minimal_mode_has_three_members_d_29() {
        let requested = Requested {
            retry_of: Some("c0".to_owned()),
            summary: true,
            ..requested(&json!({"type": "tool_use_requested", "tool": "f"}))
        };
        let ended = |content: &str| EndedCall {
            executed: Executed {
                id: "c1".to_owned(),
                content: content.to_owned(),
            },
            requested: &requested,
            attempts: 2,
        };
        let event = write_ended(&ended("12"), true);
        assert_eq!(
            event,
            json!({"type": "tool_use_succeeded", "tool_call_id": "c1", "content": {"prompt": "12"}})
        );
        let failed = r#"{"error":{"type":"tool_error","message":"no"}}"#;
        let event = write_ended(&ended(failed), true);
        assert_eq!(
            event,
            json!({"type": "tool_use_failed", "tool_call_id": "c1", "reason": "no"})
        );
        let event = write_ended(&ended(failed), false);
        assert_eq!(
            (&event["attempts"], &event["retry_of"]),
            (&json!(2), &json!("c0"))
        );
    }
}
