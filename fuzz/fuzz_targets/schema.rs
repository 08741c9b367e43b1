//! Input schemas of any tool: measured, compiled, and offered without a panic, within libFuzzer's time limit.
//!
//! The input is a schema, and arguments after a line end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use toolway_core::translate::{
    calls::{Validator, parse_arguments},
    schema,
};

fuzz_target!(|text: &str| {
    let (text, arguments) = text.split_once('\n').unwrap_or((text, "{}"));
    let Ok(given) = serde_json::from_str::<Map<String, Value>>(text) else {
        return;
    };
    if schema::fault(&given).is_none() {
        let offered = schema::to_openai(&given).schema;
        assert_eq!(offered.get("type"), Some(&Value::from("object")));
        assert!(offered.get("properties").is_some_and(Value::is_object));
    }
    let arguments = parse_arguments(arguments).unwrap_or_default();
    if let Ok(validator) = Validator::compile(&given) {
        if let Err(error) = validator.check(&arguments) {
            assert!(error.to_string().len() < 1000, "messages are bounded");
        }
    }
});
