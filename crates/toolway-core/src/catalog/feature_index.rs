//! The prompts, resources and templates of all servers, under names that tell them apart.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::ServerFeatures;
use crate::translate::{names, uris};
use toolway_protocol::tool::{JsonObject, ServerId};

/// One prompt, resource or template, as it is shown among those of all servers.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedFeature {
    /// The server that has it.
    pub server: ServerId,
    /// Its own name (prompt) or URI (resource, template).
    pub own: String,
    /// The name or URI it is shown under; each once on its shelf.
    pub shown: String,
    /// Its entry, under the shown name.
    pub entry: JsonObject,
}

/// What all servers have besides tools, at one time.
#[derive(Debug, Default)]
pub struct FeatureIndex {
    servers: Vec<ServerFeatures>,
    prompts: Vec<IndexedFeature>,
    resources: Vec<IndexedFeature>,
    templates: Vec<IndexedFeature>,
    prompts_by_name: HashMap<String, usize>,
}

impl FeatureIndex {
    /// Takes up what these servers have, in the order of their names.
    ///
    /// An entry without a name or URI is left out, and so is one that its server lists again.
    pub fn build(servers: &[ServerFeatures]) -> FeatureIndex {
        let mut servers = servers.to_vec();
        servers.sort_by(|a, b| a.server.cmp(&b.server));
        let mut prompts = shelve(&servers, |it| &it.prompts, "name");
        let assigned = names::assign(prompts.iter().map(|it| (&it.server, it.own.as_str())));
        for (prompt, assigned) in prompts.iter_mut().zip(assigned) {
            prompt.show(assigned.name.as_str().to_owned(), "name");
        }
        let by_uri = |entries: fn(&ServerFeatures) -> &Vec<JsonObject>, key| {
            let mut shelved = shelve(&servers, entries, key);
            for it in &mut shelved {
                it.show(uris::wrap(&it.server, &it.own), key);
            }
            shelved
        };
        let resources = by_uri(|it| &it.resources, "uri");
        let templates = by_uri(|it| &it.templates, "uriTemplate");
        let prompts_by_name = prompts
            .iter()
            .enumerate()
            .map(|(at, it)| (it.shown.clone(), at))
            .collect();
        FeatureIndex {
            servers,
            prompts,
            resources,
            templates,
            prompts_by_name,
        }
    }

    /// The servers it was built from, by name.
    pub fn servers(&self) -> &[ServerFeatures] {
        &self.servers
    }

    /// What this server has.
    pub fn of(&self, server: &ServerId) -> Option<&ServerFeatures> {
        self.servers.iter().find(|it| it.server == *server)
    }

    /// Every prompt, by server and then in the server's order.
    pub fn prompts(&self) -> &[IndexedFeature] {
        &self.prompts
    }

    /// Every resource, likewise.
    pub fn resources(&self) -> &[IndexedFeature] {
        &self.resources
    }

    /// Every template, likewise.
    pub fn templates(&self) -> &[IndexedFeature] {
        &self.templates
    }

    /// The prompt that is shown under this name.
    pub fn prompt(&self, shown: &str) -> Option<&IndexedFeature> {
        self.prompts.get(*self.prompts_by_name.get(shown)?)
    }

    /// The server of a resource and its own URI there.
    ///
    /// A URI with its server in front says it itself. Any other belongs to the one server that lists it, or that
    /// has a template which begins like it, or that alone has resources at all; a model may have read it in a text.
    pub fn locate(&self, uri: &str) -> Option<(ServerId, String)> {
        if let Some((server, own)) = uris::unwrap(uri) {
            self.of(&server)?;
            return Some((server, own.to_owned()));
        }
        let listed = self.resources.iter().filter(|it| it.own == uri);
        let matching = self
            .templates
            .iter()
            .filter(|it| it.own == uri || begins_like(&it.own, uri));
        let having = self.servers.iter().filter(|it| it.may_have("resources"));
        let server = only(listed.map(|it| &it.server))
            .or_else(|| only(matching.map(|it| &it.server)))
            .or_else(|| only(having.map(|it| &it.server)))?;
        Some((server.clone(), uri.to_owned()))
    }
}

impl IndexedFeature {
    fn show(&mut self, shown: String, key: &str) {
        self.entry
            .insert(key.to_owned(), Value::String(shown.clone()));
        self.shown = shown;
    }
}

