//! Answers for clients that speak Responses.

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::{
    client_tools::ToolNames,
    gateway_tools::{GatewayTools, approval_id},
    output::{ClientNames, ItemKind, OutputItem, TextPart, WrittenItem, input},
};
use crate::translate::dialect::{
    AnswerWriter, Delta, GatewayCall, GatewayError, Reasoning, Source, Usage, object, write_event,
    write_json,
};
use toolway_protocol::{
    openai::{ErrorBody, FinishReason},
    tool::JsonObject,
};

/// Writes an answer as the events of a stream, and puts the response together on the way.
#[derive(Debug)]
pub struct ResponseWriter {
    /// The response without its output.
    resource: JsonObject,
    names: ClientNames,
    /// The tools of each label that are still to be shown.
    lists: Vec<(String, Vec<Value>)>,
    /// What ids of items end with.
    suffix: String,
    events: u64,
    is_over: bool,
    output: Vec<OutputItem>,
    /// The index of an item, and what is between its pieces of text and their numbers; empty until one was written.
    after_text: (usize, Vec<u8>),
    finish: FinishReason,
    usage: Option<Usage>,
}

/// An event of a stream.
#[derive(Serialize)]
struct NumberedEvent<'a, D> {
    #[serde(flatten)]
    data: D,
    #[serde(rename = "type")]
    kind: &'a str,
    sequence_number: u64,
}

#[derive(Serialize)]
struct ResponseEvent<'a> {
    response: &'a RawValue,
}

#[derive(Serialize)]
struct WholeItem<'a> {
    output_index: usize,
    item: WrittenItem<'a>,
}

#[derive(Serialize)]
struct TextDone<'a> {
    content_index: usize,
    text: &'a str,
    logprobs: [(); 0],
}

#[derive(Serialize)]
struct PartEvent<'a> {
    content_index: usize,
    part: TextPart<'a>,
}

/// The response as it is now.
struct CurrentResponse<'a>(&'a ResponseWriter);

impl Serialize for CurrentResponse<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let CurrentResponse(writer) = self;
        let mut map = serializer.serialize_map(Some(writer.resource.len()))?;
        for (key, value) in &writer.resource {
            if key == "output" {
                let items = writer.output.iter();
                let items: Vec<_> = items.map(|item| writer.names.write_item(item)).collect();
                map.serialize_entry(key, &items)?;
            } else {
                map.serialize_entry(key, value)?;
            }
        }
        map.end()
    }
}

/// What the events of one item have.
#[derive(Serialize)]
struct ItemEvent<'a, D> {
    #[serde(flatten)]
    data: D,
    item_id: &'a str,
    output_index: usize,
}

fn write_numbered(events: &mut u64, name: &str, data: impl Serialize, out: &mut Vec<u8>) {
    let event = NumberedEvent {
        data,
        kind: name,
        sequence_number: *events,
    };
    *events += 1;
    write_event(Some(name), &event, out);
}

impl ResponseWriter {
    /// `resource` and `names` are those of the request; `id` is the response's, without its beginning `resp_`; `created` is
    /// in seconds since 1970.
    pub fn new(
        mut resource: JsonObject,
        names: ToolNames,
        id: String,
        created: u64,
    ) -> ResponseWriter {
        resource.extend(object([
            ("id", Some(format!("resp_{id}").into())),
            ("object", Some("response".into())),
            ("created_at", Some(created.into())),
            ("completed_at", Some(Value::Null)),
            ("status", Some("in_progress".into())),
            ("incomplete_details", Some(Value::Null)),
            ("error", Some(Value::Null)),
            ("output", Some(Value::Array(Vec::new()))),
            ("usage", Some(Value::Null)),
        ]));
        ResponseWriter {
            resource,
            names: ClientNames {
                tools: names,
                gateway: GatewayTools::default(),
            },
            lists: Vec::new(),
            suffix: id,
            events: 0,
            is_over: false,
            output: Vec::new(),
            after_text: Default::default(),
            finish: FinishReason::Stop,
            usage: None,
        }
    }

