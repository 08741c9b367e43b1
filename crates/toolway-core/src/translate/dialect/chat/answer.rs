//! Answers of chat completions, streamed and whole.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::{Value, json};

use super::{DETAILS, read_detail, read_signature, request::write_call, write_detail};
use crate::translate::{
    dialect::{
        AnswerWriter, Call, Delta, DeltaText, GatewayCall, GatewayError, Head, Usage, count,
        object, take, take_list, take_text, text, write_event, write_json,
    },
    stream::CallKind,
};
use toolway_protocol::{
    openai::{ErrorBody, FinishReason},
    sse::{AlikeEvents, EventPattern, SseEvent},
    tool::JsonObject,
};

/// Writes an answer as the events of a stream.
#[derive(Debug)]
pub struct ChunkWriter {
    head: Head,
    /// What is around a piece of text; empty until one was written.
    around_text: (Vec<u8>, Vec<u8>),
    include_usage: bool,
    has_role: bool,
    is_over: bool,
}

impl ChunkWriter {
    /// A stream that tells the tokens if the client asked for them. `created` counts where the API does not say when
    /// the answer was made, in seconds since 1970.
    pub fn new(include_usage: bool, created: u64) -> ChunkWriter {
        ChunkWriter {
            head: Head {
                created,
                ..Head::default()
            },
            around_text: Default::default(),
            include_usage,
            has_role: false,
            is_over: false,
        }
    }
}

impl AnswerWriter for ChunkWriter {
    fn write(&mut self, delta: Delta, out: &mut Vec<u8>) {
        if self.is_over {
            return;
        }
        let delta = match delta {
            Delta::Begin(head) => {
                self.head = with_time(head, self.head.created);
                self.around_text = Default::default();
                return;
            }
            Delta::Finish(reason) => return self.chunk(json!({}), Some(reason), out),
            Delta::Usage(usage) if self.include_usage => {
                let mut chunk = envelope(&self.head, "chat.completion.chunk");
                chunk.insert("choices".to_owned(), Value::Array(Vec::new()));
                chunk.insert("usage".to_owned(), write_usage(usage));
                return write_event(None, &chunk, out);
            }
            // The gateway writes such events itself, and no model does.
            Delta::Usage(_) | Delta::GatewayCall(_) | Delta::GatewayResult(..) => return,
            Delta::Failed(error) => {
                self.is_over = true;
                return write_event(None, &error.to_value(), out);
            }
            Delta::Sealed(reasoning) => match write_detail(&reasoning) {
                Some(detail) => json!({DETAILS: [detail]}),
                None => return,
            },
            Delta::Text(text) if self.has_role => return self.write_text(&text, out),
            Delta::Text(text) => json!({"content": text}),
            Delta::Refusal(text) => json!({"refusal": text}),
            Delta::Thought(text) => json!({"reasoning_content": text}),
            Delta::Annotation(annotation) => json!({"annotations": [annotation]}),
            Delta::Call(at, call) => {
                let mut call = write_call(&call);
                call["index"] = at.into();
                json!({"tool_calls": [call]})
            }
            Delta::Arguments(at, text) => {
                json!({"tool_calls": [{"index": at, "function": {"arguments": text}}]})
            }
        };
        self.chunk(delta, None, out);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.is_over, true) {
            out.extend_from_slice(b"data: [DONE]\n\n");
        }
    }
}

impl ChunkWriter {
    fn chunk(&mut self, mut delta: Value, finish: Option<FinishReason>, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.has_role, true) {
            delta["role"] = "assistant".into();
        }
        self.write_chunk(&delta, finish, out);
    }

    /// Only the text differs from one chunk to the next.
    fn write_text(&mut self, text: &str, out: &mut Vec<u8>) {
        const EMPTY: &[u8] = br#""""#;
        if self.around_text.0.is_empty() {
            let mut chunk = Vec::new();
            self.write_chunk(&ContentDelta { content: "" }, None, &mut chunk);
            let at = memchr::memmem::rfind(&chunk, EMPTY).unwrap_or_default();
            let after = chunk.split_off(at + EMPTY.len());
            chunk.truncate(at);
            self.around_text = (chunk, after);
        }
        let (before, after) = &self.around_text;
        out.extend_from_slice(before);
        write_json(&text, out);
        out.extend_from_slice(after);
    }

    fn write_chunk<D: Serialize>(
        &self,
        delta: &D,
        finish: Option<FinishReason>,
        out: &mut Vec<u8>,
    ) {
        let choice = WrittenChoice {
            index: 0,
            delta,
            finish_reason: finish.map(FinishReason::as_str),
        };
        let chunk = WrittenChunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            choices: [choice],
        };
        write_event(None, &chunk, out);
    }
}

