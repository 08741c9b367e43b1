//! The groups of functions: what defines them, and the one way to run them.

mod openapi;
mod ways;

use std::{collections::BTreeMap, fmt::Display, time::Duration};

use serde_json::json;

use super::{
    check::Check, models::Providers, problem::Problem, raw::RawFunctions, servers::missing_values,
    values::Origin,
};
use crate::upstream::{
    function::{BackendKind, Config},
    mcp,
};
use toolway_core::translate::functions::definitions;
use toolway_protocol::tool::{Annotations, JsonObject, ServerId, Tool};

/// Most faults of one definitions file that are named; a file in a wrong form has one for each entry.
const MAX_FAULTS: usize = 20;

impl Check<'_> {
    /// All groups that are switched on.
    pub(super) fn functions(
        &mut self,
        written: BTreeMap<String, RawFunctions>,
        servers: &[mcp::Config],
        providers: Providers<'_>,
    ) -> Vec<Config> {
        let mut groups = Vec::new();
        for (name, raw) in written {
            if raw.enabled == Some(false) {
                continue;
            }
            let path = format!("functions.{name}");
            if servers.iter().any(|it| it.server.as_str() == name) {
                let message = format!("`{name}` is already the name of a server");
                self.problem(&path, message);
            }
            let (group, missing) = self.reading(|check| check.group(&path, &name, &raw, providers));
            match missing.is_empty() {
                true => groups.extend(group),
                false => groups.extend(self.unavailable(&path, &name, &raw, &missing)),
            }
        }
        groups
    }

    fn group(
        &mut self,
        path: &str,
        name: &str,
        raw: &RawFunctions,
        providers: Providers<'_>,
    ) -> Option<Config> {
        let key = |key: &str| format!("{path}.{key}");
        let group = self.name(path, name);
        let timeout = raw.timeout.is_some();
        let timeout = timeout.then(|| self.time(key("timeout"), raw.timeout, Duration::ZERO));
        let max_response_bytes = self.number(
            key("max_response_bytes"),
            raw.max_response_bytes,
            1024..=1 << 30,
            16 << 20,
        );
        let parallel_calls = self.number(key("parallel_calls"), raw.parallel_calls, 1..=1000, 16);
        let tools = match (&raw.definitions, &raw.model) {
            _ if raw.openapi.is_some() => Some(Vec::new()),
            (None, Some(model)) => Some(vec![question(name, model, raw.description.as_deref())]),
            (file, _) => self.definitions(&key("definitions"), file.as_deref()),
        };
        // Without the functions it is unknown whether the backend fits them; the rest is still checked.
        let kind = self.way(path, raw, tools.as_deref().unwrap_or_default(), providers);
        let tools = match &kind {
            Some(BackendKind::OpenApi(api)) => Some(api.tools()),
            _ => tools,
        };
        Some(Config {
            group: group?,
            tools: tools?,
            kind: kind?,
            timeout,
            max_response_bytes,
            parallel_calls,
        })
    }

    /// A group that is not offered, because required values are missing.
    fn unavailable(
        &self,
        path: &str,
        name: &str,
        raw: &RawFunctions,
        missing: &[Problem],
    ) -> Option<Config> {
        let [way] = ways::given(raw)[..] else {
            // Already reported when the group was read.
            return None;
        };
        let kind = BackendKind::Unavailable {
            kind: way.key(),
            reason: missing_values(path, missing),
        };
        Some(Config {
            group: ServerId::parse(name).ok()?,
            tools: Vec::new(),
            kind,
            timeout: None,
            max_response_bytes: 16 << 20,
            parallel_calls: 1,
        })
    }

    /// The functions that a file defines. Every invalid entry is a problem.
    fn definitions(&mut self, path: &str, file: Option<&str>) -> Option<Vec<Tool>> {
        let Some(file) = file else {
            self.problem(path, "is missing: the file with the OpenAI `tools` array");
            return None;
        };
        let file = self.text(path, file, &Origin::Toml)?;
        let text = match (self.environment.read)(&self.base.join(&file)) {
            Ok(found) => found.text,
            Err(error) => {
                self.problem(path, format_args!("`{file}` cannot be read: {error}"));
                return None;
            }
        };
        let found = definitions::read(&text);
        for fault in found.faults.iter().take(MAX_FAULTS) {
            self.problem(path, in_file(&file, fault));
        }
        let more = found.faults.len().saturating_sub(MAX_FAULTS);
        if more > 0 {
            self.problem(path, in_file(&file, format_args!("and {more} more")));
        }
        if found.tools.is_empty() && found.faults.is_empty() {
            self.warn(path, in_file(&file, "defines no function"));
        }
        found.faults.is_empty().then_some(found.tools)
    }
}

fn in_file(file: &str, what: impl Display) -> String {
    format!("`{file}`: {what}")
}

/// A model as one tool, which takes one text.
fn question(name: &str, model: &str, description: Option<&str>) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {"input": {"type": "string", "description": "What the model is asked about."}},
        "required": ["input"],
    });
    let asks = format!("Asks the model {model}.");
    Tool {
        name: name.to_owned(),
        title: None,
        description: Some(description.map_or(asks, str::to_owned)),
        input_schema: schema.as_object().cloned().unwrap_or_else(JsonObject::new),
        output_schema: None,
        annotations: Annotations::default(),
        extra: JsonObject::new(),
    }
}
