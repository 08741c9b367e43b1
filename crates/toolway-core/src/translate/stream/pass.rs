//! An answer that passes through: what is right goes on byte for byte, and what breaks the contract is
//! mended where it can be read in one way only.

mod choice;
mod whole;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use self::choice::Choice;
pub(crate) use self::whole::mend_whole;
use super::{
    ChatStream, Known, Round, Settings, StreamError, fast_path::FastChunk, identity,
    round::RoundReader, write_event, write_raw,
};
use toolway_protocol::{openai::FinishReason, sse::SseEvent, tool::JsonObject};

/// Most choices that are taken in one answer; the contract allows 128.
const MAX_CHOICES: usize = 256;

/// What is kept of an answer while it passes through.
#[derive(Debug, Default)]
pub(super) struct Pass {
    choices: BTreeMap<u64, Choice>,
    /// `[DONE]` went out.
    pub(super) done_shown: bool,
    /// The last chunk, which waits for the next event.
    held: Option<Box<HeldChunk>>,
}

/// A chunk that begins a call with `{}` for arguments: the next event tells whether that was meant.
#[derive(Debug)]
struct HeldChunk {
    bytes: Vec<u8>,
    chunk: JsonObject,
    choice: u64,
    place: usize,
}

impl Pass {
    fn choice(&mut self, index: u64, settings: &Settings) -> Result<&mut Choice, StreamError> {
        if self.choices.len() >= MAX_CHOICES && !self.choices.contains_key(&index) {
            return Err(StreamError::TooLarge);
        }
        Ok(self
            .choices
            .entry(index)
            .or_insert_with(|| Choice::new(settings)))
    }

    /// The call in this chunk, if any, whose arguments are `{}` and no more so far.
    fn new_placeholder(&self, chunk: &JsonObject) -> Option<(u64, usize)> {
        let choices = chunk.get("choices")?.as_array()?;
        choices.iter().find_map(|choice| {
            let index = choice.get("index")?.as_u64()?;
            let state = self.choices.get(&index).filter(|state| !state.finished)?;
            let calls = choice.get("delta")?.get("tool_calls")?.as_array()?;
            calls.iter().find_map(|call| {
                let place = usize::try_from(call.get("index")?.as_u64()?).ok()?;
                let says = call.get("function")?.get("arguments")?.as_str()?;
                let waits = says.contains('{') && state.calls.is_placeholder(place);
                waits.then_some((index, place))
            })
        })
    }
}

impl ChatStream {
    /// Passes a clean chunk on. False if it has to be looked at more closely.
    pub(super) fn pass_on(
        &mut self,
        fast_path: &FastChunk<'_>,
        event: &SseEvent,
        out: &mut Vec<u8>,
    ) -> Result<bool, StreamError> {
        let choice = self.pass.choice(fast_path.choice(), &self.settings)?;
        if fast_path.counts() || !choice.filter.lets_through(fast_path.content()) {
            return Ok(false);
        }
        choice.says_something |= fast_path.says_something();
        self.settle(fast_path);
        self.release(out);
        write_raw(event.raw(), out);
        self.learn(fast_path, event);
        Ok(true)
    }

    /// A text of this choice, coming next, is text and nothing else.
    pub(super) fn lets_through(&mut self, choice: u64, text: &str) -> Result<bool, StreamError> {
        let choice = self.pass.choice(choice, &self.settings)?;
        let is_text = choice.filter.lets_through(text);
        choice.says_something |= is_text && !text.is_empty();
        Ok(is_text)
    }

