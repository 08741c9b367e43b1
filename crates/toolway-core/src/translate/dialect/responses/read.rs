//! Requests of clients that speak Responses.

use serde_json::{Value, json};

use super::{
    client_tools::{NamedTool, SEARCH, ToolNames, offered, read_tool},
    conversation::conversation_id,
    gateway_tools::{call_of, read_outcome},
};
use crate::translate::{
    dialect::{
        Call, CallResult, GatewayCall, MemberType, OutputFormat, Part, Reasoning, Request, Role,
        Sealed, Source, ToolChoice, ToolDefinition, Turn, Unsupported, check_types, object, take,
        take_list, take_text, text,
    },
    stream::CallKind,
};
use toolway_protocol::tool::JsonObject;

/// Members that chat completions have as well, with the same meaning.
const SHARED: [&str; 4] = [
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "user",
];

const TYPES: [(&str, MemberType); 13] = [
    ("max_output_tokens", MemberType::Count),
    ("max_tool_calls", MemberType::Count),
    ("temperature", MemberType::Number),
    ("top_p", MemberType::Number),
    ("stream", MemberType::Bool),
    ("store", MemberType::Bool),
    ("background", MemberType::Bool),
    ("parallel_tool_calls", MemberType::Bool),
    ("tools", MemberType::List),
    ("include", MemberType::List),
    ("text", MemberType::Object),
    ("reasoning", MemberType::Object),
    ("metadata", MemberType::Object),
];

/// A request of a client.
#[derive(Debug)]
pub struct Read {
    /// What is asked of the model.
    pub request: Request,
    /// How its tools are called on either side.
    pub names: ToolNames,
    /// The response without what the answer adds: what the client asked for, which every response repeats.
    pub resource: JsonObject,
    /// Most calls of tools that are not the client's own.
    pub max_tool_calls: Option<usize>,
    /// What of it is not understood, as a warning for the client.
    pub dropped: Vec<String>,
    /// The client's tools that the model is to search for.
    pub deferred: Vec<String>,
    /// Its `mcp` entries.
    pub mcp: McpEntries,
}

/// The `mcp` entries of a request: the client wants to see the calls of these tools of the gateway.
#[derive(Debug, Default)]
pub struct McpEntries {
    /// Their labels.
    pub labels: Vec<String>,
    /// The labels whose tools the model is to search for.
    pub deferred: Vec<String>,
    /// The labels whose tools the conversation lists already.
    pub listed: Vec<String>,
    /// The calls that the client has agreed to and that the conversation has no result of; the result of each in
    /// [`Request::turns`] is empty, to be filled by [`fill`].
    pub approved: Vec<GatewayCall>,
    /// The requests for approval that the client has denied.
    pub denied: Vec<String>,
    /// The calls that the client was asked about and has gone on without an answer. The result of each says so.
    pub unanswered: Vec<GatewayCall>,
}

/// What the model reads of a call that a person has not agreed to.
pub const NOT_APPROVED: &str = "The user did not approve this call, so it was not made.";

/// What it reads of a call that nobody has decided on.
const NOT_ANSWERED: &str =
    "The user has not answered whether this call may be made, so it was not made.";

/// Puts the result of a call in its place.
pub fn fill(request: &mut Request, id: &str, text: &str, failed: bool) {
    let parts = request.turns.iter_mut().flat_map(|turn| &mut turn.parts);
    for part in parts {
        if let Part::Result(result) = part
            && result.id == id
        {
            result.parts = vec![Part::Text(text.to_owned())];
            result.is_error = failed;
        }
    }
}

