//! Answers of `generateContent`, streamed and whole, as an upstream sends them.

use serde_json::Value;

use crate::translate::{
    dialect::{
        AnswerReader, Call, Delta, Head, Reasoning, Sealed, Source, Usage, count, no_answer, take,
        take_list, take_text, text,
    },
    ids::Ids,
    stream::CallKind,
};
use toolway_protocol::{
    openai::{ErrorBody, FinishReason},
    tool::JsonObject,
};

/// Reads one answer.
#[derive(Debug)]
pub struct EventReader {
    ids: Ids,
    has_begun: bool,
    calls: usize,
    /// Something came that a client sees.
    has_said: bool,
    /// Thoughts that were not signed yet.
    thought: String,
    /// No event is the last one, so the end waits for that of the stream.
    end: Option<Delta>,
    usage: Option<Usage>,
}

impl EventReader {
    /// `ids` are for calls that have none.
    pub fn new(ids: Ids) -> EventReader {
        EventReader {
            ids,
            has_begun: false,
            calls: 0,
            has_said: false,
            thought: String::new(),
            end: None,
            usage: None,
        }
    }
}

impl AnswerReader for EventReader {
    fn read(&mut self, mut event: JsonObject) -> Vec<Delta> {
        if event.get("error").is_some_and(|error| !error.is_null())
            && let Some((error, _)) = ErrorBody::in_ok_object(&event)
        {
            return vec![Delta::Failed(error)];
        }
        let mut deltas = Vec::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            deltas.push(Delta::Begin(Head {
                id: text(&event, "responseId").unwrap_or_default().to_owned(),
                model: text(&event, "modelVersion").unwrap_or_default().to_owned(),
                created: 0,
            }));
        }
        if let Some(Value::Object(usage)) = take(&mut event, "usageMetadata") {
            self.usage = Some(read_usage(&usage));
        }
        let is_blocked = event
            .get("promptFeedback")
            .is_some_and(|it| it["blockReason"].is_string());
        let candidate = take_list(&mut event, "candidates").into_iter().next();
        match candidate {
            Some(Value::Object(mut candidate)) => {
                let content = take(&mut candidate, "content");
                if let Some(Value::Object(mut content)) = content {
                    for part in take_list(&mut content, "parts") {
                        self.read_part(part, &mut deltas);
                    }
                }
                self.end = self.read_end(&candidate).or(self.end.take());
            }
            _ if is_blocked => self.end = Some(Delta::Finish(FinishReason::ContentFilter)),
            _ => {}
        }
        deltas
    }

    fn end(&mut self) -> Vec<Delta> {
        let end = self.end.take().unwrap_or_else(|| {
            failed(
                "upstream_incomplete",
                "the upstream's answer ended before it was complete",
            )
        });
        let usage = self.usage.take().map(Delta::Usage);
        [Some(end), usage].into_iter().flatten().collect()
    }

    fn read_whole(&mut self, mut answer: JsonObject) -> Vec<Delta> {
        if answer.contains_key("promptFeedback") {
            // There are no candidates where the question was refused.
            answer
                .entry("candidates")
                .or_insert_with(|| Value::Array(Vec::new()));
        }
        if let Some(failed) = no_answer(&answer, "candidates") {
            return vec![failed];
        }
        let mut deltas = self.read(answer);
        deltas.extend(self.end());
        deltas
    }
}

