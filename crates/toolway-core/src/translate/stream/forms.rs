//! The forms in which models write calls as plain text, read out of a whole block of it.

use serde_json::Value;

use super::{Known, name::mend_name};
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    tool::JsonObject,
};

/// A call as it was written: a name that is offered, and arguments in JSON.
pub(super) type TextCall = (String, String);

/// `<tool_call>…</tool_call>` with JSON or `<function=…>` in it, or `<function=…>` alone. The closing tags
/// may be missing at the end of an answer.
pub(super) fn in_tags(block: &str, known: &dyn Known) -> Option<Vec<TextCall>> {
    let body = block.trim();
    let body = body.strip_prefix("<tool_call>").unwrap_or(body);
    let body = body.strip_suffix("</tool_call>").unwrap_or(body).trim();
    if body.starts_with("<function=") {
        in_xml(body, known)
    } else {
        in_json(body, known, false)
    }
}

/// JSON between code fences. It must name its arguments, or it could be an answer.
pub(super) fn in_fence(block: &str, known: &dyn Known) -> Option<Vec<TextCall>> {
    let body = block.trim().strip_prefix("```")?.split_once('\n')?.1;
    in_json(body.trim().strip_suffix("```")?, known, true)
}

/// `<|python_tag|>{…}`; several are parted by `;`.
pub(super) fn in_python_tag(block: &str, known: &dyn Known) -> Option<Vec<TextCall>> {
    let mut body = block.trim().strip_prefix("<|python_tag|>")?;
    for token in ["<|eom_id|>", "<|eot_id|>"] {
        body = body.trim_end().strip_suffix(token).unwrap_or(body);
    }
    in_json(body, known, false)
}

/// `[TOOL_CALLS][{…}]`, or the newer `[TOOL_CALLS]name[ARGS]{…}`.
pub(super) fn in_mistral(block: &str, known: &dyn Known) -> Option<Vec<TextCall>> {
    let body = block.trim().strip_prefix("[TOOL_CALLS]")?.trim();
    if body.starts_with(['[', '{']) {
        return in_json(body, known, false);
    }
    let (head, _) = body.split_once('{')?;
    let name = head.split('[').next().unwrap_or(head);
    Some(vec![offered(
        name,
        Some(&object(&body[head.len()..])?),
        known,
    )?])
}

/// A call in gpt-oss's Harmony: the name from the header, the body as it stands.
pub(super) fn in_harmony(name: &str, body: &str, known: &dyn Known) -> Option<Vec<TextCall>> {
    let arguments = if body.trim().is_empty() {
        None
    } else {
        Some(object(body)?)
    };
    Some(vec![offered(name, arguments.as_ref(), known)?])
}

fn object(text: &str) -> Option<Value> {
    check_values(text.as_bytes(), MAX_VALUES).ok()?;
    serde_json::from_str::<JsonObject>(text.trim())
        .ok()
        .map(Value::Object)
}

/// Calls in JSON: an object, a list, or several one after another. All of it must be calls.
fn in_json(text: &str, known: &dyn Known, needs_arguments: bool) -> Option<Vec<TextCall>> {
    check_values(text.as_bytes(), MAX_VALUES).ok()?;
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let value = values.next()?.ok()?;
        let end = values.byte_offset();
        rest = rest[end..].trim_start_matches([';', ',', ' ', '\n', '\r', '\t']);
        let list = match value {
            Value::Array(list) => list,
            Value::Object(mut wrapper)
                if wrapper.get("tool_calls").is_some_and(Value::is_array) =>
            {
                super::elements(wrapper.remove("tool_calls")?).collect()
            }
            one => vec![one],
        };
        for call in &list {
            calls.push(in_value(call, known, needs_arguments)?);
        }
    }
    (!calls.is_empty()).then_some(calls)
}

fn in_value(value: &Value, known: &dyn Known, needs_arguments: bool) -> Option<TextCall> {
    let call = match value.get("function") {
        Some(function @ Value::Object(_)) => function,
        _ => value,
    };
    let name = ["name", "function", "tool"]
        .iter()
        .find_map(|key| call.get(key)?.as_str())?;
    let arguments = ["arguments", "parameters", "args", "input"]
        .iter()
        .find_map(|key| call.get(key));
    if needs_arguments && arguments.is_none() {
        return None;
    }
    offered(name, arguments, known)
}

/// A call, if its tool is offered and its arguments can be arguments.
fn offered(name: &str, arguments: Option<&Value>, known: &dyn Known) -> Option<TextCall> {
    let name = mend_name(name);
    if !known.is_offered(name) {
        return None;
    }
    let arguments = match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}

/// `<function=NAME><parameter=KEY>VALUE</parameter>…</function>`, one or several.
fn in_xml(text: &str, known: &dyn Known) -> Option<Vec<TextCall>> {
    let mut calls = Vec::new();
    for function in text.split("<function=").skip(1) {
        let (name, body) = function.split_once('>')?;
        let name = mend_name(name.trim_matches(['"', '\'', ' ']));
        let body = body.trim_end();
        let body = body.strip_suffix("</function>").unwrap_or(body);
        let mut arguments = JsonObject::new();
        for parameter in body.split("<parameter=").skip(1) {
            let (key, value) = parameter.split_once('>')?;
            let value = value
                .rfind("</parameter>")
                .map_or(value, |end| &value[..end]);
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let key = key.trim_matches(['"', '\'', ' ']);
            arguments.insert(
                key.to_owned(),
                coerced(value, known.parameters(name).as_ref(), key),
            );
        }
        calls.push(offered(name, Some(&Value::Object(arguments)), known)?);
    }
    (!calls.is_empty()).then_some(calls)
}