/// Reads the body of a request, whose references were put in by [`expand`]. `offered` gives the name that models know a tool
/// of the gateway by, from the label and the name that the client knows. With `keeps_own`, items that only OpenAI's models
/// understand stay, as pieces of reasoning are kept. What else a chat has no word for is left to
/// [`restore`](super::restore).
///
/// # Errors
/// When it needs what only a provider with a store of its own has.
pub fn read_request(
    mut body: JsonObject,
    offered: &dyn Fn(&str, &str) -> Option<String>,
    keeps_own: bool,
) -> Result<Read, Unsupported> {
    let resource = resource(&body);
    refuse(&body)?;
    if resource["background"] == true && resource["store"] == false {
        return Err(Unsupported::new(
            "background",
            "a response in the background is stored; leave out `store`",
        ));
    }
    check_types(&body, &TYPES)?;
    let max_tool_calls = body.get("max_tool_calls").and_then(Value::as_u64);
    let max_tool_calls = max_tool_calls.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    let mut reading = Reading::new(offered, keeps_own);
    for tool in take_list(&mut body, "tools") {
        reading.tool(tool, None);
    }
    if let Some(instructions) = take_text(&mut body, "instructions") {
        reading.say(Role::System, vec![Part::Text(instructions)]);
    }
    for item in take_list(&mut body, "input") {
        reading.item(item)?;
    }
    reading.leave_unanswered();
    let choice = take(&mut body, "tool_choice").unwrap_or_default();
    let mut settings = take(&mut body, "text").unwrap_or_default();
    let number = |value: Option<Value>| match value {
        Some(Value::Number(number)) => Some(number),
        _ => None,
    };
    let reasoning = take(&mut body, "reasoning").unwrap_or_default();
    let shared = SHARED
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), take(&mut body, key)?)));
    let mut rest: JsonObject = shared.collect();
    if choice["type"] == "mcp" {
        // Chat requests may have it as well, for the gateway.
        rest.insert("tool_choice".to_owned(), choice.clone());
    }
    let mcp = reading.take_mcp();
    let request = Request {
        model: take_text(&mut body, "model").unwrap_or_default(),
        tool_choice: reading.choice(&choice),
        turns: reading.turns,
        tools: reading.tools,
        other_tools: reading.other_tools,
        parallel_tool_calls: take(&mut body, "parallel_tool_calls").and_then(|it| it.as_bool()),
        max_tokens: take(&mut body, "max_output_tokens").and_then(|tokens| tokens.as_u64()),
        temperature: number(take(&mut body, "temperature")),
        top_p: number(take(&mut body, "top_p")),
        stop: Vec::new(),
        format: settings
            .get_mut("format")
            .map(Value::take)
            .and_then(read_format),
        effort: reasoning["effort"].as_str().map(str::to_owned),
        verbosity: settings["verbosity"].as_str().map(str::to_owned),
        stream: take(&mut body, "stream") == Some(Value::Bool(true)),
        rest,
    };
    Ok(Read {
        request,
        names: reading.names,
        resource,
        max_tool_calls,
        dropped: reading.dropped,
        deferred: reading.deferred,
        mcp,
    })
}

fn refuse(body: &JsonObject) -> Result<(), Unsupported> {
    let is_given = |key: &str| {
        body.get(key)
            .is_some_and(|value| !value.is_null() && *value != false)
    };
    match is_given("prompt") {
        true => Err(Unsupported::new(
            "prompt",
            "toolway has no stored prompts; send `instructions` and `input`",
        )),
        false => Ok(()),
    }
}

/// What every response repeats of its request. All members are there, because strict clients want them.
fn resource(body: &JsonObject) -> JsonObject {
    let given = |key: &str, otherwise: Value| {
        let value = body.get(key).filter(|value| !value.is_null());
        (key.to_owned(), value.cloned().unwrap_or(otherwise))
    };
    let tools = body
        .get("tools")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let tools: Vec<Value> = tools.cloned().map(complete_tool).collect();
    let text = body.get("text").and_then(Value::as_object);
    let mut text = text.cloned().unwrap_or_default();
    text.entry("format")
        .or_insert_with(|| json!({"type": "text"}));
    let null = Value::Null;
    let conversation =
        conversation_id(body).map(|id| ("conversation".to_owned(), json!({"id": id})));
    [
        given("instructions", null.clone()),
        given("max_output_tokens", null.clone()),
        given("max_tool_calls", null.clone()),
        given("metadata", json!({})),
        given("model", "".into()),
        given("parallel_tool_calls", true.into()),
        given("previous_response_id", null.clone()),
        given("prompt_cache_key", null.clone()),
        given("reasoning", json!({"effort": null, "summary": null})),
        given("safety_identifier", null.clone()),
        given("service_tier", "default".into()),
        given("temperature", 1.0.into()),
        given("tool_choice", "auto".into()),
        given("top_logprobs", 0.into()),
        given("top_p", 1.0.into()),
        given("truncation", "disabled".into()),
        given("user", null),
        given("store", true.into()),
        given("background", false.into()),
        ("presence_penalty".to_owned(), 0.0.into()),
        ("frequency_penalty".to_owned(), 0.0.into()),
        ("text".to_owned(), text.into()),
        ("tools".to_owned(), tools.into()),
    ]
    .into_iter()
    .chain(conversation)
    .collect()
}

