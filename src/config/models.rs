//! Models under names of one's own: the `[models.NAME]` tables.

use std::collections::BTreeMap;

use super::{check::Check, keys::unknown, raw::RawModel};
use crate::upstream::model::{self, NamedModel, TargetModel};
use toolway_core::catalog;

/// Most models behind one name.
const MAX_TARGETS: usize = 16;

/// Most characters of a name.
const MAX_NAME: usize = 256;

/// Every model that can be asked.
#[derive(Clone, Copy)]
pub(super) struct Providers<'a> {
    pub(super) upstreams: &'a [model::Config],
    pub(super) models: &'a [NamedModel],
}

impl<'a> Providers<'a> {
    /// The upstreams that may be asked for this model, each with its place.
    pub(super) fn of(self, model: &str) -> Vec<(usize, &'a model::Config)> {
        let all = self.upstreams.iter().enumerate();
        if let Some(named) = self.models.iter().find(|it| it.name == model) {
            let is_target = |upstream: &model::Config| {
                named.targets.iter().any(|it| it.upstream == upstream.name)
            };
            return all.filter(|(_, it)| is_target(it)).collect();
        }
        all.filter(|(_, it)| has(it, model)).take(1).collect()
    }
}

/// The upstream has this model, as far as its `models` say.
fn has(upstream: &model::Config, model: &str) -> bool {
    let mut patterns = upstream.models.iter();
    upstream.models.is_empty() || patterns.any(|it| catalog::matches(it, model))
}

impl Check<'_> {
    /// All names of one's own.
    pub(super) fn named_models(
        &mut self,
        written: BTreeMap<String, RawModel>,
        upstreams: &[model::Config],
    ) -> Vec<NamedModel> {
        let written = written.into_iter();
        written
            .map(|(name, raw)| self.named_model(name, &raw, upstreams))
            .collect()
    }

    fn named_model(
        &mut self,
        name: String,
        raw: &RawModel,
        upstreams: &[model::Config],
    ) -> NamedModel {
        let path = format!("models.{name}");
        let is_odd = |c: char| c.is_control() || c.is_whitespace();
        if name.is_empty() || name.len() > MAX_NAME || name.contains(is_odd) {
            let message = format!("a name has 1 to {MAX_NAME} characters and no spaces");
            self.problem(&path, message);
        }
        let written = raw.targets.as_deref().unwrap_or_default();
        if written.is_empty() || written.len() > MAX_TARGETS {
            self.problem(
                format_args!("{path}.use"),
                format_args!(
                    "must name 1 to {MAX_TARGETS} models, such as \"openai/gpt-5\": the name of an upstream, `/`, and its model"
                ),
            );
        }
        let mut targets = Vec::new();
        for (i, target) in written.iter().enumerate() {
            let at = format!("{path}.use[{i}]");
            if written[..i].contains(target) {
                self.problem(&at, "stands here twice");
            }
            targets.extend(self.target(&at, target, upstreams));
        }
        NamedModel {
            name,
            targets,
            weights: self.weights(&format!("{path}.weights"), raw, written.len()),
        }
    }

    fn target(
        &mut self,
        path: &str,
        written: &str,
        upstreams: &[model::Config],
    ) -> Option<TargetModel> {
        // A name of an upstream may have slashes, too.
        let of = |upstream: &model::Config| {
            let model = written.strip_prefix(&upstream.name)?.strip_prefix('/')?;
            Some((upstream.name.len(), upstream.name.clone(), model.to_owned()))
        };
        let found = upstreams.iter().filter_map(of).max();
        match found {
            Some((_, upstream, model)) if !model.is_empty() => {
                let of = upstreams.iter().find(|it| it.name == upstream);
                if of.is_some_and(|it| !has(it, &model)) {
                    self.warn(
                        path,
                        format_args!(
                            "`models` of upstream `{upstream}` has no pattern for `{model}`; requests go there all the same"
                        ),
                    );
                }
                return Some(TargetModel { upstream, model });
            }
            None if !upstreams.is_empty() && written.contains('/') => {
                let names: Vec<&str> = upstreams.iter().map(|it| it.name.as_str()).collect();
                let upstream = written.split('/').next().unwrap_or_default();
                self.problem(path, unknown("upstream", upstream, &names));
            }
            _ => self.problem(
                path,
                "must be the name of an upstream, `/`, and its model: \"openai/gpt-5\"",
            ),
        }
        None
    }

    fn weights(&mut self, path: &str, raw: &RawModel, targets: usize) -> Vec<u32> {
        let Some(written) = &raw.weights else {
            return Vec::new();
        };
        if written.len() != targets {
            let message = format!("must have one number for each of the {targets} models in `use`");
            self.problem(path, message);
        }
        let weights = written.iter().enumerate();
        let weights: Vec<u32> = weights
            .map(|(i, weight)| self.number(format!("{path}[{i}]"), Some(*weight), 0..=1000, 1))
            .collect();
        if !weights.is_empty() && weights.iter().all(|weight| *weight == 0) {
            self.problem(path, "must have a number above 0");
        }
        weights
    }
}
