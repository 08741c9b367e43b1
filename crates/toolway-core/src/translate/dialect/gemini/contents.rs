//! The conversation of a request: contents whose roles take turns, each signature at its part, and all results of a turn
//! in one content, in the order of the calls.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    media::{fits_into_results, is_media, write_media},
    models::GeminiAbilities,
};
use crate::translate::{
    calls,
    dialect::{Call, CallResult, Part, Reasoning, Role, Sealed, Source, Turn, object},
    results::ANNOUNCED,
    stream::CallKind,
};

/// The signature that Google documents for calls which its model did not make, or whose signature was lost.
const UNSIGNED: &str = "skip_thought_signature_validator";

/// How a conversation is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentForm {
    pub(super) abilities: GeminiAbilities,
    /// Signatures of the API go back to it.
    pub(super) keeps_seals: bool,
}

/// What one side says before the other speaks.
#[derive(Default)]
struct GeminiContent<'r> {
    is_model: bool,
    /// The ids of its calls.
    calls: Vec<&'r str>,
    responses: Vec<Response<'r>>,
    /// Everything but the responses, which stand before it.
    parts: Vec<Value>,
}

/// The result of a call.
struct Response<'r> {
    id: &'r str,
    /// How many pictures and the like its text announces.
    announced: usize,
    /// The part.
    part: Value,
}

/// Writes the conversation.
pub(super) fn write_contents(
    turns: &[Turn],
    form: ContentForm,
    left_out: &mut Vec<String>,
) -> Vec<Value> {
    let mut writer = ContentsWriter {
        form,
        names: HashMap::new(),
        contents: Vec::new(),
        left_out,
    };
    for turn in turns {
        match turn.role {
            Role::Assistant => writer.push_model(turn),
            _ => writer.push_user(turn),
        }
    }
    let mut contents = writer.contents;
    if form.abilities.is_new {
        sign_first_calls(&mut contents);
    }
    // By the ids of the calls before.
    let mut places = HashMap::new();
    let mut written = Vec::new();
    for mut content in contents {
        let place = |response: &Response<'_>| places.get(response.id).copied();
        content
            .responses
            .sort_by_key(|response| place(response).unwrap_or(usize::MAX));
        let role = if content.is_model { "model" } else { "user" };
        let responses = content.responses.into_iter().map(|response| response.part);
        let parts: Vec<Value> = responses.chain(content.parts).collect();
        written.push(json!({"role": role, "parts": parts}));
        places = content.calls.into_iter().zip(0..).collect();
    }
    written
}

