//! The fast path: one look at a chunk, and if nothing is wrong with it, its bytes go on as they came.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use super::{ChatStream, Mode, StreamError, identity::Identity, write_raw};
use toolway_protocol::{
    sse::{EventPattern, Framer, SseEvent},
    tool::JsonObject,
};

/// A chunk as far as the fast path has to know it. Whatever does not fit goes the slow way.
#[derive(Debug, Deserialize)]
pub(super) struct FastChunk<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow)]
    object: ChunkText<'a>,
    #[serde(borrow)]
    created: &'a RawValue,
    #[serde(borrow)]
    model: &'a RawValue,
    #[serde(borrow)]
    choices: [ChunkChoice<'a>; 1],
    /// Random letters that hide the length of the text.
    #[serde(borrow, default)]
    obfuscation: Option<&'a RawValue>,
    #[serde(default)]
    usage: Option<de::IgnoredAny>,
    #[serde(default)]
    error: Option<de::IgnoredAny>,
    /// Only an error has one.
    #[serde(default, rename = "type")]
    kind: Option<de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct ChunkChoice<'a> {
    index: u64,
    #[serde(borrow)]
    delta: ChunkDelta<'a>,
    #[serde(default)]
    finish_reason: Option<de::IgnoredAny>,
    #[serde(default)]
    message: Option<de::IgnoredAny>,
}

/// The members of a delta that the fast path takes; any other makes it fail.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChunkDelta<'a> {
    #[serde(borrow, default, deserialize_with = "crate::translate::present")]
    role: Option<Option<ChunkText<'a>>>,
    #[serde(borrow, default)]
    content: Option<ChunkText<'a>>,
    #[serde(borrow, default)]
    refusal: Option<ChunkText<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<ChunkText<'a>>,
    #[serde(borrow, default)]
    reasoning: Option<ChunkText<'a>>,
    #[serde(default)]
    tool_calls: Option<de::IgnoredAny>,
    #[serde(default)]
    function_call: Option<de::IgnoredAny>,
}

