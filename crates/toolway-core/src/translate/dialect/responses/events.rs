//! Answers of Responses, streamed and whole, as an upstream sends them.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::translate::{
    dialect::{
        AnswerReader, Call, Delta, DeltaText, Head, Reasoning, Sealed, Source, Usage, count,
        no_answer, take, take_list, take_text, text,
    },
    stream::CallKind,
};
use toolway_protocol::{
    openai::{ErrorBody, FinishReason},
    sse::{AlikeEvents, EventPattern, SseEvent},
    tool::JsonObject,
};

/// Reads one answer: the events of a stream in their order, or the whole.
#[derive(Debug, Default)]
pub struct EventReader {
    /// What came of an item so far.
    items: BTreeMap<ItemKey, Seen>,
    /// An item came.
    has_items: bool,
    calls: usize,
    /// The answer has begun.
    has_begun: bool,
    /// Texts of thoughts came, so that a further one is another paragraph.
    has_thought: bool,
    /// What the deltas of the running text look like.
    alike: AlikeEvents,
}

/// What tells an item from others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ItemKey {
    /// Its `output_index`.
    Index(u64),
    /// Its id, where the index is missing.
    Id(String),
}

/// What came of one item of the output.
#[derive(Debug, Default)]
struct Seen {
    /// Its number among the calls.
    call: Option<usize>,
    /// Deltas of it came, and its end repeats them.
    has_deltas: bool,
}

/// An event, as far as most events are read: those that have more to say are read whole.
#[derive(Deserialize)]
struct QuickEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    output_index: Option<u64>,
    #[serde(borrow)]
    delta: Option<DeltaText<'a>>,
    #[serde(borrow)]
    item: Option<QuickItem<'a>>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    sequence_number: Option<&'a RawValue>,
    #[serde(borrow)]
    obfuscation: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct QuickItem<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
}

/// A response that has begun.
#[derive(Deserialize)]
struct BegunResponse {
    id: String,
    model: String,
    created_at: u64,
}

/// A response that is complete.
#[derive(Deserialize)]
struct CompletedResponse<'a> {
    status: &'a str,
    #[serde(default, rename = "incomplete_details")]
    _incomplete: (),
    usage: Option<CountedTokens>,
}

#[derive(Deserialize)]
struct CountedTokens {
    input_tokens: u64,
    input_tokens_details: CachedTokens,
    output_tokens: u64,
    output_tokens_details: ReasoningTokens,
}

#[derive(Deserialize)]
struct CachedTokens {
    cached_tokens: u64,
}

#[derive(Deserialize)]
struct ReasoningTokens {
    reasoning_tokens: u64,
}

impl AnswerReader for EventReader {
    fn read_quickly(&mut self, event: &SseEvent) -> Option<Vec<Delta>> {
        let data = event.data()?;
        let read: QuickEvent<'_> = serde_json::from_str(&data).ok()?;
        if self.repeats(read.kind) {
            return Some(Vec::new());
        }
        let item = read.item.map(|item| item.kind);
        match read.kind {
            "response.output_text.delta" => {
                let (index, DeltaText(delta)) = (read.output_index?, read.delta?);
                if delta.is_empty() {
                    return None;
                }
                self.note_delta(ItemKey::Index(index));
                if let Cow::Borrowed(text) = delta {
                    let others = [read.sequence_number, read.obfuscation];
                    let others: Vec<&str> =
                        others.into_iter().flatten().map(RawValue::get).collect();
                    self.alike.learn(|| EventPattern::of(event, text, &others));
                }
                Some(vec![Delta::Text(delta.into_owned())])
            }
            "response.created" => {
                let begun: BegunResponse = serde_json::from_str(read.response?.get()).ok()?;
                let head = Head {
                    id: begun.id,
                    model: begun.model,
                    created: begun.created_at,
                };
                Some(self.begin(|| head).into_iter().collect())
            }
            "response.output_item.added" if !is_call(item?) => {
                self.alike = AlikeEvents::default();
                Some(Vec::new())
            }
            "response.output_item.done" if item? == "message" => {
                let at = ItemKey::Index(read.output_index?);
                if !self.items.get(&at)?.has_deltas {
                    return None;
                }
                self.items.remove(&at);
                self.alike = AlikeEvents::default();
                Some(Vec::new())
            }
            "response.completed" if self.has_begun && self.has_items => {
                let ended: CompletedResponse<'_> =
                    serde_json::from_str(read.response?.get()).ok()?;
                (ended.status == "completed")
                    .then(|| self.ended(None, ended.usage.map(Usage::from)))
            }
            _ => None,
        }
    }

