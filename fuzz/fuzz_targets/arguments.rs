//! Arguments as a model may write them: never a panic, and an object stays what it is.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolway_core::translate::calls::parse_arguments;

fuzz_target!(|text: &str| {
    let parsed = parse_arguments(text);
    if let Ok(Value::Object(expected)) = serde_json::from_str(text) {
        assert_eq!(parsed, Ok(expected));
    } else if let Err(error) = parsed {
        assert!(error.to_string().len() < 400, "messages are bounded");
    }
});
