//! The state of a session: what a `state_delta` changes in it (D-26 of issue 12), by JSON Merge Patch (RFC 7396).

use serde_json::{Map, Value};

/// Deepest path of a delta.
const MAX_DEPTH: usize = 32;

/// The merge patch that a delta stands for: `{"set": {"cart.items": 3}, "unset": ["coupon"]}`, or a merge patch as it is.
/// `None` for what is neither.
pub fn patch_of(delta: &Value) -> Option<Value> {
    let members = delta.as_object()?;
    let is_paths = !members.is_empty() && members.keys().all(|key| key == "set" || key == "unset");
    if !is_paths {
        return Some(delta.clone());
    }
    let mut patch = Value::Object(Map::new());
    let set = match members.get("set") {
        Some(set) => Some(set.as_object()?),
        None => None,
    };
    for (path, value) in set.into_iter().flatten() {
        put(&mut patch, path, value.clone())?;
    }
    let unset = match members.get("unset") {
        Some(unset) => Some(unset.as_array()?),
        None => None,
    };
    for path in unset.into_iter().flatten() {
        put(&mut patch, path.as_str()?, Value::Null)?;
    }
    Some(patch)
}

/// The messages of a conversation, a JSON array, with a state before them as a system message (D-27).
pub fn before_messages(state: &Value, messages: &str) -> String {
    let content = format!("[state] {state}");
    let message = serde_json::json!({"role": "system", "content": content});
    let rest = messages.trim_start().strip_prefix('[').unwrap_or_default();
    match rest.trim_start().starts_with(']') {
        true => format!("[{message}]"),
        false => format!("[{message},{rest}"),
    }
}

/// Sets the member at a path with dots.
fn put(patch: &mut Value, path: &str, value: Value) -> Option<()> {
    let names: Vec<&str> = path.split('.').take(MAX_DEPTH + 1).collect();
    if names.len() > MAX_DEPTH {
        return None;
    }
    let mut at = patch;
    for name in names {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = at.as_object_mut()?.entry(name).or_insert(Value::Null);
    }
    *at = value;
    Some(())
}

/// Merges a patch into a value (RFC 7396, section 2).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else {
        return;
    };
    for (name, change) in changes {
        if change.is_null() {
            members.shift_remove(name);
        } else {
            merge(members.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_does_what_the_examples_of_rfc_7396_say_d_26() {
        for (target, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            let mut merged = target.clone();
            merge(&mut merged, &patch);
            assert_eq!(merged, expected, "{target} with {patch}");
        }
    }

    #[test]
    fn paths_are_set_and_unset_d_26() {
        let mut state = json!({"coupon": "x", "cart": {"total": 1}});
        let delta = json!({"set": {"cart.items": 3}, "unset": ["coupon"]});
        merge(&mut state, &patch_of(&delta).unwrap());
        assert_eq!(state, json!({"cart": {"total": 1, "items": 3}}));
    }

    #[test]
    fn a_state_is_one_system_message_before_all_others_d_27() {
        let state = json!({"cart": {"items": 3}});
        let message = r#"{"role":"system","content":"[state] {\"cart\":{\"items\":3}}"}"#;
        assert_eq!(before_messages(&state, "[ ]"), format!("[{message}]"));
        let user = r#" {"role":"user"} ]"#;
        let messages = before_messages(&state, &format!("[{user}"));
        assert_eq!(messages, format!("[{message},{user}"));
    }

    #[test]
    fn what_is_no_delta_changes_nothing() {
        let deep = vec!["a"; MAX_DEPTH + 1].join(".");
        for delta in [
            json!(1),
            json!({"set": 1}),
            json!({"unset": [1]}),
            json!({"set": {deep: 1}}),
        ] {
            assert_eq!(patch_of(&delta), None, "{delta}");
        }
    }
}
