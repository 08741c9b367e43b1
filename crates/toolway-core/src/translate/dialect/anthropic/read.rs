//! Requests of clients that speak Messages.

use serde_json::{Value, json};

use crate::translate::{
    dialect::{
        Call, CallResult, MemberType, OutputFormat, Part, Reasoning, Request, Role, Sealed, Source,
        ToolChoice, ToolDefinition, Turn, Unsupported, check_types, object, take, take_list,
        take_text, text,
    },
    stream::CallKind,
};
use toolway_protocol::tool::JsonObject;

use super::{THREAD_NOT_FOUND, write::REDACTED};

/// How the block begins in which Claude Code tells its version: it changes with each request, so that no provider could
/// keep the beginning of the conversation in its cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// A request of a client.
#[derive(Debug, Default)]
pub struct Read {
    /// What is asked of the model.
    pub request: Request,
    /// What of it only Anthropic's models understand, as a warning for the client.
    pub dropped: Vec<String>,
    /// The tools that the model is to search for.
    pub deferred: Vec<String>,
}

const TYPES: [(&str, MemberType); 7] = [
    ("max_tokens", MemberType::Count),
    ("temperature", MemberType::Number),
    ("top_p", MemberType::Number),
    ("stream", MemberType::Bool),
    ("stop_sequences", MemberType::List),
    ("tools", MemberType::List),
    ("tool_choice", MemberType::Object),
];

/// Reads the body of a request. Members that only Anthropic's models have are left to [`restore`](super::restore).
///
/// # Errors
/// When there are no messages, or they continue a thread of the server's.
pub fn read_request(mut body: JsonObject) -> Result<Read, Unsupported> {
    if body
        .get("thread")
        .is_some_and(|thread| thread["type"] == "continue")
    {
        return Err(Unsupported {
            param: "thread".to_owned(),
            message: "toolway keeps no threads; send the whole conversation".to_owned(),
            code: THREAD_NOT_FOUND,
        });
    }
    check_types(&body, &TYPES)?;
    let (mut dropped, mut deferred) = (Vec::new(), Vec::new());
    if body.contains_key("mcp_servers") {
        // toolway connects to the servers of its own configuration.
        dropped.push("mcp_servers".to_owned());
    }
    let mut turns = Vec::new();
    let system = match take(&mut body, "system") {
        Some(Value::String(text)) => instructions([text.as_str()]),
        Some(Value::Array(blocks)) => instructions(read_text(&blocks)),
        _ => String::new(),
    };
    if !system.is_empty() {
        turns.push(Turn {
            role: Role::System,
            name: None,
            parts: vec![Part::Text(system)],
        });
    }
    let messages = take_list(&mut body, "messages");
    if messages.is_empty() {
        return Err(Unsupported::new(
            "messages",
            "messages: at least one message is required",
        ));
    }
    for message in messages {
        read_message(message, &mut turns);
    }
    let mut tools = Vec::new();
    for tool in take_list(&mut body, "tools") {
        match read_tool(&tool) {
            Some(read) => {
                if tool["defer_loading"] == true {
                    deferred.push(read.name.clone());
                }
                tools.push(read);
            }
            None if is_search(&tool) => {}
            None => dropped.push(format!(
                "tool {}",
                tool["name"].as_str().unwrap_or("without a name")
            )),
        }
    }
    let choice = take(&mut body, "tool_choice").unwrap_or_default();
    let number = |value: Option<Value>| match value {
        Some(Value::Number(number)) => Some(number),
        _ => None,
    };
    let config = take(&mut body, "output_config").unwrap_or_default();
    let stops = take_list(&mut body, "stop_sequences");
    let stop = stops
        .iter()
        .filter_map(|stop| stop.as_str().map(str::to_owned));
    let request = Request {
        model: take_text(&mut body, "model").unwrap_or_default(),
        turns,
        tool_choice: read_choice(&choice, !tools.is_empty()),
        tools,
        parallel_tool_calls: (choice["disable_parallel_tool_use"] == true).then_some(false),
        max_tokens: take(&mut body, "max_tokens").and_then(|tokens| tokens.as_u64()),
        temperature: number(take(&mut body, "temperature")),
        top_p: number(take(&mut body, "top_p")),
        stop: stop.collect(),
        format: config["format"]["schema"].as_object().map(|schema| {
            let schema = json!({"name": "answer", "schema": schema, "strict": true});
            OutputFormat::JsonSchema(schema.as_object().cloned().unwrap_or_default())
        }),
        effort: config["effort"].as_str().map(str::to_owned),
        verbosity: None,
        stream: take(&mut body, "stream") == Some(Value::Bool(true)),
        other_tools: Vec::new(),
        rest: JsonObject::new(),
    };
    Ok(Read {
        request,
        dropped,
        deferred,
    })
}

/// The texts of the blocks of `system`.
pub(super) fn read_text(blocks: &[Value]) -> impl Iterator<Item = &str> {
    blocks.iter().filter_map(|block| block["text"].as_str())
}

