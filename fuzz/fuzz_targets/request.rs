//! Chat requests of any client: what is read is JSON, and what is written again differs only where it should.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use toolway::openai::request::{Change, ChatRequest};

const MAX_DEPTH: usize = 64;

fuzz_target!(|body: &[u8]| {
    let Ok(request) = ChatRequest::parse(body, MAX_DEPTH) else {
        return;
    };
    let given: Map<String, Value> = serde_json::from_slice(body).expect("a request is a JSON object");
    assert_eq!(given["model"], request.model());
    let read = |changes: &[(&str, Change<'_, '_>)]| -> Map<String, Value> {
        let written = request.compose(changes).to_bytes();
        serde_json::from_slice(&written).expect("a JSON object is written")
    };
    assert_eq!(read(&[]), given);
    let tools = request.tools_with(&[r#"{"type":"function"}"#]).expect("one tool is offered");
    let changed = read(&[("tools", Change::Lend(&tools)), ("stream", Change::Remove)]);
    assert!(changed["tools"].as_array().is_some_and(|tools| !tools.is_empty()));
    assert!(!changed.contains_key("stream"));
    for (name, value) in given.iter().filter(|(name, _)| *name != "tools" && *name != "stream") {
        assert_eq!(changed.get(name), Some(value));
    }
});
