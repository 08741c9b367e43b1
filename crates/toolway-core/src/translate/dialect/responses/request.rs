//! Requests for Responses.

use serde_json::{Value, json};

use crate::translate::{
    dialect::{
        Call, OutputFormat, Part, Reasoning, Request, Role, Source, ToolChoice, ToolDefinition,
        Turn, Written, no_parameters, object,
    },
    stream::CallKind,
};
use toolway_protocol::tool::JsonObject;

/// Members that both APIs have, with the same meaning.
const SHARED: [&str; 10] = [
    "metadata",
    "moderation",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "truncation",
    "user",
];

/// Members that have no effect on what the model says.
const WITHOUT_EFFECT: [&str; 2] = ["stream_options", "modalities"];

/// The least that `max_output_tokens` may be.
const LEAST_TOKENS: u64 = 16;

/// Writes the body of a request. It stores nothing unless the client says so, and asks for encrypted reasoning if
/// `sealed`, so that a later round can give it back; models that do not think refuse that.
pub fn write_request(request: &Request, sealed: bool) -> Written {
    let input: Vec<Value> = write_input(&request.turns);
    let tools: Vec<Value> = request.tools.iter().map(write_tool).collect();
    let number = |number: &serde_json::Number| Value::Number(number.clone());
    let text = object([
        ("format", request.format.as_ref().map(write_format)),
        ("verbosity", request.verbosity.clone().map(Value::from)),
    ]);
    let max_tokens = request.max_tokens.map(|tokens| tokens.max(LEAST_TOKENS));
    let mut body = object([
        ("model", Some(request.model.as_str().into())),
        ("input", Some(input.into())),
        ("tools", (!tools.is_empty()).then(|| tools.into())),
        (
            "tool_choice",
            request.tool_choice.as_ref().map(write_choice),
        ),
        (
            "parallel_tool_calls",
            request.parallel_tool_calls.map(Value::Bool),
        ),
        ("max_output_tokens", max_tokens.map(Value::from)),
        ("temperature", request.temperature.as_ref().map(number)),
        ("top_p", request.top_p.as_ref().map(number)),
        (
            "reasoning",
            request
                .effort
                .as_ref()
                .map(|effort| json!({"effort": effort})),
        ),
        ("text", (!text.is_empty()).then(|| text.into())),
        ("stream", request.stream.then_some(Value::Bool(true))),
        ("store", Some(Value::Bool(false))),
        (
            "include",
            sealed.then(|| json!(["reasoning.encrypted_content"])),
        ),
    ]);
    let mut left_out = Vec::new();
    if !request.stop.is_empty() {
        left_out.push("stop".to_owned());
    }
    for (name, value) in &request.rest {
        if SHARED.contains(&name.as_str()) {
            body.insert(name.clone(), value.clone());
        } else if !WITHOUT_EFFECT.contains(&name.as_str()) && *value != false {
            left_out.push(name.clone());
        }
    }
    Written { body, left_out }
}

fn write_input(turns: &[Turn]) -> Vec<Value> {
    let parts = turns.iter().flat_map(|turn| &turn.parts);
    let custom: Vec<&str> = parts
        .filter_map(|part| match part {
            Part::Call(call) if call.kind == CallKind::Custom => Some(call.id.as_str()),
            _ => None,
        })
        .collect();
    let mut items = Vec::new();
    for turn in turns {
        let mut said = Vec::new();
        for part in &turn.parts {
            let item = match part {
                Part::Call(call) => Some(write_call(call)),
                Part::Reasoning(reasoning) => write_reasoning(reasoning),
                Part::Result(result) => {
                    let kind = match custom.contains(&result.id.as_str()) {
                        true => "custom_tool_call_output",
                        false => "function_call_output",
                    };
                    let output = write_output(&result.parts);
                    Some(json!({"type": kind, "call_id": result.id, "output": output}))
                }
                other => {
                    said.push(write_part(other, turn.role));
                    continue;
                }
            };
            flush(turn.role, &mut said, &mut items);
            items.extend(item);
        }
        flush(turn.role, &mut said, &mut items);
    }
    items
}

/// Adds what was said so far as a message.
fn flush(role: Role, said: &mut Vec<Value>, items: &mut Vec<Value>) {
    if said.is_empty() {
        return;
    }
    let role = match role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::Assistant => "assistant",
        Role::User | Role::Tool => "user",
    };
    let content = std::mem::take(said);
    items.push(json!({"type": "message", "role": role, "content": content}));
}

