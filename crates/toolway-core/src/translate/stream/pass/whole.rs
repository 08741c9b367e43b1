//! One choice of a plain answer, mended by the same rules as a stream.

use serde_json::Value;

use super::choice::Choice;
use crate::translate::{
    ids::Ids,
    stream::{
        Known, MessageContent, REASONING, Settings, StreamError, arguments::Arguments,
        chunk::add_text, take_delta,
    },
};
use toolway_protocol::{
    openai::{self, FinishReason},
    tool::JsonObject,
};

/// Mends one choice of a plain answer in the same way.
pub(crate) fn mend_whole(
    choice: &mut JsonObject,
    at: usize,
    settings: &Settings,
    known: &dyn Known,
    ids: &mut Ids,
) -> Result<(), StreamError> {
    if choice.get("index").and_then(Value::as_u64).is_none() {
        choice.insert("index".to_owned(), at.into());
    }
    let mut state = Choice::new(settings);
    let mut message = take_delta(choice);
    let indexed = message.get("tool_calls").is_some_and(|calls| {
        calls
            .get(0)
            .is_some_and(|first| first.get("index").is_some())
    });
    if let Some(list) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        let calls = list.iter_mut().filter_map(Value::as_object_mut).enumerate();
        calls.for_each(|(place, call)| {
            call.insert("index".to_owned(), place.into());
        });
    }
    if settings.think_tags
        && let Some(content) = message.get_mut("content")
    {
        let mut whole = MessageContent::read(content.take());
        whole.open_thoughts();
        *content = whole.text.into();
        if !whole.reasoning.is_empty() {
            add_text(&mut message, REASONING[0], &whole.reasoning);
        }
    }
    state.mend_delta(&mut message, ids, known)?;
    if choice
        .get("finish_reason")
        .and_then(Value::as_str)
        .is_none_or(openai::is_no_reason)
    {
        if !state.says_something {
            return Err(StreamError::Ended);
        }
        choice.insert(
            "finish_reason".to_owned(),
            FinishReason::Stop.as_str().into(),
        );
    }
    state.mend_finish(choice, &mut message, ids, known)?;
    if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        calls
            .iter_mut()
            .filter_map(Value::as_object_mut)
            .for_each(|call| whole_call(call, indexed));
    }
    if let Some(Value::Object(body)) = message.get_mut("function_call") {
        whole_arguments(body);
    }
    if message.get("role").is_none_or(|role| !role.is_string()) {
        message.insert("role".to_owned(), "assistant".into());
    }
    message.entry("content").or_insert(Value::Null);
    choice.insert("message".to_owned(), Value::Object(message));
    Ok(())
}

fn whole_call(call: &mut JsonObject, indexed: bool) {
    if !indexed {
        call.shift_remove("index");
    }
    if let Some(Value::Object(body)) = call.get_mut("function") {
        whole_arguments(body);
    }
}

/// Makes a text of the arguments of a whole call; one that is there, and not two values, stays.
fn whole_arguments(body: &mut JsonObject) {
    let mut arguments = Arguments::default();
    let member = body.get("arguments").unwrap_or(&Value::Null);
    if member == "" {
        return;
    }
    arguments.push(member);
    arguments.close();
    body.insert("arguments".to_owned(), arguments.into_text().into());
}
