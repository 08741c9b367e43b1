//! The ways to run a group of functions; each group has exactly one.

use std::{collections::HashMap, time::Duration};

use http::Method;
use serde_json::Value;

use super::super::{
    check::Check, keys::unknown, models::Providers, problem::Problem, raw::RawFunctions,
    values::Origin,
};
use crate::upstream::function::{BackendKind, command, endpoint, prompt, request};
use toolway_core::translate::functions::{
    request::{FUNCTION, RequestTemplate, parse_method},
    template::Template,
};
use toolway_protocol::tool::Tool;

/// Longest time that calls wait for others to share a request with.
const LONGEST_BATCH: Duration = Duration::from_secs(1);

/// A way, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Endpoint,
    Url,
    Command,
    Model,
    OpenApi,
}

const WAYS: [Way; 5] = [
    Way::Endpoint,
    Way::Url,
    Way::Command,
    Way::Model,
    Way::OpenApi,
];

impl Way {
    pub(super) fn key(self) -> &'static str {
        match self {
            Way::Endpoint => "endpoint",
            Way::Url => "url",
            Way::Command => "command",
            Way::Model => "model",
            Way::OpenApi => "openapi",
        }
    }
}

/// The ways that are written.
pub(super) fn given(raw: &RawFunctions) -> Vec<Way> {
    let is_given = |way: &Way| match way {
        Way::Endpoint => raw.endpoint.is_some(),
        Way::Url => raw.url.is_some() || raw.urls.is_some(),
        Way::Command => raw.command.is_some(),
        Way::Model => raw.model.is_some(),
        Way::OpenApi => raw.openapi.is_some(),
    };
    WAYS.into_iter().filter(is_given).collect()
}

