//! The fast path of plain answers: one look, and if nothing is wrong with one, its bytes go on as they came.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::translate::stream::{MAX_ROUND_BYTES, Settings, TextCalls};
use toolway_protocol::openai::FinishReason;

/// A completion as far as the fast path has to know it. Whatever does not fit goes the slow way.
#[derive(Deserialize)]
struct FastCompletion<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow)]
    object: &'a RawValue,
    #[expect(
        dead_code,
        reason = "a completion whose time is no whole number goes the slow way"
    )]
    created: u64,
    #[serde(borrow)]
    model: &'a RawValue,
    #[serde(borrow)]
    choices: [CompletionChoice<'a>; 1],
    #[serde(default)]
    usage: Option<CompletionUsage>,
    #[serde(default)]
    error: Option<IgnoredAny>,
    /// Only an error has one.
    #[serde(default, rename = "type")]
    kind: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct CompletionChoice<'a> {
    index: u64,
    #[serde(borrow)]
    message: CompletionMessage<'a>,
    #[serde(borrow)]
    finish_reason: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "crate::translate::present")]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "crate::translate::present")]
    delta: Option<&'a RawValue>,
}

/// The members of a message that the fast path takes; any other makes it fail.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompletionMessage<'a> {
    #[serde(borrow)]
    role: &'a RawValue,
    #[serde(borrow)]
    content: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "crate::translate::present")]
    refusal: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning: Option<&'a RawValue>,
    #[serde(default)]
    #[expect(dead_code, reason = "read so that it is no unknown member")]
    annotations: Option<IgnoredAny>,
    #[serde(default)]
    audio: Option<IgnoredAny>,
    #[serde(default)]
    tool_calls: Option<IgnoredAny>,
    #[serde(default)]
    function_call: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "a completion that lacks one goes the slow way")]
struct CompletionUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

/// Nothing is to be mended in this completion.
pub(super) fn is_clean(body: &[u8], settings: &Settings) -> bool {
    look(body, settings).is_some()
}

/// How a completion ends that is the whole answer of a tool loop: nothing is to be mended in it, nothing to be added,
/// and it calls nothing.
pub fn final_answer(body: &[u8], settings: &Settings) -> Option<FinishReason> {
    let fast_path = look(body, settings)?;
    let [choice] = &fast_path.choices;
    // A longer body may be too long a round; the full reader decides.
    let is_complete = body.len() <= MAX_ROUND_BYTES
        && choice.index == 0
        && choice.message.content.get().starts_with('"')
        && choice
            .message
            .refusal
            .is_some_and(|refusal| refusal.get() == "null")
        && choice.logprobs.is_some()
        && fast_path.usage.is_some();
    is_complete.then(|| FinishReason::from_foreign(choice.finish_reason.get().trim_matches('"')))
}

fn look<'a>(body: &'a [u8], settings: &Settings) -> Option<FastCompletion<'a>> {
    let reads_text = settings.think_tags || settings.text_calls != TextCalls::default();
    if reads_text || has_escaped_surrogates(body) {
        return None;
    }
    let fast_path: FastCompletion<'a> =
        serde_json::from_str(std::str::from_utf8(body).ok()?).ok()?;
    fast_path.is_clean().then_some(fast_path)
}

/// Made once, since that takes longer than to search a short body.
static ESCAPES: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\\u"));

/// Halves of a pair may be missing, which only a closer look tells.
fn has_escaped_surrogates(body: &[u8]) -> bool {
    ESCAPES
        .find_iter(body)
        .any(|at| matches!(body.get(at + 2), Some(b'd' | b'D')))
}

impl FastCompletion<'_> {
    fn is_clean(&self) -> bool {
        let [choice] = &self.choices;
        let message = &choice.message;
        let is_text = |raw: &RawValue| raw.get().starts_with('"');
        let is_said = |raw: &RawValue| is_text(raw) || raw.get() == "null";
        let texts = [
            message.refusal,
            message.reasoning_content,
            message.reasoning,
        ];
        is_text(self.id)
            && is_text(self.model)
            && self.object.get() == r#""chat.completion""#
            && self.error.is_none()
            && self.kind.is_none()
            && choice.delta.is_none()
            && message.role.get() == r#""assistant""#
            && is_said(message.content)
            && texts.into_iter().flatten().all(is_said)
            && message.audio.is_none()
            && message.tool_calls.is_none()
            && message.function_call.is_none()
            && matches!(
                choice.finish_reason.get(),
                r#""stop""# | r#""length""# | r#""content_filter""#
            )
    }
}

#[cfg(test)]
mod tests;
