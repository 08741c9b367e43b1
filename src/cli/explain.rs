//! `toolway check --explain`: what the policy says about one call, and which rule says so.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{run, terminal};
use crate::{audit::Audit, config::Config};
use toolway_core::{
    policy::{Action, CallRequest, KeyId, Step},
    translate::calls,
};

/// A call that is asked about.
pub(super) struct Question<'a> {
    pub(super) tool: &'a str,
    pub(super) arguments: &'a str,
    pub(super) key: Option<&'a str>,
}

/// The answer, as text or as JSON.
pub(super) async fn explain(config: &Config, asked: Question<'_>, as_json: bool) -> Result<String> {
    let arguments = calls::parse_arguments(asked.arguments)
        .map_err(|error| anyhow::anyhow!("the arguments are no JSON object: {error}"))?;
    let keys = &config.policy.keys;
    let place = |name: &str| {
        let found = keys.iter().position(|it| it.name == name);
        let names: Vec<&str> = keys.iter().map(|it| it.name.as_str()).collect();
        found.with_context(|| format!("there is no key `{name}`, only: {}", names.join(", ")))
    };
    let key = asked.key.map(place).transpose()?;
    let gateway = run::settled(config, Audit::default()).await?;
    let catalog = gateway.catalog();
    let Some(tool) = catalog.find(asked.tool) else {
        let alike = catalog.suggest(asked.tool);
        let hint = alike.first().map(|it| format!("; do you mean `{it}`?"));
        let hint = hint.unwrap_or_default();
        bail!("there is no tool named `{}`{hint}", asked.tool);
    };
    let steps = config.policy.explain(&CallRequest {
        tool,
        is_shown: true,
        key: key.and_then(|key| u16::try_from(key).ok()).map(KeyId),
        arguments: &arguments,
    });
    let decisive = steps
        .iter()
        .find_map(|it| it.action.map(|action| (action, it)));
    let verdict = decisive.map_or("allow", |(action, _)| word(action));
    if as_json {
        let decisive = decisive.map(|(_, step)| step);
        let json = json!({
            "tool": tool.name.as_str(),
            "key": asked.key,
            "verdict": verdict,
            "rule": decisive.map(|it| &it.rule),
            "reason": decisive.and_then(|it| it.reason.as_ref()),
            "steps": steps.iter().map(step_json).collect::<Vec<Value>>(),
        });
        return Ok(format!("{json:#}\n"));
    }
    let by = asked.key.map(|key| format!(" with the key `{key}`"));
    let by = by.unwrap_or_default();
    let rows: Vec<Vec<String>> = steps.iter().map(step_row).collect();
    let head = format!("{}{by}: {}\n", tool.name, terminal::bold(verdict));
    Ok(head + &terminal::columns(&rows))
}

fn word(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Ask => "ask",
        Action::Deny => "deny",
    }
}

fn step_json(step: &Step<'_>) -> Value {
    json!({
        "rule": step.rule,
        "action": step.action.map(word),
        "reason": step.reason,
    })
}

fn step_row(step: &Step<'_>) -> Vec<String> {
    let says = match (step.action, &step.reason) {
        (None, _) => terminal::dim("says nothing"),
        (Some(action), Some(reason)) => format!("{}: {}", word(action), terminal::safe(reason)),
        (Some(action), None) => word(action).to_owned(),
    };
    vec![terminal::safe(&step.rule), says]
}
