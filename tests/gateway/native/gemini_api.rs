//! Google's `generateContent`: what it refuses, and how it answers.
//!
//! A signature of this model names the part that it is of, so that it is refused at every other part.

use axum::{
    body::Bytes,
    http::{HeaderMap, Uri},
};
use serde_json::{Value, json};

/// What the API takes in place of a signature.
const SKIP: &str = "skip_thought_signature_validator";

/// Members of the request, of its `generationConfig`, and of the schemas in `parameters`.
const KNOWN: [&str; 8] = [
    "cachedContent",
    "contents",
    "generationConfig",
    "labels",
    "safetySettings",
    "systemInstruction",
    "toolConfig",
    "tools",
];
const CONFIG: [&str; 12] = [
    "candidateCount",
    "frequencyPenalty",
    "maxOutputTokens",
    "presencePenalty",
    "responseJsonSchema",
    "responseMimeType",
    "seed",
    "stopSequences",
    "temperature",
    "thinkingConfig",
    "topK",
    "topP",
];
const SCHEMA: [&str; 14] = [
    "anyOf",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maximum",
    "minItems",
    "minimum",
    "nullable",
    "properties",
    "required",
    "type",
];

/// The path is one of the API's questions.
pub fn is_question(path: &str) -> bool {
    path.ends_with(":generateContent") || path.ends_with(":streamGenerateContent")
}

/// The answer to the question comes as a stream.
pub fn is_streamed(uri: &Uri) -> bool {
    uri.path().ends_with(":streamGenerateContent")
}

/// `refuses`: `signatures` (they are of another project).
pub fn refusal(
    uri: &Uri,
    headers: &HeaderMap,
    body: &Value,
    refuses: &[&str],
) -> Option<(u16, Value)> {
    if headers.get("x-goog-api-key").is_none() || headers.contains_key("authorization") {
        let message = "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API.";
        return Some(error(403, "PERMISSION_DENIED", message));
    }
    let is_stream = is_streamed(uri);
    if is_stream && uri.query() != Some("alt=sse") {
        return Some(error(400, "INVALID_ARGUMENT", "the test expects `alt=sse`"));
    }
    let is_old = uri.path().contains("gemini-2");
    let message = fault(body, is_old)
        .or_else(|| fault_of_contents(&body["contents"]))
        .or_else(|| {
            let contents = body["contents"].as_array()?;
            fault_of_signatures(contents, !is_old, refuses.contains(&"signatures"))
        })?;
    Some(error(400, "INVALID_ARGUMENT", &message))
}

fn error(status: u16, name: &str, message: &str) -> (u16, Value) {
    (
        status,
        json!({"error": {"code": status, "message": message, "status": name}}),
    )
}

fn unknown(members: &Value, known: &[&str], place: &str) -> Option<String> {
    let keys = members.as_object()?.keys();
    let mut unknown = keys.filter(|key| !known.contains(&key.as_str()));
    let name = unknown.next()?;
    Some(format!(
        "Invalid JSON payload received. Unknown name \"{name}\"{place}: Cannot find field."
    ))
}

fn fault(body: &Value, is_old: bool) -> Option<String> {
    let config = &body["generationConfig"];
    let fault =
        unknown(body, &KNOWN, "").or_else(|| unknown(config, &CONFIG, " at 'generation_config'"));
    if fault.is_some() {
        return fault;
    }
    let thinking = &config["thinkingConfig"];
    let wrong = if is_old {
        "thinkingLevel"
    } else {
        "thinkingBudget"
    };
    if thinking.get(wrong).is_some() {
        return Some("Thinking level is not supported for this model.".to_owned());
    }
    let declared = body["tools"][0]["functionDeclarations"].as_array().cloned();
    let declared = declared.unwrap_or_default();
    if is_old && !declared.is_empty() && config["responseMimeType"] == "application/json" {
        return Some(
            "Function calling with a response mime type: 'application/json' is unsupported"
                .to_owned(),
        );
    }
    for (at, tool) in declared.iter().enumerate() {
        let place = format!(" at 'tools[0].function_declarations[{at}]'");
        let members = ["name", "description", "parameters", "parametersJsonSchema"];
        let fault =
            unknown(tool, &members, &place).or_else(|| fault_of_schema(&tool["parameters"]));
        if fault.is_some() {
            return fault;
        }
    }
    let choice = &body["toolConfig"]["functionCallingConfig"];
    if let Some(names) = choice["allowedFunctionNames"].as_array() {
        let is_declared = |name: &Value| declared.iter().any(|tool| tool["name"] == *name);
        if choice["mode"] != "ANY" || !names.iter().all(is_declared) {
            return Some("Function calling config is set without function_declarations, or its allowed names are not declared.".to_owned());
        }
    }
    None
}

