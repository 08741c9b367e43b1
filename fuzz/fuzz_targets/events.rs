//! Events as a client may write them: never a panic, and each call ends at most once or runs.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolway_core::agent::events::{self, EventItem};

fuzz_target!(|body: &[u8]| {
    let Ok((_, events)) = events::read(body) else {
        return;
    };
    let taken = events::take_in(events, false);
    let mut ended: Vec<String> = taken.to_run.iter().map(|(id, _)| id.clone()).collect();
    for item in &taken.items {
        if let EventItem::Write(event) = item
            && event["type"] != "error"
        {
            ended.extend(event["tool_call_id"].as_str().map(str::to_owned));
        }
    }
    let count = ended.len();
    ended.sort();
    ended.dedup();
    assert_eq!(ended.len(), count, "a call ended twice");
});