    fn alike(&mut self) -> Option<&mut AlikeEvents> {
        Some(&mut self.alike)
    }

    fn read(&mut self, mut event: JsonObject) -> Vec<Delta> {
        let at = key(&event);
        let kind = take_text(&mut event, "type").unwrap_or_default();
        match kind.as_str() {
            "response.created" | "response.in_progress" => {
                let response = taken(&mut event, "response");
                self.begin(|| head(&response)).into_iter().collect()
            }
            "response.output_item.added" => {
                self.alike = AlikeEvents::default();
                self.added(at, &taken(&mut event, "item"))
            }
            "response.output_item.done" => {
                self.alike = AlikeEvents::default();
                self.done(&at, taken(&mut event, "item"))
            }
            "response.output_text.delta" => self.piece(at, event, Delta::Text),
            "response.refusal.delta" => self.piece(at, event, Delta::Refusal),
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.has_thought = true;
                self.piece(at, event, Delta::Thought)
            }
            "response.reasoning_summary_part.added" if self.has_thought => {
                vec![Delta::Thought("\n\n".to_owned())]
            }
            "response.output_text.annotation.added" => {
                let annotation = take(&mut event, "annotation");
                let annotation = annotation.and_then(|it| write_annotation(&it));
                annotation.map(Delta::Annotation).into_iter().collect()
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                let Some(call) = self.items.entry(at.clone()).or_default().call else {
                    return Vec::new();
                };
                self.piece(at, event, |text| Delta::Arguments(call, text))
            }
            "response.completed" | "response.incomplete" => {
                let mut response = taken(&mut event, "response");
                // Some servers send nothing before the end.
                let whole = match self.has_items {
                    true => Vec::new(),
                    false => self.output(&mut response),
                };
                whole.into_iter().chain(self.finish(response)).collect()
            }
            "response.failed" => {
                let mut response = taken(&mut event, "response");
                vec![failed(&taken(&mut response, "error"))]
            }
            "error" => match event.get("error") {
                Some(Value::Object(_)) => vec![failed(&taken(&mut event, "error"))],
                _ => vec![failed(&event)],
            },
            _ => Vec::new(),
        }
    }

    fn read_whole(&mut self, mut response: JsonObject) -> Vec<Delta> {
        if let Some(failed) = no_answer(&response, "output") {
            return vec![failed];
        }
        let mut deltas: Vec<Delta> = self.begin(|| head(&response)).into_iter().collect();
        deltas.extend(self.output(&mut response));
        deltas.extend(self.finish(response));
        deltas
    }
}

impl EventReader {
    /// An event of this kind says nothing that other events do not say.
    fn repeats(&self, kind: &str) -> bool {
        match kind {
            "response.in_progress" => self.has_begun,
            "response.content_part.added" => true,
            _ => kind.ends_with(".done") && kind != "response.output_item.done",
        }
    }

    /// Items that come whole.
    fn output(&mut self, response: &mut JsonObject) -> Vec<Delta> {
        let items = (0..).zip(take_list(response, "output"));
        let whole = items.flat_map(|(at, item)| match item {
            Value::Object(item) => self.done(&ItemKey::Index(at), item),
            _ => Vec::new(),
        });
        whole.collect()
    }