/// The typed `parameters` take a part of OpenAPI's schemas.
fn fault_of_schema(schema: &Value) -> Option<String> {
    let place = " at 'tools[0].function_declarations[0].parameters'";
    let below = schema["properties"]
        .as_object()
        .into_iter()
        .flat_map(|it| it.values());
    let mut below = below.chain(schema.get("items"));
    unknown(schema, &SCHEMA, place).or_else(|| below.find_map(fault_of_schema))
}

fn fault_of_contents(contents: &Value) -> Option<String> {
    let Some(contents) = contents.as_array().filter(|it| !it.is_empty()) else {
        return Some("* GenerateContentRequest.contents: contents is not specified".to_owned());
    };
    let mut before: &[Value] = &[];
    for (at, content) in contents.iter().enumerate() {
        let expected = if at % 2 == 0 { "user" } else { "model" };
        if content["role"] != expected {
            return Some("Please ensure that multiturn requests alternate between user and model, beginning with user.".to_owned());
        }
        let parts = content["parts"].as_array().map_or(&[][..], Vec::as_slice);
        if parts.is_empty() {
            return Some(format!(
                "* GenerateContentRequest.contents[{at}].parts: contents.parts must not be empty."
            ));
        }
        for (place, part) in parts.iter().enumerate() {
            let has_data = ["functionCall", "functionResponse", "inlineData", "fileData"]
                .iter()
                .any(|key| part.get(key).is_some());
            let is_said = part["text"].as_str().is_some_and(|text| !text.is_empty());
            if !has_data && !is_said && part.get("thoughtSignature").is_none() {
                return Some(format!(
                    "* GenerateContentRequest.contents[{at}].parts[{place}].data: required oneof field 'data' must have one initialized field"
                ));
            }
            if part.get("functionCall").is_some() && !part["functionCall"]["args"].is_object() {
                return Some(format!(
                    "Invalid value at 'contents[{at}].parts[{place}].function_call.args'"
                ));
            }
        }
        if let Some(fault) = fault_of_responses(before, parts) {
            return Some(fault);
        }
        before = parts;
    }
    None
}

/// Every call is answered in the content behind it, in the order of the calls.
fn fault_of_responses(before: &[Value], parts: &[Value]) -> Option<String> {
    let of = |parts: &[Value], key: &str| -> Vec<Value> {
        parts
            .iter()
            .filter_map(|part| part.get(key).cloned())
            .collect()
    };
    let (calls, responses) = (of(before, "functionCall"), of(parts, "functionResponse"));
    if calls.is_empty() && !responses.is_empty() {
        return Some("Please ensure that function response turn comes immediately after a function call turn.".to_owned());
    }
    if calls.len() != responses.len() {
        return Some("Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.".to_owned());
    }
    for (call, response) in calls.iter().zip(&responses) {
        if call["name"] != response["name"] {
            return Some(format!(
                "Function response name {} does not match the function call {}.",
                response["name"], call["name"]
            ));
        }
        if call["id"] != response["id"] {
            return Some("functionResponse.id does not match functionCall.id".to_owned());
        }
        if !response["response"].is_object()
            || response["response"].to_string().contains("\"$ref\"")
        {
            return Some("Invalid value at 'contents[2].parts[0].function_response.response' (type.googleapis.com/google.protobuf.Struct)".to_owned());
        }
    }
    None
}