#[derive(Serialize)]
struct WrittenChunk<'a, D> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [WrittenChoice<'a, D>; 1],
}

#[derive(Serialize)]
struct WrittenChoice<'a, D> {
    index: u64,
    delta: &'a D,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct ContentDelta<'a> {
    content: &'a str,
}

fn with_time(mut head: Head, created: u64) -> Head {
    if head.created == 0 {
        head.created = created;
    }
    head
}

fn envelope(head: &Head, object_name: &str) -> JsonObject {
    object([
        ("id", Some(head.id.as_str().into())),
        ("object", Some(object_name.into())),
        ("created", Some(head.created.into())),
        ("model", Some(head.model.as_str().into())),
    ])
}

/// The members of `usage`. What was written into a cache has the name that it has at OpenRouter.
fn write_usage(usage: Usage) -> Value {
    let mut written = json!({
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    });
    if usage.cache_written > 0 {
        written["prompt_tokens_details"]["cache_write_tokens"] = usage.cache_written.into();
    }
    written
}

/// Writes a whole answer, which its deltas make up. `created` as in [`ChunkWriter::new`].
///
/// # Errors
/// When the answer failed.
pub fn write_answer(deltas: Vec<Delta>, created: u64) -> Result<JsonObject, Box<ErrorBody>> {
    let mut head = Head::default();
    let (mut content, mut refusal, mut thoughts) = (String::new(), String::new(), String::new());
    let (mut details, mut annotations) = (Vec::new(), Vec::new());
    let mut calls: Vec<Call> = Vec::new();
    let mut finish = FinishReason::Stop;
    let mut usage = None;
    for delta in deltas {
        match delta {
            Delta::Begin(begun) => head = begun,
            Delta::Text(text) => content.push_str(&text),
            Delta::Refusal(text) => refusal.push_str(&text),
            Delta::Thought(text) => thoughts.push_str(&text),
            Delta::Sealed(reasoning) => details.extend(write_detail(&reasoning)),
            Delta::Annotation(annotation) => annotations.push(annotation),
            Delta::Call(_, call) => calls.push(call),
            Delta::Arguments(at, text) => {
                if let Some(call) = calls.get_mut(at) {
                    call.arguments.push_str(&text);
                }
            }
            Delta::Usage(counted) => usage = Some(write_usage(counted)),
            Delta::GatewayCall(_) | Delta::GatewayResult(..) => {}
            Delta::Finish(reason) => finish = reason,
            Delta::Failed(error) => return Err(error.into()),
        }
    }
    let some = |text: String| (!text.is_empty()).then_some(text);
    let calls: Vec<Value> = calls.iter().map(write_call).collect();
    let mut message = object([("role", Some("assistant".into()))]);
    message.insert("content".to_owned(), some(content).into());
    message.insert("refusal".to_owned(), some(refusal).into());
    message.extend(object([
        ("reasoning_content", some(thoughts).map(Value::from)),
        (DETAILS, (!details.is_empty()).then(|| details.into())),
        (
            "annotations",
            (!annotations.is_empty()).then(|| annotations.into()),
        ),
        ("tool_calls", (!calls.is_empty()).then(|| calls.into())),
    ]));
    let mut body = envelope(&with_time(head, created), "chat.completion");
    body.insert(
        "choices".to_owned(),
        json!([{"index": 0, "message": message, "logprobs": null, "finish_reason": finish.as_str()}]),
    );
    body.extend(object([("usage", usage)]));
    Ok(body)
}

/// Reads the events of a stream, or a whole answer, that keeps to OpenAI's contract: one that toolway wrote.
#[derive(Clone, Debug, Default)]
pub struct ChunkReader {
    has_begun: bool,
    /// What chunks with a text alone look like.
    alike: AlikeEvents,
}

