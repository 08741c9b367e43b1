//! Requests for `generateContent`.

use serde_json::{Number, Value, json};

use super::{
    contents::{ContentForm, write_contents},
    models::{GeminiAbilities, Thinking, abilities},
};
use crate::translate::{
    dialect::{
        OutputFormat, Part, Request, Role, ToolChoice, ToolDefinition, Turn, Written,
        no_parameters, object,
    },
    stream::CallKind,
};
use toolway_protocol::tool::JsonObject;

/// Members that clients of chat completions send for this API, passed on as they are.
const OWN: [&str; 3] = ["cachedContent", "labels", "safetySettings"];

/// Members of chat completions that are members of `generationConfig`.
const SAMPLING: [(&str, &str); 3] = [
    ("top_k", "topK"),
    ("presence_penalty", "presencePenalty"),
    ("frequency_penalty", "frequencyPenalty"),
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

/// Most texts that end an answer.
const MAX_STOPS: usize = 5;

/// Writes the body of a request; the model and whether the answer is streamed are in its path. Without `keeps_seals` no
/// signature goes back: the API refuses those that another model or project made.
pub fn write_request(request: &Request, keeps_seals: bool) -> Written {
    let abilities = abilities(&request.model);
    let mut left_out = Vec::new();
    let leading = request.turns.iter();
    let leading = leading.take_while(|turn| matches!(turn.role, Role::System | Role::Developer));
    // Instructions alone are no conversation.
    let leading = leading.count() % request.turns.len().max(1);
    let (instructions, conversation) = request.turns.split_at(leading);
    let mut system = texts(instructions);
    let tools = write_tools(request, &mut left_out);
    let format = write_format(request, abilities, !tools.is_empty(), &mut system);
    let config = write_config(request, abilities, format, &mut left_out);
    let form = ContentForm {
        abilities,
        keeps_seals,
    };
    let contents = write_contents(conversation, form, &mut left_out);
    let choice = (!tools.is_empty()).then(|| write_choice(request)).flatten();
    let mut body = object([
        (
            "systemInstruction",
            (!system.is_empty()).then(|| json!({"parts": system})),
        ),
        ("contents", Some(contents.into())),
        (
            "tools",
            (!tools.is_empty()).then(|| json!([{"functionDeclarations": tools}])),
        ),
        (
            "toolConfig",
            choice.map(|choice| json!({"functionCallingConfig": choice})),
        ),
        (
            "generationConfig",
            (!config.is_empty()).then(|| config.into()),
        ),
    ]);
    for (name, value) in &request.rest {
        let is_known = name == "seed" || SAMPLING.iter().any(|(known, _)| known == name);
        if OWN.contains(&name.as_str()) {
            body.insert(name.clone(), value.clone());
        } else if !is_known && !WITHOUT_EFFECT.contains(&name.as_str()) && *value != false {
            left_out.push(name.clone());
        }
    }
    Written { body, left_out }
}

fn texts(instructions: &[Turn]) -> Vec<Value> {
    let parts = instructions.iter().flat_map(|turn| &turn.parts);
    let texts = parts.filter_map(|part| match part {
        Part::Text(text) if !text.is_empty() => Some(json!({"text": text})),
        _ => None,
    });
    texts.collect()
}

fn write_config(
    request: &Request,
    abilities: GeminiAbilities,
    format: JsonObject,
    left_out: &mut Vec<String>,
) -> JsonObject {
    let number = |number: &Number| Value::Number(number.clone());
    let stops = request.stop.iter().filter(|stop| !stop.is_empty());
    let stops: Vec<Value> = stops
        .take(MAX_STOPS)
        .map(|stop| stop.as_str().into())
        .collect();
    if request.stop.len() > MAX_STOPS {
        left_out.push("stop".to_owned());
    }
    let seed = request.rest.get("seed");
    let fits = |seed: &&Value| {
        seed.as_i64()
            .is_some_and(|seed| i32::try_from(seed).is_ok())
    };
    if seed.is_some_and(|seed| !fits(&seed)) {
        left_out.push("seed".to_owned());
    }
    if request.verbosity.is_some() {
        left_out.push("verbosity".to_owned());
    }
    if request.parallel_tool_calls == Some(false) {
        left_out.push("parallel_tool_calls".to_owned());
    }
    let mut config = object([
        ("temperature", request.temperature.as_ref().map(number)),
        ("topP", request.top_p.as_ref().map(number)),
        ("maxOutputTokens", request.max_tokens.map(Value::from)),
        ("stopSequences", (!stops.is_empty()).then(|| stops.into())),
        ("seed", seed.filter(fits).cloned()),
    ]);
    for (name, written) in SAMPLING {
        config.extend(object([(written, request.rest.get(name).cloned())]));
    }
    config.extend(format);
    let thinking = write_thinking(request, abilities, left_out);
    config.extend(object([("thinkingConfig", thinking)]));
    config
}

/// Every model that takes levels takes these three; some refuse `MINIMAL`, and none can be kept from thinking.
fn write_thinking(
    request: &Request,
    abilities: GeminiAbilities,
    left_out: &mut Vec<String>,
) -> Option<Value> {
    let effort = request.effort.as_deref()?;
    let is_shown = effort != "none";
    let (key, value): (&str, Value) = match (abilities.thinking, effort) {
        (Thinking::Level, "none" | "minimal" | "low") => ("thinkingLevel", "LOW".into()),
        (Thinking::Level, "medium") => ("thinkingLevel", "MEDIUM".into()),
        (Thinking::Level, _) => ("thinkingLevel", "HIGH".into()),
        (Thinking::Budget(least), "none") => ("thinkingBudget", least.into()),
        (Thinking::Budget(_), "minimal" | "low") => ("thinkingBudget", 1024.into()),
        (Thinking::Budget(_), "medium") => ("thinkingBudget", 8192.into()),
        (Thinking::Budget(_), _) => ("thinkingBudget", 24_576.into()),
        (Thinking::None, "none") => return None,
        (Thinking::None, _) => {
            left_out.push("reasoning_effort".to_owned());
            return None;
        }
    };
    let mut config = object([(key, Some(value))]);
    config.insert("includeThoughts".to_owned(), is_shown.into());
    Some(config.into())
}

/// The form of the answer. Older models refuse it beside tools, so that there it is an instruction.
fn write_format(
    request: &Request,
    abilities: GeminiAbilities,
    has_tools: bool,
    system: &mut Vec<Value>,
) -> JsonObject {
    let schema = match &request.format {
        None | Some(OutputFormat::Text) => return JsonObject::new(),
        Some(OutputFormat::JsonObject) => None,
        Some(OutputFormat::JsonSchema(format)) => format.get("schema"),
    };
    if has_tools && !abilities.is_new {
        let instruction = match schema {
            None => "Answer with one JSON object and nothing else.".to_owned(),
            Some(schema) => {
                format!("Answer with JSON of this schema and with nothing else: {schema}")
            }
        };
        system.push(json!({"text": instruction}));
        return JsonObject::new();
    }
    object([
        ("responseMimeType", Some("application/json".into())),
        ("responseJsonSchema", schema.cloned()),
    ])
}

fn write_tools(request: &Request, left_out: &mut Vec<String>) -> Vec<Value> {
    for tool in &request.other_tools {
        let kind = tool.get("type").and_then(Value::as_str);
        left_out.push(format!("tools[].{}", kind.unwrap_or("type")));
    }
    let has_format =
        |tool: &ToolDefinition| tool.kind == CallKind::Custom && tool.parameters.is_some();
    if request.tools.iter().any(has_format) {
        left_out.push("tools[].custom.format".to_owned());
    }
    // Only names that must be called can be told.
    let is_offered = |tool: &&ToolDefinition| match &request.tool_choice {
        Some(ToolChoice::Allowed(names, false)) => names.iter().any(|(name, _)| *name == tool.name),
        _ => true,
    };
    let offered = request.tools.iter().filter(is_offered);
    offered.map(write_tool).collect()
}

fn write_tool(tool: &ToolDefinition) -> Value {
    let schema = match (tool.kind, &tool.parameters) {
        (CallKind::Function, Some(Value::Object(schema))) if !schema.is_empty() => {
            let mut schema = schema.clone();
            schema.shift_remove("$schema");
            schema
                .entry("type")
                .or_insert_with(|| Value::from("object"));
            Value::Object(schema)
        }
        (CallKind::Function, _) => no_parameters(),
        (CallKind::Custom, _) => {
            json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})
        }
    };
    object([
        ("name", Some(tool.name.as_str().into())),
        ("description", tool.description.clone().map(Value::from)),
        ("parametersJsonSchema", Some(schema)),
    ])
    .into()
}

fn write_choice(request: &Request) -> Option<Value> {
    Some(match request.tool_choice.as_ref()? {
        ToolChoice::Auto | ToolChoice::Allowed(_, false) => json!({"mode": "AUTO"}),
        ToolChoice::None => json!({"mode": "NONE"}),
        ToolChoice::Required => json!({"mode": "ANY"}),
        ToolChoice::Named(name, _) => json!({"mode": "ANY", "allowedFunctionNames": [name]}),
        ToolChoice::Allowed(names, true) => {
            let names: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
            json!({"mode": "ANY", "allowedFunctionNames": names})
        }
    })
}
