//! Chat completions. Sealed reasoning travels in `reasoning_details`, as OpenRouter has it, and the signature of a call in
//! its `extra_content`, as Google has it: upstreams of chat ignore both, and many clients give them back.

mod answer;
mod request;

use serde_json::{Value, json};

pub use self::{
    answer::{ChunkReader, ChunkWriter, write_answer},
    request::{read_request, write_request},
};
use super::{RAW, Reasoning, Sealed, Source, text};
use toolway_protocol::tool::JsonObject;

/// The member of a message or delta that holds sealed reasoning.
const DETAILS: &str = "reasoning_details";

/// The names of the formats of sealed reasoning.
const FORMATS: [(Source, &str); 3] = [
    (Source::OpenAi, "openai-responses-v1"),
    (Source::Anthropic, "anthropic-claude-v1"),
    (Source::Gemini, "google-gemini-v1"),
];

/// Removes what another API's provider alone understands of its own answers from the messages of a request.
pub fn remove_raw_parts(body: &mut JsonObject) {
    let Some(Value::Array(messages)) = body.get_mut("messages") else {
        return;
    };
    messages.retain_mut(|message| {
        let Some(Value::Array(details)) = message.get_mut(DETAILS) else {
            return true;
        };
        details.retain(|detail| detail["id"] != RAW);
        if !details.is_empty() {
            return true;
        }
        if let Some(message) = message.as_object_mut() {
            message.shift_remove(DETAILS);
        }
        let says = ["content", "refusal", "reasoning_content", "tool_calls"];
        says.iter().any(|key| !message[*key].is_null())
    });
}

/// An element of `reasoning_details`; none for reasoning without a seal, whose text is in `reasoning_content`.
fn write_detail(reasoning: &Reasoning) -> Option<Value> {
    let sealed = reasoning.sealed.as_ref()?;
    let (_, format) = FORMATS
        .iter()
        .find(|(source, _)| *source == sealed.source)?;
    let mut detail = match reasoning.text.is_empty() {
        true => json!({"type": "reasoning.encrypted", "data": sealed.data}),
        false => {
            json!({"type": "reasoning.text", "text": reasoning.text, "signature": sealed.data})
        }
    };
    if let Some(id) = &sealed.id {
        detail["id"] = id.as_str().into();
    }
    detail["format"] = (*format).into();
    Some(detail)
}

/// The reasoning of an element of `reasoning_details`; without a seal where its format is not known here.
fn read_detail(detail: &Value) -> Option<Reasoning> {
    let detail = detail.as_object()?;
    let said = text(detail, "text").or(text(detail, "summary"));
    let format = text(detail, "format").unwrap_or_default();
    let source = FORMATS.iter().find(|(_, name)| *name == format);
    let data = text(detail, "signature").or(text(detail, "data"));
    let sealed = source.zip(data).map(|((source, _), data)| Sealed {
        source: *source,
        id: text(detail, "id").map(str::to_owned),
        data: data.to_owned(),
    });
    (said.is_some() || sealed.is_some()).then(|| Reasoning {
        text: said.unwrap_or_default().to_owned(),
        sealed,
    })
}

/// The `extra_content` of a signed call.
fn write_signature(sealed: Option<&Sealed>) -> Option<Value> {
    let sealed = sealed.filter(|sealed| sealed.source == Source::Gemini)?;
    Some(json!({"google": {"thought_signature": sealed.data}}))
}

/// The signature of a call.
fn read_signature(call: &Value) -> Option<Sealed> {
    let data = call.pointer("/extra_content/google/thought_signature")?;
    Some(Sealed {
        source: Source::Gemini,
        id: None,
        data: data.as_str()?.to_owned(),
    })
}
