//! Models under names of one's own: which models of which upstreams stand behind a name, and asking one after another
//! until one answers. The rules are in [`targets`].

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use toolway_core::route::targets::{self, Unanswered};
use toolway_protocol::segmented_body::SegmentedBody;

use super::{ClientHeaders, Config, Incoming, ModelError, Models, Upstream, retry::RoundPosition};
use crate::upstream::retry_after;

/// A name of one's own and what stands behind it, as configured and checked.
#[derive(Clone, Debug)]
pub struct NamedModel {
    /// The name.
    pub name: String,
    /// The models, in the order in which they are asked; never empty.
    pub targets: Vec<TargetModel>,
    /// How often each is asked first; empty: the first one always is.
    pub weights: Vec<u32>,
}

/// A model of an upstream.
#[derive(Clone, Debug)]
pub struct TargetModel {
    /// The upstream's name.
    pub upstream: String,
    /// What the upstream calls the model.
    pub model: String,
}

impl fmt::Display for TargetModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.upstream, self.model)
    }
}

/// A name with its models.
#[derive(Debug)]
pub(super) struct NamedTargets {
    pub(super) name: String,
    targets: Vec<Target>,
    weights: Vec<u32>,
}

impl NamedTargets {
    /// Upstreams that are not there are left out; the configuration has none such.
    pub(super) fn new(config: NamedModel, upstreams: &[Arc<Upstream>]) -> NamedTargets {
        let find = |name: &str| upstreams.iter().find(|it| it.config.name == name);
        let targets = config.targets.into_iter().filter_map(|target| {
            Some(Target {
                upstream: Arc::clone(find(&target.upstream)?),
                json: serde_json::Value::from(target.model.as_str()).to_string(),
                model: target.model,
                rest: Mutex::default(),
            })
        });
        NamedTargets {
            name: config.name,
            targets: targets.collect(),
            weights: config.weights,
        }
    }

    pub(super) fn route(&self, random: u64) -> Route<'_> {
        let now = Instant::now();
        let is_resting = self.targets.iter().map(|target| target.is_resting(now));
        let is_resting: Vec<bool> = is_resting.collect();
        let order = targets::order(&self.weights, &is_resting, random);
        let steps = order.into_iter().filter_map(|place| {
            let target = self.targets.get(place)?;
            Some(RouteStep {
                upstream: &target.upstream,
                target: Some(target),
            })
        });
        Route {
            steps: steps.collect(),
            at: AtomicUsize::new(0),
        }
    }

    pub(super) fn upstreams(&self) -> impl Iterator<Item = &Upstream> {
        self.targets.iter().map(|target| &*target.upstream)
    }
}

/// A model behind a name.
#[derive(Debug)]
struct Target {
    upstream: Arc<Upstream>,
    model: String,
    /// `model` as a JSON text.
    json: String,
    rest: Mutex<Rest>,
}

/// How often a model failed in a row, and until when it rests.
#[derive(Debug, Default)]
struct Rest {
    failures: u32,
    until: Option<Instant>,
}

impl Target {
    fn is_resting(&self, now: Instant) -> bool {
        self.rest().until.is_some_and(|until| now < until)
    }

    fn has_answered(&self) {
        *self.rest() = Rest::default();
    }

    /// Begins a rest. Requests that failed side by side count once.
    fn has_failed(&self, asked: Option<Duration>) {
        let now = Instant::now();
        let mut rest = self.rest();
        if rest.until.is_none_or(|until| until <= now) {
            rest.failures = rest.failures.saturating_add(1);
        }
        rest.until = Some(now + targets::rest(rest.failures, asked));
    }

    fn rest(&self) -> std::sync::MutexGuard<'_, Rest> {
        // A thread that panicked with it has set whole members.
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The models that may answer a request, in the order in which they are asked. One that was asked because those before
/// it failed is kept for the later rounds of the request.
#[derive(Debug)]
pub struct Route<'a> {
    /// Never empty.
    steps: Vec<RouteStep<'a>>,
    at: AtomicUsize,
}

/// One model of a [`Route`].
#[derive(Clone, Copy, Debug)]
pub struct RouteStep<'a> {
    /// The upstream that has it.
    pub upstream: &'a Upstream,
    target: Option<&'a Target>,
}

impl<'a> RouteStep<'a> {
    /// What the upstream calls the model, where the client calls it otherwise.
    pub fn model(&self) -> Option<&'a str> {
        self.target.map(|target| target.model.as_str())
    }

    /// The same as a JSON text.
    pub fn model_json(&self) -> Option<&'a str> {
        self.target.map(|target| target.json.as_str())
    }

    /// The upstream and the model, for people.
    fn label(&self) -> String {
        let upstream = &self.upstream.config.name;
        match self.model() {
            Some(model) => format!("{upstream}/{model}"),
            None => upstream.clone(),
        }
    }
}

