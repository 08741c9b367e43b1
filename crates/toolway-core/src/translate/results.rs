//! What came of a call, as the tool message the model reads.
//!
//! A tool message takes text only: pictures and sound become a line of text and, where the upstream takes
//! them, parts of a user message that follows. Base64 never gets into the text.

use serde_json::{Value, json};

use self::blocks::Blocks;
use super::cut;
use toolway_protocol::tool::ToolResult;

mod blocks;
mod errors;
pub(super) mod plain;

pub use self::errors::{to_openai as error_to_openai, to_text as error_to_text};

/// How the line ends that stands in a result for each of its parts in the user message.
pub(super) const ANNOUNCED: &str = "in the message below]";

/// What the upstream takes besides text, in user messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// `image_url` parts.
    pub images: bool,
    /// `input_audio` parts.
    pub audio: bool,
}

/// A result as the model gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolMessage {
    /// The content of the tool message; never empty.
    pub text: String,
    /// What was cut off, where the limit made that necessary.
    pub cut: Option<CutResult>,
    /// Content parts for a user message that follows all tool messages of the turn.
    pub parts: Vec<Value>,
}

/// A text that was longer than the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutResult {
    /// The whole text.
    pub full: String,
    /// How many of its bytes the model was shown. 0 <= shown < full.len(), between two characters.
    pub shown: usize,
}

/// Writes a result for the model, with at most `limit` bytes of text.
///
/// A text over the limit is cut between two characters, and what `more` says, given the bytes shown and the
/// bytes there are, stands on a line of its own at the end, within the limit if that has room for it at all;
/// [`cut_off`] is a plain one. What a tool itself calls an error becomes `{"error": {"type": "tool_error", …}}`;
/// the limit then holds for the message before it is written as JSON.
pub fn to_openai(
    result: &ToolResult,
    limit: usize,
    media: Media,
    more: impl Fn(usize, usize) -> String,
) -> ToolMessage {
    let Blocks { text: full, parts } = Blocks::read(result, media);
    let (text, cut) = match shorten(&full, limit, more) {
        None => (full, None),
        Some((text, shown)) => (text, Some(CutResult { full, shown })),
    };
    let text = if result.is_error {
        json!({"error": {"type": "tool_error", "message": text}}).to_string()
    } else {
        text
    };
    ToolMessage { text, cut, parts }
}

/// The plain statement at the end of a text that was cut.
pub fn cut_off(shown: usize, total: usize) -> String {
    format!("[cut: {shown} of {total} bytes shown]")
}

/// The text cut to the limit, the statement at its end included, and how much of it is shown.
fn shorten(
    full: &str,
    limit: usize,
    more: impl Fn(usize, usize) -> String,
) -> Option<(String, usize)> {
    if full.len() <= limit {
        return None;
    }
    let room = limit.saturating_sub(more(limit, full.len()).len() + 1);
    let start = cut::at_most(full, room);
    let shown = start.len();
    Some((format!("{start}\n{}", more(shown, full.len())), shown))
}

/// A piece of a long text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<'t> {
    /// The piece.
    pub text: &'t str,
    /// Where it begins, in bytes; between two characters.
    pub offset: usize,
    /// Where the next one begins; `None` at the end.
    pub next: Option<usize>,
}

/// Reads on in a text that was cut: about `limit` bytes from `offset` on.
///
/// Both ends lie between two characters, and a page that is not the last holds at least one of them,
/// so that reading on comes to an end with any limit. An offset past the end gives an empty last page.
pub fn page(full: &str, offset: usize, limit: usize) -> Page<'_> {
    let offset = cut::boundary(full, offset);
    let rest = &full[offset..];
    let first = rest.chars().next().map_or(0, char::len_utf8);
    let text = cut::at_most(rest, limit.max(first));
    let end = offset + text.len();
    Page {
        text,
        offset,
        next: (end < full.len()).then_some(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolway_protocol::tool::Content;

    #[track_caller]
    fn check_cut(full: &str, limit: usize, expected: &str) {
        let message = to_openai(&ToolResult::text(full), limit, Media::default(), cut_off);
        assert_eq!(message.text, expected);
        let shown = message.cut.map(|cut| cut.shown);
        assert_eq!(
            shown.is_some(),
            full.len() > limit,
            "cut only over the limit"
        );
    }

    #[test]
    fn a_text_at_the_limit_is_left_alone() {
        check_cut("abcde", 5, "abcde");
    }

    #[test]
    fn a_text_over_the_limit_is_cut_and_says_so_within_the_limit() {
        let full = "x".repeat(100);
        check_cut(
            &full,
            50,
            &format!("{}\n[cut: 21 of 100 bytes shown]", "x".repeat(21)),
        );
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        let full = "é".repeat(100);
        check_cut(
            &full,
            50,
            &format!("{}\n[cut: 20 of 200 bytes shown]", "é".repeat(10)),
        );
    }

    #[test]
    fn a_limit_that_has_no_room_for_the_statement_shows_the_statement_only() {
        check_cut("abcdef", 3, "\n[cut: 0 of 6 bytes shown]");
    }

    #[test]
    fn an_error_of_the_tool_is_json_even_when_it_is_cut() {
        let result = ToolResult {
            is_error: true,
            ..ToolResult::text("\"q\" ".repeat(100))
        };
        let message = to_openai(&result, 40, Media::default(), cut_off);
        let value: Value = serde_json::from_str(&message.text).unwrap();
        assert_eq!(value["error"]["type"], "tool_error");
        assert_eq!(
            value["error"]["message"],
            "\"q\" \"q\" \"q\"\n[cut: 11 of 400 bytes shown]"
        );
    }

    #[test]
    fn pages_put_together_are_the_whole_text() {
        let full = "aé€😀".repeat(7);
        for limit in 0..10 {
            let (mut read, mut at) = (String::new(), Some(0));
            while let Some(offset) = at {
                let page = page(&full, offset, limit);
                read.push_str(page.text);
                at = page.next;
            }
            assert_eq!(read, full, "limit {limit}");
        }
    }

    #[test]
    fn an_offset_past_the_end_gives_an_empty_last_page() {
        assert_eq!(
            page("abc", 99, 10),
            Page {
                text: "",
                offset: 3,
                next: None
            }
        );
    }

    #[test]
    fn no_base64_gets_into_the_text() {
        let data = "QUJD".repeat(1000);
        let image = |mime_type: &str| Content::Image {
            mime_type: mime_type.into(),
            data: data.clone(),
        };
        let result = ToolResult {
            content: vec![
                image("image/png"),
                image("nonsense"),
                Content::Audio {
                    mime_type: "audio/wav".into(),
                    data: data.clone(),
                },
                Content::BlobResource {
                    uri: "a:b".into(),
                    mime_type: None,
                    blob: data.clone(),
                },
                Content::Unknown(json!({"type": "video", "data": data})),
            ],
            ..ToolResult::default()
        };
        for media in [
            Media::default(),
            Media {
                images: true,
                audio: true,
            },
        ] {
            let message = to_openai(&result, 1 << 20, media, cut_off);
            assert!(!message.text.contains("QUJDQUJD"), "{}", message.text);
        }
    }
}
