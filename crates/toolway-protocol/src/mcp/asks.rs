//! What a server may ask of a client, and which capability each question takes.

use serde_json::{Value, json};

use super::rpc::RpcError;

/// What a gateway declares to servers of the versions with a handshake (2024-11-05 to 2025-11-25).
///
/// One connection serves every client, and clients come later than it: so this is everything that some client could
/// do. Whether the one concerned can is checked with [`refusal`] when the server asks.
pub fn everything() -> Value {
    json!({
        "roots": {},
        "sampling": {"tools": {}, "context": {}},
        "elicitation": {"form": {}, "url": {}},
    })
}

/// Most bytes of the capabilities of one client, as JSON. They are kept for as long as its session.
const MAX_CAPABILITIES: usize = 16 << 10;

/// The capabilities that a client declares in `initialize`; none where it declares no object.
///
/// # Errors
/// `Invalid params` where they are longer than 16 KiB.
pub fn declared(capabilities: Option<Value>) -> Result<Value, RpcError> {
    let capabilities = capabilities
        .filter(Value::is_object)
        .unwrap_or_else(|| json!({}));
    match capabilities.to_string().len() <= MAX_CAPABILITIES {
        true => Ok(capabilities),
        false => Err(RpcError::invalid_params(format!(
            "Invalid params: `capabilities` are longer than {MAX_CAPABILITIES} bytes"
        ))),
    }
}

/// Whether this is a question for a client at all.
pub fn is_question(method: &str) -> bool {
    capability(method).is_some()
}

fn capability(method: &str) -> Option<&'static str> {
    match method {
        "sampling/createMessage" => Some("sampling"),
        "elicitation/create" => Some("elicitation"),
        "roots/list" => Some("roots"),
        _ => None,
    }
}

/// Why a client with these capabilities cannot be asked this; `None` if it can.
pub fn refusal(capabilities: &Value, method: &str, params: &Value) -> Option<RpcError> {
    let Some(name) = capability(method) else {
        return Some(RpcError::method_not_found(method));
    };
    let Some(declared) = capabilities.get(name).filter(|it| !it.is_null()) else {
        return Some(lacking(method, name));
    };
    let has = |part: &str| declared.get(part).is_some_and(|it| !it.is_null());
    let part = match method {
        // `{}` is what clients of before 2025-11-25 write, and means forms.
        "elicitation/create" => match params.get("mode").and_then(Value::as_str) {
            Some("url") => "url",
            _ if has("url") && !has("form") => "form",
            _ => return None,
        },
        "sampling/createMessage" if params.get("tools").is_some() => "tools",
        _ => return None,
    };
    if has(part) {
        return None;
    }
    let message = format!("{method}: the client lacks the capability `{name}.{part}`");
    Some(RpcError::invalid_params(message))
}

/// The client lacks a whole capability.
fn lacking(method: &str, name: &str) -> RpcError {
    RpcError {
        message: format!("{method}: the client lacks the capability `{name}`"),
        ..RpcError::method_not_found(method)
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use super::*;

    #[track_caller]
    fn check(capabilities: Value, method: &str, params: Value, refused: Option<(i64, &str)>) {
        let error = refusal(&capabilities, method, &params);
        let error = error.as_ref().map(|it| (it.code, it.message.as_str()));
        assert_eq!(error, refused);
    }

    #[test]
    fn a_client_is_asked_what_it_can_answer() {
        let form = json!({"message": "?", "requestedSchema": {}});
        let url = json!({"mode": "url", "url": "https://a.example", "elicitationId": "1"});
        for capabilities in [json!({"elicitation": {}}), everything()] {
            check(capabilities, "elicitation/create", form.clone(), None);
        }
        check(everything(), "elicitation/create", url, None);
        check(everything(), "roots/list", Value::Null, None);
        check(
            everything(),
            "sampling/createMessage",
            json!({"tools": []}),
            None,
        );
    }

    #[test]
    fn the_capability_that_a_client_lacks_is_named() {
        let missing = "sampling/createMessage: the client lacks the capability `sampling`";
        let error = Some((-32601, missing));
        for capabilities in [json!({}), json!(null), json!({"sampling": null})] {
            check(capabilities, "sampling/createMessage", json!({}), error);
        }
    }

    #[test]
    fn the_part_of_a_capability_that_a_client_lacks_is_named() {
        let error = "elicitation/create: the client lacks the capability `elicitation.url`";
        let url = json!({"mode": "url"});
        for elicitation in [json!({}), json!({"form": {}})] {
            let capabilities = json!({"elicitation": elicitation});
            check(
                capabilities,
                "elicitation/create",
                url.clone(),
                Some((-32602, error)),
            );
        }
        let error = "elicitation/create: the client lacks the capability `elicitation.form`";
        let url_only = json!({"elicitation": {"url": {}}});
        check(
            url_only,
            "elicitation/create",
            json!({}),
            Some((-32602, error)),
        );
        let error = "sampling/createMessage: the client lacks the capability `sampling.tools`";
        let params = json!({"tools": []});
        check(
            json!({"sampling": {}}),
            "sampling/createMessage",
            params,
            Some((-32602, error)),
        );
    }

    #[test]
    fn what_no_client_answers_is_not_found() {
        check(
            everything(),
            "tools/call",
            json!({}),
            Some((-32601, "Method not found: tools/call")),
        );
    }
}
