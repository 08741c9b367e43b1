//! Requests for Messages.

use serde_json::{Value, json};

use super::models::{ClaudeAbilities, abilities};
use crate::translate::{
    calls,
    dialect::{
        Call, OutputFormat, Part, Reasoning, Request, Role, Source, ToolChoice, ToolDefinition,
        Turn, Written, no_parameters, object, text,
    },
    stream::CallKind,
};
use toolway_protocol::tool::JsonObject;

/// Members that clients of chat completions send for this API, passed on as they are.
const OWN: [&str; 5] = [
    "cache_control",
    "container",
    "context_management",
    "thinking",
    "top_k",
];

/// Members that have no effect on what the model says.
const WITHOUT_EFFECT: [&str; 10] = [
    "metadata",
    "modalities",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options",
    "user",
];

/// Parts of the API's schemas that it refuses at the top of the arguments; toolway checks arguments itself.
const REFUSED_AT_TOP: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Writes the body of a request.
pub fn write_request(request: &Request) -> Written {
    let abilities = abilities(&request.model);
    let mut left_out = Vec::new();
    let leading = request.turns.iter();
    let leading = leading.take_while(|turn| matches!(turn.role, Role::System | Role::Developer));
    let leading = leading.count();
    let (instructions, conversation) = request.turns.split_at(leading);
    let mut system = blocks(
        instructions.iter().flat_map(|turn| &turn.parts),
        &mut left_out,
    );
    if request.format == Some(OutputFormat::JsonObject) {
        system
            .push(json!({"type": "text", "text": "Answer with one JSON object and nothing else."}));
    }
    let messages = write_messages(conversation, abilities, &mut left_out);
    let (tools, choice) = write_tools(request, &mut left_out);
    let max_tokens = request.max_tokens.unwrap_or(abilities.max_tokens);
    let thinking = thinking(request, abilities, max_tokens);
    let (temperature, top_p) = sampling(request, abilities, thinking.is_some(), &mut left_out);
    let stops = request.stop.iter().filter(|stop| !stop.trim().is_empty());
    let stops: Vec<Value> = stops.map(|stop| stop.as_str().into()).collect();
    let user = request.rest.get("user").filter(|user| user.is_string());
    let mut body = object([
        ("model", Some(request.model.as_str().into())),
        ("max_tokens", Some(max_tokens.into())),
        ("system", (!system.is_empty()).then(|| system.into())),
        ("messages", Some(messages.into())),
        ("tools", (!tools.is_empty()).then(|| tools.into())),
        ("tool_choice", choice),
        ("temperature", temperature),
        ("top_p", top_p),
        ("stop_sequences", (!stops.is_empty()).then(|| stops.into())),
        ("thinking", thinking),
        ("output_config", output_config(request, abilities)),
        ("metadata", user.map(|user| json!({"user_id": user}))),
        ("stream", request.stream.then_some(Value::Bool(true))),
    ]);
    if request.verbosity.is_some() {
        left_out.push("verbosity".to_owned());
    }
    for (name, value) in &request.rest {
        if OWN.contains(&name.as_str()) {
            body.insert(name.clone(), value.clone());
        } else if !WITHOUT_EFFECT.contains(&name.as_str()) && *value != false {
            left_out.push(name.clone());
        }
    }
    Written { body, left_out }
}

fn sampling(
    request: &Request,
    abilities: ClaudeAbilities,
    thinks: bool,
    left_out: &mut Vec<String>,
) -> (Option<Value>, Option<Value>) {
    let (temperature, top_p) = (&request.temperature, &request.top_p);
    let given = [
        ("temperature", temperature.is_some()),
        ("top_p", top_p.is_some()),
    ];
    if !abilities.sampling || thinks {
        let given = given.iter().filter(|(_, is_given)| *is_given);
        left_out.extend(given.map(|(name, _)| (*name).to_owned()));
        return (None, None);
    }
    let number = |number: &serde_json::Number| Value::Number(number.clone());
    if temperature.is_some() && top_p.is_some() {
        // The API takes one of the two.
        left_out.push("top_p".to_owned());
        return (temperature.as_ref().map(number), None);
    }
    (temperature.as_ref().map(number), top_p.as_ref().map(number))
}

