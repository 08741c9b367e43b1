//! Chat requests of any client: what is read is JSON, and what is written again differs only where it should.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;
use toolway_protocol::openai::request::{Change, ChatRequest};

const MAX_DEPTH: usize = 64;

/// The members of an object as they are written; numbers may be larger than any type holds.
type Members = BTreeMap<String, Box<RawValue>>;

fuzz_target!(|body: &[u8]| {
    let Ok(request) = ChatRequest::parse(body, MAX_DEPTH) else {
        return;
    };
    let given: Members = serde_json::from_slice(body).expect("a request is a JSON object");
    let model: String = serde_json::from_str(given["model"].get()).expect("a model is a string");
    assert_eq!(model, request.model());
    let read = |changes: &[(&str, Change<'_, '_>)]| -> Members {
        let written = request.compose(changes).to_bytes();
        serde_json::from_slice(&written).expect("a JSON object is written")
    };
    check(&read(&[]), &given, &[]);
    let tools = request.tools_with(&[r#"{"type":"function"}"#]).expect("one tool is offered");
    let changed = read(&[("tools", Change::Lend(&tools)), ("stream", Change::Remove)]);
    let tools: Vec<&RawValue> = serde_json::from_str(changed["tools"].get()).expect("tools are a list");
    assert!(!tools.is_empty());
    assert!(!changed.contains_key("stream"));
    check(&changed, &given, &["tools", "stream"]);
});

/// Every member is as it was given, besides those that were changed.
fn check(written: &Members, given: &Members, changed: &[&str]) {
    let is_kept = |name: &&String| !changed.contains(&name.as_str());
    let (names, expected) = (written.keys().filter(is_kept), given.keys().filter(is_kept));
    assert!(names.eq(expected));
    for (name, value) in given.iter().filter(|(name, _)| is_kept(name)) {
        assert_eq!(written[name].get(), value.get());
    }
}