/// A function with the members that may be null.
fn complete_tool(mut tool: Value) -> Value {
    if let Some(tool) = tool.as_object_mut()
        && tool.get("type").is_some_and(|kind| kind == "function")
    {
        for key in ["description", "parameters", "strict"] {
            tool.entry(key).or_insert(Value::Null);
        }
    }
    tool
}

/// A request that is being read.
struct Reading<'a> {
    offered: &'a dyn Fn(&str, &str) -> Option<String>,
    keeps_own: bool,
    turns: Vec<Turn>,
    tools: Vec<ToolDefinition>,
    other_tools: Vec<Value>,
    names: ToolNames,
    dropped: Vec<String>,
    deferred: Vec<String>,
    mcp: McpEntries,
    asked: Vec<AskedCall>,
}

/// A call that the client was asked about.
struct AskedCall {
    request: String,
    call: Call,
    state: ApprovalState,
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApprovalState {
    /// There is no answer yet.
    Open,
    /// The client has agreed, and the call has no result yet.
    Approved,
    /// The client has not agreed.
    Denied,
    /// The client has gone on without an answer.
    Unanswered,
    /// The call has a result.
    Done,
}

impl From<AskedCall> for GatewayCall {
    fn from(asked: AskedCall) -> GatewayCall {
        GatewayCall {
            id: asked.call.id,
            name: asked.call.name,
            arguments: asked.call.arguments,
            approval: Some(asked.request),
        }
    }
}

fn text_of(item: &JsonObject, key: &str) -> String {
    text(item, key).unwrap_or_default().to_owned()
}

impl Reading<'_> {
    fn new(offered: &dyn Fn(&str, &str) -> Option<String>, keeps_own: bool) -> Reading<'_> {
        Reading {
            offered,
            keeps_own,
            turns: Vec::new(),
            tools: Vec::new(),
            other_tools: Vec::new(),
            names: ToolNames::default(),
            dropped: Vec::new(),
            deferred: Vec::new(),
            mcp: McpEntries::default(),
            asked: Vec::new(),
        }
    }

    /// The `mcp` entries, and the calls that are to be made.
    fn take_mcp(&mut self) -> McpEntries {
        let mut mcp = std::mem::take(&mut self.mcp);
        for asked in std::mem::take(&mut self.asked) {
            match asked.state {
                ApprovalState::Approved => mcp.approved.push(asked.into()),
                ApprovalState::Denied => mcp.denied.push(asked.request),
                ApprovalState::Open | ApprovalState::Unanswered => {
                    mcp.unanswered.push(asked.into());
                }
                ApprovalState::Done => {}
            }
        }
        mcp
    }

    /// Adds to the turn of this role, or begins one. Instructions are never joined: each stays where it was said.
    fn say(&mut self, role: Role, parts: Vec<Part>) {
        match self.turns.last_mut() {
            Some(last) if last.role == role && matches!(role, Role::Assistant | Role::Tool) => {
                last.parts.extend(parts);
            }
            _ => self.turns.push(Turn {
                role,
                name: None,
                parts,
            }),
        }
    }

    /// The conversation has this call, or items that cannot be read and may have it.
    fn has_call(&self, id: &str) -> bool {
        let parts = self.turns.iter().rev().flat_map(|turn| &turn.parts);
        let mut calls = parts.filter_map(|part| match part {
            Part::Call(call) => Some(&call.id),
            _ => None,
        });
        calls.any(|call| call == id) || !self.dropped.is_empty()
    }

    fn item(&mut self, item: Value) -> Result<(), Unsupported> {
        let Value::Object(mut item) = item else {
            return Err(Unsupported::new(
                "input",
                "an item of `input` is not an object",
            ));
        };
        let owned = |key| text(&item, key).unwrap_or_default().to_owned();
        let kind = text(&item, "type").unwrap_or("message").to_owned();
        match kind.as_str() {
            "message" => {
                let role = match text(&item, "role") {
                    Some("assistant") => Role::Assistant,
                    Some("system") => Role::System,
                    Some("developer") => Role::Developer,
                    _ => Role::User,
                };
                let parts = read_content(take(&mut item, "content"));
                if role != Role::Assistant {
                    self.leave_unanswered();
                }
                self.say(role, parts);
            }
            "function_call" | "custom_tool_call" => {
                let name = offered(text(&item, "namespace"), &owned("name"));
                let arguments = match kind == "custom_tool_call" {
                    true => json!({"input": owned("input")}).to_string(),
                    false => owned("arguments"),
                };
                let call = Call {
                    id: owned("call_id"),
                    name,
                    arguments,
                    kind: CallKind::Function,
                    sealed: None,
                };
                self.say(Role::Assistant, vec![Part::Call(call)]);
            }
            "function_call_output" | "custom_tool_call_output" => {
                let id = owned("call_id");
                if !self.has_call(&id) {
                    return Err(Unsupported {
                        param: "input".to_owned(),
                        message: format!(
                            "No tool call found for function call output with call_id {id}."
                        ),
                        code: "invalid_value",
                    });
                }
                let result = CallResult {
                    id,
                    parts: read_content(take(&mut item, "output")),
                    is_error: false,
                };
                self.say(Role::Tool, vec![Part::Result(result)]);
            }
            "reasoning" => {
                let reasoning = read_reasoning(&item);
                self.say(Role::Assistant, vec![Part::Reasoning(reasoning)]);
            }
            "additional_tools" => {
                for tool in take_list(&mut item, "tools") {
                    self.tool(tool, None);
                }
            }
            "mcp_list_tools" => self.mcp.listed.push(owned("server_label")),
            "mcp_call" => self.gateway_call(&item),
            "mcp_approval_request" => self.ask(&item),
            "mcp_approval_response" => self.answer(&item)?,
            other => {
                let name = format!("item {other}");
                if !self.dropped.contains(&name) {
                    self.dropped.push(name);
                }
                if self.keeps_own {
                    let part = Sealed::raw(Source::OpenAi, item);
                    self.say(Role::Assistant, vec![Part::Reasoning(part)]);
                }
            }
        }
        Ok(())
    }

    /// A call that the gateway made for an earlier response, and its result.
    fn gateway_call(&mut self, item: &JsonObject) {
        let (text, is_error) = read_outcome(item);
        let approval = item.get("approval_request_id").and_then(Value::as_str);
        if let Some(asked) = self
            .asked
            .iter_mut()
            .find(|it| Some(it.request.as_str()) == approval)
        {
            asked.state = ApprovalState::Done;
            let id = asked.call.id.clone();
            return self.put_result(id, text, is_error);
        }
        let call = self.call_of_gateway(item, text_of(item, "id"));
        let id = call.id.clone();
        self.say(Role::Assistant, vec![Part::Call(call)]);
        self.put_result(id, text, is_error);
    }

    fn call_of_gateway(&self, item: &JsonObject, id: String) -> Call {
        let (label, name) = (text_of(item, "server_label"), text_of(item, "name"));
        let known = (self.offered)(&label, &name);
        Call {
            id,
            name: known.unwrap_or_else(|| offered(Some(&label), &name)),
            arguments: text_of(item, "arguments"),
            kind: CallKind::Function,
            sealed: None,
        }
    }

    /// Adds a result, or fills the place that was kept for it. A call may be approved after the client went on without an answer.
    fn put_result(&mut self, id: String, text: String, is_error: bool) {
        let turns = self.turns.iter_mut().rev();
        let mut parts = turns.flat_map(|turn| &mut turn.parts);
        let is_open = |parts: &[Part]| match parts {
            [] => true,
            [Part::Text(text)] => text == NOT_ANSWERED,
            _ => false,
        };
        let kept = parts.find_map(|part| match part {
            Part::Result(result) if result.id == id && is_open(&result.parts) => Some(result),
            _ => None,
        });
        let parts = vec![Part::Text(text)];
        match kept {
            Some(result) => (result.parts, result.is_error) = (parts, is_error),
            None => {
                let result = CallResult {
                    id,
                    parts,
                    is_error,
                };
                self.say(Role::Tool, vec![Part::Result(result)]);
            }
        }
    }

    /// The client was asked about a call.
    fn ask(&mut self, item: &JsonObject) {
        let request = text_of(item, "id");
        let call = self.call_of_gateway(item, call_of(&request).to_owned());
        self.asked.push(AskedCall {
            call: call.clone(),
            request,
            state: ApprovalState::Open,
        });
        self.say(Role::Assistant, vec![Part::Call(call)]);
    }

    /// The client's answer to that. The first one counts.
    fn answer(&mut self, item: &JsonObject) -> Result<(), Unsupported> {
        let request = text_of(item, "approval_request_id");
        let asked = self.asked.iter_mut().find(|it| it.request == request);
        let asked = asked.ok_or_else(|| Unsupported {
            param: "input".to_owned(),
            message: format!("the conversation has no approval request with id '{request}'"),
            code: "approval_request_not_found",
        })?;
        if asked.state != ApprovalState::Open {
            return Ok(());
        }
        let id = asked.call.id.clone();
        if item.get("approve") == Some(&Value::Bool(true)) {
            asked.state = ApprovalState::Approved;
            let result = CallResult {
                id,
                parts: Vec::new(),
                is_error: false,
            };
            self.say(Role::Tool, vec![Part::Result(result)]);
            return Ok(());
        }
        asked.state = ApprovalState::Denied;
        let reason = text(item, "reason").filter(|reason| !reason.is_empty());
        let reason = reason.map_or_else(String::new, |reason| format!(" The reason: {reason}"));
        self.put_result(id, format!("{NOT_APPROVED}{reason}"), true);
        Ok(())
    }

    /// Gives each call that the client was asked about and did not answer a result that says so.
    fn leave_unanswered(&mut self) {
        for at in 0..self.asked.len() {
            if self.asked[at].state == ApprovalState::Open {
                self.asked[at].state = ApprovalState::Unanswered;
                let id = self.asked[at].call.id.clone();
                self.put_result(id, NOT_ANSWERED.to_owned(), true);
            }
        }
    }

    fn tool(&mut self, tool: Value, namespace: Option<&str>) {
        let Value::Object(mut definition) = tool else {
            return;
        };
        let name = text(&definition, "name").unwrap_or_default().to_owned();
        let kind = text(&definition, "type").unwrap_or("function").to_owned();
        match kind.as_str() {
            "function" | "custom" if !name.is_empty() => {
                let is_custom = kind == "custom";
                let offered = offered(namespace, &name);
                if definition.get("defer_loading") == Some(&Value::Bool(true)) {
                    self.deferred.push(offered.clone());
                }
                let tool = read_tool(definition, offered.clone(), is_custom);
                if is_custom || namespace.is_some() {
                    let named = NamedTool {
                        namespace: namespace.map(str::to_owned),
                        name,
                        is_custom,
                    };
                    self.names.insert(offered, named);
                }
                self.tools.push(tool);
            }
            "namespace" if namespace.is_none() => {
                for tool in take_list(&mut definition, "tools") {
                    self.tool(tool, Some(&name));
                }
            }
            "mcp" => {
                let label = text(&definition, "server_label").map(str::to_owned);
                if definition.get("defer_loading") == Some(&Value::Bool(true)) {
                    self.mcp.deferred.extend(label.clone());
                }
                self.mcp.labels.extend(label);
                self.other_tools.push(definition.into());
            }
            // The tools that are deferred bring their API's own search along, unless the client searches.
            SEARCH if text(&definition, "execution") != Some("client") => {}
            other => self.dropped.push(format!("tool {other}")),
        }
    }

    fn choice(&self, choice: &Value) -> Option<ToolChoice> {
        let named = |choice: &Value| {
            let name = choice["name"].as_str()?;
            Some(offered(choice["namespace"].as_str(), name))
        };
        let choice = match (choice.as_str(), choice["type"].as_str()) {
            (Some("auto"), _) => ToolChoice::Auto,
            (Some("none"), _) => ToolChoice::None,
            (Some("required"), _) => ToolChoice::Required,
            (_, Some("function" | "custom")) => {
                ToolChoice::Named(named(choice)?, CallKind::Function)
            }
            (_, Some("allowed_tools")) => {
                let tools = choice["tools"].as_array()?.iter().filter_map(named);
                let tools = tools.map(|name| (name, CallKind::Function)).collect();
                ToolChoice::Allowed(tools, choice["mode"] == "required")
            }
            _ => return None,
        };
        let has_tools = !self.tools.is_empty() || !self.other_tools.is_empty();
        // One that names a tool is refused where there is no such tool.
        (has_tools || matches!(choice, ToolChoice::Named(..))).then_some(choice)
    }
}