    /// Shows these tools before everything else, but for the lists that the conversation has `listed`, and then their calls.
    pub fn show(&mut self, tools: GatewayTools, listed: &[String]) {
        self.names.gateway = tools;
        self.lists = self.names.gateway.take_lists(listed);
    }

    fn write_lists(&mut self, out: &mut Vec<u8>) {
        for (label, tools) in std::mem::take(&mut self.lists) {
            let empty = ItemKind::ToolList {
                label,
                tools: Vec::new(),
            };
            let at = self.open(|_| false, || empty, out);
            self.item_event(at, "mcp_list_tools.in_progress", json!({}), out);
            if let ItemKind::ToolList { tools: listed, .. } = &mut self.output[at].kind {
                *listed = tools;
            }
            self.close_item(at, out);
        }
    }

    /// The response as it is now.
    pub fn response(&self) -> JsonObject {
        let mut response = self.resource.clone();
        let output = self
            .output
            .iter()
            .map(|item| json!(self.names.write_item(item)));
        response.insert("output".to_owned(), output.collect());
        response
    }

    fn current(&self) -> Box<RawValue> {
        to_raw_value(&CurrentResponse(self)).expect("its keys are texts")
    }

    /// Says that the response waits to be made, before the model has answered.
    pub fn queue(&mut self, model: &str, out: &mut Vec<u8>) {
        self.resource.insert("model".to_owned(), model.into());
        self.resource.insert("status".to_owned(), "queued".into());
        let response = self.current();
        for name in ["response.created", "response.queued"] {
            self.response_event(name, &response, out);
        }
    }

    /// Ends the response as it is.
    pub fn cancel(&mut self, out: &mut Vec<u8>) {
        if self.is_over {
            return;
        }
        self.begin(out);
        self.close(true, out);
        self.resource
            .insert("status".to_owned(), "cancelled".into());
        // There is no event of that name.
        self.response_event("response.incomplete", &self.current(), out);
        self.is_over = true;
    }

