//! The streams of `stream-N-Dms` in the APIs that are not chat completions, as their providers write them.
//!
//! The first chunk goes out with the events before it, and the last with those behind it, so that every stream has N pieces.

use bytes::Bytes;

/// An API of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Responses,
    Messages,
    Gemini,
}

impl Api {
    /// The API to which this path belongs.
    pub(crate) fn of(path: &str) -> Api {
        if path.ends_with("/responses") {
            Api::Responses
        } else if path.ends_with("/messages") {
            Api::Messages
        } else if path.ends_with(":streamGenerateContent") {
            Api::Gemini
        } else {
            Api::Chat
        }
    }
}

/// The model that a path of Gemini's names.
pub(crate) fn model_in_path(path: &str) -> Option<&str> {
    let (_, name) = path.rsplit_once('/')?;
    name.strip_suffix(":streamGenerateContent")
}

/// The whole of a streamed answer: what comes before its chunks, one chunk, and what comes behind them.
struct Parts {
    begin: String,
    /// With the number of the chunk, from 0.
    chunk: fn(usize) -> String,
    end: String,
}

/// `count` chunks with a word each.
pub(crate) fn word_events(api: Api, count: usize) -> Vec<Bytes> {
    let parts = match api {
        Api::Responses => responses(count),
        Api::Messages => messages(count),
        Api::Gemini => gemini(count),
        Api::Chat => return Vec::new(),
    };
    let mut events: Vec<String> = (0..count).map(parts.chunk).collect();
    if let Some(first) = events.first_mut() {
        first.insert_str(0, &parts.begin);
    }
    if let Some(last) = events.last_mut() {
        last.push_str(&parts.end);
    }
    events.into_iter().map(Bytes::from).collect()
}

/// An event with its name, which its data repeats; `members` begin with a comma if there are any.
fn event(name: &str, members: &str) -> String {
    format!("event: {name}\ndata: {{\"type\":\"{name}\"{members}}}\n\n")
}

const MESSAGE_ITEM: &str = r#""id":"msg_bench","type":"message","role":"assistant""#;

/// Events that the first delta of a response has before it.
const BEFORE_DELTAS: usize = 4;

fn responses(count: usize) -> Parts {
    let text = " word".repeat(count);
    let part = |text: &str| {
        format!(r#"{{"type":"output_text","annotations":[],"logprobs":[],"text":"{text}"}}"#)
    };
    let item = format!(
        r#"{{{MESSAGE_ITEM},"status":"completed","content":[{}]}}"#,
        part(&text)
    );
    let response = |status: &str, output: &str, usage: &str| {
        format!(
            r#","response":{{"id":"resp_bench","object":"response","created_at":1767225600,"status":"{status}","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"model":"bench","output":[{output}],"parallel_tool_calls":true,"previous_response_id":null,"reasoning":{{"effort":null,"summary":null}},"store":true,"temperature":1.0,"text":{{"format":{{"type":"text"}},"verbosity":"medium"}},"tool_choice":"auto","tools":[],"top_p":1.0,"truncation":"disabled","usage":{usage},"user":null,"metadata":{{}}}}"#
        )
    };
    let numbered = |name: &str, number: usize, members: &str| {
        event(name, &format!(r#","sequence_number":{number}{members}"#))
    };
    let begun = response("in_progress", "", "null");
    let begin = [
        numbered("response.created", 0, &begun),
        numbered("response.in_progress", 1, &begun),
        numbered(
            "response.output_item.added",
            2,
            &format!(
                r#","output_index":0,"item":{{{MESSAGE_ITEM},"status":"in_progress","content":[]}}"#
            ),
        ),
        numbered(
            "response.content_part.added",
            3,
            &format!(
                r#","content_index":0,"item_id":"msg_bench","output_index":0,"part":{}"#,
                part("")
            ),
        ),
    ];
    let at = BEFORE_DELTAS + count;
    let end = [
        numbered(
            "response.output_text.done",
            at,
            &format!(
                r#","content_index":0,"item_id":"msg_bench","logprobs":[],"output_index":0,"text":"{text}""#
            ),
        ),
        numbered(
            "response.content_part.done",
            at + 1,
            &format!(
                r#","content_index":0,"item_id":"msg_bench","output_index":0,"part":{}"#,
                part(&text)
            ),
        ),
        numbered(
            "response.output_item.done",
            at + 2,
            &format!(r#","output_index":0,"item":{item}"#),
        ),
        numbered(
            "response.completed",
            at + 3,
            &response(
                "completed",
                &item,
                r#"{"input_tokens":12,"input_tokens_details":{"cached_tokens":0},"output_tokens":34,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":46}"#,
            ),
        ),
    ];
    Parts {
        begin: begin.concat(),
        chunk: |at| {
            let number = BEFORE_DELTAS + at;
            event(
                "response.output_text.delta",
                &format!(
                    r#","content_index":0,"delta":" word","item_id":"msg_bench","logprobs":[],"output_index":0,"sequence_number":{number}"#
                ),
            )
        },
        end: end.concat(),
    }
}

fn messages(count: usize) -> Parts {
    let begin = [
        event(
            "message_start",
            r#","message":{"id":"msg_bench","type":"message","role":"assistant","model":"bench","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}"#,
        ),
        event(
            "content_block_start",
            r#","index":0,"content_block":{"type":"text","text":""}"#,
        ),
        event("ping", ""),
    ];
    let end = [
        event("content_block_stop", r#","index":0"#),
        event(
            "message_delta",
            &format!(
                r#","delta":{{"stop_reason":"end_turn","stop_sequence":null}},"usage":{{"output_tokens":{count}}}"#
            ),
        ),
        event("message_stop", ""),
    ];
    Parts {
        begin: begin.concat(),
        chunk: |_| {
            event(
                "content_block_delta",
                r#","index":0,"delta":{"type":"text_delta","text":" word"}"#,
            )
        },
        end: end.concat(),
    }
}

fn gemini(count: usize) -> Parts {
    Parts {
        begin: String::new(),
        chunk: |at| gemini_event(at + 1, " word", ""),
        end: gemini_event(count, "", r#""finishReason":"STOP","#),
    }
}

fn gemini_event(tokens: usize, text: &str, finish: &str) -> String {
    let total = 12 + tokens;
    format!(
        "data: {{\"candidates\": [{{\"content\": {{\"parts\": [{{\"text\": \"{text}\"}}],\"role\": \"model\"}},{finish}\"index\": 0}}],\"usageMetadata\": {{\"promptTokenCount\": 12,\"candidatesTokenCount\": {tokens},\"totalTokenCount\": {total},\"promptTokensDetails\": [{{\"modality\": \"TEXT\",\"tokenCount\": 12}}]}},\"modelVersion\": \"bench\",\"responseId\": \"bench\"}}\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_as_many_pieces_as_words_and_every_event_is_json() {
        for api in [Api::Responses, Api::Messages, Api::Gemini] {
            let events = word_events(api, 3);
            assert_eq!(events.len(), 3, "{api:?}");
            let text = String::from_utf8(events.concat()).unwrap();
            for line in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
                let data = serde_json::from_str::<serde_json::Value>(line);
                assert!(data.is_ok(), "{api:?}: {line}");
            }
        }
    }

    #[test]
    fn a_path_of_gemini_names_the_model() {
        let path = "/v1/models/stream-3-1ms:streamGenerateContent";
        assert_eq!(Api::of(path), Api::Gemini);
        assert_eq!(model_in_path(path), Some("stream-3-1ms"));
    }
}
