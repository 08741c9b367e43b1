//! A plain answer: no panic, and what was mended once needs no mending again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolway_core::translate::{
        completion,
        ids::Ids,
        stream::{Known, Mode, Owner, Settings, TextCalls},
    };
use toolway_protocol::openai::error::ErrorBody;

struct Tools;

impl Known for Tools {
    fn owner(&self, _: &str) -> Owner {
        Owner::Client
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

fuzz_target!(|body: &[u8]| {
    let settings = Settings {
        mode: Mode::PassThrough,
        text_calls: TextCalls::default(),
        think_tags: false,
        skip_invalid_events: false,
        include_usage: true,
        seed: 1,
        created: 1,
        model: "m".to_owned(),
    };
    ErrorBody::from_upstream(500, None, body);
    if let Ok(answer) = completion::read(body, &settings, &Tools, &mut Ids::new(1)) {
        let mut said = completion::Summary::default();
        said.add(&answer.round);
        completion::write(answer.envelope, &said, &answer.round.calls, answer.round.finish, None);
    }
    if let Ok(once) = completion::mend(body, &settings, &Tools, &mut Ids::new(1)) {
        let twice = completion::mend(&once, &settings, &Tools, &mut Ids::new(2)).expect("it is mended");
        assert_eq!(twice, once);
    }
});
