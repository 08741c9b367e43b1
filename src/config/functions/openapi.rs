//! An OpenAPI document as a group of functions.

use std::collections::HashSet;

use url::Url;

use super::super::{check::Check, raw::RawFunctions, values::Origin};
use crate::upstream::function::openapi::Config;
use toolway_core::{
    catalog::{DroppedTool, matches},
    translate::openapi::{self, ApiDescription, Fixed, Operation, Skipped},
};

/// How many tools most models take at once.
const MANY: usize = 128;

/// Most names that a problem lists.
const MAX_NAMED: usize = 10;

impl Check<'_> {
    /// Reads the document, and picks the operations that are wanted.
    pub(super) fn openapi(&mut self, path: &str, raw: &RawFunctions) -> Option<Config> {
        let key = |key: &str| format!("{path}.{key}");
        let headers = self.headers(&key("headers"), raw.headers.clone(), &Origin::Toml);
        let own_url = raw.base_url.as_deref().map(|written| {
            let written = self.text(&key("base_url"), written, &Origin::Toml)?;
            self.api_url(&key("base_url"), &written)
        });
        let fixed = Fixed {
            base_url: own_url.iter().flatten().map(Url::to_string).next(),
            headers: headers.iter().map(|(name, _)| name.to_string()).collect(),
        };
        let at = key("openapi");
        let file = self.text(&at, raw.openapi.as_deref()?, &Origin::Toml)?;
        let api = self.document(&at, &file, &fixed)?;
        let base_url = match own_url {
            Some(url) => url,
            None => self.url_of(&key("base_url"), &file, &api),
        };
        let wanted = raw.operations.as_deref();
        let (operations, dropped) = self.wanted(&key("operations"), wanted, api);
        if wanted.is_none() && operations.len() > MANY {
            self.warn(
                &at,
                format_args!(
                    "`{file}` offers {} operations, and most models take {MANY} tools; choose some with \
                     `operations`",
                    operations.len()
                ),
            );
        }
        Some(Config {
            base_url: base_url?,
            headers,
            operations,
            dropped,
        })
    }

    fn document(&mut self, path: &str, file: &str, fixed: &Fixed) -> Option<ApiDescription> {
        if file.starts_with("http://") || file.starts_with("https://") {
            self.problem(
                path,
                format_args!(
                    "must be a file; save the document beside the configuration, for example with \
                     `curl -o openapi.yaml {file}`, and name that"
                ),
            );
            return None;
        }
        let read = (self.environment.read)(&self.base.join(file))
            .map_err(|error| format!("cannot be read: {error}"));
        let api = read.and_then(|found| {
            let document = openapi::parse(&found.text)?;
            openapi::read(&document, fixed).map_err(|error| error.to_string())
        });
        api.map_err(|why| self.problem(path, format_args!("`{file}`: {why}")))
            .ok()
    }

    fn api_url(&mut self, path: &str, written: &str) -> Option<Url> {
        let url = self.url(path, written)?;
        if url.query().is_some() {
            self.problem(path, "must not have a query");
            return None;
        }
        Some(url)
    }

    /// Where the document says that the API is. `${…}` is not expanded here: a third party's document must not read
    /// this machine's secrets.
    fn url_of(&mut self, path: &str, file: &str, api: &ApiDescription) -> Option<Url> {
        match &api.base_url {
            Some(url) => self.api_url(path, url),
            None => {
                self.problem(
                    path,
                    format_args!(
                        "is missing: `{file}` does not say on which host the API is (`servers`); write it here, \
                         with the path that all operations begin with"
                    ),
                );
                None
            }
        }
    }

    /// The operations that the patterns name, and what of them cannot be offered; without patterns all.
    fn wanted(
        &mut self,
        path: &str,
        patterns: Option<&[String]>,
        api: ApiDescription,
    ) -> (Vec<Operation>, Vec<DroppedTool>) {
        let (mut operations, mut skipped) = (api.operations, api.skipped);
        if let Some(patterns) = patterns {
            for (i, pattern) in patterns.iter().enumerate() {
                let is_match = operations.iter().any(|it| names(pattern, it))
                    || skipped.iter().any(|it| names_skipped(pattern, it));
                if !is_match {
                    let known = some_names(&operations);
                    self.problem(
                        format_args!("{path}[{i}]"),
                        format_args!("`{pattern}` names no operation; there are {known}"),
                    );
                }
            }
            operations.retain(|it| patterns.iter().any(|pattern| names(pattern, it)));
            skipped.retain(|it| patterns.iter().any(|pattern| names_skipped(pattern, it)));
        }
        let dropped = skipped.into_iter().map(|it| DroppedTool {
            name: it.place,
            reason: it.reason,
        });
        (operations, dropped.collect())
    }
}

/// The pattern matches the operation's name as a tool, or by its `operationId`.
fn names(pattern: &str, operation: &Operation) -> bool {
    matches(pattern, &operation.tool.name)
        || operation
            .id
            .as_deref()
            .is_some_and(|id| matches(pattern, id))
}

fn names_skipped(pattern: &str, skipped: &Skipped) -> bool {
    skipped
        .name
        .as_deref()
        .is_some_and(|name| matches(pattern, name))
}

fn some_names(operations: &[Operation]) -> String {
    let names: HashSet<&str> = operations.iter().map(|it| it.tool.name.as_str()).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("`{}`{more}", names.join("`, `"))
}
