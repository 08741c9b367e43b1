//! What the policy says about one call, and which rules were looked at. Nothing is called.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Value, json};

use super::Gateway;
use toolway_core::{
    catalog::Offered,
    policy::{Action, CallRequest, KeyId, Step},
};
use toolway_protocol::tool::JsonObject;

/// The answer for one call.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The tool's offered name.
    pub tool: String,
    /// The name of the client's key.
    pub key: Option<String>,
    /// The rules that were looked at, the last of which decides.
    pub steps: Vec<Step<'static>>,
}

impl Gateway {
    /// The key of this name.
    pub fn key_of(&self, name: &str) -> Option<KeyId> {
        self.policy.key_of(Some(name))
    }

    /// Explains a call of this tool by a client with this key.
    pub fn explain(
        &self,
        tool: &Arc<Offered>,
        arguments: &JsonObject,
        key: Option<KeyId>,
    ) -> Explanation {
        let steps = self.policy.explain(&CallRequest {
            tool,
            is_shown: true,
            key,
            arguments,
        });
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let steps = steps.into_iter().map(|step| Step {
            rule: owned(step.rule),
            action: step.action,
            reason: step.reason.map(owned),
        });
        Explanation {
            tool: tool.name.to_string(),
            key: self.policy.key_name(key).map(str::to_owned),
            steps: steps.collect(),
        }
    }
}

impl Explanation {
    /// What happens to the call.
    pub fn verdict(&self) -> Action {
        let decisive = self.steps.iter().find_map(|step| step.action);
        decisive.unwrap_or_default()
    }

    /// As `toolway check --explain --json` and `GET /policy/explain` have it.
    pub fn to_json(&self) -> Value {
        let decisive = self.steps.iter().find(|step| step.action.is_some());
        let steps = self.steps.iter().map(|step| {
            let action = step.action.map(Action::as_str);
            json!({"rule": step.rule, "action": action, "reason": step.reason})
        });
        json!({
            "tool": self.tool,
            "key": self.key,
            "verdict": self.verdict().as_str(),
            "rule": decisive.map(|step| &step.rule),
            "reason": decisive.and_then(|step| step.reason.as_ref()),
            "steps": steps.collect::<Vec<Value>>(),
        })
    }
}