fn read_content(content: Option<Value>) -> Vec<Part> {
    match content {
        Some(Value::String(text)) => vec![Part::Text(text)],
        Some(Value::Array(parts)) => parts.into_iter().map(read_part).collect(),
        _ => Vec::new(),
    }
}

fn read_part(part: Value) -> Part {
    let known = || {
        let part = part.as_object()?;
        Some(match text(part, "type")? {
            "input_text" | "output_text" | "text" | "summary_text" => {
                Part::Text(text(part, "text")?.to_owned())
            }
            "refusal" => Part::Refusal(text(part, "refusal")?.to_owned()),
            "input_image" => {
                let detail = text(part, "detail").map(str::to_owned);
                Part::Image(text(part, "image_url")?.to_owned(), detail)
            }
            "input_audio" => {
                let audio = part.get("input_audio")?.as_object()?;
                let format = text(audio, "format").unwrap_or("wav");
                Part::Audio(text(audio, "data")?.to_owned(), format.to_owned())
            }
            "input_file" => {
                let mut file = part.clone();
                file.shift_remove("type");
                Part::File(file)
            }
            _ => return None,
        })
    };
    known().unwrap_or(Part::Unknown(part))
}

fn read_reasoning(item: &JsonObject) -> Reasoning {
    let texts = ["summary", "content"].map(|key| item.get(key).and_then(Value::as_array));
    let texts = texts.into_iter().flatten().flatten();
    let texts: Vec<&str> = texts.filter_map(|part| part["text"].as_str()).collect();
    let sealed = text(item, "encrypted_content").filter(|data| !data.is_empty());
    Reasoning {
        text: texts.join("\n\n"),
        sealed: sealed.map(|data| Sealed::unwrapped(data, Source::OpenAi, text(item, "id"))),
    }
}