impl Check<'_> {
    /// The one way to run these functions.
    pub(super) fn way(
        &mut self,
        path: &str,
        raw: &RawFunctions,
        tools: &[Tool],
        providers: Providers<'_>,
    ) -> Option<BackendKind> {
        let given = given(raw);
        let [way] = given[..] else {
            let message = match given.is_empty() {
                true => format!("needs one way to be run: {}", listed(&WAYS)),
                false => format!("has {}; give one of them", listed(&given)),
            };
            self.problem(path, message);
            return None;
        };
        self.unused_keys(path, way, raw);
        match way {
            Way::Endpoint => self.endpoint(path, raw).map(BackendKind::Endpoint),
            Way::Url => self.requests(path, raw, tools).map(BackendKind::Url),
            Way::Command => self.command(path, raw).map(BackendKind::Command),
            Way::OpenApi => self.openapi(path, raw).map(BackendKind::OpenApi),
            Way::Model => self
                .prompt(path, raw, tools, providers)
                .map(BackendKind::Model),
        }
    }

    /// A key that has no effect is a problem.
    fn unused_keys(&mut self, path: &str, way: Way, raw: &RawFunctions) {
        let keys = [
            ("batch", raw.batch.is_some(), &[Way::Endpoint][..]),
            ("max_batch", raw.max_batch.is_some(), &[Way::Endpoint]),
            ("method", raw.method.is_some(), &[Way::Url]),
            ("args", raw.args.is_some(), &[Way::Command]),
            ("env", raw.env.is_some(), &[Way::Command]),
            ("cwd", raw.cwd.is_some(), &[Way::Command]),
            ("prompt", raw.prompt.is_some(), &[Way::Model]),
            ("description", raw.description.is_some(), &[Way::Model]),
            ("base_url", raw.base_url.is_some(), &[Way::OpenApi]),
            ("operations", raw.operations.is_some(), &[Way::OpenApi]),
            (
                "definitions",
                raw.definitions.is_some(),
                &[Way::Endpoint, Way::Url, Way::Command, Way::Model],
            ),
            (
                "headers",
                raw.headers.is_some(),
                &[Way::Endpoint, Way::Url, Way::OpenApi],
            ),
        ];
        for (key, is_there, ways) in keys {
            if is_there && !ways.contains(&way) {
                let message = format!("belongs to functions with {}", listed(ways));
                self.problem(format_args!("{path}.{key}"), message);
            }
        }
        if raw.description.is_some() && raw.model.is_some() && raw.definitions.is_some() {
            self.problem(
                format_args!("{path}.description"),
                "stands in the `definitions` already",
            );
        }
    }

    fn endpoint(&mut self, path: &str, raw: &RawFunctions) -> Option<endpoint::Config> {
        let at = format!("{path}.endpoint");
        let url = self.text(&at, raw.endpoint.as_deref()?, &Origin::Toml);
        let url = url.and_then(|url| self.url(&at, &url));
        let headers = format!("{path}.headers");
        let headers = self.headers(&headers, raw.headers.clone(), &Origin::Toml);
        let batch = self.batch(path, raw);
        Some(endpoint::Config {
            url: url?,
            headers,
            batch,
        })
    }

    fn batch(&mut self, path: &str, raw: &RawFunctions) -> Option<endpoint::Batch> {
        let at = format!("{path}.batch");
        let most = format!("{path}.max_batch");
        if raw.batch.is_none() {
            if raw.max_batch.is_some() {
                self.problem(&most, "belongs to `batch`");
            }
            return None;
        }
        let window = self.time(&at, raw.batch, LONGEST_BATCH);
        if window > LONGEST_BATCH {
            self.problem(&at, "must be at most 1s, because every call waits for it");
        }
        let max_calls = self.number(&most, raw.max_batch, 2..=128, 16);
        Some(endpoint::Batch { window, max_calls })
    }

    fn requests(
        &mut self,
        path: &str,
        raw: &RawFunctions,
        tools: &[Tool],
    ) -> Option<request::Config> {
        let before = self.problems.len();
        let method = match raw.method.as_deref().map(parse_method) {
            None => Method::POST,
            Some(Ok(method)) => method,
            Some(Err(message)) => {
                self.problem(format_args!("{path}.method"), message);
                Method::POST
            }
        };
        let at = format!("{path}.url");
        let common = raw
            .url
            .as_deref()
            .map(|url| self.request(&at, url, &method));
        let mut requests = HashMap::new();
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        for (function, url) in raw.urls.iter().flatten() {
            let at = format!("{path}.urls.{function}");
            if !tools.is_empty() && !names.contains(&function.as_str()) {
                self.problem(&at, unknown("function", function, &names));
            }
            if let Some(template) = self.request(&at, url, &method) {
                requests.insert(function.clone(), (at, template));
            }
        }
        for tool in tools {
            let own = raw.urls.as_ref();
            let has_own = own.is_some_and(|urls| urls.contains_key(&tool.name));
            match (requests.get(&tool.name), &common) {
                (Some((at, template)), _) => self.check_places(at, template.arguments(), tool),
                // The problems of its own URL are already reported.
                (None, _) if has_own => {}
                (None, Some(Some(template))) => {
                    self.check_places(&at, template.arguments(), tool);
                    requests.insert(tool.name.clone(), (at.clone(), template.clone()));
                }
                (None, Some(None)) => {}
                (None, None) => {
                    let message = format!("has no URL for `{}`, and there is no `url`", tool.name);
                    self.problem(format_args!("{path}.urls"), message);
                }
            }
        }
        let headers = format!("{path}.headers");
        let headers = self.headers(&headers, raw.headers.clone(), &Origin::Toml);
        let requests = requests.into_iter().map(|(name, (_, it))| (name, it));
        let config = request::Config {
            requests: requests.collect(),
            headers,
        };
        (self.problems.len() == before).then_some(config)
    }

    fn request(&mut self, path: &str, url: &str, method: &Method) -> Option<RequestTemplate> {
        let url = self.text(path, url, &Origin::Toml)?;
        let parsed = RequestTemplate::parse(&url, method);
        parsed.map_err(|message| self.problem(path, message)).ok()
    }

    /// Checks that every placeholder is a parameter of the function. Only the schema's `properties` are considered.
    fn check_places<'p>(
        &mut self,
        path: &str,
        places: impl IntoIterator<Item = &'p str>,
        tool: &Tool,
    ) {
        let schema = &tool.input_schema;
        let is_plain = ["$ref", "allOf", "anyOf", "oneOf", "patternProperties"]
            .iter()
            .all(|keyword| !schema.contains_key(*keyword));
        if !is_plain {
            return;
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        for place in places {
            if !properties.is_some_and(|it| it.contains_key(place)) {
                let message = format!("`{{{place}}}` is no parameter of `{}`", tool.name);
                self.problem(path, message);
            }
        }
    }

    fn command(&mut self, path: &str, raw: &RawFunctions) -> Option<command::Config> {
        let command = raw.command.as_deref()?;
        let (args, env, cwd) = (raw.args.as_ref(), raw.env.as_ref(), raw.cwd.as_ref());
        let program = self.started(path, command, args, env, cwd, &Origin::Toml)?;
        Some(command::Config {
            command: self.program(program.command),
            args: program.args,
            env: program.env,
            cwd: program.cwd,
        })
    }

    /// A path is relative to the configuration file's folder; a bare name is found in `PATH`.
    fn program(&self, command: String) -> String {
        match command.starts_with("./") || command.starts_with("../") {
            true => self.base.join(command).display().to_string(),
            false => command,
        }
    }

    fn prompt(
        &mut self,
        path: &str,
        raw: &RawFunctions,
        tools: &[Tool],
        providers: Providers<'_>,
    ) -> Option<prompt::Config> {
        let model = raw.model.clone()?;
        self.check_model(&format!("{path}.model"), &model, providers);
        let at = format!("{path}.prompt");
        let Some(prompt) = raw.prompt.as_deref().filter(|it| !it.trim().is_empty()) else {
            self.problem(&at, "is missing: what the model is asked");
            return None;
        };
        let prompt = Template::parse(prompt);
        for tool in tools {
            let places = prompt.names().filter(|name| *name != FUNCTION);
            self.check_places(&at, places, tool);
        }
        if raw.definitions.is_none() && prompt.names().next().is_none() {
            self.problem(
                &at,
                "says nothing of the argument; put `{input}` where it belongs",
            );
        }
        Some(prompt::Config { model, prompt })
    }

    fn check_model(&mut self, path: &str, model: &str, providers: Providers<'_>) {
        let asked = providers.of(model);
        if asked.is_empty() && !providers.upstreams.is_empty() {
            self.problem(path, format_args!("no upstream has the model `{model}`"));
        }
        for (i, upstream) in asked {
            let of_upstream = format!("upstreams[{i}].");
            let is_unset = |it: &&Problem| it.path.starts_with(&of_upstream);
            if let Some(unset) = self.unset.iter().find(is_unset).cloned() {
                self.missing(path, unset);
            } else if !upstream.has_own_key() && upstream.base_url.scheme() == "https" {
                let name = &upstream.name;
                self.warn(
                    path,
                    format_args!("the upstream `{name}` has no `api_key`, and a function has no client whose key could be passed on"),
                );
            }
        }
    }
}

fn listed(ways: &[Way]) -> String {
    let keys: Vec<String> = ways.iter().map(|way| format!("`{}`", way.key())).collect();
    keys.join(", ")
}
