//! Requests for chat completions.

use serde_json::{Value, json};

use super::{DETAILS, read_detail, read_signature, write_detail, write_signature};
use crate::translate::{
    dialect::{
        Call, CallResult, OutputFormat, Part, Reasoning, Request, Role, ToolChoice, ToolDefinition,
        Turn, Unsupported, object, take, take_list, take_text, text,
    },
    stream::CallKind,
};
use toolway_protocol::tool::JsonObject;

/// Reads the body of a request.
///
/// # Errors
/// When `n` asks for several answers, which no other API has.
pub fn read_request(mut body: JsonObject) -> Result<Request, Unsupported> {
    if take(&mut body, "n").is_some_and(|n| n != 1) {
        return Err(Unsupported::new(
            "n",
            "the API of this model gives one answer at a time; leave out `n`",
        ));
    }
    let mut turns: Vec<Turn> = Vec::new();
    for message in take_list(&mut body, "messages") {
        let Value::Object(message) = message else {
            continue;
        };
        let turn = read_message(message);
        // The results of a turn's calls are one turn, as its calls are.
        match turns.last_mut() {
            Some(last) if last.role == Role::Tool && turn.role == Role::Tool => {
                last.parts.extend(turn.parts);
            }
            _ => turns.push(turn),
        }
    }
    let (tools, other_tools): (Vec<Value>, Vec<Value>) = take_list(&mut body, "tools")
        .into_iter()
        .partition(|tool| tool.get("function").or(tool.get("custom")).is_some());
    let max_tokens = ["max_completion_tokens", "max_tokens"].map(|key| take(&mut body, key));
    let number = |value: Value| match value {
        Value::Number(number) => Some(number),
        _ => None,
    };
    Ok(Request {
        model: take_text(&mut body, "model").unwrap_or_default(),
        turns,
        tools: tools.into_iter().filter_map(read_tool).collect(),
        tool_choice: take(&mut body, "tool_choice")
            .as_ref()
            .and_then(read_choice),
        parallel_tool_calls: take(&mut body, "parallel_tool_calls")
            .and_then(|value| value.as_bool()),
        max_tokens: max_tokens
            .into_iter()
            .flatten()
            .find_map(|value| value.as_u64()),
        temperature: take(&mut body, "temperature").and_then(number),
        top_p: take(&mut body, "top_p").and_then(number),
        stop: match take(&mut body, "stop") {
            Some(Value::String(stop)) => vec![stop],
            Some(Value::Array(stops)) => stops
                .iter()
                .filter_map(|stop| stop.as_str().map(str::to_owned))
                .collect(),
            _ => Vec::new(),
        },
        format: take(&mut body, "response_format").and_then(read_format),
        effort: take_text(&mut body, "reasoning_effort"),
        verbosity: take_text(&mut body, "verbosity"),
        stream: take(&mut body, "stream") == Some(Value::Bool(true)),
        other_tools,
        rest: {
            body.retain(|_, value| !value.is_null());
            body
        },
    })
}

fn read_message(mut message: JsonObject) -> Turn {
    let role = match text(&message, "role") {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("assistant") => Role::Assistant,
        Some("tool" | "function") => Role::Tool,
        _ => Role::User,
    };
    let name = take_text(&mut message, "name");
    let mut parts = Vec::new();
    if role == Role::Assistant {
        parts.extend(
            read_reasoning(&mut message)
                .into_iter()
                .map(Part::Reasoning),
        );
    }
    parts.extend(read_content(take(&mut message, "content")));
    parts.extend(take_text(&mut message, "refusal").map(Part::Refusal));
    if role == Role::Tool {
        parts = vec![Part::Result(CallResult {
            id: take_text(&mut message, "tool_call_id").unwrap_or_default(),
            parts,
            is_error: false,
        })];
    }
    let calls = take_list(&mut message, "tool_calls");
    parts.extend(calls.iter().filter_map(read_call).map(Part::Call));
    Turn { role, name, parts }
}

fn read_reasoning(message: &mut JsonObject) -> Vec<Reasoning> {
    let details = take_list(message, DETAILS);
    let details: Vec<Reasoning> = details.iter().filter_map(read_detail).collect();
    if !details.is_empty() {
        return details;
    }
    let said = take_text(message, "reasoning_content").or(take_text(message, "reasoning"));
    let said = said.filter(|text| !text.is_empty());
    said.map(|text| Reasoning { text, sealed: None })
        .into_iter()
        .collect()
}

fn read_content(content: Option<Value>) -> Vec<Part> {
    match content {
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(Value::String(text)) => vec![Part::Text(text)],
        Some(Value::Array(parts)) => parts.into_iter().map(read_part).collect(),
        Some(other) => vec![Part::Unknown(other)],
        None => Vec::new(),
    }
}