fn read_format(format: Value) -> Option<OutputFormat> {
    let Value::Object(mut format) = format else {
        return None;
    };
    match take_text(&mut format, "type")?.as_str() {
        "text" => Some(OutputFormat::Text),
        "json_object" => Some(OutputFormat::JsonObject),
        "json_schema" => Some(OutputFormat::JsonSchema(object([
            (
                "name",
                Some(take(&mut format, "name").unwrap_or_else(|| "answer".into())),
            ),
            ("description", take(&mut format, "description")),
            ("schema", take(&mut format, "schema")),
            ("strict", take(&mut format, "strict")),
        ]))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_items(items: &Value) -> Result<Read, Unsupported> {
        let body = json!({"model": "m", "input": items});
        read_request(
            body.as_object().unwrap().clone(),
            &|label, name| Some(format!("{label}__{name}")),
            false,
        )
    }

    fn question() -> Value {
        json!({"type": "mcp_approval_request", "id": "mcpr_c1", "server_label": "files", "name": "remove",
            "arguments": "{\"path\":\"a\"}"})
    }

    fn said(answer: &Value) -> Value {
        let mut said = json!({"type": "mcp_approval_response", "approval_request_id": "mcpr_c1"});
        for (key, value) in answer.as_object().unwrap() {
            said[key] = value.clone();
        }
        said
    }

    /// What the model reads of the call, and whether it is to be made.
    fn outcome(items: &Value) -> (String, bool) {
        let read = read_items(items).unwrap();
        let parts = read.request.turns.iter().flat_map(|turn| &turn.parts);
        let results: Vec<&CallResult> = parts
            .filter_map(|part| match part {
                Part::Result(result) => Some(result),
                _ => None,
            })
            .collect();
        let [result] = results[..] else {
            panic!("one call has one result: {results:?}");
        };
        assert_eq!(result.id, "c1");
        let text = match &result.parts[..] {
            [Part::Text(text)] => text.clone(),
            _ => String::new(),
        };
        (text, !read.mcp.approved.is_empty())
    }

    #[test]
    fn an_approved_call_is_made_with_the_name_that_models_know() {
        let read = read_items(&json!([question(), said(&json!({"approve": true}))])).unwrap();
        let expected = GatewayCall {
            id: "c1".to_owned(),
            name: "files__remove".to_owned(),
            arguments: "{\"path\":\"a\"}".to_owned(),
            approval: Some("mcpr_c1".to_owned()),
        };
        assert_eq!(read.mcp.approved, [expected]);
    }

    #[test]
    fn a_call_that_was_not_approved_is_not_made_and_the_model_reads_why() {
        let refusal = said(&json!({"approve": false, "reason": "too dangerous"}));
        let (text, is_made) = outcome(&json!([question(), refusal]));
        assert!(text.contains("did not approve") && text.contains("too dangerous"));
        assert!(!is_made);
        // Only `true` is an approval.
        let odd = said(&json!({"approve": "true"}));
        assert!(!outcome(&json!([question(), odd])).1);
    }

    #[test]
    fn the_first_answer_counts() {
        let (yes, no) = (
            said(&json!({"approve": true})),
            said(&json!({"approve": false})),
        );
        assert!(!outcome(&json!([question(), no, yes])).1);
        assert!(outcome(&json!([question(), yes, no])).1);
    }

    #[test]
    fn a_question_without_an_answer_is_left_and_the_call_is_not_made() {
        let next = json!({"role": "user", "content": "something else"});
        let (text, is_made) = outcome(&json!([question(), next]));
        assert!(text.contains("has not answered"));
        assert!(!is_made);
        assert!(!outcome(&json!([question()])).1);
    }

    #[test]
    fn an_approved_call_that_was_made_is_not_made_again() {
        let made = json!({"type": "mcp_call", "id": "mcp_1", "server_label": "files", "name": "remove",
            "arguments": "{}", "approval_request_id": "mcpr_c1", "output": "gone"});
        let items = json!([question(), said(&json!({"approve": true})), made]);
        assert_eq!(outcome(&items), ("gone".to_owned(), false));
    }

    #[test]
    fn an_answer_to_nothing_is_refused() {
        let error = read_items(&json!([said(&json!({"approve": true}))])).unwrap_err();
        assert_eq!(error.code, "approval_request_not_found");
    }

    #[test]
    fn a_result_is_put_in_the_place_of_its_call() {
        let mut read = read_items(&json!([question(), said(&json!({"approve": true}))])).unwrap();
        fill(&mut read.request, "c1", "gone", false);
        let last = read.request.turns.last().unwrap();
        let result = CallResult {
            id: "c1".to_owned(),
            parts: vec![Part::Text("gone".to_owned())],
            is_error: false,
        };
        assert_eq!(last.parts, [Part::Result(result)]);
    }
}