/// A chunk without calls, thoughts and notes, as nearly all are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the members that may be there without any effect")]
struct PlainChunk<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    object: IgnoredAny,
    created: u64,
    #[serde(borrow)]
    model: Cow<'a, str>,
    service_tier: Option<IgnoredAny>,
    system_fingerprint: Option<IgnoredAny>,
    obfuscation: Option<IgnoredAny>,
    #[serde(borrow)]
    choices: Vec<PlainChoice<'a>>,
    usage: Option<ChunkUsage>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the members that may be there without any effect")]
struct PlainChoice<'a> {
    index: IgnoredAny,
    #[serde(borrow)]
    delta: PlainDelta<'a>,
    logprobs: Option<IgnoredAny>,
    #[serde(borrow)]
    finish_reason: Option<DeltaText<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the members that may be there without any effect")]
struct PlainDelta<'a> {
    role: Option<IgnoredAny>,
    #[serde(default)]
    refusal: (),
    #[serde(borrow)]
    content: Option<DeltaText<'a>>,
}

/// `usage` with counts where it has counts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ChunkUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: u64,
}

impl ChunkUsage {
    fn usage(&self) -> Usage {
        Usage {
            input: self.prompt_tokens,
            cached: self.prompt_tokens_details.cached_tokens,
            cache_written: self.prompt_tokens_details.cache_write_tokens,
            output: self.completion_tokens,
            reasoning: self.completion_tokens_details.reasoning_tokens,
        }
    }
}

impl ChunkReader {
    /// What an event adds. `None` if its data is no JSON object.
    pub fn read_event(&mut self, event: &SseEvent) -> Option<Vec<Delta>> {
        let data = event.data()?;
        match self.read_plain(event, &data) {
            Some(deltas) => Some(deltas),
            None => Some(self.read(serde_json::from_str(&data).ok()?)),
        }
    }

    /// What the next events look like that add a piece of text and nothing else.
    pub fn alike(&mut self) -> &mut AlikeEvents {
        &mut self.alike
    }

    /// The same as [`read`](ChunkReader::read) of a chunk that is plain, without a value built. `None` of any other.
    fn read_plain(&mut self, event: &SseEvent, data: &str) -> Option<Vec<Delta>> {
        let mut chunk: PlainChunk<'_> = serde_json::from_str(data).ok()?;
        let choice = chunk.choices.pop();
        if !chunk.choices.is_empty() {
            return None;
        }
        let mut deltas = Vec::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            deltas.push(Delta::Begin(Head {
                id: chunk.id.into_owned(),
                model: chunk.model.into_owned(),
                created: chunk.created,
            }));
        }
        if let Some(PlainChoice {
            delta,
            finish_reason,
            ..
        }) = choice
        {
            if let Some(DeltaText(text)) = delta.content {
                if let (Cow::Borrowed(text), None, None, None) =
                    (&text, &finish_reason, &delta.role, &chunk.usage)
                {
                    self.alike.learn(|| EventPattern::of(event, text, &[]));
                }
                deltas.extend((!text.is_empty()).then(|| Delta::Text(text.into_owned())));
            }
            let finish = finish_reason.and_then(|DeltaText(reason)| FinishReason::parse(&reason));
            deltas.extend(finish.map(Delta::Finish));
        }
        deltas.extend(chunk.usage.map(|usage| Delta::Usage(usage.usage())));
        Some(deltas)
    }

    /// What a chunk or a whole completion adds.
    pub fn read(&mut self, mut chunk: JsonObject) -> Vec<Delta> {
        let mut deltas = Vec::new();
        if let Some((error, _)) = ErrorBody::in_ok_object(&chunk) {
            return vec![Delta::Failed(error)];
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            deltas.push(Delta::Begin(Head {
                id: text(&chunk, "id").unwrap_or_default().to_owned(),
                model: text(&chunk, "model").unwrap_or_default().to_owned(),
                created: count(&chunk, &["created"]),
            }));
        }
        if let Some(Value::Object(note)) = take(&mut chunk, "toolway") {
            deltas.extend(read_note(note));
        }
        let choice = take_list(&mut chunk, "choices").into_iter().next();
        if let Some(Value::Object(mut choice)) = choice {
            let is_whole = choice.contains_key("message");
            let said = take(&mut choice, "delta").or(take(&mut choice, "message"));
            if let Some(Value::Object(said)) = said {
                read_message(said, is_whole, &mut deltas);
            }
            let finish = text(&choice, "finish_reason").and_then(FinishReason::parse);
            deltas.extend(finish.map(Delta::Finish));
        }
        if let Some(Value::Object(usage)) = take(&mut chunk, "usage") {
            deltas.push(Delta::Usage(Usage {
                input: count(&usage, &["prompt_tokens"]),
                cached: count(&usage, &["prompt_tokens_details", "cached_tokens"]),
                cache_written: count(&usage, &["prompt_tokens_details", "cache_write_tokens"]),
                output: count(&usage, &["completion_tokens"]),
                reasoning: count(&usage, &["completion_tokens_details", "reasoning_tokens"]),
            }));
        }
        deltas
    }
}