fn read_part(part: Value) -> Part {
    let known = || {
        let part = part.as_object()?;
        Some(match text(part, "type")? {
            "text" => Part::Text(text(part, "text")?.to_owned()),
            "refusal" => Part::Refusal(text(part, "refusal")?.to_owned()),
            "image_url" => {
                let image = part.get("image_url")?.as_object()?;
                let detail = text(image, "detail").map(str::to_owned);
                Part::Image(text(image, "url")?.to_owned(), detail)
            }
            "input_audio" => {
                let audio = part.get("input_audio")?.as_object()?;
                let format = text(audio, "format").unwrap_or("wav");
                Part::Audio(text(audio, "data")?.to_owned(), format.to_owned())
            }
            "file" => Part::File(part.get("file")?.as_object()?.clone()),
            _ => return None,
        })
    };
    known().unwrap_or(Part::Unknown(part))
}

fn read_call(call: &Value) -> Option<Call> {
    let kind = match call.get("custom") {
        Some(_) => CallKind::Custom,
        None => CallKind::Function,
    };
    let (body, arguments) = kind.members();
    let called = call.get(body)?.as_object()?;
    Some(Call {
        id: call.get("id")?.as_str()?.to_owned(),
        name: text(called, "name")?.to_owned(),
        arguments: text(called, arguments).unwrap_or_default().to_owned(),
        kind,
        sealed: read_signature(call),
    })
}

fn read_tool(tool: Value) -> Option<ToolDefinition> {
    let Value::Object(mut tool) = tool else {
        return None;
    };
    let kind = match tool.contains_key("custom") {
        true => CallKind::Custom,
        false => CallKind::Function,
    };
    let Some(Value::Object(mut body)) = take(&mut tool, kind.members().0) else {
        return None;
    };
    let parameters = match kind {
        CallKind::Function => take(&mut body, "parameters"),
        CallKind::Custom => take(&mut body, "format"),
    };
    Some(ToolDefinition {
        name: take_text(&mut body, "name")?,
        description: take_text(&mut body, "description"),
        parameters,
        strict: take(&mut body, "strict").and_then(|strict| strict.as_bool()),
        kind,
    })
}

fn read_choice(choice: &Value) -> Option<ToolChoice> {
    let named = |choice: &Value| {
        let kinds = [CallKind::Function, CallKind::Custom];
        kinds.into_iter().find_map(|kind| {
            let name = choice.get(kind.members().0)?.get("name")?.as_str()?;
            Some((name.to_owned(), kind))
        })
    };
    match choice.as_str() {
        Some("auto") => return Some(ToolChoice::Auto),
        Some("none") => return Some(ToolChoice::None),
        Some("required") => return Some(ToolChoice::Required),
        _ => {}
    }
    if let Some(allowed) = choice.get("allowed_tools") {
        let tools = allowed.get("tools")?.as_array()?.iter();
        let is_required = allowed.get("mode").is_some_and(|mode| mode == "required");
        return Some(ToolChoice::Allowed(
            tools.filter_map(named).collect(),
            is_required,
        ));
    }
    named(choice).map(|(name, kind)| ToolChoice::Named(name, kind))
}

fn read_format(format: Value) -> Option<OutputFormat> {
    let Value::Object(mut format) = format else {
        return None;
    };
    match text(&format, "type")? {
        "text" => Some(OutputFormat::Text),
        "json_object" => Some(OutputFormat::JsonObject),
        _ => match take(&mut format, "json_schema")? {
            Value::Object(schema) => Some(OutputFormat::JsonSchema(schema)),
            _ => None,
        },
    }
}

/// Writes the body of a request.
pub fn write_request(request: &Request) -> JsonObject {
    let messages: Vec<Value> = request.turns.iter().flat_map(write_turn).collect();
    let tools = request.tools.iter().map(write_tool);
    let tools: Vec<Value> = tools.chain(request.other_tools.iter().cloned()).collect();
    let number = |number: &serde_json::Number| Value::Number(number.clone());
    let mut body = object([
        ("model", Some(request.model.as_str().into())),
        ("messages", Some(messages.into())),
        ("tools", (!tools.is_empty()).then(|| tools.into())),
        (
            "tool_choice",
            request.tool_choice.as_ref().map(write_choice),
        ),
        (
            "parallel_tool_calls",
            request.parallel_tool_calls.map(Value::Bool),
        ),
        ("max_completion_tokens", request.max_tokens.map(Value::from)),
        ("temperature", request.temperature.as_ref().map(number)),
        ("top_p", request.top_p.as_ref().map(number)),
        (
            "stop",
            (!request.stop.is_empty()).then(|| request.stop.clone().into()),
        ),
        ("response_format", request.format.as_ref().map(write_format)),
        ("reasoning_effort", request.effort.clone().map(Value::from)),
        ("verbosity", request.verbosity.clone().map(Value::from)),
        ("stream", request.stream.then_some(Value::Bool(true))),
    ]);
    body.extend(request.rest.clone());
    body
}

