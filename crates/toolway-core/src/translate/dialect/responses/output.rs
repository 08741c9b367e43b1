//! The items of a response's output, as its client reads them.

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    client_tools::ToolNames,
    gateway_tools::{GatewayTools, Labelled, write_error},
};
use crate::translate::dialect::{Call, GatewayCall, GatewayError, Reasoning, Source};
use toolway_protocol::tool::JsonObject;

/// An item of the output, complete or not.
#[derive(Debug)]
pub(super) struct OutputItem {
    pub(super) id: String,
    pub(super) is_open: bool,
    pub(super) kind: ItemKind,
}

#[derive(Debug)]
pub(super) enum ItemKind {
    Message {
        text: String,
        annotations: Vec<Value>,
    },
    Refusal(String),
    Reasoning(Reasoning),
    /// One of the provider's own.
    Raw(JsonObject),
    Call {
        number: usize,
        call: Call,
    },
    ToolList {
        label: String,
        tools: Vec<Value>,
    },
    GatewayCall {
        call: GatewayCall,
        outcome: Option<Result<String, GatewayError>>,
    },
}

impl ItemKind {
    /// It stays open while other items begin.
    pub(super) fn is_call(&self) -> bool {
        matches!(self, ItemKind::Call { .. } | ItemKind::GatewayCall { .. })
    }
}

/// What the client calls tools.
#[derive(Debug)]
pub(super) struct ClientNames {
    /// Those of its request.
    pub(super) tools: ToolNames,
    /// Those of the gateway whose calls it sees.
    pub(super) gateway: GatewayTools,
}

/// An item as its client reads it.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum WrittenItem<'a> {
    /// Most items are messages, so they are written without values built for them.
    Message {
        #[serde(rename = "type")]
        kind: &'static str,
        id: &'a str,
        status: &'static str,
        role: &'static str,
        content: Vec<TextPart<'a>>,
    },
    Other(Value),
}

/// The text of a message.
#[derive(Serialize)]
pub(super) struct TextPart<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
    annotations: &'a [Value],
    logprobs: [(); 0],
}

impl<'a> TextPart<'a> {
    pub(super) fn new(text: &'a str, annotations: &'a [Value]) -> TextPart<'a> {
        TextPart {
            kind: "output_text",
            text,
            annotations,
            logprobs: [],
        }
    }
}

impl ClientNames {
    /// The item as the response has it now.
    pub(super) fn write_item<'a>(&self, item: &'a OutputItem) -> WrittenItem<'a> {
        let status = if item.is_open {
            "in_progress"
        } else {
            "completed"
        };
        let written = match &item.kind {
            ItemKind::Message { text, annotations } => {
                let is_empty = item.is_open && text.is_empty();
                let part = (!is_empty).then(|| TextPart::new(text, annotations));
                return WrittenItem::Message {
                    kind: "message",
                    id: &item.id,
                    status,
                    role: "assistant",
                    content: part.into_iter().collect(),
                };
            }
            ItemKind::Refusal(refusal) => {
                let content = json!([{"type": "refusal", "refusal": refusal}]);
                let content = if item.is_open && refusal.is_empty() {
                    json!([])
                } else {
                    content
                };
                json!({"type": "message", "id": item.id, "status": status, "role": "assistant", "content": content})
            }
            ItemKind::Reasoning(reasoning) => {
                let summary = match reasoning.text.is_empty() {
                    true => json!([]),
                    false => json!([{"type": "summary_text", "text": reasoning.text}]),
                };
                let mut written = json!({"type": "reasoning", "id": item.id, "summary": summary});
                if let Some(sealed) = &reasoning.sealed {
                    written["encrypted_content"] = sealed.wrapped(Source::OpenAi).into();
                }
                written
            }
            ItemKind::Raw(raw) => {
                let mut raw = raw.clone();
                raw.entry("id").or_insert_with(|| item.id.as_str().into());
                raw.into()
            }
            ItemKind::Call { call, .. } => self.write_call(&item.id, status, call),
            ItemKind::ToolList { label, tools } => {
                json!({"type": "mcp_list_tools", "id": item.id, "server_label": label, "tools": tools})
            }
            ItemKind::GatewayCall { call, outcome } => {
                let named = self.gateway.find(&call.name);
                let label = named.map_or("", |named| named.label.as_str());
                let name = named.map_or(call.name.as_str(), |named| named.name.as_str());
                let approval = call.approval.as_deref();
                let status = match (outcome, item.is_open) {
                    (Some(Ok(_)), _) => "completed",
                    (Some(Err(_)), _) => "failed",
                    (None, true) => "in_progress",
                    (None, false) => "incomplete",
                };
                let mut written = json!({"type": "mcp_call", "id": item.id, "status": status, "server_label": label,
                    "name": name, "arguments": call.arguments});
                if let Some(approval) = approval {
                    written["approval_request_id"] = approval.into();
                }
                match outcome {
                    Some(Ok(output)) => written["output"] = output.as_str().into(),
                    Some(Err(error)) => written["error"] = write_error(error),
                    None => {}
                }
                written
            }
        };
        WrittenItem::Other(written)
    }

    fn write_call(&self, id: &str, status: &str, call: &Call) -> Value {
        if let Some(tool) = self.asked_before(call) {
            return json!({"type": "mcp_approval_request", "id": id, "server_label": tool.label, "name": tool.name,
                "arguments": call.arguments});
        }
        let named = self.tools.find(&call.name);
        let name = named.map_or(call.name.as_str(), |named| named.name.as_str());
        let mut written = match named.is_some_and(|named| named.is_custom) {
            true => {
                json!({"type": "custom_tool_call", "id": id, "status": status, "call_id": call.id,
                "name": name, "input": input(&call.arguments)})
            }
            false => {
                json!({"type": "function_call", "id": id, "status": status, "call_id": call.id,
                "name": name, "arguments": call.arguments})
            }
        };
        if let Some(namespace) = named.and_then(|named| named.namespace.as_deref()) {
            written["namespace"] = namespace.into();
        }
        written
    }

    /// The gateway's tool that the client is asked about, where this call is one of it.
    pub(super) fn asked_before(&self, call: &Call) -> Option<&Labelled> {
        match self.tools.find(&call.name) {
            Some(_) => None,
            None => self.gateway.find(&call.name),
        }
    }

    pub(super) fn is_custom(&self, call: &Call) -> bool {
        self.tools
            .find(&call.name)
            .is_some_and(|named| named.is_custom)
    }
}

/// The text for a custom tool, in the arguments of the function that stands for it; as it is where it is no such object.
pub(super) fn input(arguments: &str) -> String {
    let object = serde_json::from_str::<JsonObject>(arguments).ok();
    let input = object
        .as_ref()
        .and_then(|object| object.get("input")?.as_str());
    input.unwrap_or(arguments).to_owned()
}
