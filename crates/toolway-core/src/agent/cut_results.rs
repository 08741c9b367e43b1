//! Results that were cut, kept for a while so that the model can read on in them with a tool of toolway's own.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::translate::{calls, results};
use toolway_protocol::tool::CallError;

/// The name under which the model can read on in a result that was cut.
pub const READ_MORE: &str = "toolway__read_more";

/// Most bytes of cut results that one request keeps.
const MAX_BYTES: usize = 32 << 20;

/// The full texts of results that were cut, by the id that the model was told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CutResults {
    texts: HashMap<String, Arc<str>>,
    bytes: usize,
}

impl CutResults {
    /// There is nothing to read on in.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// How long all texts are together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A text of this length can be kept.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes.saturating_add(bytes) <= MAX_BYTES
    }

    /// An id for the result of the call with this id. Some upstreams count their ids from `call_1` in every
    /// turn, and a result must not take the place of another.
    pub fn free_id(&self, call: &str) -> String {
        let numbered = (2..).map(|n| format!("{call}-{n}"));
        std::iter::once(call.to_owned())
            .chain(numbered)
            .find(|id| !self.texts.contains_key(id))
            .unwrap_or_default()
    }

    /// Keeps a text, if there is room for it; another one with this id goes.
    pub fn keep(&mut self, id: String, full: impl Into<Arc<str>>) {
        let full = full.into();
        if self.has_room_for(full.len()) {
            self.bytes += full.len();
            let before = self.texts.insert(id, full);
            self.bytes -= before.map_or(0, |before| before.len());
        }
    }

    /// Keeps what an earlier request has kept.
    pub fn keep_all(&mut self, other: &CutResults) {
        for (id, full) in &other.texts {
            self.keep(id.clone(), full.clone());
        }
    }

    /// Answers a call of [`READ_MORE`] with about `limit` bytes.
    pub fn read_more(&self, arguments: &str, limit: usize) -> Result<String, CallError> {
        let arguments = calls::parse_arguments(arguments)?;
        let id = arguments.get("id").and_then(Value::as_str);
        let id = id.ok_or_else(|| wrong("/id", "a text is needed"))?;
        let offset = match arguments.get("offset") {
            None => Some(0),
            Some(offset) => offset.as_u64(),
        };
        let offset = offset.ok_or_else(|| wrong("/offset", "a whole number is needed"))?;
        let full = self.texts.get(id);
        let full = full.ok_or_else(|| wrong("/id", "no cut result has this id"))?;
        let page = results::page(full, usize::try_from(offset).unwrap_or(usize::MAX), limit);
        Ok(match page.next {
            Some(next) => format!("{}\n{}", page.text, more(id, next, full.len())),
            // A tool message is never empty.
            None if page.text.is_empty() => format!("[the end: there are {} bytes]", full.len()),
            None => page.text.to_owned(),
        })
    }
}

/// The tail of a cut result: what is shown of it, and how to read on.
pub fn more(id: &str, next: usize, total: usize) -> String {
    let arguments = json!({"id": id, "offset": next});
    format!(
        "[cut: {next} of {total} bytes are shown; call {READ_MORE} with {arguments} to read on]"
    )
}

/// [`READ_MORE`] as an entry of OpenAI's `tools`.
pub fn read_more_tool() -> &'static str {
    static TOOL: LazyLock<String> = LazyLock::new(|| {
        let description = "Reads on in a tool result that was too long to be shown at once.";
        let parameters = schema();
        let function =
            json!({"name": READ_MORE, "description": description, "parameters": parameters});
        json!({"type": "function", "function": function}).to_string()
    });
    &TOOL
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The id given where the result was cut."},
            "offset": {"type": "integer", "minimum": 0, "description": "The byte to read on from."},
        },
        "required": ["id", "offset"],
    })
}

fn wrong(path: &str, message: &str) -> CallError {
    CallError::InvalidParams {
        path: path.to_owned(),
        message: message.to_owned(),
        input_schema: schema(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut_results() -> CutResults {
        let mut cut_results = CutResults::default();
        cut_results.keep("c".to_owned(), "abcdefgh");
        cut_results
    }

    #[track_caller]
    fn check(arguments: &str, expected: &str) {
        let read = cut_results().read_more(arguments, 3);
        assert_eq!(read.as_deref(), Ok(expected), "{arguments}");
    }

    #[track_caller]
    fn check_wrong(arguments: &str, at: &str) {
        match cut_results().read_more(arguments, 3) {
            Err(CallError::InvalidParams { path, .. }) => assert_eq!(path, at, "{arguments}"),
            other => panic!("{arguments}: {other:?}"),
        }
    }

    #[test]
    fn a_page_says_how_to_read_on_and_the_last_does_not() {
        let tail = "call toolway__read_more with";
        check(
            r#"{"id":"c","offset":0}"#,
            &format!(
                "abc\n[cut: 3 of 8 bytes are shown; {tail} {{\"id\":\"c\",\"offset\":3}} to read on]"
            ),
        );
        check(r#"{"id":"c","offset":6}"#, "gh");
    }

    #[test]
    fn an_offset_that_is_missing_is_the_start_and_one_past_the_end_is_the_end() {
        assert!(
            cut_results()
                .read_more(r#"{"id":"c"}"#, 3)
                .unwrap()
                .starts_with("abc\n")
        );
        check(r#"{"id":"c","offset":8}"#, "[the end: there are 8 bytes]");
        check(
            r#"{"id":"c","offset":18446744073709551615}"#,
            "[the end: there are 8 bytes]",
        );
    }

    #[test]
    fn wrong_ids_and_offsets_are_named() {
        check_wrong("{}", "/id");
        check_wrong(r#"{"id":7}"#, "/id");
        check_wrong(r#"{"id":"other"}"#, "/id");
        check_wrong(r#"{"id":"c","offset":-1}"#, "/offset");
        check_wrong(r#"{"id":"c","offset":1.5}"#, "/offset");
        check_wrong(r#"{"id":"c","offset":"3"}"#, "/offset");
        assert!(cut_results().read_more("{", 3).is_err());
    }

    #[test]
    fn a_result_never_takes_the_place_of_another() {
        let cut_results = cut_results();
        assert_eq!(cut_results.free_id("d"), "d");
        assert_eq!(cut_results.free_id("c"), "c-2");
    }

    #[test]
    fn of_two_requests_with_the_same_id_the_later_counts() {
        let mut cut_results = cut_results();
        let mut later = CutResults::default();
        later.keep("c".to_owned(), "later");
        later.keep("d".to_owned(), "more");
        cut_results.keep_all(&later);
        assert_eq!(
            cut_results
                .read_more(r#"{"id":"c","offset":3}"#, 9)
                .as_deref(),
            Ok("er")
        );
        assert_eq!(cut_results.bytes(), 9);
    }

    #[test]
    fn what_there_is_no_room_for_is_not_kept() {
        let mut cut_results = cut_results();
        assert!(cut_results.has_room_for(MAX_BYTES - 8));
        assert!(!cut_results.has_room_for(MAX_BYTES - 7));
        cut_results.keep("big".to_owned(), "x".repeat(MAX_BYTES));
        assert_eq!(cut_results.bytes(), 8);
    }
}