/// A text, borrowed from the chunk where it has no escapes.
#[derive(Debug)]
struct ChunkText<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for ChunkText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChunkText<'a>, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = ChunkText<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<ChunkText<'de>, E> {
                Ok(ChunkText(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<ChunkText<'de>, E> {
                Ok(ChunkText(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl<'a> FastChunk<'a> {
    /// Looks at a chunk. `None` if anything in it is not the plainest form of the contract.
    pub(super) fn of(data: &'a str) -> Option<FastChunk<'a>> {
        let fast_path: FastChunk<'a> = serde_json::from_str(data).ok()?;
        fast_path.is_clean().then_some(fast_path)
    }

    fn is_clean(&self) -> bool {
        let [choice] = &self.choices;
        let created = self.created.get();
        let whole_number = created.len() < 20 && created.bytes().all(|b| b.is_ascii_digit());
        let text = |raw: &RawValue| raw.get().len() > 2 && raw.get().starts_with('"');
        self.object.0 == "chat.completion.chunk"
            && text(self.id)
            && text(self.model)
            && whole_number
            && self.error.is_none()
            && self.kind.is_none()
            && choice.finish_reason.is_none()
            && choice.message.is_none()
            && choice.delta.tool_calls.is_none()
            && choice.delta.function_call.is_none()
            && match &choice.delta.role {
                None => true,
                Some(role) => role.as_ref().is_some_and(|role| role.0 == "assistant"),
            }
    }

    fn delta(&self) -> &ChunkDelta<'a> {
        &self.choices[0].delta
    }

    /// The place of the choice.
    pub(super) fn choice(&self) -> u64 {
        self.choices[0].index
    }

    /// The text of the delta.
    pub(super) fn content(&self) -> &str {
        self.delta().content.as_ref().map_or("", |text| &text.0)
    }

    /// The delta holds something of an answer, and not only thoughts.
    pub(super) fn says_something(&self) -> bool {
        let refusal = self.delta().refusal.as_ref();
        !self.content().is_empty() || refusal.is_some_and(|text| !text.0.is_empty())
    }

    /// What the chunks look like that have another text and are the same otherwise.
    fn pattern(&self, event: &SseEvent) -> Option<EventPattern> {
        let ChunkDelta {
            role: None,
            content: Some(ChunkText(Cow::Borrowed(text))),
            refusal: None,
            reasoning_content: None,
            reasoning: None,
            ..
        } = self.delta()
        else {
            return None;
        };
        let noise = self.obfuscation.map(RawValue::get);
        EventPattern::of(event, text, noise.as_slice())
    }

    /// Token counts are there.
    pub(super) fn counts(&self) -> bool {
        self.usage.is_some()
    }

    /// `id`, `created` and `model`, as JSON.
    fn identity(&self) -> [&'a RawValue; 3] {
        [self.id, self.created, self.model]
    }
}

/// The settled identity as JSON, to be compared and written without another look.
#[derive(Clone, Debug, Default)]
pub(super) struct Pinned([String; 3]);

impl Pinned {
    pub(super) fn of(identity: &Identity) -> Option<Pinned> {
        let text = |text: &Option<String>| serde_json::to_string(text.as_ref()?).ok();
        Some(Pinned([
            text(&identity.id)?,
            identity.created?.to_string(),
            text(&identity.model)?,
        ]))
    }
}

impl ChatStream {
    /// Passes a clean chunk on in a loop: as it came, or with another identity put into its bytes.
    /// False if it has to go the slow way; nothing was read of it then.
    pub(super) fn forward(
        &mut self,
        fast_path: &FastChunk<'_>,
        event: &SseEvent,
        data: &str,
        out: &mut Vec<u8>,
    ) -> Result<bool, StreamError> {
        let delta = fast_path.delta();
        let role_fits = delta.role.is_some() != self.role_shown;
        let filter_waits = !self.round.filter.lets_through(fast_path.content());
        let one_line = event.is_plain() || !data.contains('\n');
        if !one_line
            || !self.early.is_empty()
            || fast_path.choice() != 0
            || fast_path.counts()
            || !role_fits
            || filter_waits
        {
            return Ok(false);
        }
        self.settle(fast_path);
        let (content, refusal) = (&delta.content, &delta.refusal);
        if let Some(text) = content {
            self.round.add_content(&text.0)?;
        }
        if let Some(text) = refusal {
            self.round.add_refusal(&text.0)?;
        }
        match (&delta.reasoning_content, &delta.reasoning) {
            (Some(text), _) => self.round.add_reasoning("reasoning_content", &text.0)?,
            (None, Some(text)) => self.round.add_reasoning("reasoning", &text.0)?,
            (None, None) => {}
        }
        self.role_shown = true;
        let same = fast_path
            .identity()
            .iter()
            .zip(&self.pinned.0)
            .all(|(is, pin)| is.get() == pin);
        if same && event.is_plain() {
            write_raw(event.raw(), out);
            self.learn(fast_path, event);
        } else {
            self.splice(fast_path, data, out);
        }
        Ok(true)
    }

    /// Reads the framer's next event, if it differs from a chunk that went on as it came in its text alone, and appends it
    /// to `out`. False if [`push`](ChatStream::push) has to read the next event.
    pub(super) fn push_alike(
        &mut self,
        framer: &mut Framer,
        out: &mut Vec<u8>,
    ) -> Result<bool, StreamError> {
        if self.round.done || self.over {
            return Ok(false);
        }
        let Some((raw, text)) = self.alike.peek(framer) else {
            return Ok(false);
        };
        match self.settings.mode {
            Mode::Loop => {
                if !self.round.filter.lets_through(&text) {
                    return Ok(false);
                }
                self.round.add_content(&text)?;
            }
            Mode::PassThrough => {
                if !self.lets_through(self.alike_choice, &text)? {
                    return Ok(false);
                }
                self.release(out);
            }
        }
        out.extend_from_slice(raw);
        let length = raw.len();
        framer.skip(length);
        Ok(true)
    }

    /// Keeps what a chunk looks like that went on as it came.
    pub(super) fn learn(&mut self, fast_path: &FastChunk<'_>, event: &SseEvent) {
        if event.is_plain() {
            let choice = &mut self.alike_choice;
            self.alike.learn(|| {
                let pattern = fast_path.pattern(event)?;
                *choice = fast_path.choice();
                Some(pattern)
            });
        }
    }

    /// Settles the identity of the answer, if this is its first chunk.
    pub(super) fn settle(&mut self, fast_path: &FastChunk<'_>) {
        if !self.pinned.0[0].is_empty() {
            return;
        }
        let value = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or_default();
        let [id, created, model] = fast_path.identity().map(value);
        let members = [("id", id), ("created", created), ("model", model)];
        let chunk: JsonObject = members
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        self.identity.pin(&chunk);
        self.identity.fill(&self.settings, &mut self.shown.ids);
        self.pinned = Pinned::of(&self.identity).unwrap_or_default();
    }

    /// Writes a chunk with the settled identity in the place of its own, every other byte as it came.
    fn splice(&self, fast_path: &FastChunk<'_>, data: &str, out: &mut Vec<u8>) {
        let start = data.as_ptr() as usize;
        let mut places = [0, 1, 2].map(|at| {
            let raw = fast_path.identity()[at].get();
            (
                raw.as_ptr() as usize - start,
                raw.len(),
                self.pinned.0[at].as_str(),
            )
        });
        places.sort_unstable();
        out.extend_from_slice(b"data: ");
        let mut from = 0;
        for (at, length, pin) in places {
            out.extend_from_slice(&data.as_bytes()[from..at]);
            out.extend_from_slice(pin.as_bytes());
            from = at + length;
        }
        out.extend_from_slice(&data.as_bytes()[from..]);
        out.extend_from_slice(b"\n\n");
    }
}
