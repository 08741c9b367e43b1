//! An upstream's stream, through framing and accumulator, in both modes: no panic, and only whole events
//! of JSON go out.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolway_core::translate::stream::{ChatStream, Known, Mode, Owner, Pushed, Round, Settings, StreamError, TextCalls};
use toolway_protocol::sse::Framer;

struct Tools;

impl Known for Tools {
    fn owner(&self, name: &str) -> Owner {
        if name == "get_time" { Owner::Client } else { Owner::Gateway }
    }
    fn claims(&self, _: &str) -> bool {
        true
    }
    fn is_offered(&self, name: &str) -> bool {
        matches!(name, "get_weather" | "get_time")
    }
    fn parameters(&self, _: &str) -> Option<Value> {
        None
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (flags, bytes) = input;
    let on = |bit: u8| flags & (1 << bit) != 0;
    let settings = Settings {
        mode: if on(0) { Mode::Loop } else { Mode::PassThrough },
        text_calls: TextCalls {
            tool_call_tags: on(1),
            fenced_json: on(2),
            python_tag: on(3),
            mistral: on(4),
            harmony: on(5),
        },
        think_tags: on(6),
        skip_invalid_events: on(7),
        include_usage: true,
        seed: 1,
        created: 1,
        model: "m".to_owned(),
    };
    let mut stream = ChatStream::new(settings);
    let mut out = Vec::new();
    match read(&mut stream, bytes, &mut out) {
        Ok(round) => stream.finish(round.finish, round.usage.as_ref(), &mut out),
        Err(error) => stream.fail(&error.body(), &mut out),
    }
    if on(0) {
        check(&out);
    }
});

fn read(stream: &mut ChatStream, bytes: &[u8], out: &mut Vec<u8>) -> Result<Round, StreamError> {
    let mut framer = Framer::new(1 << 16);
    framer.push(Bytes::copy_from_slice(bytes));
    while let Some(pushed) = stream.push_next(&mut framer, &Tools, out) {
        if pushed? == Pushed::Done {
            break;
        }
    }
    if let Some(event) = framer.finish() {
        stream.push(&event?, &Tools, out)?;
    }
    stream.end_round(&Tools, out)
}

fn check(out: &[u8]) {
    let text = std::str::from_utf8(out).expect("UTF-8 goes out").replace("\r\n", "\n").replace('\r', "\n");
    for block in text.split_terminator("\n\n") {
        let data = block.strip_prefix("data:").expect("only data lines go out").trim_start();
        assert!(data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok(), "{block}");
    }
}