    /// It has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        let is_queued = self.resource["status"] == "queued";
        if self.events > 0 && !is_queued {
            return;
        }
        self.resource
            .insert("status".to_owned(), "in_progress".into());
        let response = self.current();
        if !is_queued {
            self.response_event("response.created", &response, out);
        }
        self.response_event("response.in_progress", &response, out);
        self.write_lists(out);
    }

    fn response_event(&mut self, name: &str, response: &RawValue, out: &mut Vec<u8>) {
        write_numbered(&mut self.events, name, ResponseEvent { response }, out);
    }

    /// An event of the item at this place.
    fn item_event(&mut self, at: usize, name: &str, data: impl Serialize, out: &mut Vec<u8>) {
        let name = &format!("response.{name}");
        let data = ItemEvent {
            data,
            item_id: &self.output[at].id,
            output_index: at,
        };
        write_numbered(&mut self.events, name, data, out);
    }

    /// Most events of a stream are like this one, so it is written without a serializer.
    fn text_event(&mut self, at: usize, piece: &str, out: &mut Vec<u8>) {
        let (of, after) = &mut self.after_text;
        if after.is_empty() || *of != at {
            after.clear();
            after.extend_from_slice(b",\"logprobs\":[],\"item_id\":");
            write_json(&self.output[at].id, after);
            after.extend_from_slice(b",\"output_index\":");
            write_json(&at, after);
            after.extend_from_slice(
                b",\"type\":\"response.output_text.delta\",\"sequence_number\":",
            );
            *of = at;
        }
        out.extend_from_slice(
            b"event: response.output_text.delta\ndata: {\"content_index\":0,\"delta\":",
        );
        write_json(&piece, out);
        out.extend_from_slice(after);
        write_json(&self.events, out);
        out.extend_from_slice(b"}\n\n");
        self.events += 1;
    }

    /// Returns the index of the open item for which `is_meant` is true, and opens one if there is none. Every other
    /// item except calls is closed first.
    fn open(
        &mut self,
        is_meant: impl Fn(&ItemKind) -> bool,
        kind: impl FnOnce() -> ItemKind,
        out: &mut Vec<u8>,
    ) -> usize {
        let last = self.output.last();
        if last.is_some_and(|item| item.is_open && is_meant(&item.kind)) {
            return self.output.len() - 1;
        }
        self.close(false, out);
        let kind = kind();
        let prefix = match &kind {
            ItemKind::Message { .. } | ItemKind::Refusal(_) => "msg",
            ItemKind::Reasoning(_) => "rs",
            ItemKind::Raw(_) => "item",
            ItemKind::Call { call, .. } if self.names.is_custom(call) => "ctc",
            ItemKind::Call { .. } => "fc",
            ItemKind::ToolList { .. } => "mcpl",
            ItemKind::GatewayCall { .. } => "mcp",
        };
        let at = self.output.len();
        let asked = match &kind {
            ItemKind::Call { call, .. } if self.names.asked_before(call).is_some() => {
                Some(&call.id)
            }
            _ => None,
        };
        let is_asked = asked.is_some();
        let id = match asked {
            Some(call) => approval_id(&self.suffix, call),
            None => format!("{prefix}_{}_{at}", self.suffix),
        };
        let item = OutputItem {
            id,
            is_open: true,
            kind,
        };
        self.output.push(item);
        if is_asked {
            // It is shown when its arguments are complete.
            return at;
        }
        self.shown("response.output_item.added", at, out);
        let begun = match &self.output[at].kind {
            ItemKind::Message { .. } => Some((
                "content_part.added",
                json!({"content_index": 0, "part": TextPart::new("", &[])}),
            )),
            ItemKind::Refusal(_) => Some((
                "content_part.added",
                json!({"content_index": 0, "part": {"type": "refusal", "refusal": ""}}),
            )),
            ItemKind::Reasoning(_)
            | ItemKind::Raw(_)
            | ItemKind::Call { .. }
            | ItemKind::ToolList { .. }
            | ItemKind::GatewayCall { .. } => None,
        };
        if let Some((name, data)) = begun {
            self.item_event(at, name, data, out);
        }
        at
    }

    /// An event that has the whole item.
    fn shown(&mut self, name: &str, at: usize, out: &mut Vec<u8>) {
        let data = WholeItem {
            output_index: at,
            item: self.names.write_item(&self.output[at]),
        };
        write_numbered(&mut self.events, name, data, out);
    }

    /// Closes what is open; calls only if nothing more comes of them.
    fn close(&mut self, with_calls: bool, out: &mut Vec<u8>) {
        for at in 0..self.output.len() {
            let is_call = self.output[at].kind.is_call();
            if self.output[at].is_open && (with_calls || !is_call) {
                self.close_item(at, out);
            }
        }
    }

    fn close_item(&mut self, at: usize, out: &mut Vec<u8>) {
        if let ItemKind::Message { text, annotations } = &mut self.output[at].kind {
            let (text, annotations) = (std::mem::take(text), std::mem::take(annotations));
            self.message_done(at, &text, &annotations, out);
            self.output[at].kind = ItemKind::Message { text, annotations };
            return self.closed(at, out);
        }
        let ends = match &mut self.output[at].kind {
            ItemKind::Message { .. } => Vec::new(),
            ItemKind::Refusal(refusal) => vec![
                (
                    "refusal.done",
                    json!({"content_index": 0, "refusal": refusal}),
                ),
                (
                    "content_part.done",
                    json!({"content_index": 0, "part": {"type": "refusal", "refusal": refusal}}),
                ),
            ],
            ItemKind::Raw(_) => Vec::new(),
            ItemKind::Reasoning(reasoning) if reasoning.text.is_empty() => Vec::new(),
            ItemKind::Reasoning(reasoning) => {
                let part = json!({"type": "summary_text", "text": reasoning.text});
                vec![
                    (
                        "reasoning_summary_text.done",
                        json!({"summary_index": 0, "text": reasoning.text}),
                    ),
                    (
                        "reasoning_summary_part.done",
                        json!({"summary_index": 0, "part": part}),
                    ),
                ]
            }
            ItemKind::Call { call, .. } => {
                if call.arguments.trim().is_empty() {
                    call.arguments = "{}".to_owned();
                }
                let call = call.clone();
                if self.names.asked_before(&call).is_some() {
                    self.shown("response.output_item.added", at, out);
                    return self.closed(at, out);
                }
                match self.names.is_custom(&call) {
                    true => {
                        let input = input(&call.arguments);
                        vec![
                            ("custom_tool_call_input.delta", json!({"delta": input})),
                            ("custom_tool_call_input.done", json!({"input": input})),
                        ]
                    }
                    false => {
                        let named = self.names.tools.find(&call.name);
                        let name = named.map_or(call.name.as_str(), |named| named.name.as_str());
                        vec![(
                            "function_call_arguments.done",
                            json!({"name": name, "arguments": call.arguments}),
                        )]
                    }
                }
            }
            ItemKind::ToolList { .. } => vec![("mcp_list_tools.completed", json!({}))],
            ItemKind::GatewayCall { outcome, .. } => vec![match outcome {
                Some(Ok(_)) => ("mcp_call.completed", json!({})),
                Some(Err(_)) | None => ("mcp_call.failed", json!({})),
            }],
        };
        for (name, data) in ends {
            self.item_event(at, name, data, out);
        }
        self.closed(at, out);
    }

    fn message_done(&mut self, at: usize, text: &str, annotations: &[Value], out: &mut Vec<u8>) {
        let done = TextDone {
            content_index: 0,
            text,
            logprobs: [],
        };
        self.item_event(at, "output_text.done", done, out);
        let done = PartEvent {
            content_index: 0,
            part: TextPart::new(text, annotations),
        };
        self.item_event(at, "content_part.done", done, out);
    }

    fn closed(&mut self, at: usize, out: &mut Vec<u8>) {
        self.output[at].is_open = false;
        self.shown("response.output_item.done", at, out);
    }

    fn arguments(&mut self, wanted: usize, piece: &str, out: &mut Vec<u8>) {
        let is_meant = |item: &OutputItem| matches!(&item.kind, ItemKind::Call { number, .. } if *number == wanted);
        let Some(at) = self.output.iter().position(is_meant) else {
            return;
        };
        let ItemKind::Call { call, .. } = &mut self.output[at].kind else {
            return;
        };
        call.arguments.push_str(piece);
        let call = call.clone();
        // The text of a custom tool lies in JSON, so it can be told only when that is complete.
        let is_streamed = !self.names.is_custom(&call) && self.names.asked_before(&call).is_none();
        if !piece.is_empty() && is_streamed {
            self.item_event(
                at,
                "function_call_arguments.delta",
                json!({"delta": piece}),
                out,
            );
        }
    }

    fn gateway_call(&mut self, mut call: GatewayCall, out: &mut Vec<u8>) {
        if self.names.gateway.find(&call.name).is_none() {
            return;
        }
        self.begin(out);
        let arguments = std::mem::take(&mut call.arguments);
        let kind = || ItemKind::GatewayCall {
            call,
            outcome: None,
        };
        let at = self.open(|_| false, kind, out);
        self.item_event(at, "mcp_call.in_progress", json!({}), out);
        let delta = json!({"delta": arguments});
        self.item_event(at, "mcp_call_arguments.delta", delta, out);
        let done = json!({"arguments": arguments});
        self.item_event(at, "mcp_call_arguments.done", done, out);
        if let ItemKind::GatewayCall { call, .. } = &mut self.output[at].kind {
            call.arguments = arguments;
        }
    }

    fn gateway_result(
        &mut self,
        id: &str,
        result: Result<String, GatewayError>,
        out: &mut Vec<u8>,
    ) {
        // Models that count their ids from `call_1` in every round use them again.
        let is_meant = |item: &OutputItem| {
            item.is_open
                && matches!(&item.kind, ItemKind::GatewayCall { call, .. } if call.id == id)
        };
        let Some(at) = self.output.iter().position(is_meant) else {
            return;
        };
        if let ItemKind::GatewayCall { outcome, .. } = &mut self.output[at].kind {
            *outcome = Some(result);
        }
        self.close_item(at, out);
    }

    fn thought(&mut self, piece: &str, out: &mut Vec<u8>) {
        let is_reasoning =
            |kind: &ItemKind| matches!(kind, ItemKind::Reasoning(it) if it.sealed.is_none());
        let at = self.open(
            is_reasoning,
            || ItemKind::Reasoning(Reasoning::default()),
            out,
        );
        let ItemKind::Reasoning(reasoning) = &mut self.output[at].kind else {
            return;
        };
        let is_first = reasoning.text.is_empty();
        reasoning.text.push_str(piece);
        if is_first {
            let part = json!({"type": "summary_text", "text": ""});
            self.item_event(
                at,
                "reasoning_summary_part.added",
                json!({"summary_index": 0, "part": part}),
                out,
            );
        }
        self.item_event(
            at,
            "reasoning_summary_text.delta",
            json!({"summary_index": 0, "delta": piece}),
            out,
        );
    }

    fn end(&mut self, status: &str, out: &mut Vec<u8>) {
        self.resource.insert("status".to_owned(), status.into());
        let name = format!("response.{status}");
        self.response_event(&name, &self.current(), out);
        self.is_over = true;
    }
}