/// Signs the first call of each content since the person last spoke, where it has no signature: the API refuses the
/// request otherwise.
fn sign_first_calls(contents: &mut [GeminiContent<'_>]) {
    let is_question =
        |content: &GeminiContent<'_>| !content.is_model && content.responses.is_empty();
    let begin = contents.iter().rposition(is_question).unwrap_or(0);
    for content in &mut contents[begin..] {
        let mut parts = content.parts.iter_mut();
        let first = parts.find(|part| part.get("functionCall").is_some());
        if let Some(Value::Object(first)) = first
            && !first.contains_key("thoughtSignature")
        {
            first.insert("thoughtSignature".to_owned(), UNSIGNED.into());
        }
    }
}

struct ContentsWriter<'r, 'l> {
    form: ContentForm,
    /// The names of the tools that were called, by the ids of the calls.
    names: HashMap<&'r str, &'r str>,
    contents: Vec<GeminiContent<'r>>,
    left_out: &'l mut Vec<String>,
}

impl<'r> ContentsWriter<'r, '_> {
    /// The content that a turn of this side adds to.
    fn content(&mut self, is_model: bool) -> &mut GeminiContent<'r> {
        let is_new = self
            .contents
            .last()
            .is_none_or(|last| last.is_model != is_model);
        if is_new {
            self.contents.push(GeminiContent {
                is_model,
                ..GeminiContent::default()
            });
        }
        let last = self.contents.len() - 1;
        &mut self.contents[last]
    }

    fn push_model(&mut self, turn: &'r Turn) {
        let form = self.form;
        let mut said = SaidTurn::default();
        let mut calls = Vec::new();
        for part in &turn.parts {
            match part {
                Part::Text(text) | Part::Refusal(text) => said.push_text(text),
                Part::Reasoning(reasoning) => said.push_reasoning(reasoning, form),
                Part::Call(call) => {
                    self.names.insert(&call.id, &call.name);
                    calls.push(call.id.as_str());
                    said.sign_text();
                    said.parts.push(write_call(call, form));
                }
                Part::Image(..) | Part::Audio(..) | Part::File(_) => {
                    said.parts.extend(self.media(part));
                }
                Part::Unknown(part) => self.leave_out(part),
                Part::Result(_) => {}
            }
        }
        said.sign_text();
        if !said.parts.is_empty() {
            let content = self.content(true);
            content.calls.extend(calls);
            content.parts.append(&mut said.parts);
        }
    }

    fn push_user(&mut self, turn: &'r Turn) {
        let is_of_results = !turn.parts.is_empty() && turn.parts.iter().all(is_media);
        let follows_results = self
            .contents
            .last()
            .is_some_and(|last| !last.responses.is_empty() && last.parts.is_empty());
        if is_of_results && follows_results {
            let media = turn.parts.iter().filter_map(|part| self.media(part));
            let media = media.collect();
            return self.attach(media);
        }
        for part in &turn.parts {
            match part {
                Part::Text(text) | Part::Refusal(text) if text.is_empty() => {}
                Part::Text(text) | Part::Refusal(text) => {
                    self.content(false).parts.push(json!({"text": text}));
                }
                Part::Result(result) => self.push_result(result),
                Part::Image(..) | Part::Audio(..) | Part::File(_) => {
                    if let Some(media) = self.media(part) {
                        self.content(false).parts.push(media);
                    }
                }
                Part::Unknown(part) => self.leave_out(part),
                Part::Reasoning(_) | Part::Call(_) => {}
            }
        }
    }

    fn push_result(&mut self, result: &'r CallResult) {
        let texts: Vec<&str> = result
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        let said = texts.join("\n");
        let media = result.parts.iter().filter(|part| is_media(part));
        let media: Vec<Value> = media.filter_map(|part| self.media(part)).collect();
        let id = Some(result.id.as_str().into()).filter(|_| self.form.abilities.is_new);
        // A result without its call is refused by the API, which says so better than toolway can.
        let name = self.names.get(result.id.as_str());
        let name = name.copied().unwrap_or(result.id.as_str());
        let mut response = object([("id", id), ("name", Some(name.into()))]);
        response.insert("response".to_owned(), write_result(&said, result.is_error));
        let mut response = Response {
            id: &result.id,
            announced: said.matches(ANNOUNCED).count(),
            part: json!({"functionResponse": response}),
        };
        let beside = add_media(media, &mut response.part, self.form);
        let content = self.content(false);
        content.responses.push(response);
        content.parts.extend(beside);
    }

    /// Gives pictures and the like that follow results to those whose texts announce them, or to the last.
    fn attach(&mut self, mut media: Vec<Value>) {
        let form = self.form;
        let content = self.content(false);
        let announced = content.responses.iter().map(|it| it.announced);
        let is_clear = announced.sum::<usize>() == media.len();
        let last = content.responses.len().saturating_sub(1);
        for (at, response) in content.responses.iter_mut().enumerate() {
            let count = match is_clear {
                true => response.announced,
                false if at == last => media.len(),
                false => 0,
            };
            let own = media.drain(..count).collect();
            content
                .parts
                .extend(add_media(own, &mut response.part, form));
        }
    }

    fn media(&mut self, part: &Part) -> Option<Value> {
        write_media(part)
            .map_err(|name| self.left_out.push(name.to_owned()))
            .ok()
    }

    fn leave_out(&mut self, part: &Value) {
        let kind = part.get("type").and_then(Value::as_str);
        self.left_out.push(kind.unwrap_or("content").to_owned());
    }
}

/// Adds pictures and the like to a result. Gives back what cannot stand there.
fn add_media(media: Vec<Value>, response: &mut Value, form: ContentForm) -> Vec<Value> {
    let fits = |part: &Value| form.abilities.is_new && fits_into_results(part);
    let (within, beside): (Vec<Value>, Vec<Value>) = media.into_iter().partition(fits);
    if !within.is_empty() {
        let parts = &mut response["functionResponse"]["parts"];
        let before = parts.as_array().cloned().unwrap_or_default();
        *parts = before.into_iter().chain(within).collect();
    }
    beside
}