    fn begin(&mut self, head: impl FnOnce() -> Head) -> Option<Delta> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        is_first.then(|| Delta::Begin(head()))
    }

    fn piece(
        &mut self,
        at: ItemKey,
        mut event: JsonObject,
        delta: impl FnOnce(String) -> Delta,
    ) -> Vec<Delta> {
        self.note_delta(at);
        let piece = take_text(&mut event, "delta").filter(|piece| !piece.is_empty());
        piece.map(delta).into_iter().collect()
    }

    fn note_delta(&mut self, at: ItemKey) {
        self.has_items = true;
        self.items.entry(at).or_default().has_deltas = true;
    }

    fn added(&mut self, at: ItemKey, item: &JsonObject) -> Vec<Delta> {
        let Some(mut call) = read_call(item) else {
            return Vec::new();
        };
        // Some servers give the arguments here and again in deltas; the end of the item has them as well.
        call.arguments = String::new();
        let number = self.calls;
        self.calls += 1;
        self.items.entry(at).or_default().call = Some(number);
        vec![Delta::Call(number, call)]
    }

    fn done(&mut self, at: &ItemKey, mut item: JsonObject) -> Vec<Delta> {
        self.has_items = true;
        let seen = self.items.remove(at).unwrap_or_default();
        if let Some(call) = read_call(&item) {
            return match seen.call {
                Some(_) if seen.has_deltas => Vec::new(),
                Some(number) => vec![Delta::Arguments(number, call.arguments)],
                None => {
                    self.calls += 1;
                    vec![Delta::Call(self.calls - 1, call)]
                }
            };
        }
        match text(&item, "type") {
            Some("message") if !seen.has_deltas => {
                let content = take_list(&mut item, "content");
                content.iter().flat_map(read_content).collect()
            }
            Some("reasoning") => {
                let reasoning = read_reasoning(&item);
                let said = (!seen.has_deltas && !reasoning.text.is_empty())
                    .then(|| Delta::Thought(reasoning.text.clone()));
                let sealed = reasoning
                    .sealed
                    .is_some()
                    .then_some(Delta::Sealed(reasoning));
                said.into_iter().chain(sealed).collect()
            }
            Some("message") | None => Vec::new(),
            Some(_) => vec![Delta::Sealed(Sealed::raw(Source::OpenAi, item))],
        }
    }

    fn finish(&mut self, mut response: JsonObject) -> Vec<Delta> {
        if matches!(
            text(&response, "status"),
            Some("failed" | "cancelled" | "in_progress" | "queued")
        ) {
            return vec![failed(&taken(&mut response, "error"))];
        }
        let mut deltas: Vec<Delta> = self.begin(|| head(&response)).into_iter().collect();
        let why = response.get("incomplete_details");
        let why = why.and_then(|why| why.get("reason")?.as_str());
        let usage = response.get("usage").and_then(Value::as_object);
        let usage = usage.map(|usage| Usage {
            input: count(usage, &["input_tokens"]),
            cached: count(usage, &["input_tokens_details", "cached_tokens"]),
            cache_written: 0,
            output: count(usage, &["output_tokens"]),
            reasoning: count(usage, &["output_tokens_details", "reasoning_tokens"]),
        });
        deltas.extend(self.ended(why, usage));
        deltas
    }

    /// The end of an answer. `why`: what it was cut for.
    fn ended(&self, why: Option<&str>, usage: Option<Usage>) -> Vec<Delta> {
        let finish = match why {
            Some("content_filter") => FinishReason::ContentFilter,
            Some(_) => FinishReason::Length,
            None if self.calls > 0 => FinishReason::ToolCalls,
            None => FinishReason::Stop,
        };
        let finish = std::iter::once(Delta::Finish(finish));
        finish.chain(usage.map(Delta::Usage)).collect()
    }
}

