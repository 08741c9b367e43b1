//! One element of `tool_calls`, read as loosely as it can be read.

use serde_json::Value;

use crate::translate::stream::CallKind;
use toolway_protocol::tool::JsonObject;

/// One element of `tool_calls`, taken apart.
#[derive(Debug, Default)]
pub(crate) struct Fragment {
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) kind: Option<CallKind>,
    pub(super) arguments: Option<Value>,
    pub(super) extra: JsonObject,
}

impl Fragment {
    /// Reads an element of `tool_calls` as loosely as it can be read. `None` if there is nothing in it.
    pub(crate) fn read(value: Value) -> Option<Fragment> {
        let Value::Object(mut element) = value else {
            return None;
        };
        let mut fragment = Fragment {
            index: element.shift_remove("index").as_ref().and_then(number),
            id: element.shift_remove("id").and_then(text_or_number),
            ..Fragment::default()
        };
        let kind = element.shift_remove("type");
        let (function, custom) = (
            element.shift_remove("function"),
            element.shift_remove("custom"),
        );
        let body = match (function, custom) {
            (Some(Value::Object(body)), _) => {
                fragment.kind = Some(CallKind::Function);
                Some(body)
            }
            (_, Some(Value::Object(body))) => {
                fragment.kind = Some(CallKind::Custom);
                Some(body)
            }
            _ => None,
        };
        if kind.is_some_and(|kind| kind == "custom") {
            fragment.kind = Some(CallKind::Custom);
        }
        match body {
            Some(mut body) => {
                fragment.take_body(&mut body);
                if !body.is_empty() {
                    let place = fragment.kind.unwrap_or_default().members().0;
                    fragment.extra.insert(place.to_owned(), Value::Object(body));
                }
            }
            // Name and arguments beside the id, without the object around them.
            None => fragment.take_body(&mut element),
        }
        fragment
            .extra
            .extend(element.into_iter().filter(|(_, value)| !value.is_null()));
        Some(fragment)
    }

    /// Reads the deprecated `function_call`.
    pub(crate) fn read_legacy(value: Value) -> Option<Fragment> {
        let Value::Object(mut body) = value else {
            return None;
        };
        let mut fragment = Fragment {
            kind: Some(CallKind::Function),
            ..Fragment::default()
        };
        fragment.take_body(&mut body);
        fragment.extra = body;
        Some(fragment)
    }

    /// A whole call.
    pub(crate) fn whole(name: String, arguments: String) -> Fragment {
        Fragment {
            name: Some(name),
            arguments: Some(Value::String(arguments)),
            ..Fragment::default()
        }
    }

    /// The fragment at a place of a whole message, where every element is a call of its own.
    pub(crate) fn at(mut self, place: usize) -> Fragment {
        self.index = Some(place as u64);
        self
    }

    fn take_body(&mut self, body: &mut JsonObject) {
        self.name = match body.shift_remove("name") {
            Some(Value::String(name)) if !name.is_empty() => Some(name),
            _ => None,
        };
        self.arguments = body
            .shift_remove("arguments")
            .or_else(|| body.shift_remove("input"));
    }

    /// Nothing is said but the place.
    pub(super) fn is_empty(&self) -> bool {
        self.id.is_none()
            && self.name.is_none()
            && self.extra.is_empty()
            && self
                .arguments
                .as_ref()
                .is_none_or(|a| a.is_null() || a == "")
    }

    /// Arguments that are not nothing.
    pub(super) fn says(&self) -> Option<&Value> {
        self.arguments.as_ref().filter(|a| !a.is_null() && *a != "")
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number
                .as_f64()
                .filter(|f| f.fract() == 0.0 && (0.0..1e9).contains(f));
            float.map(|f| f as u64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn text_or_number(value: Value) -> Option<String> {
    match value {
        Value::String(text) => (!text.trim().is_empty()).then_some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
