//! `toolway check --explain`: what the policy says about one call, and which rule says so.

use anyhow::{Context, Result, bail};

use super::{run, terminal};
use crate::{audit::Audit, config::Config};
use toolway_core::{
    policy::{KeyId, Step},
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
    let key = key.and_then(|key| u16::try_from(key).ok()).map(KeyId);
    let explained = gateway.explain(tool, &arguments, key);
    if as_json {
        return Ok(format!("{:#}\n", explained.to_json()));
    }
    let by = asked.key.map(|key| format!(" with the key `{key}`"));
    let by = by.unwrap_or_default();
    let rows: Vec<Vec<String>> = explained.steps.iter().map(step_row).collect();
    let verdict = terminal::bold(explained.verdict().as_str());
    let head = format!("{}{by}: {verdict}\n", explained.tool);
    Ok(head + &terminal::columns(&rows))
}

fn step_row(step: &Step<'_>) -> Vec<String> {
    let says = match (step.action, &step.reason) {
        (None, _) => terminal::dim("says nothing"),
        (Some(action), Some(reason)) => format!("{}: {}", action.as_str(), terminal::safe(reason)),
        (Some(action), None) => action.as_str().to_owned(),
    };
    vec![terminal::safe(&step.rule), says]
}
