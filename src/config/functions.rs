//! The groups of functions: what defines them, and the one way to run them.

use std::{collections::BTreeMap, fmt::Display};

use super::{check::Check, raw::RawFunctions, values::Origin};
use crate::{
    tool::Tool,
    translate::functions::definitions,
    upstream::{
        function::{Config, Kind, endpoint},
        mcp,
    },
};

/// Most faults of one definitions file that are named; a file in a wrong form has one for each entry.
const MAX_FAULTS: usize = 20;

impl Check<'_> {
    /// All groups that are switched on.
    pub(super) fn functions(
        &mut self,
        written: BTreeMap<String, RawFunctions>,
        servers: &[mcp::Config],
    ) -> Vec<Config> {
        let mut groups = Vec::new();
        for (name, raw) in written {
            if raw.enabled == Some(false) {
                continue;
            }
            let path = format!("functions.{name}");
            if servers.iter().any(|it| it.server.as_str() == name) {
                self.problem(
                    &path,
                    format_args!("`{name}` is already the name of a server"),
                );
            }
            groups.extend(self.group(&path, &name, &raw));
        }
        groups
    }

    fn group(&mut self, path: &str, name: &str, raw: &RawFunctions) -> Option<Config> {
        let key = |key: &str| format!("{path}.{key}");
        let group = self.name(path, name);
        let timeout = raw.timeout.is_some();
        let timeout = timeout.then(|| self.time(key("timeout"), raw.timeout, Default::default()));
        let max_response_bytes = self.number(
            key("max_response_bytes"),
            raw.max_response_bytes,
            1024..=1 << 30,
            16 << 20,
        );
        let parallel_calls = self.number(key("parallel_calls"), raw.parallel_calls, 1..=1000, 16);
        let tools = self.definitions(&key("definitions"), raw.definitions.as_deref());
        let kind = self.way(path, raw);
        Some(Config {
            group: group?,
            tools: tools?,
            kind: kind?,
            timeout,
            max_response_bytes,
            parallel_calls,
        })
    }

    /// The one way to run the functions.
    fn way(&mut self, path: &str, raw: &RawFunctions) -> Option<Kind> {
        let ways = [("endpoint", raw.endpoint.is_some())];
        let given: Vec<&str> = ways.iter().filter(|way| way.1).map(|way| way.0).collect();
        match given[..] {
            ["endpoint"] => self.endpoint(path, raw),
            [] => {
                let known: Vec<String> = ways.iter().map(|way| format!("`{}`", way.0)).collect();
                let known = known.join(", ");
                self.problem(path, format_args!("needs one way to be run: {known}"));
                None
            }
            _ => {
                let given = given.join("` and `");
                self.problem(path, format_args!("has `{given}`; which one is it?"));
                None
            }
        }
    }

    fn endpoint(&mut self, path: &str, raw: &RawFunctions) -> Option<Kind> {
        let at = format!("{path}.endpoint");
        let url = raw.endpoint.as_deref()?;
        let url = self.text(&at, url, &Origin::Toml);
        let url = url.and_then(|url| self.url(&at, &url));
        let headers = format!("{path}.headers");
        let headers = self.headers(&headers, raw.headers.clone(), &Origin::Toml);
        Some(Kind::Endpoint(endpoint::Config { url: url?, headers }))
    }

    /// The functions that a file defines. Every entry that is none is a problem: who wrote it wants it called.
    fn definitions(&mut self, path: &str, file: Option<&str>) -> Option<Vec<Tool>> {
        let Some(file) = file else {
            self.problem(path, "is missing: the file with the OpenAI `tools` array");
            return None;
        };
        let file = self.text(path, file, &Origin::Toml)?;
        let text = match (self.around.read)(&self.base.join(&file)) {
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