    /// Looks at every part of a chunk, and passes it on mended if anything was wrong, as it came if not.
    pub(super) fn pass_chunk(
        &mut self,
        mut chunk: JsonObject,
        event: &SseEvent,
        known: &dyn Known,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamError> {
        self.identity.pin(&chunk);
        self.round.read_usage(chunk.get("usage").cloned());
        let before = chunk.clone();
        self.mend_envelope(&mut chunk);
        let choices = match chunk.get_mut("choices") {
            Some(Value::Array(choices)) => std::mem::take(choices),
            Some(choice @ Value::Object(_)) => vec![choice.take()],
            _ => Vec::new(),
        };
        let several = !choices.is_empty();
        let mut mended = Vec::new();
        for (at, choice) in choices.into_iter().enumerate() {
            if let Value::Object(choice) = choice {
                mended.extend(self.mend_choice(choice, at, known)?);
            }
        }
        let emptied = several && mended.is_empty() && chunk.get("usage").is_none_or(Value::is_null);
        chunk.insert("choices".to_owned(), Value::Array(mended));
        let mut bytes = Vec::new();
        if chunk == before {
            write_raw(event.raw(), &mut bytes);
        } else if !emptied {
            write_event(&Value::Object(chunk.clone()), &mut bytes);
        }
        self.release(out);
        match self.pass.new_placeholder(&chunk) {
            Some((choice, place)) => {
                self.pass.held = Some(Box::new(HeldChunk {
                    bytes,
                    chunk,
                    choice,
                    place,
                }));
            }
            None => out.extend_from_slice(&bytes),
        }
        Ok(())
    }

    /// Lets a chunk go that was held because of its `{}`; without it, if that was not meant.
    pub(super) fn release(&mut self, out: &mut Vec<u8>) {
        let Some(mut held) = self.pass.held.take() else {
            return;
        };
        let choice = self.pass.choices.get(&held.choice);
        if choice.is_none_or(|choice| !choice.calls.was_placeholder(held.place)) {
            return out.extend_from_slice(&held.bytes);
        }
        if let Some(body) = body_of_call(&mut held.chunk, held.choice, held.place) {
            body.insert("arguments".to_owned(), "".into());
        }
        write_event(&Value::Object(held.chunk), out);
    }

    /// Fills in `id`, `object`, `created` and `model`, or sets their types right.
    fn mend_envelope(&mut self, chunk: &mut JsonObject) {
        let whole = |chunk: &JsonObject| {
            chunk.get("id").is_some_and(Value::is_string)
                && chunk.get("object").is_some_and(Value::is_string)
                && chunk.get("created").is_some_and(Value::is_u64)
                && chunk.get("model").is_some_and(Value::is_string)
        };
        if whole(chunk) {
            return;
        }
        self.identity.fill(&self.settings, &mut self.shown.ids);
        let own = self
            .identity
            .envelope("chat.completion.chunk", JsonObject::new());
        mend_envelope(chunk, own);
    }

    /// Mends one choice of a chunk; `None` if nothing is left that says anything.
    fn mend_choice(
        &mut self,
        mut choice: JsonObject,
        at: usize,
        known: &dyn Known,
    ) -> Result<Option<Value>, StreamError> {
        let index = choice
            .get("index")
            .and_then(Value::as_u64)
            .unwrap_or(at as u64);
        if choice.get("index").and_then(Value::as_u64).is_none() {
            choice.insert("index".to_owned(), index.into());
        }
        if let Some(message) = choice.shift_remove("message") {
            choice.entry("delta").or_insert(message);
        }
        let state = self.pass.choice(index, &self.settings)?;
        let ids = &mut self.shown.ids;
        let had_none = !choice.get("delta").is_some_and(Value::is_object);
        let mut delta = match choice.get_mut("delta") {
            Some(Value::Object(delta)) => std::mem::take(delta),
            _ => JsonObject::new(),
        };
        let told = delta.len();
        state.mend_delta(&mut delta, ids, known)?;
        let again = state.mend_finish(&mut choice, &mut delta, ids, known)?;
        let finishes = choice
            .get("finish_reason")
            .is_some_and(|reason| !reason.is_null());
        let silent = delta.is_empty() && !finishes && (again || told > 0 || had_none);
        choice.insert("delta".to_owned(), Value::Object(delta));
        Ok((!silent).then_some(Value::Object(choice)))
    }

    /// The upstream's own `[DONE]` goes on, unless a finish reason has to be put before it.
    pub(super) fn pass_done(&mut self, event: &SseEvent, out: &mut Vec<u8>) {
        self.release(out);
        let choices = &self.pass.choices;
        if !choices.is_empty() && choices.values().all(|choice| choice.finished) {
            write_raw(event.raw(), out);
            self.pass.done_shown = true;
        }
    }

    /// Ends the one round of an answer that passes through.
    pub(super) fn pass_end(
        &mut self,
        mut round: RoundReader,
        known: &dyn Known,
        out: &mut Vec<u8>,
    ) -> Result<Round, StreamError> {
        self.release(out);
        let ids = &mut self.shown.ids;
        let mut rest = Vec::new();
        for (index, choice) in &mut self.pass.choices {
            let mut delta = JsonObject::new();
            choice.flush(&mut delta, ids, known)?;
            if !delta.is_empty() {
                rest.push(json!({"index": index, "delta": delta, "finish_reason": null}));
            }
            if choice.finish.is_none() {
                choice.finish = match round.done && choice.says_something {
                    _ if choice.calls.are_whole() => Some(FinishReason::ToolCalls),
                    true if choice.calls.is_empty() => Some(FinishReason::Stop),
                    _ => None,
                };
            }
        }
        let broken_off = self
            .pass
            .choices
            .values()
            .any(|choice| choice.finish.is_none());
        if let Some(first) = self.pass.choices.get_mut(&0) {
            round.finish = first.finish;
            first.calls.set_ids(&first.ids);
            first.calls.drop_nameless();
            round.calls = std::mem::take(&mut first.calls);
        }
        if !rest.is_empty() {
            let mut chunk = self.envelope(JsonObject::new());
            chunk.insert("choices".to_owned(), Value::Array(rest));
            write_event(&Value::Object(chunk), out);
        }
        if broken_off {
            return Err(StreamError::Ended);
        }
        let finish = round.finish;
        let mut round = round.into_whole_round(known, &mut self.shown.ids)?;
        round.finish = finish.unwrap_or(round.finish);
        Ok(round)
    }

    /// Writes the finish reasons that the upstream left out.
    pub(super) fn pass_finish(&mut self, reason: FinishReason, out: &mut Vec<u8>) {
        let open = self
            .pass
            .choices
            .iter_mut()
            .filter(|(_, choice)| !choice.finished);
        let ends: Vec<Value> = open
            .map(|(index, choice)| {
                choice.finished = true;
                let reason = choice.finish.unwrap_or(reason).as_str();
                json!({"index": index, "delta": {}, "finish_reason": reason})
            })
            .collect();
        if !ends.is_empty() {
            let mut chunk = self.envelope(JsonObject::new());
            chunk.insert("choices".to_owned(), Value::Array(ends));
            write_event(&Value::Object(chunk), out);
        }
    }
}

/// Sets the four members that every chunk and completion has, where they are missing or of a wrong type.
pub(crate) fn mend_envelope(chunk: &mut JsonObject, own: JsonObject) {
    for (key, own) in own {
        let value = chunk.get(&key).unwrap_or(&Value::Null);
        let fits = if key == "created" {
            value.is_u64()
        } else {
            value.is_string()
        };
        if fits {
            continue;
        }
        let same = match key.as_str() {
            "created" => identity::seconds(value).map(Value::from),
            _ => identity::text(value).map(Value::from),
        };
        chunk.insert(key, same.unwrap_or(own));
    }
}

/// The `function` of one call in a chunk.
fn body_of_call(chunk: &mut JsonObject, choice: u64, place: usize) -> Option<&mut JsonObject> {
    let choices = chunk.get_mut("choices")?.as_array_mut()?;
    let choice = choices
        .iter_mut()
        .find(|one| one.get("index").is_some_and(|at| *at == choice))?;
    let calls = choice
        .get_mut("delta")?
        .get_mut("tool_calls")?
        .as_array_mut()?;
    let call = calls
        .iter_mut()
        .find(|call| call.get("index").is_some_and(|at| *at == place))?;
    call.get_mut("function")?.as_object_mut()
}
