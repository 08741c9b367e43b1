//! OpenAPI documents from anybody: never a panic, and what is offered can be asked and stays on its host.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use toolway_core::translate::{
    calls::Validator,
    openapi::{self, Fixed},
};

fuzz_target!(|text: &str| {
    let Ok(document) = openapi::parse(text) else {
        return;
    };
    let Ok(api) = openapi::read(&document, &Fixed::default()) else {
        return;
    };
    for operation in api.operations {
        let schema = &operation.tool.input_schema;
        let properties = schema.get("properties").and_then(Value::as_object);
        let names = properties.into_iter().flatten().map(|(name, _)| name);
        let arguments: Map<String, Value> = names.map(|name| (name.clone(), text.into())).collect();
        if let Ok(validator) = Validator::compile(schema) {
            let _ = validator.check(&arguments);
        }
        if let Ok(request) = operation.plan.request(&arguments) {
            let url = request.url("https://api.example/v1");
            assert!(url.starts_with("https://api.example/"), "{url}");
        }
    }
});