/// New models decide themselves how long they think; older ones want a number of tokens below the limit, and do not think
/// when they must call something.
fn thinking(request: &Request, abilities: ClaudeAbilities, max_tokens: u64) -> Option<Value> {
    let effort = request
        .effort
        .as_deref()
        .filter(|effort| *effort != "none")?;
    if abilities.adaptive {
        return Some(json!({"type": "adaptive"}));
    }
    let is_forced = matches!(
        request.tool_choice,
        Some(ToolChoice::Required | ToolChoice::Named(..) | ToolChoice::Allowed(_, true))
    );
    if is_forced || !request.model.starts_with("claude-") {
        return None;
    }
    let budget = match effort {
        "minimal" | "low" => 1024,
        "medium" => 4096,
        _ => 16_384,
    };
    let budget = budget.min(max_tokens.saturating_sub(1));
    (budget >= 1024).then(|| json!({"type": "enabled", "budget_tokens": budget}))
}

fn output_config(request: &Request, abilities: ClaudeAbilities) -> Option<Value> {
    let effort = match request.effort.as_deref() {
        Some("minimal") => Some("low"),
        Some("none") | None => None,
        effort => effort,
    };
    let effort = effort.filter(|_| abilities.adaptive);
    let format = match &request.format {
        Some(OutputFormat::JsonSchema(schema)) => schema.get("schema"),
        _ => None,
    };
    let config = object([
        ("effort", effort.map(Value::from)),
        (
            "format",
            format.map(|schema| json!({"type": "json_schema", "schema": schema})),
        ),
    ]);
    (!config.is_empty()).then(|| config.into())
}

/// Messages whose roles take turns: what one side says in several is one.
fn write_messages(
    turns: &[Turn],
    abilities: ClaudeAbilities,
    left_out: &mut Vec<String>,
) -> Vec<Value> {
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for turn in turns {
        let role = match turn.role {
            Role::Assistant => "assistant",
            Role::System | Role::Developer if abilities.adaptive => "system",
            Role::System | Role::Developer | Role::User | Role::Tool => "user",
        };
        let content = blocks(&turn.parts, left_out);
        match messages.last_mut() {
            _ if content.is_empty() => {}
            Some((last, before)) if *last == role => before.extend(content),
            _ => messages.push((role, content)),
        }
    }
    if let Some(("assistant", content)) = messages.last_mut()
        && let Some(Value::Object(last)) = content.last_mut()
        && let Some(begun) = text(last, "text").map(|text| text.trim_end().to_owned())
    {
        // The API refuses an answer that is begun with spaces at its end.
        last.insert("text".to_owned(), begun.into());
    }
    let message = |(role, content)| json!({"role": role, "content": content});
    messages.into_iter().map(message).collect()
}

fn blocks<'p>(parts: impl IntoIterator<Item = &'p Part>, left_out: &mut Vec<String>) -> Vec<Value> {
    parts
        .into_iter()
        .filter_map(|part| block(part, left_out))
        .collect()
}

fn block(part: &Part, left_out: &mut Vec<String>) -> Option<Value> {
    match part {
        Part::Text(text) | Part::Refusal(text) if text.is_empty() => None,
        Part::Text(text) | Part::Refusal(text) => Some(json!({"type": "text", "text": text})),
        Part::Reasoning(reasoning) => write_reasoning(reasoning),
        Part::Call(call) => Some(write_call(call)),
        Part::Result(result) => {
            let content = blocks(&result.parts, left_out);
            let mut block = object([
                ("type", Some("tool_result".into())),
                ("tool_use_id", Some(plain_id(&result.id).into())),
                ("content", Some(content.into())),
            ]);
            block.extend(object([(
                "is_error",
                result.is_error.then_some(Value::Bool(true)),
            )]));
            Some(block.into())
        }
        Part::Image(url, _) => Some(json!({"type": "image", "source": source(url)})),
        Part::File(file) => write_file(file).or_else(|| leave_out("file", left_out)),
        Part::Audio(..) => leave_out("input_audio", left_out),
        // A block of this API that came through unread.
        Part::Unknown(block) if block.get("type").is_some() => Some(block.clone()),
        Part::Unknown(_) => None,
    }
}

fn leave_out(name: &str, left_out: &mut Vec<String>) -> Option<Value> {
    left_out.push(name.to_owned());
    None
}