impl From<CountedTokens> for Usage {
    fn from(counted: CountedTokens) -> Usage {
        Usage {
            input: counted.input_tokens,
            cached: counted.input_tokens_details.cached_tokens,
            cache_written: 0,
            output: counted.output_tokens,
            reasoning: counted.output_tokens_details.reasoning_tokens,
        }
    }
}

fn head(response: &JsonObject) -> Head {
    Head {
        id: text(response, "id").unwrap_or_default().to_owned(),
        model: text(response, "model").unwrap_or_default().to_owned(),
        created: count(response, &["created_at"]),
    }
}

/// What tells the item of an event from others.
fn key(event: &JsonObject) -> ItemKey {
    let index = event.get("output_index").and_then(Value::as_u64);
    let of_item = || event.get("item").and_then(|item| item.get("id")?.as_str());
    index.map_or_else(
        || {
            ItemKey::Id(
                of_item()
                    .or(text(event, "item_id"))
                    .unwrap_or_default()
                    .to_owned(),
            )
        },
        ItemKey::Index,
    )
}

fn taken(object: &mut JsonObject, key: &str) -> JsonObject {
    match take(object, key) {
        Some(Value::Object(object)) => object,
        _ => JsonObject::new(),
    }
}

/// An item of this kind is a call of a client's tool.
fn is_call(kind: &str) -> bool {
    matches!(kind, "function_call" | "custom_tool_call")
}

fn read_call(item: &JsonObject) -> Option<Call> {
    let (kind, arguments) = match text(item, "type")? {
        "function_call" => (CallKind::Function, "arguments"),
        "custom_tool_call" => (CallKind::Custom, "input"),
        _ => return None,
    };
    Some(Call {
        id: text(item, "call_id").or(text(item, "id"))?.to_owned(),
        name: text(item, "name")?.to_owned(),
        arguments: text(item, arguments).unwrap_or_default().to_owned(),
        kind,
        sealed: None,
    })
}

fn read_content(part: &Value) -> Vec<Delta> {
    let Some(part) = part.as_object() else {
        return Vec::new();
    };
    let said = match text(part, "type") {
        Some("refusal") => text(part, "refusal").map(|text| Delta::Refusal(text.to_owned())),
        _ => text(part, "text").map(|text| Delta::Text(text.to_owned())),
    };
    let annotations = part.get("annotations").and_then(Value::as_array);
    let annotations = annotations
        .into_iter()
        .flatten()
        .filter_map(write_annotation);
    said.into_iter()
        .chain(annotations.map(Delta::Annotation))
        .collect()
}

fn read_reasoning(item: &JsonObject) -> Reasoning {
    let texts = ["summary", "content"].map(|key| item.get(key).and_then(Value::as_array));
    let texts = texts.into_iter().flatten().flatten();
    let texts: Vec<&str> = texts
        .filter_map(|part| part.get("text")?.as_str())
        .collect();
    Reasoning {
        text: texts.join("\n\n"),
        sealed: text(item, "encrypted_content").map(|data| Sealed {
            source: Source::OpenAi,
            id: text(item, "id").map(str::to_owned),
            data: data.to_owned(),
        }),
    }
}

/// A citation of a URL as chat completions have it; other annotations are none there.
fn write_annotation(annotation: &Value) -> Option<Value> {
    let mut citation = annotation.as_object()?.clone();
    let kind = citation.shift_remove("type")?;
    (kind == "url_citation").then(|| json!({"type": kind, "url_citation": citation}))
}

fn failed(error: &JsonObject) -> Delta {
    let error = json!({"error": error});
    let read = ErrorBody::in_ok_value(&error).map(|(error, _)| error);
    Delta::Failed(read.unwrap_or_else(|| {
        let message = "the upstream's answer failed without a reason";
        ErrorBody::new("server_error", "upstream_error", message)
    }))
}
