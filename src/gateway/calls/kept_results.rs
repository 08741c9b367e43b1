//! Results that serve again for calls which ask the same, across requests: by server, for one client or for all.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use tokio::time::Instant;

use crate::store::Principal;
use toolway_core::{
    agent::Job,
    route::cache::{CacheRules, canonical},
};
use toolway_protocol::{
    mcp::results::write_result,
    tool::{FunctionName, ServerId, ToolResult},
};

/// Most results of one server.
const MAX_RESULTS: usize = 1000;

/// Longest result that is kept, in bytes of JSON.
const MAX_RESULT_BYTES: usize = 64 << 10;

/// What is asked, and who asks; `None` for a result that serves everyone.
type Asked = (Option<Principal>, FunctionName, String);

/// The results that are kept.
#[derive(Default)]
pub(in crate::gateway) struct KeptResults {
    rules: HashMap<ServerId, CacheRules>,
    results: Mutex<HashMap<ServerId, HashMap<Asked, KeptResult>>>,
}

struct KeptResult {
    result: ToolResult,
    expires: Instant,
}

impl KeptResults {
    /// By what the configuration says about each server.
    pub(in crate::gateway) fn new(rules: HashMap<ServerId, CacheRules>) -> KeptResults {
        KeptResults {
            rules,
            results: Mutex::default(),
        }
    }

    /// The result that serves this call.
    pub(super) fn find(&self, principal: Principal, job: &Job) -> Option<ToolResult> {
        if !self.may_keep(job) {
            return None;
        }
        let results = self.lock();
        let kept = results.get(&job.offered.server)?;
        let arguments = canonical(&job.arguments);
        let mut asked: Asked = (Some(principal), job.offered.name.clone(), arguments);
        let own = kept.get(&asked);
        asked.0 = None;
        let found = own.or_else(|| kept.get(&asked))?;
        (found.expires > Instant::now()).then(|| found.result.clone())
    }

    /// Keeps the result of a call where that may serve again. After a call that may have changed something, the results
    /// of its server serve no more.
    pub(super) fn note(&self, principal: Principal, job: &Job, result: Option<&ToolResult>) {
        if !self.may_keep(job) {
            self.lock().remove(&job.offered.server);
            return;
        }
        let rules = self.rules.get(&job.offered.server);
        let Some((lifetime, result)) = result.and_then(|result| {
            let lifetime = rules?.lifetime(&job.offered, result)?;
            let bytes = write_result(result.clone()).to_string().len();
            (bytes <= MAX_RESULT_BYTES).then(|| (lifetime, result.clone()))
        }) else {
            return;
        };
        let principal = (!lifetime.is_public).then_some(principal);
        let asked = (
            principal,
            job.offered.name.clone(),
            canonical(&job.arguments),
        );
        let expires = Instant::now() + lifetime.lasts;
        let mut results = self.lock();
        let kept = results.entry(job.offered.server.clone()).or_default();
        make_room(kept);
        kept.insert(asked, KeptResult { result, expires });
    }

    fn may_keep(&self, job: &Job) -> bool {
        let rules = self.rules.get(&job.offered.server);
        rules.is_some_and(|rules| rules.may_keep(&job.offered))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ServerId, HashMap<Asked, KeptResult>>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes what has expired, and otherwise what expires first.
fn make_room(kept: &mut HashMap<Asked, KeptResult>) {
    if kept.len() < MAX_RESULTS {
        return;
    }
    let now = Instant::now();
    kept.retain(|_, result| result.expires > now);
    if kept.len() >= MAX_RESULTS {
        let mut ends: Vec<Instant> = kept.values().map(|result| result.expires).collect();
        ends.sort_unstable();
        let first = ends[MAX_RESULTS / 10];
        kept.retain(|_, result| result.expires > first);
    }
}