/// One text, for not every chat upstream takes parts in a system message.
pub(super) fn instructions<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let texts = texts.into_iter();
    let texts = texts.filter(|text| !text.is_empty() && !text.starts_with(BILLING));
    let texts: Vec<&str> = texts.collect();
    texts.join("\n\n")
}

/// A message becomes one turn, or two: results of tools first, then what the person says.
fn read_message(message: Value, turns: &mut Vec<Turn>) {
    let Value::Object(mut message) = message else {
        return;
    };
    let role = match text(&message, "role") {
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        _ => Role::User,
    };
    let blocks = match take(&mut message, "content") {
        Some(Value::String(text)) => vec![Part::Text(text)],
        Some(Value::Array(blocks)) => blocks.iter().filter_map(read_block).collect(),
        _ => Vec::new(),
    };
    let (results, said): (Vec<Part>, Vec<Part>) = blocks
        .into_iter()
        .partition(|part| matches!(part, Part::Result(_)));
    for (role, parts) in [(Role::Tool, results), (role, said)] {
        match turns.last_mut() {
            _ if parts.is_empty() => {}
            Some(last) if last.role == role && role != Role::System => last.parts.extend(parts),
            _ => turns.push(Turn {
                role,
                name: None,
                parts,
            }),
        }
    }
}

fn read_block(block: &Value) -> Option<Part> {
    let block = block.as_object()?;
    let owned = |key| text(block, key).unwrap_or_default().to_owned();
    let sealed = |id, data: String| Sealed::unwrapped(&data, Source::Anthropic, id);
    Some(match text(block, "type")? {
        "text" => Part::Text(owned("text")).filter_empty()?,
        "thinking" => Part::Reasoning(Reasoning {
            text: owned("thinking"),
            sealed: Some(owned("signature"))
                .filter(|signature| !signature.is_empty())
                .map(|signature| sealed(None, signature)),
        }),
        "redacted_thinking" => Part::Reasoning(Reasoning {
            text: String::new(),
            sealed: Some(sealed(Some(REDACTED), owned("data"))),
        }),
        "tool_use" => Part::Call(Call {
            id: owned("id"),
            name: owned("name"),
            arguments: block
                .get("input")
                .map_or_else(|| "{}".to_owned(), Value::to_string),
            kind: CallKind::Function,
            sealed: None,
        }),
        "tool_result" => {
            let parts = match block.get("content") {
                Some(Value::String(text)) => vec![Part::Text(text.clone())],
                Some(Value::Array(blocks)) => blocks.iter().filter_map(read_block).collect(),
                _ => Vec::new(),
            };
            Part::Result(CallResult {
                id: owned("tool_use_id"),
                parts,
                is_error: block.get("is_error") == Some(&Value::Bool(true)),
            })
        }
        "image" => Part::Image(url(block.get("source")?)?, None),
        "document" => {
            let source = block.get("source")?;
            if let Some(text) = source["data"].as_str().filter(|_| source["type"] == "text") {
                return Some(Part::Text(text.to_owned()));
            }
            Part::File(object([
                (
                    "filename",
                    Some(text(block, "title").unwrap_or("document.pdf").into()),
                ),
                ("file_data", url(source).map(Value::from)),
                ("file_id", source.get("file_id").cloned()),
            ]))
        }
        // Blocks of Anthropic's own tools say nothing to other models.
        _ => return None,
    })
}

impl Part {
    fn filter_empty(self) -> Option<Part> {
        match &self {
            Part::Text(text) if text.is_empty() => None,
            _ => Some(self),
        }
    }
}

/// A source as a URL, `data:` where the bytes are in it.
fn url(source: &Value) -> Option<String> {
    match source["type"].as_str()? {
        "base64" => {
            let (kind, data) = (source["media_type"].as_str()?, source["data"].as_str()?);
            Some(format!("data:{kind};base64,{data}"))
        }
        "url" => source["url"].as_str().map(str::to_owned),
        _ => None,
    }
}

/// A tool that the client runs; not one of Anthropic's own, which has a `type` and no schema.
fn read_tool(tool: &Value) -> Option<ToolDefinition> {
    let tool = tool.as_object()?;
    Some(ToolDefinition {
        name: text(tool, "name")?.to_owned(),
        description: text(tool, "description").map(str::to_owned),
        parameters: Some(tool.get("input_schema")?.clone()),
        strict: tool.get("strict").and_then(Value::as_bool),
        kind: CallKind::Function,
    })
}

fn read_choice(choice: &Value, has_tools: bool) -> Option<ToolChoice> {
    let choice = match choice["type"].as_str()? {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Named(choice["name"].as_str()?.to_owned(), CallKind::Function),
        _ => return None,
    };
    // One that names a tool is refused where there is no such tool.
    (has_tools || matches!(choice, ToolChoice::Named(..))).then_some(choice)
}

/// It is the provider's search for tools.
pub(super) fn is_search(tool: &Value) -> bool {
    tool["type"]
        .as_str()
        .is_some_and(|kind| kind.starts_with("tool_search_tool_"))
}
