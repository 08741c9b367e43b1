use serde_json::{Value, json};

use super::*;

fn parse(body: &str) -> ChatRequest<'_> {
    ChatRequest::parse(body.as_bytes(), 64).unwrap()
}

#[test]
fn a_plain_request_is_read() {
    let request = parse(r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#);
    assert_eq!(request.model(), "m");
    assert!(!request.stream());
    assert_eq!(request.n(), 1);
}