impl<'a> Route<'a> {
    /// To one upstream, under the client's own name of the model.
    pub(super) fn to(upstream: &'a Upstream) -> Route<'a> {
        let step = RouteStep {
            upstream,
            target: None,
        };
        Route {
            steps: vec![step],
            at: AtomicUsize::new(0),
        }
    }

    /// The model that is asked now, or has answered.
    pub fn current(&self) -> RouteStep<'a> {
        self.steps[self.at()]
    }

    /// How many models have failed.
    pub fn at(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// Every upstream that may answer.
    pub fn upstreams(&self) -> impl Iterator<Item = &'a Config> {
        self.steps.iter().map(|step| &step.upstream.config)
    }

    /// Asks for a chat completion, see [`Upstream::chat`], and the next model where one gives no answer. `model` is the
    /// client's name of the model, `body` writes the body for one.
    ///
    /// Nothing of the answer has been shown when this ends; if another model can be asked, it ends with the first event
    /// of the answer, and else with its head.
    pub async fn ask<'b>(
        &self,
        headers: &ClientHeaders,
        model: &str,
        body: impl Fn(RouteStep<'a>) -> SegmentedBody<'b>,
        round: RoundPosition,
    ) -> Result<Incoming, ModelError> {
        let mut warnings = Vec::new();
        loop {
            let step = self.current();
            let is_last = self.is_last();
            let round = if is_last {
                round
            } else {
                RoundPosition::WithFallback
            };
            let model = step.model().unwrap_or(model);
            let body = body(step);
            let asking = step.upstream.chat(headers, model, &body, round);
            let answered = match asking.await {
                Ok(incoming) if !is_last => Box::pin(incoming.begun()).await,
                answered => answered,
            };
            match answered {
                Ok(mut incoming) => {
                    self.has_answered();
                    incoming.warnings.extend(warnings);
                    return Ok(incoming);
                }
                Err(error) => match self.fall_back(&error) {
                    Some(warning) => warnings.push(warning),
                    None => return Err(error),
                },
            }
        }
    }

    /// The current model has begun to answer.
    pub fn has_answered(&self) {
        if let Some(target) = self.current().target {
            target.has_answered();
        }
    }

    /// After this failure of the current model: goes on to the next model and gives a warning for the client, or `None`
    /// if the failure stays.
    pub fn fall_back(&self, error: &ModelError) -> Option<String> {
        let why = error.unanswered();
        let asked = match error {
            ModelError::Refused(refused) => retry_after(&refused.headers),
            _ => None,
        };
        self.rest(why, asked);
        self.next(why, error)
    }

    /// The same without a rest.
    pub fn pass_over(&self, error: &ModelError) -> Option<String> {
        self.next(error.unanswered(), error)
    }

    /// Lets the current model rest if it is to.
    fn rest(&self, why: Unanswered, asked: Option<Duration>) {
        let step = self.current();
        if let Some(target) = step
            .target
            .filter(|_| why.rests(step.upstream.config.client_key))
        {
            target.has_failed(asked);
        }
    }

    fn next(&self, why: Unanswered, error: &ModelError) -> Option<String> {
        if self.is_last() || !why.falls_back() {
            return None;
        }
        let failed = self.current().label();
        self.at.fetch_add(1, Ordering::Relaxed);
        let next = self.current().label();
        tracing::warn!(%error, failed, next, "Asking another model");
        Some(format!("{failed} {why}; {next} was asked"))
    }

    fn is_last(&self) -> bool {
        self.at() + 1 >= self.steps.len()
    }
}

impl Models {
    /// The models that a request for this one may be answered by. A name of one's own comes before a model of an
    /// upstream; `random` decides by weight.
    pub fn route(&self, model: &str, random: impl FnOnce() -> u64) -> Option<Route<'_>> {
        match self.find_named(model) {
            Some(named) => Some(named.route(random())),
            None => self.choose(model).map(|upstream| Route::to(upstream)),
        }
    }

    /// The names of one's own.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|named| named.name.as_str())
    }

    /// It is a name of one's own.
    pub fn is_name(&self, model: &str) -> bool {
        self.find_named(model).is_some()
    }

    /// The upstreams that may answer a request for this model are there, and each is so.
    pub fn all_of(&self, model: &str, is_so: impl Fn(&Config) -> bool) -> bool {
        match self.find_named(model) {
            Some(named) => named.upstreams().all(|upstream| is_so(&upstream.config)),
            None => self
                .choose(model)
                .is_some_and(|upstream| is_so(&upstream.config)),
        }
    }

    /// Every upstream that may answer is asked for a chat completion.
    pub fn is_asked_in_chat(&self, model: &str) -> bool {
        match self.find_named(model) {
            Some(named) => {
                let mut targets = named.targets.iter();
                targets.all(|target| target.upstream.is_asked_in_chat(&target.model))
            }
            None => self
                .choose(model)
                .is_none_or(|upstream| upstream.is_asked_in_chat(model)),
        }
    }

    fn find_named(&self, model: &str) -> Option<&NamedTargets> {
        self.named.iter().find(|named| named.name == model)
    }
}