/// A parameter's text as what the tool's schema says it is; a text where it says nothing or does not fit.
fn coerced(text: &str, schema: Option<&Value>, key: &str) -> Value {
    let property = schema.and_then(|schema| schema.get("properties")?.get(key));
    let Some(property) = property else {
        return text.into();
    };
    let allowed = |kind: &str| match property.get("type") {
        Some(Value::String(only)) => only == kind,
        Some(Value::Array(some)) => some.iter().any(|one| one == kind),
        _ => ["anyOf", "oneOf"]
            .iter()
            .filter_map(|of| property.get(of)?.as_array())
            .flatten()
            .any(|one| one.get("type").is_some_and(|only| only == kind)),
    };
    let lower = text.trim().to_ascii_lowercase();
    let value = match lower.as_str() {
        "true" | "false" if allowed("boolean") => Value::Bool(lower == "true"),
        "null" | "none" if allowed("null") => Value::Null,
        _ => serde_json::from_str(text.trim()).unwrap_or(Value::Null),
    };
    let fits = match &value {
        Value::Null => allowed("null") && matches!(lower.as_str(), "null" | "none"),
        Value::Bool(_) => allowed("boolean"),
        Value::Number(number) => {
            allowed("number") || allowed("integer") && (number.is_i64() || number.is_u64())
        }
        Value::String(_) => false,
        Value::Array(_) => allowed("array"),
        Value::Object(_) => allowed("object"),
    };
    if fits { value } else { text.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::translate::stream::Owner;

    /// One tool, `f`, with a parameter of every type.
    struct Tool(Value);

    impl Known for Tool {
        fn owner(&self, _: &str) -> Owner {
            Owner::Gateway
        }
        fn claims(&self, _: &str) -> bool {
            true
        }
        fn is_offered(&self, name: &str) -> bool {
            name == "f"
        }
        fn parameters(&self, _: &str) -> Option<Value> {
            Some(self.0.clone())
        }
    }

    fn tool() -> Tool {
        Tool(json!({"properties": {
            "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": ["number", "null"]},
            "b": {"type": "boolean"}, "l": {"type": "array"}, "o": {"anyOf": [{"type": "object"}]},
        }}))
    }

    /// The arguments of one call to `f`.
    #[track_caller]
    fn check(calls: &Option<Vec<TextCall>>, expected: &str) {
        assert_eq!(*calls, Some(vec![("f".to_owned(), expected.to_owned())]));
    }

    #[track_caller]
    fn check_parameter(key: &str, text: &str, expected: &Value) {
        let block = format!("<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>");
        check(
            &in_tags(&block, &tool()),
            &json!({ key: expected }).to_string(),
        );
    }

    #[test]
    fn a_parameter_is_what_the_schema_says() {
        check_parameter("s", "12", &json!("12"));
        check_parameter("s", " two\nlines ", &json!(" two\nlines "));
        check_parameter("i", "12", &json!(12));
        check_parameter("i", "1.5", &json!("1.5"));
        check_parameter("n", "1.5", &json!(1.5));
        check_parameter("n", "null", &json!(null));
        check_parameter("b", "True", &json!(true));
        check_parameter("l", "[1]", &json!([1]));
        check_parameter("o", r#"{"a": 1}"#, &json!({"a": 1}));
        check_parameter("o", "{broken", &json!("{broken"));
        check_parameter("unknown", "1", &json!("1"));
    }

    #[test]
    fn json_in_tags_may_name_its_arguments_in_several_ways() {
        for key in ["arguments", "parameters", "args", "input"] {
            let block = format!(r#"<tool_call>{{"name": "f", "{key}": {{"s": "x"}}}}</tool_call>"#);
            check(&in_tags(&block, &tool()), r#"{"s":"x"}"#);
        }
        check(
            &in_tags(r#"<tool_call>{"name": "f"}</tool_call>"#, &tool()),
            "{}",
        );
        check(
            &in_tags(r#"<tool_call>{"function": {"name": "f"}}"#, &tool()),
            "{}",
        );
        check(
            &in_tags(r#"<tool_call>{"name": "f", "arguments": "{}"}"#, &tool()),
            "{}",
        );
    }

    #[test]
    fn what_is_no_call_to_an_offered_tool_is_none() {
        let none = |calls: Option<Vec<TextCall>>| assert_eq!(calls, None);
        none(in_tags(r#"<tool_call>{"name": "g"}</tool_call>"#, &tool()));
        none(in_tags(
            r#"<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>"#,
            &tool(),
        ));
        none(in_tags(
            r#"<tool_call>{"name": "f", "arguments": 1}</tool_call>"#,
            &tool(),
        ));
        none(in_tags("<tool_call></tool_call>", &tool()));
        none(in_tags("<function=g></function>", &tool()));
        none(in_fence("```json\n{\"name\": \"f\"}\n```", &tool()));
        none(in_python_tag("<|python_tag|>f(s=1)", &tool()));
        none(in_mistral("[TOOL_CALLS]g{}", &tool()));
        none(in_harmony("f", "[]", &tool()));
    }
}