impl AnswerWriter for ResponseWriter {
    fn write(&mut self, delta: Delta, out: &mut Vec<u8>) {
        if self.is_over {
            return;
        }
        match delta {
            Delta::Begin(head) => {
                self.resource.insert("model".to_owned(), head.model.into());
                self.begin(out);
            }
            Delta::Text(piece) => {
                let is_message = |kind: &ItemKind| matches!(kind, ItemKind::Message { .. });
                let empty = || ItemKind::Message {
                    text: String::new(),
                    annotations: Vec::new(),
                };
                let at = self.open(is_message, empty, out);
                if let ItemKind::Message { text, .. } = &mut self.output[at].kind {
                    text.push_str(&piece);
                }
                self.text_event(at, &piece, out);
            }
            Delta::Refusal(piece) => {
                let is_refusal = |kind: &ItemKind| matches!(kind, ItemKind::Refusal(_));
                let at = self.open(is_refusal, || ItemKind::Refusal(String::new()), out);
                if let ItemKind::Refusal(text) = &mut self.output[at].kind {
                    text.push_str(&piece);
                }
                self.item_event(
                    at,
                    "refusal.delta",
                    json!({"content_index": 0, "delta": piece}),
                    out,
                );
            }
            Delta::Thought(piece) => self.thought(&piece, out),
            Delta::Sealed(sealed) if sealed.raw(Source::OpenAi).is_some() => {
                let raw = sealed.raw(Source::OpenAi).unwrap_or_default();
                let at = self.open(|_| false, || ItemKind::Raw(raw), out);
                self.close_item(at, out);
            }
            Delta::Sealed(sealed) => {
                let is_open = self.output.last().is_some_and(|item| item.is_open);
                let is_told = matches!(self.output.last(), Some(OutputItem { kind: ItemKind::Reasoning(it), .. }) if is_open && it.sealed.is_none());
                if !is_told && !sealed.text.is_empty() {
                    self.thought(&sealed.text, out);
                }
                let is_reasoning = |kind: &ItemKind| matches!(kind, ItemKind::Reasoning(it) if it.sealed.is_none());
                let at = self.open(
                    is_reasoning,
                    || ItemKind::Reasoning(Reasoning::default()),
                    out,
                );
                if let ItemKind::Reasoning(reasoning) = &mut self.output[at].kind {
                    reasoning.sealed = sealed.sealed;
                }
                self.close_item(at, out);
            }
            Delta::Call(number, mut call) => {
                let arguments = std::mem::take(&mut call.arguments);
                self.open(|_| false, || ItemKind::Call { number, call }, out);
                self.arguments(number, &arguments, out);
            }
            Delta::Arguments(number, piece) => self.arguments(number, &piece, out),
            Delta::Annotation(annotation) => {
                if let Some(OutputItem {
                    kind: ItemKind::Message { annotations, .. },
                    ..
                }) = self.output.last_mut()
                {
                    let citation = annotation.get("url_citation").and_then(Value::as_object);
                    let mut flat = citation.cloned().unwrap_or_default();
                    flat.insert("type".to_owned(), "url_citation".into());
                    annotations.push(flat.into());
                }
            }
            Delta::GatewayCall(call) => self.gateway_call(call, out),
            Delta::GatewayResult(id, result) => self.gateway_result(&id, result, out),
            Delta::Usage(usage) => self.usage = Some(usage),
            Delta::Finish(reason) => self.finish = reason,
            Delta::Failed(error) => {
                self.begin(out);
                let code = error
                    .code
                    .as_ref()
                    .and_then(Value::as_str)
                    .unwrap_or("server_error");
                let error = json!({"code": code, "message": error.message});
                self.resource.insert("error".to_owned(), error);
                self.end("failed", out);
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.is_over {
            return;
        }
        self.begin(out);
        self.close(true, out);
        let usage = self.usage.unwrap_or_default();
        let usage = json!({
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.input + usage.output,
        });
        self.resource.insert("usage".to_owned(), usage);
        let cut = match self.finish {
            FinishReason::Length => Some("max_output_tokens"),
            FinishReason::ContentFilter => Some("content_filter"),
            FinishReason::Stop | FinishReason::ToolCalls | FinishReason::FunctionCall => None,
        };
        match cut {
            Some(reason) => {
                self.resource
                    .insert("incomplete_details".to_owned(), json!({"reason": reason}));
                self.end("incomplete", out);
            }
            None => {
                let created = self.resource["created_at"].clone();
                self.resource.insert("completed_at".to_owned(), created);
                self.end("completed", out);
            }
        }
    }

    fn asked(&self) -> Vec<GatewayCall> {
        let asked = self.output.iter().filter_map(|item| match &item.kind {
            ItemKind::Call { call, .. } if self.names.asked_before(call).is_some() => {
                Some(GatewayCall {
                    id: call.id.clone(),
                    name: call.name.clone(),
                    arguments: call.arguments.clone(),
                    approval: Some(item.id.clone()),
                })
            }
            _ => None,
        });
        asked.collect()
    }

    fn kept(&self) -> Option<JsonObject> {
        let is_failed = || {
            let status = self.resource.get("status");
            status.is_some_and(|status| status == "failed")
        };
        (self.is_over && !is_failed()).then(|| self.response())
    }
}

impl ResponseWriter {
    /// The whole response, which the deltas make up.
    ///
    /// # Errors
    /// When the answer failed.
    pub fn write_response(&mut self, deltas: Vec<Delta>) -> Result<JsonObject, Box<ErrorBody>> {
        let mut events = Vec::new();
        for delta in deltas {
            if let Delta::Failed(error) = delta {
                return Err(error.into());
            }
            self.write(delta, &mut events);
            events.clear();
        }
        self.finish(&mut events);
        Ok(self.response())
    }
}