/// What the gateway tells of its own calls.
fn read_note(mut note: JsonObject) -> Option<Delta> {
    let id = take_text(&mut note, "id")?;
    match text(&note, "type")? {
        "call_started" => Some(Delta::GatewayCall(GatewayCall {
            id,
            name: take_text(&mut note, "name")?,
            arguments: take(&mut note, "arguments")?.to_string(),
            approval: None,
        })),
        "call_finished" => {
            let outcome = match take_text(&mut note, "output") {
                Some(output) => Ok(output),
                None => Err(read_error(take(&mut note, "error").as_ref()?)),
            };
            Some(Delta::GatewayResult(id, outcome))
        }
        _ => None,
    }
}

fn read_error(error: &Value) -> GatewayError {
    let message = error["message"].as_str().unwrap_or_default().to_owned();
    match error["code"].as_i64() {
        Some(code) => GatewayError::Protocol { code, message },
        None => GatewayError::Tool(message),
    }
}

/// `is_whole`: the text of a sealed thought was not told before, as it is in a stream.
fn read_message(mut said: JsonObject, is_whole: bool, deltas: &mut Vec<Delta>) {
    let thoughts = take_text(&mut said, "reasoning_content").or(take_text(&mut said, "reasoning"));
    let some = |text: &String| !text.is_empty();
    let details = take_list(&mut said, DETAILS);
    let sealed = details.iter().filter_map(read_detail);
    let sealed: Vec<_> = sealed.filter(|it| it.sealed.is_some()).collect();
    // The thoughts that are sealed say what `reasoning_content` joins.
    let is_said = is_whole && sealed.iter().any(|it| !it.text.is_empty());
    deltas.extend(
        thoughts
            .filter(|text| some(text) && !is_said)
            .map(Delta::Thought),
    );
    for reasoning in sealed {
        if is_said && !reasoning.text.is_empty() {
            deltas.push(Delta::Thought(reasoning.text.clone()));
        }
        deltas.push(Delta::Sealed(reasoning));
    }
    deltas.extend(
        take_text(&mut said, "content")
            .filter(some)
            .map(Delta::Text),
    );
    deltas.extend(
        take_text(&mut said, "refusal")
            .filter(some)
            .map(Delta::Refusal),
    );
    deltas.extend(
        take_list(&mut said, "annotations")
            .into_iter()
            .map(Delta::Annotation),
    );
    for (place, call) in take_list(&mut said, "tool_calls").iter().enumerate() {
        deltas.extend(read_call(place, call));
    }
}

/// A call with an id is new; without an id, the arguments belong to a call that was read before.
fn read_call(place: usize, call: &Value) -> Option<Delta> {
    let kind = match call.get("custom") {
        Some(_) => CallKind::Custom,
        None => CallKind::Function,
    };
    let (body, arguments) = kind.members();
    let at = call.get("index").and_then(Value::as_u64);
    let at = at.map_or(place, |at| usize::try_from(at).unwrap_or(place));
    let body = call.get(body)?.as_object()?;
    let arguments = text(body, arguments).unwrap_or_default().to_owned();
    match call.get("id").and_then(Value::as_str) {
        Some(id) => Some(Delta::Call(
            at,
            Call {
                id: id.to_owned(),
                name: text(body, "name").unwrap_or_default().to_owned(),
                arguments,
                kind,
                sealed: read_signature(call),
            },
        )),
        None => Some(Delta::Arguments(at, arguments)),
    }
}