fn write_turn(turn: &Turn) -> Vec<Value> {
    match turn.role {
        Role::Tool => write_results(&turn.parts),
        Role::Assistant => vec![write_assistant(turn)],
        role => {
            let role = match role {
                Role::System => "system",
                Role::Developer => "developer",
                Role::User | Role::Assistant | Role::Tool => "user",
            };
            let mut message = object([
                ("role", Some(role.into())),
                ("name", turn.name.clone().map(Value::from)),
            ]);
            message.insert("content".to_owned(), write_content(&turn.parts));
            vec![message.into()]
        }
    }
}

/// A text where it is one, for not every upstream takes parts.
fn write_content(parts: &[Part]) -> Value {
    let texts: Option<Vec<&str>> = parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    match texts.as_deref() {
        Some([]) => "".into(),
        Some([text]) => (*text).into(),
        _ => parts.iter().filter_map(write_part).collect(),
    }
}

fn write_part(part: &Part) -> Option<Value> {
    Some(match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Refusal(text) => json!({"type": "refusal", "refusal": text}),
        Part::Image(url, detail) => {
            let image = object([
                ("url", Some(url.as_str().into())),
                ("detail", detail.clone().map(Value::from)),
            ]);
            json!({"type": "image_url", "image_url": image})
        }
        Part::Audio(data, format) => {
            json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
        }
        Part::File(file) => json!({"type": "file", "file": file}),
        Part::Unknown(part) => part.clone(),
        Part::Reasoning(_) | Part::Call(_) | Part::Result(_) => return None,
    })
}

fn write_assistant(turn: &Turn) -> Value {
    let mut said = Vec::new();
    let mut refusals = String::new();
    let mut thoughts = String::new();
    let mut details = Vec::new();
    let mut calls = Vec::new();
    for part in &turn.parts {
        match part {
            Part::Refusal(text) => refusals.push_str(text),
            Part::Reasoning(reasoning) => {
                thoughts.push_str(&reasoning.text);
                details.extend(write_detail(reasoning));
            }
            Part::Call(call) => calls.push(write_call(call)),
            other => said.push(other.clone()),
        }
    }
    let content = match said.is_empty() {
        true => Value::Null,
        false => write_content(&said),
    };
    let mut message = object([
        ("role", Some("assistant".into())),
        ("name", turn.name.clone().map(Value::from)),
    ]);
    message.insert("content".to_owned(), content);
    message.extend(object([
        ("refusal", (!refusals.is_empty()).then(|| refusals.into())),
        (
            "reasoning_content",
            (!thoughts.is_empty()).then(|| thoughts.into()),
        ),
        (DETAILS, (!details.is_empty()).then(|| details.into())),
        ("tool_calls", (!calls.is_empty()).then(|| calls.into())),
    ]));
    message.into()
}

pub(super) fn write_call(call: &Call) -> Value {
    let (body, arguments) = call.kind.members();
    let mut written = object([
        ("id", Some(call.id.as_str().into())),
        ("type", Some(body.into())),
        (
            body,
            Some(json!({"name": call.name, arguments: call.arguments})),
        ),
    ]);
    written.extend(object([(
        "extra_content",
        write_signature(call.sealed.as_ref()),
    )]));
    written.into()
}

/// A message for each result. Pictures and the like, which results cannot hold here, follow in a message of the user.
fn write_results(parts: &[Part]) -> Vec<Value> {
    let mut messages = Vec::new();
    let mut media = Vec::new();
    for part in parts {
        let Part::Result(result) = part else {
            media.extend(write_part(part));
            continue;
        };
        let mut said = String::new();
        for part in &result.parts {
            match part {
                Part::Text(text) => said.push_str(text),
                other => media.extend(write_part(other)),
            }
        }
        messages.push(json!({"role": "tool", "tool_call_id": result.id, "content": said}));
    }
    if !media.is_empty() {
        messages.push(json!({"role": "user", "content": media}));
    }
    messages
}

fn write_tool(tool: &ToolDefinition) -> Value {
    let (body, _) = tool.kind.members();
    let parameters = match tool.kind {
        CallKind::Function => "parameters",
        CallKind::Custom => "format",
    };
    let described = object([
        ("name", Some(tool.name.as_str().into())),
        ("description", tool.description.clone().map(Value::from)),
        (parameters, tool.parameters.clone()),
        ("strict", tool.strict.map(Value::Bool)),
    ]);
    json!({"type": body, body: described})
}

fn write_choice(choice: &ToolChoice) -> Value {
    let named = |name: &str, kind: CallKind| {
        let (body, _) = kind.members();
        json!({"type": body, body: {"name": name}})
    };
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
            json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
        }
    }
}

fn write_format(format: &OutputFormat) -> Value {
    match format {
        OutputFormat::Text => json!({"type": "text"}),
        OutputFormat::JsonObject => json!({"type": "json_object"}),
        OutputFormat::JsonSchema(schema) => json!({"type": "json_schema", "json_schema": schema}),
    }
}