fn shelve(
    servers: &[ServerFeatures],
    entries: fn(&ServerFeatures) -> &Vec<JsonObject>,
    key: &str,
) -> Vec<IndexedFeature> {
    let mut shelved = Vec::new();
    for from in servers {
        let mut seen = HashSet::new();
        for entry in entries(from) {
            let own = entry.get(key).and_then(Value::as_str).unwrap_or_default();
            if !own.is_empty() && seen.insert(own) {
                shelved.push(IndexedFeature {
                    server: from.server.clone(),
                    own: own.to_owned(),
                    shown: own.to_owned(),
                    entry: entry.clone(),
                });
            }
        }
    }
    shelved
}

/// The URI begins with what stands before the first variable of the template.
fn begins_like(template: &str, uri: &str) -> bool {
    let literal = template.split('{').next().unwrap_or_default();
    !literal.is_empty() && uri.starts_with(literal)
}

/// The one server, if all are the same.
fn only<'a>(mut servers: impl Iterator<Item = &'a ServerId>) -> Option<&'a ServerId> {
    let first = servers.next()?;
    servers.all(|it| it == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> JsonObject {
        match value {
            Value::Object(object) => object,
            other => panic!("no object: {other}"),
        }
    }

    fn features(
        name: &str,
        prompts: &[&str],
        resources: &[&str],
        templates: &[&str],
    ) -> ServerFeatures {
        let list = |key: &str, all: &[&str]| {
            all.iter()
                .map(|it| object(json!({key: it, "x": 1})))
                .collect()
        };
        ServerFeatures {
            protocol_version: Some("2025-11-25".into()),
            capabilities: json!({"resources": {}}),
            prompts: list("name", prompts),
            resources: list("uri", resources),
            templates: list("uriTemplate", templates),
            ..ServerFeatures::unknown(ServerId::parse(name).unwrap())
        }
    }

    fn shown(index: &[IndexedFeature]) -> Vec<&str> {
        index.iter().map(|it| it.shown.as_str()).collect()
    }

    #[test]
    fn everything_is_shown_with_its_server_in_front_and_found_again() {
        let index = FeatureIndex::build(&[
            features("b", &["ask"], &["file:///a"], &["db://{id}"]),
            features("a", &["ask", "Say hello"], &["file:///a"], &[]),
        ]);
        let names = shown(index.prompts());
        assert_eq!((names[0], names[2]), ("a__ask", "b__ask"));
        for prompt in index.prompts() {
            assert_eq!(index.prompt(&prompt.shown), Some(prompt));
            assert_eq!(prompt.entry["name"], prompt.shown);
            assert_eq!(prompt.entry["x"], 1);
        }
        assert_eq!(
            shown(index.resources()),
            ["toolway://a/file:///a", "toolway://b/file:///a"]
        );
        assert_eq!(shown(index.templates()), ["toolway://b/db://{id}"]);
    }

    #[test]
    fn entries_without_a_name_and_those_that_come_twice_are_left_out() {
        let mut odd = features("a", &["x", "x", ""], &[], &[]);
        odd.prompts.push(object(json!({"title": "no name"})));
        odd.prompts.push(object(json!({"name": 5})));
        assert_eq!(shown(FeatureIndex::build(&[odd]).prompts()), ["a__x"]);
    }

    #[track_caller]
    fn check(index: &FeatureIndex, uri: &str, expected: Option<(&str, &str)>) {
        let located = index.locate(uri);
        let located = located
            .as_ref()
            .map(|(server, own)| (server.as_str(), own.as_str()));
        assert_eq!(located, expected);
    }

    #[test]
    fn a_uri_leads_to_its_server_and_never_to_one_of_several() {
        let index = FeatureIndex::build(&[
            features("a", &[], &["file:///a", "file:///both"], &["db://a/{id}"]),
            features("b", &[], &["file:///both"], &["db://b/{id}"]),
        ]);
        check(&index, "toolway://b/file:///x", Some(("b", "file:///x")));
        check(&index, "toolway://c/file:///x", None);
        check(&index, "file:///a", Some(("a", "file:///a")));
        check(&index, "file:///both", None);
        check(&index, "db://b/5", Some(("b", "db://b/5")));
        check(&index, "other:x", None);
        let alone = FeatureIndex::build(&[features("a", &[], &[], &[])]);
        check(&alone, "other:x", Some(("a", "other:x")));
    }
}