fn fault_of_signatures(contents: &[Value], checks: bool, refuses: bool) -> Option<String> {
    let of_part = |part: &Value| match part.get("functionCall") {
        Some(call) => signature_of_call(call),
        None => signature_of_text(part["text"].as_str().unwrap_or_default()),
    };
    let parts = contents
        .iter()
        .flat_map(|content| content["parts"].as_array());
    for part in parts.flatten() {
        let Some(signature) = part["thoughtSignature"].as_str() else {
            continue;
        };
        if signature != SKIP && (refuses || signature != of_part(part)) {
            return Some("Corrupted thought signature.".to_owned());
        }
    }
    let is_question = |content: &Value| {
        let has_responses = content["parts"].to_string().contains("functionResponse");
        content["role"] == "user" && !has_responses
    };
    let begin = contents.iter().rposition(is_question).unwrap_or_default();
    for (at, content) in contents.iter().enumerate().skip(begin) {
        let mut parts = content["parts"].as_array()?.iter();
        let first = parts.find(|part| part.get("functionCall").is_some());
        let Some(first) = first.filter(|_| checks) else {
            continue;
        };
        if first.get("thoughtSignature").is_none() {
            return Some(format!(
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call `default_api:{}` , position {at}.",
                first["functionCall"]["name"]
            ));
        }
    }
    None
}

fn signature_of_call(call: &Value) -> String {
    let arguments = call["args"].to_string();
    let letters: String = arguments
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    format!(
        "CALL-{}-{letters}",
        call["name"].as_str().unwrap_or_default()
    )
}

fn signature_of_text(text: &str) -> String {
    format!("TEXT-{}", text.len())
}

/// A turn that begins with a thought. The first call is signed, or the text where there is none.
pub fn answer(
    n: usize,
    text: &[String],
    calls: &[(String, String, String)],
    is_streamed: bool,
) -> (&'static str, Vec<Bytes>) {
    let mut parts = vec![json!({"text": format!("thinking {n}"), "thought": true})];
    match is_streamed {
        true => parts.extend(text.iter().map(|text| json!({"text": text}))),
        false if text.is_empty() => {}
        false => parts.push(json!({"text": text.concat()})),
    }
    if calls.is_empty() && is_streamed {
        parts.push(json!({"text": ""}));
    }
    for (id, name, arguments) in calls {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        let mut call = json!({"name": name, "args": arguments});
        if !id.is_empty() {
            call["id"] = json!(id);
        }
        parts.push(json!({"functionCall": call}));
    }
    let place = parts
        .iter()
        .position(|part| part.get("functionCall").is_some());
    let signed = place.unwrap_or(parts.len() - 1);
    let signature = match parts[signed].get("functionCall") {
        Some(call) => signature_of_call(call),
        None => signature_of_text(parts[signed]["text"].as_str().unwrap_or_default()),
    };
    parts[signed]["thoughtSignature"] = json!(signature);
    let usage = json!({"promptTokenCount": 10 * n, "cachedContentTokenCount": n, "candidatesTokenCount": 1,
        "thoughtsTokenCount": 2, "totalTokenCount": 10 * n + 3});
    let response = |parts: &[Value]| {
        let content = json!({"role": "model", "parts": parts});
        json!({"candidates": [{"index": 0, "content": content}], "usageMetadata": usage,
            "modelVersion": "gemini-3-test", "responseId": format!("response{n}")})
    };
    if !is_streamed {
        let mut whole = response(&parts);
        whole["candidates"][0]["finishReason"] = json!("STOP");
        return ("application/json", vec![whole.to_string().into()]);
    }
    let mut events: Vec<Value> = parts.chunks(1).map(response).collect();
    if let Some(last) = events.last_mut() {
        last["candidates"][0]["finishReason"] = json!("STOP");
    }
    let pieces = events.iter();
    let pieces = pieces.map(|event| Bytes::from(format!("data: {event}\r\n\r\n")));
    ("text/event-stream", pieces.collect())
}