impl EventReader {
    fn read_part(&mut self, part: Value, deltas: &mut Vec<Delta>) {
        let Value::Object(mut part) = part else {
            return;
        };
        let signature = take_text(&mut part, "thoughtSignature").filter(|it| !it.is_empty());
        let sealed = |id: Option<String>| {
            let source = Source::Gemini;
            signature.clone().map(|data| Sealed { source, id, data })
        };
        if let Some(Value::Object(call)) = take(&mut part, "functionCall") {
            self.has_said = true;
            deltas.push(self.read_call(call, sealed(None)));
            return;
        }
        let said = take_text(&mut part, "text");
        if part.get("thought") == Some(&Value::Bool(true)) {
            let said = said.unwrap_or_default();
            self.thought.push_str(&said);
            if !said.is_empty() {
                deltas.push(Delta::Thought(said));
            }
            if let Some(sealed) = sealed(None) {
                deltas.push(Delta::Sealed(Reasoning {
                    text: std::mem::take(&mut self.thought),
                    sealed: Some(sealed),
                }));
            }
            return;
        }
        self.thought.clear();
        let said = said.or_else(|| describe(&part)).unwrap_or_default();
        let len = said.len();
        if !said.is_empty() {
            self.has_said = true;
            deltas.push(Delta::Text(said));
        }
        let sealed = signature.map(|data| Sealed::of_text(Source::Gemini, data, len));
        deltas.extend(sealed.map(|sealed| {
            Delta::Sealed(Reasoning {
                text: String::new(),
                sealed: Some(sealed),
            })
        }));
    }

    fn read_call(&mut self, mut call: JsonObject, sealed: Option<Sealed>) -> Delta {
        let number = self.calls;
        self.calls += 1;
        let id = take_text(&mut call, "id").filter(|id| !id.is_empty());
        let arguments = call.get("args").filter(|arguments| arguments.is_object());
        Delta::Call(
            number,
            Call {
                id: id.unwrap_or_else(|| self.ids.call()),
                name: text(&call, "name").unwrap_or_default().to_owned(),
                arguments: arguments.map_or_else(|| "{}".to_owned(), Value::to_string),
                kind: CallKind::Function,
                sealed,
            },
        )
    }

    /// The end, if the candidate says why it ended.
    fn read_end(&self, candidate: &JsonObject) -> Option<Delta> {
        let reason = text(candidate, "finishReason")?;
        let finish = match reason {
            "STOP" if self.calls > 0 => FinishReason::ToolCalls,
            "STOP" => FinishReason::Stop,
            "MAX_TOKENS" | "CONTINUATION" => FinishReason::Length,
            "SAFETY"
            | "RECITATION"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "MODEL_ARMOR"
            | "ESCALATION"
            | "PUP_LIMITED_DISABLED"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION" => FinishReason::ContentFilter,
            "MALFORMED_FUNCTION_CALL"
            | "UNEXPECTED_TOOL_CALL"
            | "TOO_MANY_TOOL_CALLS"
            | "MISSING_THOUGHT_SIGNATURE"
            | "MALFORMED_RESPONSE" => return Some(broken(reason, candidate)),
            // Reasons such as `OTHER` and `LANGUAGE`, and those of later versions.
            _ if !self.has_said => return Some(broken(reason, candidate)),
            _ if self.calls > 0 => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        Some(Delta::Finish(finish))
    }
}

/// What the model did cannot be used. Asking again may help.
fn broken(reason: &str, candidate: &JsonObject) -> Delta {
    let why = text(candidate, "finishMessage").map(|why| format!(": {why}"));
    let message = format!(
        "the model's answer ended with {reason}{}",
        why.unwrap_or_default()
    );
    failed("upstream_invalid_response", &message)
}

fn failed(code: &str, message: &str) -> Delta {
    Delta::Failed(ErrorBody::new("server_error", code, message))
}

/// A picture that the model made, for which chat completions have no place.
fn describe(part: &JsonObject) -> Option<String> {
    let data = part.get("inlineData")?;
    let media_type = data.get("mimeType")?.as_str()?;
    Some(format!("[{media_type}, not shown]"))
}

fn read_usage(usage: &JsonObject) -> Usage {
    let count = |key| count(usage, &[key]);
    let thoughts = count("thoughtsTokenCount");
    Usage {
        input: count("promptTokenCount") + count("toolUsePromptTokenCount"),
        cached: count("cachedContentTokenCount"),
        cache_written: 0,
        output: count("candidatesTokenCount") + thoughts,
        reasoning: thoughts,
    }
}