fn write_part(part: &Part, role: Role) -> Value {
    let kind = match role {
        Role::Assistant => "output_text",
        _ => "input_text",
    };
    match part {
        Part::Text(text) => json!({"type": kind, "text": text}),
        Part::Refusal(text) => json!({"type": "refusal", "refusal": text}),
        Part::Image(url, detail) => {
            let detail = detail.as_deref().unwrap_or("auto");
            json!({"type": "input_image", "image_url": url, "detail": detail})
        }
        Part::Audio(data, format) => {
            json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
        }
        Part::File(file) => {
            let mut written = object([("type", Some("input_file".into()))]);
            written.extend(file.clone());
            written.into()
        }
        Part::Unknown(part) => part.clone(),
        // They are items of their own.
        Part::Reasoning(_) | Part::Call(_) | Part::Result(_) => Value::Null,
    }
}

/// A text where it is one: not every upstream takes parts (LiteLLM PR 18226).
fn write_output(parts: &[Part]) -> Value {
    match parts {
        [] => "".into(),
        [Part::Text(text)] => text.as_str().into(),
        parts => parts
            .iter()
            .map(|part| write_part(part, Role::Tool))
            .collect(),
    }
}

fn write_call(call: &Call) -> Value {
    match call.kind {
        CallKind::Function => json!({
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }),
        CallKind::Custom => json!({
            "type": "custom_tool_call",
            "call_id": call.id,
            "name": call.name,
            "input": call.arguments,
        }),
    }
}

/// Reasoning goes back with its seal or not at all: the text alone is not the model's.
fn write_reasoning(reasoning: &Reasoning) -> Option<Value> {
    let sealed = reasoning.sealed.as_ref();
    let sealed = sealed.filter(|sealed| sealed.source == Source::OpenAi)?;
    if let Some(item) = sealed.read_raw(Source::OpenAi) {
        return Some(item.into());
    }
    let mut item = object([
        ("type", Some("reasoning".into())),
        ("id", sealed.id.clone().map(Value::from)),
    ]);
    let summary = match reasoning.text.is_empty() {
        true => json!([]),
        false => json!([{"type": "summary_text", "text": reasoning.text}]),
    };
    item.insert("summary".to_owned(), summary);
    item.insert("encrypted_content".to_owned(), sealed.data.as_str().into());
    Some(item.into())
}

/// `strict` is always written: without it OpenAI tries the strict form, which few schemas of MCP servers keep to.
fn write_tool(tool: &ToolDefinition) -> Value {
    let mut written: JsonObject = object([
        ("type", Some(tool.kind.members().0.into())),
        ("name", Some(tool.name.as_str().into())),
        ("description", tool.description.clone().map(Value::from)),
    ]);
    match tool.kind {
        CallKind::Function => {
            let parameters = tool.parameters.clone().unwrap_or_else(no_parameters);
            written.insert("parameters".to_owned(), parameters);
            written.insert("strict".to_owned(), tool.strict.unwrap_or(false).into());
        }
        CallKind::Custom => {
            written.extend(object([(
                "format",
                tool.parameters.clone().map(flat_format),
            )]));
        }
    }
    written.into()
}

/// The grammar of a custom tool, which chat completions have in an object of its own.
fn flat_format(mut format: Value) -> Value {
    let grammar = format
        .as_object_mut()
        .and_then(|format| format.shift_remove("grammar"));
    if let (Some(Value::Object(grammar)), Value::Object(format)) = (grammar, &mut format) {
        format.extend(grammar);
    }
    format
}

fn write_choice(choice: &ToolChoice) -> Value {
    let named = |name: &str, kind: CallKind| json!({"type": kind.members().0, "name": name});
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Named(name, kind) => named(name, *kind),
        ToolChoice::Allowed(tools, is_required) => {
            let tools: Vec<Value> = tools
                .iter()
                .map(|(name, kind)| named(name, *kind))
                .collect();
            let mode = if *is_required { "required" } else { "auto" };
            json!({"type": "allowed_tools", "mode": mode, "tools": tools})
        }
    }
}

fn write_format(format: &OutputFormat) -> Value {
    match format {
        OutputFormat::Text => json!({"type": "text"}),
        OutputFormat::JsonObject => json!({"type": "json_object"}),
        OutputFormat::JsonSchema(schema) => {
            let mut format = object([("type", Some("json_schema".into()))]);
            format.extend(schema.clone());
            format.into()
        }
    }
}
