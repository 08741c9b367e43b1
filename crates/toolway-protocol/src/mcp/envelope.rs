//! Messages that are not what they should be: too long or too broken to be read as a whole, or incomplete.
//!
//! All that is asked of an unreadable message is which request it answers, so that this one call fails and no other.

use serde_json::{Value, json};

/// Finds the `id` of a response of which only the first and the last bytes were kept.
///
/// Servers write the members of the envelope in any order, but `result` is the only long one: the id stands
/// before it or after it. What is returned is a guess that the caller compares with the ids it waits for.
pub fn id_of_cut_response(head: &[u8], tail: &[u8]) -> Option<Value> {
    id_in_head(head).or_else(|| id_in_tail(tail))
}

/// Walks the members of the outermost object until one is `id`, or one is not complete.
fn id_in_head(head: &[u8]) -> Option<Value> {
    let mut rest = skip(head.trim_ascii_start(), b'{')?;
    loop {
        let (key, after) = next_value(rest)?;
        let (value, after) = next_value(skip(after, b':')?)?;
        if key == "id" {
            return is_id(&value).then_some(value);
        }
        rest = skip(after, b',')?;
    }
}

/// Looks for the last `"id"` after which nothing follows but short members and the end of the object.
fn id_in_tail(tail: &[u8]) -> Option<Value> {
    // An id may be called `id` itself, and then stands behind the name.
    let mut names = memchr::memmem::rfind_iter(tail, b"\"id\"").take(2);
    let after = names.find_map(|start| skip(&tail[start + 4..], b':'))?;
    let (value, mut rest) = next_value(after)?;
    while let Some(after) = skip(rest, b',') {
        let (_, after) = next_value(after)?;
        (_, rest) = next_value(skip(after, b':')?)?;
    }
    let end = skip(rest, b'}')?;
    (end.trim_ascii().is_empty() && is_id(&value)).then_some(value)
}

fn skip(bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    bytes.trim_ascii_start().strip_prefix(&[wanted])
}

/// One complete JSON value and what follows it. A number at the very end may go on, so it is not complete.
fn next_value(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    let value = values.next()?.ok()?;
    let rest = bytes.get(values.byte_offset()..)?;
    (!rest.is_empty()).then_some((value, rest))
}

/// Fills in what the result of an `initialize` must have and careless servers leave out.
pub fn mend_initialize(mut result: Value) -> Value {
    let Some(object) = result.as_object_mut() else {
        return result;
    };
    let capabilities = object.entry("capabilities").or_insert_with(|| json!({}));
    if !capabilities.is_object() {
        *capabilities = json!({});
    }
    let server = object.entry("serverInfo").or_insert_with(|| json!({}));
    if !server.is_object() {
        *server = json!({});
    }
    for name in ["name", "version"] {
        if !server[name].is_string() {
            server[name] = json!("unknown");
        }
    }
    result
}

fn is_id(value: &Value) -> bool {
    value.is_number() || value.is_string()
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(head: &str, tail: &str, expected: Option<Value>) {
        assert_eq!(
            id_of_cut_response(head.as_bytes(), tail.as_bytes()),
            expected
        );
    }

    #[test]
    fn an_id_before_the_result_is_found() {
        check(
            r#"{"jsonrpc":"2.0","id":17,"result":{"content":[{"#,
            "",
            Some(json!(17)),
        );
        check(r#" { "id" : "a" , "result":"#, "", Some(json!("a")));
    }

    #[test]
    fn an_id_after_the_result_is_found() {
        check(
            r#"{"result":{"x":"#,
            r#"aaa"}]},"jsonrpc":"2.0","id":17}"#,
            Some(json!(17)),
        );
        check(
            r#"{"result":{"x":"#,
            "aaa\"}]},\"id\":17,\"jsonrpc\":\"2.0\"}\r",
            Some(json!(17)),
        );
        check("", r#"a"},"id":"id","jsonrpc":"2.0"}"#, Some(json!("id")));
    }

    #[test]
    fn an_id_inside_the_result_is_not_taken() {
        check(
            r#"{"result":{"id":5,"x":"#,
            r#""}]},"jsonrpc":"2.0"}"#,
            None,
        );
        check("", r#"{"id":5}]}"#, None);
        check(
            r#"{"jsonrpc":"2.0","result":{"id":5"#,
            r#"x":{"id":5}}}"#,
            None,
        );
    }

    #[test]
    fn a_number_that_may_go_on_is_not_taken() {
        check(r#"{"id":1"#, "", None);
        check(r#"{"id":1,"#, "", Some(json!(1)));
    }

    #[test]
    fn an_id_of_another_kind_is_no_id() {
        check(r#"{"id":null,"result":{}"#, "", None);
        check(r#"{"id":{},"result":{}"#, "", None);
    }

    #[test]
    fn a_careless_handshake_is_completed_and_a_careful_one_left_alone() {
        let mended = mend_initialize(json!({"protocolVersion": "2024-11-05"}));
        let expected = json!({
            "protocolVersion": "2024-11-05", "capabilities": {},
            "serverInfo": {"name": "unknown", "version": "unknown"},
        });
        assert_eq!(mended, expected);
        assert_eq!(mend_initialize(expected.clone()), expected);
        let half = json!({"capabilities": null, "serverInfo": {"name": "x", "title": "X"}});
        let server = json!({"name": "x", "title": "X", "version": "unknown"});
        assert_eq!(
            mend_initialize(half),
            json!({"capabilities": {}, "serverInfo": server})
        );
        assert_eq!(mend_initialize(json!(5)), 5);
    }

    #[test]
    fn what_is_no_object_has_no_id() {
        check("", "", None);
        check("hello", "world", None);
        check("[1,2", "3]", None);
        check(r#"{"a" 5"#, "", None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(head: Vec<u8>, tail: Vec<u8>) {
            let _ = id_of_cut_response(&head, &tail);
        }

        #[test]
        fn the_id_is_found_on_either_side_of_a_long_result(
            id in prop_oneof![any::<i64>().prop_map(Value::from), "[a-z\"]{1,9}".prop_map(Value::from)],
            is_first: bool,
            text in "[a-z\"{}:,]{300,400}",
        ) {
            let result = json!({"content": [{"type": "text", "text": text}], "id": "inner"});
            let message = if is_first {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
            } else {
                format!(r#"{{"result":{result},"jsonrpc":"2.0","id":{id}}}"#)
            };
            let bytes = message.as_bytes();
            let found = id_of_cut_response(&bytes[..120], &bytes[bytes.len() - 120..]);
            prop_assert_eq!(found, Some(id));
        }
    }
}