/// A `data:` URL as the bytes in it.
fn source(url: &str) -> Value {
    let data = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"));
    match data {
        Some((kind, data)) => json!({"type": "base64", "media_type": kind, "data": data}),
        None => json!({"type": "url", "url": url}),
    }
}

fn write_file(file: &JsonObject) -> Option<Value> {
    let source = match (text(file, "file_data"), text(file, "file_id")) {
        (Some(data), _) => source(data),
        (None, Some(id)) => json!({"type": "file", "file_id": id}),
        (None, None) => return None,
    };
    let title = text(file, "filename").map(Value::from);
    let mut block = object([("type", Some("document".into())), ("source", Some(source))]);
    block.extend(object([("title", title)]));
    Some(block.into())
}

/// Thoughts go back exactly as they came, or not at all.
fn write_reasoning(reasoning: &Reasoning) -> Option<Value> {
    let sealed = reasoning.sealed.as_ref();
    let sealed = sealed.filter(|sealed| sealed.source == Source::Anthropic)?;
    if let Some(block) = sealed.read_raw(Source::Anthropic) {
        return Some(block.into());
    }
    Some(match sealed.id.as_deref() == Some(REDACTED) {
        true => json!({"type": "redacted_thinking", "data": sealed.data}),
        false => json!({"type": "thinking", "thinking": reasoning.text, "signature": sealed.data}),
    })
}

/// Marks a piece of reasoning that is encrypted as a whole.
pub(super) const REDACTED: &str = "redacted";

fn write_call(call: &Call) -> Value {
    let input = match call.kind {
        CallKind::Function => {
            Value::Object(calls::parse_arguments(&call.arguments).unwrap_or_default())
        }
        CallKind::Custom => json!({"input": call.arguments}),
    };
    json!({"type": "tool_use", "id": plain_id(&call.id), "name": call.name, "input": input})
}

/// An id with letters, digits, `_` and `-` only, which is what the API takes.
pub(super) fn plain_id(id: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let plain = id.chars().map(|c| if is_plain(c) { c } else { '_' });
    plain.collect()
}

fn write_tools(request: &Request, left_out: &mut Vec<String>) -> (Vec<Value>, Option<Value>) {
    let allowed = match &request.tool_choice {
        Some(ToolChoice::Allowed(names, _)) => Some(names),
        _ => None,
    };
    let is_offered = |tool: &&ToolDefinition| {
        allowed.is_none_or(|names| names.iter().any(|(name, _)| *name == tool.name))
    };
    let tools: Vec<Value> = request
        .tools
        .iter()
        .filter(is_offered)
        .map(write_tool)
        .collect();
    if tools.is_empty() {
        return (tools, None);
    }
    let mut choice = match &request.tool_choice {
        Some(ToolChoice::None) => json!({"type": "none"}),
        Some(ToolChoice::Required | ToolChoice::Allowed(_, true)) => json!({"type": "any"}),
        Some(ToolChoice::Named(name, _)) => json!({"type": "tool", "name": name}),
        Some(ToolChoice::Auto | ToolChoice::Allowed(_, false)) | None => json!({"type": "auto"}),
    };
    if request.parallel_tool_calls == Some(false) && choice["type"] != "none" {
        choice["disable_parallel_tool_use"] = true.into();
    }
    let is_default = request.tool_choice.is_none() && request.parallel_tool_calls != Some(false);
    if request
        .tools
        .iter()
        .any(|tool| tool.kind == CallKind::Custom && tool.parameters.is_some())
    {
        left_out.push("tools[].custom.format".to_owned());
    }
    (tools, (!is_default).then_some(choice))
}

fn write_tool(tool: &ToolDefinition) -> Value {
    let schema = match tool.kind {
        CallKind::Function => tool.parameters.clone().unwrap_or_else(no_parameters),
        CallKind::Custom => {
            json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})
        }
    };
    let mut schema = match schema {
        Value::Object(schema) => schema,
        _ => JsonObject::new(),
    };
    schema.insert("type".to_owned(), "object".into());
    schema.retain(|key, _| !REFUSED_AT_TOP.contains(&key.as_str()));
    let mut written = object([
        ("name", Some(tool.name.as_str().into())),
        ("description", tool.description.clone().map(Value::from)),
        ("input_schema", Some(schema.into())),
    ]);
    written.extend(object([(
        "strict",
        tool.strict.filter(|strict| *strict).map(Value::Bool),
    )]));
    written.into()
}