/// A text, because Google resolves a `$ref` within the object. toolway and many clients write failures as
/// `{"error": …}`.
fn write_result(said: &str, is_error: bool) -> Value {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct FailureMember<'t> {
        #[serde(borrow)]
        error: &'t RawValue,
    }
    match serde_json::from_str::<FailureMember<'_>>(said) {
        Ok(FailureMember { error }) => {
            let text = serde_json::from_str::<String>(error.get());
            json!({"error": text.unwrap_or_else(|_| error.get().to_owned())})
        }
        Err(_) if is_error => json!({"error": said}),
        Err(_) => json!({"output": said}),
    }
}

fn write_call(call: &Call, form: ContentForm) -> Value {
    let arguments = match call.kind {
        CallKind::Function => calls::parse_arguments(&call.arguments).unwrap_or_default(),
        CallKind::Custom => object([("input", Some(call.arguments.as_str().into()))]),
    };
    let written = object([
        (
            "id",
            Some(call.id.as_str().into()).filter(|_| form.abilities.is_new),
        ),
        ("name", Some(call.name.as_str().into())),
        ("args", Some(arguments.into())),
    ]);
    let signature = call.sealed.as_ref().and_then(|sealed| own(sealed, form));
    object([
        ("functionCall", Some(written.into())),
        ("thoughtSignature", signature.map(Value::from)),
    ])
    .into()
}

/// The signature, if it is one of the API's.
fn own(sealed: &Sealed, form: ContentForm) -> Option<&str> {
    let is_own = sealed.source == Source::Gemini && !sealed.data.is_empty();
    (is_own && form.keeps_seals).then_some(&sealed.data)
}

/// What the model said, while it is written.
#[derive(Default)]
struct SaidTurn<'r> {
    parts: Vec<Value>,
    /// A signature that came before its text, and how many bytes at the end of the text are its part.
    ahead: Option<(usize, &'r str)>,
}

impl<'r> SaidTurn<'r> {
    fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.parts.push(json!({"text": text}));
        }
    }

    fn push_reasoning(&mut self, reasoning: &'r Reasoning, form: ContentForm) {
        let Some(sealed) = &reasoning.sealed else {
            return;
        };
        let Some(signature) = own(sealed, form) else {
            return;
        };
        match (sealed.signed_text(), &sealed.id) {
            (Some(len), _) if self.sign(len, signature) => {}
            (Some(len), _) => self.ahead = Some((len, signature)),
            (None, None) => self.parts.push(
                json!({"text": reasoning.text, "thought": true, "thoughtSignature": signature}),
            ),
            (None, Some(_)) => {}
        }
    }

    /// Signs the text that is complete now.
    fn sign_text(&mut self) {
        if let Some((len, signature)) = self.ahead.take()
            && !self.sign(len, signature)
        {
            // The text is not what the model said, so its signature stands on its own.
            self.parts
                .push(json!({"text": "", "thoughtSignature": signature}));
        }
    }

    /// Signs the last bytes of the text before. False if there is no such text.
    fn sign(&mut self, len: usize, signature: &str) -> bool {
        let last = self.parts.last_mut().and_then(Value::as_object_mut);
        let last = last.filter(|last| last.len() == 1 && last.contains_key("text"));
        let said = last.as_ref().and_then(|last| last["text"].as_str());
        let said = said.map(str::to_owned);
        let cut = said.as_ref().and_then(|said| said.len().checked_sub(len));
        let (Some(last), Some(said), Some(cut)) = (last, said, cut) else {
            return false;
        };
        let Some((before, signed)) = said.split_at_checked(cut) else {
            return false;
        };
        let signed = json!({"text": signed, "thoughtSignature": signature});
        match before.is_empty() {
            true => self.parts.truncate(self.parts.len() - 1),
            false => {
                last.insert("text".to_owned(), before.into());
            }
        }
        self.parts.push(signed);
        true
    }
}
